"""``StrictConnection``: a connection of nats-py that rejects invalid data and reads the socket itself (``Receiver``).

A ``Receiver`` passes the bytes of a socket to the parser at once, in the callback of the event loop.

nats-py reads with asyncio streams. They store the bytes, wake a task and give it a copy. That costs a turn of the event
loop and two copies for each wake-up, a third of the cost of a reader with large answers. A Receiver replaces the stream
protocol under the same transport, after the handshake. It passes the bytes to ``take``. It keeps the bytes that ``take``
leaves (a command that needs an await), and those that arrive while the reading task is busy: at most ``bound_bytes``, plus
one read of the socket. Above this limit, it stops reading until the task has caught up.

All other events (the end of the connection, the limit for writing) go to the stream protocol, which nats-py uses for writing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import ssl
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, cast
from urllib.parse import unquote

from nats.aio.client import Client
from nats.aio.transport import Transport
from nats.errors import Error, FlushTimeoutError, ProtocolError, UnexpectedEOF

from liftpy.core.base.rate_limits import LogRateLimit
from liftpy.errors import ConfigError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.credentials import FILE_OPTIONS, Credentials
from liftpy.nats.parser import READ_BYTES, StrictParser
from liftpy.nats.reconnect_backoff import ReconnectBackoff
from liftpy.nats.urls import wants_tls

logger = logging.getLogger("liftpy.nats")

_MAX_UNREAD_BYTES = 2 * READ_BYTES
"""Maximum number of bytes to receive while the reading task is busy. Above it, the socket is not read."""
Take = Callable[[bytes], bytes | None]
"""Called with received bytes. It returns the bytes for the reading task. None: no work. b"": no bytes, but the task must run.
"""
_SUBJECT = re.compile(r"[^\x00-\x20\x7f]+").fullmatch
"""Subjects that cannot be mistaken for several fields or lines of the protocol."""
_TOO_MANY_SUBSCRIPTIONS = "maximum subscriptions exceeded"
_LOG_PERIOD_S = 1.0
_LOG_LINES = 4
"""Maximum number of log lines about rejections per ``_LOG_PERIOD_S``."""
_CONNECTED = Client.CONNECTED
_RENEWED = "The NATS credentials were reloaded. The client reconnects."
_CLOSED_S = 0.5
"""Maximum wait for the socket when a connection is closed, in seconds."""
_CLOSE_ROUNDS = 3
"""Number of times that a close ends the tasks of a connection. Ending a reconnect may leave the tasks of its new connection."""


class Receiver(asyncio.Protocol):
    """Receives the data of a connection and passes it to ``take``. ``receive`` makes it. Call ``stop`` at the end."""

    def __init__(self, transport: asyncio.Transport, take: Take, bound_bytes: int) -> None:
        self.transport = transport
        self._stream = cast(asyncio.Protocol, transport.get_protocol())
        self._take = take
        self._bound_bytes = bound_bytes
        self._unread: deque[bytes] = deque()
        """Bytes for the reading task, in order."""
        self._unread_bytes = 0
        self._paused = False
        self._reader: asyncio.Future[None] | None = None
        """Future that the reading task waits for. None: the task is busy, and new data must wait."""
        self._ended: Exception | None = None
        """Error that ended the data. None: more data may arrive."""
        self._stopped = False
        transport.set_protocol(self)

    @property
    def is_idle(self) -> bool:
        """True if the connection is open and no data waits for the reading task."""
        return not self._unread and self._ended is None and not self._stopped

    def data_received(self, data: bytes) -> None:
        if self._stopped or self._ended is not None:
            return
        left: bytes | None = data
        if self._reader is not None:
            try:
                left = self._take(data)
            except Exception as error:  # the reading task raises the error and reconnects
                self._end(error)
                return
        if left is not None:
            self._append_unread(left)

    def _append_unread(self, left: bytes) -> None:
        self._unread.append(left)
        self._unread_bytes += len(left)
        if self._unread_bytes > self._bound_bytes and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._wake()

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    def _end(self, error: Exception) -> None:
        if self._ended is None:
            self._ended = error
            self._wake()

    def eof_received(self) -> bool | None:
        self._end(UnexpectedEOF())
        stays_open = self._stream.eof_received()
        return (
            stays_open if self.transport.get_extra_info("ssl_object") is None else None
        )  # for TLS, asyncio closes both directions, otherwise it logs a warning

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or UnexpectedEOF())
        self._stream.connection_lost(error)

    def pause_writing(self) -> None:
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        self._stream.resume_writing()

    async def read(self) -> bytes:
        """Wait until ``take`` leaves data for the reading task, and return this data.

        Data that arrives later waits until the next call. After the last byte, the method raises the error that ended the data.
        """
        while not self._unread:
            if self._ended is not None:
                raise self._ended
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        data = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._unread_bytes = 0
        if self._paused:
            self._paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()
        return data

    def stop(self) -> None:
        """Stop reading. Data that still arrives is dropped."""
        self._stopped = True
        self._unread.clear()


async def receive(connection: Any, take: Take, bound_bytes: int) -> Receiver | None:
    """Replace the stream protocol of nats-py's ``connection`` by a Receiver, and return it. None: for a WebSocket.

    The Receiver also takes the data that the stream has not read yet. ``take``: called with received bytes.
    ``bound_bytes``: maximum size of data that waits for the reading task.
    """
    streams = connection._transport
    writer, reader = getattr(streams, "_io_writer", None), getattr(streams, "_io_reader", None)
    if writer is None or reader is None:
        return None
    receiver = Receiver(writer.transport, take, bound_bytes)
    if reader.at_eof():
        receiver._end(UnexpectedEOF())
    elif reader.exception() is not None:
        receiver._end(reader.exception())
    else:
        reader.feed_eof()  # so that the next protocol line does not wait
        if early := await reader.read():
            receiver._append_unread(early)
    return receiver


class StrictConnection(Client):
    """nats-py's client with the strict parser. It passes messages to subscriptions when data arrives.

    ``errors``: kind -> number of rejected messages. ``on_reconnected``: functions to call after each reconnect.
    """

    _max_unread_bytes = _MAX_UNREAD_BYTES
    _receiver: Receiver | None = None
    """Receiver of the current connection. None: before the handshake, or if nats-py itself reads."""

    def __init__(self, errors: Counter[str] | None = None) -> None:
        super().__init__()
        self.on_reconnected: list[Callable[[], None]] = []
        self.errors: Counter[str] = Counter() if errors is None else errors
        self._ps = StrictParser(self, self.errors)
        self._wants_tls = self._urls_want_tls = False
        self._made: Any = None
        """Stream of the connection whose handshake is complete. None: there is none."""
        self._renewals = 0
        """Number of changes of the credentials."""
        self.reconnect_backoff = ReconnectBackoff()
        self.credentials: Credentials | None = None
        """Credentials whose files are read again after a failed handshake. None: they are not read again."""
        self._content: Mapping[str, Any] = {}
        """Content of the files that this connection uses now, as in ``Credentials.nats_options``."""
        self._earlier_content: Mapping[str, Any] | None = None
        """Content that the last connection used, while a newer one of the same files is tried. None: no newer one is tried."""
        self._has_failed_handshake = False
        """True if the last connect reached a server, but the handshake failed."""
        self._pause_over = asyncio.Event()
        """Set to end the pause before the next connect."""
        self._has_connected = False
        """True if the first connect has succeeded."""
        self._has_info = False
        """True if the server of the last connect has sent its INFO line."""
        self._closed_in_handshake = False
        """True if the server closed the last connection during the handshake. nats-py reports this again when it cleans up."""
        self._rejection_log = LogRateLimit(_LOG_PERIOD_S, _LOG_LINES)
        self.denial_is_raised = False
        """True if a request raises an error for the denial that is being processed. Then the denial is not logged."""
        self.on_subscription_limit: list[Callable[[], None]] = []
        """Callbacks of the subscriptions that wait for the server's confirmation. A lost connection removes all of them."""
        self._last_subject: tuple[str | None, bytes] = None, b""
        """Subject of the last message in ``try_write``, as text and as bytes."""

    def use_carrier(self, carrier: Transport) -> None:
        """Use the transport ``carrier`` instead of TCP for all connections of this client. Call it before ``connect``."""
        self._transport = carrier

    async def connect(self, servers: Any = "nats://127.0.0.1:4222", **options: Any) -> None:  # type: ignore[override]
        """Connect as nats-py does. Reject a server without encryption if a ``tls://`` URL or a TLS setting requires it."""
        urls = [servers] if isinstance(servers, str) else list(servers)
        self._urls_want_tls = wants_tls(urls)
        self._wants_tls = bool(options.get("tls")) or self._urls_want_tls
        self._content = {name: options.get(name) for name in FILE_OPTIONS}
        if report := options.get("error_cb"):
            options["error_cb"] = partial(self._report, report)
        await super().connect(servers=servers, **options)

    async def _report(self, report: Callable[[Exception], Awaitable[None]], error: Exception) -> None:
        """Call ``report`` with ``error``, unless it only repeats that the server closed a connection during the handshake."""
        if not (self._closed_in_handshake and isinstance(error, (BrokenPipeError, ConnectionResetError))):
            await report(error)

    def _connect_command(self) -> bytes:
        """Return the CONNECT line as nats-py does, with the user and password of a URL without their percent encoding."""
        given, server = self.options, self._current_server
        uri = None if server is None else server.uri
        has_others = given["user"] is not None or given["token"] is not None or self._signature_cb is not None
        if uri is None or uri.username is None or has_others:
            return super()._connect_command()
        name, password = unquote(uri.username), uri.password
        self.options = {**given, **({"token": name} if password is None else {"user": name, "password": unquote(password)})}
        try:
            return super()._connect_command()
        finally:
            self.options = given

    async def renew(self, options: Mapping[str, Any]) -> None:
        """Reconnect with other credentials (``Credentials.nats_options``). Pending requests fail as after a lost connection."""
        for name in ("user", "password", "token"):
            self.options[name] = options.get(name)
        self._use_content(options)
        self._wants_tls = self.options.get("tls") is not None or self._urls_want_tls
        self._earlier_content, self._has_failed_handshake = None, False
        self._renewals += 1
        if self.is_connected:
            await self._process_op_err(Error(_RENEWED))
        self.reconnect_backoff.reset()
        self._pause_over.set()

    def _use_content(self, content: Mapping[str, Any]) -> None:
        """Use other content of files for the next connect. ``content``: values by name, as in ``FILE_OPTIONS``."""
        self._content = {name: content.get(name) for name in FILE_OPTIONS}
        self._user_credentials, self._nkeys_seed_str = self._content["user_credentials"], self._content["nkeys_seed_str"]
        self._user_jwt_cb = self._signature_cb = self._public_nkey = None
        if self._user_credentials is not None or self._nkeys_seed_str is not None:
            self._setup_nkeys_connect()
        self.options.pop("tls", None)
        if self._content["tls"] is not None:
            self.options["tls"] = self._content["tls"]

    def try_write(self, subject: str, reply: str, payload: bytes, room_bytes: int) -> bool:
        """Queue a message for writing as ``publish`` does, at half the cost. Return False if it was not queued.

        The caller then calls ``publish``, which sends it or raises the error. ``room_bytes``: maximum number of waiting bytes.
        """
        queue, flusher, size_bytes = self._flush_queue, self._flusher_task, len(payload)
        if queue is None or flusher is None or flusher.done() or self._status != _CONNECTED:
            return False
        if size_bytes > self._max_payload or self._pending_data_size > room_bytes:
            return False
        if subject != self._last_subject[0]:
            if not _SUBJECT(subject):
                return False
            self._last_subject = subject, subject.encode()
        line = b"PUB %b %b %d\r\n%b\r\n" % (self._last_subject[1], reply.encode(), size_bytes, payload)
        self._pending.append(line)
        self._pending_data_size += len(line)
        stats = self.stats
        stats["out_msgs"] += 1
        stats["out_bytes"] += size_bytes
        if queue.empty():
            queue.put_nowait(asyncio.get_running_loop().create_future())
        return True

    async def _process_connect_init(self) -> None:
        """Finish the handshake as nats-py does. It also works around versions of asyncio with CVE-2024-12254.

        In these, ``writelines`` ignores the limit of the write buffer.
        """
        self._close_old_connection()
        self._has_info, renewals = False, self._renewals
        self._has_failed_handshake = True
        try:
            await self._shake_hands()
        except Error as error:
            self._has_failed_handshake = renewals == self._renewals
            if self._has_info and not isinstance(error, TimeoutError) and renewals == self._renewals:
                self.reconnect_backoff.note_rejected()
            raise
        self._has_connected = True
        self._earlier_content, self._has_failed_handshake = None, False
        self.reconnect_backoff.note_connected(time.monotonic())

    async def _shake_hands(self) -> None:
        self._closed_in_handshake, renewals = False, self._renewals
        transport: Any = self._transport
        transport.writelines = lambda messages: transport.write(b"".join(messages))
        try:
            await super()._process_connect_init()
        except ConnectionError as error:
            raise self._closed_early(str(error)) from error
        except (OSError, TimeoutError, Error):
            raise
        except Exception as error:
            raise ProtocolError(
                f"Cannot decode the INFO line of the NATS server: {error!r}. Check that the URL is a NATS server."
            ) from error
        if self._status != _CONNECTED:  # no PONG came. nats-py ignores the end of the connection at this point
            for task in (self._reading_task, self._ping_interval_task, self._flusher_task):
                if task is not None:
                    task.cancel()
            raise self._closed_early("no answer to the first PING")
        self._made = getattr(transport, "_io_writer", None)
        if renewals != self._renewals:
            raise Error(_RENEWED)

    async def _select_next_server(self) -> None:
        """Connect to the next server as nats-py does. Pause before a reconnect if servers close each connection at once.

        The caller pauses before it retries the first connect. It then reads the credentials again.
        """
        if self._has_connected and (pause_s := self.reconnect_backoff.pause_s()):
            self._pause_over.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):  # not wait_for, which may swallow a cancellation
                    await self._pause_over.wait()
        await super()._select_next_server()

    async def _connect_to_server(self, server: Any) -> None:
        if self._has_connected and self._has_failed_handshake:
            self._has_failed_handshake = False
            self._change_content()
        try:
            await super()._connect_to_server(server)
        except ssl.SSLError:  # a WebSocket does the handshake here
            self._has_failed_handshake = True
            raise

    def _change_content(self) -> None:
        """Read the files again, because a handshake failed. After the next failure, return to the content before.

        Operators replace the files while the connection is open. The new files may be wrong or incomplete, or the server may
        accept them later. So both contents are tried in turn. nats-py itself would read the files of a user in each handshake: it
        hangs if a JWT is missing, and signs with a new seed in the name of the old user.
        """
        if self._earlier_content is not None:
            self._use_content(self._earlier_content)
            self._earlier_content = None
        elif self.credentials is not None and self.credentials.has_files:
            with contextlib.suppress(ConfigError):
                earlier_content, content = self._content, self.credentials.nats_options()
                self._use_content(content)
                self._earlier_content = earlier_content

    def _closed_early(self, how: str) -> Error:
        """Note that the server closed the connection during the handshake, and return the error.

        In TLS 1.3, a server checks the certificate of a client after the TLS handshake. Its alert may be lost.
        """
        self._closed_in_handshake = True
        why = ". It may reject the client certificate, for example because it has expired" if self._wants_tls else ""
        return Error(f"{how}: the server closed the connection during the handshake{why}")

    def _close_old_connection(self) -> None:
        """Close the transport of a connection whose first write failed. Otherwise nats-py would still read from it."""
        old_connection, self._made = self._made, None
        if old_connection is None:
            return
        self.reconnect_backoff.note_lost(time.monotonic())
        self._ps.reset()
        for task in (self._reading_task, self._ping_interval_task, self._flusher_task):
            if task is not None:
                task.cancel()
        old_connection.transport.abort()

    async def _process_op_err(self, e: Exception) -> None:
        self.on_subscription_limit.clear()
        if not (self.is_closed or self.is_reconnecting):
            self._made = None  # the connection is closed first
            self.reconnect_backoff.note_lost(time.monotonic())
        await super()._process_op_err(e)

    async def flush(self, timeout: int = 10) -> None:
        """Wait for a PONG as nats-py does, at most ``timeout`` seconds. During a reconnect, wait for a late PONG.

        nats-py would open a second connection.
        """
        while True:
            try:
                return await super().flush(timeout)
            except FlushTimeoutError:
                if asyncio.current_task() is not self._reconnection_task:
                    raise

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Close the connection without waiting for the socket. After a failed TLS handshake, asyncio never reports its close.

        nats-py cancels a reconnect that waits for the same socket, and with it the future that this wait shares.
        If unsent data cannot be written, nats-py's close stops in the middle. Then end the tasks of the subscriptions here. A reconnect
        whose handshake suppresses the cancellation would open the connection again. So end it here, too.
        """
        transport: Any = self._transport
        if transport is not None:
            closed = transport.wait_closed

            async def closed_or_given_up() -> None:
                with contextlib.suppress(TimeoutError):
                    (result,) = await asyncio.wait_for(asyncio.gather(closed(), return_exceptions=True), _CLOSED_S)
                    if isinstance(result, Exception):
                        raise result

            transport.wait_closed = closed_or_given_up
        try:
            await super()._close(status, do_cbs)
        finally:
            await self._end_reconnect(status)
            for subscription in self._subs.values():
                if subscription._wait_for_msgs_task is not None:
                    subscription._wait_for_msgs_task.cancel()
                if subscription._message_iterator is not None:
                    subscription._message_iterator._cancel()
            self._subs.clear()

    async def _end_reconnect(self, status: int) -> None:
        """End a reconnect that runs on after nats-py's close, and the tasks that its handshake has started. Then set the status."""
        own = asyncio.current_task()
        for _ in range(_CLOSE_ROUNDS):
            self._status = status  # else the loss of the new connection would begin another reconnect
            tasks = (self._reconnection_task, self._reading_task, self._ping_interval_task, self._flusher_task)
            left = [task for task in tasks if task is not None and task is not own and not task.done()]
            if not left:
                break
            await end_tasks(left)
        self._status = status
        transport: Any = self._transport
        if transport is not None:
            transport.close()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Process the server's first INFO line. Check it before secrets are sent.

        Raises an error if the server has no TLS and the client requires it.
        """
        if initial_connection and self._wants_tls and not info.get("tls_required") and self._is_in_the_clear():
            if not info.get("tls_available"):
                raise Error(
                    "The NATS server does not offer TLS, but the settings of this client require it. Configure TLS on "
                    "the server, or use a URL without tls://"
                )
            info["tls_required"] = True  # nats-py would continue without encryption
        await super()._process_info(info, initial_connection=initial_connection)
        self._has_info = True
        if info.get("connect_urls"):
            self._update_discovered_servers(set(info["connect_urls"]))

    def _update_discovered_servers(self, advertised: set[str]) -> None:
        """Drop the discovered servers that are no longer ``advertised``. Give the others the user and password of the current URL.

        nats-py keeps every address that a server ever had, and a reconnect tries all of them. It connects to a discovered
        server without the user and password of the URL. It expects the certificate of a discovered address to have the host
        of the current server, even if that is a discovered address itself. Its certificate has the host of the URL.
        """
        current, pool = self._current_server, self._server_pool
        assert current is not None
        user_info, at, _ = current.uri.netloc.rpartition("@")
        known = {_address(server) for server in pool if not server.discovered or server is current}
        kept = []
        for server in pool:
            address = _address(server)
            if server.discovered and server is not current:
                if address in known or address not in advertised:
                    continue
                known.add(address)
                server.uri = server.uri._replace(scheme=current.uri.scheme, netloc=f"{user_info}{at}{address}")
                if server.tls_name == current.uri.hostname and current.tls_name is not None:
                    server.tls_name = current.tls_name
            kept.append(server)
        pool[:] = kept

    def _is_in_the_clear(self) -> bool:
        server = self._current_server
        return not self.options.get("tls_handshake_first") and (server is None or server.uri.scheme != "wss")

    async def _read_loop(self) -> None:
        """Process the data that ``_process_arrived`` leaves. Invalid data leads to a reconnect. nats-py would stop reading."""
        receiver = await receive(self, self._process_arrived, self._max_unread_bytes)
        self._use_receiver(receiver)
        try:
            while not (self.is_closed or self.is_reconnecting or self._transport is None):
                data = await self._read()
                self._pings_outstanding = 0  # a PONG may be late after much data. A server that sends is alive
                await self._process_data(data)
        except asyncio.CancelledError:
            return
        except (OSError, Error) as error:
            await self._process_op_err(error)
        except Exception as error:  # no data of a server may end the reading permanently
            logger.exception("NATS data cannot be decoded: reconnecting")
            await self._process_op_err(error)
        finally:
            if receiver is not None:
                receiver.stop()
            if self._receiver is receiver:
                self._use_receiver(None)

    def _use_receiver(self, receiver: Receiver | None) -> None:
        self._receiver = receiver

    async def _read(self) -> bytes:
        """Wait for data and return it. Raises the error that ended the connection."""
        if self._receiver is not None:
            return await self._receiver.read()
        assert self._transport is not None
        if self._transport.at_eof():
            raise UnexpectedEOF
        return await self._transport.read(READ_BYTES)

    def _process_arrived(self, data: bytes) -> bytes | None:
        """Process arrived data. Return None, or b"" if the reading task must process data that needs an await."""
        if self.is_closed or self.is_reconnecting:
            return None  # the data belongs to a closed connection
        self._pings_outstanding = 0
        parser: Any = self._ps
        return None if parser.feed(data) else b""

    async def _process_data(self, data: bytes) -> None:
        await self._ps.parse(data)

    async def _process_err(self, err_msg: str) -> None:
        """Handle an error that the server sent. An established connection reconnects. nats-py would close it permanently.

        The connection stays open if the server only denied a publish or a subscription. A publisher can cause thousands of
        these errors per second, so the log names few of them. It also stays open if the server rejected a subscription because
        the user or the account has too many, and a caller waits for the confirmation of a new subscription. The error does not
        name the subscription. Without such a caller, an older subscription may be lost, so the connection is not usable.
        """
        is_raised, self.denial_is_raised = self.denial_is_raised, False
        if not self.is_connected:
            await super()._process_err(err_msg)
            return
        text = err_msg.strip("'\" ")
        self.errors[f"server: {text.split(' for ')[0]}"] += 1
        error = Error(f"NATS server error: {text}")
        limit_callbacks = list(self.on_subscription_limit) if _TOO_MANY_SUBSCRIPTIONS in text.lower() else []
        unlogged = None if is_raised else self._rejection_log.admit(time.monotonic())
        if unlogged is not None:
            logger.warning("NATS server error text=%s unlogged=%d", text, unlogged)
        if not limit_callbacks and "permissions violation" not in text.lower():
            await self._process_op_err(error)
            return
        for callback in limit_callbacks:
            callback()
        if self._error_cb is not None:
            await self._error_cb(error)


def _address(server: Any) -> str:
    """Return host and port of a server of nats-py's pool."""
    return str(server.uri.netloc.rpartition("@")[2])


