"""A node's glance over NATS: made of the figures that its metrics are made of, and not more often than the loop can bear."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from heapq import nsmallest
from typing import Any

from liftpy import __version__
from liftpy.core.base.instruments import Histogram
from liftpy.core.metadata.controller_metrics import ControllerMetrics
from liftpy.core.metadata.features import SPOKEN
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.observe.cluster_health import why_offline
from liftpy.core.observe.node_summary import (
    DRAINED,
    FENCED,
    LIVE,
    MOST_ENDED,
    MOST_ENDED_CHARS,
    MOST_NODES,
    MOST_SUSPECT,
    MOST_SUSPECT_CHARS,
    NodeSummary,
)
from liftpy.nats.request_guard import RequestGuard
from sidecar.runtime.tasks import spawn
from sidecar.status.answers import FAILED
from sidecar.status.figures import Figures
from sidecar.status.report import Reporter

PART_OF_LOOP = 0.05
"""Gathering takes at most this part of the time, however often it is asked for."""
FRESH_S = 0.5
"""Time for which an answer is repeated, in seconds."""
MOST_WAITING = 64
"""Maximum number of callers that wait for figures. Further ones get no answer."""


def glance_at(found: Figures, reporter: Reporter) -> NodeSummary:
    """Return the summary of the metric values."""
    group, image = reporter.group, reporter.group.image

    def total(name: str, *labels: str) -> float:
        row = found.numbers[name]
        return sum(row.values()) if not labels else row.get(labels, 0)

    def largest(name: str) -> float:
        return max(found.numbers[name].values(), default=0)

    def counts(name: str) -> tuple[int, ...]:
        return _added(list(found.histograms[name].values()))

    size, limit = total("disk_size_bytes"), total("queued_bytes_limit")
    controllers: dict[str, Any] = {}
    if group.is_controller:
        controllers = {
            "nodes": _states(image),
            "index": image.index,
            "streams": len(image.streams),
            "offline": round(total("cluster_partitions_offline")),
            "suspect_partitions": _suspect(reporter.cluster_watch),
            "electing": round(total("cluster_partitions_electing")),
            "elections": round(total("cluster_elections_total")),
        }
    if group.leader == reporter.node_id:
        members = {one.nodeId: one for one in group.status()[:MOST_NODES]}
        controllers["term"] = max((one.term for one in members.values()), default=0)
        controllers["members"] = {name: one.lag if one.connected or one.leader else -1 for name, one in members.items()}
    return NodeSummary(
        node=reporter.node_id,
        version=__version__,
        incarnation=reporter.incarnation,
        uptime_s=round(reporter.uptime_s, 1),
        is_controller=group.is_controller,
        metadata_leader=group.leader,
        applied=image.index,
        feature_level=image.feature_level,
        speaks=SPOKEN.most,
        nats_connected=bool(total("nats_connected")),
        records_in=round(total("ingest_records_total")),
        bytes_in=round(total("ingest_bytes_total")),
        records_out=round(total("read_records_total")),
        bytes_out=round(total("read_bytes_total")),
        acks=counts("ack_duration_seconds"),
        loop_lag=counts("event_loop_lag_seconds"),
        leads=round(total("partitions", "leader")),
        replicas=round(total("partitions")),
        under_replicated=round(total("partitions_under_replicated")),
        at_min_isr=round(total("partitions_at_min_isr")),
        under_min_isr=round(total("partitions_under_min_isr")),
        failed=round(total("partitions_failed")),
        services_blocked=round(total("services_blocked")),
        services_ended=round(total("services_ended")),
        ended_services=tuple(one[:MOST_ENDED_CHARS] for one in found.ended_services[:MOST_ENDED]),
        lag_records=round(largest("replica_lag_records")),
        lag_s=round(largest("replica_lag_seconds"), 3),
        disk_free=round(total("disk_free_bytes") / size, 4) if size else 1.0,
        queued=round(total("queued_bytes") / limit, 4) if limit else 0.0,
        **controllers,
    )


def _suspect(watch: ControllerMetrics) -> tuple[str, ...]:
    chosen = nsmallest(MOST_SUSPECT, watch.suspect, key=lambda key: (key.stream, key.partition))
    found = (watch.suspect[key] for key in chosen)
    return tuple(
        why_offline(key.stream, key.partition, state.status.name, state.isr, state.incomplete)[:MOST_SUSPECT_CHARS]
        for key, state in zip(chosen, found, strict=True)
    )


def _added(histograms: list[Histogram]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*(one.counts for one in histograms), strict=True)))


def _states(image: ClusterImage) -> dict[str, str]:
    chosen = sorted(image.nodes)[:MOST_NODES]
    return {name: _state(image.nodes[name]) for name in chosen}


def _state(node: Any) -> str:
    return FENCED if node.fenced else DRAINED if node.leaving else LIVE


class GlanceDesk:
    """Answers requests for the summary: at once while the last one is fresh, else after gathering it."""

    def __init__(
        self,
        gather: Callable[[], Awaitable[bytes]],
        now: Callable[[], float] = time.monotonic,
        guard: RequestGuard | None = None,
    ) -> None:
        self._gather = gather
        self._guard = guard or RequestGuard("glance", Counter())
        self._now = now
        self._answer = b""
        self._fresh_until = 0.0
        self._waiting: list[Callable[[bytes], None]] | None = None
        """Waiting callers. None: no figures are being collected."""

    def ask(self, answer: Callable[[bytes], None]) -> None:
        """``answer`` is called with the glance, now or soon."""
        if self._waiting is not None:
            if len(self._waiting) < MOST_WAITING:
                self._waiting.append(answer)
        elif self._now() < self._fresh_until:
            answer(self._answer)
        else:
            self._waiting = [answer]
            spawn(self._guard.run(self._gathered(), b""), "gathering figures for a glance")

    async def _gathered(self) -> None:
        began = self._now()
        waiting: list[Callable[[bytes], None]] | None = None
        try:
            self._answer = await self._gather()
        except Exception:
            for answer in self._waiting or ():
                answer(FAILED)
            raise
        finally:
            waiting, self._waiting = self._waiting, None
        ended = self._now()
        self._fresh_until = ended + max(FRESH_S, (ended - began) / PART_OF_LOOP)
        for answer in waiting or ():
            answer(self._answer)
