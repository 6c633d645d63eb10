"""Standby: a follower listens to the data subject too: nothing published is lost in a fail-over, nobody is left waiting. Pure.

Goal: a publish that reaches no leader, or one that dies with it, is stored by the next leader and answered by it: a fail-over is one
slow ack. Constraint: a record that the log holds is not appended again [A3], order per connection stays [A4], who was told no is never
stored [A2], and who was answered is not answered again where that can be known [A8]. Memory is bounded (``heard.py``).

Algorithm: who is in the ISR and does not lead keeps what it hears. A new leader sorts it, in the order heard, when it opens:

    in its log (``recognising.py``)    answered once committed; not where the leader before it has done so
    passed over                        left out
    bound to a condition               told no, when that may be said: the leader before may have refused it already
    anything else                      taken as if it had just come; message ids are looked up then

Passed over means that its leader took what came after it: it was refused or dropped, or lost on its way, and appending it now would
turn the order round. So it is where a later message of the same connection is in the log, one that was heard long after it, or one that
came into the log long after it and was not heard at all. A connection is known by the prefix of the inboxes that answers go to.

Who has been answered? HW that this node has heard of is what the leader had committed, and acks leave with the same stroke. A leader
that is gone may have committed without a lease, or died between the two: what was committed in its last ``doubt_ns`` is answered again.
A second answer names the same sequence. One that lives and was deposed has answered what it committed.

Sorting is done in slices, in between the node does everything else: what comes meanwhile has just come, and stands behind it.

With a standby no leader tells a publisher no for a reason of its own (too few in sync, too much to do, no space): a follower has
heard the message, and may store it as the next leader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import TypeVar

from liftpy.errors import LiftError
from liftpy.ingest.acks import Publishers
from liftpy.ingest.columns import MessageColumns, MessageReader, RawMessage
from liftpy.ingest.heard import Heard
from liftpy.ingest.ingest_shell import Hearing, StandbyShell
from liftpy.ingest.recent_ids import RecentIds, Stored
from liftpy.ingest.recognising import InLog, Key, column_keys, record_keys
from liftpy.log.log import Log
from liftpy.partition import PartitionStatus
from liftpy.replica.phases import RoleName
from liftpy.replica.replica import Replica
from liftpy.wire.batch import split_batches

_T = TypeVar("_T")
_CREDIT_NS = 250_000_000
"""The log may show a record so long before its message is heard."""
_REORDERED_NS = 100_000_000
"""Messages of different connections may be heard in another order than the leader's, and come into the log, within this time."""
_SAMPLE_NS = 1_000_000
_SLICE_NS = 4_000_000
"""One slice of sorting ends with the first piece of it that is done after this."""
_PIECE_MESSAGES = 256
_PIECE_BYTES = 64 * 1024
"""Of the log."""


@dataclass(slots=True)
class StandbyCounters:
    """For status and metrics; messages, since the process started."""

    appended: int = 0
    """Taken as if they had just come: the log did not hold them."""
    recognised: int = 0
    """Found in the log."""
    answered: int = 0
    """Of those: who waited and was, or may have been, without an answer."""
    ambiguous: int = 0
    """Of those: told from equal ones by their number alone."""
    passed_over: int = 0
    undecided: int = 0
    """Bound to a condition that the leader before may have judged: told no."""
    lost: int = 0
    """Not heard, or not kept, for want of room while the log stood still."""

    def add(self, others: StandbyCounters) -> None:
        """Sum, in place."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(others, name))


@dataclass(slots=True)
class TakenOver:
    """What a new leader takes over, in the order heard. ``hearing``: None once it listens in another way."""

    hearing: Hearing | None
    fresh: list[RawMessage] = field(default_factory=list)
    known: list[tuple[Stored, Publishers]] = field(default_factory=list)
    undecided: list[RawMessage] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Message:
    """One that was heard, read."""

    raw: RawMessage
    heard_ns: int
    key: Key | None
    """None: it can't be stored as it is."""
    publishers: Publishers
    is_bound: bool = False
    is_judged: bool = False
    """By its producer's sequence, or it is a question: the leader knows by itself what it has of it [A3]."""
    ids: tuple[bytes, ...] = ()
    stored: Stored | None = None
    origin: bytes = b""


