"""The edge to nats-py: one connection, requests with a bound in time, and nats-py's errors turned into ours.

Nothing behind this module sees an exception of nats-py. What a caller must tell apart is whether the other side can have
acted: NobodyListensError says that it can't, NoAnswerError that it may have.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client as NatsConnection

from liftpy.client.credentials import Credentials
from liftpy.client.parser import StrictConnection
from liftpy.errors import ClientClosedError, ConfigError, OutcomeUnknownError, ProtocolError, UnavailableError

DEFAULT_URL = "nats://127.0.0.1:4222"
REQUEST_TIMEOUT_S = 2.0


class NobodyListensError(UnavailableError):
    """The NATS server found no subscriber: the request reached nobody and nothing was done. Retry."""

    code = "NOBODY_LISTENS"


class NoAnswerError(OutcomeUnknownError):
    """The request was sent, the answer did not come in time. Reads may be repeated; changes only under the same operation id."""

    code = "NO_ANSWER"


async def open_connection(
    servers: str | Sequence[str] = DEFAULT_URL,
    *,
    credentials: Credentials | None = None,
    name: str = "liftpy-client",
    timeout_s: float = 5.0,
    **nats_options: Any,
) -> NatsConnection:
    """A connected nats-py client that reconnects for ever; raise UnavailableError when no server answers in ``timeout_s``.

    ``servers``: one URL or several, also comma separated. ``nats_options`` go to ``nats.connect`` and win over the defaults.
    """
    urls = [u.strip() for u in (servers.split(",") if isinstance(servers, str) else servers)]
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
    seen = _ErrorsSeen()
    try:
        await _first_connect(connection, urls, {"error_cb": seen.note, **options}, timeout_s)
    except (OSError, nats.errors.Error, TimeoutError) as error:
        with contextlib.suppress(Exception):
            await connection.close()
        raise UnavailableError(f"no NATS server lets us in at {', '.join(urls)}: {seen.last or error}") from error
    except ValueError as error:
        raise ConfigError(f"{servers!r} is not a NATS URL (nats://host:port): {error}") from error
    return connection


class _ErrorsSeen:
    """nats-py's error callback: keeps the newest text instead of printing a traceback; requests report errors themselves."""

    def __init__(self) -> None:
        self.last = ""

    async def note(self, error: Exception) -> None:
        self.last = str(error) or type(error).__name__


async def _first_connect(connection: NatsConnection, urls: list[str], options: dict[str, Any], timeout_s: float) -> None:
    """The first connection gets two tries per server; endless attempts are for a connection that has worked once."""
    attempts = options.pop("max_reconnect_attempts")
    await asyncio.wait_for(connection.connect(servers=urls, max_reconnect_attempts=1, **options), timeout_s * 2)
    connection.options["max_reconnect_attempts"] = attempts


class Transport:
    """Requests over one connection. ``connection`` stays the caller's if it was given by the caller."""

    def __init__(self, connection: NatsConnection) -> None:
        self.connection = connection
        self._loop = asyncio.get_running_loop()
        self.closed = False
        self._on_close: set[Callable[[], None]] = set()

    def must_be_usable(self) -> None:
        """Raise ClientClosedError after ``close``, ConfigError in another event loop, or thread, than the one that made it."""
        if self.closed:
            raise ClientClosedError("the client is closed")
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigError(
                "a client belongs to the event loop that made it: connect anew in this one, or hand the call over "
                "(asyncio.run_coroutine_threadsafe)"
            )

    @contextlib.contextmanager
    def told_of_close(self, callback: Callable[[], None]) -> Iterator[None]:
        """Within the block ``callback`` is called when the transport is closed."""
        self._on_close.add(callback)
        try:
            yield
        finally:
            self._on_close.discard(callback)

    @property
    def max_payload_bytes(self) -> int:
        """Largest message that the NATS server takes, in bytes."""
        return int(self.connection.max_payload)

    async def request(
        self, subject: str, payload: bytes, timeout_s: float = REQUEST_TIMEOUT_S, headers: dict[str, str] | None = None
    ) -> bytes:
        """The answer's bytes; raise NobodyListensError (not delivered), NoAnswerError (unknown whether), ClientClosedError."""
        self.must_be_usable()
        try:
            answer = await self.connection.request(subject, payload, timeout=timeout_s, headers=headers)
        except nats.errors.NoRespondersError:
            raise NobodyListensError(f"nobody listens on {subject}") from None
        except (nats.errors.TimeoutError, TimeoutError):
            raise NoAnswerError(f"no answer on {subject} within {timeout_s:g} s") from None
        except nats.errors.MaxPayloadError:
            raise ProtocolError(f"{len(payload)} bytes are more than this NATS server takes") from None
        except (nats.errors.Error, OSError) as error:
            self.must_be_usable()
            raise UnavailableError(f"the NATS connection fails on {subject}: {error or type(error).__name__}") from error
        return answer.data

    async def publish(self, subject: str, payload: bytes, reply: str = "", headers: dict[str, str] | None = None) -> None:
        """Send without waiting for anything but room in the connection's buffer; errors as of ``request``."""
        self.must_be_usable()
        try:
            await self.connection.publish(subject, payload, reply=reply, headers=headers)
        except nats.errors.MaxPayloadError:
            raise ProtocolError(f"{len(payload)} bytes are more than this NATS server takes") from None
        except (nats.errors.Error, OSError) as error:
            raise UnavailableError(f"the NATS connection fails on {subject}: {error or type(error).__name__}") from error

    async def settle(self) -> None:
        """Return when the server has processed everything sent before, subscriptions included; UnavailableError if it can't.

        Twice, because nats-py's ``flush`` writes its PING ahead of what is still buffered: the PONG of the first one only
        shows that the buffer has been written, that of the second one comes after it.
        """
        try:
            await self.connection.flush(timeout=5)
            await self.connection.flush(timeout=5)
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise UnavailableError(f"the NATS connection fails: {error or type(error).__name__}") from error

    def end(self) -> None:
        """Nothing goes through here any more, and who waits is told. The connection stays open: it may be the caller's."""
        self.closed = True
        for callback in list(self._on_close):
            callback()

    async def close(self) -> None:
        """``end``, then flush and close the connection; never raises."""
        self.end()
        with contextlib.suppress(Exception):
            await self.connection.flush(timeout=2)
        with contextlib.suppress(Exception):
            await self.connection.close()
