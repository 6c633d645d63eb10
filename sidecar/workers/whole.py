"""WholeNode: the status of a node of several processes, asked of each of them and joined."""

from __future__ import annotations

from typing import Any

from sidecar.status.figures import Figures
from sidecar.status.report import Reporter
from sidecar.workers.merging import add_figures, joined_page
from sidecar.workers.parent import Workers
from sidecar.workers.telling import process_facts


class WholeNode:
    """``reporter``: the first process's own."""

    def __init__(self, reporter: Reporter, workers: Workers) -> None:
        self._reporter = reporter
        self._workers = workers

    async def page(self, after: tuple[str, int], count: int) -> dict[str, Any]:
        """As ``Reporter.page``; and ``workers``, each process by itself."""
        told = await self._workers.look(what="page", after=list(after), count=count)
        own = {**self._reporter.page(after, count), "process": process_facts(self._reporter)}
        return joined_page(own, enumerate(told, 1), after, count)

    async def of_stream(self, stream: str, count: int) -> list[dict[str, Any]]:
        """As ``Reporter.of_stream``."""
        told = await self._workers.look(what="stream", stream=stream, count=count)
        rows = self._reporter.of_stream(stream, count)
        for one in told:
            rows += [row for row in one.get("rows", ()) if row["stream"] == stream]
        return sorted(rows, key=lambda row: row["partition"])[:count]

    async def add(self, found: Figures) -> None:
        """Join the first process's figures with those of the others."""
        for told in await self._workers.look(what="figures"):
            add_figures(found, told)
