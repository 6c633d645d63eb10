"""Test requests to the metadata group: size limits, and what each response means for the replica."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.replication import effects as do
from liftpy.core.replication.events import Event, IsrChangeAnswered
from liftpy.core.wire._pb import cluster_pb2 as pb
from sidecar.partition.proposals import Proposals

KEY = PartitionKey("orders", "u1", 2)
OTHER = PartitionKey("orders", "u1", 3)
Error = pb.ControlResponse


class FakeGroup:
    """Keeps what is proposed until the test answers it."""

    def __init__(self) -> None:
        self.asked: list[pb.ControlRequest] = []
        self.waiting: list[asyncio.Future[pb.ControlResponse]] = []

    async def propose(self, request: pb.ControlRequest, timeout_s: float = 5.0) -> pb.ControlResponse:
        assert timeout_s > 0
        copy = pb.ControlRequest()
        copy.CopyFrom(request)
        self.asked.append(copy)
        self.waiting.append(asyncio.get_running_loop().create_future())
        return await self.waiting[-1]

    def answer(self, *errors: int) -> None:
        """The last batch: one error for each of its requests, or a single one for all of it."""
        items = self.asked[-1].batch.requests
        response = pb.ControlResponse()
        if len(errors) == len(items):
            response.batch.SetInParent()
            for item, error in zip(items, errors, strict=True):
                response.batch.answers.add(number=item.number, error=error)  # type: ignore[arg-type]
        else:
            response.error = errors[0]  # type: ignore[assignment]
        self.waiting.pop().set_result(response)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


def isr(epoch: int = 7, **more: Any) -> do.ProposeIsr:
    wanted = {"leader_epoch": 3, "epoch": epoch, "isr": frozenset({"n1", "n2"}), "incarnations": {"n2": 9}, **more}
    return do.ProposeIsr(**wanted)


def proposals(group: FakeGroup) -> Proposals:
    return Proposals(group, "n1", 5)  # type: ignore[arg-type]


def sole(request: pb.ControlRequest) -> pb.ControlRequest:
    """The one that it holds, in a batch or alone."""
    if not request.HasField("batch"):
        return request
    (item,) = request.batch.requests
    return item.request


@pytest.mark.parametrize(
    ("error", "accepted"),
    [
        (Error.OK, True), (Error.STALE, False), (Error.INVALID, False), (Error.FENCED, False),
        (Error.OUTCOME_UNKNOWN, None), (Error.UNAVAILABLE, None), (Error.NOT_METADATA_LEADER, None),
    ],
)  # fmt: skip
async def test_isr_change_request_counts_as_rejected_only_after_a_definite_error(error: int, accepted: bool | None) -> None:
    """After any other error the change may still be applied."""
    group, fed = FakeGroup(), list[Event]()
    asks = proposals(group)
    asks.propose_isr(KEY, isr(), fed.append)
    await until(lambda: bool(group.waiting))
    assert fed == []
    response = pb.ControlResponse(error=error)  # type: ignore[arg-type]
    group.waiting.pop().set_result(response)
    await until(lambda: bool(fed))
    assert fed == [IsrChangeAnswered(epoch=7, accepted=accepted)]
    await asks.close()


async def test_isr_change_request_contains_sender_and_expected_epoch() -> None:
    group = FakeGroup()
    asks = proposals(group)
    asks.propose_isr(KEY, isr(lost=frozenset({"n3"})), lambda event: None)
    await until(lambda: bool(group.asked))
    change = sole(group.asked[0]).changeIsr
    assert (change.stream, change.uid, change.partition, change.leader) == ("orders", "u1", 2, "n1")
    assert (change.leaderEpoch, change.epoch, list(change.isr), list(change.lost)) == (3, 7, ["n1", "n2"], ["n3"])
    assert dict(change.incarnations) == {"n2": 9}
    await asks.close()


async def test_controller_requests_of_a_node_are_sent_one_batch_at_a_time() -> None:
    group, fed = FakeGroup(), list[Event]()
    asks = proposals(group)
    asks.propose_isr(KEY, isr(1), fed.append)
    asks.propose_isr(OTHER, isr(2), fed.append)
    await until(lambda: bool(group.asked))
    assert len(group.asked[0].batch.requests) == 2
    asks.propose_isr(KEY, isr(3), fed.append)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(group.asked) == 1
    group.answer(Error.OK, Error.STALE)
    await until(lambda: len(group.asked) == 2)
    assert fed == [IsrChangeAnswered(epoch=1, accepted=True), IsrChangeAnswered(epoch=2, accepted=False)]
    assert sole(group.asked[1]).changeIsr.epoch == 3
    group.answer(Error.OK)
    await until(lambda: len(fed) == 3)
    assert asks.counters["batches of requests to the metadata group"] == 2
    await asks.close()


async def test_controller_requests_of_a_batch_get_separate_responses() -> None:
    group, fed = FakeGroup(), dict[PartitionKey, Event]()
    asks = proposals(group)
    asks.propose_isr(KEY, isr(1), lambda event: fed.setdefault(KEY, event))
    asks.propose_isr(OTHER, isr(2), lambda event: fed.setdefault(OTHER, event))
    await until(lambda: bool(group.waiting))
    group.answer(Error.STALE, Error.OUTCOME_UNKNOWN)
    await until(lambda: len(fed) == 2)
    assert fed == {KEY: IsrChangeAnswered(epoch=1, accepted=False), OTHER: IsrChangeAnswered(epoch=2, accepted=None)}
    await asks.close()


async def test_controller_requests_after_close_are_not_sent() -> None:
    group, fed = FakeGroup(), list[Event]()
    asks = proposals(group)
    asks.propose_isr(KEY, isr(), fed.append)
    await asks.close()
    asks.propose_isr(KEY, isr(8), fed.append)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert (group.asked, fed) == ([], [])


async def test_controller_requests_contain_node_and_incarnation() -> None:
    """An earlier process of the node must not act in its name."""
    group = FakeGroup()
    asks = proposals(group)
    asks.leave_isr(KEY, do.LeaveIsr(reason="its disk has failed"))
    await until(lambda: bool(group.waiting))
    left = sole(group.asked[-1]).leaveIsr
    assert (left.node, left.incarnation, left.reason, left.partition) == ("n1", 5, "its disk has failed", 2)
    group.answer(Error.OK)
    asks.give_up_leadership(KEY, do.StepAside(leader_epoch=4, toward="n2", reason="cut off"))
    await until(lambda: bool(group.waiting))
    given = sole(group.asked[-1]).giveUpLeadership
    assert (given.leader, given.incarnation, given.leaderEpoch, given.toward) == ("n1", 5, 4, "n2")
    group.answer(Error.OK)
    report = do.ReportPromotion(leader_epoch=4, epoch=6, replayed_end_offset=10, newest_offset=11, finished=True)
    asks.report_promotion(KEY, report)
    await until(lambda: bool(group.waiting))
    told = sole(group.asked[-1]).reportPromotion
    assert (told.candidate, told.candidateIncarnation, told.leaderEpoch, told.epoch) == ("n1", 5, 4, 6)
    assert (told.replayedEndOffset, told.newestOffset, told.finished) == (10, 11, True)
    group.answer(Error.OK)
    await asks.close()
