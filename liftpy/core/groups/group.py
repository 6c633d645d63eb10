"""One consumer group: its members, assignments and positions. Pure. The time is the coordinator's clock.

Goal: a partition has one reader [G1], and only this reader may commit [G2]. Members continue to read the partitions that do
not move. Constraint: members learn of a change at their next request, and may be slow, paused or dead.

Algorithm: each partition has a *target* (the member that shall read it) and a *grant* (the member that reads it, with a
generation). A change of members or streams sets new targets at once. Grants follow. A member sees in the answer to its
heartbeat that it has to release a partition. It finishes, commits, and leaves the partition out of its next heartbeat. Then
the partition is granted to the next member with a new generation. If the member does not answer, the grant follows when its
session and the fence time have ended. A partition missing from a heartbeat counts as released only if the member has seen
an answer as new as the grant.

Worked example: a owns p0 and p1 by generation 1. b joins, and the target of p1 becomes b. The answer to the next heartbeat
of a assigns only p0. a finishes p1, commits it by generation 1, and sends a heartbeat that names p0 and generation 2. p1 is
granted to b by generation 3. A later commit of p1 by generation 1 is rejected.

A member with a static identity takes over from the earlier member with the same identity, which is fenced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from liftpy.core.groups import commands
from liftpy.core.groups.commands import NS_PER_MS, uid_order
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.core.wire.message_codec import MessageCodec

_NEVER = 1 << 62
ADDED_LATER = -2
"""Position of a partition without a committed position that was added, or created again, after the group first used its stream.

The member reads it from its first record.
"""
_NOWHERE, _ADDED_LATER = (-1, 0), (ADDED_LATER, 0)
MEMBER_BYTES = 300
STREAM_BYTES = 150
PARTITION_BYTES = 60
"""Approximate size of a partition in the state, in bytes."""
Place = tuple[str, int]
"""(stream, partition)."""
_MAX_PASSES = 8


@dataclass(slots=True)
class GroupMember:
    """One member of a group.

    Attributes:
        heard_ns: Time of its last command, by the coordinator's clock.
        joined: Sequence number of its join.
        number: Number of its newest command.
        held: Generation of the grant of each partition that it has, by (stream, partition).
    """

    name: str
    instance: str
    client: str
    session_ns: int
    heard_ns: int
    joined: int
    number: int = 0
    session: int = 0
    streams: tuple[str, ...] = ()
    held: dict[Place, int] = field(default_factory=dict)

    def is_news(self, number: int) -> bool:
        """Return whether the command ``number`` of this member is newer than all of its earlier ones.

        A command without a number (0) counts as new. The check is needed because copies of old commands may arrive at any time.
        """
        return number == 0 or number > self.number

    @property
    def end_ns(self) -> int:
        """Time at which the coordinator reassigns the member's partitions, unless a heartbeat arrives before."""
        return self.heard_ns + self.session_ns + commands.FENCE_MS * NS_PER_MS


MEMBER = MessageCodec(GroupMember, pb.MemberState, renamed={"name": "member"}, local_only=("held",))


@dataclass(slots=True)
class KnownIncarnation:
    """The incarnation of a stream that a group knows.

    Attributes:
        uid: Unique id of the stream. A stream that is created again has another one.
        partitions: Number of partitions. 0: only committed positions name the stream.
        first_partitions: Number of partitions when the group first used the stream. Later ones are read from their first
            record, because the position "new" would skip records.
        placed: Partitions that have or had a committed position. A new incarnation of the stream resets only these.
    """

    uid: str
    partitions: int = 0
    first_partitions: int = 0
    placed: set[int] = field(default_factory=set)


