"""NATS in memory: ``Bus`` delivers messages. ``NodeConnection`` connects a node with it, ``MemoryTransport`` a real client.

Two queues replace the socket of a client.

nats-py reads from and writes to ``MemoryTransport``, in the event loop of the client. ``NatsSession`` is the server
side, in the event loop of the cluster. Only bytes cross, so clients may run in any event loop and thread.

``Bus`` treats messages as nats-server does: subscriptions, wildcards, queue groups, "no responders". It runs on the
thread of the cluster.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

from nats.aio.transport import Transport

from liftpy.core.publish.ports import PublishRejector, Subscription
from liftpy.errors import ProtocolError
from sidecar.transport.ports import Buffer

Sink = Callable[[bytes, bytes, bytes, bytes], None]
"""Function of (subject, reply, payload, header block) that receives one message."""
MAX_PAYLOAD_BYTES = 1 << 20
"""Maximum size of a message with its headers, in bytes: the default of nats-server."""
MAX_REMEMBERED = 4096
"""Number of subjects whose subscribers are cached. One more empties the cache."""
NOBODY = b"NATS/1.0 503\r\n\r\n"
_TOKENS = {b"*": rb"[^.]+", b">": rb"[^.]+(?:\.[^.]+)*"}
URL = "nats://memory:4222"
"""URL that a connection reports. It is never resolved."""
MOST_UNREAD_BYTES = 4 << 20
"""Number of written bytes that the bus has not read, above which ``drain`` waits."""
_END = b"\r\n"
_LONGEST_LINE_BYTES = 4096
"""Maximum length of a protocol line, in bytes, as in nats-server (``max_control_line``)."""
_PAUSE_S = 0.001


class BusSubscription:
    """One subscription to a subject. ``sink``: function that receives the messages. ``close`` ends the subscription."""

    __slots__ = ("_bus", "fits", "is_pattern", "number", "on_close", "queue", "sink", "subject")

    def __init__(self, bus: Bus, number: int, subject: bytes, sink: Sink, queue: bytes) -> None:
        self._bus = bus
        self.number = number
        self.subject = subject
        self.sink = sink
        self.queue = queue
        self.on_close: Callable[[BusSubscription], None] = lambda subscription: None
        tokens = subject.split(b".")
        self.is_pattern = not _TOKENS.keys().isdisjoint(tokens)
        parts = [_TOKENS.get(token) or re.escape(token) for token in tokens]
        self.fits = re.compile(rb"\.".join(parts), re.DOTALL).fullmatch

    def close(self) -> None:
        self._bus.forget(self)
        self.on_close(self)

    def leave(self) -> None:
        """End the subscription at once. A real connection would first deliver messages in flight, and this bus has none."""
        self.close()


class Bus:
    """Delivers messages to subscriptions in memory. ``later``: function that runs a callback in the next turn of the event loop."""

    def __init__(self, later: Callable[[Callable[[], None]], object], max_payload: int = MAX_PAYLOAD_BYTES) -> None:
        self.max_payload = max_payload
        self._later = later
        self._exact: dict[bytes, dict[int, BusSubscription]] = {}
        """Subject -> its subscriptions, by number."""
        self._patterns: dict[int, BusSubscription] = {}
        """Subscriptions with wildcards, by number."""
        self._numbers = count(1)
        self._known: dict[bytes, tuple[list[BusSubscription], dict[bytes, list[BusSubscription]]]] = {}
        """Subject -> its subscribers without a queue group, and those of each queue group."""
        self._turn = 0
        """Counter that selects the next member of each queue group."""
        self._reading = False
        self._behind: list[Callable[[], None]] = []

    # ---- who listens ---------------------------------------------------------------------------------------------------
    def listen(self, subject: str | bytes, sink: Sink, queue: str | bytes = b"") -> BusSubscription:
        """Subscribe ``sink`` to ``subject``, and return the subscription.

        With ``queue``, only one of the subscribers with this queue name gets each message.
        """
        subscription = BusSubscription(self, next(self._numbers), _bytes(subject), sink, _bytes(queue))
        self._same_kind(subscription)[subscription.number] = subscription
        self._known.clear()
        return subscription

    def _same_kind(self, subscription: BusSubscription) -> dict[int, BusSubscription]:
        """Return the subscriptions among which ``subscription`` is stored."""
        if subscription.is_pattern:
            return self._patterns
        return self._exact.setdefault(subscription.subject, {})

    def forget(self, subscription: BusSubscription) -> None:
        if self._same_kind(subscription).pop(subscription.number, None) is not None:
            self._known.clear()
        if not self._exact.get(subscription.subject, True):
            del self._exact[subscription.subject]

    def _listeners(self, subject: bytes) -> tuple[list[BusSubscription], dict[bytes, list[BusSubscription]]]:
        listeners = self._known.get(subject)
        if listeners is None:
            plain: list[BusSubscription] = []
            queues: dict[bytes, list[BusSubscription]] = {}
            fitting = [subscription for subscription in self._patterns.values() if subscription.fits(subject)]
            for subscription in (*self._exact.get(subject, {}).values(), *fitting):
                (queues.setdefault(subscription.queue, []) if subscription.queue else plain).append(subscription)
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            listeners = self._known[subject] = (plain, queues)
        return listeners

    # ---- messages ------------------------------------------------------------------------------------------------------
    def publish(self, subject: bytes, reply: bytes, payload: bytes, block: bytes = b"") -> int:
        """Deliver a message to all matching subscribers at once, and return their number.

        ``reply``: reply subject, b'' for none. ``block``: NATS header block, b'' for none.
        """
        plain, queues = self._listeners(subject)
        for subscription in list(plain):
            subscription.sink(subject, reply, payload, block)
        for members in list(queues.values()):
            self._turn += 1
            members[self._turn % len(members)].sink(subject, reply, payload, block)
        return len(plain) + len(queues)

    def send(self, subject: str | bytes, chunks: Sequence[bytes | memoryview]) -> None:
        self.publish(_bytes(subject), b"", b"".join(chunks))

    def send_lines(self, lines: Sequence[bytes]) -> None:
        """Send acks to publishers. ``lines``: one protocol line ``PUB <inbox>  <size>`` for each ack, with its payload."""
        for line in lines:
            head, _, rest = line.partition(b"\r\n")
            _, subject, size = head.split()
            self.publish(subject, b"", rest[: int(size)])

    def together(self, deliver: Callable[[], None]) -> None:
        """Call ``deliver``, and after it all callbacks that were passed to ``call_after_read`` during the call.

        So the messages that it publishes count as one read of a socket.
        """
        self._reading = True
        try:
            deliver()
        finally:
            self._reading = False
            behind, self._behind = self._behind, []
            for callback in behind:
                callback()

    def call_after_read(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after all messages of the current read of a socket were delivered."""
        if self._reading:
            self._behind.append(callback)
        else:
            self._later(callback)


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


