"""Two reports of a silent leader about different leader epochs do not add up.

b could not reach a in epoch 1. Since then a has lost and regained the leadership. Now c's report about epoch 3 comes in; if reports
were counted by leader, and not by leadership, b's old one and c's would be a majority and depose a healthy leader. A report that is
about a leadership that has passed is refused, and all are cleared with every change of leader.

Shows C9, L8.
"""

from __future__ import annotations

from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.scripts.stage import Stage
from tests.simulation.replica.cluster import STREAM


def report(s: Stage, witness: str, leader: str, leader_epoch: int) -> pb.ControlResponse:
    """``witness`` says that it can't reach ``leader``, which led in ``leader_epoch``."""
    node = s.cluster.group.image.nodes[witness]
    request = pb.ReportLeader(
        stream=STREAM, uid=s.cluster.key.uid, partition=0, witness=witness, witnessIncarnation=node.incarnation,
        leader=leader, leaderEpoch=leader_epoch, lastEpoch=leader_epoch, newestOffset=s.true_hw,
    )  # fmt: skip
    return s.command(pb.ControlRequest(reportLeader=request))


def test_silent_leader_reports_about_two_different_epochs_trigger_no_election() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        first = s.leader_epoch
        s.publish(2)
        assert report(s, b, a, first).error == pb.ControlResponse.OK
        s.move_leader(b)
        s.move_leader(a)
        again = s.leader_epoch
        assert report(s, c, a, again).error == pb.ControlResponse.OK
        assert report(s, b, a, first).error == pb.ControlResponse.STALE
        s.always(lambda: s.leader == a and s.leader_epoch == again, 5)
        s.publish(1)


def test_silent_leader_reports_about_the_same_epoch_trigger_an_election() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        epoch = s.leader_epoch
        assert report(s, b, a, epoch).error == pb.ControlResponse.OK
        assert report(s, b, a, epoch).error == pb.ControlResponse.OK
        assert s.leader == a, "one witness counts once"
        assert report(s, c, a, epoch).error == pb.ControlResponse.OK
        assert s.wait_for_leader(b, c) != a
        s.publish(1)
