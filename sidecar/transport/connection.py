"""One NATS data connection. nats-py does handshake, credentials and reconnects, this module sends and receives data.

Publishing, subscribing and receiving are synchronous. ``WriteCoalescer`` sends data in few writes per turn of the event loop. The
module uses private names of nats-py. ``check_nats_py`` stops the node if nats-py does not have them.

Limits: at most ``send_buffer_bytes`` wait to be sent per connection. Above this limit, and while disconnected, replication
traffic is dropped and counted (the protocol repeats it). Acks are kept up to ``_ACK_BUFFER_BYTES``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import Client

from liftpy.config import NS_PER_S
from liftpy.core.base.rate_limits import LogRateLimit
from liftpy.core.publish.acks import AckResendBuffer
from liftpy.core.publish.ports import PublishRejector, Subscription
from liftpy.core.replication.lease import missed_by_all_nodes
from liftpy.core.wire.subjects import Allows, Subjects, reply_to
from liftpy.errors import ConfigError
from liftpy.nats.cancellation import end_tasks, with_cancellation
from liftpy.nats.connection import Receiver, StrictConnection
from liftpy.nats.parser import Denied
from liftpy.nats.reconnect_backoff import ReconnectBackoff
from liftpy.nats.urls import shown_address, without_secrets
from sidecar.runtime import clock
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import report_failure, spawn
from sidecar.transport.credentials import Keys
from sidecar.transport.parser import Sink, SinkParser
from sidecar.transport.ports import Buffer, Bus

logger = logging.getLogger("liftpy.nats")

SEND_BUFFER_BYTES = 64 * 1024 * 1024
_ACK_BUFFER_BYTES = 2 * 1024 * 1024
_UNREAD_BYTES = 256 * 1024
"""Maximum number of bytes to receive while the reading task is busy. Above it, the socket is not read."""
_CONNECT_TIMEOUT_S = 5
_RECONNECT_WAIT_S = 0.1
_RETIRE_TIMEOUT_S = 1.0
_MAX_CONFIRM_WAIT_S = 16.0
_PING_INTERVAL_S = 2
_LOG_PERIOD_S = 1.0
_SHOWN_BYTES = 200
_MAX_LOGGED_PROBLEMS = 8
DENIED_RETRY_S = 10.0
"""Time in seconds after which a denied subscription is sent again."""
_PRIVATE = (
    "_pending", "_pending_data_size", "_flush_queue", "_subs", "_sid", "_ps", "_status", "_flusher_task", "_transport",
    "_server_info",
)  # fmt: skip
TOGETHER_BYTES = 16 * 1024
"""Maximum size of messages that are written together, in bytes.

