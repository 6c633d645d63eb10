"""Test the start and the stop of worker processes, with sockets instead of processes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from liftpy.core.wire.worker_frames import Frame, FrameKind, FrameReader, encode
from sidecar.runtime.settings import NodeSettings
from sidecar.workers import workers as worker_process
from sidecar.workers.workers import Workers


class Worker:
    """The end of a worker: a socket, and the exit code of its process."""

    pid = 7

    def __init__(self, command: list[str], _: object, *, pass_fds: tuple[int, int], **more: Any) -> None:
        self.end = socket.socket(fileno=os.dup(pass_fds[0]))
        self.end.setblocking(False)
        self.inherited = pass_fds[1]
        self.killed = False
        self._reader, self._heard = FrameReader(), list[Frame]()

    def kill(self) -> None:
        self.killed = True

    def wait(self, timeout: float | None = None) -> int:
        return 0

    async def receive(self, kind: FrameKind) -> Frame:
        """Return the next frame of this kind, and drop those before it."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30):
            while True:
                while not self._heard:
                    self._heard += self._reader.feed(await loop.sock_recv(self.end, 65536))
                frame = self._heard.pop(0)
                if frame.kind is kind:
                    return frame

    async def ended(self) -> None:
        """Wait until the node has closed the connection."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30):
            while await loop.sock_recv(self.end, 65536):
                pass

    def send(self, kind: FrameKind, token: int = 0) -> None:
        self.end.sendall(encode(kind, token))


class Node:
    """A node with two worker processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: list[Worker] = []
        self.failures: list[Exception] = []
        self.spawns, self.may_spawn = threading.Event(), threading.Event()
        self.may_spawn.set()
        monkeypatch.setattr(worker_process, "spawn_process", self._spawn)
        self.workers = Workers(NodeSettings("n1", Path("/d"), workers=3), self.failures.append, lambda reason: None)

    def _spawn(self, *given: Any, **more: Any) -> Worker:
        self.spawns.set()
        assert self.may_spawn.wait(30)
        self.processes.append(Worker(*given, **more))
        return self.processes[-1]

    async def start(self) -> None:
        folder: Any = type("Directory", (), {"lock": 5})
        await self.workers.start(folder, clean_stop=True, flushed_always=False)

    async def stop(self) -> bool:
        """Stop the node. All workers report a clean stop. The connection of the first one ends with its process."""
        stopping = asyncio.ensure_future(self.workers.stop())
        for process in self.processes:
            await process.receive(FrameKind.STOP)
            process.send(FrameKind.STOPPED, 1)
            if process is self.processes[0]:
                process.end.shutdown(socket.SHUT_WR)
        return await asyncio.wait_for(stopping, 30)


async def test_worker_processes_started_by_a_node_receive_their_share_and_are_pinged(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch)
    await node.start()
    assert [process.inherited for process in node.processes] == [5, 5]
    for number, process in enumerate(node.processes, 1):
        setup = json.loads((await process.receive(FrameKind.SETUP)).body)
        assert (setup["share"], setup["clean_stop"], setup["flushed_always"]) == (number, True, False)
        process.send(FrameKind.HELLO)
        await process.receive(FrameKind.PING)
    assert await node.stop()
    assert node.failures == []


async def test_worker_processes_that_end_because_the_node_stops_are_no_failure_and_leave_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(monkeypatch)
    await node.start()
    assert await node.stop()
    for process in node.processes:
        await process.ended()
        assert not process.killed
    assert node.failures == []


async def test_worker_process_that_is_spawned_during_a_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal may cancel the start of the node while a thread starts the process."""
    node = Node(monkeypatch)
    node.may_spawn.clear()
    starting = asyncio.ensure_future(node.start())
    await asyncio.to_thread(node.spawns.wait, 30)
    starting.cancel()
    await asyncio.wait([starting])
    stopping = asyncio.ensure_future(node.workers.stop())
    node.may_spawn.set()
    assert not await asyncio.wait_for(stopping, 30)
    (process,) = node.processes
    assert process.killed
    await process.ended()
