"""What operators are told of groups: lists and descriptions, from the coordinator's state, which they do not change. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from liftpy.group import limits
from liftpy.group.commands import GroupCommandError, decode_query
from liftpy.group.limits import NS_PER_MS
from liftpy.group.machine import GroupMachine, GroupRecord
from liftpy.wire._pb import group_pb2 as pb

_MAX_PIECES = 2 * limits.MAX_QUEUE_RANGES
"""That one question looks at, to find who has what is out."""


def answered(machine: GroupMachine, query: bytes) -> bytes:
    """The ``GroupQueryAnswer`` to a ``GroupQuery``, both as bytes."""
    try:
        asked = decode_query(query)
    except GroupCommandError as error:
        return pb.GroupQueryAnswer(code=pb.GROUP_MALFORMED, detail=str(error)).SerializeToString()
    if not asked.group:
        return _list(machine, asked).SerializeToString()
    group = machine.groups.get(asked.group)
    if group is None:
        detail = f"there is no group {asked.group!r}"
        return pb.GroupQueryAnswer(code=pb.GROUP_NOT_FOUND, detail=detail).SerializeToString()
    return _described(machine, asked.group, group).SerializeToString()


def _list(machine: GroupMachine, asked: pb.GroupQuery) -> pb.GroupQueryAnswer:
    names = sorted(name for name in machine.groups if name > asked.after)
    limit = asked.limit or limits.MAX_LIST
    shown = (_summary(name, machine.groups[name]) for name in names[:limit])
    return pb.GroupQueryAnswer(groups=shown, more=len(names) > limit)


def _summary(name: str, group: GroupRecord) -> pb.GroupSummary:
    readers = group.readers
    return pb.GroupSummary(
        group=name,
        members=len(readers.members),
        generation=readers.generation,
        settled=readers.settled,
        positions=len(readers.positions),
        queues=len(group.queues),
        cursor=bool(group.cursor),
    )


def _described(machine: GroupMachine, name: str, group: GroupRecord) -> pb.GroupQueryAnswer:
    readers = group.readers
    return pb.GroupQueryAnswer(
        summary=_summary(name, group),
        members=(
            pb.MemberView(
                member=member.name,
                instance=member.instance,
                client=member.client,
                streams=member.streams,
                owned=readers.granted(member.name, member.held),
                sessionMs=member.session_ns // NS_PER_MS,
                silentMs=(machine.clock.now_ns - member.heard_ns) // NS_PER_MS,
            )
            for member in sorted(readers.members.values(), key=lambda member: member.joined)
        ),
        positions=readers.all_positions(),
        queues=_queues(group),
        streams=(pb.KnownStream(name=s, uid=k.uid, partitions=k.partitions) for s, k in sorted(readers.streams.items())),
    )


def _queues(group: GroupRecord) -> Iterator[pb.QueueView]:
    """Of all queues in figures, of the first ones also who has what is out: a question looks at so many pieces at most."""
    left = _MAX_PIECES
    for place in sorted(group.queues):
        queue = group.queues[place]
        left -= len(queue.pieces)
        yield queue.view(*place, with_holders=left >= 0)