@dataclass(slots=True)
class ConsumerGroup:
    """Members, targets, grants and committed positions of one group."""

    generation: int = 0
    joins: int = 0
    members: dict[str, GroupMember] = field(default_factory=dict)
    streams: dict[str, KnownIncarnation] = field(default_factory=dict)
    targets: dict[Place, str] = field(default_factory=dict)
    owners: dict[Place, str] = field(default_factory=dict)
    positions: dict[Place, tuple[int, int]] = field(default_factory=dict)
    """Partition -> offset of the next record, and LeaderEpoch of the record before it."""
    next_end_ns: int = _NEVER
    """Time before which no session ends. It is computed again after a restart."""

    @property
    def size_bytes(self) -> int:
        places = max(len(self.targets), len(self.positions))
        return MEMBER_BYTES * len(self.members) + STREAM_BYTES * len(self.streams) + PARTITION_BYTES * places

    # ---- members ---------------------------------------------------------------------------------------------------------
    def join(self, join: pb.JoinGroup, number: int, now_ns: int) -> None:
        """Add a member, or process its repeated join. The caller has checked the limits.

        ``number``: number of the command, 0: none.
        """
        member = self.members.get(join.member)
        is_new = member is None
        if member is None:
            former = self._by_instance(join.instance)
            self.joins += 1
            member = GroupMember(join.member, join.instance, join.client, 0, now_ns, former.joined if former else self.joins)
            member.session = self.generation + 1
            self.members[join.member] = member
            if former is not None:
                self._replace_member(former, member)
        elif not member.is_news(number):
            return
        member.number, member.heard_ns = number, now_ns
        member.session_ns = (join.sessionMs or commands.SESSION_MS) * NS_PER_MS
        self.next_end_ns = min(self.next_end_ns, member.end_ns)
        self._reads(member, join.streams, is_new=is_new)

    def beat(self, beat: pb.BeatGroup, number: int, now_ns: int) -> pb.GroupCode:
        """Process a heartbeat. Return GROUP_OK or the code of the rejection.

        ``number``: number of the command. 0: the command has none.
        """
        member = self.members.get(beat.member)
        if member is None:
            fenced = beat.instance and self._by_instance(beat.instance) is not None
            return pb.GROUP_FENCED_INSTANCE if fenced else pb.GROUP_UNKNOWN_MEMBER
        if beat.session not in (0, member.session):
            return pb.GROUP_UNKNOWN_MEMBER
        if not member.is_news(number):
            return pb.GROUP_OK
        member.number, member.heard_ns = number, now_ns
        owned = {(part.stream, part.uid, number) for part in beat.owned for number in part.partitions}
        released = [
            (stream, partition)
            for (stream, partition), generation in member.held.items()
            if generation <= beat.generation and (stream, self.streams[stream].uid, partition) not in owned
        ]
        for place in released:
            self._release(place)
        if beat.tellsStreams:
            self._reads(member, beat.streams)
        elif released:
            self._grant()
        return pb.GROUP_OK

    def leave(self, name: str) -> bool:
        """Remove a member that has stopped. Return False if it is unknown."""
        if name not in self.members:
            return False
        self._remove([name])
        return True

    def expire(self, now_ns: int) -> bool:
        """Remove members whose session and fence time have ended. Return True if any member was removed."""
        if now_ns < self.next_end_ns:
            return False
        ended = [member.name for member in self.members.values() if member.end_ns <= now_ns]
        if ended:
            self._remove(ended)
        self.next_end_ns = min((member.end_ns for member in self.members.values()), default=_NEVER)
        return bool(ended)

    def room_for(self, streams: Sequence[pb.KnownStream], name: str, instance: str = "") -> str:
        """Return the reason why the group cannot let the member ``name`` read ``streams``, because of a limit. '': it can.

        ``instance``: static identity of the member, '' for none.
        """
        former = self._by_instance(instance)
        others = (m for m in self.members.values() if m.name != name and m is not former)
        if len(streams) + sum(len(member.streams) for member in others) > commands.MAX_SUBSCRIPTIONS:
            return (
                f"the members of one group subscribe to at most {commands.MAX_SUBSCRIPTIONS} streams, "
                "each counted once for every member: use several groups"
            )
        counts = {name: known.partitions for name, known in self.streams.items()}
        for stream in streams:
            counts[stream.name] = max(counts.get(stream.name, 0), stream.partitions)
        if sum(counts.values()) > commands.MAX_PARTITIONS or len(counts) > commands.MAX_PARTITIONS:
            return f"the members of one group read at most {commands.MAX_PARTITIONS} partitions in all: use several groups"
        return ""

    def _by_instance(self, instance: str) -> GroupMember | None:
        return next((member for member in self.members.values() if instance and member.instance == instance), None)

    def _replace_member(self, former: GroupMember, member: GroupMember) -> None:
        """Replace ``former`` by ``member``, a new process with the same static identity.

        ``former`` is fenced, because the grants get new generations.
        """
        member.streams = former.streams
        self.targets = {place: member.name if name == former.name else name for place, name in self.targets.items()}
        for place in list(former.held):
            self._release(place)
        del self.members[former.name]

    def _remove(self, names: list[str]) -> None:
        for name in names:
            for place in list(self.members[name].held):
                self._release(place)
            del self.members[name]
        self._rebalance()

    # ---- streams ---------------------------------------------------------------------------------------------------------
    def _reads(self, member: GroupMember, streams: Iterable[pb.KnownStream], *, is_new: bool = False) -> None:
        """Set the ``streams`` that ``member`` reads, and assign partitions again if they changed.

        The member may know an older or a newer incarnation of a stream than the group. ``is_new``: True at a join.
        """
        names = tuple(sorted(stream.name for stream in streams))
        before = (member.streams, self._known_streams(names))
        member.streams = names
        for stream in streams:
            self.learn(stream.name, stream.uid, stream.partitions)
        if is_new or before != (names, self._known_streams(names)):
            self._rebalance()
        else:
            self._grant()

    def _known_streams(self, names: Iterable[str]) -> list[tuple[str, int]]:
        streams = (self.streams.get(name) for name in names)
        return [(known.uid, known.partitions) if known else ("", 0) for known in streams]

    def learn(self, name: str, uid: str, partitions: int = 0) -> bool:
        """Record the incarnation ``uid`` of the stream ``name``, or a larger number of its partitions.

        The group drops what it has of an earlier incarnation. Return False if the group already knows a later one.
        """
        known = self.streams.get(name)
        if known is None:
            self.streams[name] = KnownIncarnation(uid, partitions, partitions)
            return True
        if uid == known.uid:
            if not known.partitions:
                known.first_partitions = partitions
            known.partitions = max(known.partitions, partitions)
            return True
        if uid_order(uid) < uid_order(known.uid):
            return False
        for place in [(name, number) for number in range(known.partitions)]:
            if place in self.owners:
                self._release(place)
            self.targets.pop(place, None)
        for number in known.placed:
            self.positions.pop((name, number), None)
        self.streams[name] = KnownIncarnation(uid, partitions, 0 if known.partitions else partitions)
        return True

    def _rebalance(self) -> None:
        order = sorted(self.members.values(), key=lambda member: member.joined)
        readers: dict[str, list[str]] = {name: [] for name, known in self.streams.items() if known.partitions}
        for member in order:
            for name in member.streams:
                if name in readers:
                    readers[name].append(member.name)
        counts = {name: known.partitions for name, known in self.streams.items()}
        self.targets = assign(counts, readers, self.targets)
        read = {name for name, names in readers.items() if names}
        needed = read | {stream for stream, _ in self.positions} | {stream for stream, _ in self.owners}
        for name in [name for name in self.streams if name not in needed]:
            del self.streams[name]
        self.generation += 1
        self._grant()

    def _grant(self) -> None:
        free = [place for place in self.targets if place not in self.owners]
        if not free:
            return
        self.generation += 1
        for place in free:
            name = self.targets[place]
            self.owners[place] = name
            self.members[name].held[place] = self.generation

    def _release(self, place: Place) -> None:
        del self.members[self.owners.pop(place)].held[place]

    @property
    def settled(self) -> bool:
        """True if each member has exactly its assigned partitions."""
        return self.owners == self.targets

    def lacks(self, name: str) -> bool:
        """Return whether the member ``name`` waits for partitions that other members must release first."""
        return any(target == name and self.owners.get(place) != name for place, target in self.targets.items())

    # ---- positions -------------------------------------------------------------------------------------------------------
    def commit(self, commit: pb.CommitPositions, answer: pb.GroupAnswer) -> None:
        """Store the committed positions in ``commit``, and list the rejected ones in ``answer`` [G2].

        A position below the stored one changes nothing [G3].
        """
        member = self.members.get(commit.member)
        if commit.member and member is None:
            answer.code, answer.detail = pb.GROUP_UNKNOWN_MEMBER, "its session is over: nothing was committed"
            answer.refused.extend(commit.positions)
            return
        if member is None and self.members:
            answer.code, answer.detail = pb.GROUP_NOT_EMPTY, "the group has members: they commit, or are stopped first"
            answer.refused.extend(commit.positions)
            return
        for at in commit.positions:
            place = (at.stream, at.partition)
            known = self.streams.get(at.stream)
            if member is not None:
                may = known is not None and known.uid == at.uid and member.held.get(place) == at.generation
            else:
                may = self.learn(at.stream, at.uid)
            if not may:
                answer.refused.append(at)
            elif (position := self.positions.get(place)) is None or position[0] <= at.position:
                self.place(place, at.position, at.leaderEpoch)
            else:
                answer.positions.append(self._position(place))
        if answer.refused:
            answer.code, answer.detail = (
                pb.GROUP_STALE,
                "positions of partitions that are not the member's, or of an older stream",
            )

    def reset(self, reset: pb.ResetPositions, answer: pb.GroupAnswer) -> None:
        """Set the committed positions to those in ``reset``. The caller has checked that the group has no members.

        A position may be lower than before. -1 removes the position. ``answer`` gets the rejected positions: their stream was
        created again.
        """
        for at in reset.positions:
            place = (at.stream, at.partition)
            if not self.learn(at.stream, at.uid):
                answer.code, answer.detail = pb.GROUP_STALE, "the stream was made again since: reset that one"
                answer.refused.append(at)
            elif at.position < 0:
                self.positions.pop(place, None)
            else:
                self.place(place, at.position, at.leaderEpoch)
        named = {stream for stream, _ in self.positions} | {stream for stream, _ in self.targets}
        for name in [name for name in self.streams if name not in named]:
            del self.streams[name]

    def place(self, place: Place, position: int, leader_epoch: int) -> None:
        """Set the committed position of one partition, whose stream is known.

        ``place``: (stream, partition). ``position``: offset of the next record. ``leader_epoch``: LeaderEpoch of the commit.
        """
        self.positions[place] = (position, leader_epoch)
        self.streams[place[0]].placed.add(place[1])

    def _position(self, place: Place) -> pb.GroupPosition:
        position, epoch = self.positions[place]
        return pb.GroupPosition(
            stream=place[0], uid=self.streams[place[0]].uid, partition=place[1], position=position, leaderEpoch=epoch
        )

    # ---- answers to members and operators ---------------------------------------------------------------------------------
    def fill_answer(self, name: str, owned: Iterable[pb.GrantedPartitions], answer: pb.GroupAnswer) -> None:
        """Fill the answer to a join or a heartbeat of member ``name``. ``owned``: the partitions that the member has reported."""
        member = self.members[name]
        answer.generation = self.generation
        mine = [place for place in member.held if self.targets.get(place) == name]
        answer.assigned.extend(self.granted_partitions(name, mine))
        has = {
            (part.stream, part.uid, number, generation)
            for part in owned
            for number, generation in zip(part.partitions, part.generations, strict=False)
        }
        if any((s, self.streams[s].uid, partition, member.held[s, partition]) not in has for s, partition in mine):
            for part in answer.assigned:
                first = self.streams[part.stream].first_partitions
                at = [
                    self.positions.get((part.stream, number), _NOWHERE if number < first else _ADDED_LATER)
                    for number in part.partitions
                ]
                part.positions.extend(position for position, _ in at)
                part.leaderEpochs.extend(epoch for _, epoch in at)
        session_ms = member.session_ns // NS_PER_MS
        beat_ms = commands.heartbeat_ms(session_ms)
        if len(self.members) <= commands.FEW_MEMBERS:
            beat_ms = min(beat_ms, commands.QUICK_HEARTBEAT_MS)
        answer.sessionMs, answer.session = session_ms, member.session
        answer.settled = self.settled
        answer.heartbeatMs = beat_ms if answer.settled or not self.lacks(name) else min(beat_ms, commands.WAITING_HEARTBEAT_MS)

    def granted_partitions(self, name: str, places: Iterable[Place]) -> list[pb.GrantedPartitions]:
        """Return ``places``, partitions of the member ``name``, with their generations. They are grouped by stream, in order."""
        assigned = self.members[name].held
        parts: dict[str, pb.GrantedPartitions] = {}
        for place in sorted(places):
            stream, partition = place
            if stream not in parts:
                parts[stream] = pb.GrantedPartitions(stream=stream, uid=self.streams[stream].uid)
            parts[stream].partitions.append(partition)
            parts[stream].generations.append(assigned[place])
        return list(parts.values())

    def all_positions(self) -> list[pb.GroupPosition]:
        return [self._position(place) for place in sorted(self.positions)]


