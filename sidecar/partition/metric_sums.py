"""Sums the metrics of a node's partitions incrementally, so that a scrape reads only partitions that changed.

A partition is added to ``changed_partitions`` when something changes (``PartitionWorker.mark_changed``). A scrape reads these
partitions again and adds the difference to the sums. Lags are stored as start times, so they need no update. The
counters of partitions that have left the node stay in the sums, so no sum ever falls. A stream has its own label if
``metrics_streams`` names it, up to ``MAX_LABELS`` streams.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from operator import add, attrgetter, sub
from typing import Any

from liftpy.core.base.partition import PartitionState, Pause
from liftpy.core.replication.phases import FollowerPhase, RoleName

OTHERS = "(other)"
"""Label for streams beyond the limit of labels. No stream can have this name."""
MAX_LABELS = 50
BY_STREAM = ("ingest_records", "ingest_bytes", "read_records", "read_bytes")
_COUNTED = {
    "ingest_records": ("ingest.counters", "records"),
    "ingest_bytes": ("ingest.counters", "size_bytes"),
    "read_records": ("reads", "record_count"),
    "read_bytes": ("reads", "size_bytes"),
    "duplicates": ("ingest.counters", "duplicates"),
    "message_ids_forgotten": ("log_state.ids", "evicted_count"),
    "producers_forgotten": ("log_state.producers", "evicted_count"),
    "replayed_bytes": ("log_state", "replayed_bytes"),
    "derived_states_written": ("states.writer", "written"),
    "derived_states_failed": ("states.writer", "failed"),
    "poison_envelopes": ("ingest.reader", "poison_envelopes"),
    "refused_replies": ("ingest.reader", "refused_replies"),
    "truncated_records": ("log", "truncated_records"),
}
"""Metric name -> (object of a partition, attribute) of its counter."""
SUMS = tuple(_COUNTED)
_counts = attrgetter(*(f"{leaf}.{name}" for leaf, name in _COUNTED.values()))
"""Function that returns the counters of a partition in the order of SUMS."""
TRAFFIC = (*BY_STREAM, "acks_waiting", "log_size_bytes", "readers_waiting", "uncommitted_records", "partitions_quiet")
"""Names of values that change with traffic."""
RARE = (
    *(name for name in SUMS if name not in BY_STREAM), "fragment_reassembly_bytes", "partitions_failed",
    "partitions_with_full_subject_index",
    "partitions_with_quarantined_files",
)  # fmt: skip
FROM_IMAGE = (
    "led", "partitions_under_replicated", "partitions_under_min_isr", "led_short", "partitions_at_min_isr", "partitions_paused",
    "partitions_moving",
)  # fmt: skip
"""Names of values that follow from the image, for partitions that this node leads, besides ROLES.

``led_short``: partitions that are under-replicated and under min_isr.
"""
ROLES = tuple(role.value for role in RoleName)
_LEADER, _FOLLOWER, _QUIET = RoleName.LEADER, RoleName.FOLLOWER, FollowerPhase.QUIET  # globals: access to enum members is slow
READS_PER_STEP = 32
"""Number of partitions that are read between two checks of the clock."""
ROWS_PER_STEP = 1024
"""Number of partitions that are taken out of ``changed_partitions`` at once."""
_leaves = attrgetter(
    "ingest.counters", "reads", "acks", "log", "replica", "log_state", "log_state.ids", "log_state.producers", "log_state.subjects",
    "states.writer", "ingest.reader", "fetches", "standby",
)  # fmt: skip
_NO_TRAFFIC, _NO_RARE, _NO_FROM_IMAGE = (0,) * len(TRAFFIC), (0,) * len(RARE), (0,) * (len(FROM_IMAGE) + len(ROLES))
Numbers = Sequence[int]
_PublishCounts = tuple[dict[str, int], dict[str, int], dict[str, int], dict[str, int]]


class StreamLabels:
    """Labels of streams in the metrics. ``patterns``: names or patterns such as ``shop-*`` of streams with a label of their own.

    A stream keeps its first label.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.patterns = tuple(patterns)
        self._given: dict[str, str] = {}

    def label_of(self, stream: str) -> str:
        """Return the label of ``stream``: its name, or OTHERS if it has no label of its own. '': no stream has one."""
        if not self.patterns:
            return ""
        label = self._given.get(stream)
        if label is None:
            wanted = len(self._given) < MAX_LABELS and any(fnmatchcase(stream, pattern) for pattern in self.patterns)
            if not wanted:
                return OTHERS
            label = self._given[stream] = stream
        return label