def abort_connection(connection: Client) -> None:
    """Drop the data that ``connection`` has not written yet, because nats-py's ``close`` would wait for a blocked socket."""
    stream = getattr(getattr(connection, "_transport", None), "_io_writer", None)
    if stream is not None:
        stream.transport.abort()


def watch_subscription_limit(connection: Client, callback: Callable[[], None]) -> Callable[[], None]:
    """Call ``callback`` when the server rejects a subscription because of a limit. Return a function that stops these calls.

    A lost connection stops them, too. The error does not name the subscription, so watch only while a subscription waits for
    its confirmation.
    """
    callbacks = connection.on_subscription_limit if isinstance(connection, StrictConnection) else []
    callbacks.append(callback)

    def unwatch() -> None:
        with contextlib.suppress(ValueError):
            callbacks.remove(callback)

    return unwatch


async def taken_over(connection: Any) -> socket.socket | None:
    """Take the socket from a new, idle connection of nats-py, and return it in blocking mode. nats-py then no longer uses it.

    Return None if this is not possible (TLS, a WebSocket, or unread data).
    """
    writer = getattr(connection._transport, "_io_writer", None)
    if writer is None or writer.get_extra_info("ssl_object") is not None or connection._ps._held_bytes:
        return None
    sock = socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno()))
    writer.transport.abort()  # it closes only nats-py's own descriptor
    sock.setblocking(True)
    return sock
