"""Test the details of rejections, the records of the feed, and the canonical form of an image."""

from __future__ import annotations

from dataclasses import replace

from immutables import Map

from liftpy.core.metadata import codec
from liftpy.core.metadata.controller.record_builder import MAX_DETAIL_LENGTH, refuse
from liftpy.core.metadata.feed import FeedProducer
from liftpy.core.metadata.idempotency import Operation
from liftpy.core.metadata.image import Counters
from liftpy.core.metadata.records import CountersMoved, OperationDone
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.unit.metadata.small_images import a_partition, a_stream, an_image
from tests.unit.metadata.test_feed_limits import created

FIRST, LAST = (CountersMoved(Counters(number, 1, 1, 1, 1)) for number in (1, 2))


# ---- answers -------------------------------------------------------------------------------------------------------------------
def test_control_request_rejection_detail_above_the_limit_is_shortened() -> None:
    fits = "é" * MAX_DETAIL_LENGTH
    decision = refuse(pb.ControlResponse.INVALID, fits)
    assert (decision.records, decision.response) == ((), pb.ControlResponse(error=pb.ControlResponse.INVALID, detail=fits))
    longer = refuse(pb.ControlResponse.STALE, fits + "x", a_partition())
    assert longer.response.detail == f"{fits}…({MAX_DETAIL_LENGTH + 1} characters)"
    assert codec.PARTITION.from_pb(longer.response.partition) == a_partition()


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
