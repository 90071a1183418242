"""20,000 and more generated requests, good and bad, against every operation of the OpenAPI document.

An answer of 5xx, an undocumented status or a body that breaks its schema raises: there are no figures then.
"""

from __future__ import annotations

from tests.support.fuzzing import fuzz

REQUESTS = 24_000  # of which some operations cannot make enough different ones
SEEDS = 10


def figures() -> dict[str, object]:
    tallies = [fuzz(REQUESTS // SEEDS, number=number) for number in range(SEEDS)]
    statuses = sum((tally.statuses for tally in tallies[1:]), tallies[0].statuses)
    return {
        "requests": sum(tally.requests for tally in tallies),
        "by status": {str(int(status)): count for status, count in sorted(statuses.items())},
    }
