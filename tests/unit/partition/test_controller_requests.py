"""Test the store of promised leader epochs, and requests to the metadata group."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionState, Purge
from liftpy.core.log.epoch_promises import PromiseJournal
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.replication import effects as do
from liftpy.core.replication.events import Event, IsrChangeAnswered
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import StorageError
from sidecar.partition.promises import OnStored, Promises
from sidecar.partition.proposals import Proposals
from tests.unit.scripted_group import ScriptedGroup
from tests.until import until


class Bench:
    def __init__(self, pool: concurrent.futures.Executor) -> None:
        self.storage = MemoryStorage()
        self.counters: Counter[str] = Counter()
        self.broken: list[Exception] = []
        self.promises = Promises(PromiseJournal(self.storage), pool, self.counters, self.broken.append)
        self.may_flush = threading.Event()
        self.may_flush.set()
        self.error: Exception | None = None
        """Error that the next flush raises."""
        self.storage.fault = self._fault
        self.told: list[tuple[str, StorageError | None]] = []

    def _fault(self, what: str) -> None:
        if what == "sync":
            assert self.may_flush.wait(10)
            if self.error is not None:
                raise self.error

    def tells(self, key: str) -> OnStored:
        return lambda error: self.told.append((key, error))

    def on_disk(self) -> Callable[[str], int]:
        return PromiseJournal(self.storage.crash()).epoch_of


async def test_leader_epoch_store_writes_epochs_requested_during_a_flush_together(pool: concurrent.futures.Executor) -> None:
    bench = Bench(pool)
    bench.may_flush.clear()
    for number in range(50):
        bench.promises.store(f"a/{number}", 3, bench.tells("first"))
    await until(lambda: bench.counters["promise_flushes"] == 1, "it has begun")
    for number in range(50):
        bench.promises.store(f"b/{number}", 4, bench.tells("second"))
    bench.promises.store("b/7", 5, bench.tells("the last one counts"))
    assert bench.told == [], "nobody is told, and the loop does not wait"
    assert bench.on_disk()("a/0") == 0
    bench.may_flush.set()
    await until(lambda: len(bench.told) == 100, "all are told")
    assert bench.counters == {"promise_flushes": 2, "leader_epoch_promises": 100}
    assert bench.told.count(("the last one counts", None)) == 1
    assert [bench.on_disk()(key) for key in ("a/0", "b/0", "b/7")] == [3, 4, 5]
    await bench.promises.close()


async def test_leader_epoch_store_write_error_is_reported_to_all_waiters(pool: concurrent.futures.Executor) -> None:
    bench = Bench(pool)
    bench.error = StorageError("simulated")
    bench.promises.store("a/0", 3, bench.tells("a"))
    bench.promises.store("a/1", 3, bench.tells("b"))
    await until(lambda: len(bench.told) == 2, "told")
    bench.promises.store("a/2", 3, bench.tells("c"))
    await until(lambda: len(bench.told) == 3, "told")
    assert all(isinstance(error, StorageError) for _, error in bench.told)
    assert bench.broken == []
    await bench.promises.close()


async def test_leader_epoch_store_of_a_deleted_partition_returns_zero(pool: concurrent.futures.Executor) -> None:
    bench = Bench(pool)
    bench.promises.store("s-u1/0", 5, bench.tells("first"))
    await until(lambda: bench.told)
    assert bench.promises.epoch_of("s-u1/0") == 5
    bench.promises.store("s-u1/0", 6, bench.tells("deleted"))
    bench.promises.forget("s-u1/0")
    assert bench.promises.epoch_of("s-u1/0") == 0
    bench.promises.store("t-u2/0", 3, bench.tells("other"))
    await until(lambda: len(bench.told) == 2)
    assert (bench.promises.epoch_of("s-u1/0"), bench.promises.epoch_of("t-u2/0")) == (0, 3)
    await bench.promises.close()


async def test_leader_epoch_store_exception_in_the_journal_stops_the_node(pool: concurrent.futures.Executor) -> None:
    bench = Bench(pool)
    bench.error = ZeroDivisionError("a bug")
    bench.promises.store("a/0", 3, bench.tells("a"))
    await until(lambda: bench.broken)
    assert (bench.broken, bench.told) == ([bench.error], [])
    bench.error = None
    await bench.promises.close()


async def test_leader_epoch_store_close_waits_for_the_running_write(pool: concurrent.futures.Executor) -> None:
    bench = Bench(pool)
    bench.may_flush.clear()
    bench.promises.store("a/0", 3, bench.tells("a"))
    await until(lambda: bench.counters["promise_flushes"] == 1)
    closing = asyncio.ensure_future(bench.promises.close())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not closing.done()
    bench.may_flush.set()
    await closing
    assert (bench.on_disk()("a/0"), bench.told) == (3, [])


async def test_leader_epoch_store_close_drops_writes_that_have_not_started(pool: concurrent.futures.Executor) -> None:
    bench = Bench(pool)
    bench.promises.store("a/0", 3, bench.tells("a"))
    await bench.promises.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (bench.on_disk()("a/0"), bench.told) == (0, [])


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
    assert len(group.asked) == 2
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
