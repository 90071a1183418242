"""Run `taskharbor demo`, for `make demo`."""

from __future__ import annotations

import sys

from taskharbor.cli.main import cli, run

if __name__ == "__main__":
    sys.exit(run(cli, ["demo", *sys.argv[1:]]))
