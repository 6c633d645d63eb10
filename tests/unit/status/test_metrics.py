"""Test metrics: every row of the table is shown and documented, counters never decrease, and series are bounded."""

from __future__ import annotations

import asyncio
import math
import os
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from liftpy.config import AckPolicy
from liftpy.core.base.instruments import BATCH_RECORDS, FAILOVER_S, LATENCY_S, Histogram, Instruments, PublishTimes
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.replication.phases import RoleName
from liftpy.core.wire.decode_errors import REFUSED
from sidecar.cli.backup import TABLE as BACKUP_TABLE
from sidecar.partition.metric_sums import MAX_LABELS, OTHERS, READS_PER_STEP, StreamLabels
from sidecar.status import figures as figures_module
from sidecar.status.figures import Figures, MonotonicCounter, NodeFigures
from sidecar.status.metric_names import COUNTER, HISTOGRAM, INCIDENTS, MOST_SERIES_OF_A_STREAM, MOST_VALUES, TABLE
from sidecar.status.metrics import by_partition, exposition
from tests.unit.status.fake_reporter import a_reporter, a_worker, gathered, shown

DOCS = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"
MOST_SERIES = 510


# ---- the table ----------------------------------------------------------------------------------------------------------
def test_metrics_page_lists_the_rows_of_the_metrics_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$", DOCS.read_text(), re.MULTILINE)
    told = {name: (kind, labels.strip(), text.strip()) for name, kind, labels, text in rows}
    assert told == {
        name: (row.kind, " ".join([*row.labels, *(["(stream)"] if row.by_stream else [])]), row.text)
        for name, row in TABLE.items()
    }
    for label in (*INCIDENTS,):
        assert f"`{label}`" in DOCS.read_text(), label


def test_metrics_page_lists_the_backup_metrics_with_their_descriptions() -> None:
    told = dict(re.findall(r"^\| `(backup_\w+)` \| ([^|]*) \|$", DOCS.read_text(), re.MULTILINE))
    assert {name: text.strip() for name, text in told.items()} == BACKUP_TABLE


def test_pages_name_labels_as_the_exposition_has_them() -> None:
    """Check ``liftpy_metric{label="value"}`` in pages, alerts and dashboards. Prometheus itself adds the label ``job``."""
    root = DOCS.parent.parent
    pages = [
        path for folder in ("docs", "deploy") for path in (root / folder).rglob("*") if path.suffix in (".md", ".yml", ".json")
    ]
    uses = [use for page in pages for use in re.findall(r'liftpy_(\w+)\{(\w+)=\\?"([^"\\]*)\\?"\}', page.read_text())]
    assert len(uses) > 8
    for name, label, value in uses:
        base = re.sub("_(bucket|sum|count)$", "", name) if name not in TABLE else name
        assert label in (*TABLE[base].labels, "le", "job"), (name, label)
        shown = Figures()
        shown.each(name, [(value, 1)])
        assert (value,) in shown.numbers[name], (name, value)


def test_jetstream_page_names_the_counters_of_the_read_api() -> None:
    root = DOCS.parent.parent
    line = re.search(r"\*\*Counters\.\*\* ([^.]*)\.", (root / "docs" / "jetstream.md").read_text())
    assert line is not None
    code = (root / "sidecar" / "node" / "jetstream_api.py").read_text()
    assert re.findall("`([^`]*)`", line[1]) == sorted(set(re.findall(r'counters\["(\w+)"\]', code)), key=line[1].index)


def test_metrics_exposition_has_exactly_the_table_rows_with_their_labels() -> None:
    found = gathered(a_reporter([a_worker()]))
    families = {f.name.removeprefix("liftpy_"): f for f in text_string_to_metric_families(exposition(found).decode())}
    own = {name for name in families if not name.startswith(("process_", "python_"))}
    assert own == {name.removesuffix("_total") if row.kind == COUNTER else name for name, row in TABLE.items()}
    assert "process_cpu_seconds" in families
    for name, row in TABLE.items():
        for sample in families[name.removesuffix("_total") if row.kind == COUNTER else name].samples:
            assert {*sample.labels} - {"le"} == {*row.labels}, name
            assert (row.kind == HISTOGRAM) == sample.name.endswith(("_bucket", "_sum", "_count")), name