# ---- assignment ------------------------------------------------------------------------------------------------------


def assign(counts: Mapping[str, int], readers: Mapping[str, Sequence[str]], previous: Mapping[Place, str]) -> dict[Place, str]:
    """Assign all partitions of all streams that have readers: balanced, with as few moves as possible.

    The numbers of partitions that two readers of one stream get differ by at most one. A member keeps the partitions that it
    has, up to its share. Some readers get one partition more: first those that have it already, then those that read fewer
    partitions of all streams. At last, such partitions move from a reader to another one that reads at least two partitions
    less.

    Worked example: a reads 4 partitions, and b joins: a keeps 0 and 1, b gets 2 and 3. c joins, and the shares are 2, 1, 1: a
    keeps 0 and 1, b keeps 2, c gets 3. a leaves: b keeps 2, c keeps 3, 0 moves to b and 1 to c.

    Args:
        counts: Number of partitions per stream.
        readers: Readers per stream, in the order in which they joined.
        previous: Previous assignment, including members that have left.

    Returns:
        A dict from (stream, partition) to the member.
    """
    load: dict[str, int] = {}
    shares: dict[str, dict[str, int]] = {}
    have: dict[str, dict[str, list[int]]] = {}
    for stream in sorted(readers):
        if not readers[stream]:
            continue
        have[stream] = _partitions_before(stream, counts[stream], readers[stream], previous)
        floor, extra = divmod(counts[stream], len(readers[stream]))
        shares[stream] = _shares(readers[stream], have[stream], load, floor, extra)
        for name, count in shares[stream].items():
            load[name] = load.get(name, 0) + count
    _even_out(counts, shares, load)
    target: dict[Place, str] = {}
    for stream, share in shares.items():
        retained_partitions = {name: have[stream].get(name, [])[: share[name]] for name in readers[stream] if share[name]}
        occupied = {partition for partitions in retained_partitions.values() for partition in partitions}
        free = iter([partition for partition in range(counts[stream]) if partition not in occupied])
        for name, partitions in retained_partitions.items():
            mine = partitions + [next(free) for _ in range(share[name] - len(partitions))]
            target.update({(stream, partition): name for partition in mine})
    return target


