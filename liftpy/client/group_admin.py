"""Administration of groups, queues and cursors: list, describe, reset, delete.

The functions send queries and commands to the group coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from liftpy.client.group import GroupRejectedError, name_of
from liftpy.client.positions import check_offset, check_partition
from liftpy.core.base.ids import NO_OFFSET, PartitionKey, check_name, check_uid
from liftpy.core.groups.commands import decode_answer, decode_query_answer, encode_command, partition_of
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.core.wire.subjects import GROUPS_SERVICE, GROUPS_STREAM
from liftpy.errors import NotFoundError

if TYPE_CHECKING:
    from liftpy.client.client import Client

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One group in a list.

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
class MemberOfGroup:
    """One member of a group.

    Attributes:
        name: Id of the member.
        instance: Static identity, '' for none.
        client: Host of the member.
        streams: Stream names or patterns that it reads.
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
class RecordsOut:
    """Records that one worker of a queue has.

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
        out: Records that workers have.
        returned: Records that wait for another delivery.
        dead: Records on their way to the dead letters.
        held: Records that wait for another record of the same key.
        acknowledged: Acked records above ``acknowledged_below``.
        ranges: Offset ranges in the state of the coordinator.
        holders: Workers with records, the largest number first, at most 50.
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
    holders: tuple[RecordsOut, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group with its members, positions and queues.

    Attributes:
        summary: The summary.
        members: The members.
        positions: Partition -> committed offset of the next record.
        queues: The partitions of its work queues.
    """

    summary: GroupSummary
    members: tuple[MemberOfGroup, ...]
    positions: dict[PartitionKey, int]
    queues: tuple[QueueFigures, ...] = ()


async def list_groups(client: Client) -> list[GroupSummary]:
    """Return all groups, sorted by name.

    Args:
        client: The client.

    Raises:
        UnavailableError: The coordinator did not answer in time.
    """
    return [_summary(group, partition) for group, partition in await _all_names(client) if not group.cursor]


async def list_cursors(client: Client) -> list[str]:
    """Return the names of all cursors.

    Args:
        client: The client.

    Raises:
        UnavailableError: The coordinator did not answer in time.
    """
    return [group.group for group, _ in await _all_names(client) if group.cursor]


async def describe_cursor(client: Client, name: str) -> dict[PartitionKey, int]:
    """Return the committed positions of a cursor.

    Args:
        client: The client.
        name: Name of the cursor.

    Returns:
        Partition -> offset of the next record.

    Raises:
        NotFoundError: No such cursor, or the name belongs to a group.
    """
    described, cursor = await _described(client, name, "cursor")
    if not cursor:
        raise NotFoundError(f"{name!r} is a consumer group, not a cursor. Use `liftpy group show {name}`.")
    return described.positions


async def set_cursor(client: Client, name: str, positions: Mapping[PartitionKey, int]) -> None:
    """Set the positions of a cursor, forwards or backwards. Create the cursor if needed.

    A process that holds the cursor cannot commit any more.

    Args:
        client: The client.
        name: Name of the cursor.
        positions: Partition -> offset of the next record. -1 deletes the position.

    Raises:
        GroupRejectedError: The name belongs to a group.
    """
    await _tell(client, pb.GroupCommand(group=check_name(name, "cursor"), open=pb.OpenCursor()))
    await reset_group(client, name, positions)


async def delete_cursor(client: Client, name: str) -> None:
    """Delete a cursor. A process that holds it cannot commit any more.

    Args:
        client: The client.
        name: Name of the cursor.

    Raises:
        NotFoundError: No such cursor, or the name belongs to a group.
    """
    await describe_cursor(client, name)
    await delete_group(client, name)


async def _all_names(client: Client) -> list[tuple[pb.GroupSummary, int]]:
    """Return all groups and cursors, each with its partition of the groups stream."""
    found: list[tuple[pb.GroupSummary, int]] = []
    for partition in range(await _partitions(client)):
        after = ""
        while True:
            answer = await _ask(client, pb.GroupQuery(after=after), partition)
            found += [(group, partition) for group in answer.groups]
            if not answer.more or not answer.groups:
                break
            after = answer.groups[-1].group
    return sorted(found, key=lambda one: one[0].group)


async def describe_group(client: Client, name: str) -> GroupDescription:
    """Return one group with its members, positions and queues.

    Args:
        client: The client.
        name: Name of the group.

    Raises:
        NotFoundError: No such group.
    """
    return (await _described(client, name, "group"))[0]