class NodeConnection:
    """The connections of one node with ``Bus``, until ``close`` (implements ``Links`` and each connection of it).

    Messages arrive in the next turn of the event loop. So no replica calls the state machine of another one directly. Acks are
    delivered at once.

    ``inbox``: prefix of the subjects on which the node gets answers, without the last dot.
    """

    are_up = has_room = True
    missed_by_all_nodes = False

    def __init__(self, bus: Bus, loop: asyncio.AbstractEventLoop, inbox: str) -> None:
        self.inbox = inbox
        self.max_payload = bus.max_payload
        self.send_lines, self.call_after_read = bus.send_lines, bus.call_after_read
        self.replication = self.ingest = self.reads = self.standby = self
        self.subscriptions: dict[BusSubscription, None] = {}
        self.is_closed = False
        self.counters: Counter[str] = Counter()
        self._bus = bus
        self._loop = loop
        self._unsent: list[tuple[bytes, bytes, bytes, bytes]] = []

    def close(self) -> None:
        """End all subscriptions and drop the unsent messages, as the death of the process does."""
        self.is_closed = True
        self._unsent.clear()
        for subscription in list(self.subscriptions):
            subscription.close()

    # ---- sending -----------------------------------------------------------------------------------------------------------
    def send(self, subject: str, pieces: Sequence[Buffer], reply: str = "", *, headers: bytes = b"") -> bool:
        """Send a message in the next turn of the event loop. Return False if the connection is closed or the message is too large."""
        payload = b"".join(pieces)
        if self.is_closed or len(headers) + len(payload) > self.max_payload:
            return False
        if not self._unsent:
            self._loop.call_soon(self._deliver)
        self._unsent.append((subject.encode(), reply.encode(), payload, headers))
        return True

    def _deliver(self) -> None:
        unsent, self._unsent = self._unsent, []
        for subject, reply, payload, headers in unsent:
            try:
                if not self._bus.publish(subject, reply, payload, headers) and reply:
                    self._bus.publish(reply, b"", b"", NOBODY)
            except Exception as error:
                self.sink_failed(subject, error)

    def hold(self) -> None:
        """Do nothing: messages wait for the next turn of the event loop in any case."""

    def release(self) -> None:
        """Do nothing: messages wait for the next turn of the event loop in any case."""

    # ---- receiving ---------------------------------------------------------------------------------------------------------
    def listen(
        self, subject: str, sink: Sink, queue: str = "", on_dropped: Callable[[int], None] | None = None,
        rejector: PublishRejector | None = None,
    ) -> BusSubscription:  # fmt: skip
        """Subscribe to ``subject``. This connection drops no messages and rejects none unread. So it ignores the last two arguments."""
        subscription = self._bus.listen(subject, sink, queue)
        if self.is_closed:
            subscription.close()
        else:
            self.subscriptions[subscription] = None
            subscription.on_close = self._forget
        return subscription

    def _forget(self, subscription: BusSubscription) -> None:
        self.subscriptions.pop(subscription, None)

    def subscribe(self, subject: str, sink: Sink, on_dropped: Callable[[int], None]) -> NodeStandbySubscription:
        return NodeStandbySubscription(self, self._loop, self.listen(subject, sink))

    def retire(self, listeners: Sequence[Subscription]) -> None:
        """Close ``listeners``. No message for them is in flight."""
        for listener in listeners:
            listener.close()

    def when_subscribed(self, on_subscribed: Callable[[], None]) -> None:
        """Call ``on_subscribed`` in the next turn of the event loop, because subscriptions take effect immediately."""
        self._loop.call_soon(on_subscribed)

    async def wait_until_processed(self, timeout_s: float) -> None:
        """Return after a turn of the event loop, because messages take no longer."""
        await asyncio.sleep(0)

    def sink_failed(self, subject: bytes, error: Exception) -> None:
        """Report an unexpected error in the processing of a message on ``subject`` to the event loop."""
        self.counters["not_taken"] += 1
        self._loop.call_exception_handler({"message": f"a message on {subject!r}", "exception": error})


