"""The command-line interface: `taskharbor`, `th`, or `python -m taskharbor.cli`."""

try:
    from taskharbor.cli.main import main
except KeyboardInterrupt:  # Ctrl-C in the first moments of a command, while modules are imported
    raise SystemExit(130) from None  # ExitCode.INTERRUPTED, which is not imported yet

__all__ = ["main"]
