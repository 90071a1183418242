"""Deterministic simulation: real workers, janitors and clients on a memory store that injects faults.

In mode "sqs", real enqueuers also send messages through a queue service that loses, duplicates and delays them.
A simulation runs in one thread with virtual time. The same seed gives the same history on every machine.

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
