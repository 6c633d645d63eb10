"""Coordinators of consumer groups and work queues: one for each partition of ``_groups`` that has a replica on this node.

A coordinator is a replicated service (``liftpy.service``). It follows its partition on every node with a replica, so a
failover replays nothing. Only the coordinator next to the leader of the partition answers members. This module starts a
coordinator when the node gets a replica, stops it when the replica moves away, and restarts it after a failure.

A coordinator and its node share one process and one event loop. They exchange messages and reads without NATS
(``OwnNodeReader``), because a round trip would cost a third of the time of a command. ``STEP_S`` limits for how long
requests of members may block the replication of the node.

``GroupLags`` measures at intervals how many records each group is behind. The node knows the ends of partitions that have
an in-sync replica on it. It requests the ends of others, and the ages of records that were stored before the first check. It
does this for at most ``MAX_REQUESTS_PER_ROUND`` partitions per check, so a scrape of the metrics sends no request. A check
uses the event loop for ``SLICE_S``, then pauses for ``PAUSE_S``. With many positions, the values are older.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from nats.aio.client import Client as NatsConnection

from liftpy.client.consumer import PartitionReader, ReadOptions
from liftpy.client.progress import ReadProgress
from liftpy.config import NS_PER_S
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.rate_limits import doubled_wait_s
from liftpy.core.base.worker_assignment import WHOLE, WorkerShare
from liftpy.core.groups import commands
from liftpy.core.groups.coordinator import NO_FIGURES, EarlierGroupCoordinator, GroupCoordinator
from liftpy.core.groups.group import GroupMember
from liftpy.core.groups.lag import MOST_GROUPS, MOST_PARTITIONS, GroupLabels, GroupLag, LagHistory, LogEnds, read_positions
from liftpy.core.groups.machine import GroupRecord
from liftpy.core.metadata.features import QUEUE_EPOCHS
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.services.service import Role
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.subjects import GROUPS_INBOX, GROUPS_SERVICE, InboxRule, Subjects
from liftpy.errors import LiftError, UnavailableError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.transport import NoRespondersError, RequestTimeoutError, Transport, open_connection
from liftpy.service.host import ServiceHost
from liftpy.service.settings import ServiceSettings
from sidecar.groups.partitions import hosted_partitions
from sidecar.partition.reads import ReadSubjects
from sidecar.partition.replica_manager import Partitions
from sidecar.partition.services import ServiceHandler
from sidecar.runtime import clock
from sidecar.runtime.restarts import count_restart
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import spawn
from sidecar.transport.credentials import Keys

logger = logging.getLogger("liftpy.groups")

EVERY_S = 2.0
SLICE_S, PAUSE_S = 0.002, 0.05
MAX_REQUESTS_PER_ROUND = 20
REQUESTS_AT_ONCE = 8
PATIENCE_S = 1.0
CHECK_FAILED = "group_check_failed"
_AGE_BYTES = 4096
"""Requested size of a read for the age of one record, in bytes. A larger batch is sent anyway."""
_GROUPS_PER_STEP = 64
"""Number of positions between two checks of the clock."""

BoundsOf = Callable[[PartitionKey], tuple[int, int] | None]
"""Function that returns (log start, HW + 1) of a partition with an in-sync replica in this process. None: it has none."""
ReadsOf = Callable[[PartitionKey], ReadSubjects | None]
SNAPSHOT_EVERY = 10_000
"""Offsets between two snapshots. All nodes must use one value at all times."""
_SNAPSHOT_BYTES = 16 * 1024 * 1024
"""Maximum size of the log between two snapshots, in bytes: a quarter of what retention keeps."""
STEP_S = 0.005
TICK_S = 1.0
READ_WAIT_S = 10.0
"""Maximum wait of one read, and time between heartbeats, in seconds.

