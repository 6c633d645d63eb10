"""Status data that a worker sends to its node: its part of reports, stream rows and metrics."""

from __future__ import annotations

import os
import time
from typing import Any

from sidecar.status.answers import PageAnswers
from sidecar.status.figures import Figures, NodeFigures
from sidecar.status.report import Reporter


class Telling:
    """``reporter``: the worker's own, of its partitions, connections and counters."""

    def __init__(self, reporter: Reporter, answers: PageAnswers) -> None:
        self._reporter = reporter
        self._figures = NodeFigures(reporter)
        self._answers = answers

    async def tell(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The answer to ``{"what": "page", "after": [stream, partition], "count": n}``, ``{"what": "stream", "stream": s, "count":
        n}``, ``{"what": "partitions", "said": ...}`` or ``{"what": "figures"}``."""
        what, reporter = asked["what"], self._reporter
        if what == "page":
            stream, partition = asked["after"]
            return {**reporter.page((stream, partition), asked["count"]), "process": process_facts(reporter)}
        if what == "partitions":
            return await self._answers.partitions(reporter, asked["said"])
        if what == "stream":
            return {"rows": reporter.of_stream(asked["stream"], asked["count"])}
        return figures_to_json(await self._figures.gather())


def process_facts(reporter: Reporter) -> dict[str, Any]:
    """Return facts about this process."""
    partitions = reporter.partitions
    return {
        "pid": os.getpid(),
        "partitions": len(partitions),
        "leads": len(partitions.leading()),
        "cpu_s": round(time.process_time(), 3),
    }


def figures_to_json(found: Figures) -> dict[str, Any]:
    """Return all metric values as lists."""
    return {
        "pids": found.pids,
        "ended_services": found.ended_services,
        "numbers": [[name, list(labels), figure] for name, row in found.numbers.items() for labels, figure in row.items()],
        "histograms": [
            [name, list(labels), one.counts, one.total] for name, row in found.histograms.items() for labels, one in row.items()
        ],
    }
