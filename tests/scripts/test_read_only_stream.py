"""A stream becomes read-only, its leader dies, and it becomes writable again: no leader stores a publish meanwhile.

Shows A2, M11.
"""

from __future__ import annotations

from liftpy.config import StreamConfig
from liftpy.core.metadata.codec import CONFIG
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.scripts.stage import STREAM, Stage


def alter(s: Stage, config: StreamConfig, setting: str) -> None:
    """``liftpy stream alter``."""
    settings = pb.AlterStream(name=STREAM, config=CONFIG.to_pb(config), changed=[setting])
    response = s.command(pb.ControlRequest(alterStream=settings))
    assert response.error == pb.ControlResponse.OK, response.detail


def knows(s: Stage, node: str, wanted: bool) -> bool:
    """Whether a replica's node knows."""
    return s.replica(node).log.config.read_only is wanted


def read_only(s: Stage, wanted: bool) -> None:
    """``--read-only``; then wait until every replica's node knows."""
    alter(s, StreamConfig(read_only=wanted), "readOnly")
    s.until(lambda: all(knows(s, node, wanted) for node in s.partition.replicas))


def test_read_only_stream_rejects_publishes_before_and_after_a_failover() -> None:
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


def the_next_leader_holds(s: Stage, *ids: int) -> None:
    s.crash(s.leader)
    s.wait_for_leader(*s.followers)
    s.settle()
    assert s.ids(s.leader) == list(ids)


def test_publish_rejected_by_a_leader_that_missed_the_end_of_read_only_is_stored_on_no_replica() -> None:
    """Followers hear of the end first. Their standby begins no earlier than the leader's announcement."""
    with Stage(stream=StreamConfig(failover_standby=True)) as s:
        s.publish(2)
        read_only(s, True)
        late = s.hold("image", receiver=s.leader)
        alter(s, StreamConfig(read_only=False), "readOnly")
        s.until(lambda: all(knows(s, node, False) for node in s.followers))
        assert s.outcome(s.send()) == "READ_ONLY"
        late.drop()
        the_next_leader_holds(s, 1, 2)


def test_publish_rejected_for_an_outdated_max_message_bytes_setting_is_stored_on_no_replica() -> None:
    with Stage(stream=StreamConfig(failover_standby=True)) as s:
        s.publish(2)
        alter(s, StreamConfig(max_message_bytes=1), "maxMessageBytes")
        s.until(lambda: s.replica(s.leader).log.config.max_message_bytes == 1)
        late = s.hold("image", receiver=s.leader)
        alter(s, StreamConfig(max_message_bytes=0), "maxMessageBytes")
        s.until(lambda: all(not s.replica(node).log.config.max_message_bytes for node in s.followers))
        assert s.outcome(s.send()) == "TOO_LARGE"
        late.drop()
        the_next_leader_holds(s, 1, 2)


def test_standby_that_missed_the_read_only_setting_discards_its_buffered_messages() -> None:
    """The followers hear of the beginning and the end together, with messages that the leader rejected in between."""
    with Stage(stream=StreamConfig(failover_standby=True)) as s:
        s.publish(2)
        late = [s.hold("image", receiver=node) for node in s.followers]
        alter(s, StreamConfig(read_only=True), "readOnly")
        s.until(lambda: knows(s, s.leader, True))
        assert s.outcome(s.send()) == "READ_ONLY"
        alter(s, StreamConfig(read_only=False), "readOnly")
        s.until(lambda: knows(s, s.leader, False))
        for held in late:
            held.drop()
        the_next_leader_holds(s, 1, 2)