class Counts:
    """Sums of the counters of partitions, for each label of streams."""

    def __init__(self) -> None:
        self.by_stream: dict[str, list[int]] = {}
        """Label -> sums, in the order of SUMS."""
        self.refused: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.throttled: Counter[str] = Counter()
        self.standby: Counter[str] = Counter()

    def add(self, label: str, worker: Any) -> None:
        self.add_sums(label, _counts(worker))
        ingest = worker.ingest.counters
        self.refused.update(ingest.refused)
        self.dropped.update(ingest.dropped)
        self.throttled.update(ingest.throttled)
        if worker.standby.has_counted:
            counts = worker.standby.report()
            del counts["held_bytes"]
            self.standby.update(counts)

    def add_sums(self, label: str, counts: Iterable[int]) -> None:
        """Add ``counts`` to the sums of ``label``. They are in the order of SUMS."""
        sums = self.by_stream.get(label)
        if sums is None:
            sums = self.by_stream[label] = [0] * len(SUMS)
        sums[:] = map(add, sums, counts)

    def copy(self) -> Counts:
        copy = Counts()
        copy.by_stream = {label: list(sums) for label, sums in self.by_stream.items()}
        copy.refused, copy.dropped, copy.standby = self.refused.copy(), self.dropped.copy(), self.standby.copy()
        copy.throttled = self.throttled.copy()
        return copy

    def total(self, name: str) -> int:
        index = SUMS.index(name)
        return sum(sums[index] for sums in self.by_stream.values())


class LabelSums:
    """Sums of the metrics of all partitions with one label."""

    __slots__ = ("before", "count", "from_image", "now", "rare", "records", "since_ns", "traffic")

    def __init__(self) -> None:
        self.count = 0
        self.traffic: Numbers = _NO_TRAFFIC
        self.rare: Numbers = _NO_RARE
        self.from_image: Numbers = _NO_FROM_IMAGE
        """Sums in the order of FROM_IMAGE, then of ROLES."""
        self.records: dict[Any, int] = {}
        """Partition -> number of records that its slowest follower lacks, if any."""
        self.since_ns: dict[Any, int] = {}
        """Partition -> monotonic time since which its slowest follower lags."""
        self.now: list[Numbers] = []
        self.before: list[Numbers] = []
        """Pending values of partitions that were read. ``settle`` adds them up."""

    def add(self, row: _ReadValues, op: Callable[[int, int], int]) -> None:
        """Add the values of a partition to the sums, or remove them. ``op``: ``operator.add`` or ``operator.sub``."""
        self.count = op(self.count, 1)
        self.traffic = list(map(op, self.traffic, row.traffic))
        self.rare = list(map(op, self.rare, row.rare))
        self.from_image = list(map(op, self.from_image, row.from_image))

    def settle(self) -> None:
        """Add the pending changes of partitions to the sums, all at once. This costs a quarter of the time of single additions."""
        differences = map(sub, map(sum, zip(*self.now, strict=True)), map(sum, zip(*self.before, strict=True)))
        self.traffic = list(map(add, self.traffic, differences))
        self.now.clear()
        self.before.clear()

    def lag(self, now_ns: int) -> tuple[int, int]:
        """Return the largest lag of these partitions at ``now_ns`` (monotonic), as (records, nanoseconds)."""
        if not self.records:
            return 0, 0
        return max(self.records.values()), max(0, now_ns - min(self.since_ns.values()))


