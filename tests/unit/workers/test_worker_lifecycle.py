"""Test worker processes as their node sees them: start, pings, requests and stop, with sockets instead of processes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as cluster
from liftpy.core.wire.worker_frames import Frame, FrameKind, FrameReader, encode
from sidecar.runtime.settings import NodeSettings
from sidecar.workers import workers as worker_process
from sidecar.workers.workers import WorkerError, WorkerHandle, Workers, settings_from_json
from tests.until import until

SETTINGS = NodeSettings("n1", Path("/d"), workers=3)
RARE_PINGS = ReplicationConfig(heartbeat_interval_s=600.0, lease_s=900.0, session_s=1800.0)
"""Three pings in a session. The node sends none during a test."""


class Worker:
    """The end of a worker: a socket, and its process, which ends with ``code``."""

    pid = 7

    def __init__(self, command: list[str], _: object, *, pass_fds: tuple[int, int], **more: Any) -> None:
        self.end = socket.socket(fileno=os.dup(pass_fds[0]))
        self.end.setblocking(False)
        self.inherited = pass_fds[1]
        self.code = 0
        self.is_killed = False
        self._reader, self._heard = FrameReader(), list[Frame]()

    def kill(self) -> None:
        self.is_killed = True

    def wait(self, timeout: float | None = None) -> int:
        return self.code

    async def frame(self) -> Frame:
        """Return the next frame."""
        async with asyncio.timeout(30):
            while not self._heard:
                data = await asyncio.get_running_loop().sock_recv(self.end, 65536)
                assert data, "the node has closed the connection"
                self._heard += self._reader.feed(data)
        return self._heard.pop(0)

    async def receive(self, kind: FrameKind) -> Frame:
        """Return the next frame of this kind, and drop those before it."""
        while (frame := await self.frame()).kind is not kind:
            pass
        return frame

    async def ended(self) -> None:
        """Wait until the node has closed the connection."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30):
            while await loop.sock_recv(self.end, 65536):
                pass

    def send(self, kind: FrameKind, token: int = 0, body: bytes = b"") -> None:
        self.end.sendall(encode(kind, token, body))

    async def report(self, handle: WorkerHandle, number: int) -> None:
        """Send a health report, and wait until the node has it."""
        self.send(FrameKind.HEALTH_REPORT, 0, b'{"opening": %d}' % number)
        await until(lambda: handle.health_report.get("opening") == number)


class Node:
    """A node with two worker processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: NodeSettings) -> None:
        self.processes: list[Worker] = []
        self.failures: list[Exception] = []
        self.spawns, self.may_spawn = threading.Event(), threading.Event()
        self.may_spawn.set()
        monkeypatch.setattr(worker_process, "spawn_process", self._spawn)
        self.workers = Workers(settings, self.failures.append, lambda reason: None)

    def _spawn(self, *given: Any, **more: Any) -> Worker:
        self.spawns.set()
        assert self.may_spawn.wait(30)
        self.processes.append(Worker(*given, **more))
        return self.processes[-1]

    async def start(self) -> None:
        folder: Any = type("Directory", (), {"lock": 5})
        await self.workers.start(folder, clean_stop=True, flushed_always=False)

    async def stop(self, token: int = 1) -> bool:
        """Stop the node. Each worker answers with a clean stop, the first one with ``token``. Its connection ends with its process."""
        stopping = asyncio.ensure_future(self.workers.stop(20))
        for process in self.processes:
            await process.receive(FrameKind.STOP)
            if process is self.processes[0]:
                process.send(FrameKind.STOPPED, token)
                process.end.shutdown(socket.SHUT_WR)
            else:
                process.send(FrameKind.STOPPED, 1)
        return await asyncio.wait_for(stopping, 30)


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    made = Node(monkeypatch, replace(SETTINGS, replication=RARE_PINGS))
    await made.start()
    yield made
    for process in made.processes:
        process.end.close()
    await made.workers.stop(20)


@pytest.fixture
def handle(node: Node) -> WorkerHandle:
    return node.workers.handles[0]


@pytest.fixture
def worker(node: Node) -> Worker:
    """Return the process of ``handle``."""
    return node.processes[0]


# ---- start ---------------------------------------------------------------------------------------------------------------------
async def test_worker_processes_started_by_a_node_receive_their_share_and_are_pinged(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, SETTINGS)
    await node.start()
    assert [process.inherited for process in node.processes] == [5, 5]
    for number, process in enumerate(node.processes, 1):
        setup = json.loads((await process.receive(FrameKind.SETUP)).body)
        assert (setup["share"], setup["clean_stop"], setup["flushed_always"]) == (number, True, False)
        process.send(FrameKind.HELLO)
        await process.receive(FrameKind.PING)
    assert await node.stop()
    assert node.failures == []


async def test_worker_process_that_is_spawned_during_a_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal may cancel the start of the node while a thread starts the process."""
    node = Node(monkeypatch, SETTINGS)
    node.may_spawn.clear()
    starting = asyncio.ensure_future(node.start())
    await asyncio.to_thread(node.spawns.wait, 30)
    starting.cancel()
    await asyncio.wait([starting])
    stopping = asyncio.ensure_future(node.workers.stop(20))
    node.may_spawn.set()
    assert not await asyncio.wait_for(stopping, 30)
    (process,) = node.processes
    assert process.is_killed
    await process.ended()


