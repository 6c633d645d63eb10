"""``Cursor``: a named position in a stream, for one reader that is not in a group.

The cluster stores cursors together with groups. A cursor holds the offset of the next record for each partition. The
process that opened it last holds it, and commits of an earlier holder are rejected. Positions only rise. An operator
moves them back with ``liftpy cursor set``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from liftpy.client.arguments import check_offset, check_partition
from liftpy.client.consumer import Consumer, ReadOptions, filter_of
from liftpy.client.group_admin import EPOCHS_S, GroupCoordinator, GroupRejectedError, ask_coordinator, epoch_before, name_of
from liftpy.client.positions import Position, Start, Until
from liftpy.core.base.ids import PartitionKey, check_name
from liftpy.core.groups.commands import decode_query_answer, partition_of
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.core.wire.subjects import GROUPS_SERVICE
from liftpy.errors import ConfigError, NotFoundError

_TIMEOUT_S = 10.0


class Cursor:
    """A named position in a stream. The process that opened it last holds it.

    Create it with ``client.cursor``.

    Example:
        async with client.cursor("nightly", "orders") as cursor:
            async for record in await cursor.consume(until="end"):
                await cursor.commit(record.offset + 1)
    """

    def __init__(self, coordinator: GroupCoordinator, name: str, stream: str) -> None:
        self.name = check_name(name, "cursor")
        self.stream = check_name(stream, "stream")
        self._coordinator, self._streams = coordinator, coordinator.streams
        self._home = 0
        """Partition of the groups stream that stores this cursor."""
        self._generation = 0
        self._uid = ""
        """Uid of the stream when the cursor was opened. A position is not valid in another stream with the same name."""
        self._consumers: dict[int, Consumer] = {}
        """Partition -> its last Consumer. It knows the LeaderEpoch of the position that the application commits."""

    async def open(self) -> Cursor:
        """Open the cursor, and create it if there is none. ``client.cursor`` calls it."""
        home = await self._coordinator.stream()
        stream = await self._streams.newest_stream(self.stream)
        self._uid = stream.uid
        self._home = partition_of(self.name, len(home.partitions))
        answer = await self._send_command(open=pb.OpenCursor())
        self._generation = answer.generation
        return self

    async def __aenter__(self) -> Cursor:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the use of the cursor. Committed positions stay. A second call does nothing."""

    async def fetch(self, partition: int = 0) -> int | None:
        """Return the committed position of a partition.

        Args:
            partition: Number of the partition. Default 0.

        Returns:
            The offset of the next record. None if nothing is committed.

        Raises:
            ConfigError: No such partition.
            NotFoundError: The stream was deleted, or deleted and created again.
            UnavailableError: The coordinator did not answer in time.
        """
        at = await self._committed_position(partition)
        return None if at is None else at.position

    async def commit(self, position: int | Position, partition: int = 0) -> None:
        """Commit a position: all records below it are done.

        Args:
            position: Offset of the next record, or a Position of ``Consumer.position``. With the LeaderEpoch in the Position,
                a later ``consume`` detects records lost in an unclean election. The cursor adds it to the offset after
                the last record of its Consumer. For another offset, the cursor asks the leader of the partition.
            partition: Number of the partition. Default 0.

        Raises:
            GroupRejectedError: Another process opened the cursor.
            NotFoundError: The stream was deleted, or deleted and created again.
            ConfigError: The position is below the committed one.
            UnavailableError: The coordinator did not answer. Nothing changed.
            OutcomeUnknownError: No answer in time. Commit again: that does no harm.

        Example:
            await cursor.commit(record.offset + 1)
        """
        key = await self._key(partition)
        offset, epoch = (position.offset, position.leader_epoch) if isinstance(position, Position) else (position, 0)
        if isinstance(position, Position) and position.uid != key.uid:
            raise ConfigError(
                f"This position belongs to an older stream named {key.stream} that was deleted. Take a new position "
                "from the current stream."
            )
        offset = check_offset(offset, "position")
        consumer = self._consumers.get(partition)
        if not epoch and consumer is not None and consumer.bounds is not None:
            read = await consumer.position()
            epoch = read.leader_epoch if (read.uid, read.offset) == (key.uid, offset) else 0
        if not epoch and offset:
            give_up_at = asyncio.get_running_loop().time() + EPOCHS_S
            epoch = await epoch_before(self._streams, key, offset, give_up_at)
        at = pb.GroupPosition(
            stream=key.stream, uid=key.uid, partition=partition, position=offset, leaderEpoch=epoch, generation=self._generation
        )
        answer = await self._send_command(commit=pb.CommitPositions(positions=[at]))
        if answer.positions:
            raise ConfigError(
                f"Cursor {self.name}: cannot commit {offset}, because {answer.positions[0].position} is already "
                "committed. To move the cursor back, use `liftpy cursor set`."
            )

    async def consume(
        self,
        partition: int = 0,
        *,
        start: Start = "",
        until: Until = None,
        subjects: Sequence[str] = (),
        keys: Sequence[bytes] = (),
        backwards: bool = False,
        options: ReadOptions | None = None,
    ) -> Consumer:
        """Read from the committed position. This call commits nothing.

        Args:
            partition: Number of the partition. Default 0.
            start: Where to start if nothing is committed. Default '': ``earliest``, or with ``backwards`` the last record.
            until: As in ``client.consume``. Default None: follow new records forever.
            subjects: As in ``client.consume``. Default: all.
            keys: As in ``client.consume``. Default: all.
            backwards: As in ``client.consume``. Default False.
            options: As in ``client.consume``. Default: ``ReadOptions()``.

        Raises:
            OffsetOutOfRangeError: On reading: retention has deleted the records at the position.
            NotFoundError: The stream was deleted, or deleted and created again.
            UnavailableError: The coordinator did not answer in time.

        Example:
            async for record in await cursor.consume(until="end"):
                print(record.value)
        """
        at = await self._committed_position(partition)
        if at is not None:
            start = Position(at.uid, at.position, at.leaderEpoch if at.position else 0)
        elif start == "":  # not `if not start`: the offset 0 is a start
            start = "new" if backwards else "earliest"
        wanted = filter_of(subjects, keys)
        consumer = self._streams.consume(
            self.stream, partition, start, until, wanted=wanted, backwards=backwards, options=options
        )
        if at is None and (await consumer.begin()).uid != self._uid:
            raise self._recreated_error()
        self._consumers[partition] = consumer
        return consumer

    async def _committed_position(self, partition: int) -> pb.GroupPosition | None:
        key = await self._key(partition)
        query = pb.GroupQuery(group=self.name).SerializeToString()
        response = await self._coordinator.services.query(GROUPS_SERVICE, query, partition=self._home, timeout_s=_TIMEOUT_S)
        answer = decode_query_answer(response.value)
        if answer.code == pb.GROUP_NOT_FOUND:
            return None  # it was deleted
        self._check(answer.code, answer.detail)
        positions = (at for at in answer.positions if (at.stream, at.uid, at.partition) == (key.stream, key.uid, key.partition))
        return next(positions, None)

    async def _key(self, partition: int) -> PartitionKey:
        """Return the key of a partition of the current stream. Raise NotFoundError if the stream was created again."""
        streams = self._streams
        check_partition(partition)
        stream = await streams.stream(self.stream)
        if stream.uid != self._uid or partition >= len(stream.partitions):  # the answering controller may be behind
            stream = await streams.newest_stream(self.stream)
        if stream.uid != self._uid:
            raise self._recreated_error()
        if partition >= len(stream.partitions):
            raise ConfigError(
                f"Stream {self.stream} has no partition {partition}. It has {len(stream.partitions)} partitions, "
                "numbered from 0."
            )
        return PartitionKey(self.stream, stream.uid, partition)

    def _recreated_error(self) -> NotFoundError:
        return NotFoundError(
            f"Stream {self.stream} was deleted and created again after cursor {self.name} was opened. Open the cursor again."
        )

    async def _send_command(self, **what: Any) -> pb.GroupAnswer:
        answer = await ask_coordinator(
            self._coordinator.services, self._home, pb.GroupCommand(group=self.name, **what), _TIMEOUT_S
        )
        self._check(answer.code, answer.detail)
        return answer

    def _check(self, code: int, detail: str) -> None:
        if code != pb.GROUP_OK:
            raise GroupRejectedError(
                f"Cursor {self.name}: the group coordinator rejected the request: {name_of(code)} {detail}".strip()
            )
