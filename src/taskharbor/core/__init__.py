"""Pure values and functions: standard library only, no I/O, and the current time is always an argument."""