async def test_recovery_results_of_all_worker_processes_are_joined(node: Node) -> None:
    reports: list[dict[str, list[str]]] = [
        {"damaged": ["a/0", "a/2"], "confined": ["a/0"], "suspect": ["a/2"]},
        {"damaged": [], "confined": [], "suspect": ["a/1"]},
    ]
    for process, report in zip(node.processes, reports, strict=True):
        process.send(FrameKind.RECOVERED, 0, json.dumps(report).encode())
    assert await node.workers.wait_until_recovered() == {
        "damaged": ["a/0", "a/2"],
        "confined": ["a/0"],
        "suspect": ["a/2", "a/1"],
    }


# ---- failures ------------------------------------------------------------------------------------------------------------------
async def test_worker_process_that_answers_no_pings_is_killed_and_ends_the_node(
    node: Node, handle: WorkerHandle, worker: Worker
) -> None:
    for _ in range(10):  # a worker that starts cannot answer yet
        handle.send_ping()
    for number in range(3):
        await worker.report(handle, number)
        for _ in range(3):
            handle.send_ping()
    assert node.failures == []
    handle.send_ping()
    (failure,) = node.failures
    assert ") is blocked" in str(failure)
    assert worker.is_killed, "it must not act for the node when it resumes"
    handle.send_ping()
    worker.end.close()
    with pytest.raises(WorkerError):
        await node.workers.wait_until_open()
    assert len(node.failures) == 1


@pytest.mark.parametrize(
    "data",
    [b"", b"x" * 50, encode(FrameKind.STOP), encode(FrameKind.HEALTH_REPORT, 0, b"no JSON")],
    ids=["end", "no frame", "frame of a node", "no JSON"],
)
async def test_worker_process_that_exits_or_sends_invalid_frames_is_killed_and_ends_the_node(
    node: Node, handle: WorkerHandle, worker: Worker, data: bytes
) -> None:
    waiting = asyncio.ensure_future(node.workers.wait_until_open())
    if data:
        worker.end.sendall(data)
        await until(lambda: node.failures)
        assert not await asyncio.wait_for(handle.stop(60, 60), 20), "a worker that failed is not waited for"
    else:
        worker.end.close()
        with pytest.raises(WorkerError, match=r"Worker 1 \(process 7\) ended"):
            await asyncio.wait_for(waiting, 20)
    assert (len(node.failures), worker.is_killed) == (1, True)
    waiting.cancel()


