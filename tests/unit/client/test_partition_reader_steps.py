"""Test the steps of a partition reader without a server: choice of the node, checks of answers, retries."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client import consumer as consumer_module
from liftpy.client import iteration as iteration_module
from liftpy.client.admin_requests import NodeRequests
from liftpy.client.batch_view import BatchSlice
from liftpy.client.consumer import Consumer, PartitionReader, ReadOptions, _cut, _retrieve_error, read_range
from liftpy.client.metadata_requests import MetadataRequests
from liftpy.client.positions import Bounds
from liftpy.client.progress import NotServedError, ReadProgress
from liftpy.client.stream_directory import StreamDirectory
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.batch import build_batch, parse_batch
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import (
    ConfigError,
    LogTruncatedError,
    NotFoundError,
    OffsetOutOfRangeError,
    ProtocolError,
    UnavailableError,
)
from liftpy.nats.transport import NoRespondersError
from tests.unit.client.test_read_progress import answer, batch, offsets

_Error = client_pb2.ReadResponse.Error
SUBJECTS = Subjects("ns")
GROUP = SUBJECTS.read("s", 0)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def a_reader(options: ReadOptions | None = None, **transport: Any) -> Any:
    made: Any = SimpleNamespace(max_payload_bytes=1 << 20, counters=Counter(), **transport)
    return PartitionReader(made, SUBJECTS, "s", 0, options or ReadOptions(wait_s=0.25))


class Asked:
    """A replacement of ``_answer``. ``script`` has the body and header of each answer, or an error."""

    def __init__(self, reader: Any, *script: Any) -> None:
        self.script = list(script)
        self.nodes: list[str] = []
        self.requests: list[client_pb2.ReadRequest] = []
        self.waits: list[float] = []
        reader._answer = self

    async def __call__(self, node: str, request: client_pb2.ReadRequest, wait_s: float) -> bytes:
        said = self.script.pop(0)
        kept = client_pb2.ReadRequest()
        kept.CopyFrom(request)
        self.nodes.append(node)
        self.requests.append(kept)
        self.waits.append(wait_s)
        if isinstance(said, Exception):
            raise said
        body, head = said
        return answer(*body, **{"stream": "s", "partition": 0, "requestId": request.requestId, "leader": "n1", **head})


GOOD = ([batch(0, 3)], {"hw": 9, "node": "n2"})


# ---- whom it asks --------------------------------------------------------------------------------------------------------------
async def test_partition_reader_sends_the_next_request_to_the_node_that_answered_last() -> None:
    reader = a_reader(ReadOptions(max_bytes=5000, wait_s=0.25))
    asked = Asked(reader, GOOD, ([batch(3, 2)], {"hw": 9, "node": "n3"}))
    progress = ReadProgress("s", 0, 0)
    assert offsets(await reader.fetch(progress)) == [0, 1, 2]
    assert offsets(await reader.fetch(progress)) == [3, 4]
    assert (asked.nodes, asked.waits, reader.node) == (["", "n2"], [0.25, 0.25], "n3")
    first, second = asked.requests
    assert (first.maxBytes, first.waitMs, first.offset, second.offset) == (5000, 250, 0, 3)
    assert first.requestId != second.requestId
    small = a_reader(ReadOptions(max_bytes=1 << 21))
    assert small._max_bytes == (1 << 20) - 4096


@pytest.mark.parametrize(("pinned", "nodes"), [("", ["", "n1", "", "n2"]), ("n7", ["n7"] * 4)])
async def test_partition_reader_requests_the_leader_in_the_rejection_of_another_node(pinned: str, nodes: list[str]) -> None:
    reader = a_reader(ReadOptions(node=pinned, wait_s=0.25))
    refuses = ([], {"hw": 9, "error": _Error.NOT_READY, "node": "n3"})
    asked = Asked(reader, refuses, refuses, GOOD, ([batch(3, 2)], {"hw": 9, "node": "n2"}))
    if pinned:
        asked.script[0] = asked.script[1] = ([], {"hw": 9, "error": _Error.NOT_READY, "node": "n7"})
    progress = ReadProgress("s", 0, 0)
    await reader.fetch(progress)
    await reader.fetch(progress)
    assert asked.nodes == nodes
    assert reader.node == (pinned or "n2")


async def test_partition_reader_after_an_unanswered_request_does_not_choose_a_node() -> None:
    reader = a_reader()
    reader.node = "n2"
    asked = Asked(reader, UnavailableError("silent"), GOOD)
    await reader.fetch(ReadProgress("s", 0, 0))
    assert asked.nodes == ["n2", ""]


@pytest.mark.parametrize(("leader", "asked_first", "second"), [("n1", "", "n1"), ("n1", "n1", ""), ("", "n2", "")])
async def test_partition_reader_confirms_a_fatal_error_with_a_second_answer(leader: str, asked_first: str, second: str) -> None:
    reader = a_reader()
    reader.node = asked_first
    ends = ([], {"hw": 9, "error": _Error.WRONG_STREAM, "uid": "u2", "leader": leader})
    asked = Asked(reader, ends, ends)
    with pytest.raises(NotFoundError):
        await reader.fetch(ReadProgress("s", 0, 0, uid="u1"))
    assert asked.nodes == [asked_first, second]
    assert reader._transport.counters == {"answers doubted": 2}


async def test_partition_reader_counts_an_answer_with_another_request_id_and_retries() -> None:
    reader = a_reader()
    asked = Asked(reader, ([batch(0, 3)], {"hw": 9, "requestId": 1}), GOOD)
    assert offsets(await reader.fetch(ReadProgress("s", 0, 0))) == [0, 1, 2]
    assert reader._transport.counters == {"answers to something else": 1}
    assert len(asked.nodes) == 2


async def test_partition_reader_reports_damaged_bytes_to_the_sending_node() -> None:
    reader = a_reader()
    damaged = bytearray(batch(0, 3))
    damaged[-1] ^= 1
    asked = Asked(reader, ([bytes(damaged)], {"hw": 9, "node": "n3"}), GOOD, ([batch(9, 1)], {"hw": 9, "node": "n3"}), GOOD)
    told: list[Any] = []

    async def ask(node: str, request: client_pb2.ReadRequest, wait_s: float) -> bytes:
        told.append((node, request, wait_s))
        raise UnavailableError("it does not hear that")

    reader._ask = ask
    assert offsets(await reader.fetch(ReadProgress("s", 0, 0, uid="u1"))) == [0, 1, 2]
    assert reader._transport.counters == {"damaged answers": 1}
    complaint = client_pb2.ReadRequest(boundsOnly=True, streamUid="u1", minHighWatermark=-1, badOffset=0)
    assert told == [("n3", complaint, 0.0)]
    told.clear()
    assert offsets(await reader.fetch(ReadProgress("s", 0, 0, uid="u1"))) == [0, 1, 2]
    assert told == [("n3", complaint, 0.0)], "a gap is damage, too"
    assert len(asked.nodes) == 4
    told.clear()
    nameless = ReadProgress("s", 0, 0, uid="u1", suspect=("", 3))
    await reader._complain(nameless)
    assert (told, nameless.suspect) == ([], None)


async def test_partition_reader_counts_batches_that_do_not_decompress() -> None:
    reader = a_reader()
    Asked(reader, GOOD)
    [piece] = await reader.fetch(ReadProgress("s", 0, 0))
    piece.batch.on_damage(SimpleNamespace())
    assert reader._transport.counters == {"batches that do not decompress": 1}


async def test_partition_reader_without_an_answer_raises_unavailable_after_patience_s() -> None:
    reader = a_reader(ReadOptions(patience_s=0.01))
    Asked(reader, *[UnavailableError("nobody")] * 1000)
    with pytest.raises(UnavailableError, match="nobody"):
        await reader.fetch(ReadProgress("s", 0, 0))


# ---- bounds --------------------------------------------------------------------------------------------------------------------
async def test_partition_reader_requests_bounds_from_the_leader_unless_a_node_is_pinned() -> None:
    reader = a_reader()
    follower = ([], {"hw": 4, "node": "n2", "leader": "n1"})
    leader = ([], {"hw": 9, "node": "n1", "leader": "n1", "nextOffset": 7, "logStartOffset": 2, "leaderEpoch": 3})
    asked = Asked(reader, follower, leader)
    found, at_offset = await reader.bounds("u1", at_ns=55, last=(5, 1))
    assert (found, at_offset) == (Bounds("u1", "n1", "n1", 3, 2, 9), 7)
    assert (asked.nodes, asked.waits, reader.node) == (["", "n1"], [0.0, 0.0], "n2")
    first, second = asked.requests
    assert first.requestId != second.requestId
    second.requestId = 0
    assert second == client_pb2.ReadRequest(
        stream="s", partition=0, boundsOnly=True, streamUid="u1", minHighWatermark=-1, lastOffset=5, lastEpoch=1,
        byTimestamp=True, timestamp=55,
    )  # fmt: skip
    asked = Asked(reader, leader)
    await reader.bounds()
    assert not asked.requests[0].byTimestamp
    pinned = a_reader(ReadOptions(node="n2"))
    asked = Asked(pinned, follower)
    assert (await pinned.bounds())[0].high_watermark == 4
    assert (asked.nodes, pinned.node) == (["n2"], "n2")


async def test_partition_reader_bounds_confirm_a_truncation_with_a_second_answer() -> None:
    reader = a_reader()
    cut = ([], {"hw": 9, "node": "n1", "leader": "n1", "error": _Error.CUT, "cutEndOffset": 3})
    asked = Asked(reader, cut, cut)
    with pytest.raises(LogTruncatedError, match="before offset 6"):
        await reader.bounds("u1", last=(5, 1))
    assert len(asked.nodes) == 2
    assert reader._transport.counters == {"answers doubted": 2}
    low = ([], {"hw": 9, "node": "n1", "leader": "n1", "error": _Error.OFFSET_OUT_OF_RANGE, "logStartOffset": 7})
    Asked(reader, low, low)
    with pytest.raises(OffsetOutOfRangeError, match="Offset 6 is outside"):
        await reader.bounds("u1", last=(5, 1))
    head = {"hw": 9, "node": "n1", "leader": "n1"}
    wrong = [([], head | {"stream": "t"}), ([], head | {"partition": 1}), ([], head | {"uid": "u2"})]
    asked = Asked(reader, *wrong, ([], head | {"hw": 8}))
    assert (await reader.bounds("u1"))[0].high_watermark == 8
    assert len(asked.nodes) == 4


# ---- one question --------------------------------------------------------------------------------------------------------------
class Requests:
    """A replacement of Transport. The test answers its requests."""

    def __init__(self) -> None:
        self.max_payload_bytes = 1 << 20
        self.counters: Counter[str] = Counter()
        self.asked: list[tuple[str, bytes, float, asyncio.Future[bytes]]] = []
        self.reconnected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        answer_: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.asked.append((subject, payload, timeout_s, answer_))
        return await answer_

    @property
    def subjects(self) -> list[str]:
        return [subject for subject, _, _, _ in self.asked]


def a_reader_over(requests: Any, **options: Any) -> Any:
    return PartitionReader(requests, SUBJECTS, "s", 0, ReadOptions(**options))


@pytest.mark.parametrize("pinned", [False, True])
async def test_partition_reader_repeats_an_unanswered_request_a_bounded_number_of_times(
    pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "_HEDGE_S", 0.0)
    requests = Requests()
    reader = a_reader_over(requests, answer_timeout_s=3.0, node="n2" if pinned else "")
    request = client_pb2.ReadRequest(stream="s")
    asking = asyncio.create_task(reader._ask("n2", request, 0.0))
    named = SUBJECTS.read_from("s", 0, "n2")
    wanted = [named] * 6 if pinned else [named, *[GROUP] * 10]
    while len(requests.asked) < len(wanted):
        await asyncio.sleep(0)
    await turns(20)
    assert requests.subjects == wanted
    assert {(payload, timeout_s) for _, payload, timeout_s, _ in requests.asked} == {(frames.seal(request), 3.0)}
    requests.reconnected.set_result(None)
    await turns(20)
    assert not asking.done(), "it was asked as often as it may be; now it is waited for"
    assert requests.subjects == wanted
    requests.asked[-1][3].set_result(b"late")
    assert await asking == b"late"
    await turns()
    assert all(answer_.cancelled() for _, _, _, answer_ in requests.asked[:-1])


async def test_partition_reader_answer_timeout_includes_the_long_poll_time() -> None:
    requests = Requests()
    reader = a_reader_over(requests, answer_timeout_s=3.0)
    asking = asyncio.create_task(reader._ask("", client_pb2.ReadRequest(), 500.0))
    await turns(20)
    assert (requests.subjects, requests.asked[0][2]) == ([GROUP], 503.0)
    requests.reconnected.set_result(None)
    requests.reconnected = asyncio.get_running_loop().create_future()
    await turns(20)
    assert requests.subjects == [GROUP] * 3, "what was asked may be lost with the connection"
    requests.asked[0][3].set_exception(UnavailableError("cut"))
    with pytest.raises(UnavailableError, match="cut"):
        await asking
    await turns()
    assert requests.asked[1][3].cancelled()


@pytest.mark.parametrize(("node", "pinned", "looks"), [("", "", True), ("n2", "", False), ("n2", "n2", True)])
async def test_partition_reader_without_responders_checks_if_the_stream_exists(node: str, pinned: str, looks: bool) -> None:
    looked: list[int] = []

    async def exists() -> None:
        looked.append(1)
        raise NotFoundError("no such stream")

    reader = a_reader(ReadOptions(node=pinned))
    reader._exists = exists

    async def ask(*_: Any) -> bytes:
        raise NoRespondersError("nobody")

    reader._ask = ask
    with pytest.raises(NotFoundError if looks else NoRespondersError):
        await reader._answer(node, client_pb2.ReadRequest(), 0.0)
    assert len(looked) == looks


async def test_partition_reader_errors_of_background_tasks_log_no_unretrieved_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    failed, cancelled = loop.create_future(), loop.create_future()
    failed.set_exception(UnavailableError("x"))
    cancelled.cancel()
    _retrieve_error(failed)
    _retrieve_error(cancelled)
    assert not failed._log_traceback  # type: ignore[attr-defined]
    monkeypatch.setattr(consumer_module, "_HEDGE_S", 0.0)
    gate = loop.create_future()

    async def exists() -> None:
        await gate

    reader = a_reader()
    reader._exists = exists
    await reader._must_exist()
    task = reader._existing
    gate.set_exception(NotFoundError("gone"))
    await turns()
    assert task.done()
    assert not task._log_traceback


# ---- ends ----------------------------------------------------------------------------------------------------------------------
def piece(base: int, *times_ns: int) -> BatchSlice:
    made = parse_batch(build_batch([b"v"] * len(times_ns), base_offset=base, leader_epoch=1, timestamps_ns=list(times_ns)))
    found = BatchSlice.between(made, 0, None)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("until_ns", "kept", "end"), [(5, [], 0), (20, [0], 1), (30, [0, 1], 2), (35, [0, 1, 2], 3), (99, [0, 1, 2, 3], None)]
)
def test_partition_reader_with_an_end_time_drops_later_records(until_ns: int, kept: list[int], end: int | None) -> None:
    progress = ReadProgress("s", 0, 4)
    assert offsets(_cut([piece(0, 10, 20), piece(2, 30, 40)], until_ns, progress)) == kept
    assert progress.end_offset == end


@pytest.mark.parametrize(("now_ns", "known"), [(99, False), (100, True), (101, True)])
async def test_partition_reader_end_time_in_the_past_resolves_to_an_offset(
    now_ns: int, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    reader = a_reader()
    asked: list[Any] = []

    async def bounds(uid: str, at_ns: int) -> tuple[Any, int]:
        asked.append((uid, at_ns))
        return None, 3

    async def fetch(progress: ReadProgress) -> list[BatchSlice]:
        progress.next_offset = 4
        return [piece(0, 10, 20), piece(2, 90, 100)]

    reader.bounds, reader.fetch = bounds, fetch
    progress = ReadProgress("s", 0, 0, uid="u1")
    fetching = reader.fetching(progress, 100)
    assert offsets(await fetching()) == ([0, 1, 2, 3] if known else [0, 1, 2])
    assert asked == ([("u1", 100)] if known else [])
    assert progress.end_offset == 3
    assert await fetching() is None
    assert len(asked) == known
    follows = ReadProgress("s", 0, 0, uid="u1")
    assert offsets(await reader.fetching(follows)()) == [0, 1, 2, 3]
    assert follows.end_offset is None


# ---- consumers -----------------------------------------------------------------------------------------------------------------
BOUNDS = Bounds("u1", "n2", "n1", 3, 5, 9, True)


def a_consumer(start: Any = 7, until: Any = None, after_epoch: int = 0) -> tuple[Any, list[Any]]:
    asked: list[Any] = []

    async def bounds(uid: str, *, at_ns: int | None, last: tuple[int, int]) -> tuple[Bounds, int]:
        assert not uid
        asked.append((at_ns, last))
        return BOUNDS, 8

    usable: Any = lambda: asked.append("usable")  # noqa: E731
    reader: Any = SimpleNamespace(stream="s", partition=3, bounds=bounds, must_be_usable=usable, options=ReadOptions())
    return Consumer(reader, start, until, after_epoch), asked


@pytest.mark.parametrize(("start", "right"), [(1, True), (0, False), ("earliest", False), (datetime(2026, 1, 1), False)])
def test_consumer_with_after_epoch_and_a_start_that_is_no_offset_raises_config_error(start: Any, right: bool) -> None:
    if right:
        a_consumer(start, after_epoch=1)
    else:
        with pytest.raises(ConfigError, match="start to be an offset"):
            a_consumer(start, after_epoch=1)
    a_consumer(start)


async def test_read_range_returns_the_records_of_the_planned_range() -> None:
    reader = a_reader(must_be_usable=lambda: None, on_close=lambda callback: lambda: None)
    Asked(reader, ([batch(0, 3)], {"hw": 9}), ([batch(3, 4)], {"hw": 9}))
    progress = ReadProgress("s", 0, 1, 5, floor_high_watermark=4)
    assert offsets([piece async for piece in read_range(reader, progress)]) == [1, 2, 3, 4]


async def test_consumer_iteration_cleanup_cancels_the_task_in_the_background() -> None:
    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(forever())
    await turns()
    iteration_module._close_later(task)
    [ending] = iteration_module._close_tasks
    await ending
    await turns()
    assert (task.cancelled(), iteration_module._close_tasks) == (True, set())


# ---- what a reader believes ------------------------------------------------------------------------------------------------------
def test_partition_reader_with_an_offset_gap_raises_and_records_the_node_and_offset() -> None:
    progress = ReadProgress("s", 0, 5, uid="u1")
    with pytest.raises(ProtocolError, match=r"offset 5, received 7\. Read"):
        progress.accept(answer(batch(7, 1), hw=9, node="n3"))
    assert progress.suspect == ("n3", 5)
    assert progress.next_offset == 5


def test_partition_reader_joins_batch_fragments_from_several_nodes() -> None:
    whole = batch(0, 3)
    progress = ReadProgress("s", 0, 0)

    def part(begin: int, end: int, node: str, hw: int) -> bytes:
        head = {"pieceTotal": len(whole), "piecePosition": begin, "pieceCrc": 7, "node": node}
        return answer(whole[begin:end], hw=hw, **head)

    assert progress.accept(part(0, 40, "n2", 9)) == []
    assert (progress.uid, progress.node, progress.high_watermark, progress.next_offset) == ("u1", "n2", 9, 0)
    asked = progress.request(1, 1)
    assert (asked.position, asked.batchCrc, asked.offset) == (40, 7, 0)
    assert progress.accept(part(50, 60, "n3", 4)) == [], "it does not go on there"
    assert (progress.node, progress.high_watermark, progress.request(1, 1).position) == ("n3", 9, 40)
    assert offsets(progress.accept(part(40, len(whole), "n3", 9))) == [0, 1, 2]
    assert (progress.next_offset, progress.request(1, 1).position) == (3, 0)


# ---- what a client remembers -----------------------------------------------------------------------------------------------------
async def test_client_stream_without_refresh_returns_the_cached_description() -> None:
    requests: Any = SimpleNamespace()
    streams = StreamDirectory(requests)
    streams.cached["s"] = "old"  # type: ignore[assignment]
    asked: list[Any] = []

    async def stream(name: str) -> str:
        asked.append((name, dict(streams.cached)))
        return "new"

    requests.stream = stream
    assert await asyncio.gather(streams.current_stream("s"), streams.current_stream("s")) == ["new", "new"]
    assert (asked, streams.cached) == ([("s", {})], {"s": "new"})  # type: ignore[comparison-overlap]
    await turns()

    async def fails(name: str) -> str:
        raise UnavailableError("nobody")

    requests.stream = fails
    for _ in range(2):
        with pytest.raises(UnavailableError):
            await streams.current_stream("s")
        await turns()
    assert streams.cached == {}


async def test_admin_describe_returns_the_status_of_each_controller() -> None:
    status = pb.ControllerStatus(nodeId="n1", leader=True, term=2, commitIndex=3, appliedIndex=4, lag=5, connected=False)
    description = pb.ClusterDescription(image=pb.Image(index=7), metadataLeader="n1", controllers=[status])
    requests: Any = MetadataRequests.__new__(MetadataRequests)

    async def read(request: pb.ControlRequest) -> pb.ControlResponse:
        return pb.ControlResponse(cluster=description)

    requests.read = read
    [found] = (await requests.describe()).controllers
    assert (found.node_id, found.leader, found.term, found.commit_index, found.applied_index, found.lag, found.connected) == (
        "n1", True, 2, 3, 4, 5, False,
    )  # fmt: skip


async def test_node_status_with_an_empty_second_page_has_no_more_pages() -> None:
    nodes: Any = NodeRequests.__new__(NodeRequests)
    pages: list[Any] = [{"partitions": [{"stream": "s", "partition": 0}], "more": True}, {"partitions": []}]

    async def page(*_: Any) -> Any:
        return pages.pop(0)

    nodes.ask_node = page
    assert await nodes.node_status("n1") == {"partitions": [{"stream": "s", "partition": 0}], "more": False}


def test_not_served_error_of_a_replica_contains_the_leader_and_the_high_watermark() -> None:
    error = NotServedError("x", "n1", 7)
    assert (error.leader, error.high_watermark) == ("n1", 7)


MOVED_AWAY = [
    *(
        ([], {"hw": 9, "error": error, "node": "n3"})
        for error in (_Error.NO_SUCH_PARTITION, _Error.NOT_LEADER, _Error.NOT_READY)
    ),
    ([], {"hw": 9, "error": _Error.UNKNOWN, "node": "n3"}),
    NoRespondersError("n3 has left"),
    UnavailableError("n3 is silent"),
]
"""What a node says that has just lost a partition, or got it, or has left."""


@pytest.mark.parametrize("says", MOVED_AWAY)
async def test_partition_reader_reads_a_moved_partition_from_its_new_node(says: Any) -> None:
    reader = a_reader()
    asked = Asked(
        reader, ([batch(0, 3)], {"hw": 9, "node": "n3"}), says, ([batch(3, 2)], {"hw": 9, "node": "n4", "leader": "n4"})
    )
    progress = ReadProgress("s", 0, 0)
    assert offsets([*await reader.fetch(progress), *await reader.fetch(progress)]) == [0, 1, 2, 3, 4]
    assert asked.nodes == ["", "n3", "" if isinstance(says, Exception) else "n1"], (
        "the leader that it named, else whoever is there"
    )
    assert asked.requests[1].offset == asked.requests[2].offset == 3


@pytest.mark.parametrize("says", [([], {"hw": 9, "node": "n3", "leader": "n4"}), *MOVED_AWAY])
async def test_partition_reader_bounds_of_a_moved_partition_come_from_its_new_node(says: Any) -> None:
    reader = a_reader()
    asked = Asked(reader, says, ([], {"hw": 9, "node": "n4", "leader": "n4"}))
    bounds, _ = await reader.bounds()
    assert (bounds.leader, bounds.high_watermark) == ("n4", 9)
    named = "" if isinstance(says, Exception) else says[1].get("leader", "n1")
    assert asked.nodes == ["", named]
