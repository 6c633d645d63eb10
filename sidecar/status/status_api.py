"""Serves the status of a node: ``<ns>.status.<node>`` over NATS, and a page on loopback if a port is configured.

The page is the only port that a node opens, and only on 127.0.0.1. It has the pages of the cluster (``pages.py``),
``/status`` (JSON of this node), ``/metrics`` (Prometheus), ``/metrics/partitions?stream=S`` (the partitions of one
stream), and ``/livez`` and ``/readyz`` for supervisors. ``/status`` has ``PAGE_PARTITIONS`` partitions, or
``?count=N``, in order. ``?after=STREAM/PARTITION`` returns the next ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import nats.errors

from liftpy import __version__
from liftpy.client.admin_requests import RELOAD, object_of
from liftpy.config import NS_PER_S
from liftpy.core.base.ids import PartitionKey, check_name, quote
from liftpy.core.base.strict_json import load_json, whole_number
from liftpy.core.metadata.controller.streams import why_it_waits
from liftpy.core.metadata.controller_metrics import ControllerMetrics
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.observe.cluster_health import why_offline
from liftpy.core.observe.history import History
from liftpy.core.observe.node_events import SHOWN_S, NodeEvents, NodeWatch, repair_texts
from liftpy.core.observe.node_health import text_lines
from liftpy.core.observe.node_summary import ASKED as SUMMARY_REQUEST
from liftpy.core.observe.node_summary import (
    DRAINED,
    FENCED,
    LIVE,
    MOST_ENDED,
    MOST_ENDED_CHARS,
    MOST_NODES,
    MOST_SUSPECT,
    MOST_SUSPECT_CHARS,
    MOST_TEXT_CHARS,
    MOST_TEXTS,
    NodeSummary,
)
from liftpy.core.wire.frames import encode_presence
from liftpy.core.wire.subjects import InboxRule, Subjects, reply_to
from liftpy.errors import ConfigError, LiftError, UnavailableError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.request_guard import RequestGuard
from sidecar.partition.deletions import MOST_UNKNOWN, UnknownStreams, is_directory
from sidecar.runtime import clock
from sidecar.runtime.logs import LEVELS, LOGS
from sidecar.runtime.settings import STATUS_OFF, NodeSettings, address_of
from sidecar.runtime.tasks import TaskSet, spawn
from sidecar.status.answers import (
    BUSY,
    FAILED,
    MOST_NODE_EVENTS,
    PageAnswers,
    SharedAnswers,
    metrics_text,
    partitions_text,
)
from sidecar.status.cluster_poller import ClusterPoller
from sidecar.status.figures import Figures, NodeFigures
from sidecar.status.health import ASKED, Health
from sidecar.status.http import (
    FOREIGN_SITE,
    JSON,
    LOOPBACK,
    TEXT,
    EventStreamResponse,
    HttpServer,
    host_of,
    http,
    is_of_foreign_site,
)
from sidecar.status.merged_status import NodeStatus
from sidecar.status.metric_names import MOST_PARTITIONS
from sidecar.status.report import Reporter
from sidecar.status.sampler import NodeWatcher, Sampler, nats_problem
from sidecar.transport.connection import BusConnection, send_answer
from sidecar.transport.liveness import QUESTION
from sidecar.workers.workers import WorkerHandle

if TYPE_CHECKING:
    from sidecar.status.pages import Site

logger = logging.getLogger("liftpy.status")
_HOST = "127.0.0.1"
_LONGEST_NUMBER = 10
PAGE_PARTITIONS = 500
"""Number of partitions in one answer over NATS, and on a page without another number."""
MOST_FAILED = 100
"""Maximum number of logs that cannot be opened in one answer over NATS. The metric ``partitions_failed`` counts all of them."""
MOST_ON_A_PAGE = 5000
MOST_UNSENT_BYTES = 8 << 20
"""Unsent bytes of the connection above which a large answer becomes ``BUSY``. The connection also carries the replication."""
SMALL_BYTES = 4096
"""Maximum size of an answer that is always sent. Presence, health and the results of commands are not larger."""
PAGES_PART_OF_LOOP = 0.25
"""Maximum share of the event loop's time for status pages and for metrics over HTTP."""
_HEALTH = (b"/livez", b"/readyz")
_THERE = (
    b"/, /node/ID, /stream/NAME, /groups, /group/NAME, /services, /service/NAME, /events, /api/live, /status, /livez, /readyz, "
    b"/metrics, /metrics/partitions?stream=S\n"
)
MOST_S = 24 * 3600.0
"""Maximum time for which a requested log level is kept, in seconds."""
_Part = tuple[tuple[str, int], int]
"""Part of a list of partitions: ((stream, partition) before its start, number of partitions)."""


