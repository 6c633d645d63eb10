r"""Strict parser of the NATS protocol. It never mistakes the bytes of a publisher for protocol lines [A12].

A nats-server writes ``MSG <subject> <sid> [reply] <size>`` and ``HMSG <subject> <sid> [reply] <header size> <size>`` with
one space between the fields. It forwards every other byte of a subject or reply: ``shop.a\x0b7`` is one token. nats-py ends
a field at any white space, so a publisher could shift the fields and choose the subscription. nats-py also stops reading
permanently at a subject or header block that it cannot decode. This parser splits at single spaces. It checks the number of
fields, the digits of the sizes, and that the subscription matches the subject. It counts and skips invalid messages. Only
if the end of a frame is unknown, it raises a ProtocolError, and nats-py reconnects.

A PONG that arrives after its caller has given up is only counted. Every message or command shows that the server is alive.
If much data waits to be read, a PONG is late although the connection is healthy.

Only ``liftpy/nats`` and ``sidecar/transport`` use private parts of nats-py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote

from nats.aio.client import Client
from nats.aio.transport import Transport
from nats.errors import Error, FlushTimeoutError, ProtocolError, UnexpectedEOF
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, Parser

from liftpy.core.base.rate_limits import LogRateLimit
from liftpy.errors import ConfigError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.reconnect_backoff import ReconnectBackoff
from liftpy.nats.urls import wants_tls

logger = logging.getLogger("liftpy.nats")

LONGEST_LINE_BYTES = 64 * 1024
READ_BYTES = 1024 * 1024
LARGEST_MESSAGE_BYTES = 256 * 1024 * 1024
"""Maximum size of headers and payload. A server's ``max_payload`` is at most 64 MiB."""
SIZE_DIGITS = 9
"""Maximum number of digits of a size, as in nats-server."""
_REMEMBERED_SUBJECTS = 1024
"""Maximum number of subjects of a wildcard subscription whose match is cached."""
_REMEMBERED_BYTES = 256
"""Maximum length of a subject whose match is cached, in bytes."""

_PLAIN = re.compile(rb"MSG ([^ \r\n]+) (\d{1,9}) (?:([^ \r\n]+) )?(\d{1,9})\r\n").match
"""Pattern of a message line without headers, as a nats-server writes it. Thousands of acks match it. Other lines are split."""
_SUBJECT = re.compile(r"[^\x00-\x20\x7f]+").fullmatch
"""Subjects that cannot be mistaken for several fields or lines of the protocol."""
_DENIAL = re.compile(
    rb"-ERR '?permissions violation for (publish|subscription) (?:to|with reply of) \"([^\"]*)\"", re.IGNORECASE
)
_TOO_MANY_SUBSCRIPTIONS = "maximum subscriptions exceeded"
_LOG_PERIOD_S = 1.0
_LOG_LINES = 4
"""Maximum number of log lines about rejections per ``_LOG_PERIOD_S``."""
Denied = Callable[[bool, str], None]
"""Called with (True for a publish, False for a subscription, its subject).

For a denied answer, the subject is the reply subject.
"""

_CONNECTED = Client.CONNECTED
_RENEWED = "The NATS credentials were reloaded. The client reconnects."
_CLOSED_S = 0.5
"""Maximum wait for the socket when a connection is closed, in seconds."""
_CLOSE_ROUNDS = 3
"""Number of times that a close ends the tasks of a connection. Ending a reconnect may leave the tasks of its new connection."""
_WILDCARDS = {b"*": rb"[^.]+", b">": rb"[^.]+(?:\.[^.]+)*"}

Fields = tuple[bytes, bytes, bytes, int]
"""(subject, sid, reply or b"", size of the header block in bytes)."""


class Pattern:
    """The subject of a subscription, with or without wildcards. ``known``: subjects that were found to match it."""

    __slots__ = ("_matched_by", "known")

    def __init__(self, pattern: str) -> None:
        tokens = pattern.encode().split(b".")
        if _WILDCARDS.keys().isdisjoint(tokens):
            self._matched_by = None  # a literal subject needs no pattern. A node has thousands of them
            self.known: set[bytes] | tuple[bytes] = (pattern.encode(),)
        else:
            parts = [_WILDCARDS.get(token, re.escape(token)) for token in tokens]
            self._matched_by = re.compile(rb"\.".join(parts)).fullmatch
            self.known = set()

    def matches(self, subject: bytes) -> bool:
        known = self.known
        if self._matched_by is None or isinstance(known, tuple):
            return subject in known
        if self._matched_by(subject) is None:
            return False
        if len(subject) <= _REMEMBERED_BYTES:
            if len(known) >= _REMEMBERED_SUBJECTS:
                known.clear()
            known.add(subject)
        return True


