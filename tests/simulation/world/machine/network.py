"""Simulated network between processes and servers, with latency, cuts and silence.

A connection has two directions. Each keeps the order of its bytes, like TCP, and delivers the data written since the
last delivery in random
pieces. A partition keeps the bytes until it heals or a side closes the connection. A cut loses them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from tests.simulation.world.machine.scheduler import NS_PER_US, Process, Scheduler

_LATENCY_NS = (80 * NS_PER_US, 400 * NS_PER_US)
_PARTS_ONE_IN = 16
"""One of this number of deliveries is split."""
_MOST_BYTES = 256 * 1024
"""Largest size of one delivery. A read of asyncio has the same limit."""
_PIECE_NS = 10 * NS_PER_US
"""Time between two pieces of data that has arrived."""
HIGH_WATER_BYTES = 64 * 1024
_CONNECT_RETRY_NS = 1_000 * NS_PER_US


class Peer(Protocol):
    """The server's side of a connection."""

    def received(self, data: bytes) -> None:
        """Process received bytes."""

    def lost(self) -> None:
        """The connection has ended."""


class Listens(Protocol):
    """A server in the simulated network."""

    host: str
    is_up: bool

    def accept(self, connection: Connection) -> Peer:
        """Accept a connection."""


class Direction:
    """One direction of a connection."""

    def __init__(self, network: Network, source: str, target: str, give: Callable[[bytes], bool]) -> None:
        self._network = network
        self._scheduler = network.scheduler
        self._source, self._target = source, target
        self._give = give
        """Takes bytes; False: not now."""
        self.waiting = bytearray()
        self._under_way = False
        self._due_ns = 0
        self.closed = False
        self.ends = False
        """The writer has closed it: the end follows the last byte."""
        self.on_end: Callable[[], None] = lambda: None
        self.on_room: Callable[[], None] = lambda: None

    def write(self, data: bytes) -> None:
        """Send data in order."""
        if not self.closed:
            self.waiting += data
            self.kick()

    def end(self) -> None:
        """End the direction."""
        self.ends = True
        self.kick()

    def kick(self) -> None:
        """Schedule a delivery if data waits."""
        if self._under_way or self.closed or not (self.waiting or self.ends):
            return
        self._under_way = True
        delay_ns = self._network.latency_ns(self._source, self._target)
        self._scheduler.after(delay_ns, self._deliver)

    def _deliver(self) -> None:
        self._under_way = False
        if self.closed:
            return
        if not self._network.reaches(self._source, self._target):
            self._network.held.append(self)
            return
        draw_int = self._scheduler.draw_int
        piece_bytes = self._network.piece_bytes.get(self._target, _MOST_BYTES)
        size_bytes = min(len(self.waiting), piece_bytes)
        if size_bytes > 1 and draw_int(0, _PARTS_ONE_IN) == 0:
            size_bytes = draw_int(1, size_bytes)
        if size_bytes:
            if not self._give(bytes(memoryview(self.waiting)[:size_bytes])):
                return  # whoever reads says when there is room
            del self.waiting[:size_bytes]
            self.on_room()
        if self.waiting and piece_bytes < _MOST_BYTES:  # the rest has arrived already
            self._under_way = True
            self._scheduler.after(_PIECE_NS, self._deliver)
        elif self.waiting:
            self.kick()
        elif self.ends and not self.closed:
            self.closed = True
            self.on_end()


