"""Test the status summary of a node: its numbers equal the metrics, and it is computed at a limited rate."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from liftpy.core.observe.node_summary import ASKED, LATENCY_S, summary_from_json
from liftpy.core.wire.subjects import InboxRule, Subjects
from sidecar.runtime.settings import NodeSettings
from sidecar.status.status_api import StatusHandler, summarize_node
from tests.unit.status.fake_bus import Bus
from tests.unit.status.fake_reporter import a_reporter, a_worker, gathered, shown


def test_status_summary_numbers_equal_the_metrics() -> None:
    reporter = a_reporter([a_worker(), a_worker("t", 1, isr=("n1",))], incarnation=6, uptime_s=7.25)
    reporter.instruments.acks[next(iter(reporter.instruments.acks))].observe(0.003, 4)
    found = gathered(reporter)
    glance, metric = summarize_node(found, reporter), shown(found)
    assert (glance.node, glance.incarnation, glance.uptime_s, glance.metadata_leader) == ("n1", 6, 7.2, "n1")
    for field, name in (
        ("records_in", ("ingest_records_total",)),
        ("bytes_in", ("ingest_bytes_total",)),
        ("records_out", ("read_records_total",)),
        ("bytes_out", ("read_bytes_total",)),
        ("leads", ("partitions", "leader")),
        ("under_replicated", ("partitions_under_replicated",)),
        ("under_min_isr", ("partitions_under_min_isr",)),
        ("at_min_isr", ("partitions_at_min_isr",)),
        ("failed", ("partitions_failed",)),
        ("services_blocked", ("services_blocked",)),
        ("lag_records", ("replica_lag_records",)),
        ("streams", ("cluster_streams",)),
        ("offline", ("cluster_partitions_offline",)),
        ("electing", ("cluster_partitions_electing",)),
    ):
        assert getattr(glance, field) == metric[name], field
    assert (glance.under_replicated, glance.under_min_isr, glance.leads) == (1, 1, 2), "the numbers are not all nothing"
    assert sum(glance.acks) == metric["ack_duration_seconds_count", "all"] + metric["ack_duration_seconds_count", "leader"] == 4
    assert len(glance.acks) == len(glance.loop_lag) == len(LATENCY_S) + 1
    assert glance.queued == pytest.approx(metric["queued_bytes",] / metric["queued_bytes_limit",])
    assert glance.disk_free == pytest.approx(metric["disk_free_bytes",] / metric["disk_size_bytes",], abs=0.01)
    assert glance.nodes == {"a": "live", "b": "fenced", "c": "drained", "d": "live"}
    assert sum(metric["cluster_nodes", state] for state in ("live", "fenced", "drained")) == 4
    assert len(glance.encode()) <= 1024


def test_status_summary_of_a_node_that_is_no_controller_has_no_cluster_numbers() -> None:
    reporter = a_reporter([a_worker()], incarnation=6, uptime_s=7.0)
    reporter.group.is_controller = False
    glance = summarize_node(gathered(reporter), reporter)
    assert (glance.nodes, glance.index, glance.streams) == ({}, 0, 0)


async def test_status_subject_answers_a_summary_request_over_nats(tmp_path: Path) -> None:
    bus, handler = Bus(), StatusHandler(NodeSettings("n1", tmp_path))
    handler.listen(bus, Subjects("ns"), (InboxRule(("_INBOX.",)),))  # type: ignore[arg-type]
    ask = bus.listening["ns.status.n1"]
    ask(b"ns.status.n1", b"_INBOX.a", ASKED, b"")
    assert not bus.sent, "there is nothing to say yet"
    handler.reporter = a_reporter([a_worker()], incarnation=6, uptime_s=7.0)
    ask(b"ns.status.n1", b"shop.orders", ASKED, b"")
    ask(b"ns.status.n1", b"_INBOX.a", ASKED, b"")
    ask(b"ns.status.n1", b"_INBOX.b", ASKED, b"")
    while len(bus.sent) < 2:
        await asyncio.sleep(0)
    assert [to for to, _ in bus.sent] == ["_INBOX.a", "_INBOX.b"]
    glance = summary_from_json(json.loads(bus.sent[0][1])["glance"])
    assert glance is not None
    assert glance.records_in == 10


async def test_status_answer_to_a_summary_request_is_the_summary(tmp_path: Path) -> None:
    handler = StatusHandler(NodeSettings("n1", tmp_path))
    handler.reporter = a_reporter([a_worker()], incarnation=6, uptime_s=7.0)
    glance = summary_from_json(json.loads(await handler.answer(ASKED))["glance"])
    assert glance is not None
    assert (glance.node, glance.records_in) == ("n1", 10)
