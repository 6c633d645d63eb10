"""The metadata leader's clocks: positions are waited for, candidates are passed over, Offline is tried again."""

from __future__ import annotations

import pytest
from cluster_driver import MS
from election_driver import Cluster

from liftpy.cluster.election_timers import ElectionTimers
from liftpy.config import ReplicationConfig
from liftpy.wire._pb import cluster_pb2 as pb

WAIT, TIMEOUT, RETRY = 250 * MS, 2000 * MS, 1000 * MS


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def timers(cluster: Cluster) -> ElectionTimers:
    made = ElectionTimers(ReplicationConfig())
    made.lead(cluster.fsm.image, 0)
    return made


def test_nothing_runs_while_all_is_online(timers: ElectionTimers) -> None:
    assert timers.next_deadline_ns() is None
    assert timers.due(10 * TIMEOUT) == []


def test_an_election_is_concluded_and_a_silent_candidate_passed_over(cluster: Cluster, timers: ElectionTimers) -> None:
    cluster.fence("a")
    timers.image_changed(cluster.fsm.image, 0)
    assert timers.due(WAIT - 1) == []
    (conclude,) = timers.due(WAIT)
    assert isinstance(conclude, pb.ConcludeElection)
    assert cluster.ask(concludeElection=conclude).error == 0
    timers.image_changed(cluster.fsm.image, WAIT)
    assert timers.next_deadline_ns() == WAIT + TIMEOUT
    (passing,) = timers.due(WAIT + TIMEOUT)
    assert isinstance(passing, pb.PassOver)
    assert cluster.ask(passOver=passing).error == 0
    assert cluster.now[2] == "c"
    timers.image_changed(cluster.fsm.image, WAIT + TIMEOUT)
    cluster.promote()
    timers.image_changed(cluster.fsm.image, WAIT + TIMEOUT)
    assert timers.next_deadline_ns() is None


def test_progress_restarts_the_clock_however_long_the_replay_and_repetition_does_not(
    cluster: Cluster, timers: ElectionTimers
) -> None:
    cluster.fence("a")
    cluster.conclude()
    timers.image_changed(cluster.fsm.image, 0)
    now = 0
    for step in range(20):
        now += TIMEOUT - 1
        assert timers.due(now) == []
        assert timers.progress(cluster.promotion(replayedEndOffset=step, finished=False), now)
    assert not timers.progress(cluster.promotion(replayedEndOffset=19, finished=False), now + 1)
    assert not timers.progress(cluster.promotion(replayedEndOffset=99, leaderEpoch=1), now + 1)
    assert not timers.progress(cluster.promotion(replayedEndOffset=99, candidate="c"), now + 1)
    assert len(timers.due(now + TIMEOUT)) == 1


def test_offline_is_tried_again_only_when_a_member_that_can_lead_is_live(cluster: Cluster, timers: ElectionTimers) -> None:
    cluster.fence("a")
    cluster.conclude()
    cluster.pass_over()
    cluster.pass_over()
    timers.image_changed(cluster.fsm.image, 0)
    (elect,) = timers.due(RETRY)
    assert isinstance(elect, pb.ElectLeader)
    assert not elect.unclean
    assert cluster.ask(electLeader=elect).error == 0
    assert cluster.now[0].name == "ELECTION"
    cluster.fence("b")
    cluster.fence("c")
    timers.image_changed(cluster.fsm.image, RETRY)
    assert cluster.now[0].name == "OFFLINE"
    assert timers.next_deadline_ns() is None


def test_a_new_metadata_leader_starts_all_clocks_and_an_old_one_is_silent(cluster: Cluster, timers: ElectionTimers) -> None:
    cluster.fence("a")
    timers.image_changed(cluster.fsm.image, 0)
    timers.resign()
    timers.image_changed(cluster.fsm.image, 0)
    assert timers.due(100 * TIMEOUT) == []
    timers.lead(cluster.fsm.image, 50 * TIMEOUT)
    assert timers.next_deadline_ns() == 50 * TIMEOUT + WAIT
