"""Takes a sample of a node each second to detect events that are not in the metadata log
(``liftpy/core/observe/node_events.py``).

A worker process sends its part of the state with its samples to the first process of the node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from liftpy.core.base.ids import PartitionKey
from liftpy.core.observe.cluster_health import DISK_LOW, QUEUED_HIGH
from liftpy.core.observe.node_events import Damage, NodeEvents, NodeSample, NodeWatch
from liftpy.nats.urls import without_secrets
from sidecar.runtime.timers import until_next_s
from sidecar.status.figures import disk_space
from sidecar.status.report import Reporter

EVERY_S = 1.0
"""Interval of the samples, in seconds."""
SELDOM = 5
"""Number of samples between two reads of services, damage and free disk space."""
MOST_WATCHED = 200
"""Maximum number of damaged replicas, and of services with one problem, that one process reports."""

Parts = Mapping[str, Any]
"""State of one process, as JSON."""


def watched_parts(reporter: Reporter) -> dict[str, Any]:
    """Return the damaged replicas, and the blocked or diverged services of this process, as a JSON object."""
    here = reporter.partitions.counts.here
    damage: list[list[Any]] = []
    blocked: list[list[Any]] = []
    differing: list[list[Any]] = []
    if here.total("partitions_with_quarantined_files"):
        for worker in [one for one in reporter.partitions if one.quarantined_files and one.damage_offset >= 0][:MOST_WATCHED]:
            leader = worker.state.leader if worker.state is not None else ""
            damage.append([*_json_key(worker.key), worker.damage_offset, "" if leader == reporter.node_id else leader])
    for worker in list(here.with_services):
        for service in worker.services.report():
            if service.get("failing") and len(blocked) < MOST_WATCHED:
                blocked.append([*_json_key(worker.key), service["service"], service["problem"]])
            if service.get("differs") and len(differing) < MOST_WATCHED:
                differing.append([*_json_key(worker.key), service["service"], service["problem"]])
    return {"damage": damage, "blocked": blocked, "differing": differing}


def _json_key(key: PartitionKey) -> list[Any]:
    return [key.stream, key.uid, key.partition]


class NodeWatcher:
    """Takes a sample of a node's state each second, from which events are made.

    Args:
        events: Receiver of the events.
        reporter: State of the node.
        others: Function that returns the damage and the services with problems in the other processes of the node.
    """

    def __init__(self, events: NodeEvents, reporter: Reporter, others: Callable[[], Iterable[Parts]] = tuple) -> None:
        self.watch = NodeWatch(events, leader_of=self._leader_of)
        self._reporter, self._others = reporter, others
        self._count = 0
        self._seen_lags: object = None
        self._parts: list[Parts] = []
        self._is_disk_low = False

    async def run(self) -> None:
        while True:
            self.sample(time.monotonic())
            await asyncio.sleep(until_next_s(EVERY_S))

    def sample(self, now_s: float) -> None:
        reporter = self._reporter
        if self._count % SELDOM == 0:
            self._parts = [watched_parts(reporter), *self._others()]
            free, size = disk_space(reporter.settings.data)
            self._is_disk_low = bool(size) and free < DISK_LOW * size
        self._count += 1
        damage = [one for part in self._parts for one in part.get("damage", ())]
        blocked, differing = (
            {(PartitionKey(*key), service): problem for part in self._parts for *key, service, problem in part.get(name, ())}
            for name in ("blocked", "differing")
        )
        room = reporter.room
        self.watch.sampled(
            NodeSample(
                now_s=now_s,
                nats_problem=nats_problem(reporter),
                is_controller=reporter.group.is_controller,
                metadata_leader=reporter.group.leader,
                groups=self._new_groups(),
                damage={PartitionKey(*key): Damage(offset, source) for *key, offset, source in damage},
                blocked=blocked,
                differing=differing,
                is_disk_low=self._is_disk_low,
                is_overloaded=bool(room.limit_bytes) and room.used_bytes >= QUEUED_HIGH * room.limit_bytes,
            ),
            datetime.now(UTC),
        )

    def _leader_of(self, key: PartitionKey) -> str:
        stream = self._reporter.group.image.streams.get(key.stream)
        if stream is None or stream.uid != key.uid or key.partition >= len(stream.partitions):
            return ""
        leader = stream.partitions[key.partition].leader
        return "" if leader == self._reporter.node_id else leader

    def _new_groups(self) -> Mapping[str, tuple[int, float]] | None:
        """Return (lag in records, lag in seconds) of each consumer group. None: they were not measured since the last sample."""
        lags = self._reporter.lags_by_group()
        if lags is self._seen_lags:
            return None
        self._seen_lags = lags
        return {name: (lag.records, lag.seconds) for name, lag in lags.items()}


def nats_problem(reporter: Reporter) -> str:
    """Return the URL and the error of a NATS connection that is down. '': all are up."""
    down = next((link for link in reporter.links.all() if not link.is_connected), None)
    if down is None:
        return ""
    where = without_secrets(reporter.settings.nats)
    return f"{where}: {down.last_problem}" if down.last_problem else where
