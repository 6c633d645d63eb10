"""A stream becomes read-only, its leader dies, it takes publishes again: no leader stores anything meanwhile, and readers go on.

Shows A2, M11.
"""

from __future__ import annotations

from liftpy.cluster.stream_config import config_to_pb
from liftpy.config import StreamConfig
from liftpy.wire._pb import cluster_pb2 as pb
from tests.scripts.stage import STREAM, Stage

KILLS = ("a leader heeds no read-only",)


def read_only(s: Stage, wanted: bool) -> None:
    """``liftpy stream alter --read-only``; then wait until every replica's node knows."""
    settings = pb.AlterStream(name=STREAM, config=config_to_pb(StreamConfig(read_only=wanted)), changed=["readOnly"])
    response = s.command(pb.ControlRequest(alterStream=settings))
    assert response.error == pb.ControlResponse.OK, response.detail
    s.until(lambda: all(s.replica(node).log.config.read_only is wanted for node in s.partition.replicas))


def test_read_only() -> None:
    with Stage() as s:
        s.publish(2)
        read_only(s, True)
        assert s.outcome(s.send()) == "READ_ONLY"
        old = s.leader
        s.crash(old)
        s.wait_for_leader(*s.followers)
        while s.outcome(sent := s.send()) != "READ_ONLY":
            assert not sent.acked
            assert s.now_s < 60
        assert s.ids(s.leader) == [1, 2]
        read_only_nodes = [node for node in s.partition.replicas if node != old]
        assert all(s.replica(node).log.config.read_only for node in read_only_nodes)
        s.start(old)
        s.until(lambda: len(s.isr) == 3)
        read_only(s, False)
        last = s.publish(1)[0]
        assert s.ids(s.leader) == [1, 2, *last.ids]
