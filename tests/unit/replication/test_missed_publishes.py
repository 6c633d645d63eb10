"""Test who becomes leader after publishes have missed the leader, and when the leadership does not move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from liftpy.config import StreamConfig
from liftpy.core.replication.role import all_have_lost_it, standby_successor_of
from tests.each import each
from tests.unit.replication.stepping import S, Stepped, state


@each(
    ("isr", "live", "asked", "heir"),
    [
        ("abc", "abc", {"b": 5, "c": 7}, "c"),
        ("abc", "abc", {"b": 7, "c": 5}, "b"),
        ("abc", "abc", {"b": 7, "c": 7}, "b"),
        ("ab", "abc", {"b": 5, "c": 7}, "b"),
        ("abc", "ab", {"b": 5, "c": 7}, "b"),
        ("abc", "abc", {"a": 9, "b": 5}, "b"),
        ("a", "abc", {"b": 5, "c": 7}, ""),
        ("abc", "a", {"b": 5, "c": 7}, ""),
    ],
)
def test_leader_that_missed_publishes_chooses_the_isr_member_that_fetched_last(
    isr: str, live: str, asked: dict[str, int], heir: str
) -> None:
    assert standby_successor_of("a", frozenset(isr), dict.fromkeys(live, 1), asked) == heir


@pytest.mark.parametrize(
    ("known", "before", "after", "all_have"), [(1, "x", "y", True), (1, "x", "x", False), (2, "x", "y", False)]
)
def test_missed_publishes_count_as_missed_by_all_replicas_only_if_the_only_nats_server_restarted(
    known: int, before: str, after: str, all_have: bool
) -> None:
    assert all_have_lost_it(known, before, after) is all_have


def test_leader_that_missed_publishes_chooses_a_successor_only_with_failover_standby() -> None:
    standby = StreamConfig(failover_standby=True)
    stepped = Stepped("a").leads(replace(state(leader_epoch=2), config=standby))
    for follower in "cb":
        stepped.now_ns += S
        stepped.fetch(follower, -1)
    assert stepped.replica.standby_to_lead_next() == "b"
    stepped.now_ns += S
    stepped.fetch("c", -1)
    assert stepped.replica.standby_to_lead_next() == "c"
    stepped.told(replace(state(epoch=3, leader_epoch=2), config=StreamConfig()))
    assert stepped.replica.standby_to_lead_next() == "", "nobody stands by"
    assert Stepped("b").opened().replica.standby_to_lead_next() == ""
