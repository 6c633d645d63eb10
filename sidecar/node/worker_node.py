"""A worker process: hosts a part of the node's partitions, and is no member of the metadata group.

It consists of the same parts as a node, with its own connections. The first process of the node does everything that a node
does once: registration, heartbeats, status. The worker also holds the lock of the data directory. It stops when its node
stops.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import json
import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from google.protobuf.message import DecodeError

from liftpy.core.base.worker_assignment import WorkerShare
from liftpy.core.metadata.codec import decode_snapshot
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.records import record_from_pb, replay_all
from liftpy.core.observe.node_health import ReplicaSyncCheck
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire._pb import replication_pb2
from liftpy.core.wire.worker_frames import LEASE, TIMEOUT_MS, Frame, FrameKind, FrameReader, encode
from liftpy.errors import LiftError, ProtocolError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.request_guard import RequestGuard
from sidecar.metadata.group import MetadataGroup
from sidecar.metadata.identity import PreviousProcess
from sidecar.node.node import Node
from sidecar.runtime.components import Component, Step, no_step, require_started, start_all
from sidecar.runtime.logs import LOGS
from sidecar.runtime.memory import make_collections_rare, retain_freed_memory
from sidecar.runtime.restarts import Supervisor, is_temporary, prevents_restart
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import TaskSet, run_loop, spawn, start_attended
from sidecar.status.merged_status import WorkerStatus
from sidecar.status.sampler import ProcessSample, Sampler
from sidecar.status.status_api import StatusHandler
from sidecar.workers.workers import SIGNALS_FOR_THE_NODE, settings_from_json, stop_token

MOST_UNSENT_BYTES = 64 * 1024 * 1024
"""Maximum size of messages that the node has not read, in bytes. Above it, the worker treats the node as lost."""
_READ_BYTES = 256 * 1024
EXIT_NODE_ENDED = 3
"""Exit code of a worker whose node has ended."""
OnLoop = Callable[[Callable[[Frame], None], Frame], object]
"""Schedules a callback on the event loop, as ``loop.call_soon_threadsafe`` does."""
HEALTH_REPORT_S = 0.25
_FINISH_S = 1.0

Send = Callable[[FrameKind, int, bytes], None]


class RelayedGroup(MetadataGroup):
    """The metadata group as a worker process sees it.

    It never says that this process is a controller. So the worker asks a controller before it deletes data.
    """

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send
        self._asked: dict[int, asyncio.Future[pb.ControlResponse]] = {}
        self._token = 0
        self._image = ClusterImage()

    # ---- frames of the node -----------------------------------------------------------------------------------------------
    def replace_image(self, snapshot: bytes) -> None:
        """Replace the metadata image by ``snapshot``, which the first process has sent. Raises LiftError if it is invalid."""
        self._show(decode_snapshot(snapshot))

    def apply_entry(self, body: bytes) -> None:
        """Apply a change of the metadata that the first process has sent.

        Raises LiftError if the change is invalid or does not follow the current image.
        """
        entry = pb.FeedEntry.FromString(body)
        if entry.previousIndex != self.image.index:
            raise ProtocolError(
                f"Internal error: an entry follows {entry.previousIndex}, but the image is at {self.image.index}. Please report it."
            )
        image = replay_all(self.image, [record_from_pb(record) for record in entry.records])
        self._show(replace(image, index=entry.index))

    def process_answer(self, token: int, body: bytes) -> None:
        """Pass the answer of the metadata group to the call of ``propose`` that has sent the request ``token``."""
        waiting = self._asked.pop(token, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(pb.ControlResponse.FromString(body))

    def _show(self, new: ClusterImage) -> None:
        old, self._image = self._image, new
        self._notify(old, new)

    # ---- MetadataGroup -----------------------------------------------------------------------------------------------------
    @property
    def image(self) -> ClusterImage:
        return self._image

    def distrust(self) -> None:
        self._send(FrameKind.RELOAD_IMAGE, 0, b"")

    async def propose(self, request: pb.ControlRequest, timeout_s: float = 5.0) -> pb.ControlResponse:
        """Send ``request`` to the metadata group through the first process, and return the answer.

        ``timeout_s``: time limit of the first process, in seconds. It always answers, and this process ends when it ends.
        """
        self._token += 1
        token = self._token
        answer: asyncio.Future[pb.ControlResponse] = asyncio.get_running_loop().create_future()
        self._asked[token] = answer
        self._send(FrameKind.CONTROL_REQUEST, token, TIMEOUT_MS.pack(round(timeout_s * 1000)) + request.SerializeToString())
        try:
            return await answer
        finally:
            self._asked.pop(token, None)


class Channel:
    """Connection of a worker process to its node. It uses two threads.

    One thread reads, so that this process ends when the node ends, even if its event loop is blocked. The thread answers pings
    itself, as long as the event loop has run within the last session.

    ``channel``: socket to the node. ``leave``: function that ends this process at once.
    """

    def __init__(self, channel: socket.socket, leave: Callable[[int], None] = os._exit) -> None:
        self._socket = channel
        self._leave = leave
        self._unsent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._unsent_bytes = 0
        self._counting = threading.Lock()
        self._turned = time.monotonic()
        self._has_loop_request = False
        self._session_s = 0.0
        self._frames = FrameReader()
        self._early: list[Frame] = []
        self._writer = threading.Thread(target=self._write, name="liftpy-channel-out", daemon=True)

    def setup(self) -> bytes:
        """Wait for the setup frame, the first frame of the node, and return its body. The process ends if the node ends."""
        while not self._early:
            self._early += self._read_frames()
        first = self._early.pop(0)
        if first.kind is not FrameKind.SETUP:
            self._leave(EXIT_NODE_ENDED)
        return first.body

    def start(self, session_s: float, on_loop: OnLoop, on_frame: Callable[[Frame], None]) -> None:
        """Start the threads that receive and send frames.

        ``session_s``: session time of the node, in seconds. ``on_loop``: runs a function on the event loop. ``on_frame``: called there
        with each frame in order, except pings.
        """
        self._session_s = session_s
        self._turned = time.monotonic()
        self._writer.start()
        self.send(FrameKind.HELLO)
        threading.Thread(target=self._run, args=(on_loop, on_frame), name="liftpy-channel-in", daemon=True).start()

    def send(self, kind: FrameKind, token: int = 0, body: bytes = b"") -> None:
        """Queue a frame for the node from any thread, without waiting."""
        frame = encode(kind, token, body)
        with self._counting:
            self._unsent_bytes += len(frame)
            is_too_much = self._unsent_bytes > MOST_UNSENT_BYTES
        if is_too_much:
            self._leave(EXIT_NODE_ENDED)
        self._unsent.put(frame)

    def finish(self, timeout_s: float) -> None:
        """Wait until all queued frames are sent to the node, at most ``timeout_s`` seconds."""
        self._unsent.put(None)
        self._writer.join(timeout_s)

    # ---- the threads -------------------------------------------------------------------------------------------------------
    def _write(self) -> None:
        while (frame := self._unsent.get()) is not None:
            try:
                self._socket.sendall(frame)
            except OSError:
                self._leave(EXIT_NODE_ENDED)
                return
            with self._counting:
                self._unsent_bytes -= len(frame)

    def _read_frames(self) -> list[Frame]:
        try:
            data = self._socket.recv(_READ_BYTES)
            if data:
                return list(self._frames.feed(data))
        except (OSError, ProtocolError):
            pass
        self._leave(EXIT_NODE_ENDED)
        return [Frame(FrameKind.STOP, 0, b"")]  # tests replace the function that ends the process

    def _run(self, on_loop: OnLoop, on_frame: Callable[[Frame], None]) -> None:
        frames, self._early = self._early, []
        while True:
            for frame in frames:
                if frame.kind is FrameKind.PING:
                    self._run_on_loop(on_loop)
                else:
                    on_loop(on_frame, frame)
                if frame.kind is FrameKind.STOP:
                    return self._last(on_loop)
            frames = self._read_frames()

    def _last(self, on_loop: OnLoop) -> None:
        """After the stop request of the node, answer pings until the connection ends. The end of the node then ends this process too.

        The node sends only pings after the stop request. If the event loop does not run, or the stop takes too long, the node kills
        this process.
        """
        while True:
            frames = self._read_frames()
            if any(frame.kind is FrameKind.STOP for frame in frames):
                return
            if any(frame.kind is FrameKind.PING for frame in frames):
                with contextlib.suppress(RuntimeError):  # the event loop is closed, because the stop is complete
                    self._run_on_loop(on_loop)

    def _run_on_loop(self, on_loop: OnLoop) -> None:
        if time.monotonic() - self._turned < self._session_s:
            self.send(FrameKind.PONG)
        if not self._has_loop_request:
            self._has_loop_request = True
            on_loop(self._loop_turned, Frame(FrameKind.PING, 0, b""))

    def _loop_turned(self, _: Frame) -> None:
        self._has_loop_request, self._turned = False, time.monotonic()


class _WorkerStatusHandler(StatusHandler):
    """Status handler of a worker. It answers no requests itself, because the first process of the node answers for all processes."""

    def __init__(self, settings: NodeSettings, counters: Counter[str], last_sample: Callable[[ProcessSample], None]) -> None:
        super().__init__(settings, counters)
        self._sampled = last_sample

    def begin_history(self) -> None:
        """Start to take samples of the counters and to send them to the first process, which keeps the history of the node."""
        assert self.reporter is not None
        self._start_sampler(Sampler(self.history, self.reporter, send_sample=self._sampled))

    def listen(self, *_: Any) -> None:
        """Do nothing, because only the first process subscribes to status requests."""


class WorkerNode(Node):
    """One worker process of a node. ``setup``: content of the setup frame. ``lock``: descriptor of the lock of the data directory."""

    def __init__(self, settings: NodeSettings, share: WorkerShare, channel: Channel, lock: int, setup: dict[str, Any]) -> None:
        super().__init__(settings, share)
        self._channel = channel
        self._lock = lock
        self._setup = setup
        self._relayed = RelayedGroup(channel.send)
        self._registration: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._stop_requested = asyncio.Event()
        self._synced = ReplicaSyncCheck()
        self._quiet_guard = RequestGuard("quiet fetches", self.counters)
        self._health_task: asyncio.Task[None] | None = None
        self._requests = TaskSet()
        self.status = _WorkerStatusHandler(settings, self.counters, self._send_sample)
        self._worker_status: WorkerStatus | None = None
        self.supervisor = Supervisor("")

    # ---- up --------------------------------------------------------------------------------------------------------------
    def _components(self) -> list[Component]:
        """Return the components of the worker, without those that only the first process starts."""
        starts: dict[str, Step] = {
            "task failures": self._watch_tasks,
            "loop watch": self._loop_watch.start,
            "supervisor": self._start_health_reports,
            "data directory": self._open_folder,
            "connections": self._connect,
            "metadata group": self._recover,
            "registration": self._wait_for_registration,
            "partitions": self._open_partitions,
            "service": self._begin_service,
        }
        return [replace(component, start=starts.get(component.name, no_step)) for component in super()._components()]

    async def start(self) -> dict[str, Any]:
        """Recover the logs of this share, wait for the registration of the node, and open the partitions of the image."""
        await start_all(self._components())
        return {}

    def _start_health_reports(self) -> None:
        self._health_task = spawn(self._send_health_reports(), "reporting the health of the worker", endless=True)

    async def _recover(self) -> None:
        recovered, clean_stop = self._recovered, self._setup["clean_stop"]
        await recovered.run(require_started(self._folder), self._pool, clean_stop=clean_stop, share=self.share)
        logs = {"damaged": recovered.damaged, "confined": recovered.confined, "suspect": recovered.suspect}
        self._channel.send(FrameKind.RECOVERED, 0, json.dumps(logs).encode())

    async def _wait_for_registration(self) -> None:
        self.incarnation = await self._registration
        LOGS.facts["incarnation"] = self.incarnation
        await self._recovered.forget_failed_flushes(require_started(self._folder), self._pool)

    async def _open_partitions(self) -> None:
        await self._open_promises()
        self.group = group = self._relayed
        self._create_parts(
            require_started(self._links),
            group,
            require_started(self._folder),
            PreviousProcess(0, clean_stop=self._setup["clean_stop"], flushed_always=self._setup["flushed_always"]),
            require_started(self._promises),
        )
        await self._open_partitions_of_image(group)

    def _begin_service(self) -> None:
        self._permissions.start_completed()
        self._channel.send(FrameKind.HEALTH_REPORT, 0, self._health_report())
        self._channel.send(FrameKind.PARTITIONS_OPENED)

    async def _send_health_reports(self) -> None:
        while True:
            self._channel.send(FrameKind.HEALTH_REPORT, 0, self._health_report())
            await asyncio.sleep(HEALTH_REPORT_S)

    def _health_report(self) -> bytes:
        health_report = self._health_input()
        replicas = () if self.partitions is None else self.partitions.replicas()
        return json.dumps(
            {
                "longest_flush_s": health_report.longest_flush_s,
                "nats": health_report.nats,
                "opening": health_report.opening,
                "opened": health_report.opened,
                "stopped_for_space": health_report.stopped_for_space,
                "unsynced": self._synced.update(replicas, opened=health_report.opened).why,
            }
        ).encode()

    # ---- frames of the node -----------------------------------------------------------------------------------------------
    def process_frame(self, frame: Frame) -> None:
        """Process a frame that the node has sent to this worker, on the event loop. An invalid frame stops the node."""
        try:
            self._process_frame(frame)
        except (LiftError, DecodeError, ValueError, KeyError, struct.error) as error:
            self.fatal(error)

    def _process_frame(self, frame: Frame) -> None:
        match frame.kind:
            case FrameKind.IMAGE:
                self._relayed.replace_image(frame.body)
            case FrameKind.ENTRY:
                self._relayed.apply_entry(frame.body)
            case FrameKind.HEARTBEAT_ANSWERED:
                self._lease_granted(frame.token, *LEASE.unpack(frame.body))
            case FrameKind.CONTROL_RESPONSE:
                self._relayed.process_answer(frame.token, frame.body)
            case FrameKind.REGISTERED:
                self._registration.set_result(frame.token)
            case FrameKind.COMBINED_FETCH:
                self._quiet_guard.call(lambda: self._process_quiet_fetches(frame))
            case FrameKind.STATUS_REQUEST:
                guard = RequestGuard("status of a worker", self.counters, lambda token, _: self._status_arrived(int(token), {}))
                self._requests.start(
                    guard.run(self._send_status(frame), b"%d" % frame.token), "sending the status of the worker"
                )
            case FrameKind.LOG_LEVEL:
                request = json.loads(frame.body)
                LOGS.change_level(request["level"], request["for_s"], asyncio.get_running_loop().call_later)
            case FrameKind.SETTINGS:
                self.reloading.apply_settings(settings_from_json(json.loads(frame.body)))
            case FrameKind.CLOSE_SUBJECTS:
                self._requests.start(self._close_subjects(frame.token / 1000), "closing subjects")
            case FrameKind.STOP:
                self._stop_requested.set()

    def _process_quiet_fetches(self, frame: Frame) -> None:
        if self._fetch_combiner is not None:
            question = replication_pb2.QuietFetches.FromString(frame.body)
            answer = replication_pb2.QuietFetchesAnswer(over=self._fetch_combiner.over(question), count=len(question.fetches))
            self._channel.send(FrameKind.COMBINED_FETCH_ANSWER, frame.token, answer.SerializeToString())

    async def _send_status(self, frame: Frame) -> None:
        reporter = self.status.reporter
        if self._worker_status is None and reporter is not None:
            self._worker_status = WorkerStatus(reporter, self.status.answers)
        answer = {} if self._worker_status is None else await self._worker_status.answer(json.loads(frame.body))
        self._status_arrived(frame.token, answer)

    def _status_arrived(self, token: int, answer: dict[str, Any]) -> None:
        self._channel.send(FrameKind.STATUS_ANSWER, token, json.dumps(answer).encode())

    def _send_sample(self, sample: ProcessSample) -> None:
        self._channel.send(FrameKind.SAMPLE, 0, json.dumps(sample).encode())

    async def _close_subjects(self, timeout_s: float) -> None:
        if self.partitions is not None:
            await self.partitions.close_subjects(timeout_s)
        self._channel.send(FrameKind.SUBJECTS_CLOSED)

    # ---- frames to the node-------------------------------------------------------------------------------------------------
    def fatal(self, error: Exception) -> None:
        """Report a fatal error of this worker to the node, which then stops."""
        is_news = self._failure is None
        super().fatal(error)
        if is_news:
            failure = {"text": str(error), "is_temporary": is_temporary(error), "prevents_restart": prevents_restart(error)}
            self._channel.send(FrameKind.FATAL, 0, json.dumps(failure).encode())

    def repair(self, reason: str) -> None:
        """Report a damaged log to the node, which restarts to repair it. ``reason``: the damaged log."""
        is_news = self._failure is None and not self._repairs
        super().repair(reason)
        if is_news:
            self._channel.send(FrameKind.REPAIR, 0, reason.encode())

    async def run(self) -> int:
        """Run until the first process stops or ends. Return the exit code."""
        starting = start_attended(self.start())
        starting.add_done_callback(self._start_ended)
        await self._stop_requested.wait()
        await end_tasks([starting, self._health_task])
        await self._requests.end()
        await self.stop()
        ends = self.partitions.log_ends if self.partitions is not None else {}
        token = stop_token(clean=self.was_clean, flushed=self.all_flushed)
        self._channel.send(FrameKind.STOPPED, token, json.dumps(ends).encode())
        self._channel.finish(_FINISH_S)
        return 0

    def _start_ended(self, starting: asyncio.Task[dict[str, Any]]) -> None:
        if not starting.cancelled() and (error := starting.exception()) is not None:
            self.fatal(error if isinstance(error, Exception) else RuntimeError(repr(error)))


def main(descriptor: int, lock: int) -> int:
    """Run one worker process and return its exit code.

    ``descriptor``: file descriptor of the socket to the node. ``lock``: file descriptor of the lock of the data directory.
    """
    for number in SIGNALS_FOR_THE_NODE:  # the node has started this process with these signals blocked
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(lock, False)
    channel = Channel(socket.socket(fileno=descriptor))
    setup = json.loads(channel.setup())
    settings = settings_from_json(setup["settings"])
    LOGS.configure(settings.log_level, settings.log_format, settings.node_id)
    retain_freed_memory()
    make_collections_rare()

    async def run() -> int:
        loop = asyncio.get_running_loop()
        worker = WorkerNode(settings, WorkerShare(setup["share"], settings.workers), channel, lock, setup)
        channel.start(settings.replication.session_s, loop.call_soon_threadsafe, worker.process_frame)
        return await worker.run()

    return run_loop(run())


if __name__ == "__main__":
    atexit.register(gc.freeze)  # exit at once, as every command does, because the node waits for the end of this process
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
