"""Gathers the metric values of a node. Values of partitions are read in slices of the event loop's time, all others at
once.

A counter that is summed over partitions includes partitions that have left the node (``sidecar/partition/metric_sums.py``).
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from liftpy import __version__
from liftpy.config import NS_PER_S, AckPolicy
from liftpy.core.base.instruments import Histogram
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.services.sessions import DIVERGED
from liftpy.core.wire.decode_errors import by_reason
from sidecar.metadata.cluster_events import LOST
from sidecar.partition.metric_sums import BY_STREAM, FROM_IMAGE, OTHERS, ROLES, SUMS, TRAFFIC, Counts, LabelSums
from sidecar.quorum.transport import DIVERGENCES
from sidecar.runtime import clock
from sidecar.runtime.logs import LEVELS, LOGS
from sidecar.runtime.tasks import ANSWER_SLICE_S, LoopPauses
from sidecar.status.metric_names import ERRORS, INCIDENTS, MOST_VALUES, TABLE
from sidecar.status.report import Reporter
from sidecar.tracing.node_tracing import DROPPED

if TYPE_CHECKING:
    from liftpy.core.groups.lag import GroupLag

MOST_S = 0.02
"""Maximum time of the event loop for reading changed partitions in one scrape, in seconds. The next sample reads the rest."""
_SUMMED = {
    "duplicates": "publish_duplicates_total",
    "message_ids_forgotten": "message_ids_evicted_total",
    "producers_forgotten": "producers_evicted_total",
    "replayed_bytes": "dedup_state_replayed_bytes_total",
    "derived_states_written": "dedup_state_checkpoints_total",
    "derived_states_failed": "dedup_state_checkpoint_failures_total",
    "poison_envelopes": "invalid_envelopes_total",
    "refused_replies": "reply_subjects_rejected_total",
    "truncated_records": "truncated_records_total",
}
_SUMS_HERE = (
    "uncommitted_records", "partitions_at_min_isr", "partitions_quiet", "partitions_paused", "partitions_moving", "partitions_failed",
    "fragment_reassembly_bytes", "readers_waiting", "partitions_with_full_subject_index", "partitions_with_quarantined_files",
)  # fmt: skip
Labels = tuple[str, ...]
MOST_ENDED = 16
"""Maximum number of ended services that a node names. All of them are counted."""


class BoundedLabels:
    """Limits the number of values of metric labels. Each metric has at most ``MOST_VALUES``, and later ones share one label."""

    def __init__(self) -> None:
        self._given: dict[str, set[str]] = {}

    def of(self, metric: str, value: str) -> str:
        """Return the label for ``value`` in ``metric``: the value itself, or the common label if there are too many values."""
        values = self._given.setdefault(metric, set())
        if value not in values:
            if len(values) >= MOST_VALUES:
                return OTHERS
            values.add(value)
        return value


class MonotonicCounter:
    """Counter that never falls, although its source counts from 0 again after a restart."""

    def __init__(self) -> None:
        self._before = self._last = 0.0

    def of(self, count: float) -> float:
        """Return the total of the counter when its source has counted to ``count`` since its last restart."""
        if count < self._last:
            self._before += self._last
        self._last = count
        return self._before + count


class Figures:
    """Metric values of a node, by metric and labels.

    If there is a label ``stream``, it is the last one. ``pids``: ids of the node's processes.
    """

    def __init__(self, bounded: BoundedLabels | None = None) -> None:
        self.pids = [os.getpid()]
        self._bounded = bounded or BoundedLabels()
        self.numbers: dict[str, dict[Labels, float]] = {}
        self.histograms: dict[str, dict[Labels, Histogram]] = {}
        self.ended_services: list[str] = []
        """Ended replicated services with the reason, as text, at most ``MOST_ENDED``."""

    def put(self, name: str, value: float, *labels: str) -> None:
        """Add ``value`` to the metric ``name`` with these labels. Values with equal labels are added up."""
        row = self.numbers.setdefault(name, {})
        row[labels] = row.get(labels, 0) + value

    def each(self, name: str, values: Iterable[tuple[str, float]]) -> None:
        """Add the ``values`` (label value, number) to the metric ``name``. Label values beyond the limit share one label."""
        self.numbers.setdefault(name, {})
        for value, figure in values:
            self.put(name, figure, self._bounded.of(name, value.lower().replace(" ", "_")))


_JOURNAL_METRICS = {
    "journal_entries": "metadata_journal_entries",
    "journal_bytes": "metadata_journal_memory_bytes",
    "window_operations": "metadata_operations",
    "window_bytes": "metadata_operations_bytes",
}
"""Data of the metadata log that a controller keeps in memory -> metric of its size."""


class NodeFigures:
    """Gathers the metric values of one node, and keeps counters that must not restart."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._bounded = BoundedLabels()
        self._late_ticks = MonotonicCounter()
        self._compactions = MonotonicCounter()
        self._audit_dropped = MonotonicCounter()

    async def gather(self) -> Figures:
        """Return all metric values of the node. Let other work of the event loop run every 2 ms."""
        figures = Figures(self._bounded)
        await self._partitions(figures)
        reporter = self._reporter
        _identity(figures, reporter)
        _instruments(figures, reporter)
        self._metadata(figures, reporter)
        _bus(figures, reporter)
        _disk(figures, reporter)
        _coordinators(figures, reporter.coordinators())
        _lags(figures, reporter.group_lags())
        counters = reporter.named_counters()
        figures.each("frames_rejected_total", by_reason(counters).items())
        for level in (*LEVELS, "critical"):
            figures.put("log_messages_total", LOGS.suppression.messages[level], level)
        figures.put("log_suppressed_total", LOGS.suppression.suppressed_count)
        figures.put("trace_spans_dropped_total", counters.get(DROPPED, 0))
        for label in INCIDENTS:
            figures.put("incidents_total", counters.get(label, 0), label)
        return figures

    # ---- partitions ----------------------------------------------------------------------------------------------------
    async def _partitions(self, figures: Figures) -> None:
        partitions, now_ns = self._reporter.partitions, clock.now_ns()
        here, labels = partitions.counts.open, partitions.counts.labels
        began, cpu_began, took_s = time.monotonic(), time.thread_time(), 0.0
        for _ in here.update():
            slice_s = time.thread_time() - cpu_began
            if took_s + slice_s > MOST_S:
                break  # the next scrape reads the rest first
            if time.monotonic() - began > ANSWER_SLICE_S:
                took_s += slice_s
                await asyncio.sleep(0)
                began, cpu_began = time.monotonic(), time.thread_time()
        figures.put("scrape_stale_partitions", here.unread_count)
        _add_counts(figures, partitions.counts.all(), has_labels=bool(labels.patterns))
        for role in sorted(ROLES):
            figures.put("partitions", here.total(role), role.lower())
        for name in _SUMS_HERE:
            figures.put(name, here.total(name))
        figures.put("replicas_with_slow_disks", here.slow_disks(now_ns))
        figures.put("standby_buffer_bytes", partitions.standby_bytes)
        figures.put("partitions_failed", len(partitions.failed))
        for label, sums in (here.by_label or {OTHERS if labels.patterns else "": LabelSums()}).items():
            for name, figure in _stream_gauges(sums, now_ns).items():
                figures.put(name, figure, *([label] if label else []))
        services: list[dict[str, Any]] = []
        missing_count = ended = diverged = 0
        pauses = LoopPauses()
        for worker in list(here.with_services):
            services += worker.services.report()
            missing_count += len(worker.services.left_services())
            of_partition = worker.services.services_that_ended()
            ended += len(of_partition)
            diverged += sum(one.ending == DIVERGED for one in of_partition)
            for one in of_partition[: MOST_ENDED - len(figures.ended_services)]:
                figures.ended_services.append(f"{worker.key}: {one}")
            await pauses.pause()
        figures.put("services_unregistered", missing_count)
        figures.put("services_ended", ended)
        figures.put("services_diverged", diverged)
        _services(figures, services)

    # ---- the rest ------------------------------------------------------------------------------------------------------
    def _metadata(self, figures: Figures, reporter: Reporter) -> None:
        group, own = reporter.group, reporter.node_id
        ticks = group.ticks()
        figures.put("metadata_has_leader", int(bool(group.leader)))
        figures.put("metadata_is_leader", int(group.is_controller and group.leader == own))
        status = next((member for member in group.status() if member.nodeId == own), None)
        figures.put("metadata_commit_index", status.commitIndex if status is not None else group.image.index)
        figures.put("metadata_applied_index", status.appliedIndex if status is not None else group.image.index)
        figures.put("metadata_late_ticks_total", self._late_ticks.of(ticks.get("late", 0)))
        figures.put("metadata_divergence_total", reporter.instruments.divergences + group.counters.get(DIVERGENCES, 0))
        figures.put("audit_dropped_total", self._audit_dropped.of(group.counters.get(LOST, 0)))
        journal = group.held
        figures.put("metadata_journal_bytes", journal.get("journal_file_bytes", 0))
        figures.put("metadata_compactions_total", self._compactions.of(journal.get("compactions", 0)))
        for name, metric in _JOURNAL_METRICS.items():
            if name in journal:
                figures.put(metric, journal[name])
            else:
                figures.numbers[metric] = {}
        if group.is_controller:
            _cluster(figures, reporter)
        else:
            figures.numbers |= {name: {} for name in TABLE if name.startswith("cluster_")}


