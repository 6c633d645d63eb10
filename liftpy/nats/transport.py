"""``Transport``: one connection of nats-py with time-limited requests and liftpy's own errors.

No other code of a client sees an exception of nats-py. The errors say whether the receiver can have acted on a request:
after NoRespondersError it has not, after RequestTimeoutError it may have.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import count
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client as NatsConnection
from nats.aio.transport import Transport as CarriedBy

from liftpy.errors import (
    ClientClosedError,
    ConfigError,
    LiftError,
    NatsUnreachableError,
    NotAllowedError,
    OutcomeUnknownError,
    ProtocolError,
    UnavailableError,
)
from liftpy.nats.cancellation import AnswerDeadline, answer_until, end_tasks, with_cancellation
from liftpy.nats.connection import StrictConnection, abort_connection, watch_subscription_limit
from liftpy.nats.credentials import Credentials
from liftpy.nats.parser import Denied, watch_denials
from liftpy.nats.urls import check_urls, without_secrets

DEFAULT_URL = "nats://127.0.0.1:4222"
REQUEST_TIMEOUT_S = 2.0
_LATE_PONG_S = 1.0
"""Time to wait for a PONG after a reconnect, in seconds."""
_CLOSE_S = 2.0
ROOM_BYTES = 1024 * 1024
"""Maximum size of unwritten data, in bytes. Above 2 MiB, nats-py blocks a publisher without a timeout."""
_LARGE_BYTES = ROOM_BYTES // 2
SILENT_S = 0.5
"""Time without an answer to a PING, in seconds, after which the NATS server counts as unreachable."""
_CHECK_S = 60.0
"""Maximum duration of one check of the server, in seconds. nats-py closes an unreachable connection earlier."""
_MAX_DIGITS = 18
_NO_RESPONDERS = "503"


class NoRespondersError(UnavailableError):
    """The NATS server found no subscriber: no node received the request and nothing was done. Retry."""

    code = "NO_RESPONDERS"


class RequestTimeoutError(OutcomeUnknownError):
    """The request was sent, but no answer came in time. A read may be repeated. A change may be repeated only with an equal
    operation id.
    """

    code = "REQUEST_TIMEOUT"
    suspended_s = 0.0
    """Time for which this process was suspended during the request, in seconds."""


async def open_connection(
    servers: str | Sequence[str] = DEFAULT_URL,
    *,
    credentials: Credentials | None = None,
    name: str = "liftpy-client",
    timeout_s: float = 5.0,
    carrier: CarriedBy | None = None,
    **nats_options: Any,
) -> StrictConnection:
    """Open a connection to NATS that reconnects forever, and return it. Raises UnavailableError if no server answers in time.

    Args:
        servers: One URL or several, also separated by commas.
        credentials: Credentials of this client. None: none.
        name: Name of the connection, which the NATS server shows.
        timeout_s: Maximum time for the connect, in seconds.
        carrier: Replacement for TCP, as in ``liftpy.testing.memory``. None: TCP.
        nats_options: Arguments of ``nats.connect``, which override the defaults.
    """
    urls = [u.strip() for u in (servers.split(",") if isinstance(servers, str) else servers)]
    check_urls(urls, bare=True)
    options: dict[str, Any] = {
        "name": name,
        "connect_timeout": timeout_s,
        "allow_reconnect": True,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.2,
        "ping_interval": 5,
        **(credentials or Credentials()).nats_options(),
        **nats_options,
    }
    connection = StrictConnection()
    connection.credentials = credentials
    if carrier is not None:
        connection.use_carrier(carrier)
    seen = _LastError()
    also: Callable[[], Awaitable[None]] | None = options.pop("reconnected_cb", None)

    async def reconnected() -> None:
        for callback in list(connection.on_reconnected):
            callback()
        if also is not None:
            await also()

    options["reconnected_cb"] = reconnected
    try:
        await with_cancellation(_first_connect(connection, urls, {"error_cb": seen.note, **options}, timeout_s))
    except (OSError, nats.errors.Error, TimeoutError) as error:
        await _close(connection)
        if seen.not_accepted or isinstance(error, nats.errors.AuthorizationError):
            raise NotAllowedError(
                f"The NATS server at {without_secrets(urls)} rejected the credentials. Check them "
                "(of a command: --creds, --nkey, --user or the context) and the configuration of the server."
            ) from None
        raise NatsUnreachableError(
            f"Cannot connect to NATS at {without_secrets(urls)}: {plain_cause(seen.last or error)}. Check that the server "
            "is running, and check the URL (of a command: --nats, LIFTPY_NATS or the context)."
        ) from error
    except asyncio.CancelledError:
        await _close(connection)  # otherwise a half-open connection would remain
        raise
    except ValueError as error:
        raise ConfigError(f"Cannot use the NATS URL {without_secrets(urls)}: {error}. Use nats://HOST:PORT.") from error
    return connection


def plain_cause(error: object) -> str:
    """Return the text of ``error`` without its number, for example ``Connection refused`` for ``[Errno 111] Connection refused``."""
    return re.sub(r"\[Errno -?\d+\] ", "", str(error)) or type(error).__name__


class _LastError:
    """Error callback for nats-py. It stores the last error and prints no traceback, because requests raise errors themselves."""

    def __init__(self) -> None:
        self.last = ""
        self.not_accepted = False
        """True if a server rejected the credentials. A second attempt may report other errors."""

    async def note(self, error: Exception) -> None:
        self.last = str(error) or type(error).__name__
        self.not_accepted = self.not_accepted or "authorization violation" in self.last.lower()


async def _first_connect(connection: NatsConnection, urls: list[str], options: dict[str, Any], timeout_s: float) -> None:
    """Connect ``connection`` to one of ``urls``, with two tries per server. After this, nats-py reconnects forever."""
    attempts = options.pop("max_reconnect_attempts")
    await asyncio.wait_for(connection.connect(servers=urls, max_reconnect_attempts=1, **options), timeout_s * 2)
    connection.options["max_reconnect_attempts"] = attempts


class Transport:
    """Sends requests and messages over one nats-py connection. If the caller passes a ``connection``, the caller also closes it.

    At most ``ROOM_BYTES`` and one message wait to be written. If there is more, a sender waits within its timeout. A message
    that was not written when the timeout ends was not sent.
    """

    def __init__(self, connection: NatsConnection) -> None:
        self.connection = connection
        self._strict_connection = connection if isinstance(connection, StrictConnection) else None
        self._loop = asyncio.get_running_loop()
        self.counters: Counter[str] = Counter()
        """Kind -> number of received messages that are invalid."""
        self.closed = False
        self._ended: asyncio.Future[None] = self._loop.create_future()
        """Future that completes when the transport is closed."""
        self._answers = Answers()
        self._opening: asyncio.Task[None] | None = None
        self._check: asyncio.Task[None] | None = None
        """Task of the running check of the server. None: no check has run."""
        self._on_close: dict[Callable[[], None], None] = {}
        self._on_denial: dict[Denied, None] = {}
        self._unwatch = watch_denials(connection, self._publish_or_subscribe_denied)
        self.reconnected: asyncio.Future[None] = self._loop.create_future()
        """Future that completes when the connection is renewed. Each reconnect creates another one."""
        if isinstance(connection, StrictConnection):
            connection.on_reconnected.append(self._connection_renewed)

    @property
    def parse_errors(self) -> Counter[str]:
        """Kind -> number of received messages that were skipped as invalid."""
        errors = getattr(getattr(self.connection, "_ps", None), "errors", None)
        return errors if isinstance(errors, Counter) else Counter()

    def must_be_usable(self) -> None:
        """Check that this transport can be used here. Raises ClientClosedError after ``close``, or if the connection is closed.

        A connection that the caller has passed may be closed first. nats-py also closes it itself after ``max_reconnect_attempts``.

        Raises ConfigError in another event loop or thread than that of the constructor.
        """
        if self.closed or self.connection.is_closed or asyncio.get_running_loop() is not self._loop:
            self.check_event_loop()
            if not self.closed:
                raise ClientClosedError("The NATS connection of this client is closed. Connect again, and open a new client.")
            raise ClientClosedError("The client is closed. Open a new client.")

    def check_event_loop(self) -> None:
        """Raise ConfigError if the caller is in another event loop or thread than that of the constructor."""
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigError(
                "A client belongs to the event loop that created it. Open a client in this loop, or use "
                "asyncio.run_coroutine_threadsafe()."
            )

    def on_close(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` when this transport closes. Return a function that withdraws the callback."""
        self._on_close[callback] = None
        return lambda: self._on_close.pop(callback, None)

    def on_denial(self, callback: Denied) -> Callable[[], None]:
        """Call ``callback`` each time NATS denies a publish or subscription. Return a function that withdraws the callback."""
        self._on_denial[callback] = None
        return lambda: self._on_denial.pop(callback, None)

    def _publish_or_subscribe_denied(self, is_publish: bool, subject: str) -> None:
        is_raised = self._answers.note_denial(is_publish, subject)
        if is_raised and self._strict_connection is not None:
            self._strict_connection.denial_is_raised = True
        for callback in list(self._on_denial):
            callback(is_publish, subject)

    def check_server(self) -> None:
        """Check in the background whether the NATS server answers. If a check runs already, do nothing.

        If the server was unreachable, the future ``reconnected`` completes when it answers again. Leaders may have changed by
        then, and answers may be lost, as after a broken connection.
        """
        if not self.closed and self.connection.is_connected and (self._check is None or self._check.done()):
            self._check = self._loop.create_task(self._check_until_answered(), name="check of the NATS server")

    async def _check_until_answered(self) -> None:
        renewed, is_silent, stats = self.reconnected, False, self.connection.stats
        pong = self._loop.create_task(self.connection.flush(timeout=_CHECK_S), name="PING to the NATS server")  # type: ignore[arg-type]
        pong.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            while True:
                received, start_s = stats["in_msgs"], self._loop.time()
                done, _ = await asyncio.wait({pong, renewed}, timeout=SILENT_S, return_when=asyncio.FIRST_COMPLETED)
                if done or stats["in_msgs"] != received:  # a PONG is late if many messages arrive before it
                    break
                if not is_silent and self._loop.time() < start_s + 2 * SILENT_S:  # otherwise this process itself was suspended
                    is_silent = True
                    self.counters["nats_server_silent"] += 1
            failed = pong.done() and (pong.cancelled() or pong.exception() is not None)
            if is_silent and not failed and not renewed.done():
                self._connection_renewed()
        finally:
            pong.cancel()

    def _connection_renewed(self) -> None:
        self.reconnected.set_result(None)
        self.reconnected = self._loop.create_future()

    @property
    def server(self) -> str:
        url = getattr(self.connection, "connected_url", None)
        return "this NATS server" if url is None else f"nats://{url.hostname}:{url.port}"

    @property
    def max_payload_bytes(self) -> int:
        """Largest message that the NATS server accepts, in bytes."""
        return int(self.connection.max_payload)

    @property
    def waiting_count(self) -> int:
        return self._answers.waiting_count

    @property
    def has_room(self) -> bool:
        """True if ``publish`` need not wait for room in the write buffer. During a reconnect it is always True."""
        return self.connection.pending_data_size <= ROOM_BYTES or not self.connection.is_connected

    async def room(self, give_up_at: float) -> None:
        """Wait for room in the write buffer until ``give_up_at`` (loop time in s). Raises UnavailableError after that."""
        pause_s = 0.0
        while not self.has_room:
            if self._loop.time() >= give_up_at:
                raise UnavailableError(
                    "The NATS connection is blocked: its send buffer is full. Nothing was sent. Retry later."
                )
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2 + 0.0005, 0.02)
            self.must_be_usable()

    async def request(
        self, subject: str, payload: bytes, timeout_s: float = REQUEST_TIMEOUT_S, headers: dict[str, str] | None = None
    ) -> bytes:
        """Send a request and return the payload of its answer. Raises the errors of ``exchange``.

        ``timeout_s``: maximum total time, in seconds. ``headers``: headers of the request, None for none.
        """
        return bytes((await self.exchange(subject, payload, timeout_s, headers)).data)

    async def exchange(self, subject: str, payload: bytes, timeout_s: float, headers: dict[str, str] | None = None) -> Any:
        """Send a request and return the answer, a nats-py message. ``timeout_s``: maximum total time, in seconds.

        Raises:
            NoRespondersError: No subscriber got the request.
            RequestTimeoutError: No answer arrived. The receiver may have acted on the request.
            UnavailableError: The request was not sent.
            NotAllowedError: The permissions of this user do not allow it.
            ClientClosedError: The client is closed.
        """
        give_up_at = self._loop.time() + timeout_s
        async with self.expect_answer(subject, timeout_s) as (reply, coming):
            await self.publish(subject, payload, reply, headers, give_up_at=give_up_at)
            deadline = AnswerDeadline(give_up_at)
            try:
                answer = await answer_until(coming, deadline)
            except TimeoutError:
                self.must_be_usable()
                error = RequestTimeoutError(
                    f"No answer on {subject} within {timeout_s:g} s. The request may have been applied. Check `liftpy "
                    "health`, then retry."
                )
                error.suspended_s = deadline.suspended_s
                raise error from None
        if is_no_responders(answer):
            raise NoRespondersError(
                f"No responders on {subject}. Check that a liftpy node is connected to this NATS server: --nats, "
                "--namespace and `liftpy health`."
            )
        return answer

    @contextlib.asynccontextmanager
    async def expect_answer(
        self, subject: str, timeout_s: float, accepts: Callable[[Any], bool] | None = None
    ) -> AsyncIterator[tuple[str, asyncio.Future[Any]]]:
        """Context for a message on ``subject`` that gets one answer. Yield (reply subject to send, future of the answer).

        ``accepts``: returns whether a message is the answer. Others are ignored. None: the first message is the answer.

        Raises UnavailableError if the reply inbox cannot be opened within ``timeout_s``. The future fails as ``exchange`` does
        if permissions are missing or the client is closed.
        """
        self.must_be_usable()
        if not self._answers.is_open:
            try:
                await self._open_inbox(timeout_s)
            except TimeoutError:
                raise UnavailableError(
                    f"Cannot open the reply inbox on NATS within {timeout_s:g} s. Nothing was sent. Check the NATS "
                    "server, then retry."
                ) from None
        number, reply, coming = self._answers.expect(subject, accepts)
        try:
            yield reply, coming
        finally:
            self._answers.forget(number)

    async def _open_inbox(self, timeout_s: float) -> None:
        """Subscribe to the inbox for answers within ``timeout_s``.

        All requests share one subscription, even if one of them is canceled.
        """
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open(timeout_s), name="inbox of a client")
            self._opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        opening = self._opening
        async with asyncio.timeout(timeout_s):
            await asyncio.wait({opening})
        if opening.cancelled():  # `close` has canceled the subscription, and not the caller
            raise ClientClosedError("The client was closed. Nothing was sent. Open a new client.")
        opening.result()

    async def _open(self, timeout_s: float) -> None:
        await self._answers.leave()
        inbox = self.connection.new_inbox()
        self._answers.begin(inbox, await self.listen(f"{inbox}.*", self._answers.process_message, timeout_s))

    async def listen(self, subject: str, callback: Callable[[Any], Awaitable[None]], timeout_s: float) -> Any:
        """Subscribe ``callback`` to ``subject``. Return nats-py's subscription when the server has processed it.

        During a reconnect, return it at once. Raises NotAllowedError, UnavailableError, ClientClosedError.
        """
        self.must_be_usable()
        denied: list[str] = []
        subscription: Any = None
        unwatch = self.on_denial(lambda is_publish, where: None if is_publish else denied.append(where))
        over_limit: list[str] = []
        unwatch_limit = watch_subscription_limit(self.connection, lambda: over_limit.append(subject))
        try:
            await self.room(self._loop.time() + timeout_s)
            subscription = await with_cancellation(self.connection.subscribe(subject, cb=callback))
            if self.connection.is_connected:
                with contextlib.suppress(UnavailableError, ClientClosedError):
                    await self.settle(timeout_s)
        except (nats.errors.Error, OSError) as error:
            self.must_be_usable()
            raise UnavailableError(
                f"NATS connection error on {subject}: {str(error) or type(error).__name__}. Check the NATS server, then retry."
            ) from error
        except asyncio.CancelledError:
            await unsubscribe(subscription)
            raise
        finally:
            unwatch()
            unwatch_limit()
        if subject in denied or over_limit or self.closed:
            await unsubscribe(subscription)
            self.must_be_usable()
            if over_limit:
                raise NotAllowedError(
                    f"The NATS server rejected the subscription to {subject}, where answers arrive: the user or the account has "
                    "its maximum number of subscriptions. Raise the limit, or close other clients of this user."
                )
            raise NotAllowedError(
                f"The NATS permissions of this user do not allow it to subscribe to {subject}, where answers arrive. "
                "Change the permissions, or set --inbox-prefix. `liftpy permissions` prints the permissions."
            )
        return subscription

    async def publish(
        self,
        subject: str,
        payload: bytes,
        reply: str = "",
        headers: dict[str, str] | None = None,
        *,
        give_up_at: float | None = None,
    ) -> None:
        """Send a message. ``reply``: reply subject, '' for none. ``headers``: None for none.

        The method waits only for room in the write buffer, until ``give_up_at`` (loop time in s, default: REQUEST_TIMEOUT_S
        from now).

        Raises ProtocolError (too large), ClientClosedError, UnavailableError. In each case nothing was sent.
        """
        self.must_be_usable()
        if give_up_at is None:
            give_up_at = self._loop.time() + REQUEST_TIMEOUT_S
        if not self.has_room:
            await self.room(give_up_at)
        await self.write(subject, payload, reply, headers, give_up_at)

    def try_write(self, subject: str, payload: bytes, reply: str) -> bool:
        """Queue a message for writing and return True, if it needs no wait.

        If the result is False, nothing was queued, and the caller must use ``write``.
        """
        connection = self._strict_connection
        return (
            connection is not None and len(payload) < _LARGE_BYTES and connection.try_write(subject, reply, payload, ROOM_BYTES)
        )

    async def write(self, subject: str, payload: bytes, reply: str, headers: dict[str, str] | None, give_up_at: float) -> None:
        """Queue a message for writing, without a check for room. Raises the errors of ``publish``."""
        if headers is None and self.try_write(subject, payload, reply):
            return
        try:
            if len(payload) < _LARGE_BYTES:
                await self.connection.publish(subject, payload, reply=reply, headers=headers)
            else:
                await self._write_large(subject, payload, reply, headers, give_up_at)
        except nats.errors.MaxPayloadError:
            raise ProtocolError(
                f"The message has {len(payload)} bytes, more than the NATS server accepts. Send a smaller message, or "
                "increase max_payload on the server."
            ) from None
        except (nats.errors.Error, OSError, ValueError) as error:
            self.must_be_usable()
            raise UnavailableError(
                f"NATS connection error on {subject}: {str(error) or type(error).__name__}. Check the NATS server, then retry."
            ) from error

    async def _write_large(
        self, subject: str, payload: bytes, reply: str, headers: dict[str, str] | None, give_up_at: float
    ) -> None:
        """Write a large message. nats-py may wait until it is written, and may suppress a cancellation of this task."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(give_up_at):
                await with_cancellation(self.connection.publish(subject, payload, reply=reply, headers=headers))

    async def settle(self, timeout_s: float = 5.0) -> None:
        """Wait until the server has processed all data sent before, including subscriptions.

        Raises UnavailableError if the server does not answer within ``timeout_s``, or if the connection is renewed before: a
        reconnect loses the PONG. Raises ClientClosedError if the transport is closed before.

        The method needs two flushes, because nats-py's ``flush`` writes its PING before the buffered data. The PONG of the first
        one only shows that the buffer was written. The PONG of the second one comes after the data.
        """
        try:
            for _ in range(2):
                renewed = self.reconnected
                pong = self._loop.create_task(self.connection.flush(timeout=timeout_s), name="flush")  # type: ignore[arg-type]
                pong.add_done_callback(lambda done: done.cancelled() or done.exception())
                try:
                    await asyncio.wait({pong, renewed, self._ended}, return_when=asyncio.FIRST_COMPLETED)
                    if renewed.done():  # the PING may have been sent after the reconnect
                        await asyncio.wait({pong, self._ended}, timeout=_LATE_PONG_S, return_when=asyncio.FIRST_COMPLETED)
                    if not pong.done():
                        self.must_be_usable()
                        raise ConnectionError("the connection was lost and renewed")
                    pong.result()
                finally:
                    pong.cancel()
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise UnavailableError(
                f"NATS connection error: {str(error) or type(error).__name__}. Check the NATS server, then retry."
            ) from error

    def end(self) -> None:
        """Close the transport: requests that wait get ClientClosedError. The connection itself stays open."""
        self.check_event_loop()
        self.closed = True
        if not self._ended.done():
            self._ended.set_result(None)
        if self._check is not None:
            self._check.cancel()
        self._unwatch()
        self._unwatch = _do_nothing
        if isinstance(self.connection, StrictConnection) and self._connection_renewed in self.connection.on_reconnected:
            self.connection.on_reconnected.remove(self._connection_renewed)
        self._answers.end(
            ClientClosedError(
                "The client was closed before the answer arrived. The request may have been applied. Open a new client to check it."
            )
        )
        callbacks, self._on_close = self._on_close, {}
        for callback in callbacks:
            callback()

    async def leave(self) -> None:
        """Close the transport and unsubscribe from its inbox. The connection stays open."""
        self.end()
        await end_tasks([self._opening, self._check])
        await self._answers.leave()

    async def close(self) -> None:
        """Close the transport, write the remaining data and close the connection.

        Data that cannot be written within ``_CLOSE_S`` seconds is dropped.
        """
        self.end()
        try:
            await end_tasks([self._opening, self._check])
            async with asyncio.timeout(_CLOSE_S):
                await with_cancellation(self.connection.flush(timeout=_CLOSE_S))  # type: ignore[arg-type]
        except Exception:  # the connection is down or blocked, so a flush would not end
            abort_connection(self.connection)
        finally:
            await _close(self.connection)


async def _close(connection: NatsConnection) -> None:
    """Close ``connection`` within 2 x ``_CLOSE_S`` seconds. If the caller is canceled, the close continues in the background."""
    closing = asyncio.create_task(_close_bounded(connection), name="closing of a connection")
    _closings.add(closing)
    closing.add_done_callback(_closings.discard)
    await asyncio.shield(closing)


_closings: set[asyncio.Task[None]] = set()


async def _close_bounded(connection: NatsConnection) -> None:
    """Close ``connection`` in limited time. nats-py alone would wait for a blocked socket."""
    closing = asyncio.create_task(connection.close(), name="nats-py's close")
    closing.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait([closing], timeout=_CLOSE_S)
    if not closing.done():
        abort_connection(connection)
        await asyncio.wait([closing], timeout=_CLOSE_S)
        await end_tasks([closing])


def _do_nothing() -> None:
    pass


async def unsubscribe(subscription: Any) -> None:
    """End a subscription of nats-py. None, and errors of a closed connection, are ignored."""
    if subscription is not None:
        with contextlib.suppress(Exception):
            await subscription.unsubscribe()


class Answers:
    """Requests that wait for answers in one inbox.

    nats-py's own ``request`` may swallow a cancellation, may take longer than its timeout when the socket is blocked, and does
    not report missing permissions. Here a request has one deadline, and the caller gets an error if the server rejects it.

    Call ``begin`` after the subscription to the inbox, ``expect`` and ``forget`` for each request, and ``leave`` at the end.
    """

    def __init__(self) -> None:
        self._inbox = ""
        self._subscription: Any = None
        self._numbers = count()
        self._asked: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        """Number of the request -> its subject, and the future of its answer."""
        self._accepts: dict[int, Callable[[Any], bool]] = {}
        """Number of the request -> function that returns whether a message is its answer. Not in it: the first message is."""
        self.is_open = False

    @property
    def waiting_count(self) -> int:
        return len(self._asked)

    def begin(self, inbox: str, subscription: Any) -> None:
        self._inbox, self._subscription, self.is_open = inbox, subscription, True

    async def leave(self) -> None:
        subscription, self._subscription, self.is_open = self._subscription, None, False
        await unsubscribe(subscription)

    def expect(self, subject: str, accepts: Callable[[Any], bool] | None = None) -> tuple[int, str, asyncio.Future[Any]]:
        """Register a request on ``subject``. Return (its number for ``forget``, its reply subject, the future of its answer).

        ``accepts``: as in ``Transport.expect_answer``.
        """
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._asked[number] = subject, answer
        if accepts is not None:
            self._accepts[number] = accepts
        return number, f"{self._inbox}.{number}", answer

    def forget(self, number: int) -> None:
        """Remove the request ``number``. An answer or an error for it is ignored from now on."""
        _, answer = self._asked.pop(number, ("", None))
        self._accepts.pop(number, None)
        if answer is not None and answer.done() and not answer.cancelled():
            answer.exception()

    async def process_message(self, message: Any) -> None:
        token = message.subject.rpartition(".")[2]
        number = int(token) if token.isascii() and token.isdigit() and len(token) <= _MAX_DIGITS else -1
        _, answer = self._asked.get(number, ("", None))
        accepts = self._accepts.get(number)
        if answer is not None and not answer.done() and (accepts is None or accepts(message)):
            answer.set_result(message)

    def note_denial(self, is_publish: bool, subject: str) -> bool:
        """Fail the requests that cannot be sent or answered, because NATS permissions deny ``subject``.

        Return whether there is such a request. ``is_publish``: True if NATS denied a publish, False for a subscription.
        """
        is_raised = False
        is_inbox = subject == f"{self._inbox}.*"
        if not is_publish and is_inbox:
            self.is_open = False  # the next request tries again, because permissions may change
        for number, (pending, answer) in self._asked.items():
            is_ours = pending == subject and is_publish
            if (is_ours or is_inbox or subject == f"{self._inbox}.{number}") and not answer.done():
                what = "publish" if is_ours else "be answered"
                answer.set_exception(
                    NotAllowedError(
                        f"The NATS permissions of this user do not allow it to {what} on {subject}. Change the permissions: "
                        "`liftpy permissions` prints them."
                    )
                )
                is_raised = True
        return is_raised

    def end(self, error: LiftError) -> None:
        """Fail all waiting requests with ``error``."""
        for _, answer in self._asked.values():
            if not answer.done():
                answer.set_exception(error)


def is_no_responders(message: Any) -> bool:
    """Return whether ``message`` is the answer "no responders" of the NATS server."""
    return bool(message.headers) and not message.data and message.headers.get("Status") == _NO_RESPONDERS
