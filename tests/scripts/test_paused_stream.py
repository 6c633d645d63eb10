"""A stream is paused, its leader dies, and an operator or a publish resumes it.

Shows A2, A13, M11.
"""

from __future__ import annotations

import pytest

from liftpy.config import AckPolicy, StreamConfig
from liftpy.core.base.partition import Pause
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.scripts.stage import STREAM, Stage


def pause(s: Stage, until: pb.Pause, known: bool = True) -> None:
    """``liftpy stream pause``; then wait until every replica's node knows."""
    response = s.command(pb.ControlRequest(pausePartitions=pb.PausePartitions(stream=STREAM, pause=until)))
    assert response.error == pb.ControlResponse.OK, response.detail
    if known:
        s.until(lambda: all(s.replica(node).replica.state.pause is s.partition.pause for node in s.partition.replicas))


@pytest.mark.parametrize("standby", [False, True])
def test_paused_stream_rejects_publishes_before_and_after_a_failover(standby: bool) -> None:
    with Stage(stream=StreamConfig(failover_standby=standby)) as s:
        s.publish(2)
        taken = s.send()
        s.until(lambda: s.end(s.leader) == 3)
        pause(s, pb.UNTIL_RESUMED)
        assert s.outcome(taken) == "acked", "what was taken before"
        assert s.outcome(s.send()) == "PAUSED"
        assert s.outcome(s.send()) == "PAUSED"
        old = s.leader
        s.crash(old)
        s.wait_for_leader(*s.followers)
        while s.outcome(sent := s.send()) != "PAUSED":
            assert not sent.acked
            assert s.now_s < 60
        assert s.ids(s.leader) == [1, 2, 3]
        s.start(old)
        s.until(lambda: len(s.isr) == 3)
        pause(s, pb.NOT_PAUSED, known=False)
        s.until(lambda: s.partition.pause is Pause.NOT_PAUSED)
        last = s.publish(1)[0]
        assert s.ids(s.leader) == [1, 2, 3, *last.ids]


@pytest.mark.parametrize("until", [pb.UNTIL_PUBLISH, pb.UNTIL_PUBLISH_TO_ANY])
def test_stream_paused_until_publish_resumes_at_the_first_publish(until: pb.Pause) -> None:
    with Stage() as s:
        s.publish(2)
        pause(s, until)
        first, second = s.send(), s.send(policy=AckPolicy.LEADER)
        s.until(lambda: s.partition.pause is Pause.NOT_PAUSED)
        assert (s.outcome(first), s.outcome(second)) == ("acked", "acked")
        assert s.ids(s.leader) == [1, 2, *first.ids, *second.ids]


def the_next_leader_holds(s: Stage, *ids: int) -> None:
    old = s.leader
    s.crash(old)
    s.wait_for_leader(*s.followers)
    s.settle()
    assert s.ids(s.leader) == list(ids)
    s.start(old)


def test_publish_rejected_while_a_paused_stream_resumes_is_stored_on_no_replica() -> None:
    """Followers hear of the resume first. Their standby begins no earlier than the leader's announcement."""
    with Stage(stream=StreamConfig(failover_standby=True)) as s:
        s.publish(2)
        pause(s, pb.UNTIL_RESUMED)
        late = s.hold("image", receiver=s.leader)
        pause(s, pb.NOT_PAUSED, known=False)
        s.until(lambda: all(s.replica(node).replica.state.pause is Pause.ENDING for node in s.followers))
        assert s.outcome(s.send()) == "PAUSED"
        late.drop()
        the_next_leader_holds(s, 1, 2)


def test_standby_that_missed_the_pause_of_a_stream_discards_its_buffered_messages() -> None:
    """The followers hear of the pause and of its end together, with messages that the leader rejected in between."""
    with Stage(stream=StreamConfig(failover_standby=True)) as s:
        s.publish(2)
        late = [s.hold("image", receiver=node) for node in s.followers]
        pause(s, pb.UNTIL_RESUMED, known=False)
        s.until(lambda: s.replica(s.leader).replica.state.pause is Pause.UNTIL_RESUMED)
        assert s.outcome(s.send()) == "PAUSED"
        pause(s, pb.NOT_PAUSED, known=False)
        s.until(lambda: s.partition.pause is Pause.NOT_PAUSED)
        for held in late:
            held.drop()
        the_next_leader_holds(s, 1, 2)
