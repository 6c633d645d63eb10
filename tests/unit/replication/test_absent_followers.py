"""Test the probe for silent followers that hold the high watermark back: they leave the ISR if no subscriber exists."""

from __future__ import annotations

from liftpy.config import CommitPolicy, ReplicationConfig
from liftpy.core.replication import effects as do
from liftpy.core.replication.events import Deadline
from tests.unit.replication.stepping import S, Stepped, state

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
    assert not leader.replica._shared.deadlines.is_set(PROBE), "an idle partition asks for nobody"
    leader.now_ns += S
    leader.heard()
    leader.publish()
    for replica in "bc":
        leader.fetch(replica, 1)
    leader.fire(PROBE)
    assert probed(leader) == []
    assert not leader.replica._shared.deadlines.is_set(PROBE)


def test_leader_does_not_probe_a_slow_follower_that_fetches() -> None:
    leader = leads()
    leader.publish(5)
    for _ in range(20):
        leader.now_ns += S // 10
        leader.fetch("b", 5)
        leader.fetch("c", 0)
        if leader.replica._shared.deadlines._at_ns[PROBE] <= leader.now_ns:
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
    assert not leader.replica._shared.deadlines.is_set(PROBE)


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
