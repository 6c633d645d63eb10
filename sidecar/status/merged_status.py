"""Combines the reports and metrics of a node's processes into one.

The table of metrics has the rule that combines the values of each metric. Counters never decrease: if a worker does not answer,
its last values count, and a worker that ends also ends the node.

``NodeStatus`` is the status of a node with one or several processes. It requests the status of each worker.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Sequence
from operator import add, itemgetter
from typing import Any

from liftpy.core.base.instruments import Histogram
from liftpy.core.observe.page_model import MOST_ROWS, joined_groups, joined_services, limit_of
from sidecar.status.answers import PageAnswers
from sidecar.status.figures import MOST_ENDED, Figures, NodeFigures
from sidecar.status.metric_names import FIRST, LARGEST, OLDEST, SMALLEST, SUM, TABLE
from sidecar.status.report import Reporter
from sidecar.status.sampler import Parts, ProcessSample
from sidecar.workers.workers import WorkerHandle

_MERGED = ("counters", "refused", "copies", "flush_place", "descriptors", "scrub", "derived", "nats")
"""Fields of a report whose counts are summed."""
_OF_ONE = frozenset({
    "on_loop", "last_full_pass_s", "last_finding", "partition_budget", "pass_began_s", "position", "base_offset", "max_payload_bytes",
})  # fmt: skip
"""Fields that are no counts. Their value comes from the first process."""


def add_figures(figures: Figures, message: dict[str, Any]) -> None:
    """Add the metrics ``message`` of a worker (made by ``figures_to_json``) to the metrics ``figures`` of the whole node."""
    figures.pids += message.get("pids", ())
    figures.ended_services = [*figures.ended_services, *message.get("ended_services", ())][:MOST_ENDED]
    for name, labels, figure in message.get("numbers", ()):
        if (rule := TABLE[name].rule) != FIRST:
            row = figures.numbers.setdefault(name, {})
            current = row.get(tuple(labels))
            row[tuple(labels)] = figure if current is None else _COMBINE[rule](current, figure)
    for name, labels, counts, total in message.get("histograms", ()):
        if TABLE[name].rule != FIRST:
            _add_histogram(figures, name, tuple(labels), counts, total)


def _older(age: float, other: float) -> float:
    return -1 if -1 in (age, other) else max(age, other)


_COMBINE: dict[str, Callable[[float, float], float]] = {SUM: add, LARGEST: max, SMALLEST: min, OLDEST: _older}


def _add_histogram(figures: Figures, name: str, labels: tuple[str, ...], counts: list[int], total: float) -> None:
    histogram = figures.histograms[name][labels]
    joined = Histogram(histogram.bounds)  # a copy, because this process continues to count in its own histogram
    joined.counts = [mine + other for mine, other in zip(histogram.counts, counts, strict=True)]
    joined.total = histogram.total + total
    figures.histograms[name][labels] = joined


def joined_rows(own: dict[str, Any], other_answers: Iterable[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Return the ``limit`` most urgent partition rows of all processes, sorted by urgency."""
    rows, count, problems, more = list(own["rows"]), own["count"], own["problems"], own["more"]
    for one in other_answers:
        rows += one.get("rows", ())
        count, problems = count + one.get("count", 0), problems + one.get("problems", 0)
        more = more or one.get("more", False)
    rows.sort(key=itemgetter("urgency", "stream", "partition"))
    return {**own, "rows": rows[:limit], "more": more or len(rows) > limit, "count": count, "problems": problems}


# ---- reports ---------------------------------------------------------------------------------------------------------


def joined_page(
    own: dict[str, Any], others: Iterable[tuple[int, dict[str, Any]]], after: tuple[str, int], count: int
) -> dict[str, Any]:
    """Return one page of the status of the whole node: at most ``count`` partitions that follow the partition ``after``."""
    page = dict(own)
    processes = [{"worker": 0, "answers": True, **page.pop("process")}]
    for number, answer in others:
        processes.append({"worker": number, "answers": answer.get("answers", False), **answer.get("process", {})})
        if "process" in answer:
            _join(page, number, answer)
    place = itemgetter("stream", "partition")
    rows = sorted((row for row in page["partitions"] if place(row) > after), key=place)
    page["partitions"], page["more"] = rows[:count], page["more"] or len(rows) > count
    page["coordinators"] = sorted(page["coordinators"], key=lambda one: one["partition"])
    page["workers"] = processes
    return page


def _join(page: dict[str, Any], number: int, answer: dict[str, Any]) -> None:
    for name in ("partitions", "coordinators"):
        page[name] = [*page[name], *answer[name]]
    page["more"] = page["more"] or answer["more"]
    page["failed_partitions"] = {**page["failed_partitions"], **answer["failed_partitions"]}
    page["connections"] = {**page["connections"], **{f"{name}.{number}": one for name, one in answer["connections"].items()}}
    page["flush_times"] = {name: max(ms, answer["flush_times"][name]) for name, ms in page["flush_times"].items()}
    are_connected = page["nats"]["connected"] and answer["nats"]["connected"]
    for name in _MERGED:
        page[name] = _merge(page[name], answer[name])
    page["nats"]["connected"] = are_connected


