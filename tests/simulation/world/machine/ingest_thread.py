"""Socket, poll and events of the thread that reads publishes during a burst (``sidecar.transport.ingest_connection``)."""

from __future__ import annotations

import errno
import os
import threading
from types import SimpleNamespace
from typing import Any

from tests.simulation.world.machine import scheduler as scheduling
from tests.simulation.world.machine import threads
from tests.simulation.world.machine.network import VirtualTransport
from tests.simulation.world.machine.scheduler import NS_PER_S

_MOST_UNREAD_BYTES = 256 * 1024
_transports: list[VirtualTransport] = []


class _Readable:
    """Something that a simulated thread can wait for."""

    waiter: threads.VirtualThread | None = None

    def is_readable(self) -> bool:
        """Return whether a read returns at once."""
        return True

    def wake(self) -> None:
        """Wake the thread that waits."""
        thread, self.waiter = self.waiter, None
        if thread is not None:
            thread.resume()


class BurstSocket(_Readable):
    """The socket of a transport whose reads are paused, for the thread that reads in its place."""

    failures = 0
    """Number of next sockets that the process cannot open, because it has no file descriptor."""

    def __init__(self, *, fileno: int) -> None:
        if BurstSocket.failures:
            BurstSocket.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._transport = _transports[fileno]
        self._unread = bytearray()
        self._has_ended = False
        self._transport.reader = self
        self._transport.kick()
        scheduler = scheduling.active
        assert scheduler is not None
        scheduler.counters["bursts read in a thread"] += 1

    def setblocking(self, _: bool) -> None:
        """Do nothing."""

    def is_readable(self) -> bool:
        """Return whether a read returns at once."""
        return bool(self._unread) or self._has_ended

    def arrived(self, data: bytes) -> bool:
        """Receive data of the network. False: there is no room."""
        if len(self._unread) > _MOST_UNREAD_BYTES:
            return False
        self._unread += data
        self.wake()
        return True

    def ended(self) -> None:
        """The other side has closed."""
        self._has_ended = True
        self.wake()

    def recv(self, size_bytes: int) -> bytes:
        """Read without waiting."""
        if not self._unread and not self._has_ended:
            raise BlockingIOError
        data = bytes(self._unread[:size_bytes])
        del self._unread[:size_bytes]
        self._transport.kick()
        return data

    def close(self) -> None:
        """Give the connection back to its event loop, with the bytes that were not read."""
        if self._transport.reader is self:
            self._transport.reader = None
            if self._unread:
                self._transport.deliver(bytes(self._unread))
            self._transport.kick()


class _Wakes(_Readable):
    def __init__(self) -> None:
        self._is_set = False
        self.peer: _Wakes

    def is_readable(self) -> bool:
        return self._is_set

    def send(self, _: bytes) -> None:
        self.peer._is_set = True
        self.peer.wake()

    def close(self) -> None:
        """Do nothing."""


def _socketpair() -> tuple[_Wakes, _Wakes]:
    one, other = _Wakes(), _Wakes()
    one.peer, other.peer = other, one
    return one, other


class _Poll:
    """``select.poll`` of a simulated thread."""

    def __init__(self) -> None:
        self._watched: list[_Readable] = []

    def register(self, watched: _Readable, _: int) -> None:
        self._watched.append(watched)

    def poll(self) -> None:
        thread = threads.current_thread()
        assert thread is not None
        while not any(one.is_readable() for one in self._watched):
            for one in self._watched:
                one.waiter = thread
            thread.stand()
            for one in self._watched:
                one.waiter = None


class _Event:
    """``threading.Event`` for which a simulated thread waits."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: threads.VirtualThread | None = None
        self._number = 0

    def set(self) -> None:
        self._is_set = True
        self._wake(self._number)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float) -> None:
        if self._is_set:
            return
        thread, scheduler = threads.current_thread(), scheduling.active
        assert thread is not None
        assert scheduler is not None
        self._waiter = thread
        scheduler.after(int(timeout * NS_PER_S), self._wake, self._number, owner=scheduler.process)
        thread.stand()

    def _wake(self, number: int) -> None:
        if self._waiter is not None and number == self._number:
            self._number += 1
            thread, self._waiter = self._waiter, None
            thread.resume()


def descriptor_of(transport: VirtualTransport) -> Any:
    """Return what ``get_extra_info("socket")`` returns."""
    number = len(_transports)
    _transports.append(transport)
    return SimpleNamespace(fileno=lambda: number)


def adapt(module: Any) -> None:
    """Give the module these versions of ``os``, ``socket``, ``select`` and ``threading``."""
    module.os = SimpleNamespace(dup=lambda number: number)
    module.socket = SimpleNamespace(socket=BurstSocket, socketpair=_socketpair)
    module.select = SimpleNamespace(poll=_Poll, POLLIN=1)
    module.threading = SimpleNamespace(Thread=threads.VirtualThread, Event=_Event, Lock=threading.Lock)
