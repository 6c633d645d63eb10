"""Administration of consumer groups, work queues and cursors: list, describe, reset, delete.

``client.groups`` is a ``Groups``, ``client.queues`` a ``Queues`` and ``client.cursors`` a ``Cursors``. They send queries
and commands to the group coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from liftpy import renamed
from liftpy.client.arguments import check_offset, check_partition
from liftpy.client.consumer import ReadOptions
from liftpy.client.positions import Position
from liftpy.client.services import Services
from liftpy.client.stream_directory import StreamDirectory
from liftpy.client.stream_info import StreamInfo
from liftpy.core.base.ids import NO_OFFSET, PartitionKey, check_name, check_uid
from liftpy.core.groups.commands import MAX_POSITIONS, decode_answer, decode_query_answer, encode_command, partition_of
from liftpy.core.metadata.image import INSUFFICIENT_NODES, StreamImage
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.core.wire.message_codec import MessageCodec
from liftpy.core.wire.subjects import GROUPS_SERVICE, GROUPS_STREAM
from liftpy.errors import ConfigError, LiftError, NotFoundError, ProtocolError, UnavailableError


class GroupRejectedError(LiftError):
    """The group coordinator rejected the request. The text says why.

    Another member owns the partition or the instance id, or a limit is reached.
    """

    code = "GROUP_REJECTED"


async def ask_coordinator(services: Services, partition: int, command: pb.GroupCommand, timeout_s: float) -> pb.GroupAnswer:
    """Send a command to the coordinator of groups, and return its answer after the command is committed.

    Args:
        services: Services of the client.
        partition: Partition of the groups stream that holds the group.
        command: The command.
        timeout_s: Time limit in seconds.

    Raises:
        UnavailableError: No coordinator took the command in time.
        OutcomeUnknownError: The coordinator may have executed the command.
        GroupCommandError: The coordinator cannot decode the command.
    """
    answer = await services.call(
        GROUPS_SERVICE, GROUPS_STREAM, encode_command(command), partition=partition, timeout_s=timeout_s
    )
    return decode_answer(answer.value)


async def epoch_before(streams: StreamDirectory, key: PartitionKey, offset: int, give_up_at: float) -> int:
    """Return the LeaderEpoch of the record before ``offset``, or 0 if it is not known.

    Args:
        streams: Finds the leader of the partition.
        key: Partition.
        offset: Offset after the record.
        give_up_at: Time of the event loop after which no answer is awaited, in seconds.
    """
    try:
        async with asyncio.timeout_at(give_up_at):
            reader = streams.reader(key.stream, key.partition, ReadOptions(patience_s=EPOCHS_S))
            return (await reader.measure(offset, offset, key.uid)).before_epoch
    except (LiftError, TimeoutError):
        return 0


def name_of(code: int) -> str:
    """Return the name of an error code of the coordinator. For an unknown code, return the number as text.

    Args:
        code: Number of the error code.
    """
    return pb.GroupCode.Name(code) if code in pb.GroupCode.values() else str(code)


_TIMEOUT_S = 5.0
_PLACED_S = 10.0
_POLL_S = 0.25
EPOCHS_S = 2.0
"""Time limit in seconds for all lookups of LeaderEpochs of one call."""
_AT_ONCE = 32
"""Maximum number of partitions whose LeaderEpochs are requested at the same time."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One group in the result of ``Groups.list`` or ``Queues.list``.

    Attributes:
        name: Name of the group.
        partition: Partition of the groups stream that holds the group.
        members: Number of members.
        settled: True if no partition is moving between members.
        positions: Number of committed positions.
        queues: Number of partitions that work queues of this name read.
    """

    name: str
    partition: int
    members: int
    settled: bool
    positions: int
    queues: int


@dataclass(frozen=True, slots=True)
class GroupMemberInfo:
    """One member of a group.

    Attributes:
        name: Id of the member.
        instance: Static identity, '' for none.
        client: Host of the member.
        streams: Names of the streams that it reads. Empty if the description of the group would be too large.
        owned: Partitions that it owns, as (stream, partition).
        silent_s: Time since its last heartbeat, in seconds.
        session_s: Session timeout, in seconds.
    """

    name: str
    instance: str
    client: str
    streams: tuple[str, ...]
    owned: tuple[tuple[str, int], ...]
    silent_s: float
    session_s: float


@dataclass(frozen=True, slots=True)
class UnackedRecords:
    """Delivered but unacked records of one worker of a queue.

    Attributes:
        worker: Id of the worker.
        records: Number of records.
        first: Lowest offset of them.
        deliveries: Highest number of deliveries among them.
    """

    worker: str
    records: int
    first: int
    deliveries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """State of a work queue in one partition.

    Attributes:
        key: The partition.
        acknowledged_below: All records below this offset are acked.
        taken_below: No record from this offset on was ever delivered.
        out: Number of delivered records without ack.
        returned: Number of records that wait for another delivery.
        dead: Number of records that must be stored as dead letters and are not stored yet.
        held: Number of records that wait until another record of the same key is acked.
        acknowledged: Number of acked records above ``acknowledged_below``.
        ranges: Number of offset ranges in the state of the coordinator.
        holders: Workers with delivered records, the largest number first, at most 50. A queue of more than 40 partitions
            has fewer of them per partition, at least one.
    """

    key: PartitionKey
    acknowledged_below: int
    taken_below: int
    out: int
    returned: int
    dead: int
    held: int
    acknowledged: int
    ranges: int
    holders: tuple[UnackedRecords, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group with its members, positions and queues.

    Attributes:
        summary: The summary.
        members: The members.
        positions: Committed offset of the next record, by partition.
        queues: The partitions of its work queues.
    """

    summary: GroupSummary
    members: tuple[GroupMemberInfo, ...]
    positions: dict[PartitionKey, int]
    queues: tuple[QueueFigures, ...] = ()


