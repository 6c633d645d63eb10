"""Test single rules of the metadata group: batch counters, questions, details, the feed, canonical forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
from immutables import Map

from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata import codec
from liftpy.core.metadata.controller.request_batcher import _one_count
from liftpy.core.metadata.election import PreferredLeaders
from liftpy.core.metadata.failure_reports import ANSWER_NS, FailureReports, LeaderCheck, ProbeResult
from liftpy.core.metadata.feed import FeedProducer
from liftpy.core.metadata.idempotency_cache import Operation
from liftpy.core.metadata.image import Counters, NodeImage
from liftpy.core.metadata.record_builder import MAX_DETAIL_LENGTH, refuse
from liftpy.core.metadata.records import CountersMoved, NodeChanged, NodeRemoved, OperationDone, Record
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.unit.metadata.small_images import S, a_partition, a_stream, an_image
from tests.unit.metadata.test_feed_limits import created

NODE = NodeChanged(NodeImage(node_id="d", incarnation=9))
GONE = NodeRemoved("x")
FIRST, LAST = (CountersMoved(Counters(number, 1, 1, 1, 1)) for number in (1, 2))


@pytest.mark.parametrize(
    ("records", "wanted"),
    [
        ([], ()),
        ([NODE], (NODE,)),
        ([FIRST, NODE], (FIRST, NODE)),
        ([NODE, GONE], (NODE, GONE)),
        ([FIRST, NODE, LAST, GONE], (NODE, GONE, LAST)),
        ([NODE, FIRST, LAST], (NODE, LAST)),
    ],
)
def test_request_batch_writes_one_counters_record_at_the_end(records: list[Record], wanted: tuple[Record, ...]) -> None:
    assert _one_count(records) == wanted


# ---- accusations ---------------------------------------------------------------------------------------------------------------
def accused(accusations: FailureReports, witness: str = "b") -> pb.ReportLeader:
    report = pb.ReportLeader(stream="s", uid="u1", witness=witness, leader="a", leaderEpoch=5)
    assert accusations.add(report, an_image(a_stream(a_partition(isr=("a", "b")))), 100)
    return report


def test_leader_failure_reports_after_resigning_send_no_probe_and_no_proposal() -> None:
    for ends in ("asked nobody yet", "proven"):
        accusations = FailureReports()
        accusations.lead(7)
        report = accused(accusations)
        if ends == "proven":
            for question in accusations.take_leader_checks():
                accusations.record_testimony(question, ProbeResult.DOES_NOT)
            assert accusations.next_deadline_ns() == 0
        assert report.stampTerm == 7
        accusations.resign()
        assert (accusations.next_deadline_ns(), accusations.take_leader_checks(), accusations.take_due(10 * S)) == (
            None,
            [],
            [],
        )
        assert not accusations.counters or ends == "proven"
        accusations.lead(8)
        assert accused(accusations).stampTerm == 8
        assert [question.node for question in accusations.take_leader_checks()] == ["a", "b"]


def test_leader_failure_report_ignores_probe_answers_of_another_partition_or_epoch() -> None:
    accusations = FailureReports()
    accusations.lead(7)
    accused(accusations)
    assert accusations.next_deadline_ns() == 100 + ANSWER_NS
    key = PartitionKey("s", "u1", 0)
    assert accusations.take_leader_checks() == [LeaderCheck(key, 5, "a"), LeaderCheck(key, 5, "b")]
    accused(accusations, "b")
    assert accusations.take_leader_checks() == [], "it is being looked into"
    accusations.record_testimony(LeaderCheck(key, 4, "a"), ProbeResult.SERVES)
    accusations.record_testimony(LeaderCheck(PartitionKey("s", "u1", 1), 5, "a"), ProbeResult.SERVES)
    assert not accusations.counters
    accusations.record_testimony(LeaderCheck(key, 5, "b"), ProbeResult.DOES_NOT)
    assert accusations.take_due(100 + ANSWER_NS - 1) == []
    (proven,) = accusations.take_due(100 + ANSWER_NS)
    assert (proven.accusedAsked, proven.witness) == (True, "b")
    assert accusations.take_due(100 + ANSWER_NS) == []
    assert accusations.counters == {"accused leaders that don't serve": 1}


# ---- answers -------------------------------------------------------------------------------------------------------------------
def test_control_request_rejection_detail_above_the_limit_is_shortened() -> None:
    fits = "é" * MAX_DETAIL_LENGTH
    decision = refuse(pb.ControlResponse.INVALID, fits)
    assert (decision.records, decision.response) == ((), pb.ControlResponse(error=pb.ControlResponse.INVALID, detail=fits))
    longer = refuse(pb.ControlResponse.STALE, fits + "x", a_partition())
    assert longer.response.detail == f"{fits}…({MAX_DETAIL_LENGTH + 1} characters)"
    assert codec.PARTITION.from_pb(longer.response.partition) == a_partition()


def test_preferred_leader_rebalance_checks_once_per_interval() -> None:
    image = an_image(a_stream(a_partition(leader="b", last_leader="b")))
    leaders = PreferredLeaders(10.0)
    leaders.lead(0)
    found = [bool(leaders.take_due(image, now_s * S)) for now_s in (9, 10, 11, 19, 20, 21)]
    assert found == [False, False, False, False, True, False], "a look at 10, another one at 20, and none between them"
    assert leaders.next_deadline_ns() == 30 * S


# ---- the feed ------------------------------------------------------------------------------------------------------------------
def test_metadata_feed_omits_records_of_finished_operations() -> None:
    producer = FeedProducer()
    producer.entry_applied(1, (created(1), OperationDone(Operation(b"o" * 16, 1, b"secret"))))
    (entry,) = producer.take_entries()
    assert [record.WhichOneof("record") for record in entry.records] == ["streamCreated"]
    assert producer._waiting_record_count == 1
    assert producer.index == 1


# ---- bytes ---------------------------------------------------------------------------------------------------------------------
def test_metadata_image_snapshot_bytes_do_not_depend_on_the_order_of_changes() -> None:
    streams = [replace(a_stream(), name=f"s{number}", uid=f"u{number}", subject=f"x.{number}") for number in range(5)]
    first, second = (an_image().with_streams(order) for order in (streams, streams[::-1]))
    nodes = Map(dict(reversed(list(first.nodes.items()))))
    second = replace(second, nodes=nodes)
    assert codec.image_to_bytes(first) == codec.image_to_bytes(second)
    found = pb.Image.FromString(codec.image_to_bytes(first))
    assert [stream.name for stream in found.streams] == [f"s{number}" for number in range(5)]
    assert [node.nodeId for node in found.nodes] == ["a", "b", "c"]
    done = replace(first, operations=first.operations.with_operation(Operation(b"o" * 16, 1, b"answer")))
    assert codec.image_to_bytes(done) != codec.image_to_bytes(first)
    assert codec.image_to_bytes(done, operations=False) == codec.image_to_bytes(first, operations=False)