def size_of(digits: bytes) -> int:
    """Return the number that ``digits`` of a protocol line mean, in bytes. -1: they are invalid."""
    if not digits.isdigit() or len(digits) > SIZE_DIGITS:
        return -1
    size_bytes = int(digits)
    return size_bytes if size_bytes <= LARGEST_MESSAGE_BYTES else -1


def message_fields(fields: list[bytes]) -> Fields | None:
    """Return subject, subscription id, reply subject and header size of a MSG or HMSG line. None: the line is invalid."""
    sizes = {b"MSG": 1, b"HMSG": 2}.get(fields[0], 0)
    if not sizes or len(fields) not in (3 + sizes, 4 + sizes) or b"" in fields:
        return None
    total = size_of(fields[-1])
    header = size_of(fields[-2]) if sizes == 2 else 0
    if total < 0 or not 0 <= header <= total:
        return None
    return fields[1], fields[2], fields[3] if len(fields) == 4 + sizes else b"", header


class StrictParser(Parser):
    """Replaces ``nats.protocol.parser.Parser`` in a connection. It passes valid messages to nats-py's subscriptions.

    ``errors``: kind -> number of skipped messages. ``check_subjects``: True to check that a message matches its subscription.
    It is False on a shared connection, because JetStream delivers under subjects without a subscription.
    """

    takes_plain = True
    """True if messages without headers go to nats-py at once. False if a subclass inspects each message first."""

    def __init__(self, connection: Any, errors: Counter[str] | None = None, *, check_subjects: bool = True) -> None:
        self._rest = Parser(connection)
        """Parser of nats-py, for all lines that are no messages."""
        self.errors: Counter[str] = Counter() if errors is None else errors
        self._connection = connection
        self._check_subjects = check_subjects
        self._chunks: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = 0
        """Size of an incomplete message in bytes, so that its parts are joined only once. 0: not known."""
        self._resets = 0
        self._patterns: dict[bytes, Pattern] = {}
        self.denials: list[Denied] = []
        """Called when the server denies a publish or subscription. nats-py's own text changes the case of the subject."""

    def reset(self) -> None:
        """Drop incomplete data, because nats-py begins another connection."""
        self._resets += 1
        self._chunks = []
        self._held_bytes = self._needed_bytes = 0
        self._rest.reset()

    def expect(self, sid: int, subject: str) -> None:
        """Accept messages for the subscription ``sid`` only if their subject matches ``subject``."""
        self._patterns[b"%d" % sid] = Pattern(subject)

    def forget(self, sid: int) -> None:
        self._patterns.pop(b"%d" % sid, None)

    def feed(self, data: bytes) -> bool:
        """Process received ``data`` as far as no await is needed. Return False if ``parse`` must be called for the rest."""
        self._chunks.append(data)
        self._held_bytes += len(data)
        if self._held_bytes < self._needed_bytes:
            return True
        buffer = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._needed_bytes = 0
        position = self._messages(buffer, 0)
        if position >= len(buffer):
            self._chunks, self._held_bytes = [], 0
            return True
        rest = buffer[position:] if position else buffer
        self._chunks, self._held_bytes = [rest], len(rest)
        return bool(self._needed_bytes) or (len(rest) <= LONGEST_LINE_BYTES and b"\r\n" not in rest)

    async def parse(self, data: bytes = b"") -> None:
        """Process ``data`` and all kept data, up to the last complete message or command.

        Raises only nats-py's errors and OSError.
        """
        if data:  # otherwise the data that ``feed`` has joined would be copied
            self._chunks.append(bytes(data))
            self._held_bytes += len(data)
        if self._held_bytes < self._needed_bytes:
            return
        buffer = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks = []
        self._held_bytes = self._needed_bytes = 0
        position, resets = 0, self._resets
        while position < len(buffer):
            position = self._messages(buffer, position)
            plain = _PLAIN(buffer, position) if self.takes_plain else None
            end = plain.end() + int(plain[4]) + 2 if plain is not None else len(buffer) + 1
            if plain is not None and end <= len(buffer) and not self._needed_bytes:
                await self._deliver(plain[1], plain[2], plain[3] or b"", buffer[plain.end() : end - 2])
            else:
                end = await self._other(buffer, position)
            if self._resets != resets:
                return  # the rest belongs to a closed connection
            if end == position:
                break
            position = end
        rest = buffer[position:] if position else buffer
        if rest:
            self._chunks = [rest]
            self._held_bytes = len(rest)

    def _messages(self, buffer: bytes, position: int) -> int:
        """Process messages from ``position`` of ``buffer`` on. Return the position of the first line that needs ``parse``.

        Subclasses override it with a faster parser.
        """
        return position

    async def _other(self, buffer: bytes, position: int) -> int:
        """Process one message or command at ``position`` of ``buffer``. Return the position after it.

        If it is not complete yet, return ``position``.
        """
        if self._needed_bytes or position >= len(buffer):
            return position
        eol = buffer.find(b"\r\n", position)
        if eol < 0:
            if len(buffer) - position > LONGEST_LINE_BYTES:
                raise ProtocolError(
                    f"The NATS server sent a protocol line of more than {LONGEST_LINE_BYTES} bytes. Check that the URL is "
                    "a NATS server."
                )
            return position
        start = eol + 2
        if buffer[position] not in b"HM":
            await self._command(buffer[position:start])
            return start
        line = buffer[position:eol].split(b" ")
        total = size_of(line[-1])
        if total < 0 or line[0] not in (b"MSG", b"HMSG"):
            raise ProtocolError(
                f"The NATS server sent an unknown protocol line: {buffer[position : min(eol, position + 80)]!r}. "
                "Check that the URL is a NATS server."
            )
        end = start + total + 2
        if end > len(buffer):
            self._needed_bytes = end - position
            return position
        await self._message(line, buffer[start : end - 2])
        return end

    def _is_late_pong(self, line: bytes) -> bool:
        """Return whether ``line`` is a PONG for a PING whose caller no longer waits. nats-py would close the connection."""
        pongs = getattr(self._connection, "_pongs", None)
        if line != b"PONG\r\n" or not pongs or not pongs[0].done():
            return False
        pongs.pop(0)
        self._connection._pongs_received += 1
        self._connection._pings_outstanding = 0
        self.errors["late_pong"] += 1
        return True

    async def _command(self, line: bytes) -> None:
        if self._is_late_pong(line):
            return
        if line.startswith(b"-ERR") and (denial := _DENIAL.match(line)):
            for callback in list(self.denials):
                callback(denial[1].lower() == b"publish", denial[2].decode(errors="replace"))
        try:
            await self._rest.parse(line)
        except (OSError, Error):
            raise
        except Exception as error:  # an INFO that is no JSON, or an -ERR without a text
            raise ProtocolError(
                f"Cannot decode the NATS protocol line {line[:80]!r}: {error!r}. Check the version of the NATS server."
            ) from error

    async def _message(self, line: list[bytes], content: bytes) -> None:
        """Pass one message to its subscription. An invalid message is counted and skipped."""
        fields = message_fields(line)
        if fields is None or size_of(fields[1]) < 0:
            self.errors["malformed"] += 1
            return
        subject, sid, reply, header = fields
        await self._deliver(subject, sid, reply, content[header:], content[:header])

    async def _deliver(self, subject: bytes, sid: bytes, reply: bytes, payload: bytes, headers: bytes = b"") -> None:
        number = int(sid)
        subscription = self._connection._subs.get(number)
        if subscription is None:
            return  # the message was in flight when the subscription ended
        if self._check_subjects and not self._belongs(sid, subscription.subject, subject):
            self.errors["foreign_subject"] += 1
            return
        try:
            await self._connection._process_msg(number, subject, reply, payload, headers)
        except Exception:  # not UTF-8, or an invalid header block. Only this message is affected
            self.errors["undecodable"] += 1

    def _belongs(self, sid: bytes, wanted: str, subject: bytes) -> bool:
        pattern = self._patterns.get(sid)
        if pattern is None:
            for old_sid in [known for known in self._patterns if int(known) not in self._connection._subs]:
                del self._patterns[old_sid]
            pattern = self._patterns[sid] = Pattern(wanted)
        return subject in pattern.known or pattern.matches(subject)


