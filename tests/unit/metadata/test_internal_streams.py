"""Test internal streams: the groups stream is created once on demand, and cannot be changed by accident."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy.config import AckPolicy, ReplicationConfig
from liftpy.core.metadata.controller.admission import RequestSubject, refusal
from liftpy.core.metadata.controller.streams import RETENTION_BYTES, SEGMENT_BYTES, with_partition_count
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import GROUPS_STREAM
from tests.unit.metadata.cluster_driver import Driver, Error


def test_groups_stream_is_created_once_for_all_clients() -> None:
    driver = Driver(("a", "b", "c"))
    made = driver.ask(openGroups=pb.OpenGroups(partitions=2))
    held = driver.fsm.image.streams[GROUPS_STREAM]
    assert (made.error, made.stream.uid, made.stream.name) == (Error.OK, held.uid, GROUPS_STREAM)
    assert (held.subject, len(held.partitions), held.replica_count) == ("liftpy-groups", 2, 3)
    assert (held.config.segment_bytes, held.config.retention_bytes) == (SEGMENT_BYTES, RETENTION_BYTES)
    assert held.config.ack_policy is AckPolicy.ALL
    assert not held.config.compaction, "a service does not read a compacted stream: snapshots bound its log"
    again = driver.ask(openGroups=pb.OpenGroups(partitions=9, replicationFactor=1))
    assert (again.error, again.stream) == (Error.OK, made.stream)
    assert driver.fsm.image.streams[GROUPS_STREAM] == held


@pytest.mark.parametrize(("nodes", "replicas", "copies"), [(("a",), 0, 1), (("a", "b"), 0, 2), (("a", "b", "c"), 2, 2)])
def test_groups_stream_has_the_requested_replicas_or_the_number_of_live_nodes(
    nodes: tuple[str, ...], replicas: int, copies: int
) -> None:
    driver = Driver(nodes)
    driver.ask(openGroups=pb.OpenGroups(partitions=1, replicationFactor=replicas))
    assert driver.fsm.image.streams[GROUPS_STREAM].replica_count == copies


def test_groups_stream_with_a_conflicting_subject_is_rejected_with_the_name_of_the_other_stream() -> None:
    driver = Driver(("a",))
    driver.create("mine", "liftpy-groups")
    refused = driver.ask(openGroups=pb.OpenGroups(partitions=1))
    assert refused.error == Error.INVALID
    assert "mine" in refused.detail


def test_groups_stream_partitions_and_replicas_come_from_the_settings_of_the_metadata_leader() -> None:
    request = pb.ControlRequest(openGroups=pb.OpenGroups(partitions=900, replicationFactor=31))
    with_partition_count(request, ReplicationConfig(groups_partitions=4, groups_replicas=2))
    assert (request.openGroups.partitions, request.openGroups.replicationFactor) == (4, 2)
    with_partition_count(other := pb.ControlRequest(barrier=pb.Barrier()), ReplicationConfig())
    assert other == pb.ControlRequest(barrier=pb.Barrier())


GUARDED: list[dict[str, Any]] = [
    {"createStream": pb.CreateStream(name="_x")},
    {"addPartitions": pb.AddPartitions(name="_x")},
    {"deleteStream": pb.DeleteStream(name="_x")},
    {"alterStream": pb.AlterStream(name="_x")},
    {"truncateBefore": pb.TruncateBefore(stream="_x")},
    {"purgeRecords": pb.PurgeRecords(stream="_x")},
    {"pausePartitions": pb.PausePartitions(stream="_x")},
]


@pytest.mark.parametrize("asked", GUARDED, ids=lambda asked: next(iter(asked)))
def test_internal_stream_change_without_the_internal_flag_is_rejected(asked: dict[str, Any]) -> None:
    ((kind, message),) = asked.items()
    said = refusal(RequestSubject.ADMIN, "", pb.ControlRequest(**asked))
    assert f"Stream '_x' is internal. Only the cluster uses it. To send {kind} anyway, set --internal." in said
    assert "--internal" in said
    assert refusal(RequestSubject.ADMIN, "", pb.ControlRequest(internal=True, **asked)) == ""
    for subject_kind in (RequestSubject.INFO, RequestSubject.NODE):
        assert refusal(subject_kind, "n1", pb.ControlRequest(internal=True, **asked)), "to say so opens no other subject"
    field = "stream" if hasattr(message, "stream") else "name"
    setattr(message, field, "x_")
    assert refusal(RequestSubject.ADMIN, "", pb.ControlRequest(**asked)) == "", "any other name is anybody's"
    setattr(message, field, "_x")


def test_internal_stream_change_in_a_batch_is_rejected() -> None:
    cut = pb.ControlRequest(truncateBefore=pb.TruncateBefore(stream="_x"))
    other = pb.ControlRequest(truncateBefore=pb.TruncateBefore(stream="x"))
    batch = pb.Batch(requests=[pb.BatchedRequest(request=request) for request in (other, cut)])
    assert "--internal" in refusal(RequestSubject.ADMIN, "", pb.ControlRequest(batch=batch))
    assert refusal(RequestSubject.ADMIN, "", pb.ControlRequest(batch=batch, internal=True)) == ""