class NodeStandbySubscription:
    """Subscription of a standby follower to the data subject of its partition."""

    is_denied = False

    def __init__(self, connection: NodeConnection, loop: asyncio.AbstractEventLoop, subscription: BusSubscription) -> None:
        self._subscription = subscription
        self._loop = loop
        self.call_after_read = connection.call_after_read

    def feed_to(self, sink: Sink, on_dropped: Callable[[int], None], lost: Callable[[], None]) -> None:
        self._subscription.sink = sink

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in the next turn of the event loop. A real connection would first wait for messages in flight."""
        self._loop.call_soon(callback)

    def leave(self) -> None:
        self._subscription.close()

    def close(self) -> None:
        self._subscription.close()


class NatsSession:
    """Server side of one client connection.

    ``say``: sends bytes to the client. ``hang_up``: closes the connection. Both are called until ``end``.
    """

    def __init__(
        self, bus: Bus, number: int, later: Callable[[Callable[[], None]], object], say: Callable[[bytes], None], hang_up: Any
    ) -> None:
        self._bus = bus
        self._later = later
        self._say = say
        self._hang_up = hang_up
        self._left = b""
        """Bytes of an incomplete message."""
        self._subscriptions: dict[bytes, BusSubscription] = {}
        self._remaining: dict[bytes, int] = {}
        """Subscription number -> messages until it ends, if the client has set a limit."""
        self._echo = True
        self._mine = False
        """True while this session publishes a message."""
        self._out: list[bytes] = []
        self.ended = False
        info = {
            "server_id": "MEMORY", "server_name": "liftpy in memory", "version": "2.10.0", "proto": 1, "host": "memory",
            "port": 4222, "headers": True, "max_payload": bus.max_payload, "client_id": number,
        }  # fmt: skip
        self._write(b"INFO %b\r\n" % json.dumps(info).encode())

    def end(self) -> None:
        """End the session and its subscriptions, after the client or the server has closed the connection."""
        if not self.ended:
            self.ended = True
            for subscription in self._subscriptions.values():
                subscription.close()
            self._subscriptions.clear()
            self._hang_up()

    # ---- from the client -------------------------------------------------------------------------------------------------
    def feed(self, data: bytes) -> None:
        if not self.ended:
            self._bus.together(partial(self._process_data, self._left + data if self._left else data))

    def _process_data(self, data: bytes) -> None:
        at = 0
        try:
            while not self.ended and (end := data.find(_END, at)) >= 0:
                _must_be_short(end - at)
                after = self._command(data, at, end)
                if after < 0:
                    break
                at = after
            else:
                _must_be_short(len(data) - at)
        except (ProtocolError, ValueError, IndexError) as error:
            self._write(b"-ERR '%b'\r\n" % (str(error) or "Parser Error").encode())
            self._flush()
            self.end()
        self._left = data[at:]

    def _command(self, data: bytes, at: int, end: int) -> int:
        """Process one protocol line: the bytes of ``data`` from ``at`` to ``end``.

        Return the index at which the next line begins. -1: the payload of this line has not arrived completely.
        """
        verb, *fields = data[at:end].split()
        match verb.upper():
            case b"PUB":
                return self._publish(data, end + 2, fields, 0)
            case b"HPUB":
                return self._publish(data, end + 2, fields[:-2] + fields[-1:], int(fields[-2]))
            case b"PING":
                self._write(b"PONG\r\n")
            case b"PONG":
                pass
            case b"SUB":
                self._subscribe(fields[0], fields[-1], fields[1] if len(fields) == 3 else b"")
            case b"UNSUB":
                self._unsubscribe(fields[0], int(fields[1]) if len(fields) > 1 else 0)
            case b"CONNECT":
                self._echo = bool(json.loads(data[at + len("CONNECT ") : end]).get("echo", True))
            case _:
                raise ProtocolError("Unknown Protocol Operation")
        return end + 2

    def _publish(self, data: bytes, begin: int, fields: list[bytes], header_bytes: int) -> int:
        """Process a publish of the client."""
        size_bytes = int(fields[-1])
        if size_bytes > self._bus.max_payload:
            raise ProtocolError("Maximum Payload Violation")
        stop = begin + size_bytes
        if len(data) < stop + 2:
            return -1
        reply = fields[1] if len(fields) == 3 else b""
        self._mine = True
        has_listeners = self._bus.publish(
            fields[0], reply, data[begin + header_bytes : stop], data[begin : begin + header_bytes]
        )
        self._mine = False
        if not has_listeners and reply:
            self._bus.publish(reply, b"", b"", NOBODY)
        return stop + 2

    def _subscribe(self, subject: bytes, number: bytes, queue: bytes) -> None:
        self._subscriptions[number] = self._bus.listen(subject, partial(self._deliver, number), queue)

    def _unsubscribe(self, number: bytes, after: int) -> None:
        if after and number in self._subscriptions:
            self._remaining[number] = after
        elif (subscription := self._subscriptions.pop(number, None)) is not None:
            subscription.close()

    # ---- to the client ---------------------------------------------------------------------------------------------------
    def _deliver(self, number: bytes, subject: bytes, reply: bytes, payload: bytes, block: bytes) -> None:
        if self._mine and not self._echo:
            return
        where = b"%b %b %b" % (subject, number, reply) if reply else b"%b %b" % (subject, number)
        if block:
            head = b"HMSG %b %d %d\r\n" % (where, len(block), len(block) + len(payload))
        else:
            head = b"MSG %b %d\r\n" % (where, len(payload))
        self._write(head, block, payload, _END)
        if number in self._remaining:
            self._remaining[number] -= 1
            if self._remaining[number] <= 0:
                del self._remaining[number]
                self._unsubscribe(number, 0)

    def _write(self, *pieces: bytes) -> None:
        if not self._out:
            self._later(self._flush)
        self._out.extend(pieces)

    def _flush(self) -> None:
        """Send all output that this turn of the event loop has produced, in one piece."""
        out, self._out = self._out, []
        if out and not self.ended:
            self._say(b"".join(out))


def _must_be_short(line_bytes: int) -> None:
    if line_bytes > _LONGEST_LINE_BYTES:
        raise ProtocolError("maximum control line exceeded")


class MemoryServer:
    """Accepts client connections, as nats-server does. ``home``: event loop of the cluster."""

    def __init__(self, bus: Bus, home: asyncio.AbstractEventLoop) -> None:
        self.bus = bus
        self.home = home
        self.is_up = True
        self._sessions: dict[int, NatsSession] = {}
        self._count = 0

    def open(self, say: Callable[[bytes], None], hang_up: Callable[[], None]) -> NatsSession:
        """Return the server side of a new connection, which runs on the event loop of the cluster.

        ``say``: sends bytes to the client. ``hang_up``: closes the connection.
        """
        self._count += 1
        number = self._count

        def gone() -> None:
            self._sessions.pop(number, None)
            hang_up()

        session = self._sessions[number] = NatsSession(self.bus, number, self.home.call_soon, say, gone)
        return session

    def cut_all(self) -> None:
        """Close all connections, as a restart of nats-server does. Clients reconnect."""
        for session in list(self._sessions.values()):
            session.end()


class MemoryTransport(Transport):
    """Replacement for the socket of nats-py. Create it in the event loop that uses it."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._reader: asyncio.StreamReader | None = None
        self._line: _MemoryConnection | None = None

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        """Open a new connection to the in-memory server. Raises ConnectionRefusedError if the cluster has stopped."""
        if not self._server.is_up:
            raise ConnectionRefusedError("the in-memory cluster is stopped")
        self._reader = asyncio.StreamReader()
        self._line = _MemoryConnection(self._server, self._reader)

    async def connect_tls(self, uri: Any, ssl_context: Any, buffer_size: int, connect_timeout: int) -> None:
        raise ConnectionRefusedError("an in-memory cluster does not support TLS")

    def write(self, payload: bytes) -> None:
        """Queue bytes for the server. ``drain`` waits while more than ``MOST_UNREAD_BYTES`` of them are unread."""
        if self._line is not None:
            self._line.write(payload)

    def writelines(self, payload: Any) -> None:
        self.write(b"".join(payload))

    async def read(self, buffer_size: int) -> bytes:
        assert self._reader is not None
        return await self._reader.read(buffer_size)

    async def readline(self) -> bytes:
        assert self._reader is not None
        return await self._reader.readline()

    async def drain(self) -> None:
        while self._line is not None and self._line.unread_bytes > MOST_UNREAD_BYTES:
            await asyncio.sleep(_PAUSE_S)

    async def wait_closed(self) -> None:
        """Return at once, because closing takes no time."""

    def close(self) -> None:
        if self._line is not None:
            self._line.close()

    def at_eof(self) -> bool:
        return self._reader is None or self._reader.at_eof()

    def __bool__(self) -> bool:
        """True, so that nats-py never replaces it with a TCP transport."""
        return True