async def test_worker_process_that_does_not_read_its_channel_is_killed(
    node: Node, handle: WorkerHandle, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "MOST_UNSENT_BYTES", 1_000_000)
    for _ in range(10):
        handle.send(FrameKind.ENTRY, 0, bytes(90_000))
    assert node.failures == []
    for _ in range(100):
        handle.send(FrameKind.ENTRY, 0, bytes(90_000))
    assert (len(node.failures), worker.is_killed) == (1, True)


# ---- requests ------------------------------------------------------------------------------------------------------------------
async def test_worker_process_answers_that_are_late_or_received_twice_are_ignored(
    node: Node, handle: WorkerHandle, worker: Worker
) -> None:
    assert await handle.ask(FrameKind.STATUS_REQUEST, b"", 0) is None
    asking = asyncio.ensure_future(handle.ask(FrameKind.STATUS_REQUEST, b"", 20))
    late, question = await worker.receive(FrameKind.STATUS_REQUEST), await worker.receive(FrameKind.STATUS_REQUEST)
    for token, body in ((late.token, b"late"), (question.token, b"a"), (question.token, b"b")):
        worker.send(FrameKind.STATUS_ANSWER, token, body)
    assert await asking == b"a"
    for _ in range(2):
        worker.send(FrameKind.PARTITIONS_OPENED)
    await worker.report(handle, 1)
    assert node.failures == []