_SUMMARY = MessageCodec(
    GroupSummary, pb.GroupSummary, renamed={"name": "group"}, wire_only=("generation", "cursor"), local_only=("partition",)
)
_MEMBER = MessageCodec(
    GroupMemberInfo,
    pb.MemberView,
    renamed={"name": "member"},
    wire_only=("owned", "sessionMs", "silentMs"),
    local_only=("owned", "silent_s", "session_s"),
)
MessageCodec(UnackedRecords, pb.QueueHolder, renamed={"worker": "member"})  # _QUEUE finds it by the class
_QUEUE = MessageCodec(QueueFigures, pb.QueueView, wire_only=("stream", "uid", "partition"), local_only=("key",))


class GroupCoordinator:
    """Sends queries and commands to the coordinators of groups, queues and cursors.

    Args:
        streams: The streams that the client knows.
        services: Sends the requests. A coordinator is a replicated service.
    """

    def __init__(self, streams: StreamDirectory, services: Services) -> None:
        self.streams = streams
        self.services = services

    async def stream(self) -> StreamImage:
        """Return the internal stream of groups, queues and cursors. Create it if needed.

        Raises:
            UnavailableError: No metadata group answered, or there are too few nodes.
            ConfigError: The settings do not allow the stream.
        """
        give_up_at = asyncio.get_running_loop().time() + _PLACED_S
        try:
            stream = await self.streams.stream(GROUPS_STREAM)
        except NotFoundError:
            stream = await self.streams.requests.open_groups()
        while not stream.partitions:
            if asyncio.get_running_loop().time() >= give_up_at:
                raise UnavailableError(
                    f"The internal stream {GROUPS_STREAM} was created, but it has no replicas yet: the cluster has too "
                    f"few nodes ({INSUFFICIENT_NODES}). Start more nodes, then retry."
                )
            await asyncio.sleep(_POLL_S)
            stream = await self.streams.requests.stream(GROUPS_STREAM)
        return stream

    async def names(self) -> list[tuple[pb.GroupSummary, int]]:
        """Return all groups and cursors, sorted by name, each with its partition of the groups stream.

        Raise ProtocolError if a page of a coordinator's answer repeats or is empty.
        """
        summaries: list[tuple[pb.GroupSummary, int]] = []
        for partition in range(await self._partitions()):
            after = ""
            while True:
                answer = await self._ask(pb.GroupQuery(after=after), partition)
                summaries += [(group, partition) for group in answer.groups]
                if not answer.more:
                    break
                if not answer.groups or answer.groups[-1].group <= after:
                    raise ProtocolError(
                        f"Cannot list the groups of {GROUPS_STREAM}/{partition}: a page of the coordinator's answer repeats or "
                        "is empty. Retry. If this repeats, upgrade the nodes."
                    )
                after = answer.groups[-1].group
        return sorted(summaries, key=lambda one: one[0].group)

    async def describe(self, name: str, what: str) -> tuple[GroupDescription, bool]:
        """Return (description of a group or cursor, True if it is a cursor). ``what``: "group" or "cursor", for error texts."""
        partition = await self._partition_of(check_name(name, what), what)
        try:
            answer = await self._ask(pb.GroupQuery(group=name), partition)
        except NotFoundError as error:
            raise NotFoundError(f"There is no {what} {name!r}. List them with `liftpy {what} list`.") from error
        members = tuple(
            _MEMBER.from_pb(
                member,
                owned=tuple((granted.stream, number) for granted in member.owned for number in granted.partitions),
                silent_s=member.silentMs / 1000,
                session_s=member.sessionMs / 1000,
            )
            for member in answer.members
        )
        positions = {PartitionKey(at.stream, at.uid, at.partition): at.position for at in answer.positions}
        queues = tuple(_QUEUE.from_pb(at, key=PartitionKey(at.stream, at.uid, at.partition)) for at in answer.queues)
        summary = _SUMMARY.from_pb(answer.summary, partition=partition)
        return GroupDescription(summary, members, positions, queues), answer.summary.cursor

    async def reset(self, name: str, positions: Mapping[PartitionKey, int | Position]) -> None:
        """Set the committed positions of a cursor, or of a group without members.

        Each position is the offset of the next record. It is stored with the LeaderEpoch of the record before it.
        """
        for key, position in positions.items():
            check_name(key.stream, "stream")
            check_uid(key.uid)
            check_partition(key.partition)
            if isinstance(position, Position) and position.uid != key.uid:
                raise ConfigError(
                    f"The position {position} belongs to another stream than {key.stream} with the uid {key.uid}. Take a position of "
                    "this stream."
                )
            if not isinstance(position, Position) and position != NO_OFFSET:
                check_offset(position, "position")
        room, give_up_at = asyncio.Semaphore(_AT_ONCE), asyncio.get_running_loop().time() + EPOCHS_S

        async def place(key: PartitionKey, position: int | Position) -> pb.GroupPosition:
            offset, epoch = (position.offset, position.leader_epoch) if isinstance(position, Position) else (position, 0)
            if not epoch and offset > 0:
                async with room:
                    epoch = await epoch_before(self.streams, key, offset, give_up_at)
            return pb.GroupPosition(stream=key.stream, uid=key.uid, partition=key.partition, position=offset, leaderEpoch=epoch)

        at = await asyncio.gather(
            *(place(key, position) for key, position in sorted(positions.items(), key=lambda one: one[0]))
        )
        for first in range(0, max(len(at), 1), MAX_POSITIONS):
            some = pb.ResetPositions(positions=at[first : first + MAX_POSITIONS])
            await self.send_command(pb.GroupCommand(group=check_name(name, "group"), reset=some))

    async def delete(self, name: str) -> None:
        """Delete a group without members, or a cursor."""
        await self.send_command(pb.GroupCommand(group=check_name(name, "group"), delete=pb.DeleteGroup()))

    async def send_command(self, command: pb.GroupCommand) -> None:
        """Send a command to the coordinator of its group or cursor.

        Raise NotFoundError or GroupRejectedError if the coordinator rejects it.
        """
        if command.HasField("delete"):
            partition = await self._partition_of(command.group, "group")
        else:  # a group may be given positions before it has had a member
            partition = partition_of(command.group, len((await self.stream()).partitions))
        answer = await ask_coordinator(self.services, partition, command, _TIMEOUT_S)
        _check(answer.code, answer.detail)

    async def _partitions(self) -> int:
        """Return the number of partitions of the groups stream. 0: it does not exist yet."""
        try:
            return len((await self.streams.stream(GROUPS_STREAM)).partitions)
        except NotFoundError:
            return 0

    async def _partition_of(self, group: str, what: str) -> int:
        count = await self._partitions()
        if not count:
            raise NotFoundError(f"{what.capitalize()} {group!r} does not exist. The cluster has no groups and no cursors.")
        return partition_of(group, count)

    async def _ask(self, query: pb.GroupQuery, partition: int) -> pb.GroupQueryAnswer:
        question = query.SerializeToString()
        response = await self.services.query(GROUPS_SERVICE, question, partition=partition, timeout_s=_TIMEOUT_S)
        answer = decode_query_answer(response.value)
        _check(answer.code, answer.detail)
        return answer


