"""Worker side of the connection between a worker process and its node, with two threads.

One thread reads, so that this process ends with the node whatever its loop does. No worker serves a node that is gone.
The thread answers pings itself while the loop has turned within a session, as the node's heartbeats do for the node's
own loop.
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
"""Maximum size of messages that the node has not read, in bytes. Beyond it, the worker treats the node as lost."""
_READ_BYTES = 256 * 1024
EXIT_NODE_ENDED = 3
"""Worker process: the node's first process has ended, so the worker ends, too."""

OnLoop = Callable[[Callable[[Frame], None], Frame], object]
"""``loop.call_soon_threadsafe``."""


class Channel:
    """``leave``: ends the process, at once."""

    def __init__(self, channel: socket.socket, leave: Callable[[int], None] = os._exit) -> None:
        self._socket = channel
        self._leave = leave
        self._unsent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._unsent_bytes = 0
        self._counting = threading.Lock()
        self._turned = time.monotonic()
        self._asked_loop = False
        self._session_s = 0.0
        self._frames = FrameReader()
        self._early: list[Frame] = []
        self._writer = threading.Thread(target=self._write, name="liftpy-channel-out", daemon=True)

    def setup(self) -> bytes:
        """Wait for the first frame and return its body. The process ends if the node does."""
        while not self._early:
            self._early += self._read()
        first = self._early.pop(0)
        if first.kind is not FrameKind.SETUP:
            self._leave(EXIT_NODE_ENDED)
        return first.body

    def start(self, session_s: float, on_loop: OnLoop, heard: Callable[[Frame], None]) -> None:
        """Start to receive frames. Call ``heard`` on the event loop with each frame in order, except pings."""
        self._session_s = session_s
        self._turned = time.monotonic()
        self._writer.start()
        self.send(FrameKind.HELLO)
        threading.Thread(target=self._run, args=(on_loop, heard), name="liftpy-channel-in", daemon=True).start()

    def send(self, kind: FrameKind, token: int = 0, body: bytes = b"") -> None:
        """Send a frame from any thread, without waiting."""
        frame = encode(kind, token, body)
        with self._counting:
            self._unsent_bytes += len(frame)
            is_too_much = self._unsent_bytes > MOST_UNSENT_BYTES
        if is_too_much:
            self._leave(EXIT_NODE_ENDED)
        self._unsent.put(frame)

    def finish(self, timeout_s: float) -> None:
        """Wait until all frames are sent, at most ``timeout_s``."""
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

    def _read(self) -> list[Frame]:
        try:
            data = self._socket.recv(_READ_BYTES)
            if data:
                return list(self._frames.feed(data))
        except (OSError, ProtocolError):
            pass
        self._leave(EXIT_NODE_ENDED)
        return [Frame(FrameKind.STOP, 0, b"")]  # for who does not leave

    def _run(self, on_loop: OnLoop, heard: Callable[[Frame], None]) -> None:
        frames, self._early = self._early, []
        while True:
            for frame in frames:
                if frame.kind is FrameKind.PING:
                    self._pinged(on_loop)
                else:
                    on_loop(heard, frame)
                if frame.kind is FrameKind.STOP:
                    return self._last()
            frames = self._read()

    def _last(self) -> None:
        """Read until the node orders a stop. It sends nothing else any more. If the stop hangs, this process ends by its deadline."""
        while True:
            if any(frame.kind is FrameKind.STOP for frame in self._read()):
                return

    def _pinged(self, on_loop: OnLoop) -> None:
        if time.monotonic() - self._turned < self._session_s:
            self.send(FrameKind.PONG)
        if not self._asked_loop:
            self._asked_loop = True
            on_loop(self._loop_turned, Frame(FrameKind.PING, 0, b""))

    def _loop_turned(self, _: Frame) -> None:
        self._asked_loop, self._turned = False, time.monotonic()
