"""Manages the worker processes of a node. Without workers it does nothing.

The first process of the node holds the lock, the node file and the clean-stop marker. It is the member of the metadata
group, registers, sends heartbeats and answers status. The workers only host partitions. The first process sends them
changes of the metadata, answered heartbeats and the stop. Their requests to the metadata group go through this module. The
node has one incarnation. It ends when the first of its processes ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, cast

from google.protobuf.message import DecodeError

from liftpy.config import ReplicationConfig
from liftpy.core.base.worker_assignment import WorkerShare, share_of
from liftpy.core.metadata.codec import encode_snapshot
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.image_delta import entry_between
from liftpy.core.observe.node_health import HealthInput
from liftpy.core.publish.memory_budget import LEAST_LIMIT_BYTES
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire._pb import replication_pb2
from liftpy.core.wire.worker_frames import LEASE, TIMEOUT_MS, Frame, FrameKind, FrameReader, encode
from liftpy.errors import ConfigError, CorruptionError, LiftError, ProtocolError, StorageError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.credentials import Credentials
from liftpy.nats.request_guard import RequestGuard
from sidecar.dev.nats_server import spawn as spawn_process
from sidecar.disk.data_folder import DataDirectory
from sidecar.metadata.group import MetadataGroup
from sidecar.partition.combined_fetches import FetchCombiner
from sidecar.runtime.settings import NodeSettings, worker_environment
from sidecar.runtime.tasks import TaskSet, spawn

logger = logging.getLogger("liftpy.workers")

STOP_S = 6.0
"""Time in seconds after which a worker that stops, and whose event loop does not run, is killed. The node's stop is then not clean."""
SIGNALS_FOR_THE_NODE = (signal.SIGINT, signal.SIGTERM)
"""Signals that a supervisor may send to all processes of a node. They are meant for the first process, which stops the workers."""
_CLEAN, _FLUSHED = 1, 2
"""Bits of the token of STOPPED."""
MOST_UNSENT_BYTES = 640 * 1024 * 1024
"""Maximum size of frames that a worker has not read, in bytes: a metadata image, and the changes since."""
_EXIT_TIMEOUT_S = 5.0
"""Time in seconds for a process to end after it has reported its stop. A busy machine needs seconds for it."""
STATUS_TIMEOUT_S = 1.0
"""Maximum wait for answers of workers for the status, in seconds."""
DIVIDED_LIMITS = {
    "ingest_buffer_bytes": 8192,
    "node_unreplicated_bytes": 512,
    "node_dedup_state_bytes": 512,
    "node_standby_bytes": 512,
    "copy_bytes_per_s": 1,
    "copy_min_bytes_per_s": 1,
}
"""Name of a node limit in ``ReplicationConfig`` -> minimum for one process. A limit of 0 stays 0."""
COMBINED_FETCH_TIMEOUT_S = 0.3
MAX_WAITING_FETCHES = 256
"""Maximum number of requests that wait for workers. Further requests get no answer, and their senders retry."""


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
        self.fatal = fatal
        self.repair = repair
        self._group: MetadataGroup | None = None
        self._image = ClusterImage()
        self._ping_task: asyncio.Task[None] | None = None
        self._requests = TaskSet()
        """Tasks that answer requests of workers, and of other nodes with the help of workers."""
        self._has_started = False
        config = settings.replication
        max_unanswered_pings = max(3, round(config.session_s / config.heartbeat_interval_s))
        self.handles = [
            WorkerHandle(WorkerShare(number, settings.workers), self, max_unanswered_pings)
            for number in range(1, settings.workers)
        ]

    # ---- start -----------------------------------------------------------------------------------------------------------
    async def start(self, folder: DataDirectory, *, clean_stop: bool, flushed_always: bool) -> None:
        """Start the worker processes, which recover the logs of their partitions at once.

        ``folder``: data directory. ``clean_stop``: True if the node stopped cleanly before. ``flushed_always``: True if the last stop
        could not lose acknowledged records.
        """
        if not self.handles:
            return
        setup = {"settings": settings_to_json(self._settings), "clean_stop": clean_stop, "flushed_always": flushed_always}
        for handle in self.handles:
            await handle.start(folder.lock, {**setup, "share": handle.share.number})
        self._ping_task = spawn(self._send_pings(), "watching the workers", endless=True)

    async def _send_pings(self) -> None:
        while True:
            await asyncio.sleep(self._settings.replication.heartbeat_interval_s)
            for handle in self.handles:
                handle.send_ping()

    async def wait_until_recovered(self) -> dict[str, list[str]]:
        """Wait until all workers have recovered their logs. Raises WorkerError.

        Return the names of the ``damaged``, ``confined`` and ``suspect`` logs (``RecoveredLogs``).
        """
        logs: dict[str, list[str]] = {"damaged": [], "confined": [], "suspect": []}
        for handle in self.handles:
            worker_logs = json.loads((await asyncio.shield(handle.event(FrameKind.RECOVERED))).body)
            logs = {kind: names + worker_logs[kind] for kind, names in logs.items()}
        return logs

    def begin(self, incarnation: int, group: MetadataGroup) -> None:
        """Let the workers open the partitions of the metadata image. Call it after the registration of the node.

        ``incarnation``: number of the registration. ``group``: metadata group, whose changes are sent to the workers from then on.
        """
        if not self.handles:
            return
        self._group = group
        self._image = group.image
        image = encode(FrameKind.IMAGE, 0, encode_snapshot(self._image, operations=False))
        self._has_started = True
        for handle in self.handles:
            handle.send_bytes(image)
            handle.send(FrameKind.REGISTERED, incarnation)
        group.watch(self._image_changed)

    async def wait_until_open(self) -> None:
        """Wait until all workers have opened their partitions. Raises WorkerError."""
        for handle in self.handles:
            await asyncio.shield(handle.event(FrameKind.PARTITIONS_OPENED))

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
        """Tell the workers that a heartbeat of the node was answered. Each worker extends its leases by its own clock."""
        if self._has_started:
            for handle in self.handles:
                handle.send(FrameKind.HEARTBEAT_ANSWERED, sent_ns, LEASE.pack(lease_ns))

    def change_level(self, level: str, for_s: float) -> None:
        for handle in self.handles:
            handle.send(FrameKind.LOG_LEVEL, 0, json.dumps({"level": level, "for_s": for_s}).encode())

    def change_settings(self, settings: NodeSettings) -> None:
        for handle in self.handles:
            handle.send(FrameKind.SETTINGS, 0, json.dumps(settings_to_json(settings)).encode())

    # ---- requests and reports of workers -------------------------------------------------------------------------------------
    def worker_proposes(self, worker: WorkerHandle, frame: Frame) -> None:
        (timeout_ms,) = TIMEOUT_MS.unpack_from(frame.body)
        request = pb.ControlRequest.FromString(frame.body[TIMEOUT_MS.size :])
        guard = RequestGuard("proposal of a worker", self._counters, lambda token, _: self._unavailable(worker, int(token)))
        proposing = self._propose(worker, frame.token, request, timeout_ms / 1000)
        self._requests.start(guard.run(proposing, b"%d" % frame.token), "proposing a request of a worker")

    async def _propose(self, worker: WorkerHandle, token: int, request: pb.ControlRequest, timeout_s: float) -> None:
        if self._group is None:
            self._unavailable(worker, token)
        else:
            answer = await self._group.propose(request, timeout_s)
            worker.send(FrameKind.CONTROL_RESPONSE, token, answer.SerializeToString())

    def _unavailable(self, worker: WorkerHandle, token: int) -> None:
        answer = pb.ControlResponse(error=pb.ControlResponse.UNAVAILABLE)
        worker.send(FrameKind.CONTROL_RESPONSE, token, answer.SerializeToString())

    def worker_distrusts(self) -> None:
        """Load the metadata image again, because a controller has contradicted the image of a worker."""
        if self._group is not None:
            self._group.distrust()

    def answer_combined_fetches(self, combiner: FetchCombiner) -> Callable[[bytes, memoryview], None]:
        """Return the function that answers combined fetches for all processes of the node.

        ``combiner``: answers the part that concerns the first process.
        """
        if not self.handles:
            return combiner.answer_question
        return WorkerCombinedFetches(combiner, self.handles, self._requests, self._counters).answer_question

    # ---- status ------------------------------------------------------------------------------------------------------------
    def merged_health_input(self, own: HealthInput) -> HealthInput:
        """Return the facts for health checks about the whole node. ``own``: facts about the first process."""
        for handle in self.handles:
            own = _merge_health_report(own, handle.health_report)
        return own

    @property
    def unsynced(self) -> str:
        """Reason why a replica of a worker has not caught up with its leader. '': all replicas have caught up."""
        return next(
            (f"worker {h.share.number}: {why}" for h in self.handles if (why := h.health_report.get("unsynced", "it starts"))),
            "",
        )

    # ---- stop --------------------------------------------------------------------------------------------------------------
    async def close_subjects(self, timeout_s: float) -> None:
        """Make all workers stop accepting publishes and answer those that have arrived.

        ``timeout_s``: time limit of each worker, in seconds. The call waits for at most twice this time.
        """
        for handle in self.handles:
            handle.send(FrameKind.CLOSE_SUBJECTS, round(timeout_s * 1000))
        if self.handles:
            await asyncio.wait([handle.event(FrameKind.SUBJECTS_CLOSED) for handle in self.handles], timeout=2 * timeout_s)

    @property
    def all_flushed(self) -> bool:
        """True if all workers have stopped, and all records of their logs were on the disk."""
        return all(handle.all_flushed for handle in self.handles)

    @property
    def log_ends(self) -> dict[str, int]:
        """Name of each log of the stopped workers -> its log end offset (exclusive)."""
        return {name: end for handle in self.handles for name, end in handle.log_ends.items()}

    async def stop(self, longest_s: float) -> bool:
        """Stop the workers. Return whether all of them stopped cleanly.

        A worker whose event loop does not run for ``STOP_S`` seconds is killed. Others are killed after ``longest_s`` seconds.
        """
        stopped = await asyncio.gather(*(handle.stop(STOP_S, longest_s) for handle in self.handles))
        await end_tasks([self._ping_task])
        await self._requests.end()
        return all(stopped)


