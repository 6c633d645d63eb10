"""Fetches the data of a page while a viewer is connected. It asks all nodes once a second over NATS.

It asks each node for its summary and the new seconds of its history, one controller for the events, and all nodes or
one for the visible partitions. Without viewers it asks no node.

A node that serves a page also copies the history of some other nodes when there are no viewers. So the page still has
the history of a node that fails. If the leader was unknown for some time, the plots of the cluster have a gap there,
not a zero.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from liftpy.config import NS_PER_S
from liftpy.core.base.strict_json import is_count
from liftpy.core.observe.cluster_health import states
from liftpy.core.observe.cluster_model import ClusterMonitor
from liftpy.core.observe.history import (
    LENGTHS,
    MOST_COVERED_S,
    NAMES,
    SECONDS,
    TENS,
    History,
    HistoryRows,
    of_cluster,
    question,
    rows_of,
    with_gaps,
)
from liftpy.core.observe.node_events import checked_events
from liftpy.core.observe.node_summary import ASKED, MOST_NODES, NodeSummary, summary_from_json
from liftpy.core.observe.page_model import (
    FIRST,
    MOST_ROWS,
    Place,
    checked_row,
    checked_streams,
    cluster_object,
    names_question,
    newest_of,
    node_row,
    partitions_question,
    shown_group,
    shown_groups,
    shown_service,
    shown_services,
    stream_about,
    stream_rows,
    streams_question,
)
from liftpy.core.observe.timeline import FILTERS, fits, marks
from liftpy.errors import LiftError
from sidecar.runtime.tasks import spawn

EVERY_S = 1.0
TIMEOUT_S = 0.9
"""Time to wait for the answer of a node, in seconds. A slower node has no data for that second."""
FRESH_S = 0.9
VIEW_TIMEOUT_S = 3.0
"""Time for which a list is requested after a viewer last wanted it, in seconds."""
UNUSED_DATA_S = 60.0
"""Time without viewers after which all data is dropped, in seconds."""
KEEP_EVERY_S, MOST_KEPT = 10.0, 16
"""Interval for storing the history of other nodes without viewers in seconds, and maximum number of these nodes."""
HISTORY_S = LENGTHS[TENS] * TENS
"""Maximum age of stored history, in seconds. Older parts could not be shown."""
MAX_SEARCH_ROWS = 50
"""Maximum number of search results of each kind."""
MOST_EVENTS = 4000
EVENTS_BACK_S = 4 * 3600
MOST_LISTS = 16
"""Maximum number of viewed lists of partitions, and of viewed lists of streams."""
_MAX_HISTORY_SOURCES = 8
"""Maximum number of nodes that are asked for the stored history of a silent node."""
_CLOCK_TOLERANCE_S = 15.0
"""Difference between two clocks that does not matter, in seconds. The newest row of a busy node is up to ten seconds old."""
_TAIL_S = 5
"""Overlap of the history that is sent each second, in seconds. Nodes answer at different times."""
_MARKS_TAIL_S = 30
MAX_NODES_ASKED = 4
"""Maximum number of nodes that are asked for the stream of events."""
NEWEST: tuple[int, ...] = (1 << 63, 0)
"""Place behind all events, for a page that begins with the newest event."""
_MOST_PAGES = 4
"""Maximum number of pages of events that are requested in one turn."""
_ALL_STEPS = (TENS, TENS, TENS, SECONDS)
"""Requests that copy a whole history. A node answers with a part of the steps of ten seconds."""
_ISR = slice(NAMES.index("isr_full"), NAMES.index("isr_under_min") + 1)


class StatusRequester(Protocol):
    """Interface to send status requests to the nodes of a cluster."""

    async def ask_node(self, node_id: str, question: bytes, timeout_s: float) -> dict[str, Any]:
        """Send ``question`` to a node and return its answer as decoded JSON. Raises LiftError if the node does not answer."""

    async def node_ids(self) -> list[str]:
        """Return the ids of the nodes to ask first. Raises LiftError."""


class _Answers:
    """Answers of nodes to one question of a viewer."""

    def __init__(self, question: dict[str, Any]) -> None:
        self.question = question
        self.last_used_s = 0.0
        self.has_answers = False
        self.answers_by_node: dict[str, Any] = {}


class _List(_Answers):
    """Page of a list of partitions that a viewer sees: the partitions of ``stream``, or those of ``node``.

    ``after``: place of the last partition of the page before.
    """

    def __init__(self, stream: str, node: str, after: Place) -> None:
        super().__init__(partitions_question(stream, after))
        self.stream, self.node = stream, node
        self.rows: list[dict[str, Any]] = []
        self._counted: dict[tuple[str, int, str], tuple[float, int]] = {}

    def update(self, now_s: float, answers: dict[str, Any]) -> None:
        """Store the answers of the nodes, and compute the rates since the last ones. ``answers``: answer of each node, by node."""
        self.has_answers = True
        self.answers_by_node = {node: one for node, one in answers.items() if isinstance(one, dict)}
        if self.stream:
            rows = stream_rows({node: one.get("rows") for node, one in self.answers_by_node.items()})[:MOST_ROWS]
        else:
            rows_of_node = self.answers_by_node.get(self.node, {}).get("rows")
            rows = [
                valid_row
                for row in (rows_of_node if isinstance(rows_of_node, list) else [])
                if (valid_row := checked_row(row)) is not None
            ]
            rows = [{**row, "told_by": self.node} for row in rows[:MOST_ROWS]]
        counted = {}
        for row in rows:
            key = row["stream"], row["partition"], row["told_by"]
            counted[key] = now_s, row["records_in"]
            before_s, count_before = self._counted.get(key, (now_s, 0))
            is_known = now_s > before_s and row["records_in"] >= count_before
            row["records_in_s"] = (row["records_in"] - count_before) / (now_s - before_s) if is_known else None
        self.rows, self._counted = rows, counted

    def page_rows(self) -> dict[str, Any]:
        """Return the list of partitions for the page. Its field ``after`` is the start of the next page, None for no further page."""
        more = any(one.get("more") is True for one in self.answers_by_node.values())
        last = self.rows[-1] if self.rows and more else None
        counts = [one["count"] for one in self.answers_by_node.values() if type(one.get("count")) is int]
        return {
            "rows": self.rows,
            "after": [last["urgency"], last["stream"], last["partition"]] if last is not None else None,
            "count": max(counts, default=0) if not self.stream else None,
            "unanswered": sorted(set() if self.stream else {self.node} - self.answers_by_node.keys()),
        }


_Key = TypeVar("_Key")
_AnswersT = TypeVar("_AnswersT", bound=_Answers)


class ClusterPoller:
    """Data of the cluster for all viewers of one status page, collected from all nodes.

    ``own``: id and history of the node that serves the page, None for another program.
    """

    def __init__(
        self,
        namespace: str,
        requester: StatusRequester,
        own: tuple[str, History] | None = None,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._namespace = namespace
        self._requester = requester
        self._own = own
        self._now = now
        self._wall = wall
        self._poll_lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.viewers = 0
        self._poll_done = asyncio.Event()
        self._last_used_s = self._last_check_s = -UNUSED_DATA_S
        self._node_ids: list[str] = []
        self.seq = 0
        self._histories: dict[str, History] = {}
        self._next_history_s: dict[str, float] = {}
        """Silent node -> time when other nodes are asked again for its stored history."""
        self._no_rows_since_s: dict[str, float] = {}
        """Node that answers without new rows -> time of the first such answer."""
        self._clock_offsets_s: dict[str, float] = {}
        """Node -> its wall clock minus that of this process, in seconds, when its last rows arrived."""
        self._forget()

    def _forget(self) -> None:
        self._monitor = ClusterMonitor(self._namespace)
        oldest = self._cluster_wall() - HISTORY_S if self._own is not None else math.inf
        self._histories = {node: one for node, one in self._histories.items() if one.newest > oldest}
        self._next_history_s = {}
        self._no_rows_since_s = {}
        self._clock_offsets_s = {}
        self._summaries: dict[str, NodeSummary | None] = {}
        self._lists: dict[tuple[str, str, Place], _List] = {}
        self._streams: dict[tuple[int, str], _Answers] = {}
        self._questions: dict[tuple[str, str], _Answers] = {}
        self.events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self.has_event_answers = True
        """True if a controller has reported its events."""
        self._last_event = (0, -1)
        self._last_node_events: dict[str, int] = {}
        """Node -> number of its last known event of its own."""

    # ---- polling -----------------------------------------------------------------------------------------------------------
    async def fresh(
        self,
        *,
        stream: str = "",
        node: str = "",
        after: Place = FIRST,
        streams_after: tuple[int, str] = (-1, ""),
        about: tuple[str, str] | None = None,
    ) -> None:
        """Wait until all data of a page is at most one second old. Arguments select the data that the page shows.

        Args:
            stream: Stream whose partitions are shown.
            node: Node whose partitions are shown.
            after: Last partition of the page before.
            streams_after: Last stream of the page before.
            about: ("groups" or "services", name of one, or '' for all).
        """
        self._last_used_s = self._now()
        wanted = [self._find(self._streams, streams_after, lambda: _Answers(streams_question(streams_after)))]
        if about is not None:
            wanted.append(self._find_answers(*about))
        if stream or node:
            wanted.append(self._find_list(stream, node, after))
        if self._task is None or self._task.done():
            self._task = spawn(self._watch(), "polling the nodes for a page")
        async with self._poll_lock:
            if not all(one.has_answers for one in wanted) or self._now() - self._last_check_s > FRESH_S:
                await self._poll()

    def _find(self, cache: dict[_Key, _AnswersT], key: _Key, make: Callable[[], _AnswersT]) -> _AnswersT:
        """Return ``cache[key]``, which a viewer wants now. ``make`` creates it. If there are too many, drop the least wanted one."""
        found = cache.get(key)
        if found is None:
            while len(cache) >= MOST_LISTS:
                del cache[min(cache, key=lambda one: cache[one].last_used_s)]
            found = cache[key] = make()
        found.last_used_s = self._now()
        return found

    def _find_list(self, stream: str, node: str, after: Place) -> _List:
        return self._find(self._lists, (stream, node, after), lambda: _List(stream, node, after))

    def _find_answers(self, kind: str, name: str) -> _Answers:
        return self._find(self._questions, (kind, name), lambda: _Answers(names_question(kind, name)))

    async def _watch(self) -> None:
        """Refresh the data each second while there are viewers. Without viewers, drop the data after ``UNUSED_DATA_S``."""
        while self.viewers or self._now() - self._last_used_s < UNUSED_DATA_S:
            await asyncio.sleep(EVERY_S - self._wall() % EVERY_S + 0.1)  # nodes sample at the full second
            if self.viewers:
                async with self._poll_lock:
                    await self._poll()
        async with self._poll_lock:
            self._forget()

    async def keep(self) -> None:
        """Copy the histories of other nodes until the call is canceled. A copy is used when its node is lost."""
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            if not self.viewers:
                async with self._poll_lock:
                    await self.copy_histories()

    async def copy_histories(self) -> None:
        """Copy the histories of at most ``MOST_KEPT`` nodes that follow this one by name."""
        own = self._own[0] if self._own is not None else ""
        with suppress(LiftError):
            nodes = [node for node in sorted(await self._requester.node_ids()) if node != own]
            after = [node for node in nodes if node > own]
            await asyncio.gather(*map(self._ask_history, [*after, *nodes[: len(nodes) - len(after)]][:MOST_KEPT]))

    def copied_history(self, node: str) -> History | None:
        """Return the copy of another node's history. None: there is no copy."""
        return self._histories.get(node)

    async def wait_for_refresh(self) -> None:
        """Wait until the data for the viewers has been requested again from the nodes."""
        await self._poll_done.wait()

    async def _poll(self) -> None:
        nodes = self._monitor.nodes(self._node_ids)
        if not nodes:
            with suppress(LiftError):
                self._node_ids = nodes = await self._requester.node_ids()
        nodes = nodes[:MOST_NODES]
        now_s = self._now()
        summaries = dict(zip(nodes, await asyncio.gather(*map(self._request_summary, nodes)), strict=True))
        self._summaries = summaries
        self._monitor.add_summaries(now_s, summaries)
        _drop_old(self._lists, now_s - VIEW_TIMEOUT_S)
        _drop_old(self._streams, now_s - VIEW_TIMEOUT_S)
        _drop_old(self._questions, now_s - VIEW_TIMEOUT_S)
        answering = [node for node in nodes if summaries[node] is not None]
        await asyncio.gather(
            *(self._ask_history(node) for node in answering),
            *(self._fetch_history(node, answering) for node in nodes if summaries[node] is None),
            *(self._ask_list(one, answering) for one in self._lists.values()),
            *(self._ask_question(one, answering) for one in self._questions.values()),
            *(self._ask_streams(one, answering) for one in self._streams.values()),
            self._ask_events(answering),
            self._ask_node_events(answering),
        )
        self._last_check_s = self._now()
        self.seq += 1
        round_done, self._poll_done = self._poll_done, asyncio.Event()
        round_done.set()

    async def _ask(self, node: str, message: dict[str, Any]) -> Any:
        """Send the question ``message`` to a node and return the content of its answer. None: the node does not answer."""
        with suppress(LiftError):
            kind = next(iter(message))
            return (await self._requester.ask_node(node, json.dumps(message).encode(), TIMEOUT_S)).get(kind)
        return None

    async def _ask_each(self, nodes: list[str], message: dict[str, Any]) -> dict[str, Any]:
        """Send the question ``message`` to all ``nodes`` at once, and return their answers by node. None: the node does not answer."""
        return dict(zip(nodes, await asyncio.gather(*(self._ask(node, message) for node in nodes)), strict=True))

    async def _request_summary(self, node: str) -> NodeSummary | None:
        with suppress(LiftError):
            return summary_from_json((await self._requester.ask_node(node, ASKED, TIMEOUT_S)).get("glance"))
        return None

    def _cluster_wall(self) -> float:
        """Return the wall clock of most nodes, in seconds. The clock of this host, or of some node, may be wrong."""
        offsets_s = sorted(self._clock_offsets_s.values())
        if len(offsets_s) % 2 == 0:
            offsets_s = sorted([*offsets_s, 0.0])
        offset_s = offsets_s[len(offsets_s) // 2]
        return self._wall() + (offset_s if abs(offset_s) > _CLOCK_TOLERANCE_S else 0.0)

    async def _ask_history(self, node: str) -> None:
        if self._own is not None and node == self._own[0]:
            self._histories[node] = self._own[1]
            self._clock_offsets_s[node] = 0.0
            return
        history, now_s = self._histories.get(node), self._now()
        is_behind_copy = now_s - self._no_rows_since_s.get(node, now_s) > MOST_COVERED_S  # the clock of the node has gone back
        if history is not None and not (history.newest and is_behind_copy):
            await self._copy_history(history, node, (SECONDS,))
            return
        self._no_rows_since_s.pop(node, None)
        copy = History()
        await self._copy_history(copy, node, _ALL_STEPS)
        if history is None or copy.newest:
            self._histories[node] = copy

    async def _copy_history(self, history: History, asked: str, steps: Sequence[int], node: str = "") -> None:
        """Add the rows of ``node`` ('': of the node ``asked`` itself) that the node ``asked`` knows to ``history``."""
        after = {TENS: 0, SECONDS: history.newest}
        for step in steps:
            rows = rows_of(await self._ask(asked, question(step, after[step], node)))
            if rows is not None and rows.count:
                history.add_rows(rows)
                after[step] = rows.first + (rows.count - 1) * step
            if rows is None or node or step != SECONDS:
                continue
            if rows.count:
                self._no_rows_since_s.pop(asked, None)
                self._clock_offsets_s[asked] = after[SECONDS] - self._wall()
            else:
                self._no_rows_since_s.setdefault(asked, self._now())

    async def _fetch_history(self, node: str, answering: list[str]) -> None:
        """If this node has no copy of the history of ``node``, which does not answer, get one from other nodes."""
        now_s = self._now()
        if node in self._histories or now_s < self._next_history_s.get(node, now_s):
            return
        self._next_history_s[node] = now_s + KEEP_EVERY_S
        own = self._own[0] if self._own is not None else ""
        for other in [one for one in answering if one != own][:_MAX_HISTORY_SOURCES]:
            history = History()
            await self._copy_history(history, other, _ALL_STEPS, node)
            if history.newest:
                self._histories[node] = history
                return

    async def _ask_list(self, wanted: _List, answering: list[str]) -> None:
        answers = await self._ask_each(answering if wanted.stream else [wanted.node], wanted.question)
        wanted.update(self._now(), answers)

    async def _ask_question(self, wanted: _Answers, answering: list[str]) -> None:
        answers = await self._ask_each(answering, wanted.question)
        wanted.answers_by_node = {node: one for node, one in answers.items() if one is not None}
        wanted.has_answers = True

    async def _ask_streams(self, wanted: _Answers, answering: list[str]) -> None:
        leader = self._monitor.model().metadata_leader
        for node in [leader, *answering] if leader in answering else answering:
            answer = await self._ask(node, wanted.question)
            if isinstance(answer, dict) and isinstance(answer.get("rows"), list):
                rows = checked_streams(answer)
                more = answer.get("more") is True and rows
                next_after = [rows[-1]["urgency"], rows[-1]["stream"]] if more else None
                wanted.answers_by_node = {"rows": rows, "after": next_after, "count": answer.get("count")}
                wanted.has_answers = True
                return

    async def _ask_events(self, answering: list[str]) -> None:
        controllers = [node for node in answering if (one := self._summaries[node]) is not None and one.is_controller]
        since_s = int(self._cluster_wall() - EVENTS_BACK_S)
        since_ns = since_s // 60 * 60 * NS_PER_S  # equal requests within a minute share an answer
        for node in controllers:
            for _ in range(_MOST_PAGES):
                answer = await self._ask(node, {"events": {"after": list(self._last_event), "since_ns": since_ns}})
                if not isinstance(answer, dict) or not isinstance(answer.get("events"), list):
                    break
                self.has_event_answers = True
                self.events.extend(event for event in answer["events"] if _is_event(event))
                match answer.get("after"):
                    case [int(index), int(number)]:
                        self._last_event = index, number
                if answer.get("more") is not True:
                    return
            else:
                return
        self.has_event_answers = bool(self.events)

    async def _ask_node_events(self, answering: list[str]) -> None:
        """Request the events that the nodes have seen by themselves, and add them to the cluster events in order of time."""
        since_ns = int(self._cluster_wall() - EVENTS_BACK_S) * NS_PER_S

        async def ask(node: str) -> list[dict[str, Any]]:
            answer = await self._ask(
                node, {"node_events": {"after": self._last_node_events.get(node, -1), "since_ns": since_ns}}
            )
            events = checked_events(answer)
            if events:
                self._last_node_events[node] = events[-1]["number"]
            return events

        new_events = [event for events in await asyncio.gather(*map(ask, answering)) for event in events]
        if new_events:
            self.events = deque(sorted([*self.events, *new_events], key=_event_place), maxlen=MOST_EVENTS)

    # ---- pages -----------------------------------------------------------------------------------------------------------
    def cluster(self, streams_after: tuple[int, str] = (-1, "")) -> dict[str, Any]:
        """Return the data of the cluster page. ``streams_after``: last stream of the page of streams before."""
        known = self._streams.get(streams_after)
        return self._object({"streams": (known and known.answers_by_node) or {"rows": [], "after": None, "count": None}})

    def node(self, node: str, after: Place = FIRST) -> dict[str, Any]:
        """Return the data of a node's page. ``after``: last partition of the page of partitions before."""
        row = next((node_row(one) for one in self._monitor.model().rows if one.node == node), None)
        return self._object({"node": row, "partitions": self._find_list("", node, after).page_rows()})

    def stream(self, stream: str, after: Place = FIRST) -> dict[str, Any]:
        """Return the data of a stream's page. ``after``: last partition of the page of partitions before."""
        shown = self._find_list(stream, "", after).page_rows()
        rates = [row["records_in_s"] for row in shown["rows"] if row["records_in_s"] is not None]
        problems = sum(1 for row in shown["rows"] if row["problem"])
        about = stream_about(one.get("about") for one in self._find_list(stream, "", after).answers_by_node.values())
        settings = about.pop("settings")
        facts = {
            "stream": stream,
            **about,
            "size_bytes": sum(row["log_bytes"] for row in shown["rows"]),
            "records_in_s": sum(rates) if rates else None,
            "shown": len(shown["rows"]),
            "problems": problems,
        }
        return self._object({"stream": facts, "settings": settings, "partitions": shown})

    def groups(self, group: str = "") -> dict[str, Any]:
        """Return the data of the page that lists the groups, or of the page of one ``group``."""
        answers = self._find_answers("groups", group).answers_by_node
        return self._object(shown_group(answers) if group else shown_groups(answers))

    def services(self, service: str = "") -> dict[str, Any]:
        """Return the data of the page that lists the services, or of the page of one ``service``."""
        answers = self._find_answers("services", service).answers_by_node
        return self._object(shown_service(answers) if service else shown_services(answers))

    async def search(self, text: str) -> dict[str, Any]:
        """Return the nodes, streams, groups and services whose name contains ``text``, at most ``MAX_SEARCH_ROWS`` of each."""
        known = [node for node, one in self._summaries.items() if one is not None]
        leader = self._monitor.model().metadata_leader
        first = leader if leader in known else next(iter(known), "")
        streams = await self._ask(first, streams_question(limit=MAX_SEARCH_ROWS, match=text)) if text and first else None
        questions = [names_question(kind, "", MAX_SEARCH_ROWS, text) for kind in ("groups", "services")]
        groups, services = await asyncio.gather(*(self._ask_each(known if text else [], one) for one in questions))
        nodes = [node_row(one) for one in self._monitor.model().rows if text and text.lower() in one.node.lower()]
        return self._object(
            {
                "text": text,
                "nodes": nodes[:MAX_SEARCH_ROWS],
                "streams": checked_streams(streams)[:MAX_SEARCH_ROWS],
                "groups": shown_groups(groups)["rows"][:MAX_SEARCH_ROWS],
                "services": shown_services(services)["rows"][:MAX_SEARCH_ROWS],
            }
        )

    async def recent_events(self, **only: str) -> dict[str, Any]:
        """Return the data of the events page: at most ``MOST_ROWS`` events, newest first.

        Events in the memory of a controller come first. Older events come from the stream of events, if there is one.
        ``only``: query of the request, such as ``kind`` or ``before``.
        """
        since_ns, until_ns = (round(float(only.get(name) or 0) * NS_PER_S) for name in ("since", "until"))
        before = place_before(only.get("before", ""))
        matching_events = [
            event
            for event in reversed(self.events)
            if _event_place(event) < before[:2] and fits(event, only) and since_ns <= event["time_ns"] < (until_ns or math.inf)
        ]
        events, more, stored_page = matching_events[:MOST_ROWS], len(matching_events) > MOST_ROWS, None
        oldest = self.events[0] if self.events else None
        if not more and (oldest is None or oldest["time_ns"] > since_ns):
            stored_query: dict[str, Any] = {
                "since_ns": since_ns,
                "until_ns": until_ns,
                "before": list(before) if before != NEWEST else None,
            }
            if oldest is not None and before[:2] > _event_place(oldest):
                stored_query["before"], at_ns = list(_event_place(oldest)), oldest["time_ns"] + 1
                stored_query["until_ns"] = min(until_ns or at_ns, at_ns)
            stored_query |= {name: only[name] for name in FILTERS if name in only}
            if (stored_page := await self._stored_events(stored_query, MOST_ROWS - len(events))) is not None:
                events, more = events + stored_page["events"], stored_page["more"]
        last = _event_place(events[-1]) if events else None
        if stored_page is not None and stored_page["more"]:
            last = stored_page["last"] or last
        older = ".".join(map(str, last)) if more and last is not None else None
        page = {
            "events": events,
            "count": len(events),
            "told": self.has_event_answers or stored_page is not None,
            "kept": stored_page is not None,
        }
        return self._object({**page, "older": older})

    async def _stored_events(self, stored_query: dict[str, Any], limit: int) -> dict[str, Any] | None:
        """Request at most ``limit`` events from the stream of events. None: there is no stream, or no node answers."""
        if limit < 1:
            return {"events": [], "more": True, "last": None}
        known = [node for node, one in self._summaries.items() if one is not None]
        known.sort(key=lambda node: not self._summaries[node].is_controller)  # type: ignore[union-attr]
        requested_nodes: set[str] = set()
        while known and len(requested_nodes) < MAX_NODES_ASKED:
            node = known.pop(0)
            requested_nodes.add(node)
            answer = await self._ask(node, {"events": {"kept": stored_query, "limit": limit}})
            if not isinstance(answer, dict):
                continue
            if isinstance(answer.get("kept"), list):
                last = answer.get("last")
                is_place = isinstance(last, list) and len(last) in (2, 3) and all(type(one) is int for one in last)
                events = [event for event in answer["kept"] if _is_event(event)]
                return {"events": events, "more": answer.get("more") is True, "last": last if is_place else None}
            if isinstance(at := answer.get("at"), list):
                known = [one for one in at if isinstance(one, str) and one in self._summaries and one not in requested_nodes]
        return None

    def _object(self, page: dict[str, Any]) -> dict[str, Any]:
        now_s = self._cluster_wall()
        newest = newest_of(of_cluster(list(self._histories.values()), SECONDS, int(now_s) - _TAIL_S, int(now_s)))
        cluster = cluster_object(self._monitor.model(), newest)
        return {"seq": self.seq, "time_ms": round(now_s * 1000), "cluster": cluster, "page": page}

    def history(self, step: int, node: str = "", after: int = 0) -> HistoryRows:
        """Return the known history of the cluster, or of ``node`` if it is not ''."""
        known = [one for name, one in self._histories.items() if not node or name == node]
        rows = of_cluster(known, step, after, int(self._cluster_wall()))
        return rows if node else with_gaps(rows, self._gaps())

    def _gaps(self) -> list[tuple[float, float]]:
        """Return the times without data about a node, as (after, until) in wall clock seconds.

        Such a time begins with the last sample of a node and ends when the node is fenced.
        """
        gaps = []
        for event in self.events:
            if event.get("kind") == "node_fenced":
                fenced_s = event["time_ns"] / NS_PER_S
                history = self._histories.get(str(event.get("node")))
                gaps.append((history.known_before(fenced_s) if history is not None else 0.0, fenced_s))
        for node, state in states(self._summaries).items():
            if state == "silent" and (history := self._histories.get(node)) is not None:
                gaps.append((history.newest, math.inf))
        return gaps

    def timeline(self, step: int, after: int = 0) -> dict[str, Any]:
        """Return the number of partitions that each node led over time, and the marks of events, for the timeline.

        ``step``: seconds per value. ``after``: wall clock in s that all values must be after. ``led``: the values of each node,
        None where nothing is known. ``nodes``: rows of the timeline, in order.
        """
        led = {}
        for node in sorted(self._histories):
            rows = of_cluster([self._histories[node]], step, after, int(self._cluster_wall()))
            isr = zip(*rows.columns[_ISR], strict=True)
            led[node] = {
                "first": rows.first,
                "led": [None if full != full else round(full + below + under, 1) for full, below, under in isr],
            }
        mark_rows = marks((event for event in self.events if event["time_ns"] / 1e9 > after), step)
        nodes = sorted({*self._summaries, *self._histories})
        return {"step": step, "nodes": nodes, "led": led, "marks": [list(mark) for mark in mark_rows]}

    def live(self, shown: dict[str, Any], node: str = "") -> dict[str, Any]:
        """Return ``shown``, the data of a page, together with the new values for its plots. ``node``: node of the plots, '' for all."""
        second = int(self._cluster_wall())
        tail = self.history(SECONDS, node, second - _TAIL_S).as_object()
        return {**shown, "tail": tail, "timeline": self.timeline(SECONDS, second - _MARKS_TAIL_S)}


def _drop_old(cache: dict[_Key, _AnswersT], before_s: float) -> None:
    for key in [key for key, one in cache.items() if one.last_used_s <= before_s]:
        del cache[key]


def _is_event(event: Any) -> bool:
    return isinstance(event, dict) and all(is_count(event.get(name)) for name in ("time_ns", "index", "number"))


def _event_place(event: dict[str, Any]) -> tuple[int, ...]:
    return event["index"], event["number"]


def place_before(text: str) -> tuple[int, ...]:
    """Return the place that ``text``, the value of the query parameter ``?before=``, names. '' means after all events.

    The form is ``index.number``, or ``index.number.offset`` with an offset in the stream of events. Raises ValueError.
    """
    if not text:
        return NEWEST
    numbers = tuple(map(int, text.split(".")))
    if len(numbers) not in (2, 3) or not all(0 <= number < 1 << 63 for number in numbers):
        raise ValueError("Invalid parameter 'before'. Use index.number or index.number.offset.")
    return numbers