class _ReadValues:
    """Values of one partition when its metrics were last read."""

    __slots__ = ("from_image", "label", "leaves", "publish_counts", "rare", "source", "traffic")

    def __init__(self, label: str, leaves: tuple[Any, ...]) -> None:
        self.label, self.leaves = label, leaves
        self.traffic, self.rare, self.from_image = _NO_TRAFFIC, _NO_RARE, _NO_FROM_IMAGE
        self.source: tuple[Any, ...] = (None, None, None)
        """Role, state and settings from which ``from_image`` was computed."""
        self.publish_counts: _PublishCounts | None = None
        """Numbers of rejected, dropped, throttled and buffered publishes. None: all are 0."""


class MetricSums:
    """Sums of the metrics of a node's partitions, updated incrementally.

    ``changed_partitions``: partitions that have changed since they were last read. It may contain partitions that left the node.
    """

    def __init__(self, labels: StreamLabels, changed_partitions: set[Any]) -> None:
        self._labels = labels
        self._patterns = labels.patterns
        self._changed_partitions = changed_partitions
        self._rows: dict[Any, _ReadValues] = {}
        self._unread: OrderedDict[Any, None] = OrderedDict()
        """Changed partitions that must be read, each once, in order."""
        self.by_label: dict[str, LabelSums] = {}
        self.publish_counts: tuple[Counter[str], ...] = (Counter(), Counter(), Counter(), Counter())
        """Sums of rejected, dropped, throttled and buffered publishes."""
        self.with_services: set[Any] = set()
        self._slow_until_ns: dict[Any, Sequence[int]] = {}

    def add(self, worker: Any) -> None:
        """Add the partition ``worker``, which this node has opened, to the sums."""
        row = self._rows[worker] = _ReadValues(self._labels.label_of(worker.key.stream), _leaves(worker))
        self.by_label.setdefault(row.label, LabelSums()).add(row, add)
        self._changed_partitions.add(worker)

    def remove(self, worker: Any) -> None:
        """Remove the partition ``worker``, which this node has closed, and its counters from the sums."""
        row = self._rows.pop(worker, None)
        self._changed_partitions.discard(worker)
        self._unread.pop(worker, None)
        if row is not None:
            self._subtract(worker, row)
            self._set_publish_counts(row, None)
            self._slow_until_ns.pop(worker, None)
            self.with_services.discard(worker)

    def _subtract(self, worker: Any, row: _ReadValues) -> None:
        sums = self.by_label[row.label]
        sums.add(row, sub)
        sums.records.pop(worker, None)
        sums.since_ns.pop(worker, None)
        if not sums.count:
            del self.by_label[row.label]

    def update(self) -> Iterator[None]:
        """Read the metrics of the partitions that have changed, and update the sums.

        The iterator yields where the caller may run other work. Two iterators may be in use at a time.
        """
        if self._labels.patterns != self._patterns:
            self._relabel()
        unread, changed_partitions = self._unread, self._changed_partitions
        updated_count = 0
        while keys := list(islice(changed_partitions, ROWS_PER_STEP)):
            unread.update(dict.fromkeys(keys))
            changed_partitions.difference_update(keys)
            updated_count += len(keys)
            if len(keys) < ROWS_PER_STEP or updated_count > len(self._rows):
                break  # the rest was changed in the meantime
            yield
        rest = len(unread)
        while rest > 0 and unread:
            some = min(rest, READS_PER_STEP, len(unread))
            for _ in range(some):
                self._read(unread.popitem(last=False)[0])
            for sums in self.by_label.values():
                if sums.now:
                    sums.settle()
            rest -= some
            yield

    @property
    def unread_count(self) -> int:
        return len(self._unread)

    def _relabel(self) -> None:
        """Move all partitions to their new labels, because the patterns have changed.

        This happens without a pause, so that no sum is temporarily too small.
        """
        self._patterns = self._labels.patterns
        for worker, row in self._rows.items():
            label = self._labels.label_of(worker.key.stream)
            if label == row.label:
                continue
            lag = self.by_label[row.label].records.get(worker, 0), self.by_label[row.label].since_ns.get(worker, 0)
            self._subtract(worker, row)
            row.label = label
            sums = self.by_label.setdefault(label, LabelSums())
            sums.add(row, add)
            self._set_lag(worker, sums, *lag, self._slow_until_ns.get(worker, ()))

    def _read(self, worker: Any) -> None:
        row = self._rows.get(worker)
        if row is None:
            return
        sums = self.by_label[row.label]
        (
            counters, reads, acks, log, replica, log_state, ids, producers, subjects, writer, reader, fetches, standby
        ) = row.leaves  # fmt: skip
        role, state, config = replica.role, worker.state, worker.config
        leads = role is _LEADER and state is not None
        traffic = (
            counters.records, counters.size_bytes, reads.record_count, reads.size_bytes, acks.count, log.size_bytes,
            reads.waiting_count, log.log_end_offset - 1 - replica.high_watermark if leads else 0,
            1 if role is _FOLLOWER and replica.phase == _QUIET else 0,
        )  # fmt: skip
        sums.now.append(traffic)
        sums.before.append(row.traffic)
        row.traffic = traffic
        rare = (
            counters.duplicates, ids.evicted_count, producers.evicted_count, log_state.replayed_bytes, writer.written, writer.failed,
            reader.poison_envelopes, reader.refused_replies, log.truncated_records, fetches.fragment_reassembly_bytes,
            worker.storage_failed, subjects.state == "full", bool(worker.quarantined_files),
        )  # fmt: skip
        if rare != row.rare:
            sums.rare = list(map(add, sums.rare, map(sub, rare, row.rare)))
            row.rare = rare
        source = row.source
        if source[0] is not role or source[1] is not state or source[2] is not config:
            row.source = role, state, config
            from_image = _gauge_values(role, state, config, worker.node_id)
            sums.from_image = list(map(add, sums.from_image, map(sub, from_image, row.from_image)))
            row.from_image = from_image
        if leads:
            self._set_lag(worker, sums, *replica.lag())
        elif worker in sums.records or worker in self._slow_until_ns:
            self._set_lag(worker, sums, 0, 0, ())
        if counters.refused or counters.dropped or counters.throttled or standby.has_counted:
            self._set_publish_counts(
                row, (dict(counters.refused), dict(counters.dropped), dict(counters.throttled), _standby_counts(standby))
            )
        if worker.services.known:
            self.with_services.add(worker)

    def _set_lag(self, worker: Any, sums: LabelSums, records: int, since_ns: int, slow_until_ns: Sequence[int]) -> None:
        if records:
            sums.records[worker], sums.since_ns[worker] = records, since_ns
        elif worker in sums.records:
            del sums.records[worker], sums.since_ns[worker]
        if slow_until_ns:
            self._slow_until_ns[worker] = slow_until_ns
        elif self._slow_until_ns:
            self._slow_until_ns.pop(worker, None)

    def _set_publish_counts(self, row: _ReadValues, counts: _PublishCounts | None) -> None:
        if counts != row.publish_counts:
            for total, before in zip(self.publish_counts, row.publish_counts or (), strict=False):
                total.subtract(before)
            for total, now in zip(self.publish_counts, counts or (), strict=False):
                total.update(now)
            row.publish_counts = counts

    # ---- what is asked ------------------------------------------------------------------------------------------------------
    def add_to(self, counts: Counts) -> None:
        """Add the counters of all open partitions to ``counts``, with their values at the last scrape."""
        for label, sums in self.by_label.items():
            counts.add_sums(label, (*sums.traffic[: len(BY_STREAM)], *sums.rare[: len(SUMS) - len(BY_STREAM)]))
        for total, counter in zip(
            (counts.refused, counts.dropped, counts.throttled, counts.standby), self.publish_counts, strict=True
        ):
            total.update(+counter)

    def total(self, name: str) -> int:
        """Return the sum of the metric ``name`` over all labels. It must be in TRAFFIC, RARE, FROM_IMAGE or ROLES."""
        where, index = _WHERE[name]
        return sum(getattr(sums, where)[index] for sums in self.by_label.values())

    def slow_disks(self, now_ns: int) -> int:
        """Return the number of replicas that count as slow at ``now_ns`` (monotonic), in the partitions that this node leads."""
        return sum(until_ns > now_ns for each in self._slow_until_ns.values() for until_ns in each)

    def lag_ns(self, now_ns: int) -> int:
        """Return the longest lag of a follower at ``now_ns`` (monotonic), over all labels, in nanoseconds."""
        return max((sums.lag(now_ns)[1] for sums in self.by_label.values()), default=0)


