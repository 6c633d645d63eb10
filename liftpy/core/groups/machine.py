"""All groups of one coordinator: applies commands in order and returns answers. Pure. The time is in the records.

Answers and state depend only on the commands and their stamps, so every node that runs the service has the same state.

The coordinator's clock counts only time in which members could reach the coordinator. Goal: no session ends because the
coordinator was down, and none lasts forever because a leader's clock was set back. The time of the log alone fails in both
cases: an outage is a jump, and after a leader with a clock one hour ahead the time does not move for an hour. So the clock
adds the difference between two consecutive records of one leader epoch, at most one second each. Between two epochs it adds
nothing. The clock is never faster than the leaders' clocks, except for one second when a clock is set forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from liftpy.core.groups import commands
from liftpy.core.groups.commands import MAX_CLOCK_STEP_MS, NS_PER_MS, GroupCommandError, decode_command, uid_order
from liftpy.core.groups.group import MEMBER, ConsumerGroup, Place
from liftpy.core.groups.queue import WorkQueue
from liftpy.core.services.outbox import MAX_OUTPUT_BYTES
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.errors import CorruptionError

STATE_VERSION = 1
_SWEEP_NS = 10_000 * NS_PER_MS
"""Interval at which groups without commands are checked, in nanoseconds."""
_GROUP_BYTES = 100


@dataclass(slots=True)
class LogClock:
    """The coordinator's clock, which advances with the records of the log.

    ``now_ns``: its time in ns. ``stamp_ns``, ``leader_epoch``: timestamp and LeaderEpoch of the last record.
    """

    now_ns: int = 0
    stamp_ns: int = 0
    leader_epoch: int = 0

    def advance(self, stamp_ns: int, leader_epoch: int) -> None:
        """Advance the clock by the time between the last record and this one.

        ``stamp_ns``, ``leader_epoch``: timestamp and LeaderEpoch of this record.
        """
        if leader_epoch == self.leader_epoch:
            self.now_ns += min(max(0, stamp_ns - self.stamp_ns), MAX_CLOCK_STEP_MS * NS_PER_MS)
        self.stamp_ns, self.leader_epoch = stamp_ns, leader_epoch


@dataclass(slots=True)
class GroupRecord:
    """State under one group name in the coordinator: a group with its positions, its work queues, or a cursor."""

    readers: ConsumerGroup = field(default_factory=ConsumerGroup)
    queues: dict[Place, WorkQueue] = field(default_factory=dict)
    cursor: int = 0
    """Generation of the holder of a cursor. 0: the group is not a cursor."""

    @property
    def size_bytes(self) -> int:
        return _GROUP_BYTES + self.readers.size_bytes + sum(queue.size_bytes for queue in self.queues.values())

    def expire(self, now_ns: int) -> None:
        self.readers.expire(now_ns)
        for queue in self.queues.values():
            queue.expire(now_ns)

    def frozen(self) -> GroupRecord:
        """Return a copy for a snapshot. Later commands do not change the copy."""
        readers = self.readers
        copied = ConsumerGroup(
            readers.generation,
            readers.joins,
            {name: replace(member, held=member.held.copy()) for name, member in readers.members.items()},
            {name: replace(known) for name, known in readers.streams.items()},
            readers.targets.copy(),
            readers.owners.copy(),
            readers.positions.copy(),
        )
        return GroupRecord(copied, {place: queue.frozen() for place, queue in self.queues.items()}, self.cursor)

    @property
    def is_busy(self) -> bool:
        """True if the group has a session or lease that can expire."""
        return bool(self.readers.members) or any(queue.out_count for queue in self.queues.values())

    def has_delays(self, now_ns: int) -> bool:
        """Return whether a queue has records that are to be delivered again later than ``now_ns``."""
        return any(queue.has_delays(now_ns) for queue in self.queues.values())

    def is_position_of_queue(self, place: Place) -> bool:
        """Return whether the committed position of ``place`` is only the one at which its work queue began."""
        queue, known = self.queues.get(place), self.readers.streams.get(place[0])
        return queue is not None and known is not None and queue.uid == known.uid and place not in self.readers.targets

    @property
    def is_empty(self) -> bool:
        return not (self.readers.members or self.readers.positions or self.queues or self.cursor)

    def new_holder(self) -> None:
        """Increase the generation of the cursor, so that its current holder can no longer move it."""
        self.readers.generation += 1
        self.cursor = self.readers.generation


class GroupMachine:
    """State machine of all groups of one coordinator. Call ``restore`` if there is a snapshot.

    Then ``apply`` every record of the log once, in order.
    """

    def __init__(self) -> None:
        self.clock = LogClock()
        self.stores_epochs = False
        """True if version 2 of the coordinator is active. The log decides it, so all nodes agree.

        Then queues store LeaderEpochs, delays count while no worker asks, and a reset also sets the positions of queues.
        """
        self.groups: dict[str, GroupRecord] = {}
        self._swept_ns = 0
        self._generations = 0
        """First generation of a new group. A deleted group with the same name may have used the generations below it."""
        self._busy: set[str] = set()
        """Groups with sessions or leases. Their order has no effect."""
        self._delayed: dict[str, None] = {}
        """Groups that may have records with a delay. Their order has no effect."""
        self._sizes: dict[str, int] = {}
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def waits(self) -> bool:
        """True if a session, a lease or a delay can expire. The coordinator then appends empty records to advance the clock."""
        if self._busy:
            return True
        while self.stores_epochs and self._delayed:  # version 1 does not count delays, and all nodes must do the same
            name = next(iter(self._delayed))
            if self.groups[name].has_delays(self.clock.now_ns):
                return True
            del self._delayed[name]
        return False

    def pass_time(self, stamp_ns: int, leader_epoch: int) -> None:
        """Advance the clock to the next record, and sometimes end the expired sessions and leases.

        ``stamp_ns``, ``leader_epoch``: timestamp and LeaderEpoch of the record.
        """
        self.clock.advance(stamp_ns, leader_epoch)
        if self.clock.now_ns - self._swept_ns >= _SWEEP_NS:
            self._swept_ns = self.clock.now_ns
            for name in list(self.groups):
                self.groups[name].expire(self.clock.now_ns)
                self._weigh(name)

    def apply(self, data: bytes, stamp_ns: int, leader_epoch: int) -> bytes:
        """Apply one command to the state, and return the answer to its sender. Both are bytes.

        ``stamp_ns``, ``leader_epoch``: timestamp and LeaderEpoch of the command's record.
        """
        self.pass_time(stamp_ns, leader_epoch)
        try:
            command = decode_command(data)
        except GroupCommandError as error:
            return _encode(pb.GroupAnswer(code=pb.GROUP_MALFORMED, detail=str(error)))
        answer = pb.GroupAnswer(number=command.number)
        self._carry_out(command, answer)
        self._weigh(command.group)
        if answer.ByteSize() > MAX_OUTPUT_BYTES:  # a reply that is too large would fail the coordinator
            answer = pb.GroupAnswer(number=command.number)
            _reject_full(answer, f"{MAX_OUTPUT_BYTES} bytes in one answer: commit fewer positions at once")
        return _encode(answer)

    def _carry_out(self, command: pb.GroupCommand, answer: pb.GroupAnswer) -> None:
        group = self.groups.get(command.group)
        if group is None:
            if not any(map(command.HasField, ("join", "commit", "reset", "take", "open"))):
                missing = command.HasField("beat")
                answer.code = pb.GROUP_UNKNOWN_MEMBER if missing else pb.GROUP_NOT_FOUND
                answer.detail = f"there is no group {command.group!r}"
                return
            if len(self.groups) >= commands.MAX_GROUPS:
                _reject_full(answer, f"{commands.MAX_GROUPS} groups: delete some, or use other names for their partitions")
                return
            group = self.groups[command.group] = GroupRecord(ConsumerGroup(self._generations))
        now_ns = self.clock.now_ns
        group.expire(now_ns)
        if reason := _wrong_kind_reason(group, command):
            answer.code, answer.detail = pb.GROUP_NOT_EMPTY, reason
            return
        if command.HasField("commit"):
            self._commit(group, command.commit, answer)
        if command.HasField("join"):
            self._join(group, command.join, answer)
        if command.HasField("beat"):
            _beat(group, command.beat, now_ns, answer)
        if command.HasField("leave") and not group.readers.leave(command.leave.member):
            answer.code, answer.detail = pb.GROUP_UNKNOWN_MEMBER, "there is no such member"
        if command.HasField("reset"):
            if group.readers.members:
                answer.code, answer.detail = pb.GROUP_NOT_EMPTY, "the group has members: stop them, then reset"
            elif self.stores_epochs and (busy := _busy_queue(group, command.reset)):
                answer.code = pb.GROUP_NOT_EMPTY
                answer.detail = f"workers have records of {busy[0]}/{busy[1]}: stop them, wait for their ack wait, then reset"
            elif self._has_room(group, command.reset.positions, answer):
                group.readers.reset(command.reset, answer)
                if self.stores_epochs:
                    _reset_queues(group, command.reset)
                if group.cursor:
                    group.new_holder()
        if command.HasField("delete"):
            if group.is_busy:
                answer.code, answer.detail = pb.GROUP_NOT_EMPTY, "the group has members or records out: stop them, then delete"
            else:
                group.readers.positions.clear()
                group.queues.clear()
                group.cursor = 0
        if command.HasField("settle"):
            _settle(group, command.settle, now_ns, answer, is_bounded=self.stores_epochs)
        if command.HasField("take"):
            self._apply_take(group, command.take, answer)
        if command.HasField("open"):
            group.new_holder()
            answer.generation = group.cursor
            answer.positions.extend(group.readers.all_positions())
            if answer.ByteSize() > MAX_OUTPUT_BYTES:  # a query returns them
                del answer.positions[:]

    def _has_room(self, group: GroupRecord, positions: Iterable[pb.GroupPosition], answer: pb.GroupAnswer) -> bool:
        known_positions = group.readers.positions
        new = sum((at.stream, at.partition) not in known_positions for at in positions)
        if new and (len(known_positions) + new > commands.MAX_PARTITIONS or self._size_bytes >= commands.MAX_STATE_BYTES):
            _reject_full(
                answer,
                f"positions of {commands.MAX_PARTITIONS} partitions in a group, {commands.MAX_STATE_BYTES} bytes of all groups",
            )
            return False
        return True

    def _commit(self, group: GroupRecord, commit: pb.CommitPositions, answer: pb.GroupAnswer) -> None:
        if not commit.member and any(at.generation != group.cursor for at in commit.positions):
            answer.code, answer.detail = pb.GROUP_STALE, "the cursor was opened by another, set or deleted since"
            answer.refused.extend(commit.positions)
        elif self._has_room(group, commit.positions, answer):
            group.readers.commit(commit, answer)

    def _join(self, group: GroupRecord, join: pb.JoinGroup, answer: pb.GroupAnswer) -> None:
        readers = group.readers
        if join.member not in readers.members and (
            len(readers.members) >= commands.MAX_MEMBERS or self._size_bytes >= commands.MAX_STATE_BYTES
        ):
            _reject_full(answer, f"{commands.MAX_MEMBERS} members of a group, {commands.MAX_STATE_BYTES} bytes of all groups")
            return
        if reason := readers.room_for(join.streams, join.member, join.instance):
            _reject_full(answer, reason)
            return
        readers.join(join, answer.number, self.clock.now_ns)
        readers.fill_answer(join.member, (), answer)

    def _apply_take(self, group: GroupRecord, take: pb.TakeRecords, answer: pb.GroupAnswer) -> None:
        queue = self._queue(group, take, answer)
        if queue is None:
            return
        now_ns = self.clock.now_ns
        queue.forget_below(take.logStart)
        if not queue.order(take.ordered):
            answer.code = pb.GROUP_NOT_EMPTY
            answer.detail = (
                f"its records are given {'in order of keys' if queue.ordered else 'in any order'}: all workers are to say so"
            )
            return
        frontier = queue.frontier
        if self.stores_epochs and queue.must_compare(take):
            answer.code, answer.takenBelow, answer.takenEpoch = pb.GROUP_COMPARE_LOG, frontier, queue.taken_epoch
            answer.detail = (
                f"the queue has delivered records up to offset {frontier} by LeaderEpoch {queue.taken_epoch}: compare"
            )
            return
        may_grow = self._size_bytes < commands.MAX_STATE_BYTES
        answer.granted.extend(queue.lease_records(take, now_ns, may_grow=may_grow))
        if self.stores_epochs:
            queue.note_epoch(take, frontier)
        answer.waitMs = queue.wait_ns // NS_PER_MS
        answer.takenBelow = queue.frontier if queue.ordered else 0
        if answer.granted:
            return
        ready_ns = queue.next_ready_ns()
        answer.nextReadyMs = -1 if ready_ns is None else max(0, -(-(ready_ns - now_ns) // NS_PER_MS))
        if not may_grow or queue.is_full:
            _reject_full(answer, f"{commands.MAX_QUEUE_RANGES} ranges of one queue: settle what is out before more is given")

    def _queue(self, group: GroupRecord, take: pb.TakeRecords, answer: pb.GroupAnswer) -> WorkQueue | None:
        """Return the work queue of the partition from which ``lease_records`` requests records. Create the queue if it does not exist.

        Return None if the request is rejected. ``answer`` then has the reason.
        """
        place = (take.stream, take.partition)
        queue = group.queues.get(place)
        if queue is not None and queue.uid == take.uid:
            return queue
        if queue is not None and uid_order(take.uid) < uid_order(queue.uid):
            answer.code, answer.detail = pb.GROUP_STALE, "the stream was made again since: look it up"
            return None
        if queue is None and (len(group.queues) >= commands.MAX_QUEUES or self._size_bytes >= commands.MAX_STATE_BYTES):
            _reject_full(
                answer, f"{commands.MAX_QUEUES} partitions of queues in a group, {commands.MAX_STATE_BYTES} bytes of all groups"
            )
            return None
        first = _first_partitions(group, take)
        is_later = first is not None and take.partition >= first
        known = group.readers.streams.get(take.stream)
        committed = group.readers.positions.get(place) if known is not None and known.uid == take.uid else None
        if committed is not None:  # a restore of a backup sets such a position
            begin = max(committed[0], take.logStart)
        else:
            begin = take.logStart if is_later else max(take.begin, take.logStart)
        if self.stores_epochs:  # the records of an earlier incarnation of the stream are gone, in all its partitions
            for other in [
                at for at, one in group.queues.items() if at[0] == take.stream and uid_order(one.uid) < uid_order(take.uid)
            ]:
                del group.queues[other]
        new_queue = group.queues[place] = WorkQueue(take.uid, begin, ordered=take.ordered)
        new_queue.first_partitions = first
        if self.stores_epochs and committed is not None and committed[0] == begin:
            new_queue.taken_epoch = committed[1]
        return new_queue

    def _weigh(self, name: str) -> None:
        group = self.groups.get(name)
        if group is not None and group.is_empty:
            self._generations = max(self._generations, group.readers.generation)
            del self.groups[name]
            group = None
        if group is not None and group.is_busy:
            self._busy.add(name)
        else:
            self._busy.discard(name)
        if group is not None and group.has_delays(self.clock.now_ns):
            self._delayed[name] = None
        else:
            self._delayed.pop(name, None)
        size = group.size_bytes if group is not None else 0
        self._size_bytes += size - self._sizes.pop(name, 0)
        if size:
            self._sizes[name] = size

    # ---- snapshots ---------------------------------------------------------------------------------------------------------
    def snapshot(self) -> bytes:
        """Return the complete state as bytes. Equal states give equal bytes."""
        return self.frozen()()

    def frozen(self) -> Callable[[], bytes]:
        """Return a function that encodes the current state as bytes, in any thread. Later commands do not change the result."""
        head = pb.CoordinatorState(
            version=STATE_VERSION,
            clockNs=self.clock.now_ns,
            stampNs=self.clock.stamp_ns,
            leaderEpoch=self.clock.leader_epoch,
            sweptNs=self._swept_ns,
            generations=self._generations,
        )
        groups = {name: group.frozen() for name, group in self.groups.items()}

        def made() -> bytes:
            """Encode the groups one after the other, so that other threads wait only briefly. Return the complete state."""
            parts = [
                pb.CoordinatorState(groups=[_group_state(name, groups[name])]).SerializeToString(deterministic=True)
                for name in sorted(groups)
            ]
            last = pb.CoordinatorState(generations=head.generations).SerializeToString()
            head.ClearField("generations")
            return b"".join((head.SerializeToString(deterministic=True), *parts, last))

        return made

    def restore(self, data: bytes) -> None:
        """Load the result of ``snapshot``. Raises CorruptionError for a snapshot of another version."""
        state = pb.CoordinatorState.FromString(data)
        if state.version != STATE_VERSION:
            raise CorruptionError(
                f"The state of the consumer groups has version {state.version}, but this version reads "
                f"{STATE_VERSION}. Start the newer version of liftpy."
            )
        self.clock = LogClock(state.clockNs, state.stampNs, state.leaderEpoch)
        self._swept_ns, self._generations = state.sweptNs, state.generations
        self.groups = {group.group: _group_of(group) for group in state.groups}
        self._busy = {name for name, group in self.groups.items() if group.is_busy}
        self._delayed = {name: None for name, group in self.groups.items() if group.queues}
        self._sizes = {name: group.size_bytes for name, group in self.groups.items()}
        self._size_bytes = sum(self._sizes.values())


def _encode(answer: pb.GroupAnswer) -> bytes:
    return answer.SerializeToString(deterministic=True)


def _reject_full(answer: pb.GroupAnswer, what: str) -> None:
    answer.code, answer.detail = pb.GROUP_FULL, f"no more than {what}"


def _wrong_kind_reason(group: GroupRecord, command: pb.GroupCommand) -> str:
    """Return why a command does not fit the kind of its group name, such as a join to the name of a cursor. '': it fits."""
    if group.cursor and (command.HasField("join") or command.HasField("take")):
        return "the name is that of a cursor: use another, or delete it"
    if command.HasField("open") and not group.cursor and not group.is_empty:
        return "the name is that of a group: use another, or delete it"
    return ""


def _beat(group: GroupRecord, beat: pb.BeatGroup, now_ns: int, answer: pb.GroupAnswer) -> None:
    readers = group.readers
    if beat.tellsStreams and (reason := readers.room_for(beat.streams, beat.member)):
        answer.detail = f"what it reads stays as it was: {reason}"
        beat.tellsStreams = False
    answer.code = readers.beat(beat, answer.number, now_ns)
    if answer.code == pb.GROUP_OK:
        readers.fill_answer(beat.member, beat.owned, answer)
    elif answer.code == pb.GROUP_FENCED_INSTANCE:
        answer.detail = f"another process has joined as {beat.instance!r}"
    else:
        answer.detail = "the session is over: join again"


def _settle(group: GroupRecord, settle: pb.SettleRecords, now_ns: int, answer: pb.GroupAnswer, *, is_bounded: bool) -> None:
    """Apply the settlements, and name the ranges that are lost.

    The answer has a limit. Beyond it, the last range of a settlement includes everything up to the end of the settlement. So
    a record that is lost never looks settled.

    ``is_bounded``: True if a settlement is lost when the command changes more than ``MAX_SETTLED_RANGES`` ranges of queues. The
    first settlement is never lost for this reason, because one queue may have a few more ranges.
    """
    left = commands.MAX_SETTLED_RANGES
    for number, part in enumerate(settle.settlements, 1):
        later = len(settle.settlements) - number  # each of them needs room for one range
        room = commands.MAX_LOST_RANGES - len(answer.lost) - later
        queue = group.queues.get((part.stream, part.partition))
        if is_bounded and queue is not None:
            left -= queue.settled_range_count(part)
        is_too_much = left < 0 and number > 1
        if queue is None or queue.uid != part.uid or is_too_much:
            lost = [(piece.start, piece.end) for piece in part.ranges[: room + 1]]
        else:
            lost = queue.settle(part, settle.member, now_ns, room + 1)
        if len(lost) > room:
            lost[room - 1 :] = [(lost[room - 1][0], part.ranges[-1].end)]
        answer.lost.extend(pb.LostRange(stream=part.stream, partition=part.partition, start=s, end=e) for s, e in lost)
    if answer.lost:
        answer.code = pb.GROUP_STALE
        is_too_much = left < 0 and len(settle.settlements) > 1
        too_many = f". The command changes more than {commands.MAX_SETTLED_RANGES} ranges: settle fewer records at once"
        answer.detail = f"{len(answer.lost)} ranges are not the member's any more{too_many if is_too_much else ''}"


def _busy_queue(group: GroupRecord, reset: pb.ResetPositions) -> Place | None:
    """Return a partition of ``reset`` whose queue has leased records. None: there is none."""
    for at in reset.positions:
        queue = group.queues.get((at.stream, at.partition))
        if queue is not None and queue.uid == at.uid and queue.out_count:
            return at.stream, at.partition
    return None


def _reset_queues(group: GroupRecord, reset: pb.ResetPositions) -> None:
    """Let each queue of a partition in ``reset`` begin at its new position. Its numbers of leases are not used again.

    A queue whose position is removed begins as a new one.
    """
    for at in reset.positions:
        place = (at.stream, at.partition)
        queue = group.queues.get(place)
        if queue is None or queue.uid != at.uid:
            continue
        if at.position < 0:
            del group.queues[place]
        else:
            group.queues[place] = queue.restarted(at.position, at.leaderEpoch)


def _first_partitions(group: GroupRecord, take: pb.TakeRecords) -> int | None:
    """Return the number of partitions of the stream when the group first read it. None: not known.

    A partition above this number was added later, or belongs to a stream that was created again. The start position "new"
    does not apply to it: its queue begins at its first record.
    """
    if not take.HasField("partitions"):
        return None
    others = [queue for (stream, _), queue in group.queues.items() if stream == take.stream]
    known = [q.first_partitions for q in others if q.uid == take.uid and q.first_partitions is not None]
    if known:
        return min(known)
    return 0 if any(uid_order(queue.uid) < uid_order(take.uid) for queue in others) else take.partitions


def _group_state(name: str, group: GroupRecord) -> pb.GroupState:
    readers = group.readers
    members = sorted(readers.members.values(), key=lambda member: member.joined)
    number = {member.name: place for place, member in enumerate(members, 1)}
    state = pb.GroupState(
        group=name,
        generation=readers.generation,
        joins=readers.joins,
        streams=(
            pb.KnownStream(
                name=s, uid=k.uid, partitions=k.partitions,
                firstPartitions=None if k.first_partitions == k.partitions else k.first_partitions,
            )
            for s, k in sorted(readers.streams.items())
        ),
        members=map(MEMBER.to_pb, members),
        queues=(group.queues[place].state(*place) for place in sorted(group.queues)),
        cursor=group.cursor,
    )  # fmt: skip
    for place in sorted({*readers.targets, *readers.owners, *readers.positions}):
        owner = readers.owners.get(place, "")
        position = readers.positions.get(place)
        state.partitions.append(
            pb.PartitionState(
                stream=place[0],
                partition=place[1],
                target=number.get(readers.targets.get(place, ""), 0),
                owner=number.get(owner, 0),
                generation=readers.members[owner].held[place] if owner else 0,
                hasPosition=position is not None,
                position=position[0] if position else 0,
                leaderEpoch=position[1] if position else 0,
            )
        )
    return state


def _group_of(state: pb.GroupState) -> GroupRecord:
    readers = ConsumerGroup(state.generation, state.joins)
    for stream in state.streams:
        readers.learn(stream.name, stream.uid, stream.partitions)
        if stream.HasField("firstPartitions"):
            readers.streams[stream.name].first_partitions = stream.firstPartitions
    members = [MEMBER.from_pb(member) for member in state.members]
    readers.members = {member.name: member for member in members}
    for part in state.partitions:
        place = (part.stream, part.partition)
        if part.target:
            readers.targets[place] = members[part.target - 1].name
        if part.owner:
            readers.owners[place] = members[part.owner - 1].name
            members[part.owner - 1].held[place] = part.generation
        if part.hasPosition:
            readers.place(place, part.position, part.leaderEpoch)
    readers.next_end_ns = min((member.end_ns for member in members), default=readers.next_end_ns)
    queues = {(queue.stream, queue.partition): WorkQueue.from_state(queue) for queue in state.queues}
    return GroupRecord(readers, queues, state.cursor)