def stop_token(*, clean: bool, flushed: bool) -> int:
    """Return the token of STOPPED. ``clean``: the stop was clean. ``flushed``: all records are on the disk."""
    return _CLEAN * clean + _FLUSHED * flushed


def _merge_health_report(own: HealthInput, health_report: dict[str, Any]) -> HealthInput:
    return replace(
        own,
        longest_flush_s=max(own.longest_flush_s, health_report.get("longest_flush_s", 0.0)),
        nats=own.nats and health_report.get("nats", False),
        opening=own.opening + health_report.get("opening", 0),
        opened=own.opened and health_report.get("opened", False),
        stopped_for_space=own.stopped_for_space + health_report.get("stopped_for_space", 0),
    )


# ---- one worker ------------------------------------------------------------------------------------------------------


class WorkerError(LiftError):
    """A worker process has ended, hangs or has failed, so its node stops too. Read its log, then start the node again."""

    code = "WORKER"


def failure_of(number: int, body: bytes) -> Exception:
    """Return the error that the frame FATAL of worker ``number`` reports. ``body``: content of the frame.

    The class of the error decides whether the node restarts.
    """
    answer = json.loads(body)
    text = f"worker {number}: {answer['text']}"
    if answer["prevents_restart"]:
        return CorruptionError(text)
    return StorageError(text) if answer["is_temporary"] else WorkerError(text)