class Groups:
    """Consumer groups of the cluster. ``client.groups`` is one. ``client.group`` joins a group.

    Each method raises UnavailableError if the coordinator did not answer in time.

    Example:
        for summary in await client.groups.list():
            print(summary.name, summary.members)
    """

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def stream(self) -> StreamInfo:
        """Return the internal stream of groups, queues and cursors. Create it if needed.

        The node settings ``groups_partitions`` and ``groups_replicas`` apply when it is created.

        Returns:
            The stream ``_groups`` with its partitions.

        Raises:
            UnavailableError: No metadata group answered, or there are too few nodes.
            ConfigError: The settings do not allow the stream.
        """
        return StreamInfo.of(await self._coordinator.stream())

    async def list(self) -> list[GroupSummary]:
        """Return all groups, sorted by name. Work queues are among them."""
        return [
            _SUMMARY.from_pb(group, partition=partition)
            for group, partition in await self._coordinator.names()
            if not group.cursor
        ]

    async def describe(self, name: str) -> GroupDescription:
        """Return one group with its members, positions and queues.

        Args:
            name: Name of the group.

        Raises:
            NotFoundError: No such group, or the name belongs to a cursor.
        """
        described, is_cursor = await self._coordinator.describe(name, "group")
        if is_cursor:
            raise NotFoundError(f"{name!r} is a cursor, not a consumer group. Use `liftpy cursor show {name}`.")
        return described

    async def _is_cursor(self, name: str) -> bool:
        """Return whether the name belongs to a cursor. False also if that is not known, for example without permission to ask."""
        try:
            return (await self._coordinator.describe(name, "group"))[1]
        except LiftError:
            return False

    async def reset(self, name: str, positions: Mapping[PartitionKey, int | Position]) -> None:
        """Set the committed positions of a group without members, or of a work queue without unacked records.

        A work queue delivers again from its new position on, also records that were acked. The call stores the LeaderEpoch
        of the record before each position. So later reads detect records that an unclean election has lost below it. If no
        leader answers within 2 s, or the log lacks this record, reads from the position do not detect lost records.

        Args:
            name: Name of the group or queue.
            positions: Offset of the next record, or a Position of ``Consumer.position``, by partition. -1 deletes the
                position.

        Raises:
            ConfigError: A Position belongs to another stream.
            GroupRejectedError: The group has members, or workers have records of these partitions, or the name belongs to a
                cursor.

        Example:
            stream = await client.stream("orders")
            await client.groups.reset("billing", {stream.key(0): 100})
        """
        if await self._is_cursor(name):
            raise GroupRejectedError(f"{name!r} is a cursor, not a consumer group. Use `liftpy cursor set {name}`.")
        await self._coordinator.reset(name, positions)

    async def delete(self, name: str) -> None:
        """Delete a group without members.

        Args:
            name: Name of the group.

        Raises:
            NotFoundError: No such group, or the name belongs to a cursor.
            GroupRejectedError: The group has members.
        """
        if await self._is_cursor(name):
            raise NotFoundError(f"{name!r} is a cursor, not a consumer group. Use `liftpy cursor delete {name}`.")
        await self._coordinator.delete(name)


