"""Test the health of a node, and the verdict about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata.controller import cluster_events
from liftpy.core.metadata.image import INSUFFICIENT_NODES
from liftpy.core.observe import node_events
from liftpy.core.observe.cluster_health import DEGRADED, OK, UNAVAILABLE, VERDICTS, check_cluster, reason, verdict_of
from liftpy.core.observe.node_health import Check, HealthInput, ReplicaSyncCheck, live, ready, text_lines
from liftpy.core.observe.node_summary import NodeSummary
from tests.each import each

WELL: dict[str, Any] = {"registered": True, "nats": True, "metadata_silence_s": 1.0, "session_s": 9.0, "opened": True}
A, B = PartitionKey("s", "u1", 0), PartitionKey("s", "u1", 1)


def failing(checks: list[Check]) -> list[str]:
    return [check.name for check in checks if not check.ok]


@each(
    ("signs", "not_live", "not_ready"),
    [
        ({}, [], []),
        ({"failure": "the disk is gone"}, ["tasks"], []),
        ({"longest_flush_s": 30.0}, ["flush"], []),
        ({"longest_flush_s": 29.0}, [], []),
        ({"longest_flush_s": 3.0, "hung_flush_s": 2.5}, ["flush"], []),
        ({"nats": False, "metadata_silence_s": 9.5}, [], ["nats", "metadata"]),
        ({"metadata_silence_s": 9.0}, [], []),
        ({"metadata_silence_s": None}, [], ["metadata"]),
        ({"registered": False}, [], ["registered"]),
        ({"opened": False, "opening": 3}, [], ["partitions"]),
        ({"opening": 3}, [], []),
        ({"stopped_for_space": 2}, [], ["space"]),
    ],
)
def test_health_problem_fails_only_its_own_check(signs: dict[str, Any], not_live: list[str], not_ready: list[str]) -> None:
    seen = HealthInput(**{**WELL, **signs})
    assert (failing(live(seen)), failing(ready(seen))) == (not_live, not_ready)


def test_health_report_has_one_line_per_check_with_the_reason() -> None:
    lines = text_lines(ready(HealthInput(**{**WELL, "nats": False})))
    assert lines.splitlines()[:2] == ["[+] registered", "[-] nats: not connected"]


def test_health_synced_stays_true_after_all_partitions_were_in_sync() -> None:
    synced = ReplicaSyncCheck()
    assert not synced.update([(A, True)], opened=False).ok
    assert "1 of 2 have not caught up yet, s/1" in synced.update([(A, True), (B, False)], opened=True).why
    assert not synced.update([(A, False), (B, False)], opened=True).ok
    assert synced.update([(A, False), (B, True)], opened=True).ok, "each has been in sync once"
    assert synced.update([(A, False), (B, False)], opened=True).ok, "a later lag takes nothing out of service"


def test_health_synced_is_true_without_partitions() -> None:
    assert ReplicaSyncCheck().update([], opened=True).ok


ROOT = Path(__file__).resolve().parents[3]
RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
ALERTS = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in RULES}
FACTS = dict.fromkeys(("who", "why", "since", "partitions"), "x")


def test_health_verdict_of_a_cluster_contains_a_lost_directory_reported_by_any_controller() -> None:
    healthy = {"metadata_leader": "n1", "is_controller": True, "nodes": {"n1": "live", "n2": "live"}}
    restarted = NodeSummary(node="n1", index=9, **healthy)  # type: ignore[arg-type]
    other = NodeSummary(node="n2", index=8, lost_directories=("n1",), **healthy)  # type: ignore[arg-type]
    assert [one.word for one in check_cluster({"n1": restarted, "n2": other}).reasons] == ["directory-lost"]


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
