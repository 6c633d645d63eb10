"""A leader that nobody can reach says so itself, and says no when it is asked whether it serves."""

from __future__ import annotations

import pytest

from liftpy.config import ReplicationConfig
from liftpy.replica import effects as do
from liftpy.replica import events as ev
from tests.unit.replica.stepping import S, Stepped, state

LAG = ev.DeadlineReached(kind=ev.Deadline.LAG)
SILENT_S = ReplicationConfig().max_leader_timeout_s + 0.6 * ReplicationConfig().max_lag_time_s


def leader() -> Stepped:
    stepped = Stepped("a").leads()
    for follower in "bc":
        stepped.fetch(follower, -1)
    return stepped


def looks(stepped: Stepped, after_s: float) -> bool:
    """Whether it gives up at one of its looks, ``after_s`` later."""
    end_ns = stepped.now_ns + round(after_s * S)
    gave_up = False
    while stepped.now_ns < end_ns:
        stepped.step(LAG, 1.25)
        gave_up = gave_up or stepped.has(do.GiveUpLeadership)
    return gave_up


def test_its_data_path_is_down_for_longer_than_a_leader_may_be_silent() -> None:
    stepped = leader()
    stepped.step(ev.DataPathChanged(is_up=False))
    stepped.step(LAG, 1.25)
    assert not stepped.has(do.GiveUpLeadership)
    stepped.step(ev.DataPathChanged(is_up=True))
    stepped.step(ev.DataPathChanged(is_up=False))
    stepped.step(LAG, 1.25)
    assert not stepped.has(do.GiveUpLeadership), "it was back meanwhile"
    stepped.step(LAG, 1.25)
    assert stepped.only(do.GiveUpLeadership).leader_epoch == 2
    stepped.heard()
    assert not stepped.replica.serves(2, stepped.now_ns)


@pytest.mark.parametrize(("live", "gives_up"), [("abc", True), ("ab", False), ("a", False)])
def test_no_live_replica_asks_for_anything(live: str, gives_up: bool) -> None:
    stepped = leader()
    stepped.told(state(epoch=9, leader_epoch=2), dict.fromkeys(live, 1))
    assert looks(stepped, SILENT_S + 3) == gives_up, "one that is silent may be cut off itself"


@pytest.mark.parametrize(("away", "back"), [({"a": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}), (None, {"a": 1, "b": 2, "c": 1})])
def test_one_that_has_just_come_back_was_not_silent(away: dict[str, int] | None, back: dict[str, int]) -> None:
    stepped = leader()
    if away:
        stepped.told(state(epoch=9, leader_epoch=2), away)
    stepped.fetch("c", -1)
    assert not looks(stepped, SILENT_S - 2), "one that is silent may be cut off itself"
    stepped.told(state(epoch=10, leader_epoch=2), back)
    assert not looks(stepped, SILENT_S - 2), "what counts is its silence since"
    assert looks(stepped, 5)


def test_one_that_asks_is_enough() -> None:
    stepped = leader()
    for _ in range(10):
        stepped.fetch("c", -1, leader_epoch=1)
        assert not looks(stepped, 2)
    stepped.heard()
    assert stepped.replica.serves(2, stepped.now_ns)
    assert not stepped.replica.serves(3, stepped.now_ns)
    assert not stepped.replica.serves(2, stepped.now_ns + 10 * S), "its lease is over"


def test_nobody_else_serves() -> None:
    assert not Stepped("b").opened().replica.serves(2, 0)