def test_process_metrics_are_summed_over_all_processes_of_the_node() -> None:
    found = gathered(a_reporter([a_worker()]))
    alone = shown(found)
    found.pids = [os.getpid(), os.getppid(), 2**22 + 1]  # and one that has just ended
    both = shown(found)
    found.pids = [os.getppid()]
    parent = shown(found)
    for name in ("process_resident_memory_bytes", "process_virtual_memory_bytes", "process_open_fds"):
        assert both[name,] > alone[name,], name
    assert both["process_max_fds",] <= alone["process_max_fds",]
    started = "process_start_time_seconds"
    assert both[started,] == min(alone[started,], parent[started,]), "of the oldest process"


def test_metrics_of_a_node_have_the_values_of_their_sources() -> None:
    failing = a_worker("s", 3, RoleName.FOLLOWER, storage_failed=True, quarantined_files=("x",))
    learner = a_worker("s", 4, RoleName.FOLLOWER, joining="n1", copy_epoch=3)
    workers = [a_worker("s", 2, isr=("n1",)), a_worker(), a_worker("s", 1, isr=("n1", "n2")), failing, learner]
    reporter = a_reporter(workers)
    reporter.partitions.failed = {"s/9": "why"}
    found = shown(gathered(reporter))
    expected = {
        ("ingest_records_total",): 50, ("ingest_bytes_total",): 5000, ("read_records_total",): 70, ("read_bytes_total",): 75,
        ("publish_duplicates_total",): 15, ("message_ids_evicted_total",): 40, ("producers_evicted_total",): 45,
        ("dedup_state_replayed_bytes_total",): 55, ("dedup_state_checkpoints_total",): 60,
        ("dedup_state_checkpoint_failures_total",): 65,
        ("invalid_envelopes_total",): 30, ("reply_subjects_rejected_total",): 35, ("truncated_records_total",): 105,
        ("publish_rejected_total", "overloaded"): 20, ("publish_dropped_total", "not_leader"): 25,
        ("quota_throttled_total", "token"): 30,
        ("standby_messages_total", "appended"): 90, ("standby_overflow_total",): 95, ("standby_buffer_bytes",): 85,
        ("acks_waiting",): 110, ("log_size_bytes",): 100, ("readers_waiting",): 80, ("fragment_reassembly_bytes",): 125,
        ("partitions", "leader"): 3, ("partitions", "follower"): 1, ("partitions", "learner"): 1, ("partitions", "candidate"): 0,
        ("partitions_under_replicated",): 2, ("partitions_at_min_isr",): 1, ("partitions_under_min_isr",): 1,
        ("partitions_failed",): 2, ("partitions_with_quarantined_files",): 1,
        ("replica_lag_records",): 25, ("replica_lag_seconds",): 24,
        ("replicas_with_slow_disks",): 3, ("uncommitted_records",): 9, ("held_bytes",): 72, ("uncommitted_bytes",): 71,
        ("readers_waiting_bytes",): 73, ("queued_bytes_limit",): 74, ("ingest_queue_delay_seconds",): 1.5,
        ("queued_bytes",): 0, ("replica_copy_bytes_total",): 31, ("nats_connected",): 1, ("nats_connection_up", "ingest"): 1,
        ("nats_send_buffer_bytes", "ingest"): 41, ("nats_reconnects_total", "ingest"): 42, ("ingest_buffer_bytes",): 43,
        ("publish_lost_on_disconnect_total",): 44, ("publish_lost_unknown_total",): 45, ("metadata_late_ticks_total",): 46,
        ("metadata_journal_bytes",): 47, ("metadata_commit_index",): 48, ("metadata_applied_index",): 49,
        ("metadata_is_leader",): 1, ("metadata_has_leader",): 1, ("incidents_total", "slow_flush"): 51,
        ("frames_rejected_total", "checksum"): 53, ("nats_messages_total", "in"): 60, ("nats_bytes_total", "out"): 60,
        ("nats_errors_total", "late_pong"): 61, ("nats_errors_total", "server"): 63, ("nats_errors_total", "other"): 63,
        ("scrub_bytes_total",): 64, ("scrub_damage_total",): 65, ("open_files",): 67, ("open_files_limit",): 68, ("open_maps",): 69,
        ("partition_budget",): 70, ("cluster_nodes", "live"): 2, ("cluster_nodes", "fenced"): 1, ("cluster_nodes", "drained"): 1,
        ("metadata_divergence_total",): 7,
        ("group_lag_records", "billing"): 75, ("group_lag_seconds", OTHERS): 0.5, ("group_lag_unknown",): 5,
        ("feature_level",): 1, ("feature_level_supported", "min"): SUPPORTED_LEVELS.least,
        ("feature_level_supported", "max"): SUPPORTED_LEVELS.most,
        ("cluster_streams",): 1, ("cluster_elections_total", "unclean"): 0, ("node_info", "true", "ns", "n1", "r1"): 1,
    }  # fmt: skip
    assert {name: found.get(name) for name in expected} == pytest.approx(expected, abs=0.2)
    assert found["scrub_age_seconds",] == pytest.approx(66, abs=5)
    assert found["disk_size_bytes",] >= found["disk_free_bytes",] > 0
    assert not any("no incident" in name for name in found)