_WHERE = {
    **{name: ("traffic", index) for index, name in enumerate(TRAFFIC)}, **{name: ("rare", index) for index, name in enumerate(RARE)},
    **{name: ("from_image", index) for index, name in enumerate((*FROM_IMAGE, *ROLES))},
}  # fmt: skip


def _standby_counts(standby: Any) -> dict[str, int]:
    counts: dict[str, int] = standby.report()
    del counts["held_bytes"]
    return counts


def _gauge_values(role: RoleName, state: PartitionState | None, config: Any, node_id: str) -> tuple[int, ...]:
    values = [0] * len(FROM_IMAGE)
    shown_role = role
    if role is RoleName.LEADER and state is not None:
        spare, is_short = len(state.isr) - state.min_isr(config), len(state.isr) < len(state.replicas)
        values = [
            1, int(is_short), int(spare < 0), int(is_short and spare < 0), int(spare == 0 and len(state.replicas) > 1),
            int(state.pause is not Pause.NOT_PAUSED), int(bool(state.target)),
        ]  # fmt: skip
    elif role is RoleName.FOLLOWER and state is not None and state.copy_of(node_id):
        shown_role = RoleName.LEARNER
    return (*values, *(int(shown_role.value == name) for name in ROLES))


class NodeCounts:
    """Counters of all partitions of one node, or of one of its processes. Closed partitions stay in the sums."""

    def __init__(self, labels: StreamLabels | None = None, changed_partitions: set[Any] | None = None) -> None:
        self.labels = labels or StreamLabels()
        self.changed_partitions: set[Any] = set() if changed_partitions is None else changed_partitions
        """Partitions that have changed since they were last read. They add themselves."""
        self.open = MetricSums(self.labels, self.changed_partitions)
        self.closed_sums = Counts()
        """Sums of the counters of partitions that this node no longer has."""
        self.being_closed: list[Any] = []
        """Partitions that are being stopped. Their counters may still grow."""

    def opened(self, worker: Any) -> None:
        self.open.add(worker)

    def closing(self, worker: Any) -> None:
        """Note that the partition ``worker`` is being closed. Its counters may still grow."""
        self.open.remove(worker)
        self.being_closed.append(worker)

    def closed(self, worker: Any) -> None:
        """Note that the partition ``worker`` is closed. Its counters do not grow any more, and stay in the sums."""
        self.being_closed.remove(worker)
        self.changed_partitions.discard(worker)
        self.closed_sums.add(self.labels.label_of(worker.key.stream), worker)

    def all(self) -> Counts:
        """Return the sums of all counters since the start. Open partitions count with the values of the last scrape."""
        counts = self.closed_sums.copy()
        self.open.add_to(counts)
        for worker in self.being_closed:
            counts.add(self.labels.label_of(worker.key.stream), worker)
        return counts