class _MemoryConnection:
    """One connection: the queues of bytes between the event loop of the client and that of the cluster."""

    def __init__(self, server: MemoryServer, reader: asyncio.StreamReader) -> None:
        self._home = server.home
        self._server = server
        self._away = asyncio.get_running_loop()
        self._reader = reader
        self._chunks: deque[bytes] = deque()
        self._written_bytes = 0  # by the client's thread alone
        self._taken_bytes = 0  # by the cluster's thread alone
        self._session: NatsSession | None = None
        self._is_closed = False
        self._post(self._home, self._open)

    @property
    def unread_bytes(self) -> int:
        """Number of bytes that the client has written and the server has not read."""
        return 0 if self._is_closed else self._written_bytes - self._taken_bytes

    def write(self, data: bytes) -> None:
        if self._is_closed:
            return
        self._written_bytes += len(data)
        self._chunks.append(bytes(data))
        self._post(self._home, self._process_chunk)

    def close(self) -> None:
        """Close the connection as the client. The server still processes the bytes that were written before."""
        if not self._is_closed:
            self._post(self._home, self._end)
            self._hung_up()

    @staticmethod
    def _post(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            pass  # that side has ended: its loop is closed

    # ---- on the cluster's thread -----------------------------------------------------------------------------------------
    def _open(self) -> None:
        self._session = self._server.open(
            lambda data: self._post(self._away, self._data_arrived, data), lambda: self._post(self._away, self._hung_up)
        )

    def _process_chunk(self) -> None:
        assert self._session is not None
        if self._chunks:
            data = self._chunks.popleft()
            self._session.feed(data)
            self._taken_bytes += len(data)

    def _end(self) -> None:
        assert self._session is not None
        self._session.end()

    # ---- on the client's thread ------------------------------------------------------------------------------------------
    def _data_arrived(self, data: bytes) -> None:
        if not self._is_closed:
            self._reader.feed_data(data)

    def _hung_up(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._reader.feed_eof()
