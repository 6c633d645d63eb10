"""Test who may be elected, how long a candidate may take, and which accusations count."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from liftpy.config import CommitPolicy, ReplicationConfig
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata import election
from liftpy.core.metadata.controller.active_controller import ActiveController
from liftpy.core.metadata.election import ElectionTimers
from liftpy.core.metadata.failure_reports import ANSWER_NS, FailureReports, ProbeResult
from liftpy.core.metadata.image import LeaderReport
from liftpy.core.metadata.record_builder import RecordBuilder, Rules
from liftpy.core.metadata.request_limits import SENT_TOGETHER
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each
from tests.unit.metadata.small_images import S, a_partition, a_stream, an_image


def elect(partition: PartitionState, fenced: str = "", **config: Any) -> tuple[str, ...]:
    stream = a_stream(partition, **config)
    return election.eligible(RecordBuilder(an_image(stream, fenced=fenced), 1, Rules()), stream, partition)


@each(
    ("more", "fenced", "able"),
    [
        ({}, "", "abc"),
        ({"deposed": "a"}, "", "bc"),
        ({"passed_over": ("b",)}, "", "ac"),
        ({}, "c", "ab"),
        ({"isr": ("a", "b")}, "", "ab"),
        ({"isr": ("a", "b"), "complete": ("c",)}, "", "ab"),
        ({"isr": ("a", "b"), "complete": ("c",)}, "ab", "c"),
        ({"incomplete": ("b",)}, "", "ac"),
        ({"deposed": "a", "passed_over": ("b",)}, "c", ""),
    ],
)
def test_electable_replicas_are_unfenced_isr_members_and_complete_replicas(
    more: dict[str, Any], fenced: str, able: str
) -> None:
    assert elect(a_partition(**more), fenced) == tuple(able)


def chosen(
    reports: dict[str, tuple[int, int]], *, replicas: str = "abc", incarnations: dict[str, int] | None = None, **config: Any
) -> PartitionState:
    """Return the candidate of an election that ends with ``reports`` (last epoch, newest offset)."""
    partition = a_partition(replicas=tuple(replicas), isr=tuple(replicas), leader="", status=PartitionStatus.ELECTION)
    stream = a_stream(partition, **config)
    image = an_image(stream, replicas)
    told = tuple(
        LeaderReport(
            witness=node,
            witness_incarnation=(incarnations or {}).get(node, replicas.index(node) + 1),
            leader="a",
            leader_epoch=5,
            last_epoch=epoch,
            newest_offset=offset,
            high_watermark=0,
            time_ns=0,
        )
        for node, (epoch, offset) in reports.items()
    )
    image = dataclasses.replace(image, reports=image.reports.set(("u1", 0), told))
    return election.conclude(RecordBuilder(image, 1, Rules()), stream, partition)


QUORUM: dict[str, Any] = {"commit_policy": CommitPolicy.QUORUM}


@pytest.mark.parametrize(
    ("reports", "leader"),
    [
        ({"b": (3, 9), "c": (3, 8)}, "b"),
        ({"b": (3, 9), "c": (4, 1)}, "c"),
        ({"a": (3, 7), "b": (3, 8), "c": (3, 8)}, "b"),
        ({"c": (1, 1)}, "a"),
    ],
)
def test_election_chooses_the_longest_log_of_the_latest_epoch(reports: dict[str, tuple[int, int]], leader: str) -> None:
    assert chosen(reports, **QUORUM).candidate == leader


@pytest.mark.parametrize(
    ("replicas", "count", "decided"),
    [("abc", 1, False), ("abc", 2, True), ("abcd", 2, False), ("abcd", 3, True), ("abcde", 2, False)],
)
def test_quorum_policy_election_without_positions_of_a_majority_elects_no_leader(
    replicas: str, count: int, decided: bool
) -> None:
    heard = dict.fromkeys(replicas[-count:], (3, 9))
    assert (chosen(heard, replicas=replicas, **QUORUM).candidate in heard) is decided


def test_position_report_of_an_older_incarnation_is_ignored() -> None:
    assert chosen({"b": (9, 9), "c": (1, 1)}, incarnations={"b": 1}, **QUORUM).candidate == "a"


def test_unclean_election_sets_the_isr_to_the_new_leader() -> None:
    partition = a_partition(leader="", candidate="c", status=PartitionStatus.CANDIDATE_FOUND, incomplete=("c",), deposed="a")
    found = election.finish(a_stream(partition), partition)
    assert (found.isr, found.unclean_elected, found.incomplete) == (("c",), True, ())
    clean = dataclasses.replace(partition, incomplete=())
    found = election.finish(a_stream(clean), clean)
    assert (found.isr, found.unclean_elected, found.leader) == (("b", "c"), False, "c")


def timers(status: PartitionStatus = PartitionStatus.CANDIDATE_FOUND) -> tuple[ElectionTimers, ReplicationConfig]:
    config = ReplicationConfig()
    found = status is PartitionStatus.CANDIDATE_FOUND
    partition = a_partition(leader="", candidate="b" if found else "", status=status, deposed="a")
    made = ElectionTimers(config)
    made.lead(an_image(a_stream(partition)), 0)
    return made, config


def test_election_timers_record_promotion_progress_only_if_an_offset_advances() -> None:
    made, _ = timers()

    def progress(replayed: int, newest: int) -> bool:
        report = pb.ReportPromotion(
            stream="s", uid="u1", candidate="b", leaderEpoch=5, replayedEndOffset=replayed, newestOffset=newest
        )
        return made.progress(report, 1)

    assert [progress(*at) for at in ((0, 5), (0, 5), (3, 5), (3, 5), (3, 6), (2, 6))] == [True, False, True, False, True, False]


def test_candidate_that_never_ends_its_promotion_is_passed_over_after_16_candidate_timeouts() -> None:
    made, config = timers()
    passed = []
    for tenth in range(3000):
        now_ns = tenth * S // 10
        made._got_on_ns["b"] = now_ns
        passed += [now_ns for proposal in made.take_due(now_ns) if isinstance(proposal, pb.PassOver)]
    assert passed
    assert passed[0] <= 16 * config.candidate_timeout_s * S


def test_election_timers_ignore_position_reports_of_nodes_without_a_replica() -> None:
    made, _ = timers(PartitionStatus.ELECTION)
    for witness in ("b", "x"):
        made.note_report(pb.ReportLeader(stream="s", uid="u1", witness=witness), 5)
    assert set(made._got_on_ns) == {"b"}


@pytest.mark.parametrize("count", [1, SENT_TOGETHER, SENT_TOGETHER + 1, 3 * SENT_TOGETHER])
def test_metadata_leader_proposes_all_due_changes_in_batches(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    duties = ActiveController(ReplicationConfig())
    messages = [pb.PassOver(stream="s", partition=n) for n in range(count)]
    monkeypatch.setattr(duties._timers, "take_due", lambda now_ns: messages)
    sent = duties.take_due(0)
    flat: list[Any] = []
    for request in sent:  # a last one alone is sent without a batch
        flat += [item.request for item in request.batch.requests] if request.HasField("batch") else [request]
    assert [request.passOver.partition for request in flat] == list(range(count))


@pytest.mark.parametrize(
    ("said", "proven", "closed"),
    [
        ({"a": ProbeResult.SERVES}, 0, True),
        ({"a": ProbeResult.DOES_NOT, "b": ProbeResult.DOES_NOT}, 1, True),
        ({"a": ProbeResult.ABSENT, "b": ProbeResult.SERVES}, 1, True),
        ({"b": ProbeResult.ABSENT}, 0, True),
        ({"a": ProbeResult.DOES_NOT}, 0, False),
        ({"b": ProbeResult.DOES_NOT}, 0, False),
    ],
)
def test_leader_failure_report_is_confirmed_by_probes_of_the_reporter_and_the_leader(
    said: dict[str, ProbeResult], proven: int, closed: bool
) -> None:
    cases, image = FailureReports(), an_image(a_stream(a_partition(isr=("a", "b"))))
    cases.lead(7)
    report = pb.ReportLeader(stream="s", uid="u1", witness="b", leader="a", leaderEpoch=5)
    assert cases.add(report, image, 100)
    assert (report.stampNs, report.stampTerm) == (100, 7)
    questions = {question.node: question for question in cases.take_leader_checks()}
    for node, word in said.items():
        cases.record_testimony(dataclasses.replace(questions[node], leader_epoch=4), ProbeResult.SERVES)
        cases.record_testimony(questions[node], word)
    assert len(cases.take_due(101)) == proven
    assert (not cases._cases) is closed
    late = len(cases.take_due(100 + ANSWER_NS))
    assert late == (1 if said == {"b": ProbeResult.DOES_NOT} else 0)