def test_metrics_of_a_node_without_consumer_groups_have_no_group_lag() -> None:
    found = shown(gathered(a_reporter([], group_lags=dict)))
    assert [name for name in found if name[0].startswith("group_lag")] == [("group_lag_unknown",)]


def test_metrics_histograms_have_cumulative_buckets() -> None:
    reporter = a_reporter([])
    reporter.instruments.acks[AckPolicy.ALL].observe(0.0005, 3)
    reporter.instruments.acks[AckPolicy.ALL].observe(100.0)
    found = shown(gathered(reporter))
    at = {le: found["ack_duration_seconds_bucket", le, "all"] for le in ("0.00025", "0.0005", "8.192", "+Inf")}
    assert at == {"0.00025": 0, "0.0005": 3, "8.192": 3, "+Inf": 4}
    assert found["ack_duration_seconds_count", "all"] == 4
    assert found["ack_duration_seconds_sum", "all"] == pytest.approx(100.0015)


# ---- how many there are -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [1, 2000])
def test_metrics_series_count_is_bounded(count: int) -> None:
    workers = [a_worker(f"s{number % 100}", number) for number in range(count)]
    for number, worker in enumerate(workers):
        worker.ingest.counters.refused[f"reason {number}"] += 1
        worker.ingest.counters.dropped[f"reason {number}"] += 1
    reporter = a_reporter(workers)
    reporter.named_counters = lambda: {**{f"{REFUSED}{n}": 1 for n in range(count)}, **dict.fromkeys(INCIDENTS, 1)}
    reporter.group.held = {str(n): 1 for n in range(count)}
    reporter.partitions.state_memory.by_kind.update({str(n): 1 for n in range(count)})
    reporter.partitions.state_memory.refused.update({str(n): 1 for n in range(count)})
    reporter.instruments.proposals_failed.update({str(n): 1 for n in range(count)})
    found = gathered(reporter)
    samples = [name for name in shown(found) if not name[0].startswith("process_")]
    assert len(samples) <= MOST_SERIES
    assert found.numbers["publish_rejected_total"].get((OTHERS,), 0) == max(count - MOST_VALUES + 1, 0)


