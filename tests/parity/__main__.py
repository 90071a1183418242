"""Plant each difference in turn, and print the table of what the machine found."""

from __future__ import annotations

import sys
import time

from tests.conformance import test_drivers
from tests.parity.planting import all_differences, differing
from tests.parity.test_differences import find


def main() -> int:
    missed = 0
    for difference in all_differences():
        start = time.monotonic()
        with differing(difference) as other:
            found = find([test_drivers.memory, other])
        missed += found is None
        told = (found or "NOT FOUND").splitlines()[0]
        print(f"{difference.name:<72} {time.monotonic() - start:5.1f} s  {told:.120}")  # noqa: T201  for a person
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