No message gets lost inside a process, so two heartbeats per session are enough.
"""
_AGAIN_S, _LONGEST_AGAIN_S = 0.5, 30.0
_STOP_S = 2.0
RESTART_SPREAD_S = 10.0
"""Time in seconds over which coordinators restart after a change of the feature level. A failure restarts one at once."""


class GroupLags:
    """Measures the lags of the groups whose coordinators lead on this node.

    ``bounds_of``: returns the log start and the end of a partition, None if it is not on this node. ``exists``: returns whether the
    cluster has the partition. A partition of a deleted stream has no lag.
    """

    def __init__(
        self,
        bounds_of: BoundsOf,
        namespace: str,
        labels: GroupLabels | None = None,
        exists: Callable[[PartitionKey], bool] = lambda _: True,
    ) -> None:
        self._bounds_of = bounds_of
        self._exists = exists
        self._namespace = namespace
        self._labels = labels or GroupLabels()
        self._ends = LogEnds()
        self.by_label: dict[str, GroupLag] = {}
        """Metric label of a group -> lag of the group."""
        self.by_group: dict[str, GroupLag] = {}
        """Name of a group -> its lag."""
        self._histories: dict[str, LagHistory] = {}
        """Name of a group -> its lag over time. At most ``MOST_GROUPS`` groups have one."""

    async def measure(self, coordinators: Iterator[tuple[GroupCoordinator, bool]], transport: Transport | None) -> None:
        """Measure the lags of all groups of ``coordinators``, and request unknown partition ends from other nodes.

        ``coordinators``: each coordinator with True if it leads. Only the groups of leading ones get a lag.
        """
        lags: dict[str, GroupLag] = {}
        read: set[PartitionKey] = set()
        elsewhere: set[PartitionKey] = set()
        unread: dict[PartitionKey, int] = {}
        """Partition -> offset of a record whose age is requested."""
        began, count = time.monotonic(), 0
        for state, leads in coordinators:
            groups = state.groups
            for name in list(groups):
                if (group := groups.get(name)) is None or group.cursor:
                    continue
                lag = GroupLag()
                for key, position in read_positions(group):
                    count += 1
                    if count % _GROUPS_PER_STEP == 0 and time.monotonic() - began > SLICE_S:
                        await asyncio.sleep(PAUSE_S)
                        began = time.monotonic()
                    if not self._exists(key):
                        continue
                    self._measure_partition(key, read, elsewhere if leads else None)
                    ends = self._ends.get(key)
                    lag.add(ends, position, clock.now_ns())
                    if leads and ends is not None and (offset := ends.offset_without_age(position)) is not None:
                        unread[key] = offset
                if leads:
                    lags[name] = lag
        self.by_group = lags
        self._add_to_histories(lags)
        self.by_label = self._labels.lags_by_label(lags)
        self._ends.keep(read)
        if transport is not None and (elsewhere or unread):
            await self._ask(transport, elsewhere, unread)

    def history(self, group: str) -> list[dict[str, Any]]:
        """Return the lag of ``group`` over time, as ``LagHistory.rows`` does."""
        return history.rows() if (history := self._histories.get(group)) is not None else []

    def _add_to_histories(self, lags: dict[str, GroupLag]) -> None:
        self._histories = {name: history for name, history in self._histories.items() if name in lags}
        now_s = time.time()
        for name, lag in lags.items():
            if (history := self._histories.get(name)) is None:
                if len(self._histories) >= MOST_GROUPS:
                    continue
                history = self._histories[name] = LagHistory()
            history.add(now_s, lag)

    def lag_at(self, key: PartitionKey, position: int) -> tuple[int | None, int, float]:
        """Return the lag of a reader at ``position``: (end of the partition, unread records, age of the first of them in s).

        The end is None if it is unknown.
        """
        ends = self._ends.get(key)
        if ends is None or (end := ends.end) < 0:
            return None, 0, 0.0
        records, age_ns = ends.behind(position, clock.now_ns())
        return end, records, age_ns / NS_PER_S

    def _measure_partition(self, key: PartitionKey, read: set[PartitionKey], elsewhere: set[PartitionKey] | None) -> None:
        """Store the end of the partition ``key`` if it has a replica on this node. Add ``key`` to ``read``.

        Otherwise add it to ``elsewhere``, the partitions whose ends are requested. None: no coordinator that leads needs it.
        """
        if key in read or len(read) >= MOST_PARTITIONS:
            return
        read.add(key)
        bounds = self._bounds_of(key)
        if bounds is not None:
            start, end = bounds
            self._ends.set_bounds(key, end, clock.now_ns(), start)
        elif elsewhere is not None:
            elsewhere.add(key)

    async def _ask(self, transport: Transport, elsewhere: set[PartitionKey], unread: dict[PartitionKey, int]) -> None:
        """Request the ends of the partitions ``elsewhere``, and the ages of the records at the offsets ``unread``."""
        wanted = iter(self._ends.to_ask(elsewhere | unread.keys(), MAX_REQUESTS_PER_ROUND))
        options = ReadOptions(patience_s=PATIENCE_S, answer_timeout_s=PATIENCE_S, wait_s=0.0)
        subjects = Subjects(self._namespace)

        async def some() -> None:
            for key in wanted:
                reader = PartitionReader(transport, subjects, key.stream, key.partition, options)
                if key in elsewhere:
                    await self._ask_for_end(reader, key)
                if key in unread:
                    await self._ask_for_age(reader, key, unread[key])

        await asyncio.gather(*(some() for _ in range(REQUESTS_AT_ONCE)))

    async def _ask_for_age(self, reader: PartitionReader, key: PartitionKey, offset: int) -> None:
        """Read the record at ``offset`` and store its age. If no replica answers, the next check asks again."""
        try:
            slices = await reader.fetch(ReadProgress(key.stream, key.partition, offset, uid=key.uid), _AGE_BYTES)
        except LiftError:
            return
        if slices and (ends := self._ends.get(key)) is not None:
            stored_ns = int(slices[0].batch.timestamps_ns()[slices[0].first_index])
            ends.set_age(offset, clock.now_ns() - max(0, time.time_ns() - stored_ns))

    async def _ask_for_end(self, reader: PartitionReader, key: PartitionKey) -> None:
        try:
            bounds, _ = await reader.bounds(key.uid)
        except UnavailableError:
            return  # it still ends there or later. A deleted stream has no responders either, but ``_exists`` knows it
        except LiftError:
            self._ends.forget(key)  # another stream has its name
        else:
            self._ends.set_bounds(key, bounds.end_offset, clock.now_ns(), bounds.log_start_offset)


class LocalReader(PartitionReader):
    """Reads partitions of this node without NATS, in the same process.

    ``reads_of``: returns the object that answers read requests for a partition.
    """

    def __init__(
        self, transport: Transport, subjects: Subjects, key: PartitionKey, options: ReadOptions, reads_of: ReadsOf
    ) -> None:
        super().__init__(transport, subjects, key.stream, key.partition, options)
        self._key = key
        self._reads_of = reads_of

    async def _ask(self, node: str, request: client_pb2.ReadRequest, wait_s: float) -> bytes:
        reads = self._reads_of(self._key)
        if reads is None:
            raise NoRespondersError(
                f"The coordinator {self._key} is not on this node. Retry: the client then asks the new one."
            )
        timeout_s = wait_s + self.options.answer_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await reads.answer_local_read(frames.seal(request))
        except TimeoutError:
            raise RequestTimeoutError(
                f"The coordinator {self._key} on this node did not answer within {timeout_s:g} s. Retry."
            ) from None


@dataclass(slots=True)
class _HostedCoordinator:
    """One coordinator on this node. ``problem``: why it does not run, '' if it runs. ``restarts``: number of its restarts."""

    task: asyncio.Task[None] | None = None
    host: ServiceHost | None = None
    version: type[GroupCoordinator] | None = None
    """Version that runs, or that ran last. None: it has not started."""
    restarts: int = 0
    in_a_row: int = 0
    """Number of failures in a row, without a minute of work in between."""
    problem: str = "starting"
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Ends the wait after a failure."""

    @property
    def state(self) -> GroupCoordinator | None:
        """The coordinator with its groups. None: it has not started. While it restores a snapshot, this is the former one."""
        machine = self.host.machine if self.host is not None else None
        return cast(GroupCoordinator, machine.service) if machine is not None else None

    def end(self) -> None:
        self.stopping.set()
        self.restart()

    def restart(self) -> None:
        """Stop the coordinator, or end its wait after a failure."""
        self.wake.set()
        if self.host is not None:
            self.host.stop()


