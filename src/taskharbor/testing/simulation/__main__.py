"""Print the history of one seed: python -m taskharbor.testing.simulation SEED [polling|sqs]."""

from __future__ import annotations

import logging
import sys

from taskharbor.testing.simulation import simulate


def main() -> int:
    logging.disable(logging.CRITICAL)
    history = simulate(int(sys.argv[1]), "sqs" if "sqs" in sys.argv else "polling")
    sys.stdout.writelines(f"{line}\n" for line in history.lines())
    sys.stdout.writelines(f"VIOLATION {violation}\n" for violation in history.violations)
    sys.stdout.write(f"seed {sys.argv[1]}: {len(history.violations)} violations, history {history.digest()}\n")
    return 1 if history.violations else 0


if __name__ == "__main__":
    sys.exit(main())