def _stream_gauges(sums: LabelSums, now_ns: int) -> dict[str, float]:
    """Return the gauges that can have the label ``stream``, by name."""
    records, age_ns = sums.lag(now_ns)
    values = dict(zip(TRAFFIC, sums.traffic, strict=True)) | dict(zip(FROM_IMAGE, sums.from_image, strict=False))
    names = ("acks_waiting", "log_size_bytes", "partitions_under_replicated", "partitions_under_min_isr")
    return {"replica_lag_records": records, "replica_lag_seconds": age_ns / NS_PER_S, **{name: values[name] for name in names}}


def _add_counts(figures: Figures, counts: Counts, *, has_labels: bool) -> None:
    for label, sums in counts.by_stream.items():
        for name in BY_STREAM:
            figures.put(f"{name}_total", sums[SUMS.index(name)], *([label] if label else []))
    for name in BY_STREAM:  # a series must not disappear
        figures.put(f"{name}_total", 0, *([OTHERS] if has_labels else []))
    for name, metric in _SUMMED.items():
        figures.put(metric, counts.total(name))
    figures.each("publish_rejected_total", counts.refused.items())
    figures.each("publish_dropped_total", counts.dropped.items())
    figures.each("quota_throttled_total", counts.throttled.items())
    figures.each("standby_messages_total", counts.standby.items())
    figures.put("standby_overflow_total", counts.standby["lost"])


