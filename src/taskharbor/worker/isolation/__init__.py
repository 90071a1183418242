"""Attempts in child processes: the worker's side. `taskharbor.isolated` is the side of the processes."""