def origin_of(reply: bytes, value: bytes | None) -> bytes:
    """By what a connection is known: the prefix of its inboxes; b"": it is not."""
    return reply.rpartition(b".")[0]


@dataclass(slots=True, kw_only=True)
class Standby:
    """Of one partition on one node. ``doubt_ns``: a lease; ``wall_ns``: the node's wall clock."""

    shell: StandbyShell
    subject: str
    reader: MessageReader
    """Of its own: its counters are not the leader's."""
    replica: Replica
    log: Log
    ids: RecentIds
    heard: Heard
    now_ns: Callable[[], int]
    wall_ns: Callable[[], int]
    doubt_ns: int
    credit_ns: int = _CREDIT_NS
    reordered_ns: int = _REORDERED_NS
    gap_ns: int = _REORDERED_NS
    slice_ns: int = _SLICE_NS
    piece_messages: int = _PIECE_MESSAGES
    on_unreadable: Callable[[LiftError], None] = lambda error: None
    """Its log can't be read, so that nothing can be looked for in it: it has been told, and gives the leadership up."""
    origin: Callable[[bytes, bytes | None], bytes] = origin_of
    on_lost: Callable[[int], None] = lambda count: None
    counters: StandbyCounters = field(default_factory=StandbyCounters)
    _hearing: Hearing | None = None
    _leader: tuple[str, int, int] = ("", 0, 0)
    """That it stands by for: node, LeaderEpoch, and the incarnation as of when that was seen first."""
    _settings: tuple[bool, int, bool] | None = None
    """Of the stream: for which publishes are refused."""
    _waits: int = 0
    """Number of the last ``take_over``."""
    _reading: list[RawMessage] = field(default_factory=list)
    _ends: deque[tuple[int, int]] = field(default_factory=deque)
    """(monotonic ns, log end then, exclusive) as the log grew, at most one a millisecond."""
    _marks: deque[tuple[int, int]] = field(default_factory=deque)
    """The same of HW, inclusive."""

    def review(self) -> None:
        """The role or the partition has changed. Who has begun to lead keeps what it has until ``take_over``."""
        replica = self.replica
        if not replica.stands_by:
            self.stop()
            return
        stream = self.log.config
        settings = stream.read_only, stream.max_message_bytes, stream.optimistic_concurrency
        if settings != self._settings:
            self._settings = settings
            self.heard.clear()  # its leader may have refused any of it for what does not hold any more [A2]
        state = replica.state
        leader = state.leader, state.leader_epoch
        if state.status is PartitionStatus.ONLINE and state.leader != replica.node_id and self._leader[:2] != leader:
            self._leader = *leader, replica.live_incarnation(state.leader)
        if self._hearing is None and replica.role is not RoleName.LEADER:
            self._ends = deque(((self.now_ns(), self.log.log_end_offset),))
            self._marks = deque(((self.now_ns(), self.log.high_watermark),))
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
        """Where the log ended, exclusive, as far back as is known of when it grew."""
        return self._ends[0][1] if self._ends else 0

    # ---- while it follows ----------------------------------------------------------------------------------------------------
    def _arrived(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        if not self._reading and self._hearing is not None:
            self._hearing.behind_read(self._read)
        self._reading.append((subject, reply, payload, headers))

    def _read(self) -> None:
        messages, self._reading = self._reading, []
        if messages and self._hearing is not None and not self.heard.add(messages, self.now_ns(), self._ends[-1][0]):
            self._given_up(len(messages))

    def _given_up(self, count: int) -> None:
        self.counters.lost += count
        self.on_lost(count)

    def report(self) -> dict[str, int]:
        """For status and metrics: bytes of memory held, messages."""
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
            self._note(self._ends, self.log.log_end_offset)

    def committed(self, high_watermark: int) -> None:
        """HW has risen. What this node commits itself says nothing of whom the leader before it has answered."""
        if self._hearing is not None and self.replica.role is not RoleName.LEADER:
            self._note(self._marks, high_watermark)

    def _note(self, samples: deque[tuple[int, int]], offset: int) -> None:
        now_ns = self.now_ns()
        if len(samples) > 1 and now_ns - samples[-2][0] < _SAMPLE_NS:
            samples[-1] = now_ns, offset
            return
        samples.append((now_ns, offset))
        reach_ns = self.heard.age_ns + self.credit_ns + self.doubt_ns
        while len(samples) > 1 and samples[1][0] < now_ns - reach_ns:
            samples.popleft()

    def cut(self) -> None:
        """The log was cut, or begun afresh: what it holds from there on it will be shown anew."""
        end_offset = self.log.log_end_offset
        while len(self._ends) > 1 and self._ends[-1][1] > end_offset:
            self._ends.pop()
        if self._ends and self._ends[-1][1] > end_offset:
            self._ends[-1] = self._ends[-1][0], end_offset

    # ---- when it leads ---------------------------------------------------------------------------------------------------------
    def take_over(self, then: Callable[[TakenOver | None], None]) -> None:
        """Call ``then`` with what this node heard before it led, sorted, and what has come since; None: it does not listen. Not after
        ``cancel``. It waits until what was published before has been heard: what came later than the log showed it would be taken for
        new."""
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
        work: Generator[None, None, TakenOver],
        then: Callable[[TakenOver | None], None],
    ) -> None:
        """One slice."""
        if turn != self._waits:
            return
        if self._hearing is not hearing:
            then(None)
            return
        end_ns = self.now_ns() + self.slice_ns
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
        """It does not lead any more: nobody waits to ``take_over``, and what it heard may be needed again."""
        self._waits += 1
        self.heard.put_back()

    def _sorted(self, hearing: Hearing) -> Generator[None, None, TakenOver]:
        self._read()
        messages: list[_Message] = []
        for block in self.heard.hold_out(self.now_ns()):
            for piece in self._pieces(block.messages):
                messages += self._opened(piece, block.heard_ns)
                yield
        unheard_ns = (yield from self._recognise(messages)) if messages else -1
        passed = yield from self._passed_over(messages, unheard_ns)
        leader, _, incarnation = self._leader
        lives = incarnation != 0 and self.replica.live_incarnation(leader) == incarnation
        answered_through = self._marks[-1][1] if lives else self._answered_by_then()
        taken, counted = TakenOver(hearing), StandbyCounters()
        for pairs in self._pieces([*zip(messages, passed, strict=True)]):
            for message, was_passed in pairs:
                self._sort(message, was_passed, answered_through, taken, counted)
            yield
        self._read()
        if self.heard.held_out is None:
            taken = TakenOver(hearing)  # it was to be forgotten, meanwhile
        else:
            self.counters.add(counted)
        for late in self.heard.blocks:
            taken.fresh += late.messages
        self._forget()
        return taken

    def _pieces(self, things: list[_T]) -> Iterator[list[_T]]:
        return (things[start : start + self.piece_messages] for start in range(0, len(things), self.piece_messages))

    def _sort(
        self, message: _Message, was_passed: bool, answered_through: int, taken: TakenOver, counters: StandbyCounters
    ) -> None:
        wall_ns = self.wall_ns()
        if message.stored is not None:
            counters.recognised += 1
            if message.stored.last_offset > answered_through and any(message.publishers.replies):
                counters.answered += 1
                taken.known.append((message.stored, message.publishers))
        elif message.is_judged or any(self.ids.find(message_id, wall_ns) for message_id in message.ids):
            taken.fresh.append(message.raw)  # where it repeats what is stored, it is answered as that
        elif was_passed:
            counters.passed_over += 1
        elif message.is_bound:
            counters.undecided += 1
            taken.undecided.append(message.raw)
        else:
            counters.appended += 1
            taken.fresh.append(message.raw)

    def _opened(self, messages: list[RawMessage], heard_ns: int) -> Iterator[_Message]:
        """Read; where one can't be stored as it is, or is a whole batch, one by one."""
        columns = self.reader.read(messages, self.wall_ns())
        if len(messages) > 1 and (columns.apart or columns.unfit is not None or columns.unfit_then is not None):
            for message in messages:
                yield from self._opened([message], heard_ns)
            return
        keys: list[Key | None]
        if columns.unfit is not None or columns.asked is not None or columns.claim is not None:
            keys = [None]
        elif columns.batch is not None:
            keys = [(tuple(column_keys(columns.batch.columns, repeat(columns.subjects[0]))),)]
        else:
            keys = [*record_keys(columns.values, columns.keys, columns.headers, columns.subjects)]
        for index, (raw, key) in enumerate(zip(messages, keys, strict=True)):
            yield self._message(raw, key, columns, index, heard_ns)

    def _message(self, raw: RawMessage, key: Key | None, columns: MessageColumns, index: int, heard_ns: int) -> _Message:
        publishers = columns.publishers if columns.batch is not None else columns.publishers.only(index)
        is_judged = columns.claim is not None or columns.asked is not None
        is_bound = index in columns.expected or index in columns.of_others or columns.unfit_then is not None
        ids = tuple(columns.ids.values()) if columns.batch is not None else tuple(filter(None, (columns.ids.get(index),)))
        if columns.batch is not None or self.reader.is_command(columns, index):
            ids = ()  # both are stored each time
        origin = self.origin(publishers.replies[0], columns.values[index])
        return _Message(
            raw=raw,
            heard_ns=heard_ns,
            key=key,
            publishers=publishers,
            is_bound=is_bound,
            is_judged=is_judged,
            ids=ids,
            origin=origin,
        )

    def _recognise(self, messages: list[_Message]) -> Generator[None, None, int]:
        """Look for each in the end of the log that can hold it; return when a record came there last that is none of them, or -1."""
        log = self.log
        whole = any(message.key is not None and len(message.key) == 1 for message in messages)
        found = InLog(self.credit_ns, self._shown_ns, whole_batches=whole)
        first = self._end_before(messages[0].heard_ns - self.credit_ns)
        offset = max(first, log.log_start_offset)
        while offset < log.log_end_offset:
            result = log.read(offset, _PIECE_BYTES, end_offset=log.log_end_offset)
            for chunk in result.chunks:
                for batch in split_batches(chunk, verify=False):
                    found.add(batch)
            if result.next_offset <= offset:
                break
            offset = result.next_offset
            yield
        for piece in self._pieces(messages):
            for message in piece:
                if message.key is not None:
                    message.stored = found.take(message.key, message.heard_ns)
            yield
        self.counters.ambiguous += found.ambiguous
        gone = max(log.log_start_offset, log.horizon.end_offset)  # what retention or compaction has taken can't be recognised
        gone_ns = self._shown_ns(gone - 1) if first < gone else -1
        return max(found.latest_unheard_ns, gone_ns)

    def _end_before(self, at_ns: int) -> int:
        """Where the log ended at ``at_ns``, or when this node began to listen; exclusive."""
        end_offset = self._ends[0][1]
        for seen_ns, seen in self._ends:
            if seen_ns > at_ns:
                break
            end_offset = min(seen, self.log.log_end_offset)
        return end_offset

    def _shown_ns(self, offset: int) -> int:
        """When the log came to hold ``offset``."""
        low, high = 0, len(self._ends) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._ends[middle][1] <= offset else (low, middle)
        return self._ends[low][0]

    def _answered_by_then(self) -> int:
        """Up to this offset, inclusive, a leader that is gone has answered for certain."""
        until_ns = self._marks[-1][0] - self.doubt_ns
        return max((mark for seen_ns, mark in self._marks if seen_ns <= until_ns), default=self._marks[0][1])

    def _passed_over(self, messages: list[_Message], unheard_ns: int) -> Generator[None, None, list[bool]]:
        passed, later, last_ns = [], set[bytes](), -1
        for piece in self._pieces(messages[::-1]):
            for message in piece:
                if message.stored is not None:
                    later.add(message.origin)
                    last_ns = max(last_ns, message.heard_ns)
                long_ago = last_ns - message.heard_ns >= self.reordered_ns or unheard_ns - message.heard_ns > self.gap_ns
                passed.append(message.stored is None and (long_ago or (bool(message.origin) and message.origin in later)))
            yield
        return passed[::-1]
