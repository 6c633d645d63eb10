"""One NATS data connection. nats-py does handshake, credentials and reconnects, this module sends and receives data.

Publishing, subscribing and receiving are synchronous. Data is sent in few writes per turn of the event loop
(``connection.py``). Only this module and the parsers use private names of nats-py, and ``check_nats_py`` refuses
to run without them.

Limits: at most ``send_buffer_bytes`` wait to be sent per connection. Beyond, and while disconnected, replication
traffic is dropped and counted (the protocol repeats it). Acks are kept up to ``_KEPT_BYTES``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from liftpy.core.publish.acks import AckResendBuffer
from liftpy.core.publish.ports import Refuser
from liftpy.core.replication.role import all_have_lost_it
from liftpy.core.wire.subjects import Allows, Subjects, reply_to
from liftpy.errors import ConfigError
from liftpy.nats.connection import Receiver, receive
from liftpy.nats.parser import Denied, StrictConnection
from liftpy.nats.urls import shown, shown_address
from sidecar.runtime import clock
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import spawn, unexpected
from sidecar.transport.credentials import Keys
from sidecar.transport.parser import Sink, SinkParser

logger = logging.getLogger("liftpy.nats")

SEND_BUFFER_BYTES = 64 * 1024 * 1024
_KEPT_BYTES = 2 * 1024 * 1024
_LEFT_BYTES = 256 * 1024
"""Maximum number of bytes to receive while the reading task is busy. Beyond it, the socket is not read."""
_CONNECT_TIMEOUT_S = 5
_RECONNECT_WAIT_S = 0.1
_RETIRE_TIMEOUT_S = 1.0
_LONGEST_HEARING_S = 16.0
_PING_INTERVAL_S = 2
_SAY_EVERY_S = 1.0
_SHOWN_BYTES = 200
_MOST_TOLD = 8
_PRIVATE = (
    "_pending", "_pending_data_size", "_flush_queue", "_subs", "_sid", "_ps", "_status", "_flusher_task", "_transport",
    "_server_info",
)  # fmt: skip


def check_nats_py() -> None:
    """Raise ConfigError if this nats-py does not have the private parts that the data path uses."""
    probe = Client()
    missing = [name for name in _PRIVATE if not hasattr(probe, name)]
    missing += [name for name in ("_process_err", "_process_op_err", "_read_loop", "_remove_sub") if not hasattr(Client, name)]
    if missing:
        raise ConfigError(f"The installed nats-py lacks {', '.join(missing)}. Install nats-py>=2.12,<3.")


class Problems:
    """Problems of a connection. ``told``: reason why it cannot reconnect, None if it is connected or never was."""

    def __init__(self) -> None:
        self.last = ""
        self.told: set[str] | None = None

    def is_news(self) -> bool:
        """Return whether to log the last problem: each is logged once, and only a few until the reconnect."""
        if self.told is None or self.last in self.told or len(self.told) >= _MOST_TOLD:
            return False
        self.told.add(self.last)
        return True


class Listener:
    """A subscription whose messages go to a sink. ``close`` may be called twice and while disconnected."""

    def __init__(self, connection: BusConnection, sid: int) -> None:
        self._connection = connection
        self._sid = sid

    def close(self) -> None:
        """Stop listening; messages that are on their way are dropped."""
        self._connection._forget(self._sid)

    def feed_to(self, sink: Sink, given_up: Callable[[int], None]) -> None:
        """Deliver messages to another sink from now on."""
        self._connection.redirect(self._sid, sink, given_up)

    def leave(self) -> None:
        """Unsubscribe, but accept messages on their way until ``close``. After ``settled`` there are none."""
        self._connection._unsubscribe(self._sid)


class BusConnection(StrictConnection):
    """nats-py's client with a synchronous way in and out. Make it with ``open_bus``.

    ``errors``: kind -> count of nats-py's asynchronous errors, disconnects, dropped sends, messages that were not taken.
    """

    def __init__(self, name: str = "", send_buffer_bytes: int = 0, errors: Counter[str] | None = None) -> None:
        super().__init__(errors)
        self.name = name
        """Purpose of the connection, for logs and status."""
        self._send_buffer_bytes = send_buffer_bytes or SEND_BUFFER_BYTES
        self._sinks: dict[bytes, Sink] = {}
        self._ps = self._parser = SinkParser(self, self._sinks, self.errors)
        self._receiver: Receiver | None = None
        """Receiver of the current connection. None: before the handshake, and if only nats-py reads and writes."""
        self._outlet: Outlet | None = None
        """Writer of the current connection. None: as for ``_receiver``."""
        self._taking = False
        """A read is being parsed, in the callback that brought it."""
        self._behind: list[Callable[[], None]] = []
        """Callbacks for the time when that is done."""
        self._on_reconnect: list[Callable[[], None]] = []
        self._on_change: list[Callable[[bool], None]] = []
        self._leaving: list[Listener] = []
        self._retiring: asyncio.Task[None] | None = None
        self._unheard: list[Callable[[], None]] = []
        self._hearing: asyncio.Task[None] | None = None
        self._failing = False
        """A message could not be taken, and it was logged within the last second."""
        self._problems = Problems()
        self._unsure = AckResendBuffer()
        """Answers to publishers."""
        self._lost_ns = 0
        self._left_server = ""
        """The id of the server that was lost last."""
        self.all_have_lost_it = False
        """True if the last reconnect shows that no node received the messages published before it."""
        self.inbox = ""
        """Prefix of the subjects on which this connection gets answers, without the last dot. It cannot be guessed. Set when
        the connection opens.
        """

    # ---- out ----------------------------------------------------------------------------------------------------------
    def send(
        self, subject: str, pieces: Sequence[Buffer], reply: str = "", *, keep: bool = False, headers: bytes = b""
    ) -> bool:
        """Publish the concatenation of ``pieces`` without copying it, with the header block ``headers`` if there is one.

        Return False (counted) if it can't be sent now. ``keep``: while disconnected, keep it for the next connection, if
        there is room (acks). The pieces must not change until they are sent. ``subject`` must be checked, because it is
        written as it is.
        """
        size_bytes = len(headers) + sum(map(len, pieces))
        connected = self._is_up
        if self.unsent_bytes + size_bytes > (self._send_buffer_bytes if connected else _KEPT_BYTES if keep else 0):
            self.errors["send buffer full" if connected else "dropped while disconnected"] += 1
            return False
        if size_bytes > self._max_payload:
            self.errors["larger than max_payload"] += 1
            return False
        if headers:
            self._write(
                (f"HPUB {subject} {reply} {len(headers)} {size_bytes}\r\n".encode(), headers, *pieces, b"\r\n"), size_bytes
            )
        else:
            self._write((f"PUB {subject} {reply} {size_bytes}\r\n".encode(), *pieces, b"\r\n"), size_bytes)
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += size_bytes
        return True

    def send_lines(self, lines: Sequence[bytes]) -> None:
        """Write complete protocol lines (PUB with payload).

        They are kept while disconnected, and recent ones are written again after a reconnect (``liftpy/core/publish/acks.py``).
        """
        joined = b"".join(lines)
        size_bytes = len(joined)
        if self.unsent_bytes + size_bytes > (self._send_buffer_bytes if self._is_up else _KEPT_BYTES):
            self.errors["acks dropped"] += len(lines)
            return
        if self._is_up:
            self._unsure.note(joined, clock.now_ns())  # what is kept while disconnected is sent by the next connection
        self._write((joined,), size_bytes)
        self.stats["out_msgs"] += len(lines)
        self.stats["out_bytes"] += size_bytes

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait to be sent, here and in asyncio's buffer."""
        receiver, outlet = self._receiver, self._outlet
        if receiver is None or outlet is None:
            return self._pending_data_size
        return self._pending_data_size + outlet.waiting_bytes + receiver.transport.get_write_buffer_size()

    @property
    def has_room(self) -> bool:
        """True if one more message can be sent, however large."""
        return self._is_up and self.unsent_bytes + self._max_payload <= self._send_buffer_bytes

    @property
    def _is_up(self) -> bool:
        receiver = self._receiver
        return self._status == Client.CONNECTED and (receiver is None or not receiver.transport.is_closing())

    def _write(self, pieces: Sequence[Buffer], size_bytes: int) -> None:
        """Write to the transport, after data that waits for nats-py's flusher."""
        outlet = self._outlet
        if outlet is not None and not self._pending and self._is_up:
            outlet.write(pieces, size_bytes)
            return
        self._let_go()
        self._pending.extend(pieces)  # type: ignore[arg-type]  # nats-py joins them, whatever they are
        self._pending_data_size += size_bytes + 1
        self._kick()

    def hold(self) -> None:
        """Collect the following messages until ``release`` in this turn of the loop, and write them together."""
        if self._outlet is not None:
            self._outlet.hold()

    def release(self) -> None:
        """End the group of writes."""
        if self._outlet is not None:
            self._outlet.release()

    def _kick(self) -> None:
        if self._is_up and self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    # ---- in -----------------------------------------------------------------------------------------------------------
    def listen(
        self, subject: str, sink: Sink, queue: str = "", given_up: Callable[[int], None] | None = None,
        refuser: Refuser | None = None,
    ) -> Listener:  # fmt: skip
        """Subscribe.

        ``sink`` gets each message as it is read from the socket. nats-py renews it at each reconnect. ``given_up`` gets the
        number of dropped messages.
        """
        self._sid += 1
        sid = self._sid
        self._subs[sid] = Subscription(self, sid, subject, queue=queue)
        self._sinks[b"%d" % sid] = sink
        self._parser.expect(sid, subject)
        if self._status == Client.CONNECTED:
            self._write((f"SUB {subject} {queue} {sid}\r\n".encode(),), 0)
        return Listener(self, sid)

    def redirect(self, sid: int, sink: Sink, given_up: Callable[[int], None]) -> None:
        """Deliver the messages of a subscription to another sink, if it still exists."""
        if b"%d" % sid in self._sinks:
            self._sinks[b"%d" % sid] = sink

    def _forget(self, sid: int) -> None:
        self._parser.forget(sid)
        if self._sinks.pop(b"%d" % sid, None) is not None:
            self._unsubscribe(sid)

    def _unsubscribe(self, sid: int) -> None:
        if self._subs.pop(sid, None) is not None and self._status == Client.CONNECTED:
            self._write((f"UNSUB {sid} \r\n".encode(),), 0)

    async def _read_loop(self) -> None:
        """Read the data that ``_take`` leaves."""
        self._receiver = receiver = await receive(self, self._take, _LEFT_BYTES)
        self._outlet = None if receiver is None else Outlet(receiver.transport, asyncio.get_running_loop())
        try:
            await super()._read_loop()
        finally:
            if receiver is not None:
                receiver.stop()
            if self._receiver is receiver:
                self._receiver = self._outlet = None

    async def _read(self) -> bytes:
        return await (self._receiver.read() if self._receiver is not None else super()._read())

    def _take(self, data: bytes) -> bytes | None:
        """Process arrived data, and return the rest for the reading task (``receiving.Take``)."""
        if self.is_closed or self.is_reconnecting:
            return None  # it belongs to a connection that is given up
        self._pings_outstanding = 0
        self._taking = True
        try:
            is_done = self._parser.feed(data)
        finally:
            self._taking = False
            behind, self._behind = self._behind, []
            for callback in behind:
                _call(callback)
            self._let_go()
        return None if is_done else b""

    def _let_go(self) -> None:
        if self._outlet is not None:
            self._outlet.let_go()

    def behind_read(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after the last message of this read, so that messages that arrive together are processed together."""
        if self._taking:
            self._behind.append(callback)
        else:
            asyncio.get_running_loop().call_soon(callback)

    def sink_failed(self, subject: bytes, error: Exception) -> None:
        """Log, count and drop a message that could not be processed."""
        self.errors["messages not taken"] += 1
        if not self._failing:  # a bug; a sender that causes it once can do so a million times
            self._failing = True
            logger.error("a message on %r can't be taken: %r", subject[:_SHOWN_BYTES], error, exc_info=error)
            asyncio.get_running_loop().call_later(_SAY_EVERY_S, self._may_say)

    def _may_say(self) -> None:
        self._failing = False

    def retire(self, listeners: Sequence[Listener]) -> None:
        """Unsubscribe, and close when no message is in flight any more. Until then the sinks are called."""
        for listener in listeners:
            listener.leave()
        self._leaving.extend(listeners)
        if self._leaving and (self._retiring is None or self._retiring.done()):
            self._retiring = spawn(self._retire(), "leaving subscriptions")

    async def _retire(self) -> None:
        """Unsubscribe all leaving listeners with two round trips."""
        while self._leaving:
            leaving, self._leaving = self._leaving, []
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                await self.settled(_RETIRE_TIMEOUT_S)
            for listener in leaving:
                listener.close()

    def when_heard(self, heard: Callable[[], None]) -> None:
        """Call ``heard`` when the server has processed everything sent so far, such as subscriptions.

        Several callers share a round trip.
        """
        self._unheard.append(heard)
        if self._hearing is None or self._hearing.done():
            self._hearing = spawn(self._hear(), "subscriptions being confirmed")

    async def _hear(self) -> None:
        wait_s = _RETIRE_TIMEOUT_S
        while self._unheard and not self.is_closed:
            asking, self._unheard = self._unheard, []
            try:
                await self.settled(wait_s)
            except (nats.errors.Error, TimeoutError, OSError):
                wait_s = min(wait_s * 2, _LONGEST_HEARING_S)  # the answer may wait behind a burst that is read before it
                self._unheard = asking + self._unheard
                await asyncio.sleep(_RECONNECT_WAIT_S)
                continue
            for heard in asking:
                heard()

    async def settled(self, timeout_s: float) -> None:
        """Wait until the server has processed everything sent, and its earlier messages have arrived. Raises as ``flush``."""
        self._let_go()
        for _ in range(2):  # nats-py's PING overtakes what waits to be sent; the second one can't
            await self.flush(timeout_s)  # type: ignore[arg-type]  # nats-py says int, and waits for any number

    # ---- life ---------------------------------------------------------------------------------------------------------
    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after each reconnect."""
        self._on_reconnect.append(callback)

    def on_denial(self, callback: Denied) -> None:
        """Call ``callback`` when the server denies a publish or a subscription."""
        self._parser.denials.append(callback)

    @property
    def last_problem(self) -> str:
        """Last problem in words, '' for none."""
        return self._problems.last

    @property
    def asks_who_comes(self) -> bool:
        """True if the server requires credentials. Otherwise everything is permitted."""
        return bool(self._server_info.get("auth_required"))

    def on_change(self, callback: Callable[[bool], None]) -> None:
        """Call ``callback`` with the state of the connection after each loss and reconnect."""
        self._on_change.append(callback)

    async def stop(self) -> None:
        """Close the connection."""
        self._let_go()
        await self.close()

    async def _process_op_err(self, e: Exception) -> None:
        """Log the reason before nats-py reconnects."""
        self._problems.last = str(e) or type(e).__name__
        await super()._process_op_err(e)

    async def _count_error(self, error: Exception) -> None:
        self.errors[type(error).__name__] += 1
        self._problems.last = str(error) or type(error).__name__
        logger.debug("NATS: %r", error)
        if self._problems.is_news():
            logger.warning("cannot reconnect to NATS connection=%s: %s; retrying", self.name, self.last_problem)

    async def _disconnected(self) -> None:
        self.errors["disconnected"] += 1
        self._problems.told = {self.last_problem}
        self._left_server, self._lost_ns = str(self._server_info.get("server_id", "")), clock.now_ns()
        if not self.is_closed:
            logger.warning("NATS connection for %s lost (%s); reconnecting", self.name, self.last_problem)
            self._tell_all([partial(changed, False) for changed in self._on_change])

    async def _reconnected(self) -> None:
        self._problems.told = None
        where = shown_address(self.connected_url) or "?"
        logger.info("NATS connection for %s is back, at %s", self.name, where)
        server = str(self._server_info.get("server_id", ""))
        if again := self._unsure.again(self._lost_ns):
            self._write((again,), len(again))
        self.all_have_lost_it = all_have_lost_it(len(self.servers), self._left_server, server)
        self._tell_all([*self._on_reconnect, *(partial(changed, True) for changed in self._on_change)])

    def _tell_all(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Call all callbacks, even if one raises, which nats-py would swallow."""
        for callback in callbacks:
            try:
                callback()
            except Exception as error:
                unexpected(f"what follows the NATS connection for {self.name}", error)


class Sends(Protocol):
    """A connection that sends."""

    def send(self, subject: str, pieces: Sequence[Buffer], reply: str = "", *, headers: bytes = b"") -> bool:
        """Send a message, as ``BusConnection.send`` does."""


def send_answer(
    bus: Sends,
    rules: Sequence[Allows],
    counters: Counter[str],
    reply: bytes | str,
    pieces: Sequence[Buffer],
    *,
    headers: bytes = b"",
    under: str = "",
) -> bool:
    """Answer a request: send ``pieces`` to its reply subject, if that is an inbox [A5].

    Args:
        bus: The connection.
        rules: Rules for inboxes that may be answered.
        counters: Counters of rejected reply subjects.
        reply: The reply subject of the request, as received.
        pieces: The answer, in pieces.
        headers: The header block of the answer.
        under: Required beginning of the reply subject, if only the inbox of one node may be answered.

    Returns:
        False if nothing was sent.
    """
    subject = reply_to(reply, rules, counters, under)
    if subject is None:
        return False
    return bus.send(subject, pieces, headers=headers) if headers else bus.send(subject, pieces)


def _call(callback: Callable[[], None]) -> None:
    """Call ``callback`` as the event loop does: its error is logged and affects nothing else."""
    try:
        callback()
    except Exception as error:
        context = {"message": f"{callback} behind a read has failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


Connection = TypeVar("Connection", bound=BusConnection)


async def open_bus(settings: NodeSettings, make: Callable[[], Connection], keys: Keys | None = None) -> Connection:
    """Open a connection that reconnects forever, also at the start, until canceled. ``keys``: None: those of ``settings``."""
    keys = keys or Keys(settings.credentials)
    check_nats_py()
    announced = False
    inbox = Subjects(settings.namespace).inbox(settings.node_id)
    while True:
        connection = make()
        connection.inbox = f"{inbox}.{secrets.token_hex(11)}"
        options: dict[str, Any] = (credentials := keys.credentials).nats_options()
        try:
            await connection.connect(
                servers=list(settings.nats),
                name=f"liftpy-{settings.node_id}-{connection.name}",
                error_cb=connection._count_error,
                disconnected_cb=connection._disconnected,
                reconnected_cb=connection._reconnected,
                connect_timeout=_CONNECT_TIMEOUT_S,
                max_reconnect_attempts=1,
                reconnect_time_wait=_RECONNECT_WAIT_S,
                ping_interval=_PING_INTERVAL_S,
                max_outstanding_pings=2,
                inbox_prefix=inbox.encode(),
                **options,
            )
            connection.options["max_reconnect_attempts"] = -1
            keys.add(connection, credentials)
            return connection
        except (OSError, TimeoutError, nats.errors.Error) as error:
            with contextlib.suppress(Exception):
                await connection.stop()
            if not announced:
                why = connection.last_problem or error
                logger.warning("cannot connect to NATS at %s: %s; retrying", shown(settings.nats), why)
                announced = True
            await asyncio.sleep(_RECONNECT_WAIT_S)


# ``Outlet``: combines the messages of one turn of the event loop into few writes.
#
# The first AT_ONCE messages of a turn are written at once. Further ones wait until the current read is processed, until
# TOGETHER_BYTES are collected, or until the turn ends. Callers that know that more follows use ``hold`` and ``release``.


TOGETHER_BYTES = 16 * 1024
"""Maximum size of data that waits to be written together, in bytes. A larger message is written at once, after the earlier
data.
"""

AT_ONCE = 8
"""Number of writes per turn that belong to the way of a record: answers to followers, an ack, and what follows."""

Buffer = bytes | bytearray | memoryview


class Outlet:
    """Combines writes for one transport. At its end, waiting data is lost with the transport's buffer."""

    def __init__(self, transport: asyncio.WriteTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []
        self.waiting_bytes = 0
        self._written = 0
        """Writes of this turn of the loop that left at once."""
        self._held = False
        self._ends = False
        """The end of this turn is waited for."""

    def write(self, pieces: Sequence[Buffer], size_bytes: int) -> None:
        """Send ``pieces`` of together ``size_bytes``. Pieces that wait are copied."""
        if not self._ends:
            self._ends = True
            self._loop.call_soon(self._turn_ends)
        if size_bytes >= TOGETHER_BYTES:
            self.let_go()
            self._written += 1
            self._transport.writelines(pieces)
        elif self._written < AT_ONCE and not self._held:
            self._written += 1
            self._transport.writelines(pieces)
        else:
            message = b"".join(pieces)
            self._waiting.append(message)
            self.waiting_bytes += len(message)
            if self.waiting_bytes >= TOGETHER_BYTES:
                self.let_go()

    def hold(self) -> None:
        """Delay writes until ``release`` in this turn of the loop."""
        self._held = True

    def release(self) -> None:
        """Send the delayed writes as one."""
        self._held = False
        if self._waiting and self._written < AT_ONCE:
            self._written += 1
            self.let_go()

    def let_go(self) -> None:
        """Write the waiting data."""
        if not self._waiting:
            return
        waiting, self._waiting, self.waiting_bytes = self._waiting, [], 0
        if not self._transport.is_closing():
            self._transport.write(b"".join(waiting))

    def _turn_ends(self) -> None:
        self._written, self._held, self._ends = 0, False, False
        self.let_go()