class StatusHandler:
    """Answers status requests to a node, over NATS and HTTP. ``reporter`` may be set after the start.

    ``workers``: worker processes of the node.
    """

    def __init__(
        self, settings: NodeSettings, counters: Counter[str] | None = None, workers: Sequence[WorkerHandle] = ()
    ) -> None:
        self._settings = settings
        self._workers = workers
        self._counters = Counter[str]() if counters is None else counters
        self._bus: BusConnection | None = None
        self._inboxes: Sequence[InboxRule] = ()
        self._guard = RequestGuard("status", self._counters, self._reject)
        self.serving = HttpServer(self._respond, self._counters)
        self.probes = HttpServer(self.answer_probe, self._counters)
        self.change_hosts(settings.dashboard_hostnames)
        self._site: Site | None = None
        """Pages of the cluster. None: nobody has requested a page yet."""
        self._poller: ClusterPoller | None = None
        self._history_task: asyncio.Task[None] | None = None
        self.reporter: Reporter | None = None
        self.on_level: Callable[[str, float], None] = lambda level, for_s: None
        """Callback (level, seconds) that tells other processes of the node about a changed log level."""
        self.on_reload: Callable[[], Awaitable[dict[str, Any]]] = _nothing_to_reload
        """Function that reloads the settings and returns the result."""
        self._reloads = TaskSet()
        self.unknown: UnknownStreams | None = None
        """Directories of streams that the cluster does not know. None: the node is still starting."""
        self._figures: NodeFigures | None = None
        self._pages = SharedAnswers(self._guard, loop_share=PAGES_PART_OF_LOOP)
        self._summaries = SharedAnswers(self._guard, interval_s=FRESH_S, loop_share=PART_OF_LOOP, kept_s=math.inf)
        self.health: Health | None = None
        self.history = History()
        self.events = NodeEvents(settings.node_id, time.time_ns, self._metadata_index)
        self.answers = PageAnswers(self.history, lambda: self.reporter, self._gather, self._most_bytes, guard=self._guard)
        self.answers.joins = self._joined_rows
        self.answers.node_events = self.events
        self._sample_task: asyncio.Task[None] | None = None
        self._watcher: NodeWatcher | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self.url = ""

    def change_hosts(self, hosts: Iterable[str]) -> None:
        """Set the allowed host names of page requests, in addition to those of loopback."""
        self._names = frozenset(name.encode() for name in (*LOOPBACK, *hosts))

    async def open_page(self) -> None:
        """Listen on loopback if a port is configured, and on ``probe_listen``. Raise ConfigError if the port is in use."""
        if self._settings.probe_listen:
            address = address_of(self._settings.probe_listen)
            try:
                await self.probes.open(*address)
            except OSError as error:
                raise ConfigError(
                    f"Cannot listen on probe_listen {self._settings.probe_listen}: {error}. Choose another address or port."
                ) from None
        port = self._settings.status_port
        if port == STATUS_OFF:
            return
        try:
            self.url = f"http://{_HOST}:{await self.serving.open(_HOST, port)}"
        except OSError as error:
            raise ConfigError(
                f"Cannot listen on status_port {port}: {error}. Choose another port, or -1 to disable it."
            ) from None

    def listen(self, bus: BusConnection, subjects: Subjects, inboxes: Sequence[InboxRule]) -> None:
        """Subscribe to the status requests of applications and nodes over NATS, and answer them.

        Send answers only to reply subjects below one of ``inboxes``.
        """
        self._bus, self._inboxes = bus, inboxes
        own = self._settings.node_id
        for subject, handler in {
            subjects.status(own): self._request_arrived,
            subjects.control_level(own): self._process_level_request,
            subjects.control_settings(own): self._process_reload_request,
        }.items():
            bus.listen(subject, self._guard.handler(handler))
        requester = NodeStatusRequester(own, bus, subjects, self)
        self._poller = ClusterPoller(self._settings.namespace, requester, own=(own, self.history))
        self.answers.kept = self._poller.copied_history

    def _answer(self, reply: bytes, answer: bytes) -> None:
        assert self._bus is not None
        if len(answer) > SMALL_BYTES and self._bus.unsent_bytes > MOST_UNSENT_BYTES:
            answer = BUSY
        send_answer(self._bus, self._inboxes, self._counters, reply, (answer,))

    def _most_bytes(self) -> int:
        return self._bus.max_payload if self._bus is not None else 1 << 20

    def _reject(self, reply: bytes, error: Exception) -> None:
        self._answer(reply, FAILED)

    def _is_inbox(self, reply: bytes) -> bool:
        return reply_to(reply, self._inboxes, self._counters) is not None

    def _request_arrived(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        if not self._is_inbox(reply):
            return
        answer = partial(self._answer, reply)
        if payload == QUESTION:
            answer(encode_presence(time.time_ns()))  # no report, because these requests may be frequent
        elif payload == ASKED and self.health is not None:
            answer(json.dumps(self.health.report()).encode())
        elif payload == SUMMARY_REQUEST and self.reporter is not None:
            self._summaries.ask(b"", self._encode_summary, answer)
        elif not self.answers.ask(payload, answer) and self.reporter is not None:
            start = repr(_decode_page_start(payload)).encode()
            node = NodeStatus(self.reporter, self._workers)
            self._pages.ask(start, partial(_encoded_page, node, payload, self._most_bytes()), answer)

    def _process_level_request(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        if self._is_inbox(reply):
            self._answer(reply, json.dumps(_change_level(payload, self.on_level)).encode())

    def _process_reload_request(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        if self._is_inbox(reply):
            self._reloads.start(self._guard.run(self._reload(reply, payload), reply), "reloading the settings")

    async def _reload(self, reply: bytes, payload: bytes) -> None:
        if payload == RELOAD:
            answer = await self.on_reload()
        else:
            answer = self.records_read_answer(payload) or self.node_events_answer(payload) or await self._remove_data(payload)
        self._answer(reply, json.dumps(answer).encode())

    def node_events_answer(self, payload: bytes) -> dict[str, Any] | None:
        """If ``payload`` requests the events of this node, return the answer. None: the request is another one."""
        try:
            query = load_json(payload)["node_events"]
            after, since_ns = whole_number(query["after"], -1, 1 << 62), whole_number(query["since_ns"], 0, 1 << 62)
        except (ValueError, TypeError, KeyError):
            return None
        return {"node_events": self.events.after(after, since_ns, MOST_NODE_EVENTS)}

    def records_read_answer(self, payload: bytes) -> dict[str, Any] | None:
        """If ``payload`` reports that a person has read records, store this as audit event and return the answer.

        None: the request is another one.
        """
        try:
            request = load_json(payload)["records_read"]
            stream = check_name(str(request["stream"]), "stream")
            partition, sender, query = (
                whole_number(request["partition"], 0, 1 << 31),
                str(request["sender"]),
                str(request["query"]),
            )
        except (ValueError, TypeError, KeyError, LiftError):
            return None
        sender = sender[:MOST_TEXT_CHARS]
        self.events.add("records_read", key=PartitionKey(stream, "", partition), sender=sender, detail=query)
        logger.info("records read stream=%s partition=%d sender=%s query=%s", stream, partition, quote(sender), quote(query))
        return {"noted": True}

    async def _remove_data(self, payload: bytes) -> dict[str, Any]:
        """Remove the directories that ``payload`` names, of streams that the cluster does not know. Return the answer."""
        try:
            names = load_json(payload)["remove_data"]
        except (ValueError, TypeError, KeyError):
            names = None
        if not isinstance(names, list) or not names:
            return {"error": f'asked is {RELOAD.decode()} or {{"remove_data": [DIRECTORY, ...]}}, and nothing else'}
        if len(names) > MOST_UNKNOWN:
            return {"error": f"{len(names)} directories are too many. Remove at most {MOST_UNKNOWN} at a time."}
        if wrong := [name for name in names if not is_directory(name)]:
            return {"error": f"{quote(wrong[0])} is no directory of a stream. `liftpy node remove-data` without it lists them."}
        if self.unknown is None:
            return {"error": "the node only starts: try again"}
        return await self.unknown.remove(names)

    def begin_history(self) -> None:
        assert self.reporter is not None
        node = NodeStatus(self.reporter, self._workers)
        self._start_sampler(Sampler(self.history, self.reporter, worker_samples=node.last_samples))
        self._watcher = NodeWatcher(self.events, self.reporter, node.watched)
        self._watch_task = spawn(self._watcher.run(), "watching the node for events")
        if self._poller is not None and self.url:
            self._history_task = spawn(self._poller.keep(), "copying the history of other nodes")

    def _start_sampler(self, sampler: Sampler) -> None:
        self._sample_task = spawn(sampler.run(), "sampling the counters of the node", endless=True)

    def _metadata_index(self) -> int:
        return self.reporter.group.image.index if self.reporter is not None else 0

    async def _gather(self, reporter: Reporter) -> Figures:
        if self._figures is None:
            self._figures = NodeFigures(reporter)
        figures = await self._figures.gather()
        await NodeStatus(reporter, self._workers).add(figures)
        return figures

    async def _joined_rows(self, kind: str, own: dict[str, Any], query: Any) -> dict[str, Any]:
        assert self.reporter is not None
        return await NodeStatus(self.reporter, self._workers).rows(kind, own, query)

    async def answer(self, asked: bytes) -> bytes:
        """Return the answer to the status request ``asked``, or b'' if there is none yet."""
        if asked == SUMMARY_REQUEST and self.reporter is not None:
            return await self._summaries.wait_for(b"", self._encode_summary)
        return await self.answers.answer(asked)

    async def _encode_summary(self) -> bytes:
        assert self.reporter is not None
        watch = self._watcher.watch if self._watcher is not None else None
        return summarize_node(await self._gather(self.reporter), self.reporter, watch).encode()

    def _healthy(self, path: bytes, query: bytes) -> bytes:
        """Return the HTTP answer to ``/livez`` or ``/readyz``: status 200 if all checks pass, otherwise 503.

        The body has a line for each check if ``?verbose`` is given or a check fails.
        """
        assert self.health is not None
        parameters = dict(parse_qsl(query.decode("ascii", "replace"), keep_blank_values=True))
        synced = path == b"/readyz" and "synced" in parameters
        checks = self.health.ready_checks() if synced else self.health.ready() if path == b"/readyz" else self.health.live()
        well = all(check.ok for check in checks)
        body = text_lines(checks) if "verbose" in parameters or not well else "ok\n"
        return http("200 OK" if well else "503 Service Unavailable", TEXT, body.encode())

    def _respond(self, request: bytes) -> bytes | Awaitable[bytes | EventStreamResponse]:
        words = request.split(b"\r\n", 1)[0].split()
        path, _, query = words[1].partition(b"?") if len(words) >= 2 else (b"", b"", b"")
        if host_of(request) not in self._names:
            return http(
                "421 Misdirected Request",
                TEXT,
                b"this page has the names 127.0.0.1 and localhost, and those of dashboard_hostnames\n",
            )
        if is_of_foreign_site(request):
            return http("403 Forbidden", TEXT, FOREIGN_SITE)
        if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
            return http("405 Method Not Allowed", TEXT, b"GET only\n")
        if path in _HEALTH and self.health is not None:
            return self._healthy(path, query)
        if path in (b"/status", b"/metrics", b"/metrics/partitions"):
            return self._own(path, query)
        if self._poller is None:
            return http("503 Service Unavailable", TEXT, b"starting\n")
        return self._page(self._poller, path.decode("ascii", "replace"), query)

    async def _page(self, viewing: ClusterPoller, path: str, query: bytes) -> bytes | EventStreamResponse:
        """Return the answer to an HTTP request for a page of the cluster."""
        if self._site is None:
            self._site = (await asyncio.to_thread(_load_site))(viewing)
        response = self._site.respond(path, query)
        if response is None:
            return http("404 Not Found", TEXT, _THERE)
        return response if isinstance(response, bytes) else await response

    async def _own(self, path: bytes, query: bytes) -> bytes:
        """Return the answer to an HTTP request for the status or the metrics of this node. Equal requests share an answer."""
        part = _part(query)
        if part is None:
            text = f"?count=1 to {MOST_ON_A_PAGE} and &after=STREAM/PARTITION, as they are or left out\n"
            return http("400 Bad Request", TEXT, text.encode())
        if self.reporter is None:
            return http("503 Service Unavailable", TEXT, b"starting\n")
        stream = dict(parse_qsl(query.decode("ascii", "replace"))).get("stream", "")
        make = partial(self._compute_own, self.reporter, path, part, stream)
        answer = await self._pages.wait_for(path + b"?" + query, make)
        if answer in (BUSY, FAILED):
            return http("503 Service Unavailable" if answer == BUSY else "500 Internal Server Error", JSON, answer)
        return answer

    async def _compute_own(self, reporter: Reporter, path: bytes, part: _Part, stream: str) -> bytes:
        node = NodeStatus(reporter, self._workers)
        if path == b"/status":
            return http("200 OK", JSON, json.dumps(await node.page(*part)).encode())
        if path == b"/metrics":
            return http("200 OK", TEXT, await metrics_text(await self._gather(reporter)))
        return http("200 OK", TEXT, await partitions_text(await node.of_stream(stream, MOST_PARTITIONS)))

    def answer_probe(self, request: bytes) -> bytes | Awaitable[bytes | EventStreamResponse]:
        """Return the answer to an HTTP request at ``probe_listen``: health and metrics, for a kubelet or Prometheus.

        Requests with any host name are allowed.
        """
        words = request.split(b"\r\n", 1)[0].split()
        path, _, query = words[1].partition(b"?") if len(words) == 3 else (b"", b"", b"")
        if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
            return http("405 Method Not Allowed", TEXT, b"GET only\n")
        if path in _HEALTH and self.health is not None:
            return self._healthy(path, query)
        if path != b"/metrics":
            return http("404 Not Found", TEXT, b"/livez, /readyz and /metrics\n")
        return self._own(path, b"")

    async def close(self) -> None:
        await end_tasks([self._history_task, self._watch_task, self._sample_task])
        await self._reloads.end()
        await self.probes.close()
        for answers in (self.answers, self._pages, self._summaries):
            await answers.close()
        await self.serving.close()


class NodeStatusRequester:
    """Sends status requests to nodes. It answers requests to its own node without NATS."""

    def __init__(self, own: str, bus: BusConnection, subjects: Subjects, handler: StatusHandler) -> None:
        self._own = own
        self._bus = bus
        self._subjects = subjects
        self._handler = handler

    async def ask_node(self, node_id: str, question: bytes, timeout_s: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout_s):
                if node_id == self._own:
                    return object_of(node_id, await self._handler.answer(question))
                subject = self._subjects.status(check_name(node_id, "node"))
                return object_of(node_id, (await self._bus.request(subject, question, timeout=timeout_s)).data)
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise UnavailableError(f"Node {node_id} does not answer: {error}. Check that it runs: `liftpy health`.") from None

    async def node_ids(self) -> list[str]:
        reporter = self._handler.reporter
        return sorted(reporter.group.image.nodes) if reporter is not None else []


def _load_site() -> type[Site]:
    """Import the pages. It takes 0.1 s, so call it in a thread. Most nodes have no viewers."""
    from sidecar.status.pages import Site

    return Site


async def _encoded_page(node: NodeStatus, payload: bytes, limit_bytes: int) -> bytes:
    """Return the page that ``payload`` requests, as JSON of at most ``limit_bytes``. Partitions beyond are left out."""
    page = await node.page(_decode_page_start(payload), PAGE_PARTITIONS)
    page = {**page, "failed_partitions": dict(islice(page["failed_partitions"].items(), MOST_FAILED))}
    while len(body := json.dumps(page).encode()) > limit_bytes and page["partitions"]:
        page = {**page, "partitions": page["partitions"][: len(page["partitions"]) // 2], "more": True}
    return body


def _decode_page_start(payload: bytes) -> tuple[str, int]:
    """Return the (stream, partition) after which a list of partitions begins, from the request ``{"after": [stream, partition]}``.

    Any other payload is a request for the start of the list.
    """
    with contextlib.suppress(ValueError, TypeError, KeyError):
        stream, partition = load_json(payload)["after"]
        return str(stream), whole_number(partition, -1, 1 << 31)
    return "", -1


async def _nothing_to_reload() -> dict[str, Any]:
    return {"error": "this process has no settings of its own"}


def _change_level(payload: bytes, tell: Callable[[str, float], None]) -> dict[str, Any]:
    """Change the log level for a time, as ``payload`` (``{"level": "debug", "for_s": 300}``) requests. Return the answer."""
    try:
        request = load_json(payload)
        level, for_s = request["level"], float(request["for_s"])
        if level not in LEVELS or not 0 < for_s <= MOST_S:
            raise ValueError("level or for_s is out of range")
    except (ValueError, TypeError, KeyError, OverflowError):
        return {"error": f"level: one of {', '.join(LEVELS)}; for_s: above 0, at most {MOST_S:g}"}
    LOGS.change_level(level, for_s, asyncio.get_running_loop().call_later)
    tell(level, for_s)
    return {"level": level, "for_s": for_s}


def _part(query: bytes) -> _Part | None:
    """Return the part of the list of partitions that an HTTP query requests: (place before the first one, number).

    None: the query is invalid.
    """
    fields = dict(parse_qsl(query.decode("ascii", "replace")))
    stream, slash, partition = fields.get("after", "/-1").rpartition("/")
    count = fields.get("count", str(PAGE_PARTITIONS))
    try:
        after, wanted = (stream, int(partition[:_LONGEST_NUMBER])), int(count[:_LONGEST_NUMBER])
    except ValueError:
        return None
    return (after, wanted) if slash and 1 <= wanted <= MOST_ON_A_PAGE else None


# ---- summary of a node ------------------------------------------------------------------------------------------------


PART_OF_LOOP = 0.05
"""Maximum share of the event loop's time for collecting summaries."""
FRESH_S = 0.5
"""Age up to which a summary is sent again, in seconds."""


_TOTALS = {
    "records_in": "ingest_records_total", "bytes_in": "ingest_bytes_total", "records_out": "read_records_total",
    "bytes_out": "read_bytes_total", "replicas": "partitions", "under_replicated": "partitions_under_replicated",
    "at_min_isr": "partitions_at_min_isr", "under_min_isr": "partitions_under_min_isr", "failed": "partitions_failed",
    "services_blocked": "services_blocked", "services_ended": "services_ended", "services_diverged": "services_diverged",
}  # fmt: skip
"""Field of a node's summary -> metric whose values are added up."""


def summarize_node(figures: Figures, reporter: Reporter, watch: NodeWatch | None = None) -> NodeSummary:
    """Return the summary of a node, built from its metric values ``figures``."""
    group, image = reporter.group, reporter.group.image

    def total(name: str, *labels: str) -> float:
        row = figures.numbers[name]
        return sum(row.values()) if not labels else row.get(labels, 0)

    def largest(name: str) -> float:
        return max(figures.numbers[name].values(), default=0)

    def counts(name: str) -> tuple[int, ...]:
        return tuple(map(sum, zip(*(one.counts for one in figures.histograms[name].values()), strict=True)))

    totals: dict[str, Any] = {field: round(total(metric)) for field, metric in _TOTALS.items()}
    size, limit = total("disk_size_bytes"), total("queued_bytes_limit")
    controllers: dict[str, Any] = {}
    if group.is_controller:
        lost_at, shown_since_ns = reporter.cluster_watch.lost_directory_ns, clock.now_ns() - round(SHOWN_S * NS_PER_S)
        controllers = {
            "nodes": {
                name: FENCED if node.fenced else DRAINED if node.leaving else LIVE
                for name, node in sorted(image.nodes.items())[:MOST_NODES]
            },
            "index": image.index,
            "streams": len(image.streams),
            "offline": round(total("cluster_partitions_offline")),
            "suspect_partitions": _suspect(reporter.cluster_watch),
            "waiting_streams": _waiting(image),
            "lost_directories": _texts(sorted(node for node, at_ns in lost_at.items() if at_ns >= shown_since_ns)),
            "electing": round(total("cluster_partitions_electing")),
            "elections": round(total("cluster_elections_total")),
        }
    if group.leader == reporter.node_id:
        members = {one.nodeId: one for one in group.status()[:MOST_NODES]}
        controllers["term"] = max((one.term for one in members.values()), default=0)
        controllers["members"] = {name: one.lag if one.connected or one.leader else -1 for name, one in members.items()}
    if watch is not None:
        repaired = watch.events.recent("damage_repaired", SHOWN_S)
        controllers |= {
            "leaderless_since": watch.leaderless_since,
            "damaged": watch.damaged_count,
            "repairs": _texts(repair_texts(reversed(repaired))),
            "stuck_groups": _texts(watch.stuck_groups),
            "differing_services": _texts(watch.differing_services),
        }
    return NodeSummary(
        node=reporter.node_id,
        version=__version__,
        incarnation=reporter.incarnation,
        uptime_s=round(reporter.uptime_s, 1),
        is_controller=group.is_controller,
        metadata_leader=group.leader,
        applied=image.index,
        feature_level=image.feature_level,
        speaks=SUPPORTED_LEVELS.most,
        nats_connected=bool(total("nats_connected")),
        nats_problem=nats_problem(reporter)[:MOST_TEXT_CHARS],
        acks=counts("ack_duration_seconds"),
        loop_lag=counts("event_loop_lag_seconds"),
        leads=round(total("partitions", "leader")),
        **totals,
        ended_services=tuple(one[:MOST_ENDED_CHARS] for one in figures.ended_services[:MOST_ENDED]),
        lag_records=round(largest("replica_lag_records")),
        lag_s=round(largest("replica_lag_seconds"), 3),
        disk_free=round(total("disk_free_bytes") / size, 4) if size else 1.0,
        queued=round(total("queued_bytes") / limit, 4) if limit else 0.0,
        **controllers,
    )


def _texts(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(text[:MOST_TEXT_CHARS] for text in texts[:MOST_TEXTS])


def _waiting(image: ClusterImage) -> tuple[str, ...]:
    streams = (image.streams[name] for name in nsmallest(MOST_TEXTS, image.waiting))
    return _texts([f"{stream.name} waits for nodes: {why_it_waits(image, stream)}" for stream in streams])


def _suspect(watch: ControllerMetrics) -> tuple[str, ...]:
    chosen = nsmallest(MOST_SUSPECT, watch.suspect, key=lambda key: (key.stream, key.partition))
    damages = (watch.suspect[key] for key in chosen)
    return tuple(
        why_offline(key.stream, key.partition, state.status.name, state.isr, state.incomplete)[:MOST_SUSPECT_CHARS]
        for key, state in zip(chosen, damages, strict=True)
    )
