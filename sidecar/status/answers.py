"""Answers of a node to status pages: history, partitions (worst first), streams and events of the cluster, metrics.

Requests arrive on ``<ns>.status.<node>`` as one JSON object with one field, the name of the request. The node builds
lists in slices of the event loop's time, at most ``PER_SECOND`` lists per second. Callers with equal requests share an
answer. Other callers wait.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import partial
from heapq import nsmallest
from typing import Any, TypeVar

from liftpy.config import StreamConfig
from liftpy.core.base.ids import PartitionKey, is_internal
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.base.rate_limits import LogRateLimit
from liftpy.core.base.strict_json import load_json, whole_number
from liftpy.core.base.worker_assignment import WHOLE
from liftpy.core.log.log import Log
from liftpy.core.metadata.image import StreamImage
from liftpy.core.observe.history import History, select_rows
from liftpy.core.observe.node_events import NodeEvents
from liftpy.core.observe.page_model import (
    FINE,
    MOST_ROWS,
    Place,
    instance_row,
    joined_groups,
    joined_services,
    limit_of,
    match_in,
    name_and_limit_in,
    place_of,
    urgency,
)
from liftpy.core.observe.timeline import FILTERS, SKEW_NS, fits
from liftpy.core.wire.batch import RecordBatch, split_batches
from liftpy.core.wire.subjects import EVENTS_STREAM
from liftpy.errors import LiftError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.request_guard import RequestGuard
from sidecar.runtime import clock
from sidecar.runtime.settings import with_cluster
from sidecar.runtime.tasks import LoopPauses, spawn
from sidecar.status.figures import Figures
from sidecar.status.report import Reporter

logger = logging.getLogger("liftpy.requests")

T = TypeVar("T")
Answer = Callable[[bytes], None]
_DEFAULT_CONFIG = StreamConfig()
PER_SECOND = 4
MOST_KEPT = 16
"""Maximum number of stored answers to different questions."""
QUICK_PART_OF_LOOP = 0.1
"""Maximum share of the event loop's time for questions that a node answers from its memory."""
MAX_REST_S = 2.0
"""Maximum pause after a slow computation, in seconds. It may have waited for a worker process."""
KEPT_S = 5.0
"""Time for which the last answer may be repeated while there are too many requests, in seconds."""
FAILED = b'{"error":"the node failed at this request: its log says why"}'
"""Answer after an unexpected error."""
BUSY = b'{"error":"the node has too many status requests: retry in a second"}'
"""Answer while too many requests wait."""
MOST_WAITING = 1024
"""Maximum number of callers that wait for answers of one kind. Further ones get ``BUSY``."""
MOST_QUESTIONS = 64
"""Maximum number of different questions of one kind that wait. Further ones get ``BUSY``."""
HIDDEN_NODE_KINDS = ("records_read",)
"""Kinds of node events that only operators may read, because they name people and keys."""
MOST_NODE_EVENTS = 200
"""Maximum number of events of a node in one answer."""
QUESTIONS = ("history", "partitions", "streams", "groups", "services", "events", "node_events", "metrics", "settings")
STEP = 500
MAX_SCANNED_RECORDS = 20_000
HIDDEN_KIND = "request"
"""Kind of events that pages do not show, because they are about users. Only operators see them (`liftpy events`)."""
_READ_BYTES = 256 * 1024
_LOG_EVERY_S = 1.0
EventPlace = tuple[int, int]


def question_of(payload: bytes) -> tuple[str, Any] | None:
    """Return the kind of the question in ``payload``, and its content. None: it is no known question.

    The kinds are in ``QUESTIONS``.
    """
    if not payload.startswith(b'{"'):
        return None
    try:
        question = load_json(payload)
    except ValueError:
        return None
    if not isinstance(question, dict) or len(question) != 1:
        return None
    kind = next(iter(question))
    return (kind, question[kind]) if kind in QUESTIONS else None


