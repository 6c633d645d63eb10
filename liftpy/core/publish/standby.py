"""``Standby``: followers also buffer published messages, so that a failover loses none of them. Pure.

A publish that reaches no leader, or one that fails with it, is stored and acked by the next leader. When a new leader
opens, it sorts the buffered messages in order of arrival:

- in its log: acked when committed, unless the earlier leader has done it,
- passed over: skipped. The earlier leader accepted later messages of the same connection, so storing it now would
  change the order,
- conditional: rejected, because the earlier leader may have rejected it already,
- anything else: accepted as a new message. Message ids are checked then.

Records that the earlier leader committed in its last ``doubt_ns`` get a second ack with the same sequence, because the
first one may be lost. Sorting runs in slices. With standby, a leader rejects no publish for reasons of its own (too few
replicas, overload, full disk), because a follower may store it as the next leader.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.log.log import Log
from liftpy.core.publish.dedup_window import RecentIds
from liftpy.core.publish.message_decoder import MessageDecoder, RawMessage
from liftpy.core.publish.ports import Hearing, StandbyShell
from liftpy.core.publish.standby_buffer import StandbyBuffer
from liftpy.core.publish.standby_replay import FailoverBacklog, Seen, SortingRules, StandbyCounters, StandbyReplay
from liftpy.core.replication.phases import RoleName
from liftpy.core.replication.replica import Replica
from liftpy.errors import LiftError

_NOTHING = StandbyCounters()


@dataclass(slots=True, kw_only=True)
class Standby:
    """Standby buffer and its replay for one partition on one node. ``wall_ns``: the node's wall clock."""

    shell: StandbyShell
    subject: str
    reader: MessageDecoder
    """Of its own: its counters are not the leader's."""
    replica: Replica
    log: Log
    ids: RecentIds
    heard: StandbyBuffer
    now_ns: Callable[[], int]
    wall_ns: Callable[[], int]
    rules: SortingRules
    on_lost: Callable[[int], None] = lambda count: None
    touched: Callable[[], None] = lambda: None
    """What is counted here may be more."""
    on_unreadable: Callable[[LiftError], None] = lambda error: None
    """Its log can't be read, so that nothing can be looked for in it: it has been told, and gives the leadership up."""
    counters: StandbyCounters = field(default_factory=StandbyCounters)
    _hearing: Hearing | None = None
    _leader: tuple[str, int, int] = ("", 0, 0)
    """That it stands by for: node, LeaderEpoch, and the incarnation as of when that was seen first."""
    _settings: tuple[bool, int, bool, int] | None = None
    """Of the stream: for which publishes are refused; and how often the partition was paused, or they were altered."""
    _altered_ns: int | None = None
    """When this replica was told that they changed; its leader may be told up to a lease later."""
    _doubt_ns: int = field(init=False)
    """The longest lease that anybody may hold, as of the last ``review``."""
    _waits: int = 0
    """Number of the last ``take_over``."""
    _reading: list[RawMessage] = field(default_factory=list)
    _ends: Seen = field(init=False)
    """Of the log, exclusive; as of when it began to listen, and since."""
    _marks: Seen = field(init=False)
    """The same of HW, inclusive; until it leads."""

    def __post_init__(self) -> None:
        self._doubt_ns = self.rules.doubt_ns
        self._begin()

    def _begin(self) -> None:
        self._ends = Seen(self.now_ns(), self.log.log_end_offset, self._reach_ns)
        self._marks = Seen(self.now_ns(), self.log.high_watermark, self._reach_ns)

    @property
    def _reach_ns(self) -> int:
        return self.heard.age_ns + self.rules.credit_ns + self._doubt_ns

    def review(self) -> None:
        """Adapt to a changed role or partition. A new leader keeps its buffer until ``take_over``."""
        replica = self.replica
        doubt_ns = replica.longest_lease_ns or self.rules.doubt_ns
        if doubt_ns != self._doubt_ns:
            self._doubt_ns = doubt_ns
            self._ends.reach_ns = self._marks.reach_ns = self._reach_ns
        if not replica.stands_by:
            self.stop()
            return
        stream = self.log.config
        settings = stream.read_only, stream.max_message_bytes, stream.optimistic_concurrency, replica.state.pauses
        if settings != self._settings:
            if self._settings is not None:
                self._altered_ns = self.now_ns()
            self._settings = settings
            self._reading = []
            self.heard.clear()  # its leader may have refused any of it for what does not hold any more [A2]
        state = replica.state
        leader = state.leader, state.leader_epoch
        if state.status is PartitionStatus.ONLINE and state.leader != replica.node_id and self._leader[:2] != leader:
            self._leader = *leader, replica.live_incarnation(state.leader)
        if self._hearing is None and replica.role is not RoleName.LEADER:
            self._begin()
            self._hearing = self.shell.hear(self.subject, self._arrived, self._given_up)

    def stop(self) -> None:
        """Listen no more, and forget."""
        if self._hearing is not None:
            self._hearing.close()
            self._forget()

    def _forget(self) -> None:
        self._hearing = None
        self._reading = []
        self.heard.clear()

    @property
    def begun_at(self) -> int:
        """Exclusive log end at the oldest known time."""
        return self._ends.first

    # ---- while it follows ----------------------------------------------------------------------------------------------------
    def _arrived(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        if not self._reading and self._hearing is not None:
            self._hearing.behind_read(self._read)
        self._reading.append((subject, reply, payload, headers))

    def _read(self) -> None:
        messages, self._reading = self._reading, []
        self.touched()
        if messages and self._hearing is not None and not self.heard.add(messages, self.now_ns(), self._ends.last_ns):
            self._given_up(len(messages))

    def _given_up(self, count: int) -> None:
        self.counters.lost += count
        self.touched()
        self.on_lost(count)

    @property
    def has_counted(self) -> bool:
        """Whether any of the messages of ``report`` is more than none."""
        return self.heard.pushed_out > 0 or self.counters != _NOTHING

    def report(self) -> dict[str, int]:
        """Return memory use in bytes and messages, for status and metrics."""
        counters = self.counters
        return {
            "held_bytes": self.heard.size_bytes,
            "pushed_out": self.heard.pushed_out,
            "appended": counters.appended,
            "recognised": counters.recognised,
            "answered": counters.answered,
            "ambiguous": counters.ambiguous,
            "passed_over": counters.passed_over,
            "undecided": counters.undecided,
            "lost": counters.lost,
        }

    def shown(self) -> None:
        """The log has grown."""
        if self._hearing is not None:
            self._ends.note(self.now_ns(), self.log.log_end_offset)

    def committed(self, high_watermark: int) -> None:
        """The high watermark has increased. It does not tell which publishers the previous leader has answered."""
        if self._hearing is not None and self.replica.role is not RoleName.LEADER:
            self._marks.note(self.now_ns(), high_watermark)

    def cut(self) -> None:
        """The log was truncated or emptied. Records from there on will arrive again."""
        self._ends.cut(self.log.log_end_offset)

    # ---- when it leads ---------------------------------------------------------------------------------------------------------
    def take_over(self, then: Callable[[FailoverBacklog | None], None]) -> None:
        """Call ``then`` with the buffered messages in order.

        None: nothing was buffered. It is not called after ``cancel``. It waits until all earlier publishes have arrived,
        because later ones would look new.
        """
        self._waits += 1
        hearing, turn = self._hearing, self._waits
        if hearing is None:
            then(None)
            return
        hearing.when_settled(lambda: self._sort_on(hearing, turn, self._sorted(hearing), then))

    def _sort_on(
        self,
        hearing: Hearing,
        turn: int,
        work: Generator[None, None, FailoverBacklog],
        then: Callable[[FailoverBacklog | None], None],
    ) -> None:
        """Sort one slice of the buffer."""
        if turn != self._waits:
            return
        if self._hearing is not hearing:
            then(None)
            return
        end_ns = self.now_ns() + self.rules.slice_ns
        try:
            next(work)
            while self.now_ns() < end_ns:
                next(work)
        except StopIteration as done:
            then(done.value)
        except LiftError as error:
            self.on_unreadable(error)
            self.stop()
            then(None)
        else:
            hearing.soon(lambda: self._sort_on(hearing, turn, work, then))

    def cancel(self) -> None:
        """Cancel ``take_over``, because the node lost the leadership. The buffer stays."""
        self._waits += 1
        self.heard.put_back()

    def _sorted(self, hearing: Hearing) -> Generator[None, None, FailoverBacklog]:
        self._read()
        taken, sorting = FailoverBacklog(hearing), self._sorting()
        yield from sorting.run(self.heard.hold_out(self.now_ns()), taken)
        self._read()
        if self.heard.held_out is None:
            taken = FailoverBacklog(hearing)  # it was to be forgotten, meanwhile
        else:
            self.counters.add(sorting.counters)
            self.touched()
        for late in self.heard.blocks:
            taken.fresh += late.messages
        self._forget()
        return taken

    def _sorting(self) -> StandbyReplay:
        leader, _, incarnation = self._leader
        lives = incarnation != 0 and self.replica.live_incarnation(leader) == incarnation
        marks = self._marks
        return StandbyReplay(
            rules=self.rules,
            reader=self.reader,
            log=self.log,
            ids=self.ids,
            ends=self._ends,
            answered_through=marks.last if lives else marks.at(marks.last_ns - self._doubt_ns),
            wall_ns=self.wall_ns(),
            refused_until_ns=-1 if self._altered_ns is None else self._altered_ns + self._doubt_ns,
        )
