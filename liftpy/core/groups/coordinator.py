"""``GroupCoordinator``: the replicated service that manages the groups of one partition of the groups stream. Pure.

Every record is a command, and its answer is the reply. The clock of the coordinator is the time of its records. While a
group has members, or a queue has leased or delayed records, the coordinator appends an empty record each second if no command
arrives.

The module also builds the lists and descriptions of groups for operators. They do not change the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from liftpy.config import NS_PER_S
from liftpy.core.groups import commands
from liftpy.core.groups.commands import NS_PER_MS, GroupCommandError, decode_query
from liftpy.core.groups.machine import GroupMachine, GroupRecord
from liftpy.core.services.service import Service
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.core.wire.batch import Record
from liftpy.errors import CorruptionError

_MAX_PIECES = 2 * commands.MAX_QUEUE_RANGES
"""Maximum number of queue pieces that one query reads to find the members with leased records."""
SILENCE = "silence"
"""Name of the timer."""
EPOCHS = 2
"""Version of the coordinator from which on work queues store LeaderEpochs."""
NO_FIGURES = {"groups": 0, "members": 0, "queues": 0, "records_out": 0, "state_bytes": 0}


def answer_query(machine: GroupMachine, query: bytes) -> bytes:
    """Return the ``GroupQueryAnswer`` to a ``GroupQuery``. Both are bytes."""
    try:
        question = decode_query(query)
    except GroupCommandError as error:
        return pb.GroupQueryAnswer(code=pb.GROUP_MALFORMED, detail=str(error)).SerializeToString()
    if not question.group:
        return _list(machine, question).SerializeToString()
    group = machine.groups.get(question.group)
    if group is None:
        detail = f"there is no group {question.group!r}"
        return pb.GroupQueryAnswer(code=pb.GROUP_NOT_FOUND, detail=detail).SerializeToString()
    return _describe(machine, question.group, group).SerializeToString()


def _list(machine: GroupMachine, question: pb.GroupQuery) -> pb.GroupQueryAnswer:
    names = sorted(name for name in machine.groups if name > question.after)
    limit = question.limit or commands.MAX_LIST
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


def _describe(machine: GroupMachine, name: str, group: GroupRecord) -> pb.GroupQueryAnswer:
    readers = group.readers
    answer = pb.GroupQueryAnswer(
        summary=_summary(name, group),
        members=(
            pb.MemberView(
                member=member.name,
                instance=member.instance,
                client=member.client,
                streams=member.streams,
                owned=readers.granted_partitions(member.name, member.held),
                sessionMs=member.session_ns // NS_PER_MS,
                silentMs=(machine.clock.now_ns - member.heard_ns) // NS_PER_MS,
            )
            for member in sorted(readers.members.values(), key=lambda member: member.joined)
        ),
        positions=(at for at in readers.all_positions() if not group.is_position_of_queue((at.stream, at.partition))),
        queues=_queues(group),
        streams=(pb.KnownStream(name=s, uid=k.uid, partitions=k.partitions) for s, k in sorted(readers.streams.items())),
    )
    if answer.ByteSize() > commands.MAX_QUERY_ANSWER_BYTES:
        for member in answer.members:
            del member.streams[:]
    return answer


def _queues(group: GroupRecord) -> Iterator[pb.QueueView]:
    """Yield the figures of each work queue of ``group``, in order.

    Only the first queues include the members with leased records. To find these members, the function reads all pieces of a
    queue, and one query reads at most ``_MAX_PIECES``. With many queues, each includes fewer members.
    """
    left = _MAX_PIECES
    most = min(commands.MAX_HOLDERS, max(1, commands.MAX_HOLDERS_OF_ANSWER // max(1, len(group.queues))))
    for place in sorted(group.queues):
        queue = group.queues[place]
        left -= queue.range_count
        yield queue.view(*place, max_holders=most if left >= 0 else 0)


class GroupCoordinator(Service):
    """Manages the consumer groups of one partition of the groups stream, as a replicated service.

    Run it in the host of every replica of the partition, with ``tick_interval_s`` = 1 and without output.
    """

    version = EPOCHS
    on_error = "skip"
    emits = False
    starts_in_thread = True

    def on_start(self, snapshot: bytes | None) -> None:
        self._machine = GroupMachine()
        if snapshot is not None:
            self._machine.restore(snapshot)

    def on_record(self, record: Record) -> None:
        """Apply the command in the record, and reply to its sender. An empty record only advances the time."""
        self._machine.stores_epochs = self.active_version >= EPOCHS
        if record.value:
            self.reply(record, self._machine.apply(record.value, record.timestamp_ns, record.leader_epoch))
        else:
            self._machine.pass_time(record.timestamp_ns, record.leader_epoch)
        if self._machine.waits:
            self.set_timer(SILENCE, self.now_ns + NS_PER_S)
        else:
            self.cancel_timer(SILENCE)

    def on_timer(self, name: str) -> None:
        """Append an empty record to the coordinator's own input stream, so that its clock advances.

        The timer is due one second after the last record. ``on_record`` of the empty record starts the timer again.
        """
        self.offer(b"")

    def on_query(self, query: bytes) -> bytes:
        return answer_query(self._machine, query)

    @property
    def groups(self) -> dict[str, GroupRecord]:
        """All groups of this coordinator by name. Read only."""
        return self._machine.groups

    def figures(self) -> dict[str, int]:
        groups = self._machine.groups.values()
        queues = [queue for group in groups for queue in group.queues.values()]
        numbers = (
            len(groups),
            sum(len(group.readers.members) for group in groups),
            len(queues),
            sum(queue.out_count for queue in queues),
            self._machine.size_bytes,
        )
        return dict(zip(NO_FIGURES, numbers, strict=True))

    @classmethod
    def check_snapshot(cls, state: bytes) -> None:
        """Check that ``state`` restores exactly the current groups. Raises CorruptionError if it does not."""
        again = GroupMachine()
        again.restore(state)
        if again.snapshot() != state:
            raise CorruptionError(
                "The stored state of the consumer groups differs from the state in memory after a read-back. The "
                "snapshot is not stored. Please report it."
            )

    def take_snapshot(self) -> bytes | Callable[[], bytes]:
        """Return a function that encodes the current groups as bytes. The caller runs it in another thread."""
        return self._machine.frozen()


class EarlierGroupCoordinator(GroupCoordinator):
    """Coordinator of version 1. A node runs it below feature level ``QUEUE_EPOCHS``, so that it can be downgraded."""

    version = EPOCHS - 1