def test_metrics_of_selected_streams_have_own_series_and_other_streams_share_one() -> None:
    workers = [a_worker("shop-1"), a_worker("shop-1", 1), a_worker("shop-2"), a_worker("bank"), a_worker("till")]
    found = shown(gathered(a_reporter(workers, ("shop-*", "till"))))
    assert {name[1]: figure for name, figure in found.items() if name[0] == "ingest_records_total"} == {
        "shop-1": 20, "shop-2": 10, "till": 10, OTHERS: 10,
    }  # fmt: skip
    assert found["replica_lag_records", "shop-1"] == 24
    labels = StreamLabels(("*",))
    given = [labels.label_of(f"s{number}") for number in range(MAX_LABELS + 2)]
    assert given[-3:] == [f"s{MAX_LABELS - 1}", OTHERS, OTHERS]
    assert labels.label_of("s0") == "s0"
    assert StreamLabels().label_of("s0") == ""


def test_metrics_series_of_the_partitions_of_one_stream_are_bounded() -> None:
    fields = ("records_in", "bytes_in", "log_bytes", "log_start_offset", "newest_offset", "high_watermark", "leader_epoch")
    row = dict.fromkeys((*fields, "waiting_acks", "waiting_readers"), 1)
    rows = [{"stream": "s", "partition": number, "role": "LEADER" if number else "FOLLOWER", **row} for number in range(900)]
    lines = [line for line in by_partition(rows).decode().splitlines() if not line.startswith("#")]
    assert len(lines) == MOST_SERIES_OF_A_STREAM
    assert 'liftpy_partition_is_leader{partition="0",stream="s"} 0.0' in lines
    assert 'liftpy_partition_is_leader{partition="1",stream="s"} 1.0' in lines


# ---- no counter falls ---------------------------------------------------------------------------------------------------


def test_metrics_counter_does_not_decrease_when_its_source_restarts() -> None:
    grown = MonotonicCounter()
    assert [grown.of(count) for count in (3, 5, 1, 1, 4, 0)] == [3, 5, 6, 6, 9, 9]


async def test_metrics_gathering_yields_to_the_event_loop_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures_module, "ANSWER_SLICE_S", -1.0)  # any time that has passed is more, even none on a coarse clock
    monkeypatch.setattr(figures_module, "MOST_S", math.inf)  # a loaded machine takes longer, and leaves the rest for later
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(others())
    await NodeFigures(a_reporter([a_worker("s", number) for number in range(10 * READS_PER_STEP)])).gather()
    beside.cancel()
    assert turns >= 10


# ---- instruments --------------------------------------------------------------------------------------------------------
def test_histogram_counts_a_value_in_the_first_bucket_that_fits() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.1):
        histogram.observe(value, 2)
    assert histogram.counts == [4, 4, 2]
    assert histogram.total == pytest.approx(13.2)
    assert (LATENCY_S[0], LATENCY_S[-1], len(LATENCY_S)) == (0.00025, 8.192, 16)
    assert (FAILOVER_S[0], FAILOVER_S[-1], BATCH_RECORDS) == (0.01, 20.48, (1, 4, 16, 64, 256, 1024, 4096))


def test_publish_latency_is_measured_from_arrival_to_commit_per_record() -> None:
    now, instruments = [0], Instruments()
    times = PublishTimes(instruments, lambda: now[0])
    now[0] = 3_000_000
    times.appended(9, 10, 1_000_000)
    times.appended(11, 2, 3_000_000)
    now[0] = 5_000_000
    times.committed(10)
    times.answered(AckPolicy.ALL, 1_000_000, 4)
    assert instruments.queued.total == pytest.approx(0.02)
    assert instruments.batch_records.counts[:3] == [0, 1, 1]
    assert (instruments.commits.total, sum(instruments.commits.counts)) == (pytest.approx(0.02), 10)
    assert instruments.acks[AckPolicy.ALL].total == pytest.approx(0.016)
    assert not sum(instruments.acks[AckPolicy.LEADER].counts)
    times.forget()
    times.committed(11)
    assert sum(instruments.commits.counts) == 10, "what another leader commits is not this one's"
