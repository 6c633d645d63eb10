"""Test accusations: one witness proves nothing, and both the accused and the witness are asked."""

from __future__ import annotations

from election_driver import Cluster

from liftpy.core.metadata.controller.election_triggers import ANSWER_NS, FailureReports, ProbeResult
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each

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
