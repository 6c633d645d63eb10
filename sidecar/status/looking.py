"""What thousands of partitions show, summed a part of them at a time: no turn of Python for each partition and metric.

What counts in a partition (its log, its ingest, its readers...) is the same object as long as it is here. A ``SomePartitions`` has
these objects in columns, which are laid out once and kept between two scrapes; a sum over a column is one call of ``sum`` over
``map``, 0.03 us for each. What follows from the image and from roles is kept until one of a part has changed; only how far
followers lag is asked of each leader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any

from liftpy.partition import PartitionState, Pause
from liftpy.replica.phases import Following, RoleName
from sidecar.partition.counted import LEAVES, NodeCounts

GAUGES = (
    "acks_waiting", "log_size_bytes", "replica_lag_records", "replica_lag_seconds", "partitions_under_replicated",
    "partitions_under_min_isr",
)  # fmt: skip
"""With a label ``stream``, beside BY_STREAM."""
_SEEN = (
    "uncommitted_records", "partitions_at_min_isr", "partitions_quiet", "partitions_paused", "partitions_moving", "partitions_failed",
    "replicas_with_slow_disks", "assembling_bytes", "readers_waiting", "partitions_with_too_many_subjects",
    "partitions_with_set_aside_files", "standby_buffer_bytes",
)  # fmt: skip
PART = 256
"""Partitions between two looks at the clock."""
_LEAVES = {
    leaf: attrgetter(leaf)
    for leaf in (*LEAVES, "acks", "derived.subjects", "executor", "fetches", "replica", "services", "standby.heard")
}
_GET = {
    name: attrgetter(name)
    for name in (
        "assembling_bytes", "config", "count", "high_watermark", "known", "log_end_offset", "phase", "role", "set_aside", "size_bytes",
        "state", "storage_failed", "waiting_count",
    )
}  # fmt: skip


class SomePartitions:
    """Some partitions with one label, in columns."""

    __slots__ = ("_shown", "label", "leaves", "workers")

    def __init__(self, label: str, workers: Sequence[Any]) -> None:
        self.label, self.workers = label, workers
        self.leaves = {leaf: list(map(find, workers)) for leaf, find in _LEAVES.items()}
        self._shown = _StatesShown([], [], [], workers)

    def each(self, leaf: str, name: str) -> Iterator[Any]:
        """``name`` of this leaf of all."""
        return map(_GET[name], self.leaves[leaf])

    @property
    def with_services(self) -> list[Any]:
        """Workers that have any, or had."""
        return list(compress(self.workers, self.each("services", "known")))

    @property
    def shown(self) -> _StatesShown:
        """What their states show; made anew where one of them, of their settings or of their roles has changed."""
        now = (
            list(self.each("replica", "role")),
            list(map(_GET["state"], self.workers)),
            list(map(_GET["config"], self.workers)),
        )
        if now != self._shown.of:
            self._shown = _StatesShown(*now, self.workers)
        return self._shown


class _StatesShown:
    """Of a part: what only a change of the image or a role changes. ``of``: roles, states (None: not told yet) and settings."""

    __slots__ = ("followers", "leaders", "logs", "of", "roles", "sums", "under_min", "under_replicated")

    def __init__(
        self, roles: list[RoleName], states: list[PartitionState | None], configs: list[Any], workers: Sequence[Any]
    ) -> None:
        self.of = roles, states, configs
        self.roles = Counter({role.value: roles.count(role) for role in RoleName})
        self.under_replicated = self.under_min = 0
        self.sums: Counter[str] = Counter()
        self.leaders: list[Any] = []
        """Replicas that lead, in the order of ``logs``."""
        self.logs: list[Any] = []
        self.followers: list[Any] = []
        for role, state, config, worker in zip(roles, states, configs, workers, strict=False):
            if role is RoleName.LEADER and state is not None:
                self.leaders.append(worker.replica)
                self.logs.append(worker.log)
                self._leads(state, config)
            elif role is RoleName.FOLLOWER:
                self.followers.append(worker.replica)
                if state is not None and state.copy_of(worker.node_id):
                    self.roles[RoleName.LEARNER.value] += 1
                    self.roles[RoleName.FOLLOWER.value] -= 1

    def _leads(self, state: PartitionState, config: Any) -> None:
        spare = len(state.isr) - state.min_isr(config)
        self.under_replicated += len(state.isr) < len(state.replicas)
        self.under_min += spare < 0
        self.sums["partitions_at_min_isr"] += spare == 0 and len(state.replicas) > 1
        self.sums["partitions_paused"] += state.pause is not Pause.NOT_PAUSED
        self.sums["partitions_moving"] += bool(state.target)


class InParts:
    """A node's partitions in parts, which are kept while the partitions are the same ones."""

    def __init__(self) -> None:
        self._workers: list[Any] = []
        self._patterns: tuple[str, ...] = ()
        self._parts: list[SomePartitions] = []

    def of(self, workers: list[Any], counts: NodeCounts) -> Iterator[SomePartitions]:
        """All of them; what was laid out when the last was taken is there for the next time, and goes with the first partition that
        does."""
        labels = counts.labels
        if workers == self._workers and labels.patterns == self._patterns:
            yield from self._parts
            return
        self._forget()
        by_label: dict[str, list[Any]] = {}
        for worker in workers if labels.patterns else ():
            by_label.setdefault(labels.of(worker.key.stream), []).append(worker)
        parts = []
        for label, some in by_label.items() if labels.patterns else [("", workers)]:
            for begin in range(0, len(some), PART):
                parts.append(part := SomePartitions(label, some[begin : begin + PART]))
                yield part
        self._workers, self._patterns, self._parts = workers, labels.patterns, parts
        counts.ends_here = self._forget

    def _forget(self) -> None:
        self._workers, self._patterns, self._parts = [], (), []


