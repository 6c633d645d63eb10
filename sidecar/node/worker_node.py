"""A worker process: hosts a part of the node's partitions, and is no member of the metadata group.

It consists of the same parts as a node, with its own connections. The first process of the node does everything that a node
does once: registration, heartbeats, status. The worker also holds the lock of the data directory. It stops when its node
stops.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from liftpy.core.base.worker_assignment import WorkerShare
from liftpy.core.observe.node_health import ReplicaSyncCheck
from liftpy.core.wire._pb import replication_pb2
from liftpy.core.wire.worker_frames import LEASE, Frame, FrameKind
from liftpy.errors import LiftError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.request_guard import RequestGuard
from sidecar.disk.data_folder import DataDirectory
from sidecar.disk.files import OpenMaps
from sidecar.metadata.identity import WorkerMarks
from sidecar.node.node import Node
from sidecar.partition.promises import Promises
from sidecar.runtime.components import Component, Step, no_step, require_started, start_all
from sidecar.runtime.logs import LOGS
from sidecar.runtime.memory import make_collections_rare, retain_freed_memory
from sidecar.runtime.restarts import momentary, prevents_restart
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.supervisor import Supervisor
from sidecar.runtime.tasks import run_loop, spawn, start_attended
from sidecar.status.sampler import ProcessSample, Sampler
from sidecar.status.status_api import StatusHandler
from sidecar.workers.channel import Channel
from sidecar.workers.merged_status import WorkerStatus
from sidecar.workers.relayed_group import RelayedGroup
from sidecar.workers.workers import SIGNALS_FOR_THE_NODE, settings_from_json

HEALTH_REPORT_S = 0.25
_FINISH_S = 1.0


class _WorkerStatusHandler(StatusHandler):
    """Status handler of a worker. It answers no requests itself, because the first process of the node answers for all processes."""

    def __init__(self, settings: NodeSettings, counters: Counter[str], last_sample: Callable[[ProcessSample], None]) -> None:
        super().__init__(settings, counters)
        self._sampled = last_sample

    def begin_history(self) -> None:
        """Start to take samples of the counters and to send them to the first process, which keeps the history of the node."""
        assert self.reporter is not None
        self._sampler = Sampler(self.history, self.reporter, send_sample=self._sampled)
        self._sampler.start()

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
        self._marks: WorkerMarks | None = None
        self._health_task: asyncio.Task[None] | None = None
        self.status = _WorkerStatusHandler(settings, self.counters, self._send_sample)
        self._worker_status: WorkerStatus | None = None
        self.supervisor = Supervisor("")

    # ---- up --------------------------------------------------------------------------------------------------------------
    def _components(self) -> list[Component]:
        """Return the components of the worker, without those that only the first process starts."""
        starts: dict[str, Step] = {
            "task failures": self._watch_tasks,
            "loop watch": self._loop_watch.start,
            "supervisor": self._start_signs,
            "data directory": self._open_folder,
            "node file": self._open_marks,
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

    def _start_signs(self) -> None:
        self._health_task = spawn(self._send_health_reports(), "reporting the health of the worker", endless=True)

    def _open_folder(self) -> None:
        self._folder = folder = DataDirectory(self.settings.data, OpenMaps(self._budget.maps), lock=self._lock)
        self._try_out_flushes(folder.worker_directory(self.share.number))

    def _open_marks(self) -> None:
        setup = self._setup
        marks = WorkerMarks(
            require_started(self._folder), clean_stop=setup["clean_stop"], flushed_always=setup["flushed_always"]
        )
        self._marks = marks

    async def _recover(self) -> None:
        recovered, clean_stop = self._recovered, self._setup["clean_stop"]
        await recovered.run(require_started(self._folder), self._pool, clean_stop=clean_stop, share=self.share)
        logs = {"damaged": recovered.damaged, "confined": recovered.confined, "suspect": recovered.suspect}
        self._channel.send(FrameKind.RECOVERED, 0, json.dumps(logs).encode())

    async def _wait_for_registration(self) -> None:
        self.incarnation = await self._registration
        LOGS.facts["incarnation"] = self.incarnation

    async def _open_promises(self) -> None:
        folder, has_log = require_started(self._folder), self._recovered.names.__contains__
        open_own = partial(folder.open_own_promises, self.share, has_log)
        journal = await asyncio.get_running_loop().run_in_executor(self._pool, open_own)
        self._promises = Promises(journal, self._pool, self.counters, self.fatal)

    async def _open_partitions(self) -> None:
        await self._open_promises()
        self.group = group = self._relayed
        self._build(
            require_started(self._links),
            group,
            require_started(self._folder),
            require_started(self._marks),
            require_started(self._promises),
        )
        await self._open_those_of_the_image(group)

    def _begin_service(self) -> None:
        self._rights.start_completed()
        self._channel.send(FrameKind.SIGNS, 0, self._health_report())
        self._channel.send(FrameKind.SETTLED)

    async def _send_health_reports(self) -> None:
        while True:
            self._channel.send(FrameKind.SIGNS, 0, self._health_report())
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
            case FrameKind.HEARD:
                self._lease_granted(frame.token, *LEASE.unpack(frame.body))
            case FrameKind.ANSWER:
                self._relayed.process_answer(frame.token, frame.body)
            case FrameKind.BEGIN:
                self._registration.set_result(frame.token)
            case FrameKind.QUIET:
                self._quiet_guard.call(lambda: self._process_quiet_fetches(frame))
            case FrameKind.ASK:
                guard = RequestGuard("status of a worker", self.counters, lambda token, _: self._status_arrived(int(token), {}))
                spawn(guard.run(self._send_status(frame), b"%d" % frame.token), "sending the status of the worker")
            case FrameKind.LEVEL:
                request = json.loads(frame.body)
                LOGS.change_level(request["level"], request["for_s"], asyncio.get_running_loop().call_later)
            case FrameKind.SETTINGS:
                self.reloading.apply_settings(settings_from_json(json.loads(frame.body)))
            case FrameKind.CLOSE_SUBJECTS:
                spawn(self._close_subjects(frame.token / 1000), "closing subjects")
            case FrameKind.STOP:
                self._stop_requested.set()

    def _process_quiet_fetches(self, frame: Frame) -> None:
        if self._fetch_combiner is not None:
            question = replication_pb2.QuietFetches.FromString(frame.body)
            answer = replication_pb2.QuietFetchesAnswer(over=self._fetch_combiner.over(question), count=len(question.fetches))
            self._channel.send(FrameKind.QUIET_OVER, frame.token, answer.SerializeToString())

    async def _send_status(self, frame: Frame) -> None:
        reporter = self.status.reporter
        if self._worker_status is None and reporter is not None:
            self.status.answers.share = self.share
            self._worker_status = WorkerStatus(reporter, self.status.answers)
        answer = {} if self._worker_status is None else await self._worker_status.answer(json.loads(frame.body))
        self._status_arrived(frame.token, answer)

    def _status_arrived(self, token: int, answer: dict[str, Any]) -> None:
        self._channel.send(FrameKind.TOLD, token, json.dumps(answer).encode())

    def _send_sample(self, sample: ProcessSample) -> None:
        self._channel.send(FrameKind.SAMPLED, 0, json.dumps(sample).encode())

    async def _close_subjects(self, timeout_s: float) -> None:
        if self.partitions is not None:
            await self.partitions.close_subjects(timeout_s)
        self._channel.send(FrameKind.CLOSED)

    # ---- frames to the node-------------------------------------------------------------------------------------------------
    def fatal(self, error: Exception) -> None:
        """Report a fatal error of this worker to the node, which then stops."""
        is_news = self._failure is None
        super().fatal(error)
        if is_news:
            failure = {"text": str(error), "momentary": momentary(error), "prevents_restart": prevents_restart(error)}
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
        await self.stop()
        self._channel.send(FrameKind.STOPPED, int(self.was_clean))
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
