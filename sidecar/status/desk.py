"""Where a node's status is asked for: ``<ns>.status.<node>`` over NATS, and a page on loopback if a port is configured.

The page is the only port that a node opens, and only on 127.0.0.1: ``/`` for people, ``/status`` JSON, ``/metrics`` Prometheus, of one
stream by partition ``/metrics/partitions?stream=S``; ``/livez`` and ``/readyz`` for whoever starts and stops it.
The first two show ``PAGE_PARTITIONS`` partitions, or ``?count=N``, in order; ``?after=STREAM/PARTITION`` those behind that one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import html
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode

from liftpy.errors import ConfigError
from liftpy.glance import ASKED as GLANCE_ASKED
from liftpy.health import told
from liftpy.history import History
from liftpy.strict_json import load_json, whole_number
from liftpy.wire.inboxes import InboxRule
from liftpy.wire.subjects import Subjects
from sidecar.bus.absence import QUESTION
from sidecar.bus.connection import BusConnection
from sidecar.logs import LEVELS, LOGS
from sidecar.settings import STATUS_OFF, NodeSettings
from sidecar.status.answers import PageAnswers
from sidecar.status.figures import Figures, NodeFigures
from sidecar.status.glance import GlanceDesk, glance_at
from sidecar.status.health import ASKED, Health
from sidecar.status.metrics import MOST_PARTITIONS, by_partition, exposition
from sidecar.status.report import Reporter
from sidecar.status.sampler import Said, Sampler
from sidecar.tasks import spawn

_HOST = "127.0.0.1"
_OWN_NAMES = (b"127.0.0.1", b"localhost")
"""Under which the page is asked for, whatever the port: a tunnel has another one."""
_REQUEST_TIMEOUT_S = 5.0
_MAX_CONNECTIONS = 32
_LONGEST_NUMBER = 10
PAGE_PARTITIONS = 500
"""In one answer over NATS, and on a page of the status port that names no other number."""
MOST_ON_A_PAGE = 5000
MOST_GATHERING = 64
"""Pages that are being gathered from a node's processes at once, over NATS; who asks beyond hears nothing."""
_HEALTH = (b"/livez", b"/readyz")
_JSON = "application/json"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_HTML = "text/html; charset=utf-8"


class Whole(Protocol):
    """The status of a node of several processes, gathered from them."""

    async def page(self, after: tuple[str, int], count: int) -> dict[str, Any]:
        """As ``Reporter.page``."""

    async def of_stream(self, stream: str, count: int) -> list[dict[str, Any]]:
        """As ``Reporter.of_stream``."""

    async def add(self, found: Figures) -> None:
        """Add the other processes' figures."""

    async def rows(self, own: dict[str, Any], said: Any) -> dict[str, Any]:
        """Join what this process answers to a question about partitions with what the others do."""

    def sampled(self) -> list[Said]:
        """What the other processes have counted, as of their last samples."""


