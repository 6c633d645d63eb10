"""Restores streams of a backup into a running cluster, under a new uid, with equal offsets, timestamps and bytes.

Goal: after a restore the cluster serves exactly the content of the backup. Before that, it serves nothing of it. A restore
never overwrites a stream. Constraint: no client can write history into a cluster over a subject. After a crash, an
unfinished restore never looks complete.

Algorithm: the command first reads and checks the backup, and writes it into logs on this machine (``staging.py``). A
*helper*, an ordinary node, registers and stops. The streams are created read-only, with the stopped helper as their only
replica. The helper gets the logs, starts, and leads the streams in a LeaderEpoch above all epochs of the logs. The request
that creates a stream makes the cluster skip the LeaderEpochs below. A stream with many partitions is created with some of
them, and the others are added. Then the replicas move to the nodes that placement has chosen. When all of these are in sync
and the stream accepts publishes again, the replicas on the helper are removed, and then the helper.

A read-only stream with a replica on a dead helper is unfinished and has accepted no publish. The next restore of its name
removes it. The command rejects any other existing stream.

Worked example: orders, two replicas requested on n1 and n3. Replicas: restore-7 -> restore-7 n1 n3 -> read-only off -> n1 n3.

The cluster-wide settings of the backup are applied if the complete backup is restored into an empty cluster. They are the
default quota, and the session times if an operator had set them. In all other cases the command says why it did not apply
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path

from liftpy.client import Client, ClusterState
from liftpy.client.admin import ReplicaMove
from liftpy.client.placement_plans import PlacementOptions, PlacementPlan
from liftpy.client.positions import Bounds, Position
from liftpy.config import NO_QUOTA, NS_PER_MS, NS_PER_S, DefaultQuota, SessionTimes, StreamConfig
from liftpy.core.backup.manifest import CursorCopy, Manifest, StreamCopy
from liftpy.core.backup.pieces import first_leader_epoch
from liftpy.core.base.ids import PartitionKey, check_name, is_internal
from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata.image import ClusterImage, NodeImage, StreamImage
from liftpy.core.metadata.placement import DEFAULT_POLICY, MANUAL, place
from liftpy.core.metadata.placement.facts import PlacementRequest, facts_of
from liftpy.core.wire.subjects import DEFAULT_INBOX_PREFIXES, InboxRule
from liftpy.errors import (
    AlreadyExistsError,
    ConfigError,
    LiftError,
    LogTruncatedError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from sidecar.backup.inspect import read_image
from sidecar.backup.staging import NOWHERE, RestorePoint, StagedLog, install_state, stage
from sidecar.backup.store import Store, in_thread
from sidecar.dev.cluster import DevNode, node_command, node_environment
from sidecar.disk.files import DirectoryStorage, make_folder, sync_folder
from sidecar.runtime.settings import Target, credentials_environment, quiet_environment, settings_environment

PREFIX = "restore-"
"""Prefix of the node ids of helper nodes."""
_HELPER = re.compile(re.escape(PREFIX) + "[0-9a-f]{8}")
"""Node ids of helper nodes. A node of an operator may have the prefix, too."""
COORDINATOR_S = 60.0
"""Time to wait for coordinators, from the first one that does not answer, in seconds. It counts for all groups and cursors together."""
AGAIN_S = 0.2
_AT_ONCE = 16
"""Maximum number of partitions whose bounds are requested at the same time, and of groups and cursors that are set."""
STALLED_S = 120.0
"""Time without any change after which a restore fails, in seconds."""
_POSITIONS_INTERVAL_S = 10.0
"""Time between two requests for the positions of the replicas, in seconds. The copy of a large log changes nothing else for hours."""
ABANDONED_S = 600.0
"""Time in seconds after which a stopped helper counts as abandoned. A running restore stops its helper for a few seconds."""
CHECK_INTERVAL_S = 0.2
_CREATED_TOGETHER = 1000
"""Maximum number of partitions per request to create them on the helper. Each needs about 30 bytes of 64 KiB."""
ProgressCallback = Callable[[str, str, int, int], None]
"""Called with (step, unit of its progress or '', finished units, all units)."""
_STEP_TEXTS = {
    "look": "looking at the cluster",
    "stage": "reading the backup",
    "register": "starting the helper node",
    "create": "creating the streams",
    "serve": "loading the streams",
    "replicate": "copying to the replicas",
    "settings": "setting cluster-wide settings",
    "open": "opening the streams for publishes",
    "leave": "moving off the helper node",
    "remove": "removing the helper node",
    "cursors": "setting groups and cursors",
}
"""Step of a restore -> its description for texts."""


# ---- helper ----------------------------------------------------------------------------------------------------------


def helper_node(node_id: str, data: Path, options: RestoreOptions, controllers: str, rack: str) -> DevNode:
    """Return the helper node, which serves the restored logs until the other nodes have copied them. It is not started yet.

    The helper is an ordinary node on the machine of the operator. It is a replica that already has the log, and the others copy
    it as they copy any replica that moves. So records get into the cluster byte for byte, and the protocol needs no request
    that writes history into a log.
    """
    target = options.target
    flags: dict[str, object] = {  # a settings file of another node of this host may have other values
        "data": data, "namespace": target.namespace, "controllers": controllers, "status-port": -1, "probe-listen": "", "weight": 0,
        "workers": 1, "jetstream-api": "",
    }  # fmt: skip
    if rack:
        flags["rack"] = rack
    if options.node_config is not None:
        flags["config"] = options.node_config
    own = {"LIFTPY_RUN_GROUP_COORDINATORS": "false", "LIFTPY_SCRUB_BYTES_PER_S": "0"}
    nats = settings_environment(nats=",".join(target.nats))
    if options.node_config is None:
        prefix = target.credentials.inbox_prefix  # the helper answers the client of this restore, but needs no prefix itself
        is_known = not prefix or InboxRule(DEFAULT_INBOX_PREFIXES).allows(f"{prefix}.x".encode())
        own |= credentials_environment(replace(target.credentials, inbox_prefix="", principal=""))
        own |= {} if is_known else settings_environment(inbox_prefixes=",".join((*DEFAULT_INBOX_PREFIXES, f"{prefix}.")))
    environment = node_environment({**own, **nats, **quiet_environment()})
    return DevNode(node_id, node_command(node_id, flags), environment, None)


# ---- positions of groups and cursors ---------------------------------------------------------------------------------


class OtherStreamError(NotFoundError):
    """Raised if a stream has the name of a stream in a backup, but not its records."""


async def set_cursors(client: Client, manifest: Manifest, uids: Mapping[str, str]) -> dict[str, str]:
    """Set the positions of groups and cursors for restored streams: the offsets of the backup, with the new uid.

    A stream that was deleted and created again has the name of a stream in the backup, but not its records. Its positions are not
    set. The same holds for partitions without a copy, which were added during the backup.

    ``uids``: uid of each stream in the cluster, by name. The result has the name of each group and cursor, and the reason of its
    failure. '': the positions were set.
    """
    copied = {
        (stream.name, stream.uid, one.partition)
        for stream in manifest.streams
        if stream.name in uids
        for one in stream.partitions
    }
    wanted = {
        cursor.name: [
            (name, partition, at) for name, uid, partition, at in cursor.positions if (name, uid, partition) in copied
        ]
        for cursor in manifest.cursors
    }
    copies = {stream.name: stream for stream in manifest.streams}
    bounds = await _bounds(client, copies, {(name, number) for places in wanted.values() for name, number, _ in places})
    wait, room = _CoordinatorWait(), asyncio.Semaphore(_AT_ONCE)

    async def set_one(cursor: CursorCopy) -> str | None:
        positions, without = {}, []
        for name, partition, at in wanted[cursor.name]:
            bounds_or_error = bounds[name, partition]
            if isinstance(bounds_or_error, OtherStreamError):
                without.append(str(bounds_or_error))
            elif isinstance(bounds_or_error, LiftError):
                without.append(f"{name}/{partition} gives no bounds ({bounds_or_error})")
            elif bounds_or_error.uid == uids[name]:
                key = PartitionKey(name, bounds_or_error.uid, partition)
                positions[key] = max(bounds_or_error.log_start_offset, min(at, bounds_or_error.end_offset))
        if not positions:
            return "; ".join(without) or None
        async with room:
            refused = await _set_positions(client, cursor, positions, wait)
        return refused or "; ".join(without)

    results = await asyncio.gather(*map(set_one, manifest.cursors))
    names = [cursor.name for cursor in manifest.cursors]
    return {name: result for name, result in zip(names, results, strict=True) if result is not None}


async def _bounds(
    client: Client, copies: Mapping[str, StreamCopy], wanted: set[tuple[str, int]]
) -> dict[tuple[str, int], Bounds | LiftError]:
    """Return the range of offsets in which each partition has the records of the backup, or the reason why it is not known.

    ``copies``: streams of the backup, by name. ``wanted``: (stream, partition).
    """
    room = asyncio.Semaphore(_AT_ONCE)

    async def ask(name: str, partition: int) -> Bounds | LiftError:
        async with room:
            try:
                bounds = await client.bounds(name, partition)
                return await _common_bounds(client, copies[name], name, partition, bounds)
            except LiftError as error:
                return error

    ordered = sorted(wanted)
    return dict(zip(ordered, await asyncio.gather(*[ask(*one) for one in ordered]), strict=True))


async def _common_bounds(client: Client, stream: StreamCopy, name: str, partition: int, bounds: Bounds) -> Bounds:
    """Return ``bounds``, with the end of the records that the partition shares with the copy ``stream`` of a backup.

    LeaderEpochs are unique in a cluster, and a restored log has those of the backup. So the leader knows by the LeaderEpoch of the
    last record of the copy where the logs differ. Raises OtherStreamError if they have no common record.
    """
    copy = next((one for one in stream.partitions if one.partition == partition), None)
    if copy is None or stream.uid == bounds.uid or not copy.pieces or bounds.end_offset <= copy.start:
        return bounds  # the partition is not another one, or has no record that could differ
    end = copy.high_watermark + 1
    if end > bounds.log_start_offset:
        try:
            await client.consume(name, partition, start=Position(bounds.uid, end, copy.epoch)).begin()
            return bounds
        except LogTruncatedError as error:
            if error.end_offset > max(copy.start, bounds.log_start_offset):
                return replace(bounds, high_watermark=min(error.end_offset - 1, bounds.high_watermark))
    raise OtherStreamError(
        f"{name}/{partition} has no record of the backup. Was the stream deleted and created again? To set a position: "
        "liftpy group reset, or liftpy cursor set"
    )


class _CoordinatorWait:
    """Time to wait for coordinators, over all groups and cursors: many of them may have a coordinator that does not answer."""

    def __init__(self) -> None:
        self._give_up_s: float | None = None

    @property
    def has_ended(self) -> bool:
        """True if a coordinator has not answered ``COORDINATOR_S`` seconds after the first call."""
        if self._give_up_s is None:
            self._give_up_s = time.monotonic() + COORDINATOR_S
        return time.monotonic() > self._give_up_s


async def _set_positions(client: Client, cursor: CursorCopy, positions: dict[PartitionKey, int], wait: _CoordinatorWait) -> str:
    """Set the positions of one group or cursor, and retry while the coordinator does not answer.

    Return the reason of a failure, '' on success.
    """
    while True:
        try:
            await (client.cursors.set if cursor.is_cursor else client.groups.reset)(cursor.name, positions)
            return ""
        except (UnavailableError, OutcomeUnknownError) as error:
            if wait.has_ended:
                return str(error)
            await asyncio.sleep(AGAIN_S)
        except LiftError as error:
            return str(error)


# ---- cluster-wide settings -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterWide:
    """Cluster-wide settings of a backup.

    ``quota``: default quota. ``times``: session times that an operator had set, None: the cluster used its defaults.
    """

    quota: DefaultQuota = NO_QUOTA
    times: SessionTimes | None = None


NOTHING_WIDE = ClusterWide()


@dataclass(frozen=True, slots=True)
class RestoredSetting:
    """A cluster-wide setting of a backup. ``why``: reason why the cluster does not use it now. '': the cluster uses it."""

    value: DefaultQuota | SessionTimes
    why: str = ""

    @property
    def name(self) -> str:
        return "default quota" if isinstance(self.value, DefaultQuota) else "session times"

    @property
    def words(self) -> str:
        return self.value.words

    @property
    def command(self) -> str:
        """Command line ``liftpy settings ...`` that applies the setting."""
        value = self.value
        if isinstance(value, DefaultQuota):
            rates = f"--quota-records {value.records_per_s} --quota-bytes {value.bytes_per_s} --quota-by-token {value.by_token}"
            return f"liftpy settings default-quota {rates}"
        return f"liftpy settings node-session --session {_seconds(value.session_ms):g} --lease {_seconds(value.lease_ms):g}"

    @property
    def json_value(self) -> dict[str, object]:
        value = self.value
        if isinstance(value, DefaultQuota):
            return {**asdict(value), "why_not": self.why}
        return {"session_ms": value.session_ms, "lease_ms": value.lease_ms, "why_not": self.why}


def cluster_wide_of(image: ClusterImage) -> ClusterWide:
    """Return the cluster-wide settings in ``image``."""
    times = image.session_times
    return ClusterWide(image.default_quota, times if times is not None and times.change else None)


async def set_cluster_wide(client: Client, wanted: ClusterWide, restored: Collection[str]) -> list[RestoredSetting]:
    """Apply the cluster-wide settings ``wanted`` if the cluster has only the ``restored`` streams and no settings of its own.

    Otherwise the settings would affect other streams. Return each setting with the reason why it was not applied.
    """
    values = [value for value in (wanted.quota if wanted.quota != NO_QUOTA else None, wanted.times) if value is not None]
    return [RestoredSetting(value, await _set(client, value, restored)) for value in values]


async def _set(client: Client, value: DefaultQuota | SessionTimes, restored: Collection[str]) -> str:
    """Apply one cluster-wide setting. Return the reason of a failure, '' on success."""
    try:
        image = (await client.admin.describe_cluster(linearizable=True)).image
        is_quota = isinstance(value, DefaultQuota)
        current = image.default_quota if is_quota else image.session_times
        if current is not None and _comparable(current) == _comparable(value):
            return ""
        if current is not None and (current.has_rates if isinstance(current, DefaultQuota) else current.change):
            return f"the cluster has {'another one' if is_quota else 'others'}: {current.words}"
        others = sorted(name for name in image.streams if name not in restored and not is_internal(name))
        if others:
            return f"the cluster has streams of its own: {', '.join(others[:3])}{', ...' * (len(others) > 3)}"
        if isinstance(value, DefaultQuota):
            await client.admin.set_default_quota(
                records_per_s=value.records_per_s, bytes_per_s=value.bytes_per_s, by_token=value.by_token
            )
        else:
            await client.admin.set_session_times(session_s=_seconds(value.session_ms), lease_s=_seconds(value.lease_ms))
    except LiftError as error:
        return str(error)
    return ""


def add_advice(error: LiftError, advice: str) -> None:
    """Add the sentence ``advice`` to the text of ``error``."""
    error.args = (f"{str(error).removesuffix('.')}. {advice}", *error.args[1:])


def name_remains(error: BaseException, commands: Collection[str]) -> None:
    """Name in the text of ``error`` the ``commands`` that remove what a failed restore could not remove."""
    if commands and isinstance(error, LiftError):
        add_advice(error, f"Not everything could be removed. To remove the rest: {'; '.join(commands)}.")


def _is_abandoned(image: ClusterImage, node_id: str, node: NodeImage) -> bool:
    """Return whether ``node`` is a helper that a killed restore has left behind.

    The result is False for a helper that another restore has stopped a moment ago.
    """
    if not _HELPER.fullmatch(node_id) or image.is_live(node_id):
        return False
    return time.time_ns() - node.session_time_ns > ABANDONED_S * NS_PER_S


def _comparable(value: DefaultQuota | SessionTimes) -> object:
    return value if isinstance(value, DefaultQuota) else (value.session_ms, value.lease_ms)


def _seconds(ms: int) -> float:
    return ms * NS_PER_MS / NS_PER_S


# ---- the restore -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRestore:
    """One stream to restore: ``name`` in the backup becomes ``into`` on ``subject``.

    ``replicas``: number of replicas, 0: as in the backup. ``placement``: placement policy of the stream in the backup. It
    applies to the restored replicas and to partitions that are added later. ``waiting``: number of partitions of a stream that
    had none in the backup, because its cluster had too few nodes. 0: the stream had partitions.
    """

    name: str
    into: str
    subject: str
    config: StreamConfig
    replicas: int = 0
    placement: str = ""
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """Options of a restore.

    Attributes:
        scratch: Directory with room for all data of the backup. None: a temporary directory.
        node_config: Settings file of the helper node. None: none.
        cursors: True to set the positions of groups and cursors.
        wide: Cluster-wide settings to apply to an empty cluster. None: none.
    """

    target: Target
    until: RestorePoint = NOWHERE
    scratch: Path | None = None
    node_config: Path | None = None
    cursors: bool = True
    wide: ClusterWide = NOTHING_WIDE


@dataclass(slots=True)
class RestoredStream:
    """One stream that a restore creates.

    ``logs``: restored logs, by partition. ``plan``: ids of the planned nodes, by partition. ``unmet_policy``: reason why the
    default placement policy replaces the policy of the stream. '': the stream keeps its policy.
    """

    wish: StreamRestore
    copy: StreamCopy
    image: StreamImage | None = None
    plan: tuple[tuple[str, ...], ...] = ()
    unmet_policy: str = ""
    logs: list[StagedLog] = field(default_factory=list)

    @property
    def uid(self) -> str:
        return self.image.uid if self.image is not None else ""

    def partitions_of(self, now: StreamImage | None) -> tuple[PartitionState, ...]:
        """Return the restored partitions in the metadata ``now``. Partitions that an operator has added are left out.

        Raises:
            NotFoundError: The stream was deleted.
        """
        if now is None or now.uid != self.uid:
            raise self.deleted_error()
        return now.partitions[: len(self.copy.partitions)]

    def deleted_error(self) -> NotFoundError:
        return NotFoundError(f"Stream {self.wish.into} was deleted during the restore. Start the restore again.")


@dataclass(slots=True)
class RestoreResult:
    """Result of a restore.

    Attributes:
        served_s: Time from the start until all records were readable, in seconds.
        took_s: Time from the start to the end, in seconds.
        cursors: Reason why the positions of a group or cursor were not set, by name. '': they were set.
        settings: Cluster-wide settings of the backup.
    """

    streams: list[RestoredStream]
    served_s: float = 0.0
    took_s: float = 0.0
    cursors: dict[str, str] = field(default_factory=dict)
    settings: list[RestoredSetting] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """True if the positions of all groups and cursors and all cluster-wide settings were restored too."""
        return not any(self.cursors.values()) and not any(one.why for one in self.settings)

    def states_left_out(self, name_of: Callable[[RestoredStream], str] = lambda one: one.wish.into) -> dict[str, str]:
        """Return the reason why producers and message ids of a partition are missing, by "stream/partition".

        Partitions with complete state are not in the result. ``name_of`` returns the stream name to show.
        """
        return {
            f"{name_of(one)}/{number}": log.state_left_out
            for one in self.streams
            for number, log in enumerate(one.logs)
            if log.state_left_out
        }


class Restore:
    """One restore of a backup. Call ``run``.

    ``stream_restores``: streams to restore. ``step`` is called with the name of each step. ``tell`` is called with (step, unit,
    number of finished units, number of all units).

    Raises CorruptionError with the name of the file, AlreadyExistsError, ConfigError, NotFoundError, UnavailableError or
    StorageError.
    """

    def __init__(
        self,
        client: Client,
        store: Store,
        manifest: Manifest,
        stream_restores: list[StreamRestore],
        options: RestoreOptions,
        step: Callable[[str], None] = lambda name: None,
        tell: ProgressCallback = lambda step, unit, done, total: None,
    ) -> None:
        copies = {stream.name: stream for stream in manifest.streams}
        for stream_restore in stream_restores:
            check_name(stream_restore.into, "stream")
            if stream_restore.name not in copies:
                raise NotFoundError(
                    f"Backup {manifest.backup} has no stream {stream_restore.name!r}. It has: {', '.join(copies) or 'none'}."
                )
        self._client, self._store, self._manifest, self._options, self._step = client, store, manifest, options, step
        self._report_progress = tell
        restored = [RestoredStream(stream_restore, copies[stream_restore.name]) for stream_restore in stream_restores]
        self._streams = [one for one in restored if one.copy.partitions]
        self._waiting_streams = [one for one in restored if not one.copy.partitions]
        """Streams without partitions. They have no records, so they are created as any other stream."""
        self._helper_id = PREFIX + os.urandom(4).hex()
        self._positions: dict[tuple[str, str, int], object] = {}
        """Positions of the replicas of each restored partition, as its leader reported them last, by (node, uid, partition)."""
        self._helper: DevNode | None = None
        self._scratch: Path | None = None
        self._registered = False
        self._served_s = 0.0
        """Time at which all records were readable, on the monotonic clock."""
        self._planned_replicas, self._planned_leaders = Counter[str](), Counter[str]()
        self._open: set[str] = set()
        """Names of restored streams that accept publishes. They stay even if the restore fails later."""
        self._requested: set[str] = set()
        """Names of the streams that this restore has asked the cluster to create."""

    async def run(self, *, keep_closed: bool = False) -> RestoreResult:
        """Restore the streams and return the result.

        ``keep_closed``: True to leave the streams read-only and the helper as their replica, until ``undo``.
        """
        began_s = time.monotonic()
        scratch = self._scratch = Path(tempfile.mkdtemp(prefix="liftpy-restore-", dir=self._options.scratch))
        try:
            self._begin("look")
            state = await self._client.admin.describe_cluster(linearizable=True)
            await self._make_room(state.image)
            for one in self._streams:
                one.plan = await self._plan_placement(one, state.image)
            for one in self._waiting_streams:
                await self._plan(one, one.wish.waiting, one.wish.replicas, one.wish.config)
            result = RestoreResult([*self._streams, *self._waiting_streams])
            if self._streams:
                await self._replicate(scratch, state)
            result.served_s = max(0.0, self._served_s - began_s)
            if not keep_closed:
                await self._finish(result)
            result.took_s = time.monotonic() - began_s
        except BaseException as error:
            if isinstance(error, LiftError) and self._open:  # another restore would be rejected
                error.retryable = False
                if self._next_step not in str(error):
                    add_advice(error, f"To complete the restore, {self._next_step}.")
            name_remains(error, await self.undo())
            raise
        if not keep_closed:
            await asyncio.to_thread(self._end)
        return result

    async def _replicate(self, scratch: Path, state: ClusterState) -> None:
        """Create the streams with the records of the backup, read-only, on the helper and on their planned nodes."""
        self._begin("stage")
        await in_thread(self._stage, scratch, asyncio.current_task())
        self._begin("register")
        controllers = ",".join(controller.node_id for controller in state.controllers)
        rack = next((node.rack for _, node in sorted(state.image.nodes.items()) if node.rack), "")
        self._helper = helper_node(self._helper_id, scratch / "data", self._options, controllers, rack)
        await self._start()
        await asyncio.to_thread(self._helper.interrupt)
        await self._until(self._is_fenced, "the helper has not stopped")
        self._begin("create")
        first_epoch = await self._first_epoch()
        for one in self._streams:
            await self._create(one, first_epoch)
            await in_thread(self._install_logs, scratch, one)
        self._begin("serve")
        await self._start()
        for one in self._streams:
            await self._until(partial(self._is_served, one), f"{one.wish.into} is not led by the helper")
        self._served_s = time.monotonic()
        self._begin("replicate")
        await self._move(with_helper=True)

    async def _finish(self, result: RestoreResult) -> None:
        """Open the streams for publishes, remove the helper, and set the settings and positions that belong to the streams."""
        if self._options.wide != NOTHING_WIDE:
            self._begin("settings")
            result.settings = await set_cluster_wide(
                self._client, self._options.wide, {one.wish.into for one in result.streams}
            )
        self._begin("open")
        for one in self._streams:
            self._open.add(one.wish.into)
            await self._client.admin.alter_stream(one.wish.into, uid=one.uid, read_only=one.wish.config.read_only)
        if self._streams:
            self._begin("leave")
            await self._move(with_helper=False)
            for one in self._streams:
                await self._client.admin.alter_stream(one.wish.into, len(one.plan[0]), uid=one.uid)
            self._begin("remove")
            await self._remove_helper()
        for one in self._waiting_streams:
            await self._create_waiting(one)
        if self._options.cursors:
            self._begin("cursors")
            uids = {one.wish.name: one.uid for one in self._streams if one.wish.into == one.wish.name}
            result.cursors = await set_cursors(self._client, self._manifest, uids)

    async def undo(self) -> tuple[str, ...]:
        """Remove the helper, and the restored streams that accept no publishes yet.

        Return the command lines that remove what could not be removed, for example because the metadata group does not answer.
        """
        left = []
        for one in self._streams:
            is_requested = one.image is not None or one.wish.into in self._requested
            if is_requested and one.wish.into not in self._open:
                try:
                    uid = one.uid or await self._created_uid(one.wish.into)
                    if uid:
                        await self._client.admin.delete_stream(one.wish.into, uid)
                except NotFoundError:  # an operator has deleted it
                    pass
                except LiftError:
                    left.append(f"liftpy stream delete {one.wish.into}")
        if self._registered and not self._open:
            try:
                await self._remove_helper()
            except NotFoundError:
                pass
            except LiftError:
                left.append(f"liftpy node remove {self._helper_id}")
        await asyncio.to_thread(self._end)
        return tuple(left)

    async def _created_uid(self, name: str) -> str:
        """Return the uid of stream ``name`` if this restore has created it, although the answer was lost. '': it has not."""
        stream = (await self._client.admin.describe_cluster(linearizable=True)).image.streams.get(name)
        is_own = stream is not None and any(self._helper_id in partition.holders for partition in stream.partitions)
        return stream.uid if stream is not None and is_own else ""

    # ---- checks before the first change----------------------------------------------------------------------------------
    async def _make_room(self, image: ClusterImage) -> None:
        """Delete the streams and helper nodes that earlier restores have not finished.

        Raises AlreadyExistsError if another stream has the name of a stream to restore, or if another restore of it is running.
        """
        unfinished: set[str] = set()
        for one in (*self._streams, *self._waiting_streams):
            existing = image.streams.get(one.wish.into)
            if existing is None:
                continue
            helpers = {node for p in existing.partitions for node in p.holders if _HELPER.fullmatch(node)}
            # a restore changes the settings only when it opens a stream, so later settings are those of an operator
            if not helpers or not existing.config.read_only or existing.config_version:
                raise AlreadyExistsError(
                    f"Stream {existing.name} already exists, and a restore never overwrites a stream. Choose another name "
                    "with --into."
                )
            alive = sorted(node for node in helpers if image.is_live(node))
            if alive:
                raise AlreadyExistsError(f"Another process is restoring stream {existing.name} ({alive[0]}). Wait for it.")
            await self._client.admin.delete_stream(existing.name, existing.uid)
            unfinished |= helpers
        abandoned = {name for name, node in image.nodes.items() if _is_abandoned(image, name, node)}
        for node in sorted(unfinished | abandoned):
            with contextlib.suppress(LiftError):  # the helper still has another replica
                await self._client.admin.remove_node(node)

    async def _plan_placement(self, one: RestoredStream, image: ClusterImage) -> tuple[tuple[str, ...], ...]:
        """Return the nodes of each partition. There are fewer replicas than in the backup if the cluster has fewer nodes.

        If the racks of the nodes do not allow the placement policy of the stream, the default policy is used.
        """
        stream_restore, count = one.wish, len(one.copy.partitions)
        replicas = min(stream_restore.replicas, len(image.live_nodes()))
        # with fewer replicas than min_isr, the setting counts as their number
        config = replace(stream_restore.config, read_only=True, min_isr=0)
        plan, policy = await self._plan(one, count, replicas, config)
        if plan.waits or len(plan.replicas) != count:
            raise ConfigError(
                f"Cannot place stream {stream_restore.into}: {plan.waits or 'no assignment is possible'}. Start more nodes, or "
                "use fewer --replicas."
            )
        request = PlacementRequest(policy=policy, stream=stream_restore.into, partitions=count, replication_factor=replicas)
        return self._place_after_others(image, request)

    async def _plan(self, one: RestoredStream, count: int, replicas: int, config: StreamConfig) -> tuple[PlacementPlan, str]:
        """Plan a stream with ``count`` partitions, as a dry run. Return the plan, and its placement policy."""

        async def planned_by(policy: str) -> PlacementPlan:
            return await self._client.admin.plan_stream(
                one.wish.into,
                one.wish.subject,
                partitions=count,
                replicas=replicas,
                config=config,
                placement=PlacementOptions(policy=policy),
            )

        policy = "" if one.wish.placement == MANUAL else one.wish.placement
        try:
            return await planned_by(policy), policy
        except ConfigError as error:
            if not policy:
                raise
            one.unmet_policy = str(error)
            return await planned_by(""), ""

    def _place_after_others(self, image: ClusterImage, request: PlacementRequest) -> tuple[tuple[str, ...], ...]:
        """Return the nodes of each partition. Unlike in a dry run, the plans of the streams before count.

        Otherwise the small streams of a backup would all be placed on the same nodes.
        """
        replicas, leaders = self._planned_replicas, self._planned_leaders
        nodes = [
            replace(node, replicas=node.replicas + replicas[node.node_id], leaders=node.leaders + leaders[node.node_id])
            for node in facts_of(image)
        ]
        start = image.counters.placement_index + leaders.total()
        placed = tuple(place(nodes, replace(request, start=start)).replicas)
        replicas.update(node for partition in placed for node in partition)
        leaders.update(partition[0] for partition in placed)
        return placed

    def _begin(self, name: str) -> None:
        self._step(name)
        self._report_progress(_STEP_TEXTS[name], "", 0, 0)

    def _stage(self, scratch: Path, run: asyncio.Task[object]) -> None:
        """Write the logs of all streams into ``scratch``. Raises LiftError as soon as the task ``run`` is canceled."""
        was = read_image(self._store, self._manifest).streams
        total, done = sum(len(copy.pieces) for one in self._streams for copy in one.copy.partitions), count(1)

        def read(path: str) -> None:
            if run.cancelling():
                raise LiftError(f"The restore was stopped before it has read {path}.")
            self._report_progress(_STEP_TEXTS["stage"], "files", next(done), total)

        for number, one in enumerate(self._streams):
            for copy in one.copy.partitions:
                folder = scratch / "staged" / str(number) / str(copy.partition)
                purges = was[one.wish.name].partitions[copy.partition].purges
                one.logs.append(stage(self._store, copy, one.wish.config, folder, self._options.until, read, purges))

    # ---- the helper ------------------------------------------------------------------------------------------------------
    async def _start(self) -> None:
        assert self._helper is not None
        self._registered = True
        self._helper.start()
        await asyncio.to_thread(self._helper.wait_ready)

    async def _is_fenced(self) -> bool:
        image = (await self._client.admin.describe_cluster(linearizable=True)).image
        if self._helper_id not in image.nodes:
            raise NotFoundError(
                f"Node {self._helper_id} was removed during the restore that needs it. Start the restore again."
            )
        return not image.is_live(self._helper_id)

    def _end(self) -> None:
        if self._helper is not None and self._helper.running:
            self._helper.interrupt()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    async def _remove_helper(self) -> None:
        assert self._helper is not None
        if self._helper.running:
            await self._client.admin.set_node(self._helper_id, leaving=True)

            async def is_empty() -> bool:
                return not (await self._client.admin.describe_cluster()).image.replica_counts.get(self._helper_id)

            await self._until(is_empty, "the helper still holds replicas")
            await asyncio.to_thread(self._helper.interrupt)
            await self._until(self._is_fenced, "the helper has not stopped")
        await self._client.admin.remove_node(self._helper_id)

    # ---- streams ---------------------------------------------------------------------------------------------------------
    async def _first_epoch(self) -> int:
        counters = (await self._client.admin.describe_cluster(linearizable=True)).image.counters
        return first_leader_epoch(self._manifest, counters.next_leader_epoch)

    def _place_on_helper(self, numbers: range, later_policy: str = "") -> PlacementOptions:
        assignment = tuple((number, (self._helper_id,)) for number in numbers)
        return PlacementOptions(policy=MANUAL, assignment=assignment, allow_offline=True, later_policy=later_policy)

    async def _create(self, one: RestoredStream, first_epoch: int) -> None:
        """Create the stream on the helper, with at most ``_CREATED_TOGETHER`` partitions per request."""
        stream_restore, count = one.wish, len(one.copy.partitions)
        self._requested.add(stream_restore.into)
        created = await self._client.create_stream(
            stream_restore.into,
            stream_restore.subject,
            config=replace(stream_restore.config, read_only=True),
            placement=self._place_on_helper(range(min(count, _CREATED_TOGETHER)), stream_restore.placement or DEFAULT_POLICY),
            ready_s=0,
            first_leader_epoch=first_epoch,
        )
        one.image = created.image
        for first in range(_CREATED_TOGETHER, count, _CREATED_TOGETHER):
            numbers = range(first, min(count, first + _CREATED_TOGETHER))
            placement = self._place_on_helper(numbers)
            grown = await self._client.admin.add_partitions(stream_restore.into, uid=one.uid, placement=placement, ready_s=0)
            one.image = grown.image
        if any(partition.leader_epoch < first_epoch for partition in one.image.partitions):
            raise ConfigError(
                f"Cannot restore stream {stream_restore.into}: at least one controller has a version that cannot skip "
                "LeaderEpochs. Upgrade all controllers, then restore again."
            )

    async def _create_waiting(self, one: RestoredStream) -> None:
        """Create a stream that had no partitions. It waits again if the cluster has too few nodes."""
        wish, policy = one.wish, "" if one.unmet_policy or one.wish.placement == MANUAL else one.wish.placement
        created = await self._client.create_stream(
            wish.into,
            wish.subject,
            partitions=wish.waiting,
            replicas=wish.replicas,
            config=wish.config,
            placement=PlacementOptions(policy=policy),
            ready_s=0,
        )
        one.image = created.image
        self._open.add(wish.into)

    def _install_logs(self, scratch: Path, one: RestoredStream) -> None:
        """Move the staged logs of a stream from ``scratch`` into the data directory of the helper, with their producer state."""
        streams = scratch / "data" / "streams"
        make_folder(streams)
        staged = scratch / "staged" / str(self._streams.index(one))
        for number, log in enumerate(one.logs):
            install_state(DirectoryStorage(staged / str(number)), log, PartitionKey(one.wish.into, one.uid, number))
        staged.rename(streams / f"{one.wish.into}-{one.uid}")
        sync_folder(streams)

    async def _is_served(self, one: RestoredStream) -> bool:
        try:
            partitions = one.partitions_of((await self._client.stream(one.wish.into)).image)
        except NotFoundError:
            raise one.deleted_error() from None
        if any(partition.leader != self._helper_id for partition in partitions):
            return False
        for number, log in enumerate(one.logs):
            bounds = await self._client.bounds(one.wish.into, number)
            if (bounds.uid, bounds.end_offset) != (one.uid, max(log.end, log.start)):
                return False
        return True

    async def _move(self, *, with_helper: bool) -> None:
        """Move all partitions to their planned nodes, and wait until the replicas on these nodes are in sync."""
        extra = (self._helper_id,) if with_helper else ()
        moves = [
            ReplicaMove(stream=one.wish.into, uid=one.uid, partition=number, replicas=(*nodes, *extra))
            for one in self._streams
            for number, nodes in enumerate(one.plan)
        ]
        refused = [text for text in await self._client.admin.reassign_all(moves) if text]
        if refused:
            raise UnavailableError(
                f"A restored replica cannot move to its node: {refused[0]}. Check `liftpy status`, then {self._next_step}."
            )

        async def is_done() -> bool:
            image = (await self._client.admin.describe_cluster()).image
            done = 0
            for one in self._streams:
                partitions = one.partitions_of(image.streams.get(one.wish.into))
                for partition, nodes in zip(partitions, one.plan, strict=True):
                    done += set(partition.isr) == {*nodes, *extra} and not partition.target and bool(partition.leader)
            self._report_progress(_STEP_TEXTS["replicate" if with_helper else "leave"], "partitions", done, len(moves))
            return done == len(moves)

        await self._until(is_done, "replicas do not get in sync")

    @property
    def _next_step(self) -> str:
        """Text that says what to do after a failure. Another restore would reject streams that are open."""
        if not self._open:
            return "start the restore again"
        removed = [one.wish.into for one in (*self._streams, *self._waiting_streams) if one.wish.into not in self._open]
        others = f", except {', '.join(removed)}. Restore these streams again (--into)" if removed else ""
        return (
            f"remove the helper when it holds no replicas (liftpy node remove {self._helper_id}) and set the positions of groups "
            f"and cursors (liftpy backup cursors). The restored streams are complete and stay{others}"
        )

    async def _until(self, is_so: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait until ``is_so`` returns True. ``what``: the problem, for the error text.

        Raises UnavailableError if the restored streams do not change for ``STALLED_S`` seconds, and their replicas copy nothing.
        """
        seen, changed_s = "", time.monotonic()
        asked_s = changed_s
        while True:
            with contextlib.suppress(UnavailableError):
                if await is_so():
                    return
                image = (await self._client.admin.describe_cluster()).image
                streams = [image.streams.get(one.wish.into) for one in self._streams]
                now = repr(streams)
                if now != seen:
                    seen, changed_s = now, time.monotonic()
                elif time.monotonic() - max(asked_s, changed_s) >= _POSITIONS_INTERVAL_S:
                    asked_s = time.monotonic()
                    if await self._have_moved(streams):
                        changed_s = asked_s
            if time.monotonic() - changed_s > STALLED_S:
                raise UnavailableError(
                    f"{what}: no progress for {STALLED_S:g} s. Check `liftpy status` and the logs of the nodes, then "
                    f"{self._next_step}."
                )
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _have_moved(self, streams: Collection[StreamImage | None]) -> bool:
        """Ask the leaders of ``streams`` for the positions of the replicas. Return whether one has changed since the last request."""
        found = [stream for stream in streams if stream is not None]
        uids = {stream.uid for stream in found}
        before = dict(self._positions)
        for node in sorted({partition.leader for stream in found for partition in stream.partitions} - {""}):
            with contextlib.suppress(LiftError):  # without an answer, its replicas count as unchanged
                for row in (await self._client.admin.node_status(node))["partitions"]:
                    if row["uid"] in uids:
                        followers = {name: follower.get("position") for name, follower in row.get("followers", {}).items()}
                        facts = (row.get("phase"), row.get("newest_offset"), followers)
                        self._positions[node, row["uid"], row["partition"]] = facts
        return self._positions != before