class Connection:
    """Connection between a process and a server."""

    def __init__(self, network: Network, process: Process, server: Listens) -> None:
        self.network = network
        self.process = process
        self.server = server
        self.up = Direction(network, process.host, server.host, self._server_takes)
        self.down = Direction(network, server.host, process.host, self._client_takes)
        self.transport: VirtualTransport | None = None
        self.is_open = True
        self.peer: Peer = server.accept(self)
        self.up.on_end = self._client_has_left
        self.down.on_end = self._server_has_left

    # ---- the server's side -----------------------------------------------------------------------------------------------
    def send(self, data: bytes) -> None:
        """Send data from the server."""
        self.down.write(data)

    def _server_takes(self, data: bytes) -> bool:
        if self.server.is_up:
            self.peer.received(data)
        return True

    def close(self) -> None:
        """Close from the server, after its data."""
        if self.is_open:
            self.is_open = False
            self.up.closed = True
            self.peer.lost()
            self.down.end()
            self.network.forget(self)

    def _client_has_left(self) -> None:
        if self.is_open:
            self.is_open = False
            self.down.closed = True
            self.peer.lost()
            self.network.forget(self)

    # ---- the client's side -----------------------------------------------------------------------------------------------
    def _client_takes(self, data: bytes) -> bool:
        transport, process = self.transport, self.process
        if transport is None or not process.is_alive:
            return True
        if process.paused_until_ns > self.network.scheduler.now_ns:
            self.network.scheduler.after(process.paused_until_ns - self.network.scheduler.now_ns, self.down.kick)
            return False
        if transport.reader is not None:
            return bool(transport.reader.arrived(data))
        if not transport.reading:
            return False
        transport.deliver(data)
        return True

    def _server_has_left(self) -> None:
        if self.transport is not None and self.process.is_alive:
            self.transport.ended(None)

    # ---- its end ---------------------------------------------------------------------------------------------------------
    def cut(self) -> None:
        """Cut the connection: both sides see its end, and data on its way is lost."""
        if not self.is_open and self.down.closed:
            return
        was_open, self.is_open = self.is_open, False
        self.up.closed = self.down.closed = True
        self.up.waiting.clear()
        self.down.waiting.clear()
        if was_open:
            self.peer.lost()
        if self.transport is not None and self.process.is_alive:
            self.transport.ended(ConnectionResetError("connection reset by peer"))
        self.network.forget(self)


