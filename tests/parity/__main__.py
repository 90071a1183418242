"""Plant all differences, and print a table of what the state machine found."""

from __future__ import annotations

import sys

from tests.parity.test_differences import find_all


def main() -> int:
    table = find_all()
    for name, found in table.items():
        print(f"{name:<75}{(found or 'NOT FOUND').splitlines()[0]}")  # noqa: T201  command-line output
    return 0 if all(table.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