def _shares(
    readers: Sequence[str], have: Mapping[str, Sequence[int]], load: Mapping[str, int], floor: int, extra: int
) -> dict[str, int]:
    """Return how many partitions of one stream each reader gets: ``floor``, or ``floor`` + 1 for ``extra`` of them.

    Readers with the extra partition come first in the result. The function prefers readers that had more partitions of this
    stream (``have``), and then readers with fewer partitions of the other streams (``load``).
    """
    if not extra:
        return dict.fromkeys(readers, floor)
    richer = [name for name in readers if name in have and len(have[name]) > floor]
    rest = sorted(readers, key=lambda name: load.get(name, 0)) if load else list(readers)
    if richer:
        has_more = set(richer)
        rest = [name for name in rest if name in has_more] + [name for name in rest if name not in has_more]
    shares = dict.fromkeys(rest, floor)
    shares.update(dict.fromkeys(rest[:extra], floor + 1))
    return shares


def _partitions_before(stream: str, count: int, readers: Sequence[str], previous: Mapping[Place, str]) -> dict[str, list[int]]:
    """Return the partitions of ``stream`` that each reader had in the earlier assignment ``previous``, as lists by reader.

    ``count``: number of partitions of the stream. A reader that had none is not in the result.
    """
    have: dict[str, list[int]] = {}
    names = set(readers)
    for partition in range(count):
        holder = previous.get((stream, partition))
        if holder in names:
            have.setdefault(holder, []).append(partition)
    return have


