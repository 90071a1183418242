"""Hearing of jobs by LISTEN, and telling of them by NOTIFY."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from math import inf
from typing import TYPE_CHECKING, Final, LiteralString

import psycopg

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.ids import new_token
from taskharbor.drivers.postgres.failures import explained

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from datetime import timedelta

    from taskharbor.core.model import NewJob
    from taskharbor.drivers.postgres.address import Address
    from taskharbor.drivers.postgres.connection import Connections

_LOG: Final = logging.getLogger(__name__)
PROOF: Final = 30.0  # seconds of silence, after which a listener asks whether it still hears
ECHO: Final = 5.0  # seconds within which it must hear its own voice
PAUSE: Final = 1.0  # seconds between two attempts to connect
REST: Final = 0.005  # seconds between two rings: who hears one takes what there is, and looks again
ANY: Final = ""
"""What is called for jobs of a queue that is not known."""
RING: Final[LiteralString] = """
    SELECT pg_notify(%(channel)s, queue)
      FROM unnest(%(queues)s::text[]) AS asked (queue)
"""


def channel(schema: str) -> str:
    return f"taskharbor_{schema}"[:63]


def fed_queues(jobs: Iterable[NewJob]) -> set[str]:
    """Return the queues that have one of *jobs* to take at once, as far as one can tell without the store's clock."""
    return {job.queue for job in jobs if job.scheduled_for is None and not job.delay}


