"""The last ISR member fails, and only it may lead afterwards (KIP-966).

The ISR has shrunk to one node, and that node fails. Whoever comes back first must not lead if it lacks committed records. If
the last one comes back whole, it leads; if its disk is gone, nobody leads until the operator decides, in plain words and on
record. A system that elects from all replicas, or lets the emptied one lead again, loses acknowledged data in silence.

Shows C3, C5, C7, C10, C11, C12, D1, D20.
"""

from __future__ import annotations

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.scripts.stage import Stage

KILLS = ("election from all replicas", "lossy restart stays in the ISR", "min_isr not looked at")


def _only_the_leader_is_left(s: Stage) -> tuple[str, str, str]:
    a, b, c = s.leader, *s.followers
    s.publish(2)
    s.settle()
    s.crash(b, c)
    s.until(lambda: s.isr_known_to(a) == {a})
    return a, b, c


def test_last_isr_member_below_min_isr_rejects_publishes() -> None:
    with Stage(min_isr=2) as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        s.settle()
        s.crash(b, c)
        waiting = s.send()  # appended, before the leader knows how alone it is
        s.until(lambda: s.isr_known_to(a) == {a})
        assert s.outcome(s.send()) == "BELOW_MIN_ISR"
        s.always(lambda: s.hw(a) == 1 and not waiting.acked, 3)
        s.start(b, c)
        s.until(lambda: s.isr == {a, b, c})
        s.publish(1)


def test_last_isr_member_that_committed_alone_is_the_only_electable_leader() -> None:
    with Stage(min_isr=1) as s:
        a, b, c = _only_the_leader_is_left(s)
        s.publish(2)
        s.power_off(a)
        s.start(b, c)
        s.until(lambda: s.status is PartitionStatus.OFFLINE)
        s.always(lambda: s.leader == "", 20)
        s.start(a)
        s.wait_for_leader(a)
        s.until(lambda: s.isr == {a, b, c})
        assert s.ids(b) == s.ids(c) == [1, 2, 3, 4]


def test_last_isr_member_with_a_lost_disk_needs_an_operators_unclean_election() -> None:
    with Stage(min_isr=1, ends_whole=False, reader=False) as s:
        a, b, c = _only_the_leader_is_left(s)
        s.publish(2)
        s.crash(a)
        s.empty_disk(a)
        s.start(a, b, c)
        s.until(lambda: s.role(b) == s.role(c) == s.role(a) == "WAITING")
        s.always(lambda: s.leader == "" and s.isr == {a}, 20)
        assert s.partition.incomplete == (a,)

        refused = s.command(pb.ControlRequest(electLeader=_elect(s, b, unclean=False)))
        assert refused.error != pb.ControlResponse.OK
        assert s.command(pb.ControlRequest(electLeader=_elect(s, b, unclean=True))).error == pb.ControlResponse.OK
        s.wait_for_leader(b)
        assert s.partition.unclean_elected, "readers and operators can see it"
        assert s.ids(b) == [1, 2]
        s.until(lambda: s.isr == {a, b, c})


def _elect(s: Stage, node: str, *, unclean: bool) -> pb.ElectLeader:
    key = s.cluster.key
    return pb.ElectLeader(stream=key.stream, uid=key.uid, partition=key.partition, node=node, unclean=unclean)
