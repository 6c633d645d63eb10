"""Test overlapping subjects, trails, requests and preferred leaders."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata.controller.request_batcher import RequestBatcher
from liftpy.core.metadata.election import partitions_off_preferred_leader
from liftpy.core.metadata.image import ChangedStreams, SubjectIndex
from liftpy.core.metadata.records import PartitionStateChanged, StreamCreated, record_from_pb, record_to_pb
from liftpy.core.metadata.replay import replay
from liftpy.core.metadata.request_limits import SENT_TOGETHER
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each
from tests.unit.metadata.small_images import a_partition, a_stream, an_image


def listens(subject: str, partitions: int) -> set[tuple[str, ...]]:
    """Return all subjects over a small alphabet that a stream receives."""
    heard: set[tuple[str, ...]] = set()
    for own in [subject] + [f"{subject}.{n}" for n in range(1, partitions)]:
        pattern = own.split(".")
        for length in range(1, 5):
            for tokens in itertools.product(("a", "b", "1", "2"), repeat=length):
                fits = all(i < len(tokens) and (p in ("*", ">") or p == tokens[i]) for i, p in enumerate(pattern))
                if fits and (len(pattern) == length or (pattern[-1] == ">" and length >= len(pattern))):
                    heard.add(tokens)
    return heard


SUBJECTS = [
    ("a", 1),
    ("a", 3),
    ("a.1", 1),
    ("a.2", 1),
    ("a.*", 1),
    ("*.1", 1),
    ("a.>", 1),
    ("a.b", 3),
    ("a.b.1", 1),
    ("a.*.2", 1),
    ("b", 2),
    ("*.*", 2),
    (">", 1),
]


@each("one", SUBJECTS)
def test_subjects_overlap_if_one_message_subject_matches_both_filters(one: tuple[str, int]) -> None:
    index = SubjectIndex().with_stream("one", *one)
    for other in SUBJECTS:
        assert bool(index.overlapping(*other)) is bool(listens(*one) & listens(*other)), other
    assert index.without_stream("one", one[0]) == SubjectIndex()


def test_changed_streams_since_a_later_or_unrelated_image_returns_none() -> None:
    trail = ChangedStreams()
    later = trail.step("x").step("y")
    assert later.since(trail) == {"x", "y"}
    assert later.since(ChangedStreams()) is None
    assert trail.since(later) is None


def test_partition_requests_in_batches_of_bounded_size_each_get_an_answer() -> None:
    wishes, told = RequestBatcher(), list[Any]()
    for number in range(3 * SENT_TOGETHER):
        key = PartitionKey("s", "u", number)
        wishes.put(key, pb.ControlRequest(leaveIsr=pb.LeaveIsr(partition=number, reason="x" * 700)), told.append)
    wishes.put(PartitionKey("s", "u", 0), pb.ControlRequest(leaveIsr=pb.LeaveIsr(partition=0)), told.append)
    assert told.pop().error == pb.ControlResponse.STALE, "who was superseded is told"
    sent = []
    while (batch := wishes.next_batch()) is not None:
        assert batch.ByteSize() <= 49 * 1024
        assert len(batch.batch.requests) <= SENT_TOGETHER
        sent += [item.request.leaveIsr.partition for item in batch.batch.requests]
        errors = (pb.ControlResponse.OK, pb.ControlResponse.UNAVAILABLE, pb.ControlResponse.STALE)
        answers = [pb.BatchedAnswer(number=item.number, error=errors[item.number % 3]) for item in batch.batch.requests]
        told.clear()
        wishes.batch_answered(pb.ControlResponse(batch=pb.BatchAnswers(answers=answers)))
        assert [given is None for given in told] == [n % 3 == 1 for n in range(len(told))]
    assert sorted(sent) == list(range(3 * SENT_TOGETHER))


@pytest.mark.parametrize(
    ("more", "fenced", "count"),
    [
        ({"leader": "b"}, "", 1),
        ({}, "", 0),
        ({"leader": "b"}, "a", 0),
        ({"leader": "b", "isr": ("b", "c")}, "", 0),
        ({"leader": "b", "incomplete": ("a",)}, "", 0),
    ],
)
def test_misplaced_leadership_needs_a_live_in_sync_preferred_leader(more: dict[str, Any], fenced: str, count: int) -> None:
    assert len(partitions_off_preferred_leader(an_image(a_stream(a_partition(**more)), fenced=fenced))) == count


def test_metadata_image_replica_counts_change_with_created_and_deleted_streams() -> None:
    image = an_image()
    after = replay(image, StreamCreated(a_stream()))
    assert dict(after.replica_counts) == {"a": 1, "b": 1, "c": 1}
    assert dict(after.without_stream("s").replica_counts) == {}
    record = PartitionStateChanged("s", "u1", a_partition())
    assert record_from_pb(record_to_pb(record)) == record
