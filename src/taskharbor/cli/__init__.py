"""The command line: `taskharbor`, or `th`, or `python -m taskharbor.cli`."""

from taskharbor.cli.main import main

__all__ = ["main"]