class VirtualTransport(asyncio.Transport):
    """The client's side, as asyncio's streams see it."""

    def __init__(self, loop: Any, protocol: Any, connection: Connection) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._connection = connection
        self.reading = True
        self._closing = False
        self._lost = False
        self._writing_paused = False
        self._resuming = False
        self._high_bytes = HIGH_WATER_BYTES
        self.reader: Any = None
        """Thread's socket that reads in place of the loop."""
        self._unseen_end: tuple[Exception | None] | None = None
        """End of the connection that a loop that does not read has not seen yet."""
        connection.transport = self
        connection.up.on_room = self._room

    # ---- in --------------------------------------------------------------------------------------------------------------
    def deliver(self, data: bytes) -> None:
        """Deliver data of the network. Nobody reads it if a thread has closed its loop, and left the connection open."""
        if not self._loop.is_closed():
            self._loop.call_soon(self._receive, data)

    def _receive(self, data: bytes) -> None:
        if not self._lost:
            self._protocol.data_received(data)

    def ended(self, error: Exception | None) -> None:
        """The other side has closed, or the network has."""
        if self.reader is not None:
            self._unseen_end = (error,)
            self.reader.ended()
        elif not self._loop.is_closed():
            self._loop.call_soon(self._end, error)

    def _end(self, error: Exception | None) -> None:
        if self._lost or self._closing:
            return
        if error is None:
            self._protocol.eof_received()
        self._closing = True
        self._connection_lost(error)

    def _connection_lost(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._protocol.connection_lost(error)

    def pause_reading(self) -> None:
        """Bytes stay with the network."""
        self.reading = False

    def resume_reading(self) -> None:
        """Resume deliveries."""
        self.reading = True
        if self._unseen_end is not None:
            self._loop.call_soon(self._end, self._unseen_end[0])
            self._unseen_end = None
        self._connection.down.kick()

    def kick(self) -> None:
        """Deliver what waits, as there may be room."""
        self._connection.down.kick()

    def is_reading(self) -> bool:
        """Return whether data is delivered."""
        return self.reading and not self._closing

    # ---- out -------------------------------------------------------------------------------------------------------------
    def write(self, data: Any) -> None:
        """Send data."""
        if self._closing or not data:
            return
        connection = self._connection
        connection.network.scheduler.socket_writes += 1
        if connection.is_open:
            connection.up.write(bytes(data))
            if not self._writing_paused and len(connection.up.waiting) > self._high_bytes:
                self._writing_paused = True
                self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """Send several pieces as one."""
        self.write(b"".join(list_of_data))

    def _room(self) -> None:
        if self._writing_paused and not self._resuming and self._has_room():
            self._resuming = True
            self._loop.call_soon(self._may_write)

    def _has_room(self) -> bool:
        return len(self._connection.up.waiting) * 4 <= self._high_bytes

    def _may_write(self) -> None:
        self._resuming = False
        if not self._lost and self._has_room():  # the protocol stays paused if a write has used the room
            self._writing_paused = False
            self._protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the network has not taken, beyond the size of a socket buffer."""
        return max(0, len(self._connection.up.waiting) - HIGH_WATER_BYTES)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits at which the protocol is paused."""
        self._high_bytes = HIGH_WATER_BYTES if high is None else high

    def can_write_eof(self) -> bool:
        """Return False."""
        return False

    # ---- its end ---------------------------------------------------------------------------------------------------------
    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self._closing

    def close(self) -> None:
        """Close after the written data."""
        if not self._closing:
            self._closing = True
            self._connection.up.end()
            self._loop.call_soon(self._connection_lost, None)

    def abort(self) -> None:
        """Close at once."""
        if not self._closing:
            self._closing = True
            self._connection.up.waiting.clear()
            self._connection.up.end()
            self._loop.call_soon(self._connection_lost, None)

    def get_protocol(self) -> Any:
        """Return the protocol."""
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        """Set another protocol."""
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the socket, for a thread that reads it."""
        from tests.simulation.world.machine.ingest_thread import descriptor_of

        return descriptor_of(self) if name == "socket" else default


class Network:
    """All hosts, servers and connections of a world."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.servers: dict[tuple[str, int], Listens] = {}
        self.connections: list[Connection] = []
        self.held: list[Direction] = []
        """Bytes that a partition keeps."""
        self.piece_bytes: dict[str, int] = {}
        """Host -> maximum number of bytes that it receives at once."""
        self._cuts: set[tuple[str, str]] = set()
        self._slow: dict[str, int] = {}
        """Host -> latency in ns that is added to all that it sends and gets."""

    def latency_ns(self, source: str, target: str) -> int:
        """Return the latency of the next delivery."""
        delay_ns = self.scheduler.draw_int(*_LATENCY_NS)
        added_ns = max(self._slow.get(source, 0), self._slow.get(target, 0)) if self._slow else 0
        return delay_ns + self.scheduler.draw_int(0, added_ns) if added_ns else delay_ns

    def reaches(self, source: str, target: str) -> bool:
        """Return whether bytes go that way."""
        return (source, target) not in self._cuts

    @property
    def is_faulty(self) -> bool:
        """True if a direction is blocked."""
        return bool(self._cuts)

    def partition(self, source: str, target: str) -> None:
        """Block one direction silently."""
        self._cuts.add((source, target))
        self.scheduler.trace("partition", source, target)

    def slow(self, host: str, added_ns: int) -> None:
        """Delay messages of a host by up to ``added_ns``, 0: no delay."""
        self._slow[host] = added_ns
        self.scheduler.trace("slow network", host, added_ns)

    def heal(self) -> None:
        """End all network faults."""
        self._cuts.clear()
        self._slow.clear()
        self.scheduler.trace("the network is whole")
        held, self.held = self.held, []
        for direction in held:
            direction.kick()

    def forget(self, connection: Connection) -> None:
        """Remove an ended connection."""
        if connection in self.connections:
            self.connections.remove(connection)

    async def connect(self, loop: Any, protocol: Any, host: str, port: int) -> VirtualTransport:
        """Return a connection of the running process, or ConnectionRefusedError; a partition answers nothing."""
        process: Process = loop.process
        server = self.servers.get((host, port))
        while True:
            await asyncio.sleep(self.latency_ns(process.host, host) / 1e9)
            if server is None:
                raise ConnectionRefusedError(111, f"connect call failed ({host!r}, {port})")
            if self.reaches(process.host, server.host) and self.reaches(server.host, process.host):
                break
            await asyncio.sleep(_CONNECT_RETRY_NS / 1e9)
        if not server.is_up:
            raise ConnectionRefusedError(111, f"connect call failed ({host!r}, {port})")
        connection = Connection(self, process, server)
        transport = VirtualTransport(loop, protocol, connection)
        self.connections.append(connection)
        protocol.connection_made(transport)
        return transport

    def process_ended(self, process: Process) -> None:
        """Close the connections of an ended process."""
        for connection in list(self.connections):
            if connection.process is process:
                connection.up.waiting.clear()
                connection.up.end()
