"""``Standby``: followers also buffer published messages, so that a failover loses none of them. Pure.

If a publish reaches no leader, or the leader fails before it commits the publish, the next leader stores it and sends
the ack. When a new leader opens, it replays the buffered messages in order of arrival:

- A message that is in its log gets an ack when it is committed, unless the earlier leader has sent one.
- A message that the earlier leader missed is skipped. That leader accepted later messages of the same connection, so
  storing it now would change the order.
- A message with a condition is rejected, because the earlier leader may have rejected it already.
- Any other message is accepted as a new message. Message ids are checked then.

Records that the earlier leader committed in its last ``uncertainty_ns`` get a second ack with the same sequence, because the
first one may be lost. The replay runs in slices. With standby, a leader rejects no publish for reasons of its own (too
few replicas, overload, full disk), because a follower may store it as the next leader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import repeat
from typing import NamedTuple

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.log.log import Log
from liftpy.core.publish.acks import Publishers
from liftpy.core.publish.dedup_window import RecentIds, StoredId
from liftpy.core.publish.message_decoder import MessageColumns, MessageDecoder, RawMessage, split_at
from liftpy.core.publish.ports import PublishPartition, StandbyShell, StandbySubscription
from liftpy.core.replication.phases import RoleName
from liftpy.core.wire.batch import RecordBatch, split_batches
from liftpy.core.wire.batch_columns import ColumnSet
from liftpy.errors import LiftError

MESSAGE_BYTES = 240
"""Measured memory of a message in addition to its payload, headers and reply subject."""
Key = tuple[object, ...]
"""Values by which a record, or a whole batch, is recognized."""
_Place = tuple[int, StoredId]
"""Monotonic time in nanoseconds when the log got the record, and its offset."""
_CREDIT_NS = 250_000_000
"""Time by which the log may show a record before its message arrives, in nanoseconds."""
_REORDERED_NS = 100_000_000
"""Time in ns within which the order of messages of different connections may differ between the buffer and the log."""
_SLICE_NS = 4_000_000
"""Time in ns after which a slice of the replay ends with its current step."""
_STEP_MESSAGES = 256
_STEP_BYTES = 32 * 1024
"""Number of bytes of the log that one step reads."""
_SAMPLE_NS = 1_000_000


class Block(NamedTuple):
    """Buffered messages that arrived together. ``receive_ns``: monotonic time of their arrival."""

    receive_ns: int
    messages: list[RawMessage]
    size_bytes: int


@dataclass(slots=True)
class NodeStandbyMemory:
    """Memory use and memory limit of all standby buffers of a node, in bytes."""

    bound_bytes: int
    size_bytes: int = 0


@dataclass(slots=True)
class StandbyBuffer:
    """Buffered publishes of one partition on a standby follower, in order of arrival. It is limited in bytes and age.

    Messages that arrive together form one block and are not parsed. While the log grows, the oldest blocks are dropped first,
    because their leader has had them for the longest time. While the log does not grow, the newest messages are dropped, so
    that the buffer has no gap.

    ``bound_bytes``: memory limit. ``age_ns``: maximum age of a message.
    """

    node: NodeStandbyMemory
    bound_bytes: int
    age_ns: int
    blocks: deque[Block] | tuple[()] = ()
    """Buffered blocks, the oldest first. It is a deque from the first block on, because an empty deque needs 760 bytes."""
    in_replay: list[Block] | None = None
    """Messages that are being replayed. They do not count for the limits, so that later messages have room."""
    size_bytes: int = 0
    displaced_count: int = 0
    """Number of messages that were dropped in favor of later ones while the log grew, since the start."""

    def add(self, messages: list[RawMessage], now_ns: int, grown_ns: int) -> bool:
        """Add messages that arrived at ``now_ns`` (monotonic). Return False if there is no room.

        Messages that arrived before ``grown_ns``, the last time that the log grew, are dropped to make room.
        """
        size_bytes = sum(len(payload) + len(headers) + len(reply) for _, reply, payload, headers in messages)
        size_bytes += MESSAGE_BYTES * len(messages)
        self.expire(now_ns)
        while self._lacks(size_bytes) and self.blocks and self.blocks[0].receive_ns <= grown_ns:
            self.displaced_count += len(self.blocks[0].messages)
            self._drop_first()
        if self._lacks(size_bytes):
            return False
        self._queue().append(Block(now_ns, messages, size_bytes))
        self.size_bytes += size_bytes
        self.node.size_bytes += size_bytes
        return True

    def _lacks(self, size_bytes: int) -> bool:
        return self.size_bytes + size_bytes > self.bound_bytes or self.node.size_bytes + size_bytes > self.node.bound_bytes

    def _queue(self) -> deque[Block]:
        if isinstance(self.blocks, tuple):
            self.blocks = deque()
        return self.blocks

    def _drop_first(self) -> None:
        block = self._queue().popleft()
        self.size_bytes -= block.size_bytes
        self.node.size_bytes -= block.size_bytes

    def expire(self, now_ns: int) -> None:
        while self.blocks and self.blocks[0].receive_ns < now_ns - self.age_ns:
            self._drop_first()

    def take_all(self, now_ns: int) -> list[Block]:
        """Remove and return all messages in order, for a replay. Call ``put_back`` or ``clear`` afterwards."""
        self.expire(now_ns)
        blocks = list(self.blocks)
        self._empty()
        self.in_replay = blocks
        return blocks

    def put_back(self) -> None:
        """Put the messages that ``take_all`` removed into the buffer again, because the replay was canceled."""
        for block in reversed(self.in_replay or ()):
            self._queue().appendleft(block)
            self.size_bytes += block.size_bytes
            self.node.size_bytes += block.size_bytes
        self.in_replay = None

    def clear(self) -> None:
        """Drop all messages, including those that ``take_all`` removed for a replay."""
        self.in_replay = None
        self._empty()

    def _empty(self) -> None:
        while self.blocks:
            self._drop_first()


# ---- replay ----------------------------------------------------------------------------------------------------------


def record_keys(
    values: Iterable[bytes | None],
    keys: Iterable[bytes | None] | None,
    headers: Iterable[Sequence[tuple[str, bytes]] | None] | None,
    subjects: Iterable[str] | None,
) -> list[Key]:
    """Return a recognition key for each record. Equal records have equal keys, so a buffered message can be found in the log."""
    pairs = repeat(()) if headers is None else (tuple(each) if each else () for each in headers)
    rows = zip(
        values, repeat(None) if keys is None else keys, pairs, repeat("") if subjects is None else subjects, strict=False
    )
    return list(rows)


def column_keys(columns: ColumnSet, subjects: Iterable[str] | None) -> list[Key]:
    """Return a recognition key for each record of a batch, as ``record_keys`` does.

    ``subjects``: used instead of the subjects in ``columns``. None: those in ``columns``.
    """
    if subjects is None and columns.subjects is not None:
        subjects = columns.subjects.each()
    return record_keys(
        columns.values.to_list(),
        None if columns.keys is None else columns.keys.to_list(),
        None if columns.headers is None else columns.headers.to_list(),
        subjects,
    )


class NewestRecords:
    """The newest records of a log. A replay searches buffered messages among them.

    A record is recognized by its subject, key, headers and value. Equal records are counted: the buffer's first ones match
    those in the log. A record may appear in the log before it is received, because publishing and replication use different
    connections. This counts for ``credit_ns``, unless the log holds equal records: a duplicate is better than a loss.

    Example with a credit of 250 ms: "on" is in the log at 0 s and received at 0.1 s: recognized. "on" received at 2 s is a new
    record.

    Args:
        credit_ns: Time by which a message may arrive here later than its record.
        ends: Log ends of this node. They show when the log got a record.
        whole_batches: True if published batches are searched, too.
    """

    def __init__(self, credit_ns: int, ends: OffsetHistory, *, whole_batches: bool) -> None:
        self._credit_ns = credit_ns
        self._ends = ends
        self._whole_batches = whole_batches
        self._places: dict[Key, deque[_Place]] = {}
        self._equal: set[Key] = set()
        self._unmatched: dict[int, tuple[int, int]] = {}
        """Last offset of a batch -> (number of records that matched no message yet, time when the log got the batch)."""
        self.ambiguous = 0
        """Number of messages that equal other messages, so that only their number was compared."""

    def add(self, batch: RecordBatch) -> None:
        if not batch.record_count or batch.header.control:
            return
        keys, last_offset = column_keys(batch.columns, None), batch.last_offset
        shown_ns = self._ends.above_ns(last_offset)
        self._unmatched[last_offset] = len(keys), shown_ns
        for key, offset in zip(keys, batch.offsets().tolist(), strict=True):
            self._add(key, (shown_ns, StoredId(offset, last_offset)))
        if self._whole_batches:
            self._add((tuple(keys),), (shown_ns, StoredId(batch.base_offset, last_offset)))

    def _add(self, key: Key, place: _Place) -> None:
        places = self._places.get(key)
        if places is None:
            self._places[key] = deque((place,))
        else:
            self._equal.add(key)
            places.append(place)

    def pop_match(self, key: Key, receive_ns: int) -> StoredId | None:
        """Return the stored record that matches a buffered message. None: there is none. Each record matches one message only.

        ``key``: recognition key of the message. ``receive_ns``: monotonic time of its arrival here.
        """
        places = self._places.get(key)
        if places is None:
            return None
        is_one_of_many = key in self._equal
        earliest_ns = receive_ns if is_one_of_many else receive_ns - self._credit_ns
        while places:
            shown_ns, stored = places.popleft()
            if shown_ns >= earliest_ns:
                self.ambiguous += is_one_of_many
                self._record_stored(stored, len(key) == 1)
                return stored
        return None

    def _record_stored(self, stored: StoredId, whole: bool) -> None:
        count, shown_ns = self._unmatched[stored.last_offset]
        self._unmatched[stored.last_offset] = 0 if whole else count - 1, shown_ns

    @property
    def latest_unmatched_ns(self) -> int:
        """Latest monotonic time at which the log got a record that matched no buffered message. -1: all records matched."""
        return max((shown_ns for count, shown_ns in self._unmatched.values() if count > 0), default=-1)


@dataclass(slots=True)
class StandbyCounters:
    """Counters of the messages that standby followers have buffered and replayed, for status and metrics."""

    appended: int = 0
    """Number of messages that the log did not have. They were stored as new messages."""
    recognised: int = 0
    """Number of messages that the log had."""
    answered: int = 0
    """Number of recognized messages whose publisher waited for an ack, or may have."""
    ambiguous: int = 0
    """Number of messages that equal other messages, so that only their number was compared."""
    passed_over: int = 0
    undecided: int = 0
    """Number of messages that were answered with NOT_LEADER. The former leader may have checked their condition, or
    settings changed.
    """
    lost: int = 0
    """Number of messages that were not buffered because there was no room."""

    def add(self, others: StandbyCounters) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(others, name))


@dataclass(slots=True)
class FailoverBacklog:
    """Buffered messages that a new leader takes over, in order of arrival.

    ``subscription``: subscription that received them. None: the leader uses another connection. ``fresh``: messages to store.
    ``known``: records of the log whose publishers get acks. ``undecided``: messages that must be rejected when possible.
    """

    subscription: StandbySubscription | None
    fresh: list[RawMessage] = field(default_factory=list)
    known: list[tuple[StoredId, Publishers]] = field(default_factory=list)
    undecided: list[RawMessage] = field(default_factory=list)
    fresh_left: int = 0
    """Number of ``fresh`` messages that were not processed yet. No quota applies to messages of the time of the failover."""


def connection_of(reply: bytes, value: bytes | None) -> bytes:
    """Return the inbox prefix of the reply subject, which identifies the connection of a publisher. b"": unknown."""
    return reply.rpartition(b".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyReplayRules:
    """Settings for the replay of a standby buffer. ``uncertainty_ns``: length of a lease, used if the metadata does not contain it."""

    uncertainty_ns: int
    credit_ns: int = _CREDIT_NS
    reordered_ns: int = _REORDERED_NS
    gap_ns: int = _REORDERED_NS
    slice_ns: int = _SLICE_NS
    step_messages: int = _STEP_MESSAGES
    origin: Callable[[bytes, bytes | None], bytes] = connection_of


class OffsetHistory:
    """History of an offset that grows, such as the log end, on a follower.

    The samples are (monotonic ns, offset), at most one per millisecond, for the last ``reach_ns``.
    """

    def __init__(self, now_ns: int, offset: int, reach_ns: int) -> None:
        self._samples = deque(((now_ns, offset),))
        self.reach_ns = reach_ns

    def note(self, now_ns: int, offset: int) -> None:
        samples = self._samples
        if len(samples) > 1 and now_ns - samples[-2][0] < _SAMPLE_NS:
            samples[-1] = now_ns, offset
            return
        samples.append((now_ns, offset))
        while len(samples) > 1 and samples[1][0] < now_ns - self.reach_ns:
            samples.popleft()

    def truncate(self, offset: int) -> None:
        """Lower the current value to ``offset``, because the log was truncated. The removed records are fetched again."""
        samples = self._samples
        while len(samples) > 1 and samples[-1][1] > offset:
            samples.pop()
        if samples[-1][1] > offset:
            samples[-1] = samples[-1][0], offset

    @property
    def first(self) -> int:
        return self._samples[0][1]

    @property
    def last(self) -> int:
        return self._samples[-1][1]

    @property
    def last_ns(self) -> int:
        return self._samples[-1][0]

    def at(self, at_ns: int) -> int:
        """Return the value at the monotonic time ``at_ns``. If that is before the history, return its oldest value."""
        value = self._samples[0][1]
        for seen_ns, offset in self._samples:
            if seen_ns > at_ns:
                break
            value = offset
        return value

    def above_ns(self, offset: int) -> int:
        """Return the monotonic time at which the value first exceeded ``offset``."""
        samples = self._samples
        low, high = 0, len(samples) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if samples[middle][1] <= offset else (low, middle)
        return samples[low][0]


@dataclass(slots=True, kw_only=True)
class _Step:
    """Decoded messages that arrived together, in a replay.

    ``keys``: recognition keys. None: the message cannot be stored. ``stored``: records of the log that match them. ``missed``:
    True for each message that the earlier leader missed.
    """

    receive_ns: int
    messages: Sequence[RawMessage]
    columns: MessageColumns
    keys: list[Key | None]
    stored: list[StoredId | None]
    missed: list[bool] = field(default_factory=list)

    @property
    def is_from_producer(self) -> bool:
        """True if the messages are from a producer, whose sequence numbers decide what is stored [A3]."""
        return self.columns.claim is not None or self.columns.producer_request is not None

    def has_condition(self, index: int) -> bool:
        """Return whether the message at ``index`` has a condition, such as an expected last sequence."""
        columns = self.columns
        return index in columns.expected or index in columns.of_others or index in columns.rejections_after_sequence

    def publishers(self, index: int) -> Publishers:
        return self.columns.publishers if self.columns.batch is not None else self.columns.publishers.only(index)


@dataclass(slots=True, kw_only=True)
class StandbyReplay:
    """One replay of a standby buffer on a new leader, in steps. It recognizes the messages that are in the log already.

    ``ends``: log ends (exclusive) over time. ``answered_through``: publishers of records up to this offset have their ack.
    """

    rules: StandbyReplayRules
    reader: MessageDecoder
    log: Log
    ids: RecentIds
    ends: OffsetHistory
    answered_through: int
    wall_ns: int
    refused_until_ns: int = -1
    """Monotonic time until which the earlier leader may have rejected messages because of older settings."""
    counters: StandbyCounters = field(default_factory=StandbyCounters)

    def run(self, blocks: list[Block], backlog: FailoverBacklog) -> Generator[None, None, None]:
        """Compare the messages in ``blocks`` with the log, and sort them into ``backlog``.

        Each step of the generator works on a limited number of messages or bytes of the log.
        """
        steps: list[_Step] = []
        for block in blocks:
            for start in range(0, len(block.messages), self.rules.step_messages):
                steps += self._decode_messages(block.messages[start : start + self.rules.step_messages], block.receive_ns)
                yield
        if not steps:
            return
        unmatched_ns = yield from self._match_with_log(steps)
        yield from self._mark_missed(steps, unmatched_ns)
        for step in steps:
            self._classify(step, backlog)
            yield

    def _decode_messages(self, messages: list[RawMessage], receive_ns: int) -> Iterator[_Step]:
        """Decode messages that arrived at ``receive_ns``, and yield them in steps.

        Whole batches and invalid messages are steps of their own, the messages between them are one step.
        """
        columns = self.reader.read(messages, self.wall_ns)
        alone = columns.whole_batches or sorted(columns.rejections.keys() | columns.rejections_after_sequence.keys())
        if len(messages) > 1 and alone:
            for piece in split_at(messages, alone):
                yield from self._decode_messages(piece, receive_ns)
            return
        keys: list[Key | None]
        if columns.rejections or columns.producer_request is not None or columns.claim is not None:
            keys = [None]
        elif columns.batch is not None:
            keys = [(tuple(column_keys(columns.batch.columns, repeat(columns.subjects[0]))),)]
        else:
            keys = [*record_keys(columns.values, columns.keys, columns.headers, columns.subjects)]
        yield _Step(receive_ns=receive_ns, messages=messages, columns=columns, keys=keys, stored=[None] * len(messages))

    def _match_with_log(self, steps: list[_Step]) -> Generator[None, None, int]:
        """Search each message among the newest records of the log. Store the matches in ``steps``.

        Return the latest monotonic time at which the log got a record that matches no message. -1: all records match.
        """
        log = self.log
        whole = any(step.columns.batch is not None for step in steps)
        newest = NewestRecords(self.rules.credit_ns, self.ends, whole_batches=whole)
        first = min(self.ends.at(steps[0].receive_ns - self.rules.credit_ns), log.log_end_offset)
        offset = max(first, log.log_start_offset)
        while offset < log.log_end_offset:
            result = log.read(offset, _STEP_BYTES, end_offset=log.log_end_offset)
            for chunk in result.chunks:
                for batch in split_batches(chunk, verify=False):
                    newest.add(batch)
            if result.next_offset <= offset:
                break
            offset = result.next_offset
            yield
        for step in steps:
            step.stored = [None if key is None else newest.pop_match(key, step.receive_ns) for key in step.keys]
            yield
        self.counters.ambiguous += newest.ambiguous
        # a record that retention or compaction has deleted cannot be recognized
        deleted_end = max(log.log_start_offset, log.horizon.end_offset)
        deleted_ns = self.ends.above_ns(deleted_end - 1) if first < deleted_end else -1
        return max(newest.latest_unmatched_ns, deleted_ns)

    def _mark_missed(self, steps: list[_Step], unmatched_ns: int) -> Generator[None, None, None]:
        """Mark the messages in ``steps`` that the earlier leader missed, from the last one to the first one.

        ``unmatched_ns``: result of ``_match_with_log``.
        """
        rules, later, last_ns = self.rules, set[bytes](), -1
        for step in reversed(steps):
            missed, receive_ns, values = [], step.receive_ns, step.columns.values
            for index in range(len(step.messages) - 1, -1, -1):
                origin = rules.origin(step.columns.publishers.replies[index], values[index])
                if step.stored[index] is not None:
                    later.add(origin)
                    last_ns = max(last_ns, receive_ns)
                    missed.append(False)
                else:
                    long_ago = last_ns - receive_ns >= rules.reordered_ns or unmatched_ns - receive_ns > rules.gap_ns
                    missed.append(long_ago or (bool(origin) and origin in later))
            step.missed = missed[::-1]
            yield

    def _classify(self, step: _Step, backlog: FailoverBacklog) -> None:
        counters, columns = self.counters, step.columns
        for index, stored in enumerate(step.stored):
            if stored is not None:
                counters.recognised += 1
                if stored.last_offset > self.answered_through and columns.publishers.replies[index]:
                    counters.answered += 1
                    backlog.known.append((stored, step.publishers(index)))
            elif step.is_from_producer or self._is_stored_by_id(step, index):
                # if it repeats a stored message, its publisher gets the ack of that one
                backlog.fresh.append(step.messages[index])
            elif step.missed[index]:
                counters.passed_over += 1
            elif step.has_condition(index) or (step.receive_ns < self.refused_until_ns and columns.publishers.replies[index]):
                counters.undecided += 1
                backlog.undecided.append(step.messages[index])
            else:
                counters.appended += 1
                backlog.fresh.append(step.messages[index])

    def _is_stored_by_id(self, step: _Step, index: int) -> bool:
        columns = step.columns
        message_id = columns.ids.get(index)
        if message_id is None or columns.batch is not None or self.reader.is_command(columns, index):
            return False  # a whole batch or a command is stored each time that it is sent
        return self.ids.find(message_id, self.wall_ns) is not None


_NO_COUNTS = StandbyCounters()
STANDBY_OVERFLOW = "standby_overflow"
"""Reason in the counter of publishes that a standby follower did not buffer."""


class Standby:
    """Buffers the publishes of one partition on a standby follower, and replays them on a new leader.

    ``reader``: decoder of the standby, whose counters are separate from those of the leader. ``wall_ns``: returns the wall clock
    of the node.
    """

    __slots__ = (
        "_high_watermarks", "_leader", "_log_ends", "_log_state", "_partition", "_received", "_replay_count", "_settings",
        "_settings_changed_ns", "_shell", "_subscription", "_uncertainty_ns", "_wall_ns", "buffer", "counters", "log",
        "now_ns", "reader", "replica", "rules",
    )  # fmt: skip

    def __init__(
        self,
        partition: PublishPartition,
        shell: StandbyShell,
        reader: MessageDecoder,
        buffer: StandbyBuffer,
        rules: StandbyReplayRules,
        wall_ns: Callable[[], int],
    ) -> None:
        self._partition, self._shell, self._wall_ns = partition, shell, wall_ns
        self.replica, self.log, self.now_ns = partition.replica, partition.log, partition.now_ns
        self._log_state = partition.log_state
        self.reader, self.buffer, self.rules = reader, buffer, rules
        self.counters = StandbyCounters()
        self._subscription: StandbySubscription | None = None
        self._leader = ("", 0, 0)
        """Leader whose publishes this replica buffers: (node, LeaderEpoch, first known incarnation of the node)."""
        self._settings: tuple[bool, int, bool, int] | None = None
        """Settings of the stream that make a leader reject publishes, and the number of pauses of the partition."""
        self._settings_changed_ns: int | None = None
        """Time when this replica learned of a change of settings. The leader may learn of it up to a lease later."""
        self._uncertainty_ns = rules.uncertainty_ns
        """The longest lease that any node may have, at the last ``review``."""
        self._replay_count = 0
        """Number of ``replay`` calls. It tells a wait of an earlier call from the current one."""
        self._received: list[RawMessage] = []
        self._log_ends: OffsetHistory
        """Log ends (exclusive) since the standby began to buffer. It is not set before."""
        self._high_watermarks: OffsetHistory
        """High watermarks (inclusive) since the standby began to buffer, until the replica leads. It is not set before."""

    def _start_histories(self) -> None:
        self._log_ends = OffsetHistory(self.now_ns(), self.log.log_end_offset, self._reach_ns)
        self._high_watermarks = OffsetHistory(self.now_ns(), self.log.high_watermark, self._reach_ns)

    @property
    def _reach_ns(self) -> int:
        return self.buffer.age_ns + self.rules.credit_ns + self._uncertainty_ns

    def review(self) -> None:
        """Start or stop buffering, as the role of the replica and the settings require. A new leader keeps its buffer until
        ``replay``.
        """
        replica = self.replica
        uncertainty_ns = replica.longest_lease_ns or self.rules.uncertainty_ns
        if uncertainty_ns != self._uncertainty_ns:
            self._uncertainty_ns = uncertainty_ns
            if self._subscription is not None:
                self._log_ends.reach_ns = self._high_watermarks.reach_ns = self._reach_ns
        if not replica.is_standby:
            self.stop()
            return
        stream = self.log.config
        settings = stream.read_only, stream.max_message_bytes, stream.optimistic_concurrency, replica.state.pauses
        if settings != self._settings:
            if self._settings is not None:
                self._settings_changed_ns = self.now_ns()
            self._settings = settings
            self._received = []
            self.buffer.clear()  # its leader may have rejected any of these messages because of the earlier settings [A2]
        state = replica.state
        leader = state.leader, state.leader_epoch
        if state.status is PartitionStatus.ONLINE and state.leader != replica.node_id and self._leader[:2] != leader:
            self._leader = *leader, replica.live_incarnation(state.leader)
        if self._subscription is None and replica.role is not RoleName.LEADER:
            self._start_histories()
            self._subscription = self._shell.subscribe(self.reader.subject, self._message_arrived, self._record_dropped)

    def stop(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
            self._forget()

    def _forget(self) -> None:
        self._subscription = None
        self._received = []
        self.buffer.clear()

    @property
    def buffer_start(self) -> int:
        """Log end (exclusive) at the time when this follower began to buffer, or at the oldest known time."""
        return self._log_ends.first

    # ---- as a follower -------------------------------------------------------------------------------------------------------
    def _message_arrived(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        if not self._received and self._subscription is not None:
            self._subscription.call_after_read(self._buffer_received)
        self._received.append((subject, reply, payload, headers))

    def _buffer_received(self) -> None:
        messages, self._received = self._received, []
        self._partition.mark_changed()
        if messages and self._subscription is not None and not self.buffer.add(messages, self.now_ns(), self._log_ends.last_ns):
            self._record_dropped(len(messages))

    def _record_dropped(self, count: int) -> None:
        self.counters.lost += count
        self._partition.publishes_dropped(STANDBY_OVERFLOW, count)

    @property
    def has_counted(self) -> bool:
        return self.buffer.displaced_count > 0 or self.counters != _NO_COUNTS

    def report(self) -> dict[str, int]:
        return {
            "held_bytes": self.buffer.size_bytes,
            "displaced_count": self.buffer.displaced_count,
            **asdict(self.counters),
        }

    def log_grew(self) -> None:
        """Record the current log end and time. Call it when the log has grown."""
        if self._subscription is not None:
            self._log_ends.note(self.now_ns(), self.log.log_end_offset)

    def committed(self, high_watermark: int) -> None:
        """Record that all records up to ``high_watermark`` (inclusive) are committed.

        The leader may not have sent the acks of these records yet.
        """
        if self._subscription is not None and self.replica.role is not RoleName.LEADER:
            self._high_watermarks.note(self.now_ns(), high_watermark)

    def log_was_truncated(self) -> None:
        if self._subscription is not None:
            self._log_ends.truncate(self.log.log_end_offset)

    # ---- as a new leader --------------------------------------------------------------------------------------------------------
    def replay(self, then: Callable[[FailoverBacklog | None], None]) -> None:
        """Replay the buffer on a new leader. Then call ``then`` with the messages in order. None: nothing was buffered.

        The replay starts when all earlier publishes have arrived, because a later one would look new. After ``cancel``,
        ``then`` is not called.
        """
        self._replay_count += 1
        subscription, replay_number = self._subscription, self._replay_count
        if subscription is None:
            then(None)
            return
        subscription.when_settled(lambda: self._run_slice(subscription, replay_number, self._replay_steps(subscription), then))

    def _run_slice(
        self,
        subscription: StandbySubscription,
        replay_number: int,
        steps: Generator[None, None, FailoverBacklog],
        then: Callable[[FailoverBacklog | None], None],
    ) -> None:
        """Run the replay ``steps`` for a limited time. When it ends, call ``then`` with its result.

        ``replay_number``: number of the ``replay`` call. A later call or ``cancel`` ends this replay.
        """
        if replay_number != self._replay_count:
            return
        if self._subscription is not subscription:
            then(None)
            return
        end_ns = self.now_ns() + self.rules.slice_ns
        try:
            next(steps)
            while self.now_ns() < end_ns:
                next(steps)
        except StopIteration as done:
            then(done.value)
        except LiftError as error:
            self._partition.standby_unreadable(error)
            self.stop()
            then(None)
        else:
            subscription.call_soon(lambda: self._run_slice(subscription, replay_number, steps, then))

    def cancel(self) -> None:
        """Cancel ``replay``, because the node has lost the leadership. The messages stay in the buffer."""
        self._replay_count += 1
        self.buffer.put_back()

    def _replay_steps(self, subscription: StandbySubscription) -> Generator[None, None, FailoverBacklog]:
        self._buffer_received()
        backlog, replay = FailoverBacklog(subscription), self._create_replay()
        yield from replay.run(self.buffer.take_all(self.now_ns()), backlog)
        self._buffer_received()
        if self.buffer.in_replay is None:
            backlog = FailoverBacklog(subscription)  # the buffer was cleared in the meantime
        else:
            self.counters.add(replay.counters)
            self._partition.mark_changed()
        for late in self.buffer.blocks:
            backlog.fresh += late.messages
        self._forget()
        return backlog

    def _create_replay(self) -> StandbyReplay:
        leader, _, incarnation = self._leader
        lives = incarnation != 0 and self.replica.live_incarnation(leader) == incarnation
        high_watermarks = self._high_watermarks
        return StandbyReplay(
            rules=self.rules,
            reader=self.reader,
            log=self.log,
            ids=self._log_state.ids,
            ends=self._log_ends,
            answered_through=high_watermarks.last
            if lives
            else high_watermarks.at(high_watermarks.last_ns - self._uncertainty_ns),
            wall_ns=self._wall_ns(),
            refused_until_ns=-1 if self._settings_changed_ns is None else self._settings_changed_ns + self._uncertainty_ns,
        )