def _identity(figures: Figures, reporter: Reporter) -> None:
    settings = reporter.settings
    figures.put("uptime_seconds", round(reporter.uptime_s, 3))
    figures.put("build_info", 1, __version__, platform.python_version())
    controller = "true" if reporter.group.is_controller else "false"
    figures.put("feature_level", reporter.group.image.feature_level)
    figures.put("feature_level_supported", SUPPORTED_LEVELS.least, "min")
    figures.put("feature_level_supported", SUPPORTED_LEVELS.most, "max")
    figures.put("node_info", 1, settings.node_id, settings.rack, settings.namespace, controller)


def _instruments(figures: Figures, reporter: Reporter) -> None:
    it = reporter.instruments
    figures.histograms = {
        "ingest_batch_records": {(): it.batch_records},
        "ack_duration_seconds": {("leader",): it.acks[AckPolicy.LEADER], ("all",): it.acks[AckPolicy.ALL]},
        "ingest_queue_seconds": {(): it.queued},
        "commit_duration_seconds": {(): it.commits},
        "log_flush_duration_seconds": {(): it.flushes},
        "fetch_duration_seconds": {(): it.fetches},
        "read_duration_seconds": {(): it.reads},
        "metadata_proposal_duration_seconds": {(): it.proposals},
        "metadata_fsync_duration_seconds": {(): it.journal_flushes},
        "failover_duration_seconds": {(): it.failovers},
        "event_loop_lag_seconds": {(): it.loop_lag},
    }
    figures.put("isr_shrinks_total", it.isr_shrinks)
    figures.put("isr_expands_total", it.isr_expands)
    figures.put("replication_bytes_total", it.replicated_in_bytes, "in")
    figures.put("replication_bytes_total", it.replicated_out_bytes, "out")
    figures.put("damaged_segments_total", it.damaged_segments)
    figures.put("recovery_duration_seconds", it.recovery_s)
    figures.put("metadata_leader_changes_total", it.leader_changes)
    figures.each("metadata_proposals_failed_total", it.proposals_failed.items())