class Looked:
    """What partitions show now, summed in plain numbers."""

    def __init__(self) -> None:
        self.by_stream: dict[str, list[float]] = {}
        """Label -> in the order of GAUGES."""
        self.roles: Counter[str] = Counter({role.value: 0 for role in RoleName})
        self.sums = dict.fromkeys(_SEEN, 0)

    def look(self, part: SomePartitions, now_ns: int) -> None:
        """Add a part."""
        row = self.by_stream.get(part.label)
        if row is None:
            row = self.by_stream[part.label] = [0.0] * len(GAUGES)
        sums, each = self.sums, part.each
        row[0] += sum(each("acks", "count"))
        row[1] += sum(each("log", "size_bytes"))
        sums["readers_waiting"] += sum(each("reads", "waiting_count"))
        sums["assembling_bytes"] += sum(each("fetches", "assembling_bytes"))
        sums["standby_buffer_bytes"] += sum(each("standby.heard", "size_bytes"))
        sums["partitions_with_too_many_subjects"] += list(each("derived.subjects", "state")).count("full")
        sums["partitions_with_set_aside_files"] += sum(map(bool, map(_GET["set_aside"], part.workers)))
        sums["partitions_failed"] += sum(each("executor", "storage_failed"))
        shown = part.shown
        self.roles.update(shown.roles)
        sums.update({name: sums[name] + count for name, count in shown.sums.items()})
        row[4] += shown.under_replicated
        row[5] += shown.under_min
        sums["partitions_quiet"] += list(map(_GET["phase"], shown.followers)).count(Following.QUIET)
        ends, marks = map(_GET["log_end_offset"], shown.logs), map(_GET["high_watermark"], shown.leaders)
        sums["uncommitted_records"] += sum(ends) - len(shown.logs) - sum(marks)
        for replica in shown.leaders:
            records, age_ns, slow = replica.worst_lag(now_ns)
            if records or slow:
                row[2] = max(row[2], records)
                row[3] = max(row[3], age_ns / 1e9)
                sums["replicas_with_slow_disks"] += slow
