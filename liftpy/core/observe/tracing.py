"""Traces batches through a leader: appended, flushed, fetched by followers, committed, acked. Pure.

A batch is traced if the sender of one of its messages records a trace, and the node's budget allows it. Its spans are
exported together when the last step is known. That is at once when every replica has the batch, ``LINGER_NS`` after the
acks if a follower lags, and at most ``MOST_NS`` after the append. At most ``MOST_OPEN`` batches of a node are traced at a
time. The log never waits for a trace.

To find the traced messages of a batch, one search looks for the header name in all headers. It usually finds nothing, and
then no record is read. Otherwise numpy finds the values, and Python reads the first few that are sampled.

A command with steps, such as a backup or a restore, is one span with a child span for each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from liftpy.config import AckPolicy, Codec
from liftpy.core.observe.trace_context import (
    SAMPLED,
    TRACEPARENT,
    TRACEPARENT_BYTES,
    Attributes,
    Span,
    SpanBudget,
    SpanTree,
    TraceContext,
    parse_traceparent,
)
from liftpy.core.wire.batch import parse_batch
from liftpy.core.wire.batch_columns import BytesColumn, Columns, HeadersColumn
from liftpy.errors import CorruptionError

MOST_LINKS = 32
"""Maximum number of trace contexts of a batch. The leader ignores the contexts of further messages."""
MOST_READ_LINKS = 64
"""Maximum number of trace contexts of a batch that a reader gets."""
_NAME = TRACEPARENT.encode()
_LAST_FLAG = 54
"""Index of the lower hexadecimal digit of the flags in a ``traceparent``."""
_NINE = ord("9")
_PARSED_A_LINK = 4
"""Maximum number of values that are parsed to find one context. A value that looks sampled may be invalid."""
MOST_OPEN = 64
LINGER_NS = 2_000_000_000
MOST_NS = 30_000_000_000
ENDED = "the leadership ended"
SLOW = "not committed in time"
SWITCHED = "traces were switched"
_STEPS = 4
"""Spans of every batch: append, flush, commit, ack."""
MOST_STEPS = 64
"""Maximum number of steps of a command. Further steps are part of the last one."""


def traced_in(batch: bytes) -> tuple[TraceContext, ...]:
    """Return the trace contexts of messages in ``batch`` whose senders record the trace, at most ``MOST_LINKS``.

    They are in the order of the messages, and each context is listed once.
    """
    parsed = parse_batch(batch, verify=False)  # this process has just sealed the batch
    if Columns.HEADERS not in Columns(parsed.header.column_bits):
        return ()
    try:
        headers = parsed.columns.headers
    except CorruptionError:  # the publisher compressed the batch, and only readers decompress it
        return ()
    return () if headers is None else sampled_in(headers)


def may_have_context(batch: bytes) -> bool:
    """Return whether a message of ``batch`` may have a trace context, by one search in its bytes.

    For a compressed batch, return whether it has headers.
    """
    header = parse_batch(batch, verify=False).header
    return Columns.HEADERS in Columns(header.column_bits) and (header.codec is not Codec.NONE or batch.find(_NAME) >= 0)


def has_trace_context(headers: HeadersColumn) -> bool:
    """Return whether a header of these records may be a trace context. The function searches once in all header names."""
    return bytes(headers.names.data).find(_NAME) >= 0


def sampled_in(
    headers: HeadersColumn, first: int = 0, end: int | None = None, most: int = MOST_LINKS
) -> tuple[TraceContext, ...]:
    """Return at most ``most`` trace contexts in the headers of some records, if the sender records the trace.

    ``first`` (inclusive) and ``end`` (exclusive, None: all) select the records.
    """
    names = bytes(headers.names.data)
    if names.find(_NAME) < 0:
        return ()
    begin = int(headers.ends[first - 1]) if first else 0
    behind = int(headers.ends[-1 if end is None else end - 1])
    contexts: dict[TraceContext, None] = {}
    for value in _sampled_values(headers, names, begin, behind, most * _PARSED_A_LINK):
        context = parse_traceparent(value)
        if context is not None and context.sampled:
            contexts[context] = None
            if len(contexts) == most:
                break
    return tuple(contexts)


def _sampled_values(headers: HeadersColumn, names: bytes, begin: int, end: int, most: int) -> list[bytes]:
    """Return the values of at most ``most`` ``traceparent`` headers whose flag says that the sender records the trace.

    ``begin`` (inclusive) and ``end`` (exclusive) select the headers. ``names``: bytes of all header names.
    """
    name_starts, name_sizes = _places(headers.names)
    value_starts, value_sizes = _places(headers.values)
    fits = (name_sizes[begin:end] == len(_NAME)) & (value_sizes[begin:end] >= TRACEPARENT_BYTES)
    pairs = np.flatnonzero(fits) + begin
    letters, values = np.frombuffer(names, dtype=np.uint8), np.frombuffer(headers.values.data, dtype=np.uint8)
    written = letters[name_starts[pairs, None] + np.arange(len(_NAME))]
    pairs = pairs[(written == np.frombuffer(_NAME, dtype=np.uint8)).all(axis=1)]
    digit = values[value_starts[pairs] + _LAST_FLAG]
    bit = (digit ^ (digit > _NINE)) & SAMPLED  # in ASCII '0' is even, and 'a' (ten) is odd
    pairs = pairs[bit == SAMPLED][:most]
    data, starts, sizes = bytes(headers.values.data), value_starts[pairs].tolist(), value_sizes[pairs].tolist()
    return [data[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _places(
    column: BytesColumn,
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    ends = column.ends.astype(np.int64)
    starts = np.concatenate(([0], ends[:-1])) if len(ends) else ends
    return starts, ends - starts


class NodeTraces:
    """Trace state that all partitions of a node share.

    ``now_ns``: function that returns monotonic ns. ``wall_ns``: function that returns ns since 1970. ``put``: function that
    gets the finished spans.
    """

    def __init__(
        self,
        node_id: str,
        put: Callable[[SpanTree], None],
        now_ns: Callable[[], int],
        wall_ns: Callable[[], int],
        budget: SpanBudget | None = None,
    ) -> None:
        self.node_id = node_id
        self.put = put
        self.now_ns = now_ns
        self.wall_ns = wall_ns
        self.budget = budget or SpanBudget()
        self.open: dict[PartitionTraces, None] = {}
        """Partitions with traced batches whose last step is not known yet."""
        self.open_count = 0
        """Number of traced batches that are not complete."""

    def export_due(self) -> None:
        """Export the traces of all partitions that waited long enough. Call it regularly while ``open`` is not empty."""
        now_ns = self.now_ns()
        for partition in list(self.open):
            partition.export_due(now_ns)

    def whole(self, name: str, began_ns: int, attributes: Attributes, error: str = "") -> None:
        """Export one span without children, which began at ``began_ns`` (monotonic) and ends now, if the budget allows it."""
        now_ns = self.now_ns()
        if self.budget.takes(1, now_ns):
            end_ns = self.wall_ns()
            all_attributes: Attributes = {"messaging.system": "nats", "liftpy.node": self.node_id, **attributes}
            self.put(SpanTree(Span(name, end_ns - max(0, now_ns - began_ns), end_ns, all_attributes, error)))


@dataclass(slots=True, kw_only=True)
class _OpenBatch:
    """A traced batch that is not exported yet, with the times of its steps in ns (monotonic). 0: the step is not done."""

    last_offset: int
    leader_epoch: int
    contexts: tuple[TraceContext, ...]
    attributes: Attributes
    arrived_wall_ns: int
    appended_ns: int
    appended_wall_ns: int
    awaited: bool
    """True if a publisher waits for an ack."""
    missing: set[str]
    """Followers that have not flushed the batch yet, as far as this leader knows."""
    flushed_ns: int = 0
    replicated_ns: dict[str, int] = field(default_factory=dict)
    committed_ns: int = 0
    acked_ns: int = 0
    policy: str = ""

    @property
    def decided_ns(self) -> int:
        """Monotonic time in ns since which the trace waits only for lagging followers. 0: it also waits for another step."""
        if not self.flushed_ns or not self.committed_ns or (self.awaited and not self.acked_ns):
            return 0
        return max(self.flushed_ns, self.committed_ns, self.acked_ns)


class PartitionTraces:
    """Traces of one partition that this node leads or may lead."""

    def __init__(self, node: NodeTraces, stream: str, partition: int) -> None:
        self._node = node
        self._stream = stream
        self._partition = partition
        self._open: list[_OpenBatch] = []
        """Traced batches whose last step is not known, in the order of their offsets."""
        self._elected_ns = 0
        """Time when this replica became a candidate, in nanoseconds. 0: it is not a candidate."""

    @property
    def follows(self) -> bool:
        return bool(self._open)

    @property
    def _name(self) -> str:
        return f"{self._stream}/{self._partition}"

    def _attributes(self, leader_epoch: int) -> Attributes:
        return {
            "messaging.destination.name": self._stream,
            "messaging.destination.partition.id": str(self._partition),
            "liftpy.leader_epoch": leader_epoch,
        }

    def appended(
        self,
        batch: bytes,
        base_offset: int,
        record_count: int,
        leader_epoch: int,
        *,
        arrived_wall_ns: int,
        flushed: bool,
        awaited: bool,
        followers: frozenset[str],
    ) -> None:
        """Start to trace a batch that was appended, if the sender of one of its messages records a trace.

        Args:
            batch: Bytes of the batch.
            base_offset: Offset of its first record.
            record_count: Number of its records.
            leader_epoch: LeaderEpoch of this leader.
            arrived_wall_ns: Time when its messages arrived, in ns since 1970.
            flushed: True if the batch is also on disk.
            awaited: True if a publisher waits for its ack.
            followers: Followers that must flush it.
        """
        node = self._node
        now_ns, spans = node.now_ns(), _STEPS - (not awaited) + len(followers)
        if node.open_count >= MOST_OPEN or not node.budget.has(spans, now_ns):
            node.budget.dropped += spans if may_have_context(batch) else 0
            return
        contexts = traced_in(batch)
        if not contexts:
            return
        node.budget.takes(spans, now_ns)
        self._open.append(
            _OpenBatch(
                last_offset=base_offset + record_count - 1,
                leader_epoch=leader_epoch,
                contexts=contexts,
                attributes={
                    "messaging.system": "nats",
                    "messaging.operation.name": "append",
                    **self._attributes(leader_epoch),
                    "messaging.batch.message_count": record_count,
                    "liftpy.offset": base_offset,
                    "liftpy.node": node.node_id,
                },
                arrived_wall_ns=arrived_wall_ns,
                appended_ns=now_ns,
                appended_wall_ns=node.wall_ns(),
                awaited=awaited,
                missing=set(followers),
                flushed_ns=now_ns if flushed else 0,
            )
        )
        node.open_count += 1
        node.open[self] = None

    def _through(self, offset: int) -> Iterator[_OpenBatch]:
        """Return the traced batches that end at ``offset`` (inclusive) or before."""
        return takewhile(lambda one: one.last_offset <= offset, self._open)

    def flushed(self, end_offset: int) -> None:
        now_ns = self._node.now_ns()
        for one in self._through(end_offset - 1):
            one.flushed_ns = one.flushed_ns or now_ns
        self._export_complete(now_ns)

    def fetched(self, replica: str, offset: int, leader_epoch: int) -> None:
        """Record that the follower ``replica`` has flushed the traced batches up to ``offset`` (inclusive)."""
        now_ns = self._node.now_ns()
        for one in self._through(offset):
            if replica in one.missing and one.leader_epoch == leader_epoch:
                one.missing.discard(replica)
                one.replicated_ns[replica] = now_ns
        self._export_complete(now_ns)

    def committed(self, high_watermark: int) -> None:
        now_ns = self._node.now_ns()
        for one in self._through(high_watermark):
            one.committed_ns = one.committed_ns or now_ns
        self._export_complete(now_ns)

    def acked(self, policy: AckPolicy, through_offset: int) -> None:
        """Record that publishers with the ack policy ``policy`` have their acks up to ``through_offset`` (inclusive).

        The last acks of a batch end its trace.
        """
        now_ns = self._node.now_ns()
        for one in self._through(through_offset):
            if one.awaited and (policy is AckPolicy.ALL or not one.acked_ns):
                one.acked_ns, one.policy = now_ns, policy.value
        self._export_complete(now_ns)

    def end_all(self, why: str = ENDED) -> None:
        """End all traces of this partition, and export them with ``why`` as the reason. By default, the leadership has ended."""
        self._close_batches(self._open, why)

    def export_due(self, now_ns: int) -> None:
        self._close_batches([one for one in self._open if now_ns - one.appended_ns >= MOST_NS], SLOW)
        self._export_complete(now_ns)

    def role_is(self, role: str, is_ready: bool, leader_epoch: int) -> None:
        """Tell the traces the role of this replica. The role CANDIDATE starts a span for the election.

        ``is_ready``: True if the replica leads and accepts publishes. ``leader_epoch``: its LeaderEpoch.
        """
        now_ns = self._node.now_ns()
        if role == "CANDIDATE":
            self._elected_ns = self._elected_ns or now_ns
        elif self._elected_ns and (is_ready or role != "LEADER"):
            error = "" if is_ready else f"it became {role} instead"
            self._node.whole(f"election {self._name}", self._elected_ns, self._attributes(leader_epoch), error)
            self._elected_ns = 0

    # ---- finished spans ---------------------------------------------------------------------------------------------------
    def _export_complete(self, now_ns: int) -> None:
        done = [one for one in self._open if (since := one.decided_ns) and (not one.missing or now_ns - since >= LINGER_NS)]
        if done:
            self._close_batches(done)

    def _close_batches(self, some: list[_OpenBatch], error: str = "") -> None:
        node = self._node
        going = {id(one) for one in some}
        for one in some:
            node.put(self._tree(one, "" if one.committed_ns else error))
        self._open = [one for one in self._open if id(one) not in going]
        node.open_count -= len(going)
        if not self._open:
            node.open.pop(self, None)

    def _tree(self, one: _OpenBatch, error: str) -> SpanTree:
        def wall_ns(at_ns: int) -> int:
            return one.appended_wall_ns + at_ns - one.appended_ns

        appended_ns, own = one.appended_wall_ns, self._attributes(one.leader_epoch)
        children = [Span("flush", appended_ns, wall_ns(one.flushed_ns), own)] if one.flushed_ns else []
        for replica, at_ns in one.replicated_ns.items():
            children.append(Span(f"replicate {replica}", appended_ns, wall_ns(at_ns), {**own, "liftpy.replica": replica}))
        if one.committed_ns:
            children.append(Span("commit", appended_ns, wall_ns(one.committed_ns), own))
        if one.acked_ns:
            due_ns = min(one.flushed_ns if one.policy == AckPolicy.LEADER.value else one.committed_ns, one.acked_ns)
            children.append(
                Span("ack", wall_ns(due_ns or one.acked_ns), wall_ns(one.acked_ns), {**own, "liftpy.ack_policy": one.policy})
            )
        end_ns = max(child.end_ns for child in children) if children else self._node.wall_ns()
        start_ns = min(one.arrived_wall_ns, appended_ns)
        root = Span(f"append {self._name}", start_ns, max(end_ns, appended_ns), one.attributes, error)
        return SpanTree(root, tuple(children), one.contexts[0], one.contexts)


class StepSpans:
    """Spans of a command with steps, such as a backup: one for the command, and one for each step.

    ``name``: name of the command's span. ``wall_ns``: function that returns ns since 1970.
    """

    def __init__(self, name: str, wall_ns: Callable[[], int]) -> None:
        self.name = name
        """Name of the span. It may change until the end."""
        self.attributes: Attributes = {}
        self._wall_ns = wall_ns
        self._began_ns = wall_ns()
        self._steps: list[tuple[str, int]] = []
        """(name, start time) of each step."""

    def step(self, name: str) -> None:
        """End the previous step and begin the step ``name``."""
        if len(self._steps) < MOST_STEPS:
            self._steps.append((name, self._wall_ns()))

    def end_all(self, error: str = "") -> SpanTree:
        """Return the span of the command with one child per step.

        ``error``: reason of a failure, '' for success. The attribute ``liftpy.step`` names the step that failed.
        """
        end_ns = max(self._wall_ns(), self._began_ns)
        ends = [*(at for _, at in self._steps[1:]), end_ns]
        steps = tuple(Span(name, at, max(at, end)) for (name, at), end in zip(self._steps, ends, strict=False))
        failed: Attributes = {"liftpy.step": self._steps[-1][0]} if error and self._steps else {}
        return SpanTree(Span(self.name, self._began_ns, end_ns, self.attributes | failed, error), steps)
