"""Send more than 20,000 generated requests, valid and invalid, to every operation of the OpenAPI document.

A 5xx response, an undocumented status or a body that does not match its schema raises, so there are no figures.
"""

from __future__ import annotations

from tests.support.fuzzing import fuzz

REQUESTS = 24_000  # fewer are sent: some operations do not have enough different requests
SEEDS = 10


def figures() -> dict[str, object]:
    tallies = [fuzz(REQUESTS // SEEDS, number=number) for number in range(SEEDS)]
    statuses = sum((tally.statuses for tally in tallies[1:]), tallies[0].statuses)
    return {
        "requests": sum(tally.requests for tally in tallies),
        "by status": {str(int(status)): count for status, count in sorted(statuses.items())},
    }