class PostgresListener:
    """Listens on a connection of its own.

    LISTEN dies in silence behind a pooler, or on a socket whose other end is gone. So it calls
    itself at the start and after some silence, and connects anew if it does not hear that. That
    it hears nothing, and that it hears again, is logged once.
    """

    def __init__(self, address: Address, queues: Collection[str]) -> None:
        self._address = address
        self._queues = {ANY, *queues}
        self._awake, self._alarm = os.pipe()
        os.set_blocking(self._awake, False)
        os.set_blocking(self._alarm, False)
        self._db: psycopg.Connection | None = None
        self._connect_at = 0.0
        self._heard_at = self._called_at = 0.0
        self._echo: str | None = None
        self._is_deaf = False
        if address.is_pooled:
            _LOG.info("a pooler is in between: nothing is listened to, and jobs are found by looking now and then")
        self._connect()

    def wait(self, timeout: timedelta) -> bool:
        give_up_at = time.monotonic() + timeout.total_seconds()
        while True:
            if self._hear(max(0.0, min(give_up_at, self._next_look()) - time.monotonic())):
                return True
            if time.monotonic() >= give_up_at:
                return False
            if self._look():
                return True

    def wake(self) -> None:
        try:
            os.write(self._alarm, b".")
        except BlockingIOError:
            return  # it is full of alarms already

    def close(self) -> None:
        self._hang_up()
        os.close(self._awake)
        os.close(self._alarm)

    def _hear(self, seconds: float) -> bool:
        """Wait for so long at most, and tell whether somebody rang."""
        ears = select.poll()
        ears.register(self._awake, select.POLLIN)
        if self._db is not None:
            ears.register(self._db.fileno(), select.POLLIN)
        rang = [fd for fd, _ in ears.poll(seconds * 1_000)]
        if self._awake in rang:
            os.read(self._awake, 65_536)
            return True
        return bool(rang) and self._heard()

    def _heard(self) -> bool:
        """Read what arrived; a connection that broke may have lost a ring, and counts as one."""
        if self._db is None:
            return False
        queues = set()
        try:
            self._db.pgconn.consume_input()
            while not self._db.pgconn.is_busy() and self._db.pgconn.get_result() is not None:
                pass  # what it answers to our own call
            while (note := self._db.pgconn.notifies()) is not None:
                queues.add(note.extra.decode())
        except psycopg.Error as error:
            self._go_deaf(self._explained(error))
            return True
        self._heard_at = time.monotonic()
        if self._echo in queues:
            self._echo = None
            self._hear_again()
        return not self._queues.isdisjoint(queues)

    def _next_look(self) -> float:
        """Return when to see after the connection, if nothing is heard."""
        if self._db is None:
            return inf if self._address.is_pooled else self._connect_at
        return self._called_at + ECHO if self._echo else self._heard_at + PROOF

    def _look(self) -> bool:
        """Connect if that is due; call oneself after a silence, and hang up if that was not heard.

        True, if it hears again: nobody knows what rang meanwhile.
        """
        if time.monotonic() < self._next_look():
            return False
        if self._db is None:
            self._connect()
            return self._db is not None
        if self._echo:
            self._go_deaf("it does not hear itself: the socket's other end is gone, or a pooler is in between")
        else:
            self._call()
        return False

    def _call(self) -> None:
        """Call oneself, and do not wait for an answer: there may be none, and psycopg would keep the echo to itself."""
        if self._db is None:
            return
        self._echo, self._called_at = str(new_token()), time.monotonic()
        named = [channel(self._address.schema).encode(), self._echo.encode()]
        try:
            self._db.pgconn.send_query_params(b"SELECT pg_notify($1, $2)", named)
            self._db.pgconn.flush()
        except psycopg.Error as error:
            self._go_deaf(self._explained(error))

    def _connect(self) -> None:
        if self._address.is_pooled or self._db is not None or time.monotonic() < self._connect_at:
            return
        self._connect_at = time.monotonic() + PAUSE
        try:
            self._db = self._address.connect(pinned=False)
            self._heard_at = time.monotonic()
            self._db.execute(f'LISTEN "{channel(self._address.schema)}"'.encode())
        except psycopg.Error as error:
            self._go_deaf(self._explained(error))
        else:
            self._call()

    def _explained(self, error: psycopg.Error) -> str:
        return str(explained(error, self._address.place))

    def _go_deaf(self, why: str) -> None:
        self._hang_up()
        if not self._is_deaf:
            _LOG.warning("cannot listen for jobs, and tries again; until then workers look now and then: %s", why)
        self._is_deaf = True

    def _hear_again(self) -> None:
        if self._is_deaf:
            _LOG.info("listens for jobs again")
        self._is_deaf = False

    def _hang_up(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = self._echo = None


_CALL: Final[LiteralString] = """
    -- A call is not worth a flush of the WAL, for which the next insert would have to wait.
    SELECT set_config('synchronous_commit', 'off', true), pg_notify(%(channel)s, queue)
      FROM unnest(%(queues)s::text[]) AS asked (queue)
"""


class Bell:
    """Tells listeners of jobs, after their commit and from a thread of its own.

    NOTIFY takes a lock of the whole server when it commits, so that it must not be part of
    an insert; and those that come in while one is under way, or within a moment after it, become one.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._start_anew()

    def _start_anew(self) -> None:
        self._changed = threading.Condition()
        self._queues: set[str] = set()
        self._thread: threading.Thread | None = None
        self._is_closed = self._rests = False
        self._pid = os.getpid()

    def ring(self, queues: Collection[str]) -> None:
        """Tell of jobs of these *queues*, where there are any."""
        if not queues:
            return
        if self._pid != os.getpid():
            self._start_anew()  # the thread stayed on the other side of the fork
        with self._changed:
            is_awaited = not self._queues and not self._rests
            self._queues.update(queues)
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="taskharbor-bell", daemon=True)
                self._thread.start()
            if is_awaited:
                self._changed.notify()

    def close(self) -> None:
        if self._pid != os.getpid():
            self._start_anew()  # or one could wait for ever for a lock that a thread of the other side holds
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=self._connections.address.deadline.total_seconds())

    def _run(self) -> None:
        while queues := self._next():
            try:
                with self._connections.connection() as db:
                    asked = {"channel": channel(self._connections.address.schema), "queues": sorted(queues)}
                    db.execute(_CALL, asked)
            except (StoreUnavailable, psycopg.Error):
                pass  # a hint is lost; whoever waits for jobs looks now and then all the same
            self._rest()

    def _rest(self) -> None:
        with self._changed:
            self._rests = True
            self._changed.wait_for(lambda: self._is_closed, REST)
            self._rests = False

    def _next(self) -> set[str]:
        with self._changed:
            self._changed.wait_for(lambda: self._queues or self._is_closed)
            queues, self._queues = self._queues, set()
            return queues
