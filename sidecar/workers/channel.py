"""Worker side of the connection between a worker process and its node. It uses two threads.

One thread reads, so that this process ends when the node ends, even if its event loop is blocked. So no worker serves
partitions without its node. The thread answers pings itself, as long as the event loop has run within the last session. In
the same way the node's heartbeats depend on the node's own loop.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable

from liftpy.core.wire.worker_frames import Frame, FrameKind, FrameReader, encode
from liftpy.errors import ProtocolError

MOST_UNSENT_BYTES = 64 * 1024 * 1024
"""Maximum size of messages that the node has not read, in bytes. Above it, the worker treats the node as lost."""
_READ_BYTES = 256 * 1024
EXIT_NODE_ENDED = 3
"""Exit code of a worker whose node has ended."""

OnLoop = Callable[[Callable[[Frame], None], Frame], object]
"""Schedules a callback on the event loop, as ``loop.call_soon_threadsafe`` does."""


class Channel:
    """Connection of a worker process to its node.

    ``channel``: socket to the node. ``leave``: function that ends this process at once.
    """

    def __init__(self, channel: socket.socket, leave: Callable[[int], None] = os._exit) -> None:
        self._socket = channel
        self._leave = leave
        self._unsent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._unsent_bytes = 0
        self._counting = threading.Lock()
        self._turned = time.monotonic()
        self._has_loop_request = False
        self._session_s = 0.0
        self._frames = FrameReader()
        self._early: list[Frame] = []
        self._writer = threading.Thread(target=self._write, name="liftpy-channel-out", daemon=True)

    def setup(self) -> bytes:
        """Wait for the setup frame, the first frame of the node, and return its body. The process ends if the node ends."""
        while not self._early:
            self._early += self._read_frames()
        first = self._early.pop(0)
        if first.kind is not FrameKind.SETUP:
            self._leave(EXIT_NODE_ENDED)
        return first.body

    def start(self, session_s: float, on_loop: OnLoop, on_frame: Callable[[Frame], None]) -> None:
        """Start the threads that receive and send frames.

        ``session_s``: session time of the node, in seconds. ``on_loop``: runs a function on the event loop. ``on_frame``: called there
        with each frame in order, except pings.
        """
        self._session_s = session_s
        self._turned = time.monotonic()
        self._writer.start()
        self.send(FrameKind.HELLO)
        threading.Thread(target=self._run, args=(on_loop, on_frame), name="liftpy-channel-in", daemon=True).start()

    def send(self, kind: FrameKind, token: int = 0, body: bytes = b"") -> None:
        """Queue a frame for the node from any thread, without waiting."""
        frame = encode(kind, token, body)
        with self._counting:
            self._unsent_bytes += len(frame)
            is_too_much = self._unsent_bytes > MOST_UNSENT_BYTES
        if is_too_much:
            self._leave(EXIT_NODE_ENDED)
        self._unsent.put(frame)

    def finish(self, timeout_s: float) -> None:
        """Wait until all queued frames are sent to the node, at most ``timeout_s`` seconds."""
        self._unsent.put(None)
        self._writer.join(timeout_s)

    # ---- the threads -------------------------------------------------------------------------------------------------------
    def _write(self) -> None:
        while (frame := self._unsent.get()) is not None:
            try:
                self._socket.sendall(frame)
            except OSError:
                self._leave(EXIT_NODE_ENDED)
                return
            with self._counting:
                self._unsent_bytes -= len(frame)

    def _read_frames(self) -> list[Frame]:
        try:
            data = self._socket.recv(_READ_BYTES)
            if data:
                return list(self._frames.feed(data))
        except (OSError, ProtocolError):
            pass
        self._leave(EXIT_NODE_ENDED)
        return [Frame(FrameKind.STOP, 0, b"")]  # tests replace the function that ends the process

    def _run(self, on_loop: OnLoop, on_frame: Callable[[Frame], None]) -> None:
        frames, self._early = self._early, []
        while True:
            for frame in frames:
                if frame.kind is FrameKind.PING:
                    self._run_on_loop(on_loop)
                else:
                    on_loop(on_frame, frame)
                if frame.kind is FrameKind.STOP:
                    return self._last()
            frames = self._read_frames()

    def _last(self) -> None:
        """After the stop request of the node, read until the connection ends. The end of the node then ends this process too.

        The node sends no frame after the stop request. If the stop hangs, a deadline ends this process.
        """
        while True:
            if any(frame.kind is FrameKind.STOP for frame in self._read_frames()):
                return

    def _run_on_loop(self, on_loop: OnLoop) -> None:
        if time.monotonic() - self._turned < self._session_s:
            self.send(FrameKind.PONG)
        if not self._has_loop_request:
            self._has_loop_request = True
            on_loop(self._loop_turned, Frame(FrameKind.PING, 0, b""))

    def _loop_turned(self, _: Frame) -> None:
        self._has_loop_request, self._turned = False, time.monotonic()
