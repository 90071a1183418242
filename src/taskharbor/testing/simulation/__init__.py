"""Worlds drawn from a seed: real workers, janitors and clients, on a memory store where everything goes wrong.

In the mode "sqs" real enqueuers send messages besides, by a queue service that loses, doubles and delays them.
One thread, virtual time, one integer: the same seed makes the same history, everywhere.

>>> simulate(1).violations
[]
>>> simulate(1, "sqs").violations
[]
"""

from taskharbor.testing.simulation.coverage import REQUIRED_COVERAGE, REQUIRED_MESSAGE_COVERAGE, coverage_of
from taskharbor.testing.simulation.run import Mode, SeedReport, run_seed, run_seeds, simulate

__all__ = [
    "REQUIRED_COVERAGE",
    "REQUIRED_MESSAGE_COVERAGE",
    "Mode",
    "SeedReport",
    "coverage_of",
    "run_seed",
    "run_seeds",
    "simulate",
]
