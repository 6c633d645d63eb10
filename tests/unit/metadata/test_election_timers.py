"""Test when the metadata leader starts elections: timers, failure reports, leaderless partitions, preferred leaders."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_driver import MS, SECOND, Driver, Error
from election_driver import Cluster

from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.controller.election_triggers import (
    ANSWER_NS,
    PATIENCE,
    ElectionTimers,
    FailureReports,
    PreferredLeaders,
    ProbeResult,
    partitions_off_preferred_leader,
)
from liftpy.core.metadata.controller.quorum_member import LONG_NS, LeaderlessTimer
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each

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


TICK_NS = 20_000_000


def tick(leaderless: LeaderlessTimer, there_is_a_leader: bool, from_ns: int, until_ns: int) -> None:
    for now_ns in range(from_ns, until_ns + 1, TICK_NS):
        leaderless.tick(there_is_a_leader, now_ns)


def test_leaderless_timer_expires_after_consecutive_ticks_without_a_leader() -> None:
    leaderless = LeaderlessTimer()
    assert not leaderless.for_long
    tick(leaderless, False, TICK_NS, LONG_NS)
    assert not leaderless.for_long, "one tick less than long"
    leaderless.tick(False, LONG_NS + TICK_NS)
    assert leaderless.for_long
    leaderless.tick(True, LONG_NS + 2 * TICK_NS)
    assert not leaderless.for_long
    leaderless.tick(False, LONG_NS + 3 * TICK_NS)
    assert not leaderless.for_long, "it has only just lost sight of the leader"


def test_leaderless_timer_after_a_pause_of_the_process_restarts() -> None:
    leaderless = LeaderlessTimer()
    tick(leaderless, False, TICK_NS, 2 * LONG_NS)
    assert leaderless.for_long
    leaderless.tick(False, 10 * LONG_NS)
    assert not leaderless.for_long, "what it knows is old, and others may have a leader"
    tick(leaderless, False, 10 * LONG_NS, 11 * LONG_NS)
    assert leaderless.for_long


SERVES, DOES_NOT, ABSENT = ProbeResult.SERVES, ProbeResult.DOES_NOT, ProbeResult.ABSENT


def report(cluster: Cluster, witness: str) -> pb.ReportLeader:
    partition = cluster.partition()
    fields = cluster.about(witness=witness, leader=partition.leader, leaderEpoch=partition.leader_epoch)
    return pb.ReportLeader(**fields, accusedAsked=True)  # a witness may claim that


def accused(isr: str = "ab") -> tuple[Cluster, FailureReports]:
    cluster, accusations = Cluster(), FailureReports()
    accusations.lead(7)
    cluster.change_isr(list(isr))
    return cluster, accusations


def test_leader_report_with_three_followers_is_logged_with_term_and_time_of_the_metadata_leader() -> None:
    cluster, accusations = accused("abc")
    said = report(cluster, "b")
    assert not accusations.add(said, cluster.fsm.image, 11)
    assert (said.stampNs, said.stampTerm, said.accusedAsked) == (11, 7, False)
    assert accusations.take_leader_checks() == []


@each(
    ("of_accused", "of_witness", "proposed"),
    [
        (SERVES, DOES_NOT, False), (SERVES, None, False), (SERVES, ABSENT, False),
        (DOES_NOT, DOES_NOT, True), (ABSENT, DOES_NOT, True), (None, DOES_NOT, True),
        (ABSENT, ABSENT, False), (None, None, False), (DOES_NOT, None, False), (DOES_NOT, ABSENT, False),
    ],
)  # fmt: skip
def test_reported_leader_that_does_not_serve_is_replaced_if_the_reporter_is_reachable(
    of_accused: ProbeResult | None, of_witness: ProbeResult | None, proposed: bool
) -> None:
    cluster, accusations = accused()
    assert accusations.add(report(cluster, "b"), cluster.fsm.image, 0)
    asked = {question.node: question for question in accusations.take_leader_checks()}
    assert set(asked) == {"a", "b"}
    for node, testimony in (("a", of_accused), ("b", of_witness)):
        if testimony is not None:
            accusations.record_testimony(asked[node], testimony)
    found = accusations.take_due(0) or accusations.take_due(ANSWER_NS)
    assert [said.accusedAsked for said in found] == [True] * proposed
    assert accusations.take_due(2 * ANSWER_NS) == []
    assert accusations.next_deadline_ns() is None


def test_sole_isr_member_reported_twice_is_probed_once_for_the_last_reporting_node() -> None:
    cluster, accusations = accused("a")
    assert accusations.add(report(cluster, "c"), cluster.fsm.image, 0)
    assert accusations.add(report(cluster, "b"), cluster.fsm.image, 1)
    assert [question.node for question in accusations.take_leader_checks()] == ["a", "c"]
    assert not accusations.add(report(cluster, "a"), cluster.fsm.image, 2), "apply refuses it"


def test_leader_probe_answer_of_an_older_leader_epoch_is_ignored() -> None:
    cluster, accusations = accused()
    accusations.add(report(cluster, "b"), cluster.fsm.image, 0)
    old = accusations.take_leader_checks()
    cluster.restarts_and_leads_again()
    accusations.add(report(cluster, "b"), cluster.fsm.image, 1)
    for question in old:
        accusations.record_testimony(question, DOES_NOT)
    assert accusations.take_due(2) == []
    accusations.lead(8)
    assert accusations.take_due(10 * ANSWER_NS) == []


def moved(cluster: Cluster, node: str) -> None:
    """Move the leadership to ``node`` with an election command."""
    image = cluster.fsm.image.streams["orders"]
    assert cluster.ask(electLeader=pb.ElectLeader(stream="orders", uid=image.uid, node=node)).error == Error.OK
    cluster.promote()
    assert cluster.partition().leader == node


def test_misplaced_leaderships_with_an_electable_preferred_leader_are_its_partitions_led_by_others() -> None:
    cluster = Cluster()
    assert partitions_off_preferred_leader(cluster.fsm.image) == []
    moved(cluster, "b")
    assert [(key.partition, node) for key, node in partitions_off_preferred_leader(cluster.fsm.image)] == [(0, "a")]
    cluster.fence("a")
    assert partitions_off_preferred_leader(cluster.fsm.image) == []


def test_preferred_leader_rebalance_moves_at_the_second_check_and_never_if_disabled() -> None:
    cluster = Cluster()
    moved(cluster, "b")
    on, off = PreferredLeaders(10.0), PreferredLeaders(0.0)
    for leaders in (on, off):
        leaders.lead(0)
    image = cluster.fsm.image
    assert on.take_due(image, 9 * NS_PER_S) == []
    assert on.take_due(image, 10 * NS_PER_S) == [], "seen for the first time: it may have been lost a moment ago"
    assert [proposal.node for proposal in on.take_due(image, 20 * NS_PER_S)] == ["a"]
    assert off.take_due(image, 10**6 * NS_PER_S) == []
    assert off.next_deadline_ns() is None
    on.resign()
    assert on.take_due(image, 10**6 * NS_PER_S) == []


def test_preferred_leader_rebalance_moves_nothing_during_an_election() -> None:
    cluster = Cluster()
    moved(cluster, "b")
    leaders = PreferredLeaders(10.0)
    leaders.lead(0)
    leaders.take_due(cluster.fsm.image, 10 * NS_PER_S)
    cluster.fence("b")
    assert cluster.partition().status is not PartitionStatus.ONLINE
    assert leaders.take_due(cluster.fsm.image, 20 * NS_PER_S) == []


def test_preferred_leader_rebalance_uses_an_interval_changed_while_leading() -> None:
    cluster = Cluster()
    moved(cluster, "b")
    image, leaders = cluster.fsm.image, PreferredLeaders(0.0)
    leaders.change(10.0)
    assert leaders.next_deadline_ns() is None, "who does not lead looks at nothing"
    leaders.change(0.0)
    leaders.lead(0)
    leaders.change(10.0)
    assert leaders.take_due(image, 5 * NS_PER_S) == [], "seen for the first time"
    assert leaders.take_due(image, 14 * NS_PER_S) == []
    assert [proposal.node for proposal in leaders.take_due(image, 15 * NS_PER_S)] == ["a"]
    leaders.change(0.0)
    assert leaders.take_due(image, 10**6 * NS_PER_S) == []
