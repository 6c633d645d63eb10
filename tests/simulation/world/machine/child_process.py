"""Worker processes of a simulated node, and the socket pair between a node and its worker.

``sidecar.node.worker_node.main`` runs as it ships, in a simulated thread of a process of its own. The process has the clock, the
disk and the host of its node. It ends with its node.
"""

from __future__ import annotations

import subprocess
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sidecar.node.worker_node import EXIT_NODE_ENDED
from tests.simulation.world.checks.leftovers import check_end
from tests.simulation.world.machine import disk, threads
from tests.simulation.world.machine import scheduler as scheduling
from tests.simulation.world.machine.loop import VirtualLoop
from tests.simulation.world.machine.scheduler import NS_PER_S, NS_PER_US, Process

_LATENCY_NS = (5 * NS_PER_US, 60 * NS_PER_US)
_EXIT_S = 0.005
"""Time that a process takes to end after its last statement, in seconds."""
_MOST_ORPHAN_NS = 100_000 * NS_PER_US
"""Maximum time that a worker lives on after its node."""
_numbers: dict[int, SocketEnd] = {}
"""Simulated file descriptors of socket ends."""
_FIRST_NUMBER = 1 << 20


class SocketEnd:
    """One end of a socket pair. A simulated thread reads it with ``recv``, or an event loop by ``create_unix_connection``."""

    def __init__(self) -> None:
        self.number = _FIRST_NUMBER + len(_numbers)
        _numbers[self.number] = self
        self.peer: SocketEnd
        self.owner: Process | None = None
        """Process that uses the end."""
        self.transport: SocketTransport | None = None
        self._thread: threads.VirtualThread | None = None
        self._incoming = bytearray()
        self._has_ended = False
        self._due_ns = 0

    def adopt(self, owner: Process) -> None:
        """Let a process use the end. The other end sees the end of the process."""
        self.owner = owner
        owner.on_end.append(self.close)

    def _later(self, callback: Callable[..., None], *args: Any) -> None:
        """Call it at the other end, after everything that was sent before."""
        scheduler = scheduling.active
        assert scheduler is not None
        now_ns = scheduler.now_ns + scheduler.elapsed_ns
        self._due_ns = max(self._due_ns, now_ns + scheduler.random.randrange(*_LATENCY_NS))
        scheduler.after(self._due_ns - now_ns, callback, *args, owner=self.peer.owner)

    # ---- as a socket -----------------------------------------------------------------------------------------------------
    def __enter__(self) -> SocketEnd:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the child process has inherited the end."""

    def fileno(self) -> int:
        """Return its simulated file descriptor."""
        return self.number

    def setblocking(self, _: bool) -> None:
        """Do nothing."""

    def sendall(self, data: bytes) -> None:
        """Send bytes in order. The buffer has no limit."""
        if self._has_ended:
            raise BrokenPipeError(32, "Broken pipe")
        self._later(self.peer.arrived, bytes(data))

    def recv(self, size_bytes: int) -> bytes:
        """Block the simulated thread until there are bytes. b'': the other side has closed."""
        while not self._incoming and not self._has_ended:
            self._thread = threads.current_thread()
            assert self._thread is not None
            self._thread.stand()
        data = bytes(self._incoming[:size_bytes])
        del self._incoming[:size_bytes]
        return data

    def close(self) -> None:
        """Close the end: the other one sees it after the last byte."""
        if not self._has_ended:
            self._has_ended = True
            self._later(self.peer.ended)

    # ---- from the other end ----------------------------------------------------------------------------------------------
    def arrived(self, data: bytes) -> None:
        """Receive bytes."""
        if self.transport is not None:
            self.transport.deliver(data)
        else:
            self._incoming += data
            self._wake()

    def ended(self) -> None:
        """The other side has closed."""
        if not self._has_ended:
            self._has_ended = True
            if self.transport is not None:
                self.transport.ended()
            self._wake()

    def _wake(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.resume()


class SocketTransport:
    """Transport of an event loop on a ``SocketEnd``."""

    def __init__(self, loop: VirtualLoop, protocol: Any, end: SocketEnd) -> None:
        self._loop = loop
        self._protocol = protocol
        self._end = end
        self._is_closing = False
        end.transport = self
        end.adopt(loop.process)

    def write(self, data: bytes) -> None:
        """Send bytes. Drop them if the other side has ended, although the protocol does not know it yet."""
        if not self._is_closing:
            with suppress(BrokenPipeError):
                self._end.sendall(data)

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        """Return 0: the other side reads everything."""
        return 0

    def close(self) -> None:
        """Close it."""
        if not self._is_closing:
            self._end.close()
            self._is_closing = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def deliver(self, data: bytes) -> None:
        """Pass received bytes to the protocol."""
        self._loop.call_soon(lambda: None if self._is_closing else self._protocol.data_received(data))

    def ended(self) -> None:
        """The other side has ended. The protocol first gets what has arrived before."""
        self._loop.call_soon(self._end_of_data)

    def _end_of_data(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._protocol.connection_lost(None)


def socketpair(*_: Any) -> tuple[SocketEnd, SocketEnd]:
    """Return a connected pair."""
    one, other = SocketEnd(), SocketEnd()
    one.peer, other.peer = other, one
    return one, other


def socket_of(*, fileno: int) -> SocketEnd:
    """Return the end that the process has inherited under this number."""
    return _numbers[fileno]


class ThreadQueue:
    """Queue of a simulated thread, which blocks in ``get``."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self._thread: threads.VirtualThread | None = None

    def put(self, item: Any) -> None:
        """Add an item."""
        self.items.append(item)
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.resume()

    def get(self) -> Any:
        """Return the next item."""
        while not self.items:
            self._thread = threads.current_thread()
            assert self._thread is not None
            self._thread.stand()
        return self.items.popleft()


