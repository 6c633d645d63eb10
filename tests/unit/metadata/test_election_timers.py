"""Test the clocks of the metadata leader: waiting for positions, passing over candidates, retrying Offline."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_driver import MS, SECOND, Driver
from election_driver import Cluster

from liftpy.config import ReplicationConfig
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.controller.election_triggers import PATIENCE, ElectionTimers
from liftpy.core.wire._pb import cluster_pb2 as pb

WAIT, TIMEOUT, RETRY = 250 * MS, 2000 * MS, 1000 * MS


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def timers(cluster: Cluster) -> ElectionTimers:
    made = ElectionTimers(ReplicationConfig())
    made.lead(cluster.fsm.image, 0)
    return made


def test_election_timers_retry_an_offline_partition_when_an_isr_member_is_live(
    cluster: Cluster, timers: ElectionTimers
) -> None:
    cluster.fence("a")
    cluster.conclude()
    cluster.pass_over()
    cluster.pass_over()
    timers.image_changed(cluster.fsm.image, 0)
    (elect,) = timers.take_due(RETRY)
    assert isinstance(elect, pb.ElectLeader)
    assert not elect.unclean
    assert cluster.ask(electLeader=elect).error == 0
    assert cluster.now[0].name == "ELECTION"
    cluster.fence("b")
    cluster.fence("c")
    timers.image_changed(cluster.fsm.image, RETRY)
    assert cluster.now[0].name == "OFFLINE"
    assert timers.next_deadline_ns() is None


def test_election_timers_restart_on_a_new_metadata_leader_and_stop_on_the_old(cluster: Cluster, timers: ElectionTimers) -> None:
    cluster.fence("a")
    timers.image_changed(cluster.fsm.image, 0)
    timers.resign()
    cluster.conclude()  # what it hears of from then on starts no clock
    timers.image_changed(cluster.fsm.image, 0)
    assert timers.take_due(100 * TIMEOUT) == []
    timers.lead(cluster.fsm.image, 50 * TIMEOUT)
    assert timers.next_deadline_ns() == 50 * TIMEOUT + TIMEOUT, "of the candidate"


class Many(Driver):
    """A stream ``many`` of ``count`` partitions with a replica on each of ``nodes``, all led by a."""

    def __init__(self, count: int, nodes: str = "abc") -> None:
        super().__init__(tuple(nodes), elections=True)
        self.create(name="many", subject="many", partitions=count, replicationFactor=len(nodes))
        for number in range(count):
            if self.of(number).leader != "a":
                self.ask(electLeader=self.about(pb.ElectLeader, number, node="a"))
                self.promote(number)
                assert self.of(number).leader == "a"

    def of(self, number: int) -> PartitionState:
        return self.fsm.image.streams["many"].partitions[number]

    def about(self, kind: Any, number: int, **fields: Any) -> Any:
        return kind(stream="many", uid=self.fsm.image.streams["many"].uid, partition=number, **fields)

    def report(self, number: int, witness: str) -> pb.ReportLeader:
        p = self.of(number)
        return self.about(
            pb.ReportLeader, number, witness=witness, witnessIncarnation=self.incarnation(witness), leader=p.leader,
            leaderEpoch=p.leader_epoch, newestOffset=10,
        )  # fmt: skip

    def tell(self, number: int, witness: str) -> None:
        assert self.ask(reportLeader=self.report(number, witness)).error == 0

    def promote(self, number: int) -> None:
        p = self.of(number)
        report = self.about(
            pb.ReportPromotion, number, candidate=p.candidate, candidateIncarnation=self.incarnation(p.candidate),
            leaderEpoch=p.leader_epoch, epoch=p.epoch, finished=True,
        )  # fmt: skip
        assert self.ask(reportPromotion=report).error == 0


@pytest.fixture
def many() -> Many:
    made = Many(12)
    made.fence("a")
    return made


def watching(many: Many) -> ElectionTimers:
    made = ElectionTimers(ReplicationConfig())
    made.lead(many.fsm.image, 0)
    return made


def test_election_waits_for_a_node_that_reports_log_ends_of_one_partition_at_a_time(many: Many) -> None:
    timers, now = watching(many), -200 * MS
    for number in range(12):
        timers.note_report(many.report(number, "b"), 0)
        many.tell(number, "b")
    timers.image_changed(many.fsm.image, 0)
    for number in range(11):  # c needs 0.4 s for each: longer than an election waits, and it is never silent for long
        now += 400 * MS
        assert timers.take_due(now) == []
        timers.note_report(many.report(number, "c"), now)
        many.tell(number, "c")
        timers.note_report(many.report(11, "b"), now)
        assert many.of(number).candidate
        if number < 10:
            many.promote(number)
            timers.image_changed(many.fsm.image, now)
    timers.note_report(many.report(10, "c"), now + 1)  # told before, and it is known: that is no progress
    many.promote(10)
    timers.image_changed(many.fsm.image, now)
    assert timers.take_due(now + 499 * MS) == []
    (conclude,) = timers.take_due(now + 500 * MS)
    assert isinstance(conclude, pb.ConcludeElection)
    assert conclude.partition == 11


def test_election_waits_for_a_node_that_reports_positions_of_other_partitions() -> None:
    many = Many(2, "abcd")
    assert many.change_isr(["a", "b", "d"], "many", 0).error == 0
    many.fence("a")
    assert many.of(0).status is many.of(1).status is PartitionStatus.ELECTION
    for tells in (False, True):
        timers = watching(many)
        timers.note_report(many.report(1, "b"), 0)
        timers.note_report(many.report(1, "d"), 0)
        if tells:
            timers.note_report(many.report(0, "c"), 3 * WAIT - 1)
        assert (1 not in {p.partition for p in timers.take_due(3 * WAIT)}) is tells


def test_election_does_not_wait_for_a_node_that_reports_positions_of_partitions_without_election(many: Many) -> None:
    many.unfence("a")
    timers = watching(many)
    for number in range(12):
        timers.note_report(many.report(number, "a"), WAIT - 1)  # deposed
    assert len(timers.take_due(WAIT)) == 12


def test_candidate_that_completes_other_promotions_is_not_passed_over(many: Many) -> None:
    for number in range(12):
        many.ask(concludeElection=many.about(pb.ConcludeElection, number, epoch=many.of(number).epoch))
    timers, now = watching(many), 0
    slow = [number for number in range(12) if many.of(number).candidate == "b"]
    assert len(slow) >= 4
    for number in slow[:-1]:
        now += TIMEOUT - 1
        assert "b" not in {p.candidate for p in timers.take_due(now) if isinstance(p, pb.PassOver)}
        many.promote(number)
        timers.image_changed(many.fsm.image, now)
    assert [p.partition for p in timers.take_due(now + TIMEOUT) if isinstance(p, pb.PassOver) and p.candidate == "b"] == slow[
        -1:
    ]


def test_candidate_without_progress_is_passed_over_at_the_time_limit(many: Many) -> None:
    for number in range(12):
        many.ask(concludeElection=many.about(pb.ConcludeElection, number, epoch=many.of(number).epoch))
    timers, now = watching(many), 0
    stuck, moving = [number for number in range(12) if many.of(number).candidate == "b"][:2]
    end = PATIENCE * TIMEOUT
    while now + SECOND < end:
        now += SECOND
        assert stuck not in {p.partition for p in timers.take_due(now)}
        many.promote(moving)  # somebody moves it away and back, all day
        timers.image_changed(many.fsm.image, now)
        many.ask(electLeader=many.about(pb.ElectLeader, moving, node="c"))
        many.promote(moving)
        many.ask(electLeader=many.about(pb.ElectLeader, moving, node="b"))
        timers.image_changed(many.fsm.image, now)
    assert stuck in {p.partition for p in timers.take_due(end)}