async def _described(client: Client, name: str, what: str) -> tuple[GroupDescription, bool]:
    """Return the description, and whether it is a cursor."""
    partition = await _partition_of(client, check_name(name, what), what)
    try:
        answer = await _ask(client, pb.GroupQuery(group=name), partition)
    except NotFoundError as error:
        raise NotFoundError(f"There is no {what} {name!r}. List them with `liftpy {what} list`.") from error
    members = tuple(
        MemberOfGroup(
            name=member.member,
            instance=member.instance,
            client=member.client,
            streams=tuple(member.streams),
            owned=tuple((granted.stream, number) for granted in member.owned for number in granted.partitions),
            silent_s=member.silentMs / 1000,
            session_s=member.sessionMs / 1000,
        )
        for member in answer.members
    )
    positions = {PartitionKey(at.stream, at.uid, at.partition): at.position for at in answer.positions}
    queues = tuple(
        QueueFigures(
            key=PartitionKey(at.stream, at.uid, at.partition), acknowledged_below=at.acknowledgedBelow,
            taken_below=at.takenBelow, out=at.out, returned=at.returned, dead=at.dead, held=at.held,
            acknowledged=at.acknowledged, ranges=at.ranges,
            holders=tuple(RecordsOut(one.member, one.records, one.first, one.deliveries) for one in at.holders),
        )
        for at in answer.queues
    )  # fmt: skip
    return GroupDescription(_summary(answer.summary, partition), members, positions, queues), answer.summary.cursor


async def reset_group(client: Client, name: str, positions: Mapping[PartitionKey, int]) -> None:
    """Set the committed positions of a group without members.

    Args:
        client: The client.
        name: Name of the group.
        positions: Partition -> offset of the next record. -1 deletes the position.

    Raises:
        GroupRejectedError: The group has members.
    """
    for key, position in positions.items():
        check_name(key.stream, "stream")
        check_uid(key.uid)
        check_partition(key.partition)
        if position != NO_OFFSET:
            check_offset(position, "position")
    at = [
        pb.GroupPosition(stream=key.stream, uid=key.uid, partition=key.partition, position=position)
        for key, position in sorted(positions.items())
    ]
    await _tell(client, pb.GroupCommand(group=check_name(name, "group"), reset=pb.ResetPositions(positions=at)))


async def delete_group(client: Client, name: str) -> None:
    """Delete a group without members.

    Args:
        client: The client.
        name: Name of the group.

    Raises:
        NotFoundError: No such group.
        GroupRejectedError: The group has members.
    """
    await _tell(client, pb.GroupCommand(group=check_name(name, "group"), delete=pb.DeleteGroup()))


async def _partitions(client: Client) -> int:
    """Return the number of partitions of the groups stream. 0: it does not exist yet."""
    try:
        return len((await client.stream(GROUPS_STREAM)).partitions)
    except NotFoundError:
        return 0


async def _partition_of(client: Client, group: str, what: str = "group") -> int:
    count = await _partitions(client)
    if not count:
        raise NotFoundError(f"{what.capitalize()} {group!r} does not exist. The cluster has no groups and no cursors.")
    return partition_of(group, count)


async def _ask(client: Client, query: pb.GroupQuery, partition: int) -> pb.GroupQueryAnswer:
    said = await client.query_service(GROUPS_SERVICE, query.SerializeToString(), partition=partition, timeout_s=_TIMEOUT_S)
    answer = decode_query_answer(said.value)
    _check(answer.code, answer.detail)
    return answer


async def _tell(client: Client, command: pb.GroupCommand) -> None:
    if command.HasField("delete"):
        partition = await _partition_of(client, command.group)
    else:  # a group may be given positions before it has had a member
        partition = partition_of(command.group, len((await client.groups_stream()).partitions))
    said = await client.call_service(
        GROUPS_SERVICE, GROUPS_STREAM, encode_command(command), partition=partition, timeout_s=_TIMEOUT_S
    )
    answer = decode_answer(said.value)
    _check(answer.code, answer.detail)


def _check(code: int, detail: str) -> None:
    if code == pb.GROUP_NOT_FOUND:
        raise NotFoundError(detail)
    if code != pb.GROUP_OK:
        raise GroupRejectedError(f"The group coordinator rejected the request: {name_of(code)} {detail}".strip())


def _summary(group: pb.GroupSummary, partition: int) -> GroupSummary:
    return GroupSummary(group.group, partition, group.members, group.settled, group.positions, group.queues)