class StatusDesk:
    """``reporter`` may be set after the start: a node says where its page is when it registers, before it has partitions."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._server: asyncio.Server | None = None
        self._connections = 0
        self.reporter: Reporter | None = None
        self.whole: Whole | None = None
        """None: the node is one process."""
        self.on_level: Callable[[str, float], None] = lambda level, for_s: None
        """Tells other processes of the node."""
        self._gathering = 0
        self._figures: NodeFigures | None = None
        self._glances = GlanceDesk(self._glance)
        self.health: Health | None = None
        self.history = History()
        self.answers = PageAnswers(self.history, lambda: self.reporter, self._gather, lambda: self._most_bytes)
        self.answers.joins = self._joined_rows
        self._most_bytes = 1 << 20
        self._sampler: Sampler | None = None
        self.url = ""

    async def open_page(self) -> None:
        """Listen on loopback if a port is configured; raise ConfigError when it is taken."""
        port = self._settings.status_port
        if port == STATUS_OFF:
            return
        try:
            self._server = await asyncio.start_server(self._handle, _HOST, port)
        except OSError as error:
            raise ConfigError(f"status_port {port} can't be used: {error}") from None
        self.url = f"http://{_HOST}:{self._server.sockets[0].getsockname()[1]}"

    def listen(self, bus: BusConnection, subjects: Subjects, inboxes: Sequence[InboxRule]) -> None:
        """Answer requests over NATS, under any of ``inboxes``: of applications, and of nodes, which ask whether this one is there."""
        self._most_bytes = bus.max_payload

        def asked(subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
            if not any(rule.allows(reply) for rule in inboxes):
                return
            if payload == QUESTION:
                bus.send(reply.decode(), (b"yes",))  # no report: whoever asks may ask often
            elif payload == ASKED and self.health is not None:
                bus.send(reply.decode(), (json.dumps(self.health.report()).encode(),))
            elif payload == GLANCE_ASKED and self.reporter is not None:
                self._glances.ask(partial(_send, bus, reply.decode()))
            elif self.answers.ask(payload, partial(_send, bus, reply.decode())):
                pass
            elif self.reporter is not None and self.whole is None:
                bus.send(reply.decode(), (_page_of(self.reporter, payload, bus.max_payload),))
            elif self.whole is not None and self._gathering < MOST_GATHERING:
                spawn(
                    self._send_whole(self.whole, payload, partial(_send, bus, reply.decode()), bus.max_payload), "a status page"
                )

        bus.listen(subjects.status(self._settings.node_id), asked)

        def told(subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
            if any(rule.allows(reply) for rule in inboxes):
                bus.send(reply.decode(), (json.dumps(_change_level(payload, self.on_level)).encode(),))

        bus.listen(subjects.control_level(self._settings.node_id), told)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= _MAX_CONNECTIONS:
                request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _REQUEST_TIMEOUT_S)
                answer = self._respond(request)
                writer.write(answer if isinstance(answer, bytes) else await answer)
                await asyncio.wait_for(writer.drain(), _REQUEST_TIMEOUT_S)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a visitor that goes away or speaks no HTTP
        finally:
            self._connections -= 1
            writer.close()

    def begin_history(self) -> None:
        """Sample the node each second from now on: there is a reporter."""
        assert self.reporter is not None
        whole = self.whole
        self._sampler = Sampler(self.history, self.reporter, others=whole.sampled if whole is not None else tuple)
        self._sampler.start()

    async def _gather(self, reporter: Reporter) -> Figures:
        if self._figures is None:
            self._figures = NodeFigures(reporter)
        found = await self._figures.gather()
        if self.whole is not None:
            await self.whole.add(found)
        return found

    async def _joined_rows(self, own: dict[str, Any], said: Any) -> dict[str, Any]:
        return own if self.whole is None else await self.whole.rows(own, said)

    async def _send_whole(self, whole: Whole, payload: bytes, send: Callable[[bytes], None], limit_bytes: int) -> None:
        self._gathering += 1
        try:
            page = await whole.page(_asked_after(payload), PAGE_PARTITIONS)
        finally:
            self._gathering -= 1
        send(_within(page, limit_bytes))

    async def _answer_whole(self, whole: Whole, path: bytes, part: _Part, stream: str, wanted: bool) -> bytes:
        if path == b"/metrics/partitions":
            rows = await whole.of_stream(stream, MOST_PARTITIONS)
            return _http("200 OK", _TEXT, by_partition(rows) if wanted else b"")
        page = await whole.page(*part)
        kind, body = (_HTML, _page(page, part[1])) if path == b"/" else (_JSON, json.dumps(page).encode())
        return _http("200 OK", kind, body if wanted else b"")

    async def _glance(self) -> bytes:
        assert self.reporter is not None
        return glance_at(await self._gather(self.reporter), self.reporter).encode()

    async def _metrics(self, reporter: Reporter, wanted: bool) -> bytes:
        """Gathered in slices, put into words in a thread: neither keeps the loop."""
        found = await self._gather(reporter)
        return _http("200 OK", _TEXT, await asyncio.to_thread(exposition, found) if wanted else b"")

    def _healthy(self, path: bytes, query: bytes) -> bytes:
        """200 or 503, with a line for each check where ``?verbose`` asks, or one fails."""
        assert self.health is not None
        asked = dict(parse_qsl(query.decode("ascii", "replace"), keep_blank_values=True))
        synced = path == b"/readyz" and "synced" in asked
        checks = self.health.synced() if synced else self.health.ready() if path == b"/readyz" else self.health.live()
        well = all(check.ok for check in checks)
        body = told(checks) if "verbose" in asked or not well else "ok\n"
        return _http("200 OK" if well else "503 Service Unavailable", _TEXT, body.encode())

    def _respond(self, request: bytes) -> bytes | Awaitable[bytes]:
        words = request.split(b"\r\n", 1)[0].split()
        pages: dict[bytes, Callable[[Reporter, _Part], tuple[str, bytes]]] = {
            b"/": lambda r, part: (_HTML, _page(r.page(*part), part[1])),
            b"/status": lambda r, part: (_JSON, json.dumps(r.page(*part)).encode()),
            b"/metrics/partitions": lambda r, _: (_TEXT, by_partition(r.of_stream(_stream(query), MOST_PARTITIONS))),
        }
        path, _, query = words[1].partition(b"?") if len(words) >= 2 else (b"", b"", b"")
        if _host_of(request) not in _OWN_NAMES:
            return _http("421 Misdirected Request", _TEXT, b"this page has the names 127.0.0.1 and localhost only\n")
        if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
            return _http("405 Method Not Allowed", _TEXT, b"GET only\n")
        if path in _HEALTH and self.health is not None:
            return self._healthy(path, query)
        if path not in pages and path != b"/metrics":
            return _http("404 Not Found", _TEXT, b"/, /status, /livez, /readyz, /metrics and /metrics/partitions?stream=S\n")
        part = _part(query)
        if part is None:
            text = f"?count=1 to {MOST_ON_A_PAGE} and &after=STREAM/PARTITION, as they are or left out\n"
            return _http("400 Bad Request", _TEXT, text.encode())
        if self.reporter is None:
            return _http("503 Service Unavailable", _TEXT, b"starting\n")
        if path == b"/metrics":
            return self._metrics(self.reporter, words[0] == b"GET")
        if self.whole is not None:
            return self._answer_whole(self.whole, path, part, _stream(query), words[0] == b"GET")
        kind, body = pages[path](self.reporter, part)
        return _http("200 OK", kind, body if words[0] == b"GET" else b"")

    async def close(self) -> None:
        """Close the page."""
        if self._sampler is not None:
            self._sampler.close()
        if self._server is not None:
            self._server.close()
            self._server = None


def _send(bus: BusConnection, reply: str, answer: bytes) -> None:
    bus.send(reply, (answer,))


def _host_of(request: bytes) -> bytes:
    """The name that the visitor's browser takes this page for, without the port: a foreign site's, if that has sent it here."""
    hosts = [line[5:].strip().lower() for line in request.split(b"\r\n")[1:] if line[:5].lower() == b"host:"]
    if len(hosts) != 1:
        return b""
    name, _, port = hosts[0].rpartition(b":")
    return name if port.isdigit() else hosts[0]


def _page_of(reporter: Reporter, payload: bytes, limit_bytes: int) -> bytes:
    """As much of the list of partitions as goes into one message, and into few milliseconds, behind where the question says."""
    after = _asked_after(payload)
    count = PAGE_PARTITIONS
    while True:
        body = json.dumps(reporter.page(after, count)).encode()
        if len(body) <= limit_bytes or not count:
            return body
        count //= 2


def _within(page: dict[str, Any], limit_bytes: int) -> bytes:
    """As much of its partitions as goes into one message."""
    while len(body := json.dumps(page).encode()) > limit_bytes and page["partitions"]:
        page = {**page, "partitions": page["partitions"][: len(page["partitions"]) // 2], "more": True}
    return body


def _asked_after(payload: bytes) -> tuple[str, int]:
    """``{"after": [stream, partition]}``; anything else asks for the first page."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        stream, partition = load_json(payload)["after"]
        return str(stream), whole_number(partition, -1, 1 << 31)
    return "", -1


