"""The connection for publishes and their acks: reads quickly, and processes in small steps.

nats-server buffers at most 64 MiB for a slow connection, and then closes it. So the node reads the socket as fast as possible
into a buffer of raw bytes, and processes it for a few milliseconds at a time [A11]. During a burst a thread reads the socket
(not with TLS).

At half of the buffer the node stops reading, so that the server slows publishers down. ``LoadShedding`` detects when the
server's buffer is almost full. Then the node uses the other half. When the buffer is full, whole messages without reply subject
are dropped and counted. ``IngestThrottle`` limits processing while partitions are full.

``Backlog`` asks the server how much it has buffered. ``DisconnectLoss`` computes how many messages were lost when a server
closed the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import select
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import nats.errors

from liftpy.core.base.strict_json import load_json, whole_number
from liftpy.core.publish.backpressure import IngestThrottle, LoadShedding
from liftpy.core.publish.memory_budget import MemoryBudget
from liftpy.core.publish.ports import PublishRejector
from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.wire.subjects import SERVER_CONNECTIONS
from liftpy.nats.cancellation import end_tasks
from sidecar.runtime import clock
from sidecar.runtime.tasks import TaskSet, spawn
from sidecar.transport.connection import BusConnection, Listener
from sidecar.transport.parser import IngestParser, Sink

loss_logger = logging.getLogger("liftpy.ingest")
logger = logging.getLogger("liftpy.nats")

_TRIES = 5
_TRY_S = 0.2
_PIECE_BYTES = 64 * 1024
"""Number of bytes that are parsed between two checks of the clock."""
_TURN_BYTES = 256 * 1024
_REFUSING_BYTES = 1024 * 1024
"""Maximum number of bytes that are processed per turn while most publishes are rejected."""
_TURN_NS = 4_000_000
"""Maximum time for parsing per turn of the loop, in nanoseconds. Then all other work of the loop runs."""
_DROP_TURN_NS = 8_000_000
"""Maximum time per turn for dropping messages, in nanoseconds."""
_FULL_PARTS = 16
"""Divisor of the buffer size. If less than this part is free, the buffer counts as full."""
_RECHECK_S = 0.005
_ROOM_RECHECK_S = 0.5
_LARGE_BYTES = 32 * 1024
"""Size of a read above which the socket probably has more data."""
_BURST_NS = 30_000_000
"""Time without a small read after which a thread reads, in nanoseconds. Each read by the thread costs a thread switch."""
_CALM_NS = 200_000_000
"""Time after the last large read at which the loop reads again, in nanoseconds."""
_OPEN_OR_CLOSED = 2
_OUTSTANDING = 16
_ASK_EVERY_NS = 20_000_000
_UNANSWERED_EVERY_NS = 10_000_000_000
_UNANSWERED_AFTER_NS = 2_000_000_000
READ_BYTES = 4 * 1024 * 1024
"""Maximum size of a read. A busy loop releases the interpreter only once in 5 ms."""
_SOCKET_RECHECK_S = 0.05
_LITTLE_BYTES = 64 * 1024
_GATHER_S = 0.001
"""Wait after a read with less than ``_LITTLE_BYTES``, so that the next read brings more with one thread switch."""
_LOG_PERIOD_S = 1.0


@dataclass(frozen=True, slots=True)
class _LostConnection:
    """A lost connection, with the id of its NATS server and its own id on that server."""

    server_id: str
    client_id: int
    last: ConnectionStats | None
    """Last statistics of the connection from its server, while it was open."""


class DisconnectLoss:
    """Computes how many messages were lost when NATS servers closed the ingest connection, since the start of the node.

    ``backlog``: requests statistics from servers. None: it is not possible. ``overflow``: gets the size at which a server
    closed the connection.
    """

    def __init__(self, backlog: Backlog | None, overflow: LoadShedding) -> None:
        self._backlog = backlog
        self._overflow = overflow
        self._lost_connections: deque[_LostConnection] = deque()
        """Lost connections whose last bytes are still in the buffer."""
        self._seen = 0
        """Number of messages that had arrived when the previous lost connection was processed."""
        self.lost_messages = 0
        """Number of messages that a server sent and that never arrived."""
        self.unknown = 0
        """Number of lost connections for which the server has no statistics."""
        self._last: ConnectionStats | None = None
        self._requests = TaskSet()

    def connection_lost(self, server_id: str, client_id: int) -> None:
        """Record a lost connection, by the ids of its server and of the connection there.

        Its last messages may not be processed yet.
        """
        last, self._last = self._last, None
        self._lost_connections.append(_LostConnection(server_id, client_id, last))

    def messages_processed(self, seen: int) -> None:
        """Record that the node has processed all received messages of the oldest lost connection. Then compute how many were lost.

        ``seen``: number of messages received since the start of the node.
        """
        lost_connection, arrived = self._lost_connections.popleft(), seen - self._seen
        self._seen = seen
        counting = self._count_lost_messages(lost_connection, arrived)
        self._requests.start(counting, "counting the lost messages of a connection")

    def record_server_report(self, stats: ConnectionStats) -> None:
        self._last = stats

    async def stop(self) -> None:
        await self._requests.end()

    async def _count_lost_messages(self, lost_connection: _LostConnection, arrived: int) -> None:
        stats = await self._request_stats(lost_connection)
        self.unknown += stats is None
        named = lost_connection.server_id, lost_connection.client_id
        known = [t.delivered for t in (stats, lost_connection.last) if t is not None and (t.server_id, t.client_id) == named]
        lost = max([arrived, *known]) - arrived
        self.lost_messages += lost
        if stats is None:
            loss_logger.warning("publishes lost with a connection, number not known at_least=%d", lost)
            return
        if "pending" in stats.reason.lower():
            self._overflow.server_closed_at(stats.backlog_bytes)
        if lost:
            loss_logger.warning(
                "publishes lost with a connection that the server closed reason=%s count=%d", stats.reason, lost
            )

    async def _request_stats(self, lost_connection: _LostConnection) -> ConnectionStats | None:
        """Request the statistics of the lost connection from its server, and return them. None: the server did not answer."""
        answers: asyncio.Queue[ConnectionStats] = asyncio.Queue()
        for _ in range(_TRIES if self._backlog is not None else 0):
            assert self._backlog is not None
            self._backlog.ask(lost_connection.server_id, lost_connection.client_id, answers.put_nowait, at_once=True)
            try:
                stats = await asyncio.wait_for(answers.get(), _TRY_S)
            except TimeoutError:
                continue
            if stats.reason:
                return stats
            await asyncio.sleep(_TRY_S)
        return None


class IngestConnection(BusConnection):
    """The ingest connection: it receives publishes and sends their acks.

    Args:
        node: Totals of uncommitted and delayed publishes.
        buffer_bytes: Size of the buffer of received bytes.
        stats_connection: Connection for requests to the NATS server. None: no requests.
        name: Name of the connection.
        room: Memory budget of the node. It gets the time that received bytes wait. None: a budget of its own.
    """

    _parser_type = IngestParser
    _parser: IngestParser

    def __init__(
        self,
        node: NodeInflight,
        buffer_bytes: int,
        stats_connection: BusConnection | None = None,
        name: str = "ingest",
        room: MemoryBudget | None = None,
    ) -> None:
        super().__init__(name)
        # nats-py resets its parser after a lost connection. This one marks the place in the buffer
        self._ps = SimpleNamespace(reset=self._connection_lost)  # type: ignore[assignment]
        self._node = node
        self._memory_budget = room or MemoryBudget()
        self._throttle = IngestThrottle(node)
        self._backlog = Backlog(stats_connection) if stats_connection is not None else None
        self.overflow = LoadShedding()
        self.disconnect_loss = DisconnectLoss(self._backlog, self.overflow)
        self._buffer_bytes = buffer_bytes
        self._chunks: deque[bytes | None] = deque()
        """Chunks as read from the socket. None as chunk: a connection was lost at this place."""
        self._position = 0
        """Position in the first chunk up to which it is parsed."""
        self._arrived_bytes = 0
        """Total number of bytes that arrived in the buffer. Either the loop or the thread counts them."""
        self._removed_bytes = 0
        """Total number of bytes that left the buffer."""
        self._read_at_least_to = 0
        """Value of ``_arrived_bytes`` up to which data is read even above half of the buffer."""
        self.most_waiting_bytes = 0
        self.parsed_bytes = 0
        """Total number of bytes that were parsed and not skipped."""
        self._parsing = False
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._thread: SocketThread | None = None
        self._is_wake_scheduled = False
        """True if the loop will be woken for data of the thread."""
        self.bursts = 0
        """Number of times that the thread began to read."""
        self._large_ns = 0
        """Time of the last large read."""
        self._burst_ns = 0
        """Time since which all reads were large. 0: the last read was small."""
        self._loop = asyncio.get_running_loop()
        self._pump_task = spawn(self._pump(), "parsing publishes", endless=True)

    @property
    def waiting_bytes(self) -> int:
        """Number of received bytes that are not parsed yet."""
        return self._arrived_bytes - self._removed_bytes

    @property
    def read_and_parsed_bytes(self) -> tuple[int, int]:
        """(bytes received from the socket, bytes parsed or dropped), since the start of the node."""
        return self._arrived_bytes, self._removed_bytes

    @property
    def dropped_unread(self) -> int:
        """Number of messages that were dropped unread, because the buffer was full."""
        return self._parser.dropped_unread

    def listen(
        self, subject: str, sink: Sink, queue: str = "", on_dropped: Callable[[int], None] | None = None,
        rejector: PublishRejector | None = None,
    ) -> Listener:  # fmt: skip
        listener = super().listen(subject, sink, queue)
        if on_dropped is not None:
            self._parser.on_dropped(self._sid, on_dropped)
        if rejector is not None:
            self._parser.set_rejector(self._sid, rejector)
        return listener

    def redirect(self, sid: int, sink: Sink, on_dropped: Callable[[int], None]) -> None:
        super().redirect(sid, sink, on_dropped)
        self._parser.on_dropped(sid, on_dropped)

    # ---- from the socket ---------------------------------------------------------------------------------------------
    def _process_arrived(self, data: bytes) -> bytes | None:
        if not self._bypasses_buffer(data):
            return data
        left = super()._process_arrived(data)
        if left is None:
            self._start_thread_in_burst()
        return left

    async def _process_data(self, data: bytes) -> None:
        if self._bypasses_buffer(data):
            await self._parse(data)
        else:
            self._append(data)
            self._arrived.set()
        if self._start_thread_in_burst():
            return
        if self._is_full():
            self.errors["ingest_buffer_full"] += 1
        while not self._should_read():
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._room.wait(), _ROOM_RECHECK_S)
            self._pings_outstanding = 0  # the node itself does not read now, so the server buffers more

    def _bypasses_buffer(self, data: bytes) -> bool:
        """Return whether ``data`` can be parsed at once, because the buffer is empty. If so, count it as processed."""
        if self._chunks or self._parsing or len(data) > _PIECE_BYTES or not self._may_parse():
            return False
        self._count_read(len(data))
        self.parsed_bytes += len(data)
        self._removed_bytes += len(data)
        return True

    def _count_read(self, size_bytes: int) -> None:
        """Count ``size_bytes`` that the event loop or the thread has read. Detect the begin and the end of a burst."""
        self._arrived_bytes += size_bytes
        if size_bytes >= _LARGE_BYTES:
            self._large_ns = clock.now_ns()
            self._burst_ns = self._burst_ns or self._large_ns
        elif size_bytes:
            self._burst_ns = 0

    def _append(self, data: bytes) -> None:
        self._chunks.append(data)
        self._count_read(len(data))
        self.most_waiting_bytes = max(self.most_waiting_bytes, self.waiting_bytes)

    def _may_parse(self) -> bool:
        return self._throttle.may_take(self.parsed_bytes, self._is_half_full(), clock.now_ns())

    def _is_full(self) -> bool:
        return self.waiting_bytes + self._node.held_bytes >= self._buffer_bytes

    def _is_half_full(self) -> bool:
        return 2 * (self.waiting_bytes + self._node.held_bytes) >= self._buffer_bytes

    def _should_read(self) -> bool:
        """Return whether the node should read more from the socket now. The thread calls it too."""
        if not self._is_half_full():
            return True
        if self._is_full():
            return False
        return self._arrived_bytes < self._read_at_least_to or not self.overflow.can_stop_reading(
            self._arrived_bytes, clock.now_ns()
        )

    def _connection_lost(self) -> None:
        self._end_thread()
        self._throttle.connection_lost()
        self.overflow.connection_lost()
        self.disconnect_loss.connection_lost(*self._identity())
        self._parser.lost += 1
        self._chunks.append(None)
        self._arrived.set()

    # ---- by the thread -----------------------------------------------------------------------------------------------
    def _start_thread_in_burst(self) -> bool:
        """Let a thread read the socket during a burst. Return True if the thread reads it now."""
        receiver = self._receiver
        if self._thread is not None or not self._burst_ns or self._large_ns - self._burst_ns < _BURST_NS:
            return self._thread is not None
        if receiver is None or not receiver.is_idle or self.is_reconnecting or self.is_closed:
            return False
        transport = receiver.transport
        descriptor = transport.get_extra_info("socket")
        if transport.get_extra_info("ssl_object") or transport.is_closing() or descriptor is None:
            return False
        transport.pause_reading()
        try:
            self._thread = SocketThread(
                descriptor.fileno(),
                self._append_from_thread,
                self._should_read,
                lambda: self._call(self._resume_loop_reads),
                min(READ_BYTES, max(_LITTLE_BYTES, self._buffer_bytes // 2)),  # so one read does not exceed the buffer
            )
        except (OSError, RuntimeError):  # no file descriptor or thread is available, so the loop continues to read
            transport.resume_reading()
            self.errors["no thread to read a burst"] += 1
            self._burst_ns = 0
            return False
        self.bursts += 1
        return True

    def _resume_loop_reads(self) -> None:
        """Let the event loop read the socket again instead of the thread. The loop also detects the end of the connection."""
        if self._end_thread() and self._receiver is not None and not self._receiver.transport.is_closing():
            self._receiver.transport.resume_reading()

    def _end_thread(self) -> bool:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()
        return thread is not None

    def _append_from_thread(self, data: bytes) -> None:
        """Add data that the thread has read to the buffer. The thread calls the method."""
        self._append(data)
        if not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            self._call(self._wake_reader)

    def _call(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback)

    def _wake_reader(self) -> None:
        self._is_wake_scheduled = False
        self._pings_outstanding = 0
        self._arrived.set()

    # ---- processing --------------------------------------------------------------------------------------------------
    async def _parse(self, data: bytes) -> None:
        self._parsing = True
        try:
            await self._parser.parse(data)
        finally:
            self._parsing = False

    async def _pump(self) -> None:
        while True:
            while not self._chunks:
                await self._wait_for_data()
            await self._make_room()
            if self._may_parse():
                await self._process_some()
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(_RECHECK_S)

    async def _wait_for_data(self) -> None:
        """Wait until data arrives. When a burst has ended, let the event loop read the socket again."""
        self._check_age()
        if self._thread is not None and clock.now_ns() - self._large_ns >= _CALM_NS:
            self._resume_loop_reads()
        self._arrived.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if self._thread is None else _CALM_NS / 1e9):
                await self._arrived.wait()

    async def _process_some(self) -> None:
        """Process buffered data for a few milliseconds, so that the event loop can do other work afterwards."""
        most_bytes = _REFUSING_BYTES if self._check_age() else _TURN_BYTES
        end_ns, processed_bytes = time.thread_time_ns() + _TURN_NS, 0
        while self._chunks and processed_bytes < most_bytes and time.thread_time_ns() < end_ns and self._may_parse():
            piece = self._next_piece()
            processed_bytes += len(piece)
            self.parsed_bytes += len(piece)
            await self._parse_piece(piece)
        self._update_room()

    def _check_age(self) -> bool:
        """Report to the node's memory budget how long the oldest unprocessed bytes have waited. Return whether that is too long."""
        room = self._memory_budget
        room.update_wait(self._arrived_bytes, self._removed_bytes, clock.now_ns())
        self._parser.pauses = room.is_late or room.is_limited
        return room.is_late

    async def _make_room(self) -> None:
        """Drop messages without reply subject, if the node must read more than its buffer can hold.

        When the buffer is a quarter full, ask the server how much it has buffered for this connection.
        """
        if (
            self._backlog is not None
            and self.is_connected
            and 4 * (self.waiting_bytes + self._node.held_bytes) >= self._buffer_bytes
        ):
            self._backlog.ask(*self._identity(), partial(self._record_server_report, self._arrived_bytes))
        if not self._is_half_full():
            self.overflow.buffer_has_room()
            return
        if self._thread is not None:
            self._pings_outstanding = 0  # the node itself does not read now, so the server buffers more
        room_bytes = self._buffer_bytes - self.waiting_bytes - self._node.held_bytes
        is_full = room_bytes * _FULL_PARTS <= self._buffer_bytes
        due_bytes = self.overflow.due_bytes(is_full, self._arrived_bytes, self._removed_bytes, clock.now_ns())
        self._read_at_least_to = self._arrived_bytes + due_bytes
        if due_bytes > max(room_bytes, 0):
            await self._drop_without_reply(due_bytes - max(room_bytes, 0))

    def _identity(self) -> tuple[str, int]:
        """Return (id of the NATS server, id of this connection on the server)."""
        return self._server_info.get("server_id", ""), self._client_id or 0

    def _record_server_report(self, read_bytes: int, stats: ConnectionStats) -> None:
        if (stats.server_id, stats.client_id) == self._identity() and not stats.reason:
            self.disconnect_loss.record_server_report(stats)
            self.overflow.record_pong(stats.backlog_bytes, read_bytes, stats.request_ns)

    async def _drop_without_reply(self, due_bytes: int) -> None:
        end_ns, done_bytes = time.thread_time_ns() + _DROP_TURN_NS, 0
        self._parser.drops_unread = True
        try:
            while self._chunks and done_bytes < due_bytes and time.thread_time_ns() < end_ns:
                piece = self._next_piece()
                done_bytes += len(piece)
                await self._parse_piece(piece)
        finally:
            self._parser.drops_unread = False
        self._update_room()

    def _update_room(self) -> None:
        if self._should_read():
            self._room.set()
            if self._thread is not None:
                self._thread.resume()

    async def _parse_piece(self, piece: bytes) -> None:
        try:
            await self._parse(piece)
        except (OSError, nats.errors.Error) as error:
            await self._unreadable(error)
        except Exception as error:
            logger.exception("NATS data cannot be decoded: reconnecting")
            await self._unreadable(error)

    def _next_piece(self) -> bytes:
        """Remove and return the next bytes of the buffer, for the parser. b"": a connection was lost at this place."""
        chunk = self._chunks[0]
        if chunk is None:
            self._chunks.popleft()
            self._parser.lost -= 1
            self._parser.reset()
            self.disconnect_loss.messages_processed(self._parser.received)
            return b""
        piece = chunk if len(chunk) <= _PIECE_BYTES else chunk[self._position : self._position + _PIECE_BYTES]
        self._position += len(piece)
        self._removed_bytes += len(piece)
        if self._position >= len(chunk):
            self._chunks.popleft()
            self._position = 0
        return piece

    async def _unreadable(self, error: Exception) -> None:
        """Ignore the rest of the connection's bytes, because the parser cannot separate the messages (``error``). Reconnect."""
        self.errors["unreadable"] += 1
        if not self._parser.lost:
            await self._process_op_err(error)
        while self._chunks and self._chunks[0] is not None:
            self._next_piece()

    # ---- life ----------------------------------------------------------------------------------------------------------
    async def _close(self, status: int, do_cbs: bool = True) -> None:
        self._end_thread()
        await super()._close(status, do_cbs)

    async def stop(self) -> None:
        await end_tasks([self._pump_task])
        await self.disconnect_loss.stop()
        if self._backlog is not None:
            self._backlog.close()
        await super().stop()


