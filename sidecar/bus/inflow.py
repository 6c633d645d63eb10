"""The connection that publishes come in by, and their acks go out: read quickly, taken in small steps.

A nats-server holds at most 64 MiB for a connection that reads too slowly, and then cuts it: what it held is lost, and nobody can say
how much that was. So the socket is read as fast as it gives, into a buffer of bytes as they came (compact: nothing is parsed), and
what is in there is taken a few milliseconds at a time, so that fetches, heartbeats and answers never wait behind a burst [A11].

When the buffer is full the socket is left alone: the server then slows fast publishers down, before it cuts. What the server has sent
before a connection was lost is taken all the same. While a partition can hold no more, ``Gate`` says how much to take.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable

import nats.errors

from liftpy.replica.intake import Gate, NodeIntake
from sidecar import clock
from sidecar.bus.connection import BusConnection
from sidecar.bus.parser import SinkParser
from sidecar.ending import end_tasks
from sidecar.tasks import spawn

logger = logging.getLogger("liftpy.bus")

_PIECE_BYTES = 64 * 1024
"""Parsed at a time; the clock is looked at in between."""
_TURN_BYTES = 256 * 1024
_TURN_NS = 4_000_000
"""After so many bytes, or so much time of this thread (not of others, that would make small batches on a busy machine), everything
else on the loop has its turn."""
_LOOK_AGAIN_S = 0.005
_STILL_THERE_S = 0.5


class _Boundary:
    """Takes the parser's place for nats-py, which resets it when a connection is lost: here that marks a place in the buffer."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self.reset = lost


class InflowParser(SinkParser):
    """``lost``: how many connections were lost whose bytes are still to be parsed. Their commands mean nothing any more."""

    lost = 0

    async def _command(self, line: bytes) -> None:
        if not self.lost:
            await super()._command(line)


class Inflow(BusConnection):
    """``node``: the node's sums, for the bound and the gate. ``stop`` ends it."""

    def __init__(self, node: NodeIntake, buffer_bytes: int, send_buffer_bytes: int = 0) -> None:
        super().__init__("ingest", send_buffer_bytes)
        self._parser = InflowParser(self, self._sinks, self.errors)
        self._ps = _Boundary(self._lost)  # type: ignore[assignment]
        self._node = node
        self._gate = Gate(node)
        self._buffer_bytes = buffer_bytes
        self._chunks: deque[bytes | None] = deque()
        """As read from the socket; None: a connection was lost there."""
        self._position = 0
        """In the first chunk: what is before it has been parsed."""
        self.waiting_bytes = 0
        """Read and not parsed."""
        self.most_waiting_bytes = 0
        self.taken_bytes = 0
        """Parsed, ever."""
        self._parsing = False
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._pump_task = spawn(self._pump(), "taking publishes", endless=True)

    # ---- from the socket ---------------------------------------------------------------------------------------------
    def _take(self, data: bytes) -> bytes | None:
        if self._chunks or self._parsing or len(data) > _PIECE_BYTES or not self._may_take():
            return data
        self.taken_bytes += len(data)
        return super()._take(data)

    async def _taken(self, data: bytes) -> None:
        if not self._chunks and not self._parsing and len(data) <= _PIECE_BYTES and self._may_take():
            self.taken_bytes += len(data)
            await self._parse(data)
            return
        self._chunks.append(data)
        self.waiting_bytes += len(data)
        self.most_waiting_bytes = max(self.most_waiting_bytes, self.waiting_bytes)
        self._arrived.set()
        if self._is_full():
            self.errors["held back: the ingest buffer is full"] += 1
        while self._is_full():
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._room.wait(), _STILL_THERE_S)
            self._pings_outstanding = 0  # it is us who do not read

    def _may_take(self) -> bool:
        return self._gate.may_take(self.taken_bytes, self._is_full(), clock.now_ns())

    def _is_full(self) -> bool:
        return self.waiting_bytes + self._node.held_bytes >= self._buffer_bytes

    def _lost(self) -> None:
        self._gate.cut_off()
        self._parser.lost += 1
        self._chunks.append(None)
        self._arrived.set()

    # ---- to the sinks ------------------------------------------------------------------------------------------------
    async def _parse(self, data: bytes) -> None:
        self._parsing = True
        try:
            await self._parser.parse(data)
        finally:
            self._parsing = False

    async def _pump(self) -> None:
        while True:
            if not self._chunks:
                self._arrived.clear()
                await self._arrived.wait()
            if self._may_take():
                await self._take_some()
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(_LOOK_AGAIN_S)

    async def _take_some(self) -> None:
        """One turn's worth."""
        end_ns, taken_bytes = time.thread_time_ns() + _TURN_NS, 0
        while self._chunks and taken_bytes < _TURN_BYTES and time.thread_time_ns() < end_ns and self._may_take():
            piece = self._next_piece()
            taken_bytes += len(piece)
            try:
                await self._parse(piece)
            except (OSError, nats.errors.Error) as error:
                await self._unreadable(error)
            except Exception as error:
                logger.exception("the NATS stream can't be read")
                await self._unreadable(error)
        if not self._is_full():
            self._room.set()

    def _next_piece(self) -> bytes:
        """Some bytes of the first chunk; empty where a connection was lost."""
        chunk = self._chunks[0]
        if chunk is None:
            self._chunks.popleft()
            self._parser.lost -= 1
            self._parser.reset()
            return b""
        piece = chunk if len(chunk) <= _PIECE_BYTES else chunk[self._position : self._position + _PIECE_BYTES]
        self._position += len(piece)
        self.waiting_bytes -= len(piece)
        self.taken_bytes += len(piece)
        if self._position >= len(chunk):
            self._chunks.popleft()
            self._position = 0
        return piece

    async def _unreadable(self, error: Exception) -> None:
        """The frames can't be told apart any more: the rest of that connection's bytes is of no use."""
        self.errors["unreadable streams"] += 1
        if not self._parser.lost:
            await self._process_op_err(error)
        while self._chunks and self._chunks[0] is not None:
            self._next_piece()

    async def stop(self) -> None:
        """Take no more, and close."""
        await end_tasks([self._pump_task])
        await self.close()
