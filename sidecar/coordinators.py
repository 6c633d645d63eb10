"""The coordinators of consumer groups and work queues: this node runs one for each partition of ``_groups`` of which it has a replica.

What a coordinator is, the framework of replicated services says (``liftpy.service``): it follows the log beside every replica, and is
LEADER, so that it answers, beside the partition's leader alone; promotions wait for it, deposed it is FOLLOWER by the lease of its
orders, and what it says then is fenced. So a fail-over replays nothing. This is where it is started and ended: when the image shows a
replica here, and when it does not any more; one that fails is begun anew, later each time, and the node goes on meanwhile.

What it and its node say to each other, and what it reads, takes no way over NATS (``ServiceDesk.said_here``,
``sidecar.own_reads``): one that idles costs next to nothing. All else goes over NATS as of a service in a process of its own, on one
connection for all of them. What members ask takes nothing from replication but time on the event loop, and of that at most
``STEP_S`` at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from nats.aio.client import Client as NatsConnection

from liftpy.client.consumer import ReadOptions
from liftpy.client.ending import end_tasks
from liftpy.client.transport import Transport, open_connection
from liftpy.cluster.image import ClusterImage
from liftpy.dataclass import dataclass
from liftpy.errors import LiftError
from liftpy.group import limits
from liftpy.group.coordinator import NO_FIGURES, GroupCoordinator
from liftpy.group.lags import MOST_GROUPS, GroupLabels
from liftpy.ids import PartitionKey
from liftpy.service.base import Role
from liftpy.service.host import Say, ServiceHost
from liftpy.service.settings import ServiceSettings
from liftpy.shares import WHOLE, WorkerShare
from liftpy.wire.inboxes import InboxRule
from liftpy.wire.subjects import GROUPS_INBOX, GROUPS_SERVICE, GROUPS_STREAM, Subjects
from sidecar.bus.keys import Keys
from sidecar.group_lags import EVERY_S, LOOK_FAILED, BoundsOf, GroupLags
from sidecar.own_reads import OwnNodeReader, ReadsOf
from sidecar.restarting import count_restart
from sidecar.settings import NodeSettings
from sidecar.tasks import spawn

logger = logging.getLogger("liftpy.groups")

SNAPSHOT_EVERY = 10_000
"""Offsets; the same on all nodes, always."""
_SNAPSHOT_BYTES = 16 * 1024 * 1024
"""Of the log, between two snapshots at most: a quarter of what retention leaves."""
STEP_S = 0.005
TICK_S = 1.0
READ_WAIT_S = 10.0
"""Nothing that is asked here gets lost, so it is asked again seldom; a new order asks again at once. Nor does a heartbeat: two of them
in a session will do."""
_AGAIN_S, _LONGEST_AGAIN_S = 0.5, 30.0
_STOP_S = 2.0


def hosted(image: ClusterImage, node_id: str) -> frozenset[PartitionKey]:
    """The partitions whose coordinators run on the node."""
    stream = image.streams.get(GROUPS_STREAM)
    if stream is None:
        return frozenset()
    return frozenset(stream.key(part.partition) for part in stream.partitions if node_id in part.replicas)


@dataclass(slots=True)
class _Hosted:
    """One coordinator. ``problem``: why it does not run, '' while it does."""

    task: asyncio.Task[None] | None = None
    state: GroupCoordinator | None = None
    host: ServiceHost | None = None
    restarts: int = 0
    in_a_row: int = 0
    """Of those, without a minute of work in between: one that failed ten times in a year is not waited for."""
    problem: str = "starting"
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def make(self) -> GroupCoordinator:
        """A new one, or the next after a rewind."""
        self.state = GroupCoordinator()
        return self.state

    def end(self) -> None:
        """In good order."""
        self.stopping.set()
        if self.host is not None:
            self.host.stop()


class GroupCoordinators:
    """Of one process of a node: those of the partitions that it hosts. ``folder``: of their snapshots. ``follow`` every image,
    ``close`` at the end."""

    def __init__(
        self,
        settings: NodeSettings,
        folder: Path,
        counters: Counter[str],
        reads_of: ReadsOf,
        say: Say,
        share: WorkerShare = WHOLE,
        bounds_of: BoundsOf = lambda key: None,
        keys: Keys | None = None,
    ) -> None:
        self._keys = keys or Keys(settings.credentials)
        self._share = share
        self.lags = GroupLags(bounds_of, settings.namespace, GroupLabels(MOST_GROUPS // share.of))
        """How far the groups are whose coordinators lead here."""
        self._looking: asyncio.Task[None] | None = None
        self._settings = settings
        self._folder = folder
        self._counters = counters
        self._reads_of = reads_of
        self._say = say
        self._running: dict[PartitionKey, _Hosted] = {}
        self._leaving: dict[asyncio.Task[None], PartitionKey] = {}
        """Of coordinators that are ending."""
        self._connecting = asyncio.Lock()
        self._connection: NatsConnection | None = None
        self._closed = False
        self._may = settings.host_groups and InboxRule(settings.inbox_prefixes).allows(f"{GROUPS_INBOX}.x".encode())
        self._said = not settings.host_groups

    def follow(self, _: ClusterImage, image: ClusterImage) -> None:
        """The metadata is this now."""
        wanted = frozenset() if self._closed else hosted(image, self._settings.node_id)
        wanted = frozenset(key for key in wanted if self._share.holds(key.stream, key.partition))
        if wanted and not self._may:
            if not self._said:
                self._said = True
                logger.warning("inbox_prefixes leave out %s.: consumer groups have no coordinator on this node", GROUPS_INBOX)
            return
        for key in wanted - self._running.keys():
            one = self._running[key] = _Hosted()
            one.task = spawn(self._run(key, one), f"the coordinator of {key}")
        if self._running and self._looking is None:
            self._looking = spawn(self._look(), "looking how far groups are")
        for key in self._running.keys() - wanted:
            one = self._running.pop(key)
            one.end()
            self._keep(key, one)

    def _keep(self, key: PartitionKey, one: _Hosted) -> None:
        if one.task is not None and not one.task.done():
            self._leaving[one.task] = key
            one.task.add_done_callback(self._leaving.pop)

    # ---- one of them ------------------------------------------------------------------------------------------------------
    async def _run(self, key: PartitionKey, one: _Hosted) -> None:
        earlier = [task for task, left in self._leaving.items() if left == key]
        if earlier:  # of a replica that was moved away and is back: two of one partition would write one snapshot
            await asyncio.wait(earlier, timeout=_STOP_S)
        while not one.stopping.is_set():
            began_s = time.monotonic()
            try:
                transport, namespace = await self._transport(), self._settings.namespace
                read = partial(self._reader, transport, key)
                one.host = ServiceHost(one.make, self._of(key), transport, namespace, read, self._say)
                one.problem = ""
                await one.host.run()
            except LiftError as error:
                one.problem = f"{error.code}: {error}"
            except Exception as error:  # a defect of the coordinator is no reason for the node to stop
                one.problem = repr(error)
            finally:
                one.host = None
            if not one.stopping.is_set():
                one.restarts += 1
                one.in_a_row = count_restart(one.in_a_row, time.monotonic() - began_s)
                self._counters["coordinators begun anew"] += 1
                logger.error("%s: its coordinator has ended, and begins anew: %s", key, one.problem)
                await _wait(one.stopping, min(_AGAIN_S * 2 ** min(one.in_a_row - 1, 10), _LONGEST_AGAIN_S))

    def _reader(self, transport: Transport, key: PartitionKey, options: ReadOptions) -> OwnNodeReader:
        return OwnNodeReader(transport, Subjects(self._settings.namespace), key, options, self._reads_of)

    def _of(self, key: PartitionKey) -> ServiceSettings:
        return ServiceSettings(
            service=GROUPS_SERVICE,
            stream=key.stream,
            partition=key.partition,
            node=self._settings.node_id,
            data=self._folder,
            snapshot_every=SNAPSHOT_EVERY,
            snapshot_bytes=_SNAPSHOT_BYTES,
            max_snapshot_bytes=4 * limits.MAX_STATE_BYTES,
            heartbeat_s=self._settings.replication.lease_s,
            read_wait_s=READ_WAIT_S,
            step_s=STEP_S,
            tick_s=TICK_S,
            reply_prefixes=self._settings.inbox_prefixes,
        )

    async def _transport(self) -> Transport:
        async with self._connecting:
            if self._connection is None or self._connection.is_closed:
                settings = self._settings
                self._connection = connection = await open_connection(
                    list(settings.nats),
                    credentials=(credentials := self._keys.credentials),
                    name=f"liftpy-{settings.node_id}-groups",
                    inbox_prefix=GROUPS_INBOX.encode(),
                )
                self._keys.add(connection, credentials)
            return Transport(self._connection)

    # ---- how far the groups are -------------------------------------------------------------------------------------------
    async def _look(self) -> None:
        while not self._closed:
            try:
                await self.lags.look(self._states(), None if self._connection is None else Transport(self._connection))
            except Exception:  # who only looks stops nobody
                self._counters[LOOK_FAILED] += 1
            await asyncio.sleep(EVERY_S)

    def _states(self) -> Iterator[tuple[GroupCoordinator, bool]]:
        """Those that run, and whether they lead."""
        for one in list(self._running.values()):
            if one.state is not None and one.host is not None and one.host.machine is not None:
                yield one.state, one.host.machine.role is Role.LEADER

    # ---- status and end -----------------------------------------------------------------------------------------------------
    def report(self) -> list[dict[str, Any]]:
        """For status: each coordinator here, by partition."""
        return [_report(key.partition, self._running[key]) for key in sorted(self._running)]

    async def close(self) -> None:
        """End them, each with a snapshot of its state, in bounded time."""
        self._closed = True
        self.follow(ClusterImage(), ClusterImage())
        tasks = set(self._leaving)
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_S)
        await end_tasks(tasks | ({self._looking} if self._looking is not None else set()))
        if self._connection is not None:
            with contextlib.suppress(Exception):
                await self._connection.close()


def _report(partition: int, one: _Hosted) -> dict[str, Any]:
    host, machine = one.host, one.host.machine if one.host is not None else None
    problem = one.problem or (host.problem if host is not None else "")
    return {
        "partition": partition,
        "role": machine.role.value if machine is not None else "",
        "position": machine.position if machine is not None else 0,
        "restarts": one.restarts,
        "problem": problem,
        "bound_bytes": limits.MAX_STATE_BYTES,
        **(one.state.figures() if one.state is not None and machine is not None else NO_FIGURES),
    }


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
