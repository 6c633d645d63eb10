"""A thread that reads a socket while the event loop is busy, so that nats-server does not close the connection [A11].

The loop reads once per turn. On a busy machine, six fast publishers fill the server's 64 MiB buffer within one turn.
The thread only copies bytes.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable

READ_BYTES = 4 * 1024 * 1024
"""At a time: a busy loop gives the interpreter away once in 5 ms."""
_LOOK_AGAIN_S = 0.05
_LITTLE_BYTES = 64 * 1024
_GATHER_S = 0.001
"""After a read that brought less than ``_LITTLE_BYTES``: the next one brings more, for one switch."""


class SocketThread:
    """Gives ``take`` what a plain socket brings while ``has_room``; calls ``ended``, and reads no more, when the other side closed it.

    All three are called in the thread. The socket keeps its owner: the thread has a descriptor of its own. Raises OSError or
    RuntimeError where no descriptor or no thread is to be had.
    """

    def __init__(
        self, descriptor: int, take: Callable[[bytes], None], has_room: Callable[[], bool], ended: Callable[[], None]
    ) -> None:
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._socket.setblocking(False)
        self._take, self._has_room, self._ended = take, has_room, ended
        self._room = threading.Event()
        self._woken, self._wakes = socket.socketpair()
        self._reading = threading.Lock()
        self._stopping = False
        threading.Thread(target=self._run, name="liftpy-ingest-socket", daemon=True).start()

    def room(self) -> None:
        """Read again: there may be room."""
        self._room.set()

    def stop(self) -> None:
        """Stop reading. It may be called twice, and waits for at most one ``recv``."""
        self._stopping = True
        self._room.set()
        with contextlib.suppress(OSError):
            self._wakes.send(b".")
        with self._reading:
            return

    def _run(self) -> None:
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        ready.register(self._woken, select.POLLIN)
        try:
            while not self._stopping:
                if not self._has_room():
                    self._room.wait(_LOOK_AGAIN_S)
                    self._room.clear()
                    continue
                ready.poll()
                size_bytes = self._read()
                if size_bytes < 0:
                    return
                if size_bytes < _LITTLE_BYTES:
                    time.sleep(_GATHER_S)
        finally:
            for end in (self._socket, self._woken, self._wakes):
                end.close()

    def _read(self) -> int:
        """Read once. Return the number of bytes, -1 at the end."""
        with self._reading:
            if self._stopping:
                return -1
            try:
                data = self._socket.recv(READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return 0
            except OSError:
                data = b""
            if data:
                self._take(data)
                return len(data)
        self._ended()
        return -1
