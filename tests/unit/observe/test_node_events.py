"""Test the events that a node records about itself, and the checks of a reader."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.observe.node_events import (
    KINDS,
    MOST_DETAIL_CHARS,
    Damage,
    NodeEvents,
    NodeSample,
    NodeWatch,
    checked_event,
    repair_texts,
)
from tests.each import each

KEY = PartitionKey("orders", "u1", 0)
MOMENT = datetime(2026, 1, 2, 12, 3, 10, tzinfo=UTC)


class Node:
    """A node whose state changes once a second."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.events = NodeEvents("n1", lambda: round(self.now_s * 1e9), lambda: 7)
        self.leaders: dict[PartitionKey, str] = {}
        self.watch = NodeWatch(self.events, stuck_s=10.0, leader_of=lambda key: self.leaders.get(key, ""))
        self.state = NodeSample(now_s=0.0, metadata_leader="n2", is_controller=True)

    def passes(self, seconds: int = 1, **changes: Any) -> list[tuple[str, str]]:
        """Change the state, let time pass, and return the new events as (kind, detail)."""
        before = self.all()
        self.state = replace(self.state, **changes)
        for _ in range(seconds):
            self.now_s += 1
            self.watch.sampled(replace(self.state, now_s=self.now_s), MOMENT)
        return self.all()[len(before) :]

    def all(self) -> list[tuple[str, str]]:
        return [(one["kind"], one.get("detail", "")) for one in self.events.after(-1, 0, 1000)["events"]]


@pytest.fixture
def node() -> Node:
    made = Node()
    assert made.passes(3) == []
    return made


def test_node_event_of_a_lost_nats_connection_has_its_duration(node: Node) -> None:
    assert node.passes(nats_problem="nats://h:1: refused") == [("nats_lost", "nats://h:1: refused")]
    assert node.passes(4, nats_problem="nats://h:1: timeout") == []
    assert node.passes(nats_problem="") == [("nats_restored", "after 5 s")]


def test_node_event_of_a_leaderless_metadata_group_has_its_start_time(node: Node) -> None:
    assert node.passes(metadata_leader="") == [("metadata_leader_lost", "")]
    assert node.watch.leaderless_since == "12:03:10"
    assert node.passes(2) == []
    assert node.passes(metadata_leader="n3") == [("metadata_leader_found", "n3 after 3 s")]
    assert node.watch.leaderless_since == ""


def test_node_watch_of_a_starting_controller_records_no_leaderless_event() -> None:
    assert Node().passes(5, metadata_leader="") == []


def test_node_event_group_stuck_is_recorded_only_if_the_lag_grows(node: Node) -> None:
    def lag(second: int, records: int) -> dict[str, tuple[int, float]]:
        return {"g": (records, float(second))}

    found = [event for second in range(12) for event in node.passes(groups=lag(second, 5))]
    assert found == [], "nobody publishes: the group is idle"
    assert node.passes(groups=lag(12, 6)) == [("group_stuck", "g: lag 6 records, 12 s")]
    assert node.watch.stuck_groups == ["g has committed nothing for 12 s, and its lag grows"]
    assert node.passes(3, groups=None) == [], "not measured again"
    assert node.passes(groups=lag(2, 6)) == [("group_moves", "g")]
    assert node.watch.stuck_groups == []


def test_node_event_group_stuck_is_not_recorded_for_a_group_that_commits_sometimes(node: Node) -> None:
    found = [event for second in range(60) for event in node.passes(groups={"g": (second, float(second % 8))})]
    assert found == []


def test_node_event_of_a_repaired_log_has_offset_and_source(node: Node) -> None:
    assert node.passes(damage={KEY: Damage(4332, "")}) == [("damage_found", "offset 4332")]
    assert node.watch.damaged_count == 1
    assert node.passes(damage={KEY: Damage(-1, "n2")}) == []
    assert node.passes(damage={}) == [("damage_repaired", "offset 4332 from n2")]
    assert repair_texts(node.events.recent("damage_repaired", 5.0)) == ["repaired orders/0 offset 4332 from n2 on n1"]
    node.now_s += 6
    assert node.events.recent("damage_repaired", 5.0) == []


def test_node_watch_names_the_new_leader_as_source_of_a_repair_after_a_transfer(node: Node) -> None:
    assert node.passes(damage={KEY: Damage(3, "")}) == [("damage_found", "offset 3")]
    node.leaders[KEY] = "n3"
    assert node.passes(damage={}) == [("damage_repaired", "offset 3 from n3")]


@pytest.mark.parametrize(
    ("changes", "event"),
    [
        ({"blocked": {(KEY, "bank"): "no such account"}}, ("service_blocked", "bank: no such account")),
        ({"differing": {(KEY, "bank"): "the state at 40 differs"}}, ("service_differs", "bank: the state at 40 differs")),
        ({"is_disk_low": True}, ("disk_low", "")),
        ({"is_overloaded": True}, ("overloaded", "")),
    ],
)
def test_node_event_of_a_lasting_problem_is_recorded_once(node: Node, changes: dict[str, Any], event: tuple[str, str]) -> None:
    assert node.passes(5, **changes) == [event]


def test_node_events_are_bounded_and_read_in_pages() -> None:
    events = NodeEvents("n1", lambda: 5_000_000_000, most=3)
    for number in range(5):
        events.add("disk_low", detail=str(number))
    page = events.after(-1, 0, 2)
    assert ([one["detail"] for one in page["events"]], page["more"]) == (["2", "3"], True)
    rest = events.after(page["events"][-1]["number"], 0, 2)
    assert ([one["detail"] for one in rest["events"]], rest["more"]) == (["4"], False)
    assert events.after(-1, 6_000_000_000, 2)["events"] == []


def test_node_event_as_json_is_accepted_by_the_reader() -> None:
    events = NodeEvents("n1", lambda: 5_000_000_000)
    events.add("records_read", key=KEY, sender="alice", detail="x" * 1000)
    [event] = events.after(-1, 0, 1)["events"]
    assert checked_event(event) == event
    assert len(event["detail"]) == MOST_DETAIL_CHARS
    assert set(KINDS) >= {event["kind"]}


@each(
    "change",
    [
        {"kind": "election"}, {"kind": [4]}, {"number": -1}, {"index": "1"}, {"time_ns": 1 << 70}, {"detail": 4},
        {"detail": "x" * 301}, {"time": None},
    ],
)  # fmt: skip
def test_node_event_with_an_invalid_field_is_rejected(change: dict[str, Any]) -> None:
    event = {"kind": "disk_low", "index": 1, "number": 2, "time_ns": 3, "time": "t", "node": "n1"}
    assert checked_event(event) == event
    assert checked_event({**event, **change}) is None
    assert checked_event([]) is None