class _Writer:
    """Takes the place of the thread that sends frames, at the end of its process. A join of the thread would block the event loop."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def join(self, timeout: float) -> None:
        """Send what waits. Without an end of the queue, the thread would not end within ``timeout`` seconds."""
        queue = self._channel._unsent
        while queue.items:
            frame = queue.items.popleft()
            if frame is None:
                return
            try:
                self._channel._socket.sendall(frame)
            except OSError:
                self._channel._leave(EXIT_NODE_ENDED)
        scheduler = scheduling.active
        assert scheduler is not None
        scheduler.violated(f"a worker waits for {timeout:g} s, because its thread does not know the last frame")


def finish_channel(channel: Any, finish: Callable[[Any, float], None], timeout_s: float) -> None:
    """Call ``finish`` of a channel, which waits until its thread has sent everything."""
    channel._writer = _Writer(channel)
    finish(channel, timeout_s)


class ChildProcess:
    """Takes the place of ``subprocess.Popen`` for a worker."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.pid = process.pid
        self._end_ns = 0

    def kill(self) -> None:
        """Kill the process."""
        self._process.end(-9)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. A pool job is called again until the process has ended."""
        process = self._process
        if process.is_alive:
            now_ns = process.scheduler.now_ns
            if timeout is not None and not self._end_ns:
                self._end_ns = now_ns + int(timeout * NS_PER_S)
            if timeout is not None and now_ns >= self._end_ns:
                raise subprocess.TimeoutExpired("worker", timeout)
            raise threads.NotYet
        assert process.exit_code is not None
        return process.exit_code


def spawn(command: list[str], _: int, **__: Any) -> ChildProcess:
    """Start a worker as ``sidecar.workers.workers`` does: ``python -m sidecar.node.worker_node CHANNEL LOCK``."""
    from sidecar.node.worker_node import main

    scheduler = scheduling.active
    assert scheduler is not None
    parent = scheduler.process
    assert parent is not None
    channel, inherited = int(command[-2]), int(command[-1])
    child = parent.fork(f"{parent.name}.w{len(parent.children) + 1}")
    lock = disk.real_dup(inherited)
    child.descriptors.add(lock)
    child.on_end += [lambda: scheduler.network.process_ended(child), lambda: disk.close_descriptors(child)]
    parent.on_end.append(lambda: scheduler.after(scheduler.random.randrange(_MOST_ORPHAN_NS), child.end, -9))
    _numbers[channel].adopt(child)

    def run() -> None:
        code = 1
        try:
            code = main(channel, lock)
            check_end(child)
            time.sleep(_EXIT_S)
        finally:
            child.end(code)

    scheduler.trace("worker starts", child.name)
    scheduler.run_as(child, threads.VirtualThread(target=run, name="main", daemon=True).start)
    return ChildProcess(child)


def run_loop(work: Any) -> int:
    """Replace ``sidecar.runtime.tasks.run_loop`` in the main thread of a worker."""
    return int(VirtualLoop().run_until_complete(work))
