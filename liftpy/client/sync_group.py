"""Consumer groups and cursors without asyncio: what ``liftpy.client.sync`` gives for ``client.group`` and ``client.cursor``.

    with client.group("bills", ["orders"]) as group:
        for part in group:
            for record in part.slice.records(): ...

Heartbeats and commits go on in the client's own thread, so that a member that works long on a part stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from liftpy.client.consumer import Consumer
from liftpy.client.copying import PartitionFor, Transform
from liftpy.client.cursor import Cursor
from liftpy.client.group import Group
from liftpy.client.group_part import GroupPart
from liftpy.client.positions import Position, Start
from liftpy.client.producing import ProducerOptions
from liftpy.ids import PartitionKey

_T = TypeVar("_T")
_Reading = TypeVar("_Reading")


class Runs(Protocol):
    """The client's event loop, in its thread."""

    def run(self, work: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """What it gives or raises."""
        ...


class SyncGroup:
    """As ``liftpy.client.group.Group``: an iterable of parts; the one before is finished when the next is asked for."""

    def __init__(self, loop: Runs, group: Group) -> None:
        self._loop = loop
        self._group = group
        self.name = group.name

    @property
    def owned(self) -> list[PartitionKey]:
        """The partitions that are read now."""

        async def now() -> list[PartitionKey]:
            return self._group.owned

        return self._loop.run(now())

    @property
    def counters(self) -> dict[str, int]:
        """What went wrong and was tried again, by kind."""
        return self._group.counters

    def __iter__(self) -> Iterator[GroupPart]:
        async def following() -> GroupPart | None:
            try:
                return await anext(self._group)
            except StopAsyncIteration:
                return None

        while (part := self._loop.run(following())) is not None:
            yield part

    def take(self) -> GroupPart | None:
        """See ``Group.take``."""
        return self._loop.run(self._group.take())

    def finished(self, part: GroupPart) -> None:
        """See ``Group.finished``."""

        async def told() -> None:
            self._group.finished(part)

        self._loop.run(told())

    def into(
        self,
        target: str,
        transform: Transform,
        *,
        partition_for: PartitionFor | None = None,
        options: ProducerOptions | None = None,
    ) -> None:
        """See ``Group.into``; ``transform`` is called in the client's thread. Until another closes the group, or Ctrl-C."""
        self._loop.run(self._group.into(target, transform, partition_for=partition_for, options=options))

    def commit(self) -> None:
        """See ``Group.commit``."""
        self._loop.run(self._group.commit())

    def close(self) -> None:
        """See ``Group.close``."""
        self._loop.run(self._group.close())

    def __enter__(self) -> SyncGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class SyncCursor(Generic[_Reading]):
    """As ``liftpy.client.cursor.Cursor``."""

    def __init__(self, loop: Runs, cursor: Cursor, reading: Callable[[Consumer], _Reading]) -> None:
        self._loop = loop
        self._cursor = cursor
        self._reading = reading
        self.name, self.stream = cursor.name, cursor.stream

    def fetch(self, partition: int = 0) -> int | None:
        """See ``Cursor.fetch``."""
        return self._loop.run(self._cursor.fetch(partition))

    def commit(self, position: int | Position, partition: int = 0) -> None:
        """See ``Cursor.commit``."""
        self._loop.run(self._cursor.commit(position, partition))

    def consume(self, partition: int = 0, *, start: Start = "earliest", **how: Any) -> _Reading:
        """See ``Cursor.consume``."""
        return self._reading(self._loop.run(self._cursor.consume(partition, start=start, **how)))

    def __enter__(self) -> SyncCursor[_Reading]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing is left to do: what was committed stands."""
