"""Jobs that are made as they are taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.model import NewJob


class Making(Sequence["NewJob"]):
    """A sequence of *count* jobs, each of them made when it is first asked for, and kept."""

    def __init__(self, rest: Iterator[NewJob], count: int) -> None:
        self._made: list[NewJob] = []
        self._rest = rest
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[NewJob]:
        return iter(self._made) if len(self._made) == self._count else self._go_on()

    def _go_on(self) -> Iterator[NewJob]:
        yield from self._made
        for job in self._rest:
            self._made.append(job)
            yield job

    @overload
    def __getitem__(self, place: int) -> NewJob: ...

    @overload
    def __getitem__(self, place: slice) -> list[NewJob]: ...

    def __getitem__(self, place: int | slice) -> NewJob | list[NewJob]:
        self._made += self._rest
        return self._made[place]
