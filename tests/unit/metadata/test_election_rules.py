"""Test which replicas may be elected, and the ISR after an unclean election."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.controller import elections
from liftpy.core.metadata.controller.election_triggers import ANSWER_NS, FailureReports, ProbeResult
from liftpy.core.metadata.controller.record_builder import RecordBuilder, Rules
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each
from tests.unit.metadata.small_images import a_partition, a_stream, an_image


def elect(partition: PartitionState, fenced: str = "", **config: Any) -> tuple[str, ...]:
    stream = a_stream(partition, **config)
    return elections.eligible(RecordBuilder(an_image(stream, fenced=fenced), 1, Rules()), stream, partition)


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


def test_unclean_election_sets_the_isr_to_the_new_leader() -> None:
    partition = a_partition(leader="", candidate="c", status=PartitionStatus.CANDIDATE_FOUND, incomplete=("c",), deposed="a")
    found = elections.finish_election(a_stream(partition), partition)
    assert (found.isr, found.unclean_elected, found.incomplete) == (("c",), True, ())
    clean = dataclasses.replace(partition, incomplete=())
    found = elections.finish_election(a_stream(clean), clean)
    assert (found.isr, found.unclean_elected, found.leader) == (("b", "c"), False, "c")


@pytest.mark.parametrize(
    ("said", "proven"),
    [
        ({"a": ProbeResult.SERVES}, 0),
        ({"a": ProbeResult.DOES_NOT, "b": ProbeResult.DOES_NOT}, 1),
        ({"a": ProbeResult.ABSENT, "b": ProbeResult.SERVES}, 1),
        ({"b": ProbeResult.ABSENT}, 0),
        ({"a": ProbeResult.DOES_NOT}, 0),
        ({"b": ProbeResult.DOES_NOT}, 0),
    ],
)
def test_leader_failure_report_is_confirmed_by_probes_of_the_reporter_and_the_leader(
    said: dict[str, ProbeResult], proven: int
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
    late = len(cases.take_due(100 + ANSWER_NS))
    assert late == (1 if said == {"b": ProbeResult.DOES_NOT} else 0)