class StrictConnection(Client):
    """nats-py's client with the strict parser.

    ``errors``: kind -> number of rejected messages. ``on_reconnected``: functions to call after each reconnect.
    """

    read_bytes = READ_BYTES

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
        self._user_credentials, self._nkeys_seed = options.get("user_credentials"), options.get("nkeys_seed")
        self._user_jwt_cb = self._signature_cb = self._public_nkey = None
        if self._user_credentials is not None or self._nkeys_seed is not None:
            self._setup_nkeys_connect()
        for name in ("user", "password", "token"):
            self.options[name] = options.get(name)
        self.options.pop("tls", None)
        if "tls" in options:
            self.options["tls"] = options["tls"]
        self._wants_tls = "tls" in options or self._urls_want_tls
        self._renewals += 1
        if self.is_connected:
            await self._process_op_err(Error(_RENEWED))
        self.reconnect_backoff.reset()
        self._pause_over.set()

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
        try:
            await self._shake_hands()
        except Error as error:
            if self._has_info and not isinstance(error, TimeoutError) and renewals == self._renewals:
                self.reconnect_backoff.note_rejected()
            raise
        self._has_connected = True
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
        """Read from the socket as nats-py does, with larger reads. Invalid data leads to a reconnect. nats-py would stop reading."""
        while not (self.is_closed or self.is_reconnecting or self._transport is None):
            try:
                data = await self._read()
                self._pings_outstanding = 0  # a PONG may be late after much data. A server that sends is alive
                await self._process_data(data)
            except asyncio.CancelledError:
                return
            except (OSError, Error) as error:
                await self._process_op_err(error)
                return
            except Exception as error:  # no data of a server may end the reading permanently
                logger.exception("NATS data cannot be decoded: reconnecting")
                await self._process_op_err(error)
                return

    async def _read(self) -> bytes:
        """Wait for data from the socket and return it. Raises the error that ended the connection."""
        assert self._transport is not None
        if self._transport.at_eof():
            raise UnexpectedEOF
        return await self._transport.read(self.read_bytes)

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


