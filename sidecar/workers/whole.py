"""WholeNode: the status of a node of several processes, asked of each of them and joined."""

from __future__ import annotations

from typing import Any

from liftpy.problems import MOST_ROWS, limit_of
from sidecar.status.figures import Figures
from sidecar.status.report import Reporter
from sidecar.status.sampler import Said
from sidecar.workers.merging import add_figures, joined_page, joined_rows
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

    async def rows(self, own: dict[str, Any], said: Any) -> dict[str, Any]:
        """As ``PageAnswers.partitions``, which ``own`` is of."""
        told = await self._workers.look(what="partitions", said=said)
        return joined_rows(own, (one for one in told if one["answers"]), limit_of(said.get("limit", MOST_ROWS)))

    def sampled(self) -> list[Said]:
        """What the workers have counted, as of their last samples."""
        return [handle.sampled for handle in self._workers.handles if handle.sampled]

    async def add(self, found: Figures) -> None:
        """Join the first process's figures with those of the others."""
        for told in await self._workers.look(what="figures"):
            add_figures(found, told)