async def test_status_of_a_worker_process_that_stops_answering_is_its_last_answer(
    handle: WorkerHandle, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await worker.report(handle, 1)
    monkeypatch.setattr(worker_process, "STATUS_TIMEOUT_S", 20)
    looking = asyncio.ensure_future(handle.request_status({"what": "page"}))
    worker.send(FrameKind.STATUS_ANSWER, (await worker.receive(FrameKind.STATUS_REQUEST)).token, b'{"pid": 7}')
    assert await looking == {"pid": 7, "answers": True}
    monkeypatch.setattr(worker_process, "STATUS_TIMEOUT_S", 0)
    assert await handle.request_status({"what": "page"}) == {"pid": 7, "answers": False}
    assert await handle.request_status({"what": "figures"}) == {"answers": False}


class Group:
    """The metadata group of a node. Requests without a timeout of 2.5 s have no answer."""

    def __init__(self) -> None:
        self.image = ClusterImage(index=3)
        self.is_distrusted = self.is_canceled = False

    def watch(self, watcher: Any) -> None:
        self._watcher = watcher

    def change(self, index: int) -> None:
        old, self.image = self.image, ClusterImage(index=index)
        self._watcher(old, self.image)

    def distrust(self) -> None:
        self.is_distrusted = True

    async def propose(self, request: cluster.ControlRequest, timeout_s: float) -> cluster.ControlResponse:
        try:
            await asyncio.sleep(0 if timeout_s == 2.5 else 3600)
        except asyncio.CancelledError:
            self.is_canceled = True
            raise
        return cluster.ControlResponse(index=8)


def proposal(timeout_ms: int) -> bytes:
    return timeout_ms.to_bytes(4, "big") + cluster.ControlRequest(barrier=cluster.Barrier()).SerializeToString()


async def test_worker_process_proposal_is_forwarded_with_its_timeout_and_answered(node: Node, worker: Worker) -> None:
    group: Any = Group()
    for token, error in ((5, cluster.ControlResponse.UNAVAILABLE), (6, 0)):
        worker.send(FrameKind.CONTROL_REQUEST, token, proposal(2500))
        answer = await worker.receive(FrameKind.CONTROL_RESPONSE)
        assert (answer.token, cluster.ControlResponse.FromString(answer.body).error) == (token, error)
        node.workers.begin(9, group)


async def test_worker_processes_stop_cancels_their_proposals(node: Node, worker: Worker) -> None:
    group: Any = Group()
    node.workers.begin(9, group)
    worker.send(FrameKind.CONTROL_REQUEST, 5, proposal(60_000))
    worker.send(FrameKind.RELOAD_IMAGE)
    await until(lambda: group.is_distrusted)
    assert await node.stop()
    assert group.is_canceled


async def test_worker_process_receives_a_lease_after_the_image_of_the_lease(node: Node, worker: Worker) -> None:
    """A slow worker receives lost leaderships before the extended lease."""
    group: Any = Group()
    node.workers.heartbeat_answered(1, 7)  # a worker without an image has no leases
    node.workers.begin(9, group)
    group.change(5)
    node.workers.heartbeat_answered(2, 7)
    group.change(4)
    frames = [await worker.frame() for _ in range(6)]
    assert [(frame.kind, frame.token) for frame in frames[1:]] == [
        (FrameKind.IMAGE, 0),
        (FrameKind.REGISTERED, 9),
        (FrameKind.ENTRY, 0),
        (FrameKind.HEARTBEAT_ANSWERED, 2),
        (FrameKind.IMAGE, 0),
    ]
    entry = cluster.FeedEntry.FromString(frames[3].body)
    assert (entry.previousIndex, entry.index) == (3, 5)


async def test_worker_processes_receive_changed_settings(node: Node) -> None:
    changed = replace(SETTINGS, log_level="debug", dashboard_hostnames=("a",))
    node.workers.change_settings(changed)
    for process in node.processes:
        assert settings_from_json(json.loads((await process.receive(FrameKind.SETTINGS)).body)) == changed


# ---- stop ----------------------------------------------------------------------------------------------------------------------
async def test_close_subjects_waits_for_the_answers_of_all_worker_processes(node: Node) -> None:
    closing = asyncio.ensure_future(node.workers.close_subjects(20))
    for process in node.processes:
        assert (await process.receive(FrameKind.CLOSE_SUBJECTS)).token == 20_000
        assert not closing.done()
        process.send(FrameKind.SUBJECTS_CLOSED)
    await asyncio.wait_for(closing, 20)


async def test_worker_processes_that_end_because_the_node_stops_are_no_failure_and_leave_no_connection(
    node: Node, handle: WorkerHandle, worker: Worker
) -> None:
    await worker.report(handle, 1)
    stopping = asyncio.ensure_future(node.workers.stop(20))
    for process in node.processes:
        await process.receive(FrameKind.STOP)
    for _ in range(10):
        handle.send_ping()  # a worker may need long for its stop
    for process in node.processes:
        process.send(FrameKind.STOPPED, 1)
    assert await asyncio.wait_for(stopping, 30)
    for process in node.processes:
        await process.ended()
        assert not process.is_killed
    assert node.failures == []


@pytest.mark.parametrize(
    ("answers", "timeout_s", "longest_s", "is_killed"),
    [(True, 0.4, 30.0, False), (False, 0.4, 30.0, True), (True, 30.0, 0.4, True)],
    ids=["its event loop runs", "it hangs", "it takes too long"],
)
async def test_worker_process_that_answers_pings_may_stop_slowly(
    node: Node, handle: WorkerHandle, worker: Worker, answers: bool, timeout_s: float, longest_s: float, is_killed: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    await worker.report(handle, 1)
    stopping = asyncio.ensure_future(handle.stop(timeout_s, longest_s))
    await worker.receive(FrameKind.STOP)
    for _ in range(20):
        handle.send_ping()
        if answers and not worker.is_killed:
            worker.send(FrameKind.PONG)
        await asyncio.sleep(0.05)
    if not worker.is_killed:
        worker.send(FrameKind.STOPPED, 1)
    assert await asyncio.wait_for(stopping, 30) is not is_killed
    assert worker.is_killed is is_killed
    assert ("worker not stopped worker=1" in caplog.text) is is_killed


@pytest.mark.parametrize(("token", "code", "clean"), [(1, 0, True), (1, 1, False), (0, 0, False)])
async def test_worker_processes_stop_is_clean_only_with_clean_frames_and_exit_codes_0(
    node: Node, worker: Worker, token: int, code: int, clean: bool
) -> None:
    worker.code = code
    assert await node.stop(token) is clean
    assert worker.is_killed is (token == 0)
