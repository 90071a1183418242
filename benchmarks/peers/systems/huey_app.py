"""Huey on Redis or SQLite: one thread as installed; four, polling each 10 ms and no results if tuned."""

from __future__ import annotations

import protocol
from huey import RedisHuey, SqliteHuey

RESULTS = not protocol.TUNED

if protocol.URL.startswith("redis:"):
    huey = RedisHuey("bench", url=protocol.URL, results=RESULTS)
else:
    huey = SqliteHuey("bench", filename=protocol.URL.removeprefix("sqlite:///"), results=RESULTS)


@huey.task(name="noop")
def noop(n: int, user: str, kind: str, ts: float | None = None) -> None:
    protocol.handle_sync(ts)


def singly(action: str, arguments: list[float]) -> float:
    return protocol.enqueue_sync_as(action, arguments, lambda payload: noop(**payload))


def worker() -> None:
    options = ["--workers", "4", "--delay", "0.01", "--max-delay", "0.01", "--no-periodic"] if protocol.TUNED else []
    protocol.become("huey.bin.huey_consumer", "huey_app.huey", *options)


if __name__ == "__main__":
    import huey_app as this  # so that jobs name this module, not `__main__`

    protocol.run({"setup": lambda: None, "worker": this.worker}, this.singly)
