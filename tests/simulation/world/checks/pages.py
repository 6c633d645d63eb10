"""Rules of what a node reports: its status and its metrics agree with each other, and each figure is possible."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from liftpy.core.replication.phases import FollowerPhase
from tests.simulation.world.checks.figures import Series, values

_MAY_BE_NEGATIVE = {"clock_skew_seconds", "scrub_age_seconds"}
_BUCKET = "_bucket"
_SUMS = {
    "log_size_bytes": "log_bytes",
    "held_bytes": "held_bytes",
    "uncommitted_bytes": "uncommitted_bytes",
    "fragment_reassembly_bytes": "fragment_reassembly_bytes",
    "acks_waiting": "waiting_acks",
    "readers_waiting": "waiting_readers",
    "readers_waiting_bytes": "waiting_readers_bytes",
    "partitions_failed": "storage_failed",
    "services": "services_here",
    "services_unregistered": "services_left",
    "standby_buffer_bytes": "standby_bytes",
}
"""Metric -> field of the rows of partitions whose sum it is."""
_COUNTS = {
    "ingest_records_total": "records_in",
    "ingest_bytes_total": "bytes_in",
    "publish_duplicates_total": "duplicates",
    "invalid_envelopes_total": "poison_envelopes",
    "reply_subjects_rejected_total": "refused_replies",
    "message_ids_evicted_total": "message_ids_forgotten",
    "producers_evicted_total": "producers_forgotten",
    "dedup_state_checkpoints_total": "states_written",
    "dedup_state_checkpoint_failures_total": "states_failed",
    "dedup_state_replayed_bytes_total": "replayed_bytes",
    "log_flush_duration_seconds_count": "flushes",
    "standby_overflow_total": "standby_lost",
    "publish_dropped_total": "dropped_count",
}
"""Metric -> field of the rows of partitions whose sum it is, with the replicas that the process has closed."""
_HELD = {
    "metadata_journal_bytes": "journal_file_bytes",
    "metadata_journal_entries": "journal_entries",
    "metadata_journal_memory_bytes": "journal_bytes",
    "metadata_operations": "window_operations",
    "metadata_operations_bytes": "window_bytes",
}
"""Metric of a controller -> field of what its status says about the metadata log."""
_MOST_MEAN_S = 30.0
"""Maximum mean duration of a request to the metadata group and of a flush of its journal, in seconds."""
_STATES = {"ids": "message_ids_bytes", "producers": "producers_bytes", "subjects": "subjects_bytes"}
"""Label of ``dedup_state_bytes`` -> field of the rows of partitions whose sum it is."""


def wrong_pages(status: dict[str, Any], metrics: Series, *, has_closed: bool = True) -> list[str]:
    """Return what is impossible in the status and the metrics of a node, or differs between them.

    The caller asks for both while nothing changes. ``has_closed``: whether the process may have closed replicas, whose counts the
    metrics keep.
    """
    rows = [
        {
            **row,
            "standby_lost": row["standby"]["lost"],
            "standby_bytes": row["standby"]["held_bytes"],
            "services_here": len(row["services"]),
            "services_left": len(row["gone_services"]),
            "dropped_count": sum(row["dropped"].values()),
        }
        for row in status["partitions"]
    ]
    wrong = [f"counter {name!r} is {count}" for name, count in _counters(status) if not name.strip() or count < 0]
    for row in rows:
        wrong += [f"{row['stream']}/{row['partition']}: {what}" for what in _wrong_row(row, status["node"])]
    for one in (status, *rows):
        times = one["flush_times"]
        if not times["p50_ms"] <= times["p99_ms"] <= times["max_ms"]:
            wrong.append(f"times of flushes {times}")
    wrong += _wrong_series(metrics)
    for metric, field in _SUMS.items():
        if (shown := sum(values([metrics], metric))) != (total := sum(row[field] for row in rows)):
            wrong.append(f"metric {metric} is {shown:g}, and the sum of {field} is {total}")
    for metric, field in _COUNTS.items():
        shown, total = sum(values([metrics], metric)), sum(row[field] for row in rows)
        if shown < total or (shown > total and not has_closed):
            wrong.append(f"metric {metric} is {shown:g}, and the sum of {field} is {total}")
    for metric, label, total in _counted(rows, status["node"]):
        if (shown := sum(values([metrics], metric, label))) != total:
            wrong.append(f"metric {metric} {label} is {shown:g}, and the rows have {total}")
    for label, field in _STATES.items():
        shown, total = sum(values([metrics], "dedup_state_bytes", f'"{label}"')), sum(row[field] for row in rows)
        if shown != total:
            wrong.append(f"dedup_state_bytes of {label} is {shown:g}, and the sum of {field} is {total}")
    wrong += _wrong_metadata(status, metrics)
    if (shown := sum(values([metrics], "partitions"))) != (total := len(rows) + len(status["failed_partitions"])):
        wrong.append(f"metric partitions is {shown:g}, and the status has {total}")
    return wrong


def _wrong_metadata(status: dict[str, Any], metrics: Series) -> Iterable[str]:
    """Yield what is impossible in the figures of the metadata group. Each node has registered, so it has sent a request."""
    timed = ["metadata_proposal_duration_seconds"]
    if status["controller"]:
        timed.append("metadata_fsync_duration_seconds")
        for metric, field in _HELD.items():
            if (shown := sum(values([metrics], metric))) != status["metadata_held"][field]:
                yield f"metric {metric} is {shown:g}, and {field} is {status['metadata_held'][field]}"
        if (late := sum(values([metrics], "metadata_late_ticks_total"))) < status["ticks"]["late"]:
            yield f"metric metadata_late_ticks_total is {late:g}, and the ticks are {status['ticks']}"
    for name in timed:
        count, total_s = (sum(values([metrics], f"{name}_{part}")) for part in ("count", "sum"))
        if count < 1 or not 0 <= total_s <= _MOST_MEAN_S * count:
            yield f"{name} has the count {count:g} and the sum {total_s:g}"


def _counted(rows: list[dict[str, Any]], node: str) -> Iterable[tuple[str, str, int]]:
    """Yield (metric, label, value) of each metric that counts replicas."""
    for role in ("leader", "candidate", "failed", "stopped", "waiting"):
        yield "partitions", f'"{role}"', sum(row["role"] == role.upper() for row in rows)
    followers = [row for row in rows if row["role"] == "FOLLOWER"]
    copies = sum(row["joining"] == node for row in followers)
    yield "partitions", '"learner"', copies
    yield "partitions", '"follower"', len(followers) - copies
    yield "partitions_with_full_subject_index", "", sum(row["subjects_state"] == "full" for row in rows)
    yield "partitions_quiet", "", sum(row["phase"] == FollowerPhase.QUIET.value for row in rows)
    led = [row for row in rows if row["role"] == "LEADER"]
    yield "uncommitted_records", "", sum(row["newest_offset"] - row["high_watermark"] for row in led)
    yield "partitions_under_replicated", "", sum(len(row["isr"]) < len(row["replicas"]) for row in led)
    lags = [one["lag"] or 0 for row in led for one in row["followers"].values()]
    yield "replica_lag_records", "", max(lags, default=0)
    yield "partitions_paused", "", sum(bool(row["paused"]) for row in led)
    yield "partitions_moving", "", sum(bool(row["target"]) for row in led)
    slow = sum(one["has_slow_disk"] for row in led for one in row["followers"].values())
    yield "replicas_with_slow_disks", "", slow + sum(row["has_slow_disk"] for row in led)


def _counters(status: dict[str, Any]) -> Iterable[tuple[str, int]]:
    for counters in (status["counters"], status["refused"], *(link["errors"] for link in status["connections"].values())):
        yield from counters.items()


def _wrong_row(row: dict[str, Any], node: str) -> Iterable[str]:
    first, high, newest, flushed = (
        row[name] for name in ("log_start_offset", "high_watermark", "newest_offset", "flushed_offset")
    )
    if not (-1 <= first - 1 <= newest and high <= newest and flushed <= newest):
        yield f"(first, HW, newest, flushed) {first, high, newest, flushed}"
    if not set(row["isr"]) <= set(row["replicas"]):
        yield f"ISR {row['isr']} of the replicas {row['replicas']}"
    for follower, shown in row["followers"].items():
        is_heard = shown["position"] is not None
        if follower == node or (is_heard and (shown["position"] > newest or shown["lag"] < 0)):
            yield f"follower {follower} {shown}"
    if negative := {name: value for name, value in row.items() if type(value) is int and value < 0 and "offset" not in name}:
        negative.pop("high_watermark", None)
        if negative:
            yield f"{negative}"


def _wrong_series(metrics: Series) -> Iterable[str]:
    buckets: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (name, labels), value in metrics.items():
        if not math.isfinite(value) or (value < 0 and name not in _MAY_BE_NEGATIVE):
            yield f"metric {name} {labels} is {value}"
        if name.endswith(_BUCKET):
            bound = next(one for one in labels.split(",") if one.startswith("le="))
            others = ",".join(one for one in labels.split(",") if one != bound)
            bounds = buckets.setdefault((name.removesuffix(_BUCKET), others), [])
            bounds.append((float(bound[4:-1].replace("+Inf", "inf")), value))
    for (name, labels), counts in buckets.items():
        rising = [count for _, count in sorted(counts)]
        if rising != sorted(rising) or rising[-1] != metrics[f"{name}_count", labels]:
            yield f"histogram {name} {labels} has the buckets {rising} and the count {metrics[f'{name}_count', labels]:g}"