def _cluster(figures: Figures, reporter: Reporter) -> None:
    image, watch = reporter.group.image, reporter.cluster_watch
    states = Counter({"live": 0, "fenced": 0, "drained": 0})
    for node in image.nodes.values():
        states["fenced" if node.fenced else "drained" if node.leaving else "live"] += 1
    for state, count in states.items():
        figures.put("cluster_nodes", count, state)
    figures.put("cluster_data_directories_lost_total", watch.folders_lost)
    figures.put("cluster_streams", len(image.streams))
    figures.put("cluster_streams_waiting", len(image.waiting))
    figures.put("cluster_partitions_offline", watch.offline)
    figures.put("cluster_partitions_electing", watch.electing)
    for kind, count in watch.elections.items():
        figures.put("cluster_elections_total", count, kind)


def _bus(figures: Figures, reporter: Reporter) -> None:
    links, nats = reporter.links, reporter.nats()
    figures.put("nats_connected", int(nats["connected"]))
    for direction in ("in", "out"):
        figures.put("nats_messages_total", nats[f"{direction}_msgs"], direction)
        figures.put("nats_bytes_total", nats[f"{direction}_bytes"], direction)
    for link in links.all():
        figures.put("nats_connection_up", int(link.is_connected), link.name)
        figures.put("nats_send_buffer_bytes", link.unsent_bytes, link.name)
        figures.put("nats_reconnects_total", link.stats["reconnects"], link.name)
    kinds: Counter[str] = Counter()
    for kind, count in nats["errors"].items():
        label = kind if kind in ERRORS else "server" if kind.startswith("server: ") else "other"
        kinds[label] += count
    figures.each("nats_errors_total", kinds.items())
    inflow = links.ingest
    figures.put("ingest_buffer_bytes", inflow.waiting_bytes)
    figures.put("publish_lost_on_disconnect_total", inflow.disconnect_loss.lost_messages)
    figures.put("publish_lost_unknown_total", inflow.disconnect_loss.unknown)


def _disk(figures: Figures, reporter: Reporter) -> None:
    free, size = disk_space(reporter.settings.data)
    figures.put("disk_free_bytes", free)
    figures.put("disk_size_bytes", size)
    place = reporter.flush_place
    figures.put("flush_on_event_loop", int(place.on_loop))
    figures.put("flush_place_changes_total", place.moves)
    for where, count in (("loop", place.done_on_loop), ("thread", place.done_in_thread), ("tried_out", place.probed)):
        figures.put("log_flushes_total", count, where)
    scrub = reporter.scrub()
    figures.put("scrub_bytes_total", scrub.get("checked_bytes", 0))
    figures.put("scrub_damage_total", scrub.get("findings", 0))
    last_pass = scrub.get("last_full_pass_s", 0)
    figures.put("scrub_age_seconds", max(0.0, time.time() - last_pass) if last_pass else -1)
    clock_state = reporter.clock()
    figures.put("clock_untrusted", int(bool(clock_state["doubt"])))
    figures.put("clock_skew_seconds", clock_state["skew_s"])
    descriptors = reporter.descriptors()
    for name, key in (
        ("open_files", "open"), ("open_files_limit", "limit"), ("open_maps", "maps"), ("partition_budget", "partition_budget"),
    ):  # fmt: skip
        figures.put(name, descriptors.get(key, 0))
    copies, state_memory = reporter.partitions.copy_limit, reporter.partitions.state_memory
    figures.put("replica_copy_bytes_total", copies.copied_bytes)
    figures.put("replica_copy_backlog_bytes_total", copies.backlog_bytes)
    figures.put("copy_throttle_rate_seconds_total", copies.waited_ns / 1e9)
    figures.put("copy_throttle_load_seconds_total", copies.yielded_ns / 1e9)
    figures.put("dedup_state_limit_bytes", state_memory.bound_bytes)
    figures.each("dedup_state_bytes", sorted(state_memory.by_kind.items()))
    figures.each("dedup_state_rejected_total", sorted(state_memory.refused.items()))
    figures.put("queued_bytes", reporter.room.used_bytes)
    figures.put("queued_bytes_limit", reporter.room.limit_bytes)
    figures.put("ingest_queue_delay_seconds", reporter.room.waited_ns / NS_PER_S)
    figures.put("held_bytes", reporter.inflight.held_bytes)
    figures.put("uncommitted_bytes", reporter.inflight.unreplicated_bytes)
    figures.put("readers_waiting_bytes", reporter.read_budget.used_bytes)