MOST_S = 24 * 3600.0
"""A level that was asked for holds at most so long."""


def _change_level(payload: bytes, tell: Callable[[str, float], None]) -> dict[str, Any]:
    """``{"level": "debug", "for_s": 300}``; what is said to who asked."""
    try:
        asked = load_json(payload)
        level, for_s = asked["level"], float(asked["for_s"])
        if level not in LEVELS or not 0 < for_s <= MOST_S:
            raise ValueError("out of bounds")
    except (ValueError, TypeError, KeyError):
        return {"error": f"level: one of {', '.join(LEVELS)}; for_s: above 0, at most {MOST_S:g}"}
    LOGS.change_level(level, for_s, asyncio.get_running_loop().call_later)
    tell(level, for_s)
    return {"level": level, "for_s": for_s}


_Part = tuple[tuple[str, int], int]
"""((stream, partition) behind which it begins, how many)."""


def _part(query: bytes) -> _Part | None:
    """What a page is asked for; None: nothing of the sort. Names that are nobody's change nothing."""
    fields = dict(parse_qsl(query.decode("ascii", "replace")))
    stream, slash, partition = fields.get("after", "/-1").rpartition("/")
    count = fields.get("count", str(PAGE_PARTITIONS))
    try:
        after, wanted = (stream, int(partition[:_LONGEST_NUMBER])), int(count[:_LONGEST_NUMBER])
    except ValueError:
        return None
    return (after, wanted) if slash and 1 <= wanted <= MOST_ON_A_PAGE else None