A larger message is written at once, after the waiting ones.
"""
AT_ONCE = 8
"""Number of writes per turn that are not delayed. They are on the path of a record: answers to followers, then an ack."""


def check_nats_py() -> None:
    """Check that nats-py has the private names that the data path uses. Raises ConfigError if not."""
    probe = Client()
    missing = [name for name in _PRIVATE if not hasattr(probe, name)]
    missing += [name for name in ("_process_err", "_process_op_err", "_read_loop", "_remove_sub") if not hasattr(Client, name)]
    if missing:
        raise ConfigError(f"The installed nats-py lacks {', '.join(missing)}. Install nats-py>=2.12,<3.")


class SinkSubscription:
    """Subscription whose messages go to a sink. It has the attributes that nats-py needs to renew and to end a subscription.

    nats-py's own class also has a queue of messages, which needs 3 KB. A node has three subscriptions per partition.
    """

    __slots__ = ("_queue", "_subject")

    _max_msgs = 0
    _wait_for_msgs_task = _message_iterator = _pending_next_msgs_calls = None

    def __init__(self, subject: str, queue: str) -> None:
        self._subject = subject
        self._queue = queue

    @property
    def subject(self) -> str:
        return self._subject

    @property
    def queue(self) -> str:
        """Queue group. '': none."""
        return self._queue


def _sub_line(sid: int, subscription: Any) -> bytes:
    """Return the protocol line that sends ``subscription``, of this class or of nats-py."""
    return f"SUB {subscription.subject} {subscription.queue} {sid}\r\n".encode()


class Problems:
    """Problems of a connection, for the log.

    ``last``: text of the last problem. ``logged``: problems logged since the connection was lost. None: it is connected, or was
    never connected.
    """

    def __init__(self) -> None:
        self.last = ""
        self.logged: set[str] | None = None

    def should_log(self) -> bool:
        """Return whether to log the last problem. Each one is logged once, and at most ``_MAX_LOGGED_PROBLEMS`` until the reconnect."""
        if self.logged is None or self.last in self.logged or len(self.logged) >= _MAX_LOGGED_PROBLEMS:
            return False
        self.logged.add(self.last)
        return True


class Listener:
    """A subscription that passes its messages to a sink (a callback). ``liftpy.core.publish.ports`` describes its methods.

    ``close`` may be called twice and while disconnected. After ``leave`` and ``BusConnection.wait_until_processed``, no more
    messages arrive.
    """

    __slots__ = ("_connection", "_sid")

    def __init__(self, connection: BusConnection, sid: int) -> None:
        self._connection = connection
        self._sid = sid

    def close(self) -> None:
        self._connection._forget(self._sid)

    def feed_to(self, sink: Sink, on_dropped: Callable[[int], None]) -> None:
        """Pass the messages to another ``sink``. ``on_dropped``: called with the number of messages that are dropped unread."""
        self._connection.redirect(self._sid, sink, on_dropped)

    def leave(self) -> None:
        self._connection._unsubscribe(self._sid)


class BusConnection(StrictConnection):
    """Connection of nats-py with synchronous methods to send and receive. ``open_bus`` makes it.

    ``errors``: kind -> number of nats-py's asynchronous errors, disconnects, dropped sends and rejected messages.
    """

    _max_unread_bytes = _UNREAD_BYTES
    _parser_type: type[SinkParser] = SinkParser

    def __init__(self, name: str = "", send_buffer_bytes: int = 0, errors: Counter[str] | None = None) -> None:
        super().__init__(errors)
        self.name = name
        """Purpose of the connection, for logs and status."""
        self._send_buffer_bytes = send_buffer_bytes or SEND_BUFFER_BYTES
        self._sinks: dict[bytes, Sink] = {}
        self._ps = self._parser = self._parser_type(self, self._sinks, self.errors)
        self._coalescer: WriteCoalescer | None = None
        """Writer of the current connection. None: there is no ``_receiver``."""
        self._is_parsing = False
        """True while the data of one read is parsed, in the callback of the read."""
        self._after_read: list[Callable[[], None]] = []
        """Callbacks to run after the data of one read is parsed."""
        self._on_change: list[Callable[[bool], None]] = []
        self._retiring_listeners: list[Subscription] = []
        self._retire_task: asyncio.Task[None] | None = None
        self._subscribe_callbacks: list[Callable[[], None]] = []
        self._confirm_task: asyncio.Task[None] | None = None
        self._failures = LogRateLimit(_LOG_PERIOD_S)
        self._problems = Problems()
        self._denied_subjects: set[str] = set()
        """Subjects whose subscriptions the server has denied since they were sent last."""
        self._subscribe_timer: asyncio.TimerHandle | None = None
        """Timer that sends denied subscriptions again. None: there are none."""
        self._parser.denials.append(self._note_denial)
        self._recent_acks = AckResendBuffer()
        """Recent acks, which are sent again after a reconnect."""
        self._lost_ns = 0
        self._last_server_id = ""
        """Id of the server of the last lost connection."""
        self._last_server_is_clustered = False
        self.missed_by_all_nodes = False
        """True if the last reconnect shows that no node received the messages published before it."""
        self.inbox = ""
        """Prefix of the subjects on which this connection gets answers, without the last dot. Others cannot guess it.

        It is set when the connection opens.
        """

    # ---- sending ------------------------------------------------------------------------------------------------------
    def send(self, subject: str, pieces: Sequence[Buffer], reply: str = "", *, headers: bytes = b"") -> bool:
        """Send a message whose payload is the concatenation of ``pieces``, without copying it. Return False if that is impossible now.

        The failure is counted.

        Args:
            subject: Subject. The caller has checked it, because it is written unchanged.
            pieces: Payload. The pieces must not change until they are sent.
            reply: Reply subject. '': none.
            headers: Header block. b"": none.
        """
        size_bytes = len(headers) + sum(map(len, pieces))
        if not self._is_up:
            self.errors["dropped_disconnected"] += 1
            return False
        if self.unsent_bytes + size_bytes > self._send_buffer_bytes:
            self.errors["send_buffer_full"] += 1
            return False
        if size_bytes > self._max_payload:
            self.errors["too_large"] += 1
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
        """Write complete protocol lines (PUB with payload), which contain acks. If the buffer is full, drop and count them.

        They are kept while disconnected. After a reconnect, recent ones are written again (``liftpy/core/publish/acks.py``).
        """
        joined = b"".join(lines)
        size_bytes = len(joined)
        if self.unsent_bytes + size_bytes > (self._send_buffer_bytes if self._is_up else _ACK_BUFFER_BYTES):
            self.errors["acks_dropped"] += len(lines)
            return
        if self._is_up:
            self._recent_acks.note(
                joined, clock.now_ns()
            )  # lines that are kept while disconnected are sent by the next connection
        self._write((joined,), size_bytes)
        self.stats["out_msgs"] += len(lines)
        self.stats["out_bytes"] += size_bytes

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that wait to be sent, here and in asyncio's buffer."""
        receiver, coalescer = self._receiver, self._coalescer
        if receiver is None or coalescer is None:
            return self._pending_data_size
        return self._pending_data_size + coalescer.waiting_bytes + receiver.transport.get_write_buffer_size()

    @property
    def has_room(self) -> bool:
        """True if the connection is up and its send buffer has room for a message of the maximum size."""
        return self._is_up and self.unsent_bytes + self._max_payload <= self._send_buffer_bytes

    @property
    def _is_up(self) -> bool:
        receiver = self._receiver
        return self._status == Client.CONNECTED and (receiver is None or not receiver.transport.is_closing())

    def _write(self, pieces: Sequence[Buffer], size_bytes: int) -> None:
        """Write ``pieces`` (``size_bytes`` in total) to the socket.

        While disconnected, or while nats-py has data to write, give them to nats-py.
        """
        coalescer = self._coalescer
        if coalescer is not None and not self._pending and self._is_up:
            coalescer.write(pieces, size_bytes)
            return
        self._flush_writes()
        self._pending.extend(pieces)  # type: ignore[arg-type]  # nats-py joins them, whatever they are
        self._pending_data_size += size_bytes + 1
        self._wake_flusher()

    def hold(self) -> None:
        """Collect the next messages. ``release`` writes them together, in the same turn of the event loop."""
        if self._coalescer is not None:
            self._coalescer.hold()

    def release(self) -> None:
        if self._coalescer is not None:
            self._coalescer.release()

    def _wake_flusher(self) -> None:
        if self._is_up and self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    # ---- receiving-----------------------------------------------------------------------------------------------------
    def listen(
        self, subject: str, sink: Sink, queue: str = "", on_dropped: Callable[[int], None] | None = None,
        rejector: PublishRejector | None = None,
    ) -> Listener:  # fmt: skip
        """Subscribe to ``subject``, wildcards allowed. nats-py renews the subscription at each reconnect.

        ``sink``: called with each message when it is processed. ``queue``: queue group, '': none. Only ``IngestConnection`` uses
        ``on_dropped``, with the number of messages that it drops unread, and ``rejector``, which rejects messages unread.
        """
        self._sid += 1
        sid = self._sid
        self._subs[sid] = SinkSubscription(subject, queue)  # type: ignore[assignment]
        self._sinks[b"%d" % sid] = sink
        self._parser.expect(sid, subject)
        if self._status == Client.CONNECTED:
            self._write((_sub_line(sid, self._subs[sid]),), 0)
        return Listener(self, sid)

    def redirect(self, sid: int, sink: Sink, on_dropped: Callable[[int], None]) -> None:
        """Pass the messages of the subscription ``sid`` to another ``sink``, if it still exists. ``on_dropped`` is not used here."""
        if b"%d" % sid in self._sinks:
            self._sinks[b"%d" % sid] = sink

    def _forget(self, sid: int) -> None:
        self._parser.forget(sid)
        self._sinks.pop(b"%d" % sid, None)
        self._unsubscribe(sid)

    def _unsubscribe(self, sid: int) -> None:
        if self._subs.pop(sid, None) is not None and self._status == Client.CONNECTED:
            self._write((f"UNSUB {sid} \r\n".encode(),), 0)

    def _use_receiver(self, receiver: Receiver | None) -> None:
        super()._use_receiver(receiver)
        self._coalescer = None if receiver is None else WriteCoalescer(receiver.transport, asyncio.get_running_loop())

    def _process_arrived(self, data: bytes) -> bytes | None:
        if self.is_closed or self.is_reconnecting:
            return None  # the data belongs to a closed connection
        self._pings_outstanding = 0
        self._is_parsing = True
        try:
            is_done = self._parser.feed(data)
        finally:
            self._is_parsing = False
            callbacks, self._after_read = self._after_read, []
            for callback in callbacks:
                _call(callback)
            self._flush_writes()
        return None if is_done else b""

    def _flush_writes(self) -> None:
        if self._coalescer is not None:
            self._coalescer.flush()

    def call_after_read(self, callback: Callable[[], None]) -> None:
        if self._is_parsing:
            self._after_read.append(callback)
        else:
            asyncio.get_running_loop().call_soon(callback)

    def sink_failed(self, subject: bytes, error: Exception) -> None:
        self.errors["not_taken"] += 1
        if self._failures.admit(clock.now_ns() / NS_PER_S) is not None:  # a sender can repeat such a message a million times
            logger.error(
                "message processing failed subject=%r error=%r: dropping the message",
                subject[:_SHOWN_BYTES],
                error,
                exc_info=error,
            )

    def retire(self, listeners: Sequence[Subscription]) -> None:
        """Unsubscribe ``listeners``. Close them when no message for them can arrive any more.

        Until then their sinks get messages.
        """
        for listener in listeners:
            listener.leave()
        self._retiring_listeners.extend(listeners)
        if self._retiring_listeners and (self._retire_task is None or self._retire_task.done()):
            self._retire_task = spawn(self._retire(), "closing subscriptions")

    async def _retire(self) -> None:
        """Close all subscriptions for which ``retire`` was called, after two round trips to the server."""
        while self._retiring_listeners:
            leaving, self._retiring_listeners = self._retiring_listeners, []
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                await self.wait_until_processed(_RETIRE_TIMEOUT_S)
            for listener in leaving:
                listener.close()

    def when_subscribed(self, on_subscribed: Callable[[], None]) -> None:
        self._subscribe_callbacks.append(on_subscribed)
        if self._confirm_task is None or self._confirm_task.done():
            self._confirm_task = spawn(self._wait_for_server(), "waiting for the server to confirm subscriptions")

    async def _wait_for_server(self) -> None:
        wait_s = _RETIRE_TIMEOUT_S
        while self._subscribe_callbacks and not self.is_closed:
            waiting, self._subscribe_callbacks = self._subscribe_callbacks, []
            try:
                await self.wait_until_processed(wait_s)
            except (nats.errors.Error, TimeoutError, OSError):
                wait_s = min(wait_s * 2, _MAX_CONFIRM_WAIT_S)  # the answer may be behind a burst of messages
                self._subscribe_callbacks = waiting + self._subscribe_callbacks
                await asyncio.sleep(_RECONNECT_WAIT_S)
                continue
            for on_subscribed in waiting:
                on_subscribed()

    async def wait_until_processed(self, timeout_s: float) -> None:
        """Wait until the server has processed all data sent so far, and the messages that it sent before have arrived.

        ``timeout_s``: time limit for each of two round trips. Raises the errors of ``flush``.
        """
        self._flush_writes()
        for _ in range(2):  # nats-py's PING overtakes unsent data. The second one cannot
            await self.flush(timeout_s)  # type: ignore[arg-type]  # nats-py says int, and waits for any number

    # ---- state --------------------------------------------------------------------------------------------------------
    def on_denial(self, callback: Denied) -> None:
        """Call ``callback`` each time the server denies a publish or a subscription because of missing permissions."""
        self._parser.denials.append(callback)

    def _note_denial(self, is_publish: bool, subject: str) -> None:
        """Send a denied subscription again later.

        The server ends a subscription if its permission is revoked, and does not restore it when the permission is granted again.
        """
        if not is_publish:
            self._denied_subjects.add(subject)
            if self._subscribe_timer is None:
                self._subscribe_timer = asyncio.get_running_loop().call_later(DENIED_RETRY_S, self._subscribe_again)

    def _subscribe_again(self) -> None:
        denied, self._denied_subjects, self._subscribe_timer = self._denied_subjects, set(), None
        lines = [_sub_line(sid, one) for sid, one in self._subs.items() if one.subject in denied]
        if lines and self._is_up:  # otherwise nats-py sends all subscriptions when it has reconnected
            self._write(lines, 0)

    @property
    def last_problem(self) -> str:
        return self._problems.last

    @property
    def requires_credentials(self) -> bool:
        """True if the server requires credentials. Otherwise every client has all permissions."""
        return bool(self._server_info.get("auth_required"))

    def on_change(self, callback: Callable[[bool], None]) -> None:
        """Call ``callback`` after each loss (False) and each reconnect (True) of the connection."""
        self._on_change.append(callback)

    async def stop(self) -> None:
        self._flush_writes()
        if self._subscribe_timer is not None:
            self._subscribe_timer.cancel()
        await end_tasks([self._retire_task, self._confirm_task])
        with contextlib.suppress(OSError, nats.errors.Error):  # nats-py cannot write unsent bytes to a lost connection
            await self.close()

    async def _process_op_err(self, e: Exception) -> None:
        """Log the error ``e`` that ended the connection, then let nats-py reconnect."""
        self._problems.last = str(e) or type(e).__name__
        await super()._process_op_err(e)

    async def _count_error(self, error: Exception) -> None:
        self.errors[type(error).__name__] += 1
        self._problems.last = str(error) or type(error).__name__
        logger.debug("NATS connection error=%r", error)
        if self._problems.should_log():
            logger.warning("cannot reconnect to NATS connection=%s reason=%s: retrying", self.name, self.last_problem)

    async def _disconnected(self) -> None:
        self.errors["disconnected"] += 1
        self._problems.logged = {self.last_problem}
        self._last_server_id, self._lost_ns = str(self._server_info.get("server_id", "")), clock.now_ns()
        self._last_server_is_clustered = "cluster" in self._server_info
        if not self.is_closed:
            logger.warning("NATS connection lost connection=%s reason=%s: reconnecting", self.name, self.last_problem)
            self._run_callbacks([partial(changed, False) for changed in self._on_change])

    async def _reconnected(self) -> None:
        self._problems.logged = None
        where = shown_address(self.connected_url) or "?"
        logger.info("NATS connection restored connection=%s server=%s", self.name, where)
        server = str(self._server_info.get("server_id", ""))
        if again := self._recent_acks.again(self._lost_ns):
            self._write((again,), len(again))
        is_clustered = self._last_server_is_clustered or "cluster" in self._server_info
        known_servers = len(self.servers) + is_clustered  # a cluster need not advertise its other servers
        self.missed_by_all_nodes = missed_by_all_nodes(known_servers, self._last_server_id, server)
        self._run_callbacks([partial(changed, True) for changed in self._on_change])

    def _run_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Call all ``callbacks``, even if one raises an error. nats-py would hide such an error, so it is logged."""
        for callback in callbacks:
            try:
                callback()
            except Exception as error:
                report_failure(f"what follows the NATS connection for {self.name}", error)


def send_answer(
    bus: Bus,
    rules: Sequence[Allows],
    counters: Counter[str],
    reply: bytes | str,
    pieces: Sequence[Buffer],
    *,
    headers: bytes = b"",
    under: str = "",
) -> bool:
    """Answer a request on its reply subject, if that is an inbox [A5].

    Args:
        bus: Connection that sends the answer.
        rules: Rules for inboxes that may get answers.
        counters: Counters of rejected reply subjects.
        reply: Reply subject of the request, as received.
        pieces: Answer, in pieces.
        headers: Header block of the answer.
        under: Required beginning of the reply subject, if only the inbox of one node may get the answer.

    Returns:
        False if nothing was sent.
    """
    subject = reply_to(reply, rules, counters, under)
    if subject is None:
        return False
    return bus.send(subject, pieces, headers=headers) if headers else bus.send(subject, pieces)


def _call(callback: Callable[[], None]) -> None:
    """Call ``callback``. If it raises an error, log the error and continue."""
    try:
        callback()
    except Exception as error:
        context = {"message": f"{callback} after a read has failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


Connection = TypeVar("Connection", bound=BusConnection)


async def open_bus(settings: NodeSettings, make: Callable[[], Connection], keys: Keys | None = None) -> Connection:
    """Open a connection that ``make`` creates, and return it. It reconnects forever.

    The first connect is retried until the caller is canceled. ``keys``: credentials. None: those of ``settings``. Raises
    ConfigError if the files of the credentials are invalid at the first try. Later, they may be half renewed.
    """
    keys = keys or Keys(settings.credentials)
    check_nats_py()
    problems = Problems()
    problems.logged = set()
    is_first, announced_files = True, False
    backoff = ReconnectBackoff()
    inbox = Subjects(settings.namespace).inbox(settings.node_id)
    while True:
        try:
            options: dict[str, Any] = (credentials := keys.credentials).nats_options()
        except ConfigError as error:
            if is_first:
                raise
            if not announced_files:
                logger.warning("cannot use the credentials reason=%s: retrying", error)
                announced_files = True
            await asyncio.sleep(_RECONNECT_WAIT_S)
            continue
        connection = make()
        connection.reconnect_backoff = backoff
        connection.inbox = f"{inbox}.{secrets.token_hex(11)}"
        try:
            connecting = connection.connect(
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
            await with_cancellation(connecting)
            connection.options["max_reconnect_attempts"] = -1
            keys.add(connection, credentials)
            return connection
        except (OSError, TimeoutError, nats.errors.Error) as error:
            await _stop_unopened(connection)
            is_first, problems.last = False, connection.last_problem or str(error) or type(error).__name__
            if problems.should_log():
                logger.warning(
                    "cannot connect to NATS servers=%s reason=%s: retrying", without_secrets(settings.nats), problems.last
                )
            await asyncio.sleep(max(_RECONNECT_WAIT_S, backoff.pause_s()))
        except BaseException:
            await _stop_unopened(connection)
            raise


async def _stop_unopened(connection: BusConnection) -> None:
    """Stop a connection whose ``connect`` has failed or was canceled."""
    with contextlib.suppress(Exception):
        await with_cancellation(connection.stop())


# ---- writing ---------------------------------------------------------------------------------------------------------


class WriteCoalescer:
    """Combines the writes to one transport of asyncio into few large ones.

    If the transport is lost, waiting data is lost with it. The first AT_ONCE messages of a turn of the event loop are written
    at once. Further ones wait until the current read is processed, until TOGETHER_BYTES are collected, or until the turn ends.
    Callers that send several messages use ``hold`` and ``release``.
    """

    def __init__(self, transport: asyncio.WriteTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []
        self.waiting_bytes = 0
        self._written = 0
        """Number of writes in this turn of the loop that were not delayed."""
        self._held = False
        self._is_turn_end_scheduled = False
        """True if a callback for the end of this turn is scheduled."""

    def write(self, pieces: Sequence[Buffer], size_bytes: int) -> None:
        """Write ``pieces`` (``size_bytes`` in total) now or at the end of this turn of the event loop. Pieces that wait are copied."""
        if not self._is_turn_end_scheduled:
            self._is_turn_end_scheduled = True
            self._loop.call_soon(self._turn_ends)
        if size_bytes >= TOGETHER_BYTES:
            self.flush()
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
                self.flush()

    def hold(self) -> None:
        """Delay small writes until ``release``, which the caller calls in the same turn of the event loop."""
        self._held = True

    def release(self) -> None:
        self._held = False
        if self._waiting and self._written < AT_ONCE:
            self._written += 1
            self.flush()

    def flush(self) -> None:
        """Write the waiting data to the transport. If the transport is closing, drop the data."""
        if not self._waiting:
            return
        waiting, self._waiting, self.waiting_bytes = self._waiting, [], 0
        if not self._transport.is_closing():
            self._transport.write(b"".join(waiting))

    def _turn_ends(self) -> None:
        self._written, self._held, self._is_turn_end_scheduled = 0, False, False
        self.flush()


async def unsubscribe(subscriptions: list[Any]) -> None:
    """End the NATS subscriptions. A subscription of a lost connection has already ended and is skipped."""
    for subscription in subscriptions:
        with contextlib.suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()
    subscriptions.clear()


class PublishQueue:
    """Publishes messages of the metadata group in order, without waiting. ``counters``: numbers of unsent messages, by reason.

    A message is dropped if the connection is lost or its buffer is full. It is never buffered over a reconnect. The session or
    the feed then detects the gap.
    """

    def __init__(self, connection: BusConnection) -> None:
        self.counters: Counter[str] = Counter()
        self._connection = connection

    def put(self, subject: str, payload: bytes) -> None:
        """Send ``payload`` to ``subject``, or drop and count it. The size of unsent messages is limited (``SEND_BUFFER_BYTES``)."""
        if not self._connection.is_connected:
            self.counters["not_sent_disconnected"] += 1
        elif not self._connection.send(subject, (payload,)):
            self.counters["not_sent_queue_full"] += 1
