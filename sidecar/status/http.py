"""Minimal HTTP server for the pages: only GET, one request per connection, and a limited number of live connections.

A request with an unknown host name is rejected (421). Otherwise a foreign site whose name points to this port could
read the pages. The content security policy lets a browser load only scripts, styles and data of this server. So a name
that looks like HTML stays text.

A request that a foreign site makes the browser send, such as for an image, is rejected too (403). The site could not
read the answer. But each read of records makes an audit event, and each live page uses a place.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple

from liftpy.nats.cancellation import end_tasks
from liftpy.nats.request_guard import RequestGuard
from sidecar.runtime.tasks import start_attended

REQUEST_TIMEOUT_S = 5.0
"""Timeout for the head of a request, and for each write of its answer, in seconds."""
MOST_CONNECTIONS = 32
"""Maximum number of connections.

A new connection above it closes the oldest connection without a request. If all have requests, the new one is closed.
"""
MOST_LIVE = 8
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""Host names of the loopback interface, with any port, because a tunnel has another port."""
JSON = "application/json"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
HTML = "text/html; charset=utf-8"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)


class EventStreamResponse(NamedTuple):
    """HTTP answer without an end. Each item of ``events`` is sent to the browser as a server-sent event."""

    events: AsyncGenerator[bytes, None]


FOREIGN_SITE = b"a page of another site may not load this page\n"
"""Text of the rejection (403) of a request for which ``is_of_foreign_site`` returns True."""

Respond = Callable[[bytes], "bytes | Awaitable[bytes | EventStreamResponse]"]
"""Function from the head of an HTTP request to its answer."""


def http(status: str, kind: str, body: bytes, *, kept_s: int = 0) -> bytes:
    """Return the bytes of an HTTP answer.

    ``status``: code and text, such as "200 OK". ``kind``: content type. ``kept_s``: time in s for which the browser may cache
    it.
    """
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    cache_control = f"max-age={kept_s}" if kept_s else "no-store"
    more = "Cross-Origin-Resource-Policy: same-origin\r\nReferrer-Policy: no-referrer\r\n"
    head += (
        f"Cache-Control: {cache_control}\r\nContent-Security-Policy: {POLICY}\r\nX-Content-Type-Options: nosniff\r\n{more}\r\n"
    )
    return head.encode() + body


def host_of(request: bytes) -> bytes:
    """Return the host name that the HTTP request names, without the port. b"": it names none or several.

    A foreign site may have redirected the browser to this port. Its host name shows it.
    """
    hosts = [line[5:].strip().lower() for line in request.split(b"\r\n")[1:] if line[:5].lower() == b"host:"]
    if len(hosts) != 1:
        return b""
    name, _, port = hosts[0].rpartition(b":")
    return name if port.isdigit() else hosts[0]


def is_of_foreign_site(request: bytes) -> bool:
    """Return whether a page of another site made the browser send the HTTP request, other than by a link that a person follows.

    Browsers say it in ``Sec-Fetch-`` headers, which no script can change. Other clients do not send them.
    """
    headers = dict.fromkeys((b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"), b"")
    for line in request.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() in headers:
            headers[name.lower()] = value.strip().lower()
    site, mode, destination = headers.values()
    return site in (b"cross-site", b"same-site") and (mode, destination) != (b"navigate", b"document")


class HttpServer:
    """HTTP server on one address. ``respond``: function that returns the answer to a request. ``counters``: counters of the node."""

    def __init__(self, respond: Respond, counters: Counter[str] | None = None) -> None:
        self._respond = respond
        self._guard = RequestGuard("HTTP", Counter() if counters is None else counters)
        self._server: asyncio.Server | None = None
        self.connections = 0
        self.live_count = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._silent: dict[asyncio.StreamWriter, None] = {}
        """Connections without a complete request, oldest first."""

    async def open(self, host: str, port: int) -> int:
        """Start to listen on ``host`` and ``port`` (0: any free port). Return the port. Raises OSError if the port is in use."""
        self._server = await asyncio.start_server(self._handle, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        self._silent[writer] = None
        try:
            if self.connections <= MOST_CONNECTIONS or self._close_oldest_silent(writer):
                request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_TIMEOUT_S)
                self._silent.pop(writer, None)
                answer = await self._answer(request)
                if isinstance(answer, bytes):
                    writer.write(answer)
                    await asyncio.wait_for(writer.drain(), REQUEST_TIMEOUT_S)
                else:
                    await self._go_on(answer, reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the browser has disconnected, or sent no HTTP
        finally:
            try:
                await _close_in_time(writer)
            finally:
                self.connections -= 1
                self._writers.discard(writer)
                self._silent.pop(writer, None)

    def _close_oldest_silent(self, newcomer: asyncio.StreamWriter) -> bool:
        """Close the oldest connection without a request to make room for ``newcomer``. Return False if there is none."""
        oldest = next(iter(self._silent))
        if oldest is newcomer:
            return False
        del self._silent[oldest]
        oldest.transport.abort()  # its handler sees the end, and ends
        return True

    async def _answer(self, request: bytes) -> bytes | EventStreamResponse:
        answer: bytes | EventStreamResponse = http(
            "500 Internal Server Error", TEXT, b"this request failed, the log says why\n"
        )

        async def respond() -> None:
            nonlocal answer
            response = self._respond(request)
            answer = response if isinstance(response, bytes) else await response

        await self._guard.run(respond(), b"")
        if request.startswith(b"HEAD ") and isinstance(answer, bytes):
            return b"".join(answer.partition(b"\r\n\r\n")[:2])
        return answer

    async def _go_on(self, live: EventStreamResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.live_count >= MOST_LIVE:
            writer.write(http("503 Service Unavailable", TEXT, b"so many watch already\n"))
            return
        self.live_count += 1
        sending = start_attended(_send_all(live, writer))
        client_closed = start_attended(reader.read(1))
        try:
            await asyncio.wait((sending, client_closed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks([sending, client_closed])
            self.live_count -= 1
            await live.events.aclose()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.close()


async def _close_in_time(writer: asyncio.StreamWriter) -> None:
    """Close the connection ``writer`` in limited time, even if the browser does not read."""
    writer.close()
    try:
        await asyncio.wait_for(writer.wait_closed(), REQUEST_TIMEOUT_S)
    except (OSError, TimeoutError):
        pass  # the finally block aborts the connection
    finally:
        writer.transport.abort()


async def _send_all(live: EventStreamResponse, writer: asyncio.StreamWriter) -> None:
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\nCache-Control: no-store\r\n"
    writer.write(f"{head}Content-Security-Policy: {POLICY}\r\nX-Content-Type-Options: nosniff\r\n\r\n".encode())
    async for text in live.events:
        writer.write(b"data: " + text + b"\n\n")
        await asyncio.wait_for(writer.drain(), REQUEST_TIMEOUT_S)