class Queues:
    """Work queues of the cluster. ``client.queues`` is one. ``client.queue`` joins a queue as a worker.

    A queue and a consumer group with the same name are one entry of the coordinator. Each method raises UnavailableError
    if the coordinator did not answer in time.

    Example:
        for figures in await client.queues.describe("workers"):
            print(figures.key, figures.out, figures.dead)
    """

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def list(self) -> list[GroupSummary]:
        """Return all queues, sorted by name."""
        return [
            _SUMMARY.from_pb(group, partition=partition) for group, partition in await self._coordinator.names() if group.queues
        ]

    async def describe(self, name: str) -> tuple[QueueFigures, ...]:
        """Return the state of a queue in each partition that it reads.

        Args:
            name: Name of the queue.

        Raises:
            NotFoundError: No such queue.
        """
        queues = (await self._coordinator.describe(name, "group"))[0].queues
        if not queues:
            raise NotFoundError(f"Group {name!r} has no work queue. `liftpy group list` lists all groups and work queues.")
        return queues

    async def delete(self, name: str) -> None:
        """Delete a queue: its acks and its deliveries. Stop all workers first.

        A worker that joins later starts as in a new queue.

        Args:
            name: Name of the queue.

        Raises:
            NotFoundError: No such queue.
            GroupRejectedError: A consumer group with the same name has members.
        """
        await self.describe(name)
        await self._coordinator.delete(name)


