"""For tests: ours, yours, and those of other people's drivers."""