def make_strict(connection: Client) -> Counter[str]:
    """Replace the parser of ``connection``, another nats-py connection. Return its counters of skipped messages.

    The new parser takes over incomplete data.
    """
    before = getattr(connection, "_ps", None)
    if isinstance(before, StrictParser):
        return before.errors
    if not isinstance(before, Parser) or not hasattr(connection, "_process_msg"):
        raise ConfigError("This version of nats-py is not supported. Install nats-py>=2.12,<3.")
    parser = StrictParser(connection, check_subjects=False)
    half = bytes(before.buf)
    if before.state == AWAITING_MSG_PAYLOAD:
        half = _unfinished_line(before) + half
    before.reset()
    parser._chunks, parser._held_bytes = ([half] if half else []), len(half)
    connection._ps = parser
    return parser.errors


def watch_denials(connection: Client, callback: Denied) -> Callable[[], None]:
    """Call ``callback`` each time the server denies a publish or subscription. Return a function that stops these calls."""
    parser = getattr(connection, "_ps", None)
    if not isinstance(parser, StrictParser):
        return lambda: None
    parser.denials.append(callback)
    return lambda: parser.denials.remove(callback)


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


def abort_connection(connection: Client) -> None:
    """Drop the data that ``connection`` has not written yet, because nats-py's ``close`` would wait for a blocked socket."""
    stream = getattr(getattr(connection, "_transport", None), "_io_writer", None)
    if stream is not None:
        stream.transport.abort()


def _unfinished_line(parser: Any) -> bytes:
    """Return the protocol line of the message that nats-py's parser has read only in part.

    The strict parser needs it to continue with this message.
    """
    fields = parser.msg_arg
    line = [b"HMSG" if parser.header_needed else b"MSG", fields["subject"], b"%d" % fields["sid"]]
    line += [fields["reply"]] if fields["reply"] else []
    line += [b"%d" % parser.header_needed] if parser.header_needed else []
    return b" ".join([*line, b"%d" % parser.needed]) + b"\r\n"
