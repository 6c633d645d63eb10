"""Followers that hold HW back in silence are asked for on the bus, and leave when nobody listens for them."""

from __future__ import annotations

from liftpy.config import CommitPolicy, ReplicationConfig
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.events import Deadline
from tests.unit.replica.stepping import S, Stepped, state

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


def absent(leader: Stepped, replica: str) -> list[str]:
    """The ISR that is asked for after nobody listened for ``replica``; [] if none is."""
    leader.step(ev.ReplicaAbsent(replica=replica))
    proposals = [effect for effect in leader.out if isinstance(effect, do.ProposeIsr)]
    return sorted(proposals[0].isr) if proposals else []


def test_a_silent_follower_is_asked_for_and_leaves_when_it_is_absent_twice() -> None:
    leader = leads()
    leader.publish()
    leader.fetch("b", 1)
    leader.fire(PROBE)
    assert probed(leader) == ["c"]
    assert absent(leader, "c") == [], "a connection that was reset"
    leader.fire(PROBE)
    assert probed(leader) == ["c"]
    assert absent(leader, "c") == ["a", "b"]


def test_a_fetch_in_between_makes_it_present() -> None:
    leader = leads()
    leader.publish()
    leader.fetch("b", 1)
    leader.fire(PROBE)
    absent(leader, "c")
    leader.fetch("c", 0)
    assert absent(leader, "c") == [], "it was not asked for since"
    leader.now_ns += S
    leader.heard()
    leader.fire(PROBE)
    assert probed(leader) == ["c"]
    assert absent(leader, "c") == []
    assert absent(leader, "c") == ["a", "b"]


def test_nobody_is_asked_for_who_does_not_hold_back_what_is_flushed() -> None:
    leader = leads()
    leader.fire(PROBE)
    assert probed(leader) == []
    assert not leader.replica._shared.deadlines.is_set(PROBE), "an idle partition asks for nobody"
    leader.now_ns += S
    leader.heard()
    leader.publish()
    for replica in "bc":
        leader.fetch(replica, 1)
    leader.fire(PROBE)
    assert probed(leader) == []
    assert not leader.replica._shared.deadlines.is_set(PROBE)


def test_who_fetches_is_not_asked_for_however_slow_it_is() -> None:
    leader = leads()
    leader.publish(5)
    for _ in range(20):
        leader.now_ns += S // 10
        leader.fetch("b", 5)
        leader.fetch("c", 0)
        if leader.replica._shared.deadlines._at_ns[PROBE] <= leader.now_ns:
            leader.fire(PROBE)
            assert probed(leader) == []


def test_absence_leaves_no_leader_alone_and_does_not_go_below_min_isr() -> None:
    for partition in ({"min_isr": 1}, {"min_isr": 2}, {"min_isr": 3}):
        leader = leads(**partition)
        leader.publish()
        if partition["min_isr"] == 3:
            leader.fetch("b", 1)
        leader.fire(PROBE)
        gone = probed(leader)
        for replica in gone * 3:
            assert absent(leader, replica) == [], partition


def test_a_quorum_waits_for_nobody() -> None:
    leader = leads(policy=CommitPolicy.QUORUM)
    leader.publish()
    leader.fetch("b", 1)
    assert leader.replica.high_watermark == 1
    leader.fire(PROBE)
    assert probed(leader) == []


def test_it_can_be_switched_off() -> None:
    leader = Stepped("a", ReplicationConfig(follower_ping_delay_s=0)).leads()
    leader.publish()
    assert not leader.replica._shared.deadlines.is_set(PROBE)


def test_a_follower_does_not_care_who_is_absent() -> None:
    follower = Stepped("b").follows()
    assert follower.step(ev.ReplicaAbsent(replica="c")) == []


def test_who_has_left_the_isr_by_itself_comes_back_only_when_it_has_fetched_again() -> None:
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
