"""Test that each health verdict refers to an existing runbook, existing events and an alert."""

from __future__ import annotations

from pathlib import Path

import yaml

from liftpy.core.metadata.controller import cluster_events
from liftpy.core.metadata.image import INSUFFICIENT_NODES
from liftpy.core.observe import node_events
from liftpy.core.observe.cluster_health import DEGRADED, OK, UNAVAILABLE, VERDICTS, judge, reason, verdict_of
from liftpy.core.observe.node_summary import NodeSummary
from tests.each import each

ROOT = Path(__file__).resolve().parents[3]
RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
ALERTS = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in RULES}
FACTS = dict.fromkeys(("who", "why", "since", "partitions"), "x")


def test_health_verdict_of_a_cluster_contains_a_lost_directory_reported_by_any_controller() -> None:
    healthy = {"metadata_leader": "n1", "is_controller": True, "nodes": {"n1": "live", "n2": "live"}}
    restarted = NodeSummary(node="n1", index=9, **healthy)  # type: ignore[arg-type]
    other = NodeSummary(node="n2", index=8, lost_directories=("n1",), **healthy)  # type: ignore[arg-type]
    assert [one.word for one in judge({"n1": restarted, "n2": other}).reasons] == ["directory-lost"]


@each("word", VERDICTS)
def test_health_verdict_refers_to_an_existing_runbook_alert_and_events(word: str) -> None:
    row = VERDICTS[word]
    assert (ROOT / "docs" / "runbooks" / f"{row.runbook}.md").is_file()
    assert row.events
    assert set(row.events) <= {*cluster_events.KINDS, *node_events.KINDS}
    assert ALERTS[row.alert] == f"docs/runbooks/{row.runbook}.md"
    assert reason(word, **FACTS).line.startswith(f"{word}: ")


def test_health_verdict_of_an_unplaced_stream_has_the_word_of_the_stream_state() -> None:
    assert INSUFFICIENT_NODES in VERDICTS


def test_health_verdict_of_a_cluster_orders_reasons_by_severity_then_by_the_table() -> None:
    found = verdict_of([reason("repaired", why="x"), reason("silent", who="n1"), reason("offline", partitions="1 partition")])
    assert (found.word, [one.word for one in found.reasons]) == (UNAVAILABLE, ["offline", "repaired", "silent"])
    assert verdict_of([reason("silent", who="n1")]).word == DEGRADED
    assert verdict_of([]).word == OK
