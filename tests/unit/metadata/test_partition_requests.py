"""Test the requests of a node's replicas to the metadata group: batched, one at a time, the newest of each kind."""

from __future__ import annotations

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata.controller.request_batcher import RequestBatcher
from liftpy.core.metadata.request_limits import MAX_BATCH_BYTES, SENT_TOGETHER
from liftpy.core.wire._pb import cluster_pb2 as pb

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
    assert asked.wishes.replaced_count == 491
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