class WorkerHandle(asyncio.Protocol):
    """The node's side of one worker process: starts it, exchanges frames with it, and ends it.

    If a worker hangs or is suspended, the node's heartbeats would keep leaderships that no process serves. So the node pings
    each worker with each of its own heartbeats. If a worker leaves more consecutive pings without an answer than fit into a
    session, the node ends. Pings are counted, and not time, so a node that was suspended itself ends no worker.

    ``workers``: receives the requests and reports of the worker, and no answers. ``max_unanswered_pings``: number of
    consecutive pings without an answer after which the worker counts as hanging.
    """

    def __init__(self, share: WorkerShare, workers: Workers, max_unanswered_pings: int) -> None:
        self.share = share
        self._workers = workers
        self._max_unanswered_pings = max_unanswered_pings
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[Any] | None = None
        self._spawning: asyncio.Future[None] | None = None
        """Start of the process, in a thread. A canceled start of the node does not cancel it."""
        self._unanswered = 0
        self._heard_s = 0.0
        """Monotonic time of the last frame of the worker, in seconds."""
        self._has_answered = False
        self._is_stopping = False
        self._has_failed = False
        self.all_flushed = False
        """True if the worker has stopped, and all records of its logs were on the disk."""
        self.log_ends: dict[str, int] = {}
        """Name of each log of the stopped worker -> its log end offset (exclusive)."""
        self._token = 0
        self._requests: dict[int, asyncio.Future[bytes]] = {}
        self._events: dict[FrameKind, asyncio.Future[Frame]] = {}
        self.health_report: dict[str, Any] = {}
        """State of the worker in its last report."""
        self.last_sample: dict[str, Any] = {}
        """Counters of the worker in its last sample."""
        self._last_statuses: dict[str, dict[str, Any]] = {}
        """Request -> last answer of the worker."""

    # ---- start, stop ------------------------------------------------------------------------------------------------------
    async def start(self, lock: int, setup: dict[str, Any]) -> None:
        """Start the worker process and send its setup. ``lock``: file descriptor of the lock of the data directory, to inherit."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        loop = asyncio.get_running_loop()
        for kind in (FrameKind.RECOVERED, FrameKind.PARTITIONS_OPENED, FrameKind.SUBJECTS_CLOSED, FrameKind.STOPPED):
            self._events[kind] = loop.create_future()
        self._spawning = loop.run_in_executor(None, self._spawn, theirs, lock)
        try:
            await asyncio.shield(self._spawning)
            ours.setblocking(False)
            await loop.create_unix_connection(lambda: self, sock=ours)
        except BaseException:
            self._transport = None  # a stop during the start has closed it
            ours.close()
            raise
        self.send(FrameKind.SETUP, 0, json.dumps(setup).encode())

    def _spawn(self, channel: socket.socket, lock: int) -> None:
        with channel:
            self._process = spawn_process(
                [sys.executable, "-P", "-m", "sidecar.node.worker_node", str(channel.fileno()), str(lock)],
                signal.SIGKILL,
                blocked=SIGNALS_FOR_THE_NODE,
                stdin=subprocess.DEVNULL,
                pass_fds=(channel.fileno(), lock),
                env=worker_environment(),
                start_new_session=True,  # Ctrl-C goes to the node, which stops its workers in order
            )

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def send(self, kind: FrameKind, token: int = 0, body: bytes = b"") -> None:
        """Send a frame to the worker. The call has no effect if the worker has ended."""
        self.send_bytes(encode(kind, token, body))

    def send_bytes(self, frame: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(frame)
        if transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            self._fail(WorkerError(f"Worker {self.share.number} does not read its messages. The node stops with exit code 1."))

    def event(self, kind: FrameKind) -> asyncio.Future[Frame]:
        """Return the future of a frame that the worker sends once: RECOVERED, PARTITIONS_OPENED, SUBJECTS_CLOSED or STOPPED.

        It raises WorkerError if the worker ends before. Do not cancel the future, because others may wait for it.
        """
        return self._events[kind]

    def send_ping(self) -> None:
        """Ping the worker. Call it with each heartbeat of the node, on the event loop of the node.

        A worker that stops may leave pings without an answer, because ``stop`` measures its time.
        """
        if not self._has_answered or self._has_failed:
            return
        if self._is_stopping:
            self.send(FrameKind.PING)
            return
        if self._unanswered >= self._max_unanswered_pings:
            self._fail(
                WorkerError(
                    f"Worker {self.share.number} (process {self.pid}) is blocked: {self._unanswered} pings without "
                    "answer. The node stops with exit code 1."
                )
            )
            return
        self._unanswered += 1
        self.send(FrameKind.PING)

    async def stop(self, timeout_s: float, longest_s: float) -> bool:
        """Stop the worker. Return whether all its acknowledged data is on disk.

        ``timeout_s``: time without any frame of the worker after which it is killed. ``longest_s``: time after which it is killed
        anyway.
        """
        self._is_stopping = True
        clean = False
        if self._transport is not None and not self._has_failed:
            self.send(FrameKind.STOP)
            with contextlib.suppress(TimeoutError, WorkerError):
                frame = await self._stopped(timeout_s, longest_s)
                clean, self.all_flushed = bool(frame.token & _CLEAN), bool(frame.token & _FLUSHED)
                self.log_ends = json.loads(frame.body or b"{}")
        if self._spawning is not None:
            await asyncio.wait([self._spawning])
        process = self._process
        if process is not None:
            if not clean:
                process.kill()
            code = await asyncio.to_thread(_wait_for_exit, process)
            clean = clean and code == 0
        if self._transport is not None:
            self._transport.close()
        return clean

    async def _stopped(self, timeout_s: float, longest_s: float) -> Frame:
        """Wait for the frame STOPPED. Raises TimeoutError, and WorkerError if the worker ends before.

        A worker answers pings while its event loop runs, also while it waits for a slow disk.
        """
        began_s = self._heard_s = time.monotonic()
        stopped = self.event(FrameKind.STOPPED)
        while not stopped.done():
            now_s = time.monotonic()
            left_s = min(self._heard_s + timeout_s, began_s + longest_s) - now_s
            if left_s <= 0:
                logger.warning("worker not stopped worker=%d seconds=%.1f: killing it", self.share.number, now_s - began_s)
                raise TimeoutError
            await asyncio.wait([stopped], timeout=left_s)
        return await stopped

    def _fail(self, error: Exception) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        if self._process is not None:
            self._process.kill()  # the worker must not act for the node any more
        self._workers.fatal(error)

    # ---- requests --------------------------------------------------------------------------------------------------------
    async def ask(self, kind: FrameKind, body: bytes, timeout_s: float) -> bytes | None:
        """Send a request of this ``kind`` to the worker, and return the body of the answer.

        None: no answer within ``timeout_s`` seconds.
        """
        self._token += 1
        token = self._token
        answer = self._requests[token] = asyncio.get_running_loop().create_future()
        self.send(kind, token, body)
        try:
            return await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            return None
        finally:
            del self._requests[token]

    async def request_status(self, what: dict[str, Any]) -> dict[str, Any]:
        """Send the status request ``what`` to the worker and return its answer. ``answers``: True if it has answered.

        Without an answer, the last answer to this kind of request is returned, so that counters never decrease.
        """
        kind = str(what["what"])
        answer = (
            await self.ask(FrameKind.STATUS_REQUEST, json.dumps(what).encode(), STATUS_TIMEOUT_S)
            if self._has_answered
            else None
        )
        if answer is not None:
            self._last_statuses[kind] = json.loads(answer)
        return {**self._last_statuses.get(kind, {}), "answers": answer is not None}

    # ---- asyncio.Protocol ------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport has the methods, but not the type

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._process_frame(frame)
        except (ProtocolError, DecodeError, struct.error, ValueError, KeyError) as error:
            self._fail(
                WorkerError(f"Worker {self.share.number} sent an invalid message: {error!r}. The node stops with exit code 1.")
            )

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the end of the connection, which means that the worker has ended. The node stops unless it requested the end."""
        ended = WorkerError(
            f"Worker {self.share.number} (process {self.pid}) ended unexpectedly. The node stops with exit code 1."
        )
        for event in self._events.values():
            if not event.done():
                event.set_exception(ended)
                event.exception()  # there may be no waiting caller
        if not self._is_stopping:
            self._fail(ended)

    def _process_frame(self, frame: Frame) -> None:
        kind = frame.kind
        self._has_answered, self._unanswered, self._heard_s = True, 0, time.monotonic()
        if kind is FrameKind.HEALTH_REPORT:
            self.health_report = json.loads(frame.body)
        elif kind is FrameKind.SAMPLE:
            self.last_sample = json.loads(frame.body)
        elif kind is FrameKind.CONTROL_REQUEST:
            self._workers.worker_proposes(self, frame)
        elif kind in (FrameKind.STATUS_ANSWER, FrameKind.COMBINED_FETCH_ANSWER):
            answer = self._requests.get(frame.token)
            if answer is not None and not answer.done():
                answer.set_result(frame.body)
        elif kind in self._events:
            if not self._events[kind].done():
                self._events[kind].set_result(frame)
        elif kind is FrameKind.RELOAD_IMAGE:
            self._workers.worker_distrusts()
        elif kind is FrameKind.REPAIR:
            self._workers.repair(f"worker {self.share.number}: {frame.body.decode()}")
        elif kind is FrameKind.FATAL:
            self._workers.fatal(failure_of(self.share.number, frame.body))
        elif kind not in (FrameKind.PONG, FrameKind.HELLO):
            raise ProtocolError(f"Internal error: a worker sent a frame {kind.name}. Please report it.")