def _merge(own: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of both, with the sums of their counts. Other fields have the values of ``own``."""
    merged = {**own, **more, **own}
    for name in own.keys() & more.keys():
        if isinstance(own[name], dict):
            merged[name] = _merge(own[name], more[name])
        elif _is_count(name, own[name]) and _is_count(name, more[name]):
            merged[name] = own[name] + more[name]
    return merged


def _is_count(name: str, value: Any) -> bool:
    return name not in _OF_ONE and isinstance(value, int | float) and not isinstance(value, bool)


class NodeStatus:
    """Status of a node. ``reporter``: status of the first process. ``workers``: its worker processes, if it has any."""

    def __init__(self, reporter: Reporter, workers: Sequence[WorkerHandle]) -> None:
        self._reporter = reporter
        self._workers = workers

    async def _ask_workers(self, **what: Any) -> list[dict[str, Any]]:
        return list(await asyncio.gather(*(worker.request_status(what) for worker in self._workers)))

    async def page(self, after: tuple[str, int], count: int) -> dict[str, Any]:
        """Return one page of the node's status: at most ``count`` partitions that follow the partition ``after``.

        ``workers`` in the result has an entry for each process, if the node has several.
        """
        if not self._workers:
            return self._reporter.page(after, count)
        answers = await self._ask_workers(what="page", after=list(after), count=count)
        own = {**self._reporter.page(after, count), "process": process_facts(self._reporter)}
        return joined_page(own, enumerate(answers, 1), after, count)

    async def of_stream(self, stream: str, count: int) -> list[dict[str, Any]]:
        answers = await self._ask_workers(what="stream", stream=stream, count=count)
        rows = self._reporter.of_stream(stream, count)
        for one in answers:
            rows += [row for row in one.get("rows", ()) if row["stream"] == stream]
        return sorted(rows, key=lambda row: row["partition"])[:count]

    async def rows(self, kind: str, own: dict[str, Any], query: Any) -> dict[str, Any]:
        if not self._workers:
            return own
        answers = [one for one in await self._ask_workers(what=kind, query=query) if one["answers"]]
        limit = limit_of(query.get("limit", MOST_ROWS))
        if kind == "groups":
            return joined_groups([own, *answers], limit)
        if kind == "services":
            return joined_services([own, *answers], limit, of_one=bool(query.get("service")))
        return joined_rows(own, answers, limit)

    def last_samples(self) -> list[ProcessSample]:
        return [worker.last_sample for worker in self._workers if worker.last_sample]

    def watched(self) -> list[Parts]:
        return [sample["watched"] for sample in self.last_samples() if "watched" in sample]

    async def add(self, figures: Figures) -> None:
        for answer in await self._ask_workers(what="figures"):
            add_figures(figures, answer)


class WorkerStatus:
    """Answers the status requests that the node sends to this worker: its parts of reports, stream rows and metrics.

    ``reporter``: status of the worker's partitions.
    """

    def __init__(self, reporter: Reporter, answers: PageAnswers) -> None:
        self._reporter = reporter
        self._figures = NodeFigures(reporter)
        self._answers = answers

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request of the node.

        Requests: ``{"what": "page", "after": [stream, partition], "count": n}``, ``{"what": "stream", "stream": s, "count":
        n}``, ``{"what": "partitions"|"groups"|"services", "query": ...}`` or ``{"what": "figures"}``.
        """
        what, reporter = request["what"], self._reporter
        if what == "page":
            stream, partition = request["after"]
            return {**reporter.page((stream, partition), request["count"]), "process": process_facts(reporter)}
        if what in ("partitions", "groups", "services"):
            return await self._answers.own_rows(what, reporter, request["query"])
        if what == "stream":
            return {"rows": reporter.of_stream(request["stream"], request["count"])}
        return figures_to_json(await self._figures.gather())


def process_facts(reporter: Reporter) -> dict[str, Any]:
    """Return facts about this process: its id, its CPU time in seconds, and the numbers of its partitions and leaderships."""
    partitions = reporter.partitions
    return {
        "pid": os.getpid(),
        "partitions": len(partitions),
        "leads": len(partitions.led_partitions()),
        "cpu_s": round(time.process_time(), 3),
    }


def figures_to_json(figures: Figures) -> dict[str, Any]:
    """Encode all values of the metrics as lists, for ``add_figures`` in the first process."""
    return {
        "pids": figures.pids,
        "ended_services": figures.ended_services,
        "numbers": [[name, list(labels), figure] for name, row in figures.numbers.items() for labels, figure in row.items()],
        "histograms": [
            [name, list(labels), one.counts, one.total]
            for name, row in figures.histograms.items()
            for labels, one in row.items()
        ],
    }
