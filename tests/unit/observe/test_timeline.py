"""Test the timeline: related events within seconds are one group, the newest first."""

from __future__ import annotations

from typing import Any

from liftpy.config import NS_PER_S
from liftpy.core.observe.timeline import TOGETHER_NS, group_events, summarize_group


def event(at_s: float, kind: str, partition: int = 0, stream: str = "s", **said: Any) -> dict[str, Any]:
    return {"time_ns": int(at_s * NS_PER_S), "kind": kind, "stream": stream, "partition": partition, **said}


def a_node_dies() -> list[dict[str, Any]]:
    """Oldest first: n3 led 6 of 12 partitions of two streams."""
    told = [event(0, "stream_created")]
    for number in range(6):
        told.append(
            event(10 + number / 10, "election", number, was="n3", now="n1" if number % 3 else "n2", detail=f"epoch {number}")
        )
        told.append(event(10 + number / 10, "isr_changed", number, was="n3 n1 n2", now="n1 n2"))
    told += [event(11, "isr_changed", number, "t", was="n1 n2 n3", now="n1 n2") for number in range(6)]
    return told


def test_timeline_of_a_dead_node_groups_its_events_into_two_lines() -> None:
    told = a_node_dies()
    groups = group_events(reversed(told))
    assert [(group[0]["kind"], len(group)) for group in groups] == [("isr_changed", 12), ("election", 6), ("stream_created", 1)]
    assert summarize_group(groups[0]) == "12 partitions of 2 streams: n3 left"
    assert summarize_group(groups[1]) == "6 partitions of s: n3 -> n1 (4), n2 (2)"
    assert sorted(map(repr, (one for group in groups for one in group))) == sorted(map(repr, told)), "nothing is left out"
    for group in groups:
        assert [one["time_ns"] for one in group] == sorted((one["time_ns"] for one in group), reverse=True)


def test_timeline_group_of_isr_changes_lists_replicas_that_joined_and_left() -> None:
    back = [event(1, "isr_changed", number, was="n1", now="n1 n2") for number in range(2)]
    both = [event(1, "isr_changed", number, was="n1 n3", now="n1 n2") for number in range(2)]
    assert [summarize_group(group) for group in group_events([*back, *both])] == [
        "2 partitions of s: n2 is back",
        "2 partitions of s: n3 left, n2 is back",
    ]
    gone = [event(1, "partition_offline", number, was="n1") for number in range(1_200)]
    assert [summarize_group(group) for group in group_events(gone)] == ["1,200 partitions of s: n1"]
    first = [event(1, "election", number, now="n1") for number in range(2)]
    assert [summarize_group(group) for group in group_events(first)] == ["2 partitions of s: none -> n1 (2)"]


def test_timeline_group_of_elections_names_the_most_frequent_cause() -> None:
    fenced = "n3 sent no heartbeat for 3 s"
    causes = [fenced, fenced, "n3 cannot be reached by n1", "no disk space"]
    elected = [
        event(1, "election", number, was="n3", now="n1", detail=f"epoch 7, because {cause}")
        for number, cause in enumerate(causes)
    ]
    assert summarize_group(elected[:2]) == f"2 partitions of s: n3 -> n1 (2), because {fenced}"
    assert summarize_group(elected[:3]) == f"3 partitions of s: n3 -> n1 (3), because {fenced} (and 1 other cause)"
    assert summarize_group(elected) == f"4 partitions of s: n3 -> n1 (4), because {fenced} (and 2 other causes)"
    left = [event(1, "isr_changed", number, was="n1 n3", now="n1", detail="n3 is fenced") for number in range(2)]
    assert summarize_group(left) == "2 partitions of s: n3 left, because n3 is fenced"


def test_timeline_shows_distant_or_different_events_in_separate_groups() -> None:
    late = TOGETHER_NS / NS_PER_S
    flapping = [event(20 - late * number, "isr_changed", number, was="n1 n2", now="n1") for number in range(3)]
    assert [len(group) for group in group_events(flapping)] == [3], "one behind the other"
    apart = [event(20 - (late + 0.1) * number, "isr_changed", number, was="n1 n2", now="n1") for number in range(3)]
    assert [len(group) for group in group_events(apart)] == [1, 1, 1]
    others = [event(1, "isr_changed", 0, was="n1 n2", now="n1"), event(1, "isr_changed", 1, was="n2 n3", now="n2")]
    assert [len(group) for group in group_events(others)] == [1, 1]
    leaders = [event(1, "election", 0, was="n1", now="n2"), event(1, "election", 1, was="n3", now="n2")]
    assert [len(group) for group in group_events(leaders)] == [1, 1]


def test_timeline_does_not_group_unclean_elections_and_replica_changes() -> None:
    alone = [
        event(1, kind, number, was="n1", now="n2") for kind in ("unclean_election", "replicas_changed") for number in range(2)
    ]
    requests = [{"time_ns": 1, "kind": "request", "request": "createStream", "stream": "s"} for _ in range(2)]
    odd: list[dict[str, Any]] = [
        {"time_ns": 1, "kind": ["election"], "stream": [], "partition": {}},
        {"time_ns": 1, "kind": "election", "stream": [1], "partition": {}, "was": ["n1"], "now": {"n": 2}},
        {"time_ns": 1, "kind": "election", "stream": {}, "partition": 2, "was": ["n1"], "now": 3},
    ]
    groups = group_events([*alone, *requests, *odd])
    assert [len(group) for group in groups] == [1] * 7 + [2]
    assert summarize_group(groups[-1]) == "2 partitions of 2 streams: ['n1'] -> 3 (1), {'n': 2} (1)"
