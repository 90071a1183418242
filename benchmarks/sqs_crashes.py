"""Worker and enqueuer processes at a PostgreSQL and an SQS over HTTP that loses and doubles messages.

One of them is killed every two seconds. A job that is lost, that has two holders at once or whose
attempts are not counted right raises, and so does a message that is left over: there are no figures then.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.delivery.subjects import KEYS
from tests.delivery.test_end_to_end import ENQUEUERS, WORKERS, torment
from tests.worker.test_crashes import served

JOBS: Final = 2_000
EVERY: Final = 2.0  # seconds


def figures() -> dict[str, object]:
    os.environ.update(KEYS)  # noqa: TID251  the processes inherit it
    with served() as (server, _), TemporaryDirectory() as folder:
        counts = torment(server.url, Path(folder), jobs=JOBS, every=EVERY, kills=1_000)
    return {"workers": WORKERS, "enqueuers": ENQUEUERS, "seconds between kills": EVERY, **counts}