def disk_space(folder: Any) -> tuple[int, int]:
    """Return (free, size) of the file system in bytes, (0, 0) if it is unknown."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return 0, 0
    return usage.free, usage.total


def _coordinators(figures: Figures, coordinators: list[dict[str, Any]]) -> None:
    """Add the metrics of consumer groups to ``figures``. ``coordinators``: reports of the coordinators on this node.

    Only groups whose coordinator leads on this node count, so that sums over nodes are correct.
    """
    leading = [one for one in coordinators if one["role"] == "LEADER"]
    figures.put("coordinators", len(leading), "leader")
    figures.put("coordinators", sum(one["role"] == "FOLLOWER" for one in coordinators), "follower")
    figures.put("coordinators", sum(bool(one["problem"]) for one in coordinators), "failing")
    counts = {
        "groups": "groups",
        "group_members": "members",
        "queue_partitions": "queues",
        "queue_inflight_records": "records_out",
    }
    for metric, figure in counts.items():
        figures.put(metric, sum(one[figure] for one in leading))
    figures.put("coordinator_state_bytes", sum(one["state_bytes"] for one in coordinators))
    figures.put("coordinator_state_limit_bytes", max((one["bound_bytes"] for one in coordinators), default=0))


def _lags(figures: Figures, lags: dict[str, GroupLag]) -> None:
    for name in ("group_lag_records", "group_lag_seconds", "group_lag_unknown"):
        figures.numbers[name] = {}
    for label, lag in lags.items():
        figures.put("group_lag_records", lag.records, label)
        figures.put("group_lag_seconds", lag.seconds, label)
        figures.put("group_lag_unknown", lag.unknown)
    figures.put("group_lag_unknown", 0)


def _services(figures: Figures, services: list[dict[str, Any]]) -> None:
    figures.each("services", sorted(Counter(str(service.get("role") or "none") for service in services).items()))
    leaders = [service for service in services if service.get("role") == "LEADER"]
    stuck = [service.get("since_output_s") or 0 for service in leaders if service.get("output_backlog")]
    ages = [service["since_snapshot_s"] for service in services if service.get("since_snapshot_s") is not None]
    figures.put("services_blocked", sum(bool(service.get("failing")) for service in services))
    figures.put("services_differing", sum(bool(service.get("differs")) for service in services))
    figures.put("service_lag_records", max((service["lag"] for service in services), default=0))
    figures.put("service_output_backlog", sum(service.get("output_backlog", 0) for service in leaders))
    figures.put("service_output_age_seconds", max(stuck, default=0))
    figures.put("service_snapshot_age_seconds", max(ages, default=0))
    figures.put("service_state_bytes", sum(service.get("snapshot_bytes", 0) for service in services))
    for way in ("fetched", "given"):
        figures.put("service_snapshot_bytes", sum(service.get(f"{way}_bytes", 0) for service in services), way)
    for state in ("waiting", "answered", "refused"):
        figures.put("service_queries", sum(service.get(f"queries_{state}", 0) for service in services), state)