# ---- statistics ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """Statistics of a connection, as its NATS server reports them.

    Attributes:
        request_ns: Monotonic time of the request.
        server_id: Id of the server.
        client_id: Id of the connection on this server.
        backlog_bytes: Bytes that the server has buffered for the connection.
        delivered: Number of messages that the server has sent or buffered.
        reason: Reason why the connection was closed. '': it is open.
    """

    request_ns: int
    server_id: str
    client_id: int
    backlog_bytes: int
    delivered: int
    reason: str


class Backlog:
    """Requests the statistics of connections from NATS servers: buffered bytes, and number of sent messages.

    Every account may request them for its own connections (``$SYS.REQ.ACCOUNT.PING.CONNZ``). The request uses another
    connection (``bus``), because an answer on the same one would arrive after the buffered data. If the server does not answer,
    requests are rare.
    """

    def __init__(self, bus: BusConnection) -> None:
        self._bus = bus
        self._prefix = f"{bus.inbox}.connz"
        self._listener = self._bus.listen(f"{self._prefix}.*", self._answer_arrived)
        self._outstanding: dict[bytes, tuple[int, str, int, Callable[[ConnectionStats], None]]] = {}
        self._number = 0
        self._last_connection = "", 0
        """Connection of the last request: (id of its NATS server, id of the connection on that server)."""
        self._unanswered_since_ns = 0  # time of the unanswered request. 0: it was answered
        self._next_ns = 0

    def close(self) -> None:
        self._listener.close()

    def ask(self, server_id: str, client_id: int, handler: Callable[[ConnectionStats], None], *, at_once: bool = False) -> None:
        """Request the statistics of the connection ``client_id`` from the server ``server_id``. ``handler`` is called with the answer.

        The rate of requests is limited. ``at_once``: True to send this one in any case. A client id is unique only within one
        server.
        """
        now_ns = clock.now_ns()
        if not at_once:
            if self._last_connection != (
                server_id,
                client_id,
            ):  # a server that does not answer says nothing about another server
                self._last_connection, self._unanswered_since_ns, self._next_ns = (server_id, client_id), 0, 0
            if now_ns < self._next_ns:
                return
            self._unanswered_since_ns = self._unanswered_since_ns or now_ns
            self._next_ns = now_ns + (
                _ASK_EVERY_NS if now_ns - self._unanswered_since_ns < _UNANSWERED_AFTER_NS else _UNANSWERED_EVERY_NS
            )
        self._number += 1
        while len(self._outstanding) >= _OUTSTANDING:
            self._outstanding.pop(next(iter(self._outstanding)))
        question = json.dumps({"cid": client_id, "state": _OPEN_OR_CLOSED}).encode()
        if self._bus.send(SERVER_CONNECTIONS, (question,), f"{self._prefix}.{self._number}"):
            self._outstanding[b"%d" % self._number] = now_ns, server_id, client_id, handler
        else:
            self._unanswered_since_ns, self._next_ns = 0, now_ns + _ASK_EVERY_NS

    def _answer_arrived(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        number = subject.rpartition(b".")[2]
        request_ns, server_id, client_id, handler = self._outstanding.get(number, (0, "", 0, None))
        if handler is None:
            return
        stats = _parse_stats(payload, request_ns, server_id, client_id)
        if stats is not None:  # otherwise another server of the cluster has answered
            del self._outstanding[number]
            self._unanswered_since_ns = self._next_ns = 0
            handler(stats)


def _parse_stats(payload: bytes, request_ns: int, server_id: str, client_id: int) -> ConnectionStats | None:
    try:
        data: dict[str, Any] = load_json(payload)["data"]
        if data["server_id"] != server_id:
            return None
        (connection_stats,) = (connection for connection in data["connections"] if connection["cid"] == client_id)
        pending, delivered = (whole_number(connection_stats[name], 0, 1 << 62) for name in ("pending_bytes", "out_msgs"))
        return ConnectionStats(request_ns, server_id, client_id, pending, delivered, str(connection_stats.get("reason", "")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


# ---- thread ----------------------------------------------------------------------------------------------------------


class SocketThread:
    """A thread that reads a plain socket while ``has_room`` returns True, and calls ``take`` with the data [A11].

    It reads while the event loop is busy, so that nats-server does not close the connection. The loop reads once per turn. On a
    busy machine, six fast publishers fill the server's 64 MiB buffer within one turn. The thread only copies bytes.

    It calls ``ended`` and stops when the other side has closed the socket. All three callbacks run in the thread. The owner
    keeps the socket, and the thread uses a copy of ``descriptor``. The constructor raises OSError or RuntimeError if no
    descriptor or no thread is available.
    """

    def __init__(
        self,
        descriptor: int,
        take: Callable[[bytes], None],
        has_room: Callable[[], bool],
        ended: Callable[[], None],
        read_bytes: int = READ_BYTES,
    ) -> None:
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._socket.setblocking(False)
        self._take, self._has_room, self._ended = take, has_room, ended
        self._read_bytes = read_bytes
        """Maximum size of one read."""
        self._room = threading.Event()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._reading = threading.Lock()
        self._stopping = False
        threading.Thread(target=self._run, name="liftpy-ingest-socket", daemon=True).start()

    def resume(self) -> None:
        """Wake the thread, because ``has_room`` may return True again."""
        self._room.set()

    def stop(self) -> None:
        """Stop the thread. It waits for at most one ``recv``, and may be called twice."""
        self._stopping = True
        self._room.set()
        with contextlib.suppress(OSError):
            self._wake_sender.send(b".")
        with self._reading:
            return

    def _run(self) -> None:
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        ready.register(self._wake_receiver, select.POLLIN)
        try:
            while not self._stopping:
                if not self._has_room():
                    self._room.wait(_SOCKET_RECHECK_S)
                    self._room.clear()
                    continue
                ready.poll()
                size_bytes = self._read_once()
                if size_bytes < 0:
                    return
                if size_bytes < _LITTLE_BYTES:
                    time.sleep(_GATHER_S)
        finally:
            for end in (self._socket, self._wake_receiver, self._wake_sender):
                end.close()

    def _read_once(self) -> int:
        """Read from the socket once. Return the number of bytes. -1: the connection has ended."""
        with self._reading:
            if self._stopping:
                return -1
            try:
                data = self._socket.recv(self._read_bytes)
            except (BlockingIOError, InterruptedError):
                return 0
            except OSError:
                data = b""
            if data:
                self._take(data)
                return len(data)
        self._ended()
        return -1


class Drops:
    """Counts the publishes that a node drops, and logs them at most once a second. ``close`` logs the rest."""

    def __init__(self) -> None:
        self._unlogged_drops: Counter[tuple[str, str]] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def count(self, partition: str, reason: str, count: int) -> None:
        self._unlogged_drops[partition, reason] += count
        if self._timer is None:
            self._log_drops()

    def _log_drops(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._unlogged_drops:
            return
        drop_texts = ", ".join(
            f"{count} of {partition}: {reason}" for (partition, reason), count in self._unlogged_drops.most_common(8)
        )
        more = len(self._unlogged_drops) - 8
        loss_logger.warning(
            "publishes without reply subject dropped counts=%s%s", drop_texts, f", and {more} more" if more > 0 else ""
        )
        self._unlogged_drops.clear()
        self._timer = asyncio.get_running_loop().call_later(_LOG_PERIOD_S, self._log_drops)

    def close(self) -> None:
        self._log_drops()
        if self._timer is not None:
            self._timer.cancel()
