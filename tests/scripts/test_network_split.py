"""The network splits: the leader and its publishers are on one side, a majority on the other. Or one link stays broken.

The side with the majority goes on, the other one stands: what it takes is acknowledged to nobody, and is cut away when the network is
whole again. A follower that stays out of the ISR is no danger, but one more failure is: the operator gives its place to another node.

Shows C1, D1, D12, D22, A2, L1, M11. The runbooks network-split and isr-stuck.
"""

from __future__ import annotations

from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.scripts.stage import STREAM, Stage


def test_network_split_replaces_the_isolated_leader_by_one_on_the_majority_side() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        epoch = s.leader_epoch
        s.cut(a, b)
        s.cut(a, c)
        s.cut_metadata(a)
        alone = [s.send() for _ in range(2)]  # publishers reach both sides
        s.until(lambda: s.end(a) == 4)
        assert [one.outcome for one in alone] == ["waiting"] * 2, "of the ISR one has them"
        s.until(lambda: s.phase(a) == "LEADER_NO_LEASE")
        mute = s.hold("ack", sender=a)
        leader = s.wait_for_leader(b, c)
        s.publish(3)
        s.always(lambda: s.leader == leader and s.isr == {b, c}, 10)
        assert s.leader_epoch > epoch
        assert mute.count == 0
        s.mend(a, b)
        s.mend(a, c)
        s.mend_metadata(a)
        s.until(lambda: s.isr == {a, b, c})
        s.settle()
        assert s.ids(a) == s.ids(b) == s.ids(c)


def test_reassignment_replaces_a_replica_that_a_network_split_keeps_out_of_the_isr() -> None:
    with Stage(nodes=4) as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        s.cut(a, c)
        s.until(lambda: s.isr == {a, b})
        s.crash(c)
        s.start(c)
        s.always(lambda: s.isr == {a, b}, 20)
        request = pb.Reassign(stream=STREAM, partition=0, replicas=(a, b, "n4"))
        assert s.command(pb.ControlRequest(reassign=request)).error == pb.ControlResponse.OK
        s.until(lambda: s.isr == {a, b, "n4"} and set(s.partition.replicas) == {a, b, "n4"})
        s.publish(2)
        assert s.ids("n4") == [1, 2, 3, 4]
        s.mend(a, c)
        s.until(lambda: s.cluster.replica(c) is None)
