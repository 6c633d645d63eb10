"""Test the health checks: live, ready and synced."""

from __future__ import annotations

from typing import Any

from liftpy.core.base.ids import PartitionKey
from liftpy.core.observe.node_health import Check, HealthInput, ReplicaSyncCheck, live, ready, text_lines
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