def _stream(query: bytes) -> str:
    return dict(parse_qsl(query.decode("ascii", "replace"))).get("stream", "")


_STYLE = "body{font:14px sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:left}tr:nth-child(even){background:#eee}"
_POLICY = (
    "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
)
"""Of what is served a browser may use this one style, and nothing else: names in there stay text even where they look like markup."""


def _http(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    return f"{head}Content-Security-Policy: {_POLICY}\r\nX-Content-Type-Options: nosniff\r\n\r\n".encode() + body


_COLUMNS = (
    "stream",
    "partition",
    "role",
    "phase",
    "leader",
    "leader_epoch",
    "isr",
    "newest_offset",
    "high_watermark",
    "paused",
)


def _page(report: dict[str, Any], count: int) -> bytes:
    """A table for people, without scripts, and where it goes on."""
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_text(p[c]))}</td>" for c in _COLUMNS) + "</tr>" for p in report["partitions"]
    )
    heads = "".join(f"<th>{c.replace('_', ' ')}</th>" for c in _COLUMNS)
    facts = ("node", "version", "incarnation", "uptime_s", "metadata_leader", "metadata_index")
    summary = ", ".join(f"{name.replace('_', ' ')} {html.escape(str(report[name]))}" for name in facts)
    last = report["partitions"][-1] if report["more"] else None
    where = urlencode({"after": f"{last['stream']}/{last['partition']}", "count": count}) if last is not None else ""
    further = f'<p><a href="/?{html.escape(where)}">the next {count}</a></p>' if where else ""
    text = (
        f"<!doctype html><title>liftpy {html.escape(report['node'])}</title><style>{_STYLE}</style>"
        f"<h1>{html.escape(report['node'])}</h1><p>{summary}</p><table><tr>{heads}</tr>{rows}</table>{further}"
        '<p><a href="/status">JSON</a> <a href="/metrics">metrics</a></p>'
    )
    return text.encode()


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