class Cursors:
    """Cursors of the cluster. ``client.cursors`` is one. ``client.cursor`` opens a cursor.

    Each method raises UnavailableError if the coordinator did not answer in time.

    Example:
        for name in await client.cursors.list():
            print(name, await client.cursors.describe(name))
    """

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def list(self) -> list[str]:
        """Return the names of all cursors, sorted."""
        return [group.group for group, _ in await self._coordinator.names() if group.cursor]

    async def describe(self, name: str) -> dict[PartitionKey, int]:
        """Return the committed positions of a cursor.

        Args:
            name: Name of the cursor.

        Returns:
            The offset of the next record in each partition.

        Raises:
            NotFoundError: No such cursor, or the name belongs to a group.
        """
        described, cursor = await self._coordinator.describe(name, "cursor")
        if not cursor:
            raise NotFoundError(f"{name!r} is a consumer group, not a cursor. Use `liftpy group show {name}`.")
        return described.positions

    async def set(self, name: str, positions: Mapping[PartitionKey, int | Position]) -> None:
        """Set the positions of a cursor, forwards or backwards. Create the cursor if needed.

        A process that holds the cursor cannot commit any more. The call stores the LeaderEpoch of the record before each
        position. So later reads detect records that an unclean election has lost below it. If no leader answers within 2 s,
        or the log lacks this record, reads from the position do not detect lost records.

        Args:
            name: Name of the cursor.
            positions: Offset of the next record, or a Position of ``Consumer.position``, by partition. -1 deletes the
                position.

        Raises:
            ConfigError: A Position belongs to another stream.
            GroupRejectedError: The name belongs to a group.
        """
        await self._coordinator.send_command(pb.GroupCommand(group=check_name(name, "cursor"), open=pb.OpenCursor()))
        await self._coordinator.reset(name, positions)

    async def delete(self, name: str) -> None:
        """Delete a cursor. A process that holds it cannot commit any more.

        Args:
            name: Name of the cursor.

        Raises:
            NotFoundError: No such cursor, or the name belongs to a group.
        """
        await self.describe(name)
        await self._coordinator.delete(name)


def _check(code: int, detail: str) -> None:
    if code == pb.GROUP_NOT_FOUND:
        raise NotFoundError(detail)
    if code != pb.GROUP_OK:
        raise GroupRejectedError(f"The group coordinator rejected the request: {name_of(code)} {detail}".strip())


if not TYPE_CHECKING:  # mypy reports the old functions

    def __getattr__(name: str) -> Any:
        return renamed.client_function(__name__, name)
