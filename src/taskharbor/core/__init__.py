"""What decides: pure values and functions. Standard library only, no I/O, time comes in as an argument."""
