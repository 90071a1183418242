"""Worlds drawn from a seed: real workers, janitors and clients, on a memory store where everything goes wrong.

One thread, virtual time, one integer: the same seed makes the same history, everywhere.

>>> simulate(1).violations
[]
"""

from taskharbor.testing.simulation.batch import Verdict, judge, judge_all
from taskharbor.testing.simulation.run import simulate
from taskharbor.testing.simulation.sightings import EXPECTED, sightings

__all__ = ["EXPECTED", "Verdict", "judge", "judge_all", "sightings", "simulate"]
