"""Manages the worker processes of a node. Without workers it does nothing.

The first process of the node holds the lock, the node file and the clean-stop marker. It is the member of the metadata
group, registers, sends heartbeats and answers status. The workers only host partitions. The first process sends them
changes of the metadata, answered heartbeats and the stop. Their requests to the metadata group go through this module. The
node has one incarnation. It ends when the first of its processes ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from liftpy.config import ReplicationConfig
from liftpy.core.base.worker_assignment import WorkerShare
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.image_delta import entry_between
from liftpy.core.metadata.snapshot import encode_snapshot
from liftpy.core.observe.node_health import HealthInput
from liftpy.core.publish.memory_budget import LEAST_LIMIT_BYTES
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.worker_frames import LEASE, Frame, FrameKind, encode
from liftpy.errors import ConfigError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.credentials import Credentials
from liftpy.nats.request_guard import RequestGuard
from sidecar.disk.data_folder import DataDirectory
from sidecar.metadata.group import MetadataGroup
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import spawn
from sidecar.workers.worker_process import WorkerHandle

logger = logging.getLogger("liftpy.workers")

STOP_S = 6.0
"""Time in seconds after which a worker that has not stopped is killed. The node's stop is then not clean."""
_PROPOSAL = struct.Struct(">I")


class Workers:
    """All worker processes of a node.

    ``settings``: settings of each process (``divided_settings``). ``fatal``: stops the node after an error. ``repair``: restarts the
    node to repair a log.
    """

    def __init__(
        self,
        settings: NodeSettings,
        fatal: Callable[[Exception], None],
        repair: Callable[[str], None],
        counters: Counter[str] | None = None,
    ) -> None:
        self._settings = settings
        self._counters = Counter[str]() if counters is None else counters
        self._fatal = fatal
        self._repair = repair
        self._group: MetadataGroup | None = None
        self._image = ClusterImage()
        self._beating: asyncio.Task[None] | None = None
        self._proposals: set[asyncio.Task[None]] = set()
        self._has_begun = False
        config = settings.replication
        most_silent = max(3, round(config.session_s / config.heartbeat_interval_s))
        self.handles = [
            WorkerHandle(WorkerShare(number, settings.workers), self, most_silent) for number in range(1, settings.workers)
        ]

    # ---- start -----------------------------------------------------------------------------------------------------------
    async def start(self, folder: DataDirectory, *, clean_stop: bool, flushed_always: bool) -> None:
        """Start the worker processes, which recover the logs of their partitions at once.

        ``folder``: data directory. ``clean_stop``: True if the node stopped cleanly before. ``flushed_always``: True if the last stop
        could not lose acknowledged records.
        """
        if not self.handles:
            return
        said = {"settings": settings_to_json(self._settings), "clean_stop": clean_stop, "flushed_always": flushed_always}
        for handle in self.handles:
            await handle.start(folder.lock, {**said, "share": handle.share.number})
        self._beating = spawn(self._beat(), "watching the workers", endless=True)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.replication.heartbeat_interval_s)
            for handle in self.handles:
                handle.beat()

    async def wait_until_recovered(self) -> dict[str, int]:
        """Wait until all workers have recovered their logs. Raises WorkerError.

        Return the numbers of ``damaged`` and ``suspect`` logs.
        """
        found = {"damaged": 0, "suspect": 0}
        for handle in self.handles:
            said = json.loads((await handle.wait_for_event(FrameKind.RECOVERED)).body)
            found = {name: count + said[name] for name, count in found.items()}
        return found

    def begin(self, incarnation: int, group: MetadataGroup) -> None:
        """Let the workers open the partitions of the metadata image. Call it after the registration of the node.

        ``incarnation``: number of the registration. ``group``: metadata group, whose changes are sent to the workers from then on.
        """
        if not self.handles:
            return
        self._group = group
        self._image = group.image
        image = encode(FrameKind.IMAGE, 0, encode_snapshot(self._image, operations=False))
        self._has_begun = True
        for handle in self.handles:
            handle.send_bytes(image)
            handle.send(FrameKind.BEGIN, incarnation)
        group.watch(self._image_changed)

    async def wait_until_open(self) -> None:
        """Wait until all workers have opened their partitions. Raises WorkerError."""
        for handle in self.handles:
            await handle.wait_for_event(FrameKind.SETTLED)

    def _image_changed(self, _: ClusterImage, new: ClusterImage) -> None:
        old, self._image = self._image, new
        entry = entry_between(old, new)
        if entry is None:
            frame = encode(FrameKind.IMAGE, 0, encode_snapshot(new, operations=False))
        else:
            frame = encode(FrameKind.ENTRY, 0, entry.SerializeToString())
        for handle in self.handles:
            handle.send_bytes(frame)

    def heartbeat_answered(self, sent_ns: int, lease_ns: int) -> None:
        """Tell the workers that a heartbeat of the node was answered. Each worker extends its leases by its own clock.

        ``sent_ns``: time at which the heartbeat was sent. ``lease_ns``: lease time. Both are in nanoseconds.
        """
        if self._has_begun:
            for handle in self.handles:
                handle.send(FrameKind.HEARD, sent_ns, LEASE.pack(lease_ns))

    def change_level(self, level: str, for_s: float) -> None:
        for handle in self.handles:
            handle.send(FrameKind.LEVEL, 0, json.dumps({"level": level, "for_s": for_s}).encode())

    def change_settings(self, settings: NodeSettings) -> None:
        for handle in self.handles:
            handle.send(FrameKind.SETTINGS, 0, json.dumps(settings_to_json(settings)).encode())

    # ---- WorkerListener------------------------------------------------------------------------------------------------------
    def worker_proposes(self, worker: WorkerHandle, frame: Frame) -> None:
        (timeout_ms,) = _PROPOSAL.unpack_from(frame.body)
        request = pb.ControlRequest.FromString(frame.body[_PROPOSAL.size :])
        guard = RequestGuard("proposal of a worker", self._counters, lambda token, _: self._unavailable(worker, int(token)))
        proposing = self._propose(worker, frame.token, request, timeout_ms / 1000)
        task = spawn(guard.run(proposing, b"%d" % frame.token), "what a worker proposes")
        self._proposals.add(task)
        task.add_done_callback(self._proposals.discard)

    async def _propose(self, worker: WorkerHandle, token: int, request: pb.ControlRequest, timeout_s: float) -> None:
        if self._group is None:
            self._unavailable(worker, token)
        else:
            answer = await self._group.propose(request, timeout_s)
            worker.send(FrameKind.ANSWER, token, answer.SerializeToString())

    def _unavailable(self, worker: WorkerHandle, token: int) -> None:
        answer = pb.ControlResponse(error=pb.ControlResponse.UNAVAILABLE)
        worker.send(FrameKind.ANSWER, token, answer.SerializeToString())

    def worker_distrusts(self) -> None:
        if self._group is not None:
            self._group.distrust()

    def worker_failed(self, error: Exception) -> None:
        self._fatal(error)

    def worker_damaged(self, reason: str) -> None:
        self._repair(reason)

    # ---- status ------------------------------------------------------------------------------------------------------------
    def merged_signs(self, own: HealthInput) -> HealthInput:
        """Return the facts for health checks about the whole node. ``own``: facts about the first process."""
        for handle in self.handles:
            own = _with_signs(own, handle.signs)
        return own

    @property
    def unsynced(self) -> str:
        """Reason why a replica of a worker has not caught up with its leader. '': all replicas have caught up."""
        return next(
            (f"worker {h.share.number}: {why}" for h in self.handles if (why := h.signs.get("unsynced", "it starts"))), ""
        )

    async def request_statuses(self, **what: Any) -> list[dict[str, Any]]:
        """Send the status request ``what`` to all workers, and return their answers."""
        return list(await asyncio.gather(*(handle.request_status(what) for handle in self.handles)))

    # ---- stop --------------------------------------------------------------------------------------------------------------
    async def close_subjects(self, timeout_s: float) -> None:
        """Make all workers stop accepting publishes and answer those that have arrived.

        ``timeout_s``: time limit of each worker, in seconds. The call waits for at most twice this time.
        """
        for handle in self.handles:
            handle.send(FrameKind.CLOSE_SUBJECTS, round(timeout_s * 1000))
        if self.handles:
            await asyncio.wait([handle.event(FrameKind.CLOSED) for handle in self.handles], timeout=2 * timeout_s)

    async def stop(self) -> bool:
        """Stop the workers. Return whether all of them stopped cleanly. A worker that hangs is killed."""
        stopped = await asyncio.gather(*(handle.stop(STOP_S) for handle in self.handles))
        await end_tasks([self._beating, *self._proposals])
        return all(stopped)