class GroupCoordinators:
    """Runs the group coordinators of the partitions that this process hosts. ``folder``: directory of their snapshots.

    Each coordinator reads from ``partitions`` and talks to ``services``, which are in this process.

    Call ``follow`` for every image, and ``close`` at the end.
    """

    def __init__(
        self,
        settings: NodeSettings,
        folder: Path,
        counters: Counter[str],
        partitions: Partitions,
        services: ServiceHandler,
        share: WorkerShare = WHOLE,
        keys: Keys | None = None,
    ) -> None:
        self._keys = keys or Keys(settings.credentials)
        self._share = share
        labels = GroupLabels(MOST_GROUPS // share.process_count)
        self.lags = GroupLags(partitions.bounds_of, settings.namespace, labels, partitions.exists)
        self._lag_task: asyncio.Task[None] | None = None
        self._settings = settings
        self._folder = folder
        self._counters = counters
        self._partitions = partitions
        self._services = services
        self._running: dict[PartitionKey, _HostedCoordinator] = {}
        self._stopping_tasks: dict[asyncio.Task[None], PartitionKey] = {}
        """Tasks of coordinators that are stopping."""
        self._coordinator: type[GroupCoordinator] = EarlierGroupCoordinator
        """The version of the coordinator that the feature level of the cluster allows."""
        self._connecting = asyncio.Lock()
        self._connection: NatsConnection | None = None
        self._closed = False
        self._may_coordinate = settings.run_group_coordinators and InboxRule(settings.inbox_prefixes).allows(
            f"{GROUPS_INBOX}.x".encode()
        )
        self._logged = not settings.run_group_coordinators

    def follow(self, _: ClusterImage, image: ClusterImage) -> None:
        """Start and stop coordinators so that they match the replicas of this node in the new ``image``.

        If its feature level allows another version of the coordinator, all of them start again within ``RESTART_SPREAD_S``. The
        replicas of a coordinator get the level at the same time, and its groups would have no leader while all of them restart.
        """
        version = GroupCoordinator if image.feature_level >= QUEUE_EPOCHS else EarlierGroupCoordinator
        if not self._closed and version is not self._coordinator:
            self._coordinator = version
            for one in self._running.values():
                asyncio.get_running_loop().call_later(random.uniform(0, RESTART_SPREAD_S), self._change_version, one)
        wanted = frozenset() if self._closed else hosted_partitions(image, self._settings.node_id, self._share)
        if wanted and not self._may_coordinate:
            if not self._logged:
                self._logged = True
                logger.warning(
                    (
                        "group coordinators not started missing_inbox_prefix=%s: this node coordinates no consumer groups. "
                        "Add the prefix to inbox_prefixes"
                    ),
                    f"{GROUPS_INBOX}.",
                )
            return
        for key in sorted(wanted - self._running.keys()):
            one = self._running[key] = _HostedCoordinator()
            one.task = spawn(self._run(key, one), f"the coordinator of {key}")
        if self._running and self._lag_task is None:
            self._lag_task = spawn(self._measure_lags(), "measuring the lag of the groups")
        for key in sorted(self._running.keys() - wanted):
            one = self._running.pop(key)
            one.end()
            self._track_stopping(key, one)

    def _change_version(self, one: _HostedCoordinator) -> None:
        """Restart a coordinator if it runs another version than the feature level of the cluster allows."""
        if one.version is not self._coordinator:
            one.restart()

    def _track_stopping(self, key: PartitionKey, one: _HostedCoordinator) -> None:
        if one.task is not None and not one.task.done():
            self._stopping_tasks[one.task] = key
            one.task.add_done_callback(self._stopping_tasks.pop)

    # ---- one of them ------------------------------------------------------------------------------------------------------
    async def _run(self, key: PartitionKey, one: _HostedCoordinator) -> None:
        earlier = [task for task, left in self._stopping_tasks.items() if left == key]
        if earlier:  # of a replica that was moved away and is back: two of one partition would write one snapshot
            await asyncio.wait(earlier, timeout=_STOP_S)
        while not one.stopping.is_set():
            began_s, version = time.monotonic(), self._coordinator
            one.wake.clear()
            transport: Transport | None = None
            try:
                transport, namespace = await self._transport(), self._settings.namespace
                if one.stopping.is_set():  # the replica moved away while this process connected to NATS
                    return
                version = one.version = self._coordinator
                read = partial(self._reader, transport, key)
                one.host = ServiceHost(
                    version, self._service_settings(key), transport, namespace, read, self._services.process_local
                )
                one.problem = ""
                await one.host.run()
            except LiftError as error:
                one.problem = f"{error.code}: {error}"
            except Exception as error:  # a defect of the coordinator is no reason for the node to stop
                one.problem = repr(error)
            finally:
                one.host = None
                if transport is not None:
                    await transport.leave()
            if not one.stopping.is_set() and version is self._coordinator:
                one.restarts += 1
                one.in_a_row = count_restart(one.in_a_row, time.monotonic() - began_s)
                self._counters["coordinator_restarted"] += 1
                logger.error("group coordinator failed partition=%s error=%s: restarting it", key, one.problem)
                await _wait(one.wake, doubled_wait_s(one.in_a_row, _AGAIN_S, _LONGEST_AGAIN_S))

    def _reader(self, transport: Transport, key: PartitionKey, options: ReadOptions) -> LocalReader:
        return LocalReader(transport, Subjects(self._settings.namespace), key, options, self._partitions.reads_of)

    def _service_settings(self, key: PartitionKey) -> ServiceSettings:
        return ServiceSettings(
            service=GROUPS_SERVICE,
            stream=key.stream,
            partition=key.partition,
            node=self._settings.node_id,
            data=self._folder,
            snapshot_interval_records=SNAPSHOT_EVERY,
            snapshot_bytes=_SNAPSHOT_BYTES,
            max_snapshot_bytes=4 * commands.MAX_STATE_BYTES,
            heartbeat_interval_s=self._settings.replication.lease_s,
            read_wait_s=READ_WAIT_S,
            step_s=STEP_S,
            tick_interval_s=TICK_S,
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
    async def _measure_lags(self) -> None:
        while not self._closed:
            transport = None if self._connection is None else Transport(self._connection)
            try:
                await self.lags.measure(self._states(), transport)
            except Exception:  # a failed measurement of lags stops no coordinator
                self._counters[CHECK_FAILED] += 1
            finally:
                if transport is not None:
                    await transport.leave()
            await asyncio.sleep(EVERY_S)

    def _states(self) -> Iterator[tuple[GroupCoordinator, bool]]:
        """Yield each running coordinator, with True if it leads."""
        for one in list(self._running.values()):
            if (state := one.state) is not None:
                yield state, state.role is Role.LEADER

    # ---- the status page --------------------------------------------------------------------------------------------------
    def group_rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each group whose coordinator leads on this node (``liftpy/core/observe/page_model.py``)."""
        for state, leads in self._states():
            for name in list(state.groups) if leads else ():
                if (group := state.groups.get(name)) is not None:
                    yield _group_row(name, group, self.lags.by_group.get(name))

    def group_rows_of(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """Return the row of the group ``name``, its members, its positions and its lag over time, for the status page.

        All are empty if its coordinator does not lead on this node.
        """
        for state, leads in self._states():
            if leads and (group := state.groups.get(name)) is not None:
                return {
                    "rows": [_group_row(name, group, self.lags.by_group.get(name))],
                    "members": [_member_row(member) for member in group.readers.members.values()],
                    "positions": list(self._position_rows(group)),
                    "history": self.lags.history(name),
                }
        return {"rows": [], "members": [], "positions": [], "history": []}

    def _position_rows(self, group: GroupRecord) -> Iterator[dict[str, Any]]:
        owners, seen = group.readers.owners, set()
        for key, position in read_positions(group):
            place = key.stream, key.partition
            seen.add(place)
            end, records, seconds = self.lags.lag_at(key, position)
            queue = group.queues.get(place)
            yield {
                "stream": key.stream, "partition": key.partition, "member": owners.get(place, ""), "position": position, "end": end,
                "lag_records": records, "lag_s": round(seconds, 3), "in_flight": queue.out_count if queue is not None else 0,
                "returned": queue.returned_count if queue is not None else None,
                "dead": queue.dead_count if queue is not None else None,
            }  # fmt: skip
        for stream, partition in owners.keys() - seen:
            yield {
                "stream": stream, "partition": partition, "member": owners[stream, partition], "position": None, "end": None,
                "lag_records": 0, "lag_s": 0.0, "in_flight": 0, "returned": None, "dead": None,
            }  # fmt: skip

    # ---- status and end -----------------------------------------------------------------------------------------------------
    def report(self) -> list[dict[str, Any]]:
        return [_report(key.partition, self._running[key]) for key in sorted(self._running)]

    async def close(self) -> None:
        """Stop the coordinators, each with a snapshot of its state, in limited time."""
        self._closed = True
        self.follow(ClusterImage(), ClusterImage())
        tasks = set(self._stopping_tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_S)
        await end_tasks(tasks | ({self._lag_task} if self._lag_task is not None else set()))
        if self._connection is not None:
            with contextlib.suppress(Exception):
                await self._connection.close()


def _group_row(name: str, group: GroupRecord, lag: GroupLag | None) -> dict[str, Any]:
    lag = lag or GroupLag()
    readers = group.readers
    streams = sorted({stream for stream, _ in (*readers.positions, *group.queues)} | set(readers.streams))
    return {
        "group": name,
        "kind": "cursor" if group.cursor else "queue" if group.queues else "group",
        "members": len(readers.members),
        "partitions": len(readers.positions.keys() | readers.owners.keys() | group.queues.keys()),
        "streams": " ".join(streams),
        "lag_records": lag.records,
        "lag_s": round(lag.seconds, 3),
        "unknown": lag.unknown,
        "in_flight": sum(queue.out_count for queue in group.queues.values()),
    }


def _member_row(member: GroupMember) -> dict[str, Any]:
    return {
        "member": member.name,
        "client": member.client,
        "instance": member.instance,
        "partitions": len(member.held),
        "streams": " ".join(member.streams),
        "session_s": round(member.session_ns / NS_PER_S, 3),
    }


def _report(partition: int, one: _HostedCoordinator) -> dict[str, Any]:
    host, state, machine = one.host, one.state, one.host.machine if one.host is not None else None
    problem = one.problem or (host.problem if host is not None else "")
    return {
        "partition": partition,
        "role": machine.role.value if machine is not None else "",
        "position": machine.position if machine is not None else 0,
        "restarts": one.restarts,
        "problem": problem,
        "bound_bytes": commands.MAX_STATE_BYTES,
        **(state.figures() if state is not None else NO_FIGURES),
    }


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
