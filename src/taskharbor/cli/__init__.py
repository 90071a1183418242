"""The command line: `taskharbor`, or `th`, or `python -m taskharbor.cli`."""

from taskharbor.cli.root import main

__all__ = ["main"]