def _with_signs(own: HealthInput, signs: dict[str, Any]) -> HealthInput:
    return HealthInput(
        failure=own.failure,
        longest_flush_s=max(own.longest_flush_s, signs.get("longest_flush_s", 0.0)),
        hung_flush_s=own.hung_flush_s,
        registered=own.registered,
        nats=own.nats and signs.get("nats", False),
        metadata_heard_s=own.metadata_heard_s,
        session_s=own.session_s,
        opening=own.opening + signs.get("opening", 0),
        opened=own.opened and signs.get("opened", False),
        stopped_for_space=own.stopped_for_space + signs.get("stopped_for_space", 0),
    )


# Divides the limits of a node between its processes, and sends settings to workers.
#
# Limits of one process (open files, maps), of a partition, of a connection or of an answer are not divided.


DIVIDED_LIMITS = {
    "ingest_buffer_bytes": 8192,
    "node_unreplicated_bytes": 512,
    "node_dedup_state_bytes": 512,
    "node_standby_bytes": 512,
    "copy_bytes_per_s": 1,
    "copy_min_bytes_per_s": 1,
}
"""Name of a node limit in ``ReplicationConfig`` -> minimum for one process. A limit of 0 stays 0."""


def divided_settings(settings: NodeSettings) -> NodeSettings:
    """Return the settings for each process of a node with several processes: its limits are divided by the number of processes."""
    count = settings.workers
    if count == 1:
        return settings
    own: dict[str, Any] = {
        name: max(least, getattr(settings.replication, name) // count) if getattr(settings.replication, name) else 0
        for name, least in DIVIDED_LIMITS.items()
    }
    limit = settings.memory_limit_bytes
    return replace(
        settings,
        memory_limit_bytes=max(LEAST_LIMIT_BYTES, limit // count) if limit else 0,
        scrub_bytes_per_s=max(1, settings.scrub_bytes_per_s // count) if settings.scrub_bytes_per_s else 0,
        replication=replace(settings.replication, **own),
    )


def folder_of(data: Path, share: WorkerShare) -> Path:
    """Return the directory for the files of one process of the node. For the first process, it is the data directory ``data``."""
    return data if not share.number else data / "workers" / str(share.number)


def settings_to_json(settings: NodeSettings) -> dict[str, Any]:
    """Encode settings as a JSON object, for ``settings_from_json`` in a process of the same version."""
    return {**asdict(settings), "data": str(settings.data.absolute())}


def settings_from_json(said: dict[str, Any]) -> NodeSettings:
    """Decode settings that ``settings_to_json`` has encoded. Raises ConfigError if they are invalid."""
    try:
        lists = {f.name for f in fields(NodeSettings) if isinstance(said[f.name], list)}
        values: dict[str, Any] = {name: tuple(value) if name in lists else value for name, value in said.items()}
        values["data"] = Path(values["data"])
        values["credentials"] = Credentials(**values["credentials"])
        values["replication"] = ReplicationConfig(**values["replication"])
        return NodeSettings(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"Internal error: a worker received invalid settings: {error!r}. Please report it.") from None