def _even_out(counts: Mapping[str, int], shares: dict[str, dict[str, int]], load: dict[str, int]) -> None:
    """Balance the total numbers of partitions per reader. Changes ``shares`` and ``load`` in place.

    A reader with an extra partition passes it to a reader of the same stream whose total is lower by at least two.

    ``counts``: partitions per stream. ``shares``: partitions per stream and reader. ``load``: partitions per reader in all.
    """
    for _ in range(_MAX_PASSES):
        moved = False
        for stream, share in shares.items():
            floor, extra = divmod(counts[stream], len(share))
            if not extra or not _is_uneven(share, load, floor):
                continue
            rich = sorted((name for name in share if share[name] > floor), key=lambda name: -load[name])
            poor = sorted((name for name in share if share[name] == floor), key=lambda name: load[name])
            for giver, taker in zip(rich, poor, strict=False):
                if load[giver] < load[taker] + 2:
                    break
                share[giver], share[taker] = share[giver] - 1, share[taker] + 1
                load[giver], load[taker] = load[giver] - 1, load[taker] + 1
                moved = True
        if not moved:
            return


def _is_uneven(share: Mapping[str, int], load: Mapping[str, int], floor: int) -> bool:
    """Return whether one more pass of ``_even_out`` can move a partition of this stream.

    It can if a reader with ``floor`` + 1 partitions has at least two partitions more in all than a reader with ``floor``.
    ``share``: partitions of the stream per reader. ``load``: partitions in all per reader.
    """
    most = max(load[name] for name, count in share.items() if count > floor)
    return most >= 2 + min(load[name] for name, count in share.items() if count == floor)
