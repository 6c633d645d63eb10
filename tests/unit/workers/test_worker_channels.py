"""Test the channels of worker processes without processes: ends, late frames and forged frames."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.base.worker_assignment import WorkerShare
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as cluster
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.worker_frames import Frame, FrameKind, FrameReader, encode
from sidecar.node import worker_node as channels
from sidecar.node.worker_node import EXIT_NODE_ENDED, Channel, RelayedGroup
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import TaskSet
from sidecar.workers.workers import WorkerCombinedFetches, WorkerError, WorkerHandle, Workers, split_by_process
from tests.until import until


# ---- the worker's channel -----------------------------------------------------------------------------------------------------
class _Ends:
    """Provide both ends of a channel and record the exit codes of ``leave``."""

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        self.codes: list[int] = []
        self.left = threading.Event()
        self.channel = Channel(theirs, self._leave)

    def _leave(self, code: int) -> None:
        self.codes.append(code)
        self.left.set()

    def close(self) -> None:
        self.ours.close()
        assert self.left.wait(20)


async def test_worker_channel_unsent_bytes_decrease_when_the_node_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "MOST_UNSENT_BYTES", 1000)
    ends = _Ends()
    ends.channel.start(30.0, lambda call, frame: None, lambda frame: None)
    for _ in range(5):
        ends.channel.send(FrameKind.SIGNS, 0, bytes(400))
        await until(lambda: not ends.channel._unsent_bytes)
    assert ends.codes == []
    ends.close()


def test_worker_channel_answers_no_ping_after_the_event_loop_is_blocked_for_a_session_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(channels, "time", SimpleNamespace(monotonic=lambda: now[0]))
    ends, turns, said = _Ends(), list[tuple[Any, Frame]](), list[FrameKind]()
    now[0] = 10.0  # what comes before the loop runs is no silence of it
    ends.channel.start(1.0, lambda call, frame: turns.append((call, frame)), lambda frame: None)
    monkeypatch.setattr(ends.channel, "send", said.append)

    def pings(at: float) -> int:
        now[0] = at
        said.clear()
        ends.channel._run_on_loop(lambda call, frame: turns.append((call, frame)))
        return len(said)

    assert [pings(10.5), pings(11.5)] == [1, 0]
    assert len(turns) == 1, "the loop is asked once, however often the node asks"
    call, frame = turns.pop()
    call(frame)
    assert [pings(12.4), pings(12.6)] == [1, 0]
    assert len(turns) == 1, "and asked again after each turn"
    ends.close()


def test_worker_channel_without_a_setup_frame_ends_the_worker_process() -> None:
    ends = _Ends()
    ends.ours.sendall(encode(FrameKind.HEARD, 3))
    ends.channel.setup()
    assert ends.codes == [EXIT_NODE_ENDED]
    ends.close()


async def test_worker_channel_closed_by_the_node_ends_a_hanging_worker_stop() -> None:
    ends, heard = _Ends(), list[Frame]()
    ends.channel.start(30.0, lambda call, frame: call(frame), heard.append)
    ends.ours.sendall(encode(FrameKind.STOP))
    await until(lambda: heard)
    assert ends.codes == []
    ends.close()
    assert ends.codes[0] == EXIT_NODE_ENDED


# ---- the worker --------------------------------------------------------------------------------------------------------------


async def test_worker_process_metadata_ignores_the_answer_to_a_cancelled_proposal() -> None:
    group = RelayedGroup(lambda kind, token, body: None)
    asking = asyncio.ensure_future(group.propose(cluster.ControlRequest()))
    await asyncio.sleep(0)
    asking.cancel()
    group.process_answer(1, b"")  # its answer comes at the same time
    await asyncio.wait([asking])
    again = asyncio.ensure_future(group.propose(cluster.ControlRequest()))
    await asyncio.sleep(0)
    again.cancel()
    await asyncio.wait([again])
    assert group._asked == {}
    group.process_answer(2, b"")  # late


def test_worker_process_metadata_has_the_new_image_before_it_calls_watchers() -> None:
    group, seen = RelayedGroup(lambda kind, token, body: None), list[bool]()
    group.watch(lambda old, new: seen.append(group.image is new))
    group.apply_entry(cluster.FeedEntry(previousIndex=0, index=4).SerializeToString())
    assert seen == [True]


# ---- the node's end ------------------------------------------------------------------------------------------------------------
class _Transport:
    def __init__(self) -> None:
        self.said: list[Frame] = []

    def write(self, data: bytes) -> None:
        self.said += FrameReader().feed(data)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None: ...


def _hand(code: int = 0) -> tuple[WorkerHandle, _Transport, Any]:
    process = SimpleNamespace(pid=7, killed=0, wait=lambda timeout=None: code)
    process.kill = lambda: setattr(process, "killed", process.killed + 1)
    hears = SimpleNamespace(fatal=lambda error: None)
    hand, transport = WorkerHandle(WorkerShare(1, 2), hears, 3), _Transport()  # type: ignore[arg-type]
    hand._process = process
    hand.connection_made(transport)  # type: ignore[arg-type]
    return hand, transport, process


@pytest.mark.parametrize(("token", "code", "clean", "killed"), [(1, 0, True, 0), (1, 1, False, 0), (0, 0, False, 1)])
async def test_worker_process_stop_is_clean_only_with_a_clean_frame_and_exit_code_0(
    token: int, code: int, clean: bool, killed: int
) -> None:
    hand, transport, process = _hand(code)
    hand._events[FrameKind.STOPPED] = asyncio.get_running_loop().create_future()
    stopping = asyncio.ensure_future(hand.stop(20))
    await until(lambda: transport.said)
    hand.data_received(encode(FrameKind.STOPPED, token))
    assert await stopping is clean
    assert process.killed == killed


async def test_worker_process_that_ends_makes_waiting_calls_raise_worker_error() -> None:
    hand, _, _ = _hand()
    hand._events[FrameKind.RECOVERED] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(hand.wait_for_event(FrameKind.RECOVERED))
    await asyncio.sleep(0)
    hand.connection_lost(None)
    with pytest.raises(WorkerError, match=r"Worker 1 \(process 7\) ended"):
        await asyncio.wait_for(waiting, 20)


async def test_worker_process_request_that_times_out_is_removed() -> None:
    hand, _, _ = _hand()
    assert await hand.ask(FrameKind.ASK, b"", 0) is None
    assert hand._requests == {}
    hand.data_received(encode(FrameKind.TOLD, 1, b"{}"))  # late


async def test_worker_process_frames_received_twice_are_ignored() -> None:
    hand, _, _ = _hand()
    hand._events[FrameKind.CLOSED] = asyncio.get_running_loop().create_future()
    hand.data_received(encode(FrameKind.CLOSED) * 2)
    asking = asyncio.ensure_future(hand.ask(FrameKind.ASK, b"", 20))
    await asyncio.sleep(0)
    hand.data_received(encode(FrameKind.TOLD, 1, b"a") + encode(FrameKind.TOLD, 1, b"b"))
    assert await asking == b"a"


async def test_status_of_a_worker_process_that_stops_answering_is_its_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.workers.workers.ANSWER_S", 20)
    hand, _, _ = _hand()
    hand.data_received(encode(FrameKind.PONG))
    looking = asyncio.ensure_future(hand.request_status({"what": "page"}))
    await asyncio.sleep(0)
    hand.data_received(encode(FrameKind.TOLD, 1, b'{"pid": 7}'))
    assert await looking == {"pid": 7, "answers": True}
    monkeypatch.setattr("sidecar.workers.workers.ANSWER_S", 0)
    assert await hand.request_status({"what": "page"}) == {"pid": 7, "answers": False}
    assert await hand.request_status({"what": "figures"}) == {"answers": False}


async def test_worker_process_that_failed_or_stops_gets_no_further_requests() -> None:
    hand, transport, _ = _hand()
    hand.data_received(encode(FrameKind.PONG))
    hand._fail(WorkerError("silent"))
    assert not await hand.stop(20)
    hand, transport, _ = _hand()
    hand.data_received(encode(FrameKind.PONG))
    hand._is_stopping = True
    hand.beat()
    assert transport.said == []


async def test_close_subjects_waits_for_the_answers_of_all_worker_processes() -> None:
    workers = Workers(NodeSettings("n1", Path("/d"), workers=3), lambda error: None, lambda reason: None)
    for hand in workers.handles:
        hand._events[FrameKind.CLOSED] = asyncio.get_running_loop().create_future()
    closing = asyncio.ensure_future(workers.close_subjects(20))
    for hand in workers.handles:
        await asyncio.sleep(0.001)
        assert not closing.done()
        hand.data_received(encode(FrameKind.CLOSED))
    await asyncio.wait_for(closing, 20)


def _proposals() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "proposing a request of a worker"]


async def test_worker_processes_stop_is_clean_only_if_each_worker_stop_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    async def propose(request: cluster.ControlRequest, timeout_s: float) -> cluster.ControlResponse:
        await asyncio.Event().wait()
        raise AssertionError

    stopped = {1: True, 2: False}

    async def stop(hand: WorkerHandle, timeout_s: float) -> bool:
        return stopped[hand.share.number]

    monkeypatch.setattr(WorkerHandle, "stop", stop)
    workers = Workers(NodeSettings("n1", Path("/d"), workers=3), lambda error: None, lambda reason: None)
    distrusted: list[int] = []
    workers._group = SimpleNamespace(propose=propose, distrust=lambda: distrusted.append(1))  # type: ignore[assignment]
    workers.handles[0].data_received(encode(FrameKind.PROPOSE, 5, bytes(4)) + encode(FrameKind.DISTRUST))
    (proposal,) = _proposals()
    assert distrusted == [1]
    assert not await workers.stop()
    assert proposal.cancelled()
    stopped[2] = True
    assert await workers.stop()


async def test_recovery_results_of_all_worker_processes_are_joined() -> None:
    workers = Workers(NodeSettings("n1", Path("/d"), workers=3), lambda error: None, lambda reason: None)
    reports: list[dict[str, list[str]]] = [
        {"damaged": ["a/0", "a/2"], "confined": ["a/0"], "suspect": ["a/2"]},
        {"damaged": [], "confined": [], "suspect": ["a/1"]},
    ]
    for hand, found in zip(workers.handles, reports, strict=True):
        hand._events[FrameKind.RECOVERED] = done = asyncio.get_running_loop().create_future()
        done.set_result(Frame(FrameKind.RECOVERED, 0, json.dumps(found).encode()))
    assert await workers.wait_until_recovered() == {
        "damaged": ["a/0", "a/2"],
        "confined": ["a/0"],
        "suspect": ["a/2", "a/1"],
    }


async def test_worker_process_proposal_is_forwarded_with_its_timeout_and_answered() -> None:
    asked: list[float] = []

    async def propose(request: cluster.ControlRequest, timeout_s: float) -> cluster.ControlResponse:
        asked.append(timeout_s)
        return cluster.ControlResponse(index=8)

    workers = Workers(NodeSettings("n1", Path("/d"), workers=2), lambda error: None, lambda reason: None)
    (hand,) = workers.handles
    transport = _Transport()
    hand.connection_made(transport)  # type: ignore[arg-type]
    body = (2500).to_bytes(4, "big") + cluster.ControlRequest(barrier=cluster.Barrier()).SerializeToString()
    for group, error in (
        (None, cluster.ControlResponse.UNAVAILABLE),
        (SimpleNamespace(propose=propose, image=ClusterImage()), 0),
    ):
        workers._group = group  # type: ignore[assignment]
        transport.said.clear()
        hand.data_received(encode(FrameKind.PROPOSE, 5, body))
        await until(lambda: transport.said)
        (answer,) = transport.said
        assert (answer.kind, answer.token, cluster.ControlResponse.FromString(answer.body).error) == (
            FrameKind.ANSWER,
            5,
            error,
        )
    assert asked == [2.5]
    await until(lambda: not _proposals())


# ---- quiet fetches -------------------------------------------------------------------------------------------------------------
class _Talk:
    def __init__(self) -> None:
        self.answered: list[tuple[bytes, list[int]]] = []

    def decode_question(self, reply: bytes, body: Any) -> pb.QuietFetches:
        return pb.QuietFetches.FromString(bytes(body))

    def over(self, question: pb.QuietFetches) -> list[int]:
        return []

    def answer(self, reply: bytes, question: pb.QuietFetches, over: list[int]) -> None:
        self.answered.append((reply, over))


def _question() -> pb.QuietFetches:
    question = pb.QuietFetches(replicaID="n2", incarnation=1, question=5)
    for number in range(4):
        question.fetches.add(stream="orders", partition=number)
    return question


async def test_idle_partition_fetches_above_a_bound_of_waiting_requests_are_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sidecar.workers.workers.MOST_AT_ONCE", 2)
    gate = asyncio.Event()

    async def ask(kind: FrameKind, body: bytes, timeout_s: float) -> None:
        await gate.wait()

    talk, frame = _Talk(), _question().SerializeToString()
    shared: Any = WorkerCombinedFetches(talk, [SimpleNamespace(ask=ask)], TaskSet())  # type: ignore[arg-type, list-item]
    for number in range(4):
        shared.answer_question(b"%d" % number, frame)
    gate.set()
    await until(lambda: len(talk.answered) == 2 and not shared._waiting)
    shared.answer_question(b"4", frame)
    await until(lambda: len(talk.answered) == 3)
    assert [reply for reply, _ in talk.answered] == [b"0", b"1", b"4"]


async def test_workers_stop_ends_combined_fetches_and_starts_no_others(tmp_path: Path) -> None:
    asked: list[FrameKind] = []

    async def ask(kind: FrameKind, body: bytes, timeout_s: float) -> None:
        asked.append(kind)
        await asyncio.Event().wait()

    async def stop(timeout_s: float) -> bool:
        return True

    workers = Workers(NodeSettings(node_id="n1", data=tmp_path, controllers=("n1",)), pytest.fail, pytest.fail)
    workers.handles = [SimpleNamespace(ask=ask, stop=stop)]  # type: ignore[list-item]
    talk, frame = _Talk(), memoryview(_question().SerializeToString())
    answer = workers.answer_combined_fetches(talk)  # type: ignore[arg-type]
    answer(b"1", frame)
    await until(lambda: asked)
    assert await workers.stop()
    answer(b"2", frame)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert (len(asked), talk.answered) == (1, [])


@pytest.mark.parametrize("said", [pb.QuietFetchesAnswer(count=1), b"\xff"])
async def test_idle_partition_fetches_ignore_a_worker_answer_to_another_request(said: Any) -> None:
    async def ask(kind: FrameKind, body: bytes, timeout_s: float) -> bytes:
        return said if isinstance(said, bytes) else said.SerializeToString()

    talk, question = _Talk(), _question()
    WorkerCombinedFetches(talk, [SimpleNamespace(ask=ask)], TaskSet()).answer_question(b"r", question.SerializeToString())  # type: ignore[arg-type, list-item]
    await until(lambda: talk.answered)
    assert talk.answered == [(b"r", split_by_process(question, 2)[1])]


async def test_idle_partition_fetches_ignore_an_invalid_index_in_a_worker_answer() -> None:
    async def ask(kind: FrameKind, body: bytes, timeout_s: float) -> bytes:
        count = len(pb.QuietFetches.FromString(body).fetches)
        return pb.QuietFetchesAnswer(over=[0, 99], count=count).SerializeToString()

    talk, question = _Talk(), _question()
    WorkerCombinedFetches(talk, [SimpleNamespace(ask=ask)], TaskSet()).answer_question(b"r", question.SerializeToString())  # type: ignore[arg-type, list-item]
    await until(lambda: talk.answered)
    assert talk.answered == [(b"r", split_by_process(question, 2)[1][:1])]
