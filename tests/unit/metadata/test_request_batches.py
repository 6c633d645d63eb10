"""Test batches of requests about partitions: how a node makes them, and how the controllers apply them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.controller import request_batcher
from liftpy.core.metadata.controller.active_controller import ActiveController, merge_answers
from liftpy.core.metadata.controller.request_batcher import RequestBatcher, batch_of
from liftpy.core.metadata.image import ChangedStreams, ClusterImage
from liftpy.core.metadata.request_limits import MAX_BATCH_BYTES, SENT_TOGETHER
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import born_fsm, registration

_E = pb.ControlResponse


class Group:
    """Provide the state machine with three nodes and a stream of nine partitions whose leader ``a`` has failed."""

    def __init__(self) -> None:
        self.fsm = born_fsm(elections=True)
        self.count = 0
        for node in ("a", "b", "c"):
            self.ask(registerNode=registration(nodeId=node, flushedAlways=True))
        self.ask(createStream=pb.CreateStream(name="s", subject="s.x", replicationFactor=3, partitions=9))
        self.ask(fenceNode=pb.FenceNode(nodeId="a", incarnation=1))
        for p in self.image.streams["s"].partitions:
            if p.status is PartitionStatus.ELECTION:
                self.ask(concludeElection=pb.ConcludeElection(stream="s", partition=p.partition, epoch=p.epoch))

    @property
    def image(self) -> ClusterImage:
        return self.fsm.image

    def ask(self, **request: Any) -> pb.ControlResponse:
        return self.apply(pb.ControlRequest(**request))

    def apply(self, request: pb.ControlRequest) -> pb.ControlResponse:
        self.count += 1
        request.operationId = request.operationId or self.count.to_bytes(16, "big")
        request.timeNs = self.count
        return _E.FromString(self.fsm.apply(request.SerializeToString(), self.count))

    def wishes(self) -> list[pb.ControlRequest]:
        """Return requests: all candidates are promoted and leaders remove ``a`` from the ISR.

        One is sent twice, one is invalid.
        """
        stream = self.image.streams["s"]
        found = []
        for p in stream.partitions:
            at = {"stream": "s", "uid": stream.uid, "partition": p.partition, "leaderEpoch": p.leader_epoch, "epoch": p.epoch}
            if p.candidate:
                node = self.image.nodes[p.candidate]
                report = pb.ReportPromotion(**at, candidate=p.candidate, candidateIncarnation=node.incarnation, finished=True)
                found.append(pb.ControlRequest(reportPromotion=report))
            elif p.leader:
                change = pb.ChangeIsr(**at, leader=p.leader, isr=[n for n in p.isr if n != "a"])
                found += [pb.ControlRequest(changeIsr=change), pb.ControlRequest(changeIsr=change)]
        found.append(pb.ControlRequest(leaveIsr=pb.LeaveIsr(stream="nobody", node="b", incarnation=2)))
        return found


def comparable(image: ClusterImage) -> ClusterImage:
    """Return the image without the parts that depend on the number of entries."""
    return replace(image, index=0, time_ns=0, operations=ClusterImage().operations, trail=ChangedStreams())


def test_request_batch_changes_the_image_like_the_requests_sent_singly() -> None:
    alone, together = Group(), Group()
    requests = alone.wishes()
    answers = [alone.apply(request).error for request in requests]
    entries = together.count
    answer = together.apply(batch_of(together.wishes()))
    assert together.count == entries + 1
    assert [a.error for a in answer.batch.answers] == answers
    assert {_E.OK, _E.STALE, _E.NOT_FOUND} <= set(answers)
    assert comparable(together.image) == comparable(alone.image)
    assert all(p.status is PartitionStatus.ONLINE and "a" not in p.isr for p in together.image.streams["s"].partitions)


def test_request_batch_sent_twice_is_applied_once() -> None:
    group = Group()
    request = batch_of(group.wishes())
    first = group.apply(request)
    image = group.image
    again = group.apply(request)
    assert again.batch == first.batch
    assert again.index == first.index
    assert comparable(group.image) == comparable(image)


def test_request_batch_with_one_raising_request_applies_the_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    requests = group.wishes()
    real = request_batcher.decide

    def decide(image: Any, request: pb.ControlRequest, *more: Any) -> Any:
        if request == requests[0]:
            raise ZeroDivisionError("a bug")
        return real(image, request, *more)

    monkeypatch.setattr(request_batcher, "decide", decide)
    answer = group.apply(batch_of(requests))
    errors = {a.number: a.error for a in answer.batch.answers}
    assert errors[0] == _E.UNKNOWN
    assert list(errors.values()).count(_E.OK) == 8
    assert group.fsm.failure_count >= 1


def test_request_batch_rejects_requests_that_concern_no_partition() -> None:
    group = Group()
    fence = pb.ControlRequest(fenceNode=pb.FenceNode(nodeId="b", incarnation=2))
    nested = batch_of([fence, fence])
    answer = group.apply(batch_of([fence, nested]))
    assert [a.error for a in answer.batch.answers] == [_E.INVALID, _E.INVALID]
    assert group.image.is_live("b")


def test_metadata_leader_answers_no_op_requests_of_a_batch_and_logs_the_others() -> None:
    group = Group()
    duties = ActiveController(ReplicationConfig())
    duties.lead(group.image, 0, term=1)
    finished = next(wish for wish in group.wishes() if wish.HasField("reportPromotion"))
    progress = pb.ControlRequest()
    progress.CopyFrom(finished)
    progress.reportPromotion.finished = False
    request = batch_of([progress, finished])
    request.operationId, request.sender = b"o" * 16, "n1"
    here, rest = duties.split_batch(request, group.image, 1, 1)
    assert [a.number for a in here.batch.answers] == [0]
    assert rest is not None
    wanted = pb.ControlRequest()
    wanted.CopyFrom(request)
    del wanted.batch.requests[0]
    assert rest == wanted, "all that stood around the one that was answered"
    assert [item.number for item in rest.batch.requests] == [1]
    assert rest.operationId == request.operationId
    answer = merge_answers(here, group.apply(rest))
    assert sorted(a.number for a in answer.batch.answers) == [0, 1]
    only = batch_of([progress, progress])
    assert duties.split_batch(only, group.image, 1, 1)[1] is None


def test_metadata_leader_proposes_due_elections_of_many_partitions_in_one_batch() -> None:
    group = Group()
    duties = ActiveController(ReplicationConfig())
    duties.lead(group.image, 0, term=1)
    candidates = sum(p.status is PartitionStatus.CANDIDATE_FOUND for p in group.image.streams["s"].partitions)
    assert candidates == 3
    due = duties.take_due(2_100_000_000)
    kinds = [request.WhichOneof("request") for request in due]
    assert kinds.count("batch") == 1
    batch = next(request for request in due if request.HasField("batch"))
    assert len(batch.batch.requests) == candidates


OK = pb.ControlResponse()


def key(number: int) -> PartitionKey:
    return PartitionKey("s", "u", number)


def promotion(number: int, newest_offset: int = 0, candidate: str = "a") -> pb.ControlRequest:
    report = pb.ReportPromotion(stream="s", partition=number, candidate=candidate, newestOffset=newest_offset)
    return pb.ControlRequest(reportPromotion=report)


def isr(number: int) -> pb.ControlRequest:
    return pb.ControlRequest(changeIsr=pb.ChangeIsr(stream="s", partition=number))


class Asked:
    """Add partition requests and record the answer of each."""

    def __init__(self) -> None:
        self.wishes = RequestBatcher()
        self.answers: list[tuple[int, int | None]] = []

    def put(self, number: int, request: pb.ControlRequest) -> None:
        def answered(response: pb.ControlResponse | None) -> None:
            self.answers.append((number, None if response is None else response.error))

        self.wishes.put(key(number), request, answered)


def numbers(batch: pb.ControlRequest | None) -> list[int]:
    assert batch is not None
    return [item.request.reportPromotion.partition for item in batch.batch.requests]


def answers_to(batch: pb.ControlRequest | None, *errors: tuple[int, pb.ControlResponse.Error]) -> pb.ControlResponse:
    return pb.ControlResponse(batch=pb.BatchAnswers(answers=[pb.BatchedAnswer(number=n, error=e) for n, e in errors]))


def test_partition_requests_of_thousands_of_partitions_are_sent_in_few_batches_one_at_a_time() -> None:
    asked = Asked()
    for number in range(3000):
        asked.put(number, promotion(number))
    sent: list[int] = []
    batches = 0
    while (batch := asked.wishes.next_batch()) is not None:
        assert asked.wishes.next_batch() is None, "one batch is out"
        assert len(batch.batch.requests) <= SENT_TOGETHER
        assert batch.ByteSize() <= 64 * 1024
        sent += numbers(batch)
        batches += 1
        asked.wishes.batch_answered(OK)
    assert sent == list(range(3000))
    assert batches <= 3000 / SENT_TOGETHER + 1
    assert len(asked.answers) == 3000


def test_partition_request_replaces_an_older_unsent_request_of_the_partition_and_kind() -> None:
    asked = Asked()
    for _ in range(50):
        for number in range(10):
            asked.put(number, promotion(number, newest_offset=number))
    asked.put(0, promotion(0, newest_offset=99))
    assert len(asked.wishes) == 10
    batch = asked.wishes.next_batch()
    assert numbers(batch) == list(range(10))
    assert batch is not None
    assert batch.batch.requests[0].request.reportPromotion.newestOffset == 99
    assert len(asked.answers) == 491
    assert {error for _, error in asked.answers} == {pb.ControlResponse.STALE}


def test_partition_request_made_during_a_batch_is_sent_after_the_answer_of_the_batch() -> None:
    asked = Asked()
    asked.put(1, promotion(1))
    first = asked.wishes.next_batch()
    assert first is not None
    assert first.WhichOneof("request") == "reportPromotion"
    asked.put(1, promotion(1, newest_offset=5))
    asked.put(2, promotion(2))
    assert asked.wishes.next_batch() is None
    asked.wishes.batch_answered(None)
    assert asked.answers == [(1, None)]
    assert numbers(asked.wishes.next_batch()) == [1, 2]


def test_partition_requests_about_leaders_are_sent_before_isr_changes() -> None:
    asked = Asked()
    asked.put(1, isr(1))
    asked.put(2, promotion(2))
    batch = asked.wishes.next_batch()
    assert batch is not None
    assert [item.request.WhichOneof("request") for item in batch.batch.requests] == ["reportPromotion", "changeIsr"]


def test_partition_request_gets_its_own_answer_from_a_batch_or_an_unknown_outcome() -> None:
    asked = Asked()
    for number in range(4):
        asked.put(number, isr(number))
    batch = asked.wishes.next_batch()
    answer = answers_to(batch, (0, pb.ControlResponse.OK), (2, pb.ControlResponse.STALE), (3, pb.ControlResponse.UNKNOWN))
    asked.wishes.batch_answered(answer)
    assert asked.answers == [(0, pb.ControlResponse.OK), (1, None), (2, pb.ControlResponse.STALE), (3, None)]


@pytest.mark.parametrize("error", [pb.ControlResponse.UNAVAILABLE, pb.ControlResponse.OUTCOME_UNKNOWN])
def test_partition_requests_without_a_metadata_leader_have_unknown_outcomes(error: pb.ControlResponse.Error) -> None:
    asked = Asked()
    for number in range(2):
        asked.put(number, isr(number))
    asked.wishes.next_batch()
    asked.wishes.batch_answered(pb.ControlResponse(error=error))
    assert asked.answers == [(0, None), (1, None)]


def test_partition_requests_of_a_rejected_batch_each_get_the_answer_invalid() -> None:
    asked = Asked()
    for number in range(2):
        asked.put(number, isr(number))
    asked.wishes.next_batch()
    asked.wishes.batch_answered(pb.ControlResponse(error=pb.ControlResponse.INVALID, detail="of a later version"))
    assert asked.answers == [(0, pb.ControlResponse.INVALID), (1, pb.ControlResponse.INVALID)]


def test_partition_request_batches_are_bounded_in_bytes() -> None:
    asked = Asked()
    for number in range(30):
        asked.put(number, promotion(number, candidate="x" * 5000))
    batch = asked.wishes.next_batch()
    assert batch is not None
    assert MAX_BATCH_BYTES // 2 < batch.ByteSize() <= MAX_BATCH_BYTES + 1024


def test_partition_requests_are_dropped_on_stop() -> None:
    asked = Asked()
    for request in (promotion(1), isr(1)):
        asked.put(1, request)
        asked.wishes.drop()
        assert asked.wishes.next_batch() is None
        assert (len(asked.wishes), asked.answers) == (0, [])