class PageAnswers:
    """Answers the questions that status pages send to this node.

    ``reporter``: returns the status of the node, None during the start. ``gather``: collects metric values. ``most_bytes``:
    returns the maximum size of an answer.
    """

    def __init__(
        self,
        history: History,
        reporter: Callable[[], Reporter | None],
        gather: Callable[[Reporter], Awaitable[Figures]],
        most_bytes: Callable[[], int] = lambda: 1 << 20,
        guard: RequestGuard | None = None,
    ) -> None:
        self.joins: Callable[[str, dict[str, Any], Any], Awaitable[dict[str, Any]]] | None = None
        """Function that adds the rows of the node's other processes to those of this process. None: there is one process."""
        self.share = WHOLE
        """Share of the node's partitions in this process."""
        self.settings: Callable[[], list[dict[str, Any]]] = list
        """Function that returns one row for each setting of this node, without secrets."""
        self.kept: Callable[[str], History | None] = lambda node: None
        """Function that returns the stored history of another node, or None."""
        self.node_events: NodeEvents | None = None
        """Events that this node has seen by itself. None: this process keeps none."""
        self._history = history
        self._reporter = reporter
        self._gather = gather
        self._most_bytes = most_bytes
        self._shared = SharedAnswers(guard, interval_s=1 / PER_SECOND, kept_s=KEPT_S)
        self._quick = SharedAnswers(guard, loop_share=QUICK_PART_OF_LOOP)
        self._summaries: dict[str, tuple[StreamImage, dict[str, Any]]] = {}
        """Stream name -> (its image, summary of the stream). It is used again while the image is unchanged."""

    async def close(self) -> None:
        """End all computations. Their callers get ``FAILED``."""
        await self._shared.close()
        await self._quick.close()

    def ask(self, payload: bytes, answer: Answer) -> bool:
        """If ``payload`` is a question of a status page, call ``answer`` with the answer, now or soon.

        Return whether it is such a question.
        """
        question = question_of(payload)
        if question is None:
            return False
        kind, query = question
        reporter = self._reporter()
        if kind in ("history", "node_events"):
            self._quick.ask(payload, partial(self._of_memory, kind, query), answer)
        elif reporter is None:
            return False
        else:
            makers: dict[str, Callable[[Reporter, Any], Awaitable[Any]]] = {
                "partitions": partial(self._of_all_processes, "partitions"),
                "groups": partial(self._of_all_processes, "groups"),
                "services": partial(self._of_all_processes, "services"),
                "streams": self._streams,
                "events": _events,
                "metrics": self._metrics,
                "settings": self._settings,
            }
            make = makers[kind]
            self._shared.ask(payload, lambda: self._make_answer(kind, make, reporter, query), answer)
        return True

    async def _of_memory(self, kind: str, query: Any) -> bytes:
        """Return the answer to a question for rows of the history, or for events that this node has seen by itself."""
        if kind == "node_events":
            return _encode(kind, _node_events(self.node_events, query))
        node = query.get("node", "") if isinstance(query, dict) else ""
        history = self._history if node == "" else self.kept(node) if isinstance(node, str) else None
        rows = select_rows(history, query) if history is not None else None
        return _encode(kind, rows.as_object() if rows is not None else None)

    async def answer(self, payload: bytes) -> bytes:
        """Return the answer to a question, or b'' if ``payload`` is no known question."""

        def ask(answer: Answer) -> None:
            if not self.ask(payload, answer):
                answer(b"")

        return await wait_for_answer(ask)

    async def _make_answer(
        self, kind: str, make: Callable[[Reporter, Any], Awaitable[Any]], reporter: Reporter, query: Any
    ) -> bytes:
        try:
            while len(answer := _encode(kind, await make(reporter, query))) > self._most_bytes():
                if not isinstance(query, dict) or query.get("limit", MOST_ROWS) <= 1:
                    return _encode(kind, None)
                query = {**query, "limit": query.get("limit", MOST_ROWS) // 2}
            return answer
        except (ValueError, TypeError, AttributeError):
            return _encode(kind, None)

    async def _metrics(self, reporter: Reporter, query: Any) -> str:
        return (await metrics_text(await self._gather(reporter))).decode()

    async def _settings(self, reporter: Reporter, query: Any) -> list[dict[str, Any]]:
        return with_cluster(self.settings(), reporter.group.image)

    async def _of_all_processes(self, kind: str, reporter: Reporter, query: Any) -> dict[str, Any]:
        own = await self.own_rows(kind, reporter, query)
        return own if self.joins is None else await self.joins(kind, own, query)

    async def own_rows(self, kind: str, reporter: Reporter, query: Any) -> dict[str, Any]:
        """Return the answer of this process to a question for partitions, groups or services."""
        makers = {"partitions": self.partitions, "groups": _groups, "services": _services}
        return await makers[kind](reporter, query)

    # ---- partitions --------------------------------------------------------------------------------------------------------
    async def partitions(self, reporter: Reporter, query: Any) -> dict[str, Any]:
        """Return the answer of this process to a question for partitions.

        It has the partitions of this process. For one stream on a controller, it also has those that no node has or leads.
        ``query``: content of the question.
        """
        stream, after, limit = (
            query.get("stream", ""),
            place_of(query.get("after", [-1, "", -1])),
            limit_of(query.get("limit", MOST_ROWS)),
        )
        if not isinstance(stream, str):
            raise ValueError("Invalid parameter 'stream'. Use the name of a stream.")
        entries: list[tuple[Place, Any]] = []
        listed_keys, problems = set(), 0
        async for worker in _in_slices(list(reporter.partitions)):
            key = worker.key
            if not stream or key.stream == stream:
                rank = urgency(worker.state, worker.config, failed=worker.storage_failed)
                listed_keys.add((key.stream, key.partition))
                problems += rank < FINE
                entries.append(((rank, key.stream, key.partition), worker))
        for key in list(reporter.partitions.failed):
            if not stream or key.stream == stream:
                listed_keys.add((key.stream, key.partition))
                problems += 1
                entries.append(((0, key.stream, key.partition), None))
        if stream and reporter.group.is_controller and (image := reporter.group.image.streams.get(stream)) is not None:
            async for state in _in_slices(image.partitions):
                elsewhere = reporter.node_id in state.holders and not self.share.holds(stream, state.partition)
                if (
                    state.status is not PartitionStatus.ONLINE
                    and (stream, state.partition) not in listed_keys
                    and not elsewhere
                ):
                    problems += 1
                    entries.append(((urgency(state, image.config), stream, state.partition), state))
        behind = [one for one in entries if one[0] > after]
        chosen = nsmallest(limit, behind, key=lambda one: one[0])
        now_ns = clock.now_ns()
        rows = [_row(place, item, now_ns) async for place, item in _in_slices(chosen)]
        answer = {"rows": rows, "more": len(behind) > len(chosen), "count": len(entries), "problems": problems}
        known = reporter.group.image.streams.get(stream) if stream else None
        return answer if known is None else {**answer, "about": _about(known)}

    # ---- streams -----------------------------------------------------------------------------------------------------------
    async def _streams(self, reporter: Reporter, query: Any) -> dict[str, Any]:
        match query.get("after", [-1, ""]):
            case [int(rank), str(name)]:
                after = (rank, name)
            case _:
                raise ValueError("Invalid parameter 'after'. Use [urgency, name].")
        limit, streams, match = limit_of(query.get("limit", MOST_ROWS)), reporter.group.image.streams, match_in(query)
        entries = []
        async for stream in _in_slices(list(streams.values())):
            known = self._summaries.get(stream.name)
            if known is None or known[0] is not stream:
                known = self._summaries[stream.name] = (stream, _summary(stream))
            if match in stream.name.lower() or match in stream.subject.lower():
                entries.append(((known[1]["urgency"], stream.name), known[1]))
        if len(self._summaries) > len(streams):
            self._summaries = {name: known for name, known in self._summaries.items() if name in streams}
        behind = [one for one in entries if one[0] > after]
        rows = [row for _, row in nsmallest(limit, behind, key=lambda one: one[0])]
        return {"rows": rows, "more": len(behind) > len(rows), "count": len(entries)}


def _node_events(events: NodeEvents | None, query: Any) -> dict[str, Any] | None:
    """Answer ``query``, a question such as ``{"after": -1, "since_ns": 0}``, with events that this node has seen by itself.

    None: the question is invalid.
    """
    if events is None or not isinstance(query, dict):
        return None
    after, since_ns = query.get("after", -1), query.get("since_ns", 0)
    if type(after) is not int or type(since_ns) is not int:
        return None
    page = events.after(after, since_ns, MOST_NODE_EVENTS)
    return {**page, "events": [one for one in page["events"] if one["kind"] not in HIDDEN_NODE_KINDS]}


async def _groups(reporter: Reporter, query: Any) -> dict[str, Any]:
    """Answer ``query``, a question such as ``{"group": "", "limit": 500}``.

    Without a name, return the groups that this node coordinates. With a name, return one group with its members and
    positions.
    """
    (name, limit), match = name_and_limit_in(query, "group"), match_in(query)
    if not name:
        rows = [row async for row in _in_slices(reporter.group_rows()) if match in row["group"].lower()]
        return joined_groups([{"rows": rows}], limit)
    return joined_groups([reporter.group_rows_of(name)], limit)


async def _services(reporter: Reporter, query: Any) -> dict[str, Any]:
    """Answer ``query``, a question such as ``{"service": "", "limit": 500}``.

    Without a name, return totals of the services on this node. With a name, return each instance of this service.
    """
    (name, limit), match = name_and_limit_in(query, "service"), match_in(query)
    rows = []
    async for worker in _in_slices(list(reporter.partitions)):
        if not is_internal(worker.key.stream):
            for figures in (*worker.services.report(), *worker.services.left_services()):
                if (not name or figures["service"] == name) and match in str(figures["service"]).lower():
                    rows.append(instance_row(worker.key.stream, worker.key.partition, figures))
    return joined_services([{"rows": rows}], limit, of_one=bool(name))


async def _events(reporter: Reporter, query: Any) -> dict[str, Any] | None:
    """Answer ``query``, a question such as ``{"after": [index, number], "since_ns": 0, "count": 500}``, with cluster events.

    The answer leaves out the senders of requests. If the question has the field ``kept``, the events come from the stream of
    events.
    """
    if isinstance(query, dict) and "kept" in query:
        return await stored_events(reporter, query)
    answer = await reporter.group.events(json.dumps(query).encode())
    if answer is None or "events" not in answer:
        return None
    last = answer["events"][-1] if answer["events"] else None
    after = [last["index"], last["number"]] if last is not None else None
    return {**answer, "events": [event for event in answer["events"] if event["kind"] != HIDDEN_KIND], "after": after}


async def _in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield ``items``. Let other work of the event loop run every 2 ms."""
    pauses = LoopPauses()
    for number, item in enumerate(items):
        if number % 16 == 15:
            await pauses.pause()
        yield item


def _encode(kind: str, answer: Any) -> bytes:
    return json.dumps({kind: answer}, separators=(",", ":")).encode()


def _row(place: Place, item: Any, now_ns: int) -> dict[str, Any]:
    """Return the row of one partition for the status page.

    ``item``: worker of the partition on this node, or its state if no node leads it. None: its log cannot be opened.
    """
    urgent, stream, partition = place
    cells: dict[str, Any] = {
        "stream": stream, "partition": partition, "urgency": urgent, "role": "", "leader": "", "epoch": 0, "isr": [], "replicas": [],
        "newest": -1, "high_watermark": -1, "start": 0, "log_bytes": 0, "records_in": 0, "bytes_in": 0, "lag_records": 0, "lag_s": 0.0,
        "waiting_acks": 0,
    }  # fmt: skip
    worker = item if item is not None and hasattr(item, "key") else None
    state = worker.state if worker is not None else item
    if state is not None:
        cells |= {"leader": state.leader, "epoch": state.leader_epoch, "isr": list(state.isr), "replicas": list(state.replicas)}
    if worker is not None:
        counters, log = worker.ingest.counters, worker.log
        records, age_ns, _ = worker.replica.worst_lag(now_ns)
        cells |= {
            "role": str(worker.replica.role.value), "newest": log.log_end_offset - 1, "high_watermark": worker.replica.high_watermark,
            "start": log.log_start_offset, "log_bytes": log.size_bytes, "records_in": counters.records, "bytes_in": counters.size_bytes,
            "lag_records": records, "lag_s": round(age_ns / 1e9, 3), "waiting_acks": worker.acks.count,
        }  # fmt: skip
    return cells


def _about(stream: StreamImage) -> dict[str, Any]:
    differ = [(one.name, getattr(stream.config, one.name)) for one in fields(StreamConfig)]
    return {
        "subject": stream.subject,
        "partitions": stream.partition_count,
        "replicas": stream.replica_count,
        "settings": [[name, _setting_text(value)] for name, value in differ if value != getattr(_DEFAULT_CONFIG, name)],
    }


def _setting_text(value: object) -> str:
    if isinstance(value, Enum):
        return value.name.lower()
    if is_dataclass(value):
        return ", ".join(f"{one.name}={getattr(value, one.name)}" for one in fields(value))
    return str(value)


def _summary(stream: StreamImage) -> dict[str, Any]:
    ranks = [urgency(state, stream.config) for state in stream.partitions]
    return {
        "stream": stream.name, "subject": stream.subject, "urgency": min(ranks, default=FINE), "partitions": stream.partition_count,
        "replicas": stream.replica_count, "offline": ranks.count(1), "electing": ranks.count(2), "under_min_isr": ranks.count(3),
        "under_replicated": sum(len(state.isr) < len(state.replicas) for state in stream.partitions),
    }  # fmt: skip


class SharedAnswers:
    """Computes answers one at a time. Callers with equal questions share one answer.

    Every caller gets an answer. It is ``BUSY`` if too many callers wait, and ``FAILED`` if the computation raises or ``close`` ends it.

    Args:
        interval_s: Minimum time between the starts of two computations, in seconds.
        loop_share: Maximum share of the event loop's time for computations.
        kept_s: Maximum age of an answer that is sent again before the next computation may start, in seconds. 0: no
            answer is sent again, so a caller sees all changes before its question.
    """

    def __init__(
        self,
        guard: RequestGuard | None = None,
        *,
        interval_s: float = 0.0,
        loop_share: float = 1.0,
        kept_s: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._guard = guard or RequestGuard("page", Counter())
        self._interval_s, self._rest, self._kept_s, self._now = interval_s, 1 / loop_share - 1, kept_s, now
        self._cached_answers: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self._waiting: dict[bytes, tuple[Callable[[], Awaitable[bytes]], list[Answer]]] = {}
        self._waiting_count = 0
        self._log_limit = LogRateLimit(_LOG_EVERY_S)
        self._next_at = 0.0
        self._computed_for: list[Answer] = []
        """Callers of the answer that is being computed."""
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def close(self) -> None:
        """End the computation. All callers get ``FAILED``, and later ones get ``BUSY``."""
        self._is_closed = True
        await end_tasks([self._task])
        waiting, self._waiting = self._waiting, {}
        for answer in (*self._computed_for, *(answer for _, callers in waiting.values() for answer in callers)):
            self._guard.call(partial(answer, FAILED))

    def ask(self, question: bytes, make: Callable[[], Awaitable[bytes]], answer: Answer) -> None:
        """Call ``answer`` with the result of ``make``, the answer to ``question``, or with that of an equal question."""
        now, (made_at, cached_answer) = self._now(), self._cached_answers.get(question, (-math.inf, b""))
        if now - made_at < min(self._kept_s, self._interval_s) or (now - made_at < self._kept_s and now < self._next_at):
            answer(cached_answer)
        elif (
            self._is_closed
            or self._waiting_count >= MOST_WAITING
            or (question not in self._waiting and len(self._waiting) >= MOST_QUESTIONS)
        ):
            answer(BUSY)
        else:
            self._waiting.setdefault(question, (make, []))[1].append(answer)
            self._waiting_count += 1
            if self._task is None:
                self._task = spawn(self._work(), "answering status requests")

    async def wait_for(self, question: bytes, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the answer to ``question``, as ``ask`` gives it."""
        return await wait_for_answer(partial(self.ask, question, make))

    async def _work(self) -> None:
        try:
            while self._waiting:
                if (wait_s := self._next_at - self._now()) > 0:
                    await asyncio.sleep(wait_s)
                question, (make, callers) = next(iter(self._waiting.items()))
                if not self._kept_s:
                    del self._waiting[question]
                    self._computed_for = callers
                began, answer_bytes = self._now(), FAILED
                try:
                    answer_bytes = await make()
                except (OSError, LookupError) as error:  # such as a stream that is deleted during the computation
                    if self._log_limit.admit(time.monotonic()) is not None:
                        logger.warning(
                            "status request failed error=%r: request rejected, node continues", error, exc_info=error
                        )
                except Exception as error:
                    self._guard.reject_failed(b"", error)
                if self._kept_s:
                    del self._waiting[question]
                    self._keep(question, answer_bytes)
                self._computed_for = []
                self._waiting_count -= len(callers)
                now = self._now()
                self._next_at = max(began + self._interval_s, now + min((now - began) * self._rest, MAX_REST_S))
                for answer in callers:
                    self._guard.call(partial(answer, answer_bytes))
        finally:
            self._task = None

    def _keep(self, question: bytes, answer_bytes: bytes) -> None:
        if answer_bytes != FAILED:
            self._cached_answers[question] = self._now(), answer_bytes
            self._cached_answers.move_to_end(question)
        while len(self._cached_answers) > MOST_KEPT:
            self._cached_answers.popitem(last=False)


async def wait_for_answer(ask: Callable[[Answer], object]) -> bytes:
    """Call ``ask`` with a callback, and return the answer that the callback gets."""
    result: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    ask(lambda answer: None if result.done() else result.set_result(answer))
    return await result


# ---- stream of events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredEventsRequest:
    """Request for events from the stream of events.

    Attributes:
        only: Filter of the events.
        before: Place (index, number) before which the events are. None: any.
        since_ns: Start of the time range, inclusive.
        until_ns: End of the time range, exclusive.
        below: Offset of ``before`` in the stream. None: unknown.
    """

    before: EventPlace | None
    below: int | None
    since_ns: int
    until_ns: int
    only: dict[str, str]
    limit: int

    @classmethod
    def of(cls, query: Any) -> StoredEventsRequest:
        """Parse the request ``query`` for events from the stream of events. Raises ValueError if it is invalid.

        The form is ``{"kept": {"before": [index, number, offset], "since_ns": 0, "until_ns": 0, "kind": ""}, "limit": 500}``.
        """
        if not isinstance(query, dict) or not isinstance(request := query.get("kept"), dict):
            raise ValueError("Invalid parameter 'kept'. Use a JSON object.")
        before = below = None
        match request.get("before"):
            case None:
                pass
            case [index, number, *offset] if len(offset) < 2:
                before = whole_number(index, 0, 1 << 63), whole_number(number, 0, 1 << 31)
                below = whole_number(offset[0], 0, 1 << 63) if offset else None
            case _:
                raise ValueError("Invalid parameter 'before'. Use [index, number] or [index, number, offset].")
        only = {name: request[name] for name in FILTERS if name in request}
        if not all(isinstance(value, str) for value in only.values()):
            raise ValueError("Invalid parameter 'kind', 'stream' or 'node'. Use a name for each of them.")
        since_ns, until_ns = (whole_number(request.get(name, 0), 0, 1 << 63) for name in ("since_ns", "until_ns"))
        return cls(before, below, since_ns, until_ns, only, limit_of(query.get("limit", MOST_ROWS)))


async def stored_events(reporter: Reporter, query: Any) -> dict[str, Any] | None:
    """Return events from the stream of events, newest first, or None for an invalid question ``query``.

    The node reads committed events of its own replica backwards in steps of ``STEP``, and at most ``MAX_SCANNED_RECORDS`` for
    one request. The next request continues there.

    The fields of the result are ``kept``: events, ``more``: True if there may be older ones, and ``last``: place before which
    the next question begins. If this node has no replica of the stream, ``at`` names nodes that have one.
    """
    question = StoredEventsRequest.of(query)
    stream = reporter.group.image.streams.get(EVENTS_STREAM)
    if stream is None or not stream.partitions:
        return None
    key = PartitionKey(EVENTS_STREAM, stream.uid, 0)
    worker = next((one for one in reporter.partitions if one.key == key), None)
    if worker is None or not worker.is_in_sync:
        return {"at": [node for node in stream.partitions[0].isr if node != reporter.node_id]}
    try:
        return await _search_events(worker.log, worker.high_watermark + 1, question)
    except LiftError:
        return None  # damaged, or deleted in the meantime


async def _search_events(log: Log, end: int, question: StoredEventsRequest) -> dict[str, Any]:
    if question.until_ns:
        end = min(end, log.offset_for_timestamp(question.until_ns + SKEW_NS))
    if question.below is not None:
        end = min(end, question.below)
    matching_events: list[dict[str, Any]] = []
    last: tuple[int, int, int] | None = None
    lowest = end - MAX_SCANNED_RECORDS
    pauses = LoopPauses()
    while end > max(log.log_start_offset, lowest):
        batches = _between(log, max(log.log_start_offset, end - STEP), end)
        for offset, event in _newest_first(batches, end):
            if event["time_ns"] < question.since_ns or len(matching_events) == question.limit:
                return {"kept": matching_events, "more": len(matching_events) == question.limit, "last": last}
            last = event["index"], event["number"], offset
            if _is_wanted(event, question):
                matching_events.append(event)
        end = batches[0].base_offset
        await pauses.pause()
    return {"kept": matching_events, "more": end > log.log_start_offset, "last": last}


def _is_wanted(event: dict[str, Any], question: StoredEventsRequest) -> bool:
    if question.before is not None and (event["index"], event["number"]) >= question.before:
        return False
    if question.until_ns and event["time_ns"] >= question.until_ns:
        return False
    return event["kind"] != HIDDEN_KIND and fits(event, question.only)


def _between(log: Log, start: int, end: int) -> list[RecordBatch]:
    """Return the complete record batches of the log from the offset ``start`` (inclusive) to ``end`` (exclusive)."""
    batches: list[RecordBatch] = []
    while start < end:
        batches += split_batches(b"".join(log.read(start, _READ_BYTES).chunks))
        start = batches[-1].next_offset
    return batches


def _newest_first(batches: list[RecordBatch], end: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (offset, event) for the events in ``batches`` below the offset ``end``, newest first. Other records are skipped."""
    for batch in reversed(batches):
        values = batch.values()
        for number in range(min(len(values), end - batch.base_offset) - 1, -1, -1):
            value = values[number]
            try:
                event = load_json(value) if value else None
            except ValueError:
                continue
            if isinstance(event, dict) and all(type(event.get(name)) is int for name in ("index", "number", "time_ns")):
                yield batch.base_offset + number, {"kind": "", **event}


async def metrics_text(figures: Figures) -> bytes:
    """Return the text of ``/metrics`` with the values in ``figures``. A thread formats it. The first call imports prometheus_client."""

    def text() -> bytes:
        from sidecar.status.metrics import exposition  # a node that nobody scrapes saves 2 MB

        return exposition(figures)

    return await asyncio.to_thread(text)


async def partitions_text(partitions: list[dict[str, Any]]) -> bytes:
    """Return the text of ``/metrics/partitions`` for the rows ``partitions`` of a node's report. A thread formats it."""

    def text() -> bytes:
        from sidecar.status.metrics import by_partition

        return by_partition(partitions)

    return await asyncio.to_thread(text)
