"""Member side of a consumer group: which partitions one member owns, what it sends, and until when it may deliver. Pure.

Goal: each record of a partition goes to one live member, though the coordinator gets only a heartbeat now and then.
Constraint: an answer may be lost or late, and the process may be stopped for any time between two instructions.

Algorithm: a join, then heartbeats, each with its own number. An answer counts only if its command is later than that of the
last answer that counted. A session starts when the answered heartbeat was *sent*, by the member's own monotonic clock.
After its end the member delivers nothing (``may_deliver``), because the coordinator may assign the partitions to others
soon. The member remembers its partitions. If a later answer has the same generation, no other member had them in between.
If an answer no longer assigns a partition, or assigns it with another generation, the member releases it: the caller
finishes, commits and calls ``given_up``. The next heartbeat leaves the partition out.

``on_answer`` returns the actions in order. ``command`` returns the next command when it is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from liftpy.core.base.ids import PartitionKey
from liftpy.core.groups import commands
from liftpy.core.groups.commands import NS_PER_MS
from liftpy.core.wire._pb import group_pb2 as pb

_RETRY_NS = 1_000 * NS_PER_MS
"""Time in ns after which the member repeats a command without an answer. It is shorter with more frequent heartbeats."""
_LONG_AGO = -(1 << 62)
_MAX_UNANSWERED = 16
_REFUSED_NS = 1_000 * NS_PER_MS
"""Pause before a retry of a rejected request, in nanoseconds."""


class MemberStage(Enum):
    """Stage of a group member, as the member itself knows it.

    JOINING: it has no partitions yet. MEMBER: it is in the group. FENCED: another process has its static identity, so it
    sends nothing more. LEFT: it has left the group.
    """

    JOINING = "JOINING"
    MEMBER = "MEMBER"
    FENCED = "FENCED"
    LEFT = "LEFT"


@dataclass(frozen=True, slots=True)
class PartitionAssigned:
    """Action: start to read ``key`` at ``position``, the offset of the next record.

    If nothing is committed, ``position`` is negative. -1: start at the configured position. ``ADDED_LATER``: start at the
    first record.
    """

    key: PartitionKey
    generation: int
    position: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class PartitionRevoked:
    """Action: release ``key``, because another member waits for it. Finish its records, commit, then call ``given_up``."""

    key: PartitionKey
    generation: int


@dataclass(frozen=True, slots=True)
class PartitionLost:
    """Action: stop reading ``key`` at once. Another member may own it, and the coordinator rejects commits."""

    key: PartitionKey
    generation: int


@dataclass(frozen=True, slots=True)
class MemberRefused:
    """The coordinator rejected this member. ``detail``: the reason.

    ``for_good``: False: the member retries. True: it is fenced and sends nothing more.
    """

    detail: str
    for_good: bool


MemberEvent = PartitionAssigned | PartitionRevoked | PartitionLost | MemberRefused


class MemberMachine:
    """One member of a consumer group. ``new_id``: returns a random name for each session. Times are ns of one monotonic clock."""

    def __init__(
        self,
        group: str,
        streams: Iterable[pb.KnownStream],
        new_id: Callable[[], str],
        *,
        instance: str = "",
        client: str = "",
        session_ms: int = commands.SESSION_MS,
    ) -> None:
        self.group = group
        self.member = new_id()
        self.stage = MemberStage.JOINING
        self.generation = 0
        """Generation of the newest answer."""
        self._new_id = new_id
        self._streams = list(streams)
        self._streams_from = 1
        """Number of the first command that names the streams. 0: the coordinator knows them."""
        self._instance, self._client, self._session_ms = instance, client, session_ms
        self._session = 0
        """Random number of this session.

        A member that was removed and then joins again by a copy of its old join has another one.
        """
        self._owned: dict[PartitionKey, int] = {}
        self._asked: set[PartitionKey] = set()
        """Owned partitions that this member is releasing."""
        self._dropped: dict[PartitionKey, tuple[int, int]] = {}
        """Partition -> generation and command number of its release. An answer to an earlier command may still name it."""
        self._number = 0
        """Number of the newest command."""
        self._news_after = -1
        """Number of the last command before a change that the next command must report."""
        self._sent_ns: dict[int, int] = {}
        """Command number -> time when it was sent, for commands whose answers would count."""
        self._due_ns = self._until_ns = _LONG_AGO

    # ---- owned partitions ------------------------------------------------------------------------------------------------
    @property
    def owned(self) -> dict[PartitionKey, int]:
        """Owned partitions with their generations, including those to be released."""
        return dict(self._owned)

    def may_deliver(self, key: PartitionKey, now_ns: int) -> bool:
        return key in self._owned and now_ns < self._until_ns

    @property
    def until_ns(self) -> int:
        """Monotonic time in ns until which records may be delivered without another answered heartbeat."""
        return self._until_ns

    def given_up(self, key: PartitionKey) -> None:
        """Report that the application has finished the records of ``key`` and has committed its position.

        The next heartbeat is due now and tells the coordinator that the partition is released.
        """
        if key in self._owned:
            self._dropped[key] = (self._owned.pop(key), self._number)
            self._asked.discard(key)
            self._send_now()

    def reads(self, streams: Iterable[pb.KnownStream]) -> None:
        """Set the streams to read from now on. Call it also when a stream gets more partitions or was created again."""
        self._streams = list(streams)
        self._streams_from = self._number + 1
        self._send_now()

    def _send_now(self) -> None:
        self._news_after, self._due_ns = self._number, _LONG_AGO

    # ---- commands --------------------------------------------------------------------------------------------------------
    @property
    def wake_ns(self) -> int:
        """Monotonic time in ns at which ``command`` has something to send, unless another call of this class changes it."""
        return self._due_ns

    def command(self, now_ns: int) -> pb.GroupCommand | None:
        """Return the join or heartbeat to send now. None: nothing is due. The member repeats a command without an answer."""
        if self.stage in (MemberStage.FENCED, MemberStage.LEFT) or now_ns < self._due_ns:
            return None
        self._number += 1
        self._sent_ns[self._number] = now_ns
        if len(self._sent_ns) > _MAX_UNANSWERED:
            del self._sent_ns[min(self._sent_ns)]
        self._due_ns = now_ns + min(_RETRY_NS, commands.heartbeat_ms(self._session_ms) * NS_PER_MS)
        if self.stage is MemberStage.JOINING:
            join = pb.JoinGroup(
                member=self.member,
                instance=self._instance,
                client=self._client,
                sessionMs=self._session_ms,
                streams=self._streams,
            )
            return pb.GroupCommand(group=self.group, number=self._number, join=join)
        beat = pb.BeatGroup(
            member=self.member,
            instance=self._instance,
            generation=self.generation,
            owned=self._owned_by_stream(),
            session=self._session,
        )
        if self._streams_from:
            beat.tellsStreams = True
            beat.streams.extend(self._streams)
        return pb.GroupCommand(group=self.group, number=self._number, beat=beat)

    def commit(self, positions: dict[PartitionKey, tuple[int, int]]) -> pb.GroupCommand | None:
        """Return a commit of (position, LeaderEpoch) for owned partitions, at most ``MAX_POSITIONS``.

        Return None if there is nothing to commit. The answer names the rejected partitions. They belong to another member.
        """
        mine = [
            pb.GroupPosition(
                stream=key.stream, uid=key.uid, partition=key.partition, position=position, leaderEpoch=epoch,
                generation=self._owned[key],
            )
            for key, (position, epoch) in sorted(positions.items())
            if key in self._owned
        ]  # fmt: skip
        if not mine:
            return None
        return pb.GroupCommand(group=self.group, commit=pb.CommitPositions(member=self.member, positions=mine))

    def leave(self) -> pb.GroupCommand | None:
        """Return the command that removes this member from the group. None: the group does not know it.

        A member with a static identity sends it only if it will not return soon.
        """
        has_joined = self.stage is MemberStage.MEMBER or (self.stage is MemberStage.JOINING and bool(self._sent_ns))
        self.stage = MemberStage.LEFT
        self._owned.clear()
        return pb.GroupCommand(group=self.group, leave=pb.LeaveGroup(member=self.member)) if has_joined else None

    def _owned_by_stream(self) -> list[pb.GrantedPartitions]:
        parts: dict[tuple[str, str], pb.GrantedPartitions] = {}
        for key, generation in sorted(self._owned.items()):
            part = parts.setdefault((key.stream, key.uid), pb.GrantedPartitions(stream=key.stream, uid=key.uid))
            part.partitions.append(key.partition)
            part.generations.append(generation)
        return list(parts.values())

    # ---- answers ---------------------------------------------------------------------------------------------------------
    def on_answer(self, answer: pb.GroupAnswer, now_ns: int) -> list[MemberEvent]:
        """Process the answer to a join or a heartbeat, and return the actions. Repeated and older answers change nothing."""
        sent_ns = self._sent_ns.get(answer.number)
        if sent_ns is None or self.stage in (MemberStage.FENCED, MemberStage.LEFT):
            return []
        self._sent_ns = {number: at for number, at in self._sent_ns.items() if number > answer.number}
        if answer.code == pb.GROUP_OK and now_ns >= sent_ns + answer.sessionMs * NS_PER_MS:
            return []  # the answer describes the past: the session may have ended since then
        if answer.code == pb.GROUP_OK:
            lost = self._lose_all() if self._session not in (0, answer.session) else []
            self._session = answer.session
            return lost + self._accept_answer(answer, sent_ns, now_ns)
        if answer.code == pb.GROUP_FENCED_INSTANCE:
            lost = self._lose_all()
            self.stage = MemberStage.FENCED
            return [*lost, MemberRefused(answer.detail, for_good=True)]
        if answer.code in (pb.GROUP_UNKNOWN_MEMBER, pb.GROUP_NOT_FOUND):
            lost = self._lose_all()
            self.stage, self.member, self._due_ns = MemberStage.JOINING, self._new_id(), now_ns
            self._sent_ns.clear()
            return lost
        self._due_ns = now_ns + _REFUSED_NS
        return [MemberRefused(answer.detail, for_good=False)]

    def _lose_all(self) -> list[MemberEvent]:
        lost = [PartitionLost(key, generation) for key, generation in sorted(self._owned.items())]
        self._owned.clear()
        self._asked.clear()
        self._dropped.clear()
        self.generation, self._session, self._until_ns = 0, 0, _LONG_AGO
        return list(lost)

    def _accept_answer(self, answer: pb.GroupAnswer, sent_ns: int, now_ns: int) -> list[MemberEvent]:
        self.stage = MemberStage.MEMBER
        self.generation = answer.generation
        self._until_ns = sent_ns + answer.sessionMs * NS_PER_MS
        self._due_ns = now_ns if self._news_after == self._number else sent_ns + answer.heartbeatMs * NS_PER_MS
        if self._streams_from <= answer.number:
            self._streams_from = 0
        assigned: dict[PartitionKey, PartitionAssigned] = {}
        for part in answer.assigned:
            for place, partition in enumerate(part.partitions):
                key = PartitionKey(part.stream, part.uid, partition)
                at, epoch = (part.positions[place], part.leaderEpochs[place]) if part.positions else (-1, 0)
                assigned[key] = PartitionAssigned(key, part.generations[place], at, epoch)
        refused: list[MemberEvent] = [MemberRefused(answer.detail, for_good=False)] if answer.detail else []
        return refused + self._assignment_changed(assigned, answer.number)

    def _assignment_changed(self, assigned: dict[PartitionKey, PartitionAssigned], number: int) -> list[MemberEvent]:
        events: list[MemberEvent] = []
        for key, generation in sorted(self._owned.items()):
            new = assigned.get(key)
            if new is not None and new.generation > generation:
                del self._owned[key]
                self._asked.discard(key)
                events.append(PartitionLost(key, generation))
            elif new is None and key not in self._asked:
                self._asked.add(key)
                events.append(PartitionRevoked(key, generation))
        for key, new in sorted(assigned.items()):
            if key not in self._owned and new.generation > self._dropped.get(key, (0, 0))[0]:
                self._owned[key] = new.generation
                self._dropped.pop(key, None)
                events.append(new)
        self._dropped = {key: (generation, after) for key, (generation, after) in self._dropped.items() if after >= number}
        return events