def _wait_for_exit(process: subprocess.Popen[Any]) -> int:
    """Wait for the end of the process and return its exit code. A process that hangs is killed."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_EXIT_TIMEOUT_S)
    process.kill()
    return process.wait()


# ---- settings of workers ---------------------------------------------------------------------------------------------


def divided_settings(settings: NodeSettings) -> NodeSettings:
    """Return the settings for each process of a node with several processes: its limits are divided by the number of processes.

    Limits of one process (open files, maps), of a partition, of a connection or of an answer are not divided.
    """
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


def settings_to_json(settings: NodeSettings) -> dict[str, Any]:
    """Encode settings as a JSON object, for ``settings_from_json`` in a process of the same version."""
    return {**asdict(settings), "data": str(settings.data.absolute())}


def settings_from_json(document: dict[str, Any]) -> NodeSettings:
    """Decode settings that ``settings_to_json`` has encoded. Raises ConfigError if they are invalid."""
    try:
        lists = {f.name for f in fields(NodeSettings) if isinstance(document[f.name], list)}
        values: dict[str, Any] = {name: tuple(value) if name in lists else value for name, value in document.items()}
        values["data"] = Path(values["data"])
        values["credentials"] = Credentials(**values["credentials"])
        values["replication"] = ReplicationConfig(**values["replication"])
        return NodeSettings(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"Internal error: a worker received invalid settings: {error!r}. Please report it.") from None


# ---- combined fetches ------------------------------------------------------------------------------------------------


class WorkerCombinedFetches:
    """Answers combined fetches (one request about many idle partitions) for a node with workers.

    If a worker does not answer, its partitions count as active: their followers send their own fetches again.

    ``combiner``: answers the part that concerns the first process. ``handles``: the workers. ``requests``: ends the waits for workers
    when the node stops.
    """

    def __init__(
        self, combiner: FetchCombiner, handles: Sequence[WorkerHandle], requests: TaskSet, counters: Counter[str] | None = None
    ) -> None:
        self._combiner = combiner
        self._guard = RequestGuard("quiet fetches", Counter() if counters is None else counters)
        self._handles = handles
        self._requests = requests
        self._waiting = 0

    def answer_question(self, reply: bytes, body: memoryview) -> None:
        """Answer a combined fetch to the reply subject ``reply``, after all workers have answered their parts.

        ``body``: the request without its envelope. Raises ProtocolError.
        """
        question = self._combiner.decode_question(reply, body)
        if question is None or self._waiting >= MAX_WAITING_FETCHES:
            return
        parts = split_by_process(question, len(self._handles) + 1)
        own = parts.pop(0, None)
        over = [] if own is None else _places(own, self._combiner.over(_part(question, own)))
        if not parts:
            self._combiner.answer(reply, question, over)
            return
        self._waiting += 1
        gathering = self._collect_answers(reply, question, over, parts)
        self._requests.start(self._guard.run(gathering, reply), "quiet fetches of workers")

    async def _collect_answers(
        self, reply: bytes, question: replication_pb2.QuietFetches, over: list[int], parts: dict[int, list[int]]
    ) -> None:
        try:
            requests = (self._ask(self._handles[share - 1], question, places) for share, places in parts.items())
            for more in await asyncio.gather(*requests):
                over += more
            self._combiner.answer(reply, question, sorted(over))
        finally:
            self._waiting -= 1

    async def _ask(self, handle: WorkerHandle, question: replication_pb2.QuietFetches, places: list[int]) -> list[int]:
        answer_bytes = await handle.ask(
            FrameKind.COMBINED_FETCH, _part(question, places).SerializeToString(), COMBINED_FETCH_TIMEOUT_S
        )
        if answer_bytes is None:
            return places
        try:
            answer = replication_pb2.QuietFetchesAnswer.FromString(answer_bytes)
        except DecodeError:
            return places
        return _places(places, answer.over) if answer.count == len(places) else places


def split_by_process(question: replication_pb2.QuietFetches, workers: int) -> dict[int, list[int]]:
    """Return the ascending indexes of the fetches in ``question`` that concern each process, by the number of the process."""
    parts: dict[int, list[int]] = {}
    for place, fetch in enumerate(question.fetches):
        parts.setdefault(share_of(fetch.stream, fetch.partition, workers), []).append(place)
    return parts


def _part(question: replication_pb2.QuietFetches, places: list[int]) -> replication_pb2.QuietFetches:
    part = replication_pb2.QuietFetches(
        replicaID=question.replicaID, incarnation=question.incarnation, question=question.question
    )
    part.fetches.extend(question.fetches[place] for place in places)
    return part


def _places(places: list[int], of_part: Sequence[int]) -> list[int]:
    """Convert indexes of fetches in one part of a request into indexes in the whole request. Invalid ones are left out.

    ``places``: index in the whole request of each fetch of the part. ``of_part``: indexes to convert.
    """
    return [places[place] for place in of_part if place < len(places)]
