"""Test requests to the metadata group: size limits, and what each response means for the replica."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionState, Purge
from liftpy.core.replication import effects as do
from liftpy.core.replication.events import Event, IsrChangeAnswered
from liftpy.core.wire._pb import cluster_pb2 as pb
from sidecar.partition.proposals import Proposals
from tests.unit.scripted_group import ScriptedGroup
from tests.until import until

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


async def test_controller_requests_after_close_are_not_sent() -> None:
    group, fed = FakeGroup(), list[Event]()
    asks = proposals(group)
    asks.propose_isr(KEY, isr(), fed.append)
    await asks.close()
    asks.propose_isr(KEY, isr(8), fed.append)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert (group.asked, fed) == ([], [])


async def test_controller_request_reports_a_finished_purge_once() -> None:
    wish = Purge(number=4, subjects=("x",), end_offset=9)
    state = PartitionState(partition=2, replicas=("n1",), isr=("n1",), leader="n1", leader_epoch=1, epoch=1, purges=(wish,))
    group = ScriptedGroup()
    proposals = Proposals(group, "n1", 7)
    proposals.report_purged(KEY, state, {3})
    proposals.report_purged(KEY, state, {4})
    await until(lambda: group.asked)
    said = pb.ReportPurged(stream="orders", uid="u1", partition=2, node="n1", incarnation=7, number=4)
    assert [request.reportPurged for request, _ in group.asked] == [said]
