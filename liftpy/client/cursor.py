"""``client.cursor``: a named position in a stream, for one reader that is no member of a group.

async with client.cursor("nightly", "orders") as cursor:
    async for record in await cursor.consume(until="end"):
        await cursor.commit(record.offset + 1)

It is kept with the groups (docs/groups.md), of each partition the offset of the next record. Who opens a cursor holds it: a process
that had opened it before commits nothing any more. Positions only rise; an operator sets them back with ``liftpy cursor set``.
"""

from __future__ import annotations

from typing import Any, Protocol

from liftpy.client.consumer import Consumer
from liftpy.client.group import GroupHome, GroupRefusedError, ask_coordinator, name_of
from liftpy.client.positions import Position, Start
from liftpy.core.base.ids import PartitionKey, check_name
from liftpy.core.groups.commands import decode_query_answer, partition_of
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.core.wire.subjects import GROUPS_SERVICE
from liftpy.errors import ConfigError, NotFoundError

_TIMEOUT_S = 10.0


class CursorHome(GroupHome, Protocol):
    """What a cursor needs of its Client, besides what a member of a group does."""

    async def query_service(self, service: str, query: bytes, *, partition: int, timeout_s: float) -> Any:
        """As ``Client.query_service``."""
        ...

    def consume(self, stream: str, partition: int, *, start: Start, after_epoch: int, **how: Any) -> Consumer:
        """As ``Client.consume``."""
        ...


class Cursor:
    """Made by ``client.cursor``, held by whoever opened it last."""

    def __init__(self, client: CursorHome, name: str, stream: str) -> None:
        self.name = check_name(name, "cursor")
        self.stream = check_name(stream, "stream")
        self._client = client
        self._home = 0
        """Partition of the stream of groups."""
        self._generation = 0
        self._uid = ""
        """Of the stream when the cursor was opened: a position is of no use in another one of that name."""

    async def open(self) -> Cursor:
        """Hold it from here on; make it where there is none. Raises NotFoundError (no such stream), GroupRefusedError (the name is a
        group's), and as ``groups_stream``."""
        home = await self._client.groups_stream()
        stream = await self._client.stream(self.stream)
        self._uid = stream.uid
        self._home = partition_of(self.name, len(home.partitions))
        answer = await self._say(open=pb.OpenCursor())
        self._generation = answer.generation
        return self

    async def __aenter__(self) -> Cursor:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is left to do: what was committed stands."""

    async def fetch(self, partition: int = 0) -> int | None:
        """What is committed: the offset of the next record; None: nothing is. Raises UnavailableError, ConfigError (no such
        partition), NotFoundError (the stream was deleted, or made again)."""
        at = await self._committed(partition)
        return None if at is None else at.position

    async def commit(self, position: int | Position, partition: int = 0) -> None:
        """All below ``position`` is done; when this returns, that is committed. A ``Position``, as of ``Consumer.position``, says the
        LeaderEpoch too.

        Raises GroupRefusedError where the cursor is another's by now; NotFoundError where the stream was deleted, or made again;
        ConfigError for a position below the committed one; UnavailableError, OutcomeUnknownError (say it again: that does no harm).
        """
        key = await self._key(partition)
        offset, epoch = (position.offset, position.leader_epoch) if isinstance(position, Position) else (position, 0)
        if isinstance(position, Position) and position.uid != key.uid:
            raise ConfigError(
                f"This position belongs to an older stream named {key.stream} that was deleted. Take a new position "
                "from the current stream."
            )
        at = pb.GroupPosition(
            stream=key.stream, uid=key.uid, partition=partition, position=offset, leaderEpoch=epoch, generation=self._generation
        )
        answer = await self._say(commit=pb.CommitPositions(positions=[at]))
        if answer.positions:
            raise ConfigError(
                f"Cursor {self.name}: cannot commit {offset}, because {answer.positions[0].position} is already "
                "committed. To move the cursor back, use `liftpy cursor set`."
            )

    async def consume(self, partition: int = 0, *, start: Start = "earliest", **how: Any) -> Consumer:
        """Read from what is committed on, from ``start`` where nothing is; ``how``: as of ``Client.consume``. It commits nothing.

        The reading raises OffsetOutOfRangeError where retention has overtaken the cursor, NotFoundError where the stream was made
        again meanwhile."""
        at = await self._committed(partition)
        if at is not None:
            begin = Position(at.uid, at.position, at.leaderEpoch if at.position else 0)
            return self._client.consume(self.stream, partition, start=begin, after_epoch=0, **how)
        consumer = self._client.consume(self.stream, partition, start=start, after_epoch=0, **how)
        if (await consumer.begin()).uid != self._uid:
            raise self._made_again()
        return consumer

    async def _committed(self, partition: int) -> pb.GroupPosition | None:
        key = await self._key(partition)
        query = pb.GroupQuery(group=self.name).SerializeToString()
        said = await self._client.query_service(GROUPS_SERVICE, query, partition=self._home, timeout_s=_TIMEOUT_S)
        answer = decode_query_answer(said.value)
        if answer.code == pb.GROUP_NOT_FOUND:
            return None  # it was deleted
        self._check(answer.code, answer.detail)
        found = (at for at in answer.positions if (at.stream, at.uid, at.partition) == (key.stream, key.uid, key.partition))
        return next(found, None)

    async def _key(self, partition: int) -> PartitionKey:
        """Of the stream as it is now, which must be the one that the cursor was opened for."""
        stream = await self._client.stream(self.stream)
        if stream.uid != self._uid:
            raise self._made_again()
        if not 0 <= partition < len(stream.partitions):
            raise ConfigError(
                f"Stream {self.stream} has no partition {partition}. It has {len(stream.partitions)} partitions, "
                "numbered from 0."
            )
        return stream.key(partition)

    def _made_again(self) -> NotFoundError:
        return NotFoundError(
            f"Stream {self.stream} was deleted and created again after cursor {self.name} was opened. Open the cursor again."
        )

    async def _say(self, **what: Any) -> pb.GroupAnswer:
        answer = await ask_coordinator(self._client, self._home, pb.GroupCommand(group=self.name, **what), _TIMEOUT_S)
        self._check(answer.code, answer.detail)
        return answer

    def _check(self, code: int, detail: str) -> None:
        if code != pb.GROUP_OK:
            raise GroupRefusedError(
                f"Cursor {self.name}: the group coordinator rejected the request: {name_of(code)} {detail}".strip()
            )
