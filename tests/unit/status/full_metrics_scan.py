"""Compute the metrics of all partitions in a full scan, to compare with incremental metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from liftpy.core.base.partition import Pause
from liftpy.core.replication.phases import RoleName
from sidecar.partition.metric_sums import FROM_IMAGE, RARE, ROLES, TRAFFIC, MetricSums, StreamLabels

NAMES = (*TRAFFIC, *RARE, *FROM_IMAGE, *ROLES)


def walked(workers: Iterable[Any], labels: StreamLabels, now_ns: int) -> dict[str, Any]:
    """Return the sums by label and the values of the whole node from a full scan."""
    by_label: dict[str, Counter[str]] = {}
    lags: dict[str, tuple[int, int]] = {}
    told = tuple(Counter[str]() for _ in range(4))
    slow, services = 0, set()
    for worker in workers:
        label = labels.label_of(worker.key.stream)
        sums = by_label.setdefault(label, Counter(dict.fromkeys(NAMES, 0)))
        _add(sums, worker)
        role, state = worker.replica.role, worker.state
        shown = role
        if role is RoleName.LEADER and state is not None:
            _leads(sums, worker)
            records, since_ns, until = worker.replica.lag()
            before = lags.get(label, (0, 0))
            lags[label] = max(before[0], records), max(before[1], now_ns - since_ns if records else 0)
            slow += sum(until_ns > now_ns for until_ns in until)
        elif role is RoleName.FOLLOWER:
            sums["partitions_quiet"] += worker.replica.phase == "FOLLOWER_QUIET"
            if state is not None and state.copy_of(worker.node_id):
                shown = RoleName.LEARNER
        sums[shown.value] += 1
        counters, heard = worker.ingest.counters, worker.standby.report()
        del heard["held_bytes"]
        for total, one in zip(told, (counters.refused, counters.dropped, counters.throttled, heard), strict=True):
            total.update(one)
        if worker.services.known:
            services.add(worker)
    return {
        "sums": {label: dict(sums) for label, sums in by_label.items()}, "told": [dict(+total) for total in told], "slow": slow,
        "lags": {label: lag for label, lag in lags.items() if lag[0]}, "services": services,
    }  # fmt: skip


def kept(here: MetricSums, now_ns: int) -> dict[str, Any]:
    """Return these values from the incremental metrics."""
    for _ in here.update():
        pass
    sums = {
        label: dict(zip(NAMES, (*one.traffic, *one.rare, *one.from_image), strict=True)) for label, one in here.by_label.items()
    }  # fmt: skip
    return {
        "sums": sums, "told": [dict(+total) for total in here.publish_counts], "slow": here.slow_disks(now_ns),
        "lags": {label: one.lag(now_ns) for label, one in here.by_label.items() if one.records}, "services": here.with_services,
    }  # fmt: skip


def _add(sums: Counter[str], worker: Any) -> None:
    counters, log_state = worker.ingest.counters, worker.log_state
    for name, figure in (
        ("ingest_records", counters.records), ("ingest_bytes", counters.size_bytes), ("read_records", worker.reads.record_count),
        ("read_bytes", worker.reads.size_bytes), ("acks_waiting", worker.acks.count), ("log_size_bytes", worker.log.size_bytes),
        ("readers_waiting", worker.reads.waiting_count), ("duplicates", counters.duplicates),
        ("message_ids_forgotten", log_state.ids.evicted_count), ("producers_forgotten", log_state.producers.evicted_count),
        ("replayed_bytes", log_state.replayed_bytes), ("derived_states_written", worker.states.writer.written),
        ("derived_states_failed", worker.states.writer.failed), ("poison_envelopes", worker.ingest.reader.poison_envelopes),
        ("refused_replies", worker.ingest.reader.refused_replies), ("truncated_records", worker.log.truncated_records),
        ("fragment_reassembly_bytes", worker.fetches.fragment_reassembly_bytes), ("partitions_failed", worker.storage_failed),
        ("partitions_with_full_subject_index", log_state.subjects.state == "full"),
        ("partitions_with_quarantined_files", bool(worker.quarantined_files)),
    ):  # fmt: skip
        sums[name] += int(figure)


def _leads(sums: Counter[str], worker: Any) -> None:
    state, sums["led"] = worker.state, sums["led"] + 1
    short, under = len(state.isr) < len(state.replicas), len(state.isr) < state.min_isr(worker.config)
    sums["partitions_under_replicated"] += short
    sums["partitions_under_min_isr"] += under
    sums["led_short"] += short and under
    sums["partitions_at_min_isr"] += len(state.isr) == state.min_isr(worker.config) and len(state.replicas) > 1
    sums["partitions_paused"] += state.pause is not Pause.NOT_PAUSED
    sums["partitions_moving"] += bool(state.target)
    sums["uncommitted_records"] += worker.log.log_end_offset - 1 - worker.replica.high_watermark
