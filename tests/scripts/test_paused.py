"""A stream is paused, its leader dies, it is resumed, by an operator or by a publish: no leader stores anything meanwhile, what was
taken before is acknowledged, and readers go on.

Shows A2, A13, M11.
"""

from __future__ import annotations

import pytest

from liftpy.config import AckPolicy, StreamConfig
from liftpy.partition import Pause
from liftpy.wire._pb import cluster_pb2 as pb
from tests.scripts.stage import STREAM, Stage


def pause(s: Stage, until: pb.Pause, known: bool = True) -> None:
    """``liftpy stream pause``; then wait until every replica's node knows."""
    response = s.command(pb.ControlRequest(pausePartitions=pb.PausePartitions(stream=STREAM, pause=until)))
    assert response.error == pb.ControlResponse.OK, response.detail
    if known:
        s.until(lambda: all(s.replica(node).replica.state.pause is s.partition.pause for node in s.partition.replicas))


@pytest.mark.parametrize("standby", [False, True])
def test_paused(standby: bool) -> None:
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
def test_the_first_publish_resumes_it_and_is_one_slow_ack(until: pb.Pause) -> None:
    with Stage() as s:
        s.publish(2)
        pause(s, until)
        first, second = s.send(), s.send(policy=AckPolicy.LEADER)
        s.until(lambda: s.partition.pause is Pause.NOT_PAUSED)
        assert (s.outcome(first), s.outcome(second)) == ("acked", "acked")
        assert s.ids(s.leader) == [1, 2, *first.ids, *second.ids]
