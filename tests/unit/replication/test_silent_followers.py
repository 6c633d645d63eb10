"""Test what a leader does about silent followers: probes, ISR changes, resignation."""

from __future__ import annotations

import pytest

from liftpy.config import CommitPolicy, ReplicationConfig
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.events import Deadline
from tests.unit.replication.stepping import S, Stepped, state

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


@pytest.mark.parametrize(("away", "back"), [({"a": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}), (None, {"a": 1, "b": 2, "c": 1})])
def test_leader_measures_the_silence_of_a_returned_follower_from_its_return(
    away: dict[str, int] | None, back: dict[str, int]
) -> None:
    stepped = leader()
    if away:
        stepped.told(state(epoch=9, leader_epoch=2), away)
    stepped.fetch("c", -1)
    assert not looks(stepped, SILENT_S - 2), "one that is silent may be cut off itself"
    stepped.told(state(epoch=10, leader_epoch=2), back)
    assert not looks(stepped, SILENT_S - 2), "what counts is its silence since"
    assert looks(stepped, 5)


def test_leader_with_a_lease_and_one_fetching_follower_does_not_resign() -> None:
    stepped = leader()
    for _ in range(10):
        stepped.fetch("c", -1, leader_epoch=1)
        assert not looks(stepped, 2)
    stepped.heard()
    assert stepped.replica.serves(2, stepped.now_ns)
    assert not stepped.replica.serves(3, stepped.now_ns)
    assert not stepped.replica.serves(2, stepped.now_ns + 10 * S), "its lease is over"


def test_follower_replica_does_not_count_as_a_serving_leader() -> None:
    assert not Stepped("b").opened().replica.serves(2, 0)


EAGER = ReplicationConfig(max_lag_time_s=0.6, max_idle_wait_s=0.2)
"""A lag time below the silence after which a leader asks for a successor: 2 s of patience, and 0.36 s in which nobody need ask."""


def alone_after(stepped: Stepped, at_most_s: float) -> tuple[float, float]:
    """Seconds until it asks for a successor, and until it wants to be alone in the ISR; where neither comes, ``at_most_s``."""
    begin_ns, asked_s, alone_s = stepped.now_ns, at_most_s, at_most_s
    while stepped.now_ns < begin_ns + at_most_s * S:
        stepped.heard()
        stepped.step(LAG, 0.1)
        now_s = (stepped.now_ns - begin_ns) / S
        if stepped.has(do.GiveUpLeadership):
            asked_s = min(asked_s, now_s)
        if stepped.has(do.ProposeIsr) and stepped.only(do.ProposeIsr).isr == {"a"}:
            alone_s = min(alone_s, now_s)
    return asked_s, alone_s


def test_leader_without_fetches_resigns_before_it_shrinks_the_isr_to_itself() -> None:
    """Seed 68 of the simulator's ``lasting`` profile: alone in it there was nobody to hand over to, for as long as it was deaf."""
    stepped = Stepped("a", EAGER).leads(state(leader_epoch=2, min_isr=1))
    stepped.publish()
    for follower in "bc":
        stepped.fetch(follower, 0)
    asked_s, alone_s = alone_after(stepped, 10)
    assert asked_s == pytest.approx(2.36, abs=0.15)
    assert alone_s == pytest.approx(asked_s + 2, abs=0.15), "nobody took over: it goes on alone"


@pytest.mark.parametrize(("live", "asks"), [({"a": 1, "b": 1}, False), ({"a": 1, "b": 1, "c": 1}, True)])
def test_leader_with_one_silent_follower_shrinks_the_isr_to_itself_at_once(live: dict[str, int], asks: bool) -> None:
    stepped = Stepped("a", EAGER).leads(state(leader_epoch=2, min_isr=1, isr="ab"))
    stepped.publish()
    stepped.fetch("b", 0)
    stepped.publish()
    stepped.told(state(leader_epoch=2, min_isr=1, epoch=2, isr="ab"), live)
    proposed_s = 0.0
    for number in range(1, 13):
        stepped.heard()
        if asks:
            stepped.fetch("c", -1, leader_epoch=1)
        stepped.step(LAG, 0.1)
        if not proposed_s and stepped.has(do.ProposeIsr) and stepped.only(do.ProposeIsr).isr == {"a"}:
            proposed_s = number / 10
    assert EAGER.max_lag_time_s <= proposed_s <= 1.0


PROBE = Deadline.PROBE


def leads(**partition: object) -> Stepped:
    """Epoch 2, b and c have fetched, everything is committed."""
    leader = Stepped("a").leads(state(leader_epoch=2, **partition))  # type: ignore[arg-type]
    leader.publish()
    for replica in "bc":
        leader.fetch(replica, 0)
    assert leader.replica.high_watermark == 0
    return leader


def probed(leader: Stepped) -> list[str]:
    return [effect.replica for effect in leader.out if isinstance(effect, do.ProbeReplica)]


def test_leader_probes_only_followers_that_hold_back_the_high_watermark() -> None:
    leader = leads()
    leader.fire(PROBE)
    assert probed(leader) == []
    assert PROBE not in leader.deadlines, "an idle partition asks for nobody"
    leader.now_ns += S
    leader.heard()
    leader.publish()
    for replica in "bc":
        leader.fetch(replica, 1)
    leader.fire(PROBE)
    assert probed(leader) == []
    assert PROBE not in leader.deadlines


def test_leader_does_not_probe_a_slow_follower_that_fetches() -> None:
    leader = leads()
    leader.publish(5)
    for _ in range(20):
        leader.now_ns += S // 10
        leader.fetch("b", 5)
        leader.fetch("c", 0)
        if leader.deadlines[PROBE] <= leader.now_ns:
            leader.fire(PROBE)
            assert probed(leader) == []


def test_quorum_leader_probes_no_follower() -> None:
    leader = leads(policy=CommitPolicy.QUORUM)
    leader.publish()
    leader.fetch("b", 1)
    assert leader.replica.high_watermark == 1
    leader.fire(PROBE)
    assert probed(leader) == []


def test_leader_with_disabled_probes_probes_no_silent_follower() -> None:
    leader = Stepped("a", ReplicationConfig(follower_ping_delay_s=0)).leads()
    leader.publish()
    assert PROBE not in leader.deadlines


def test_absent_follower_that_left_the_isr_rejoins_only_after_a_new_fetch() -> None:
    """A replica whose disk failed says so, and does no more; it was caught up a moment ago [L8]."""
    leader = Stepped("a").leads(state(leader_epoch=2, epoch=1, isr="abc"))
    leader.publish(2)
    leader.fetch("b", 1)
    leader.fetch("c", 1)
    leader.told(state(leader_epoch=2, epoch=2, isr="ab"))
    assert not leader.has(do.ProposeIsr)
    leader.publish(1)
    leader.fetch("b", 2)
    assert not leader.has(do.ProposeIsr)
    leader.fetch("c", 2)
    assert leader.only(do.ProposeIsr).isr == frozenset("abc"), "it lives"
