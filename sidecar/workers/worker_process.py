"""``WorkerHandle``: the node's side of one worker process: start, messages, supervision, end.

If a worker hangs or is suspended, the node's heartbeats would keep leaderships that no process serves. So the node pings
each worker with each of its own heartbeats. If a worker leaves more consecutive pings without an answer than fit into a
session, the node ends. Pings are counted, and not time, so a node that was suspended itself ends no worker.
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
from typing import Any, Protocol, cast

from google.protobuf.message import DecodeError

from liftpy.core.base.worker_assignment import WorkerShare
from liftpy.core.wire.worker_frames import Frame, FrameKind, FrameReader, encode
from liftpy.errors import CorruptionError, LiftError, ProtocolError, StorageError
from sidecar.dev.nats_server import spawn
from sidecar.runtime.settings import worker_environment

logger = logging.getLogger("liftpy.workers")

MOST_UNSENT_BYTES = 640 * 1024 * 1024
"""Maximum size of frames that a worker has not read, in bytes: a metadata image, and the changes since."""
_END_S = 5.0
"""Time in seconds for a process to end after it has reported its stop. A busy machine needs seconds for it."""
ANSWER_S = 1.0
"""Maximum wait for answers of workers for the status, in seconds."""


class WorkerError(LiftError):
    """A worker process has ended, hangs or has failed, so its node stops too. Read its log, then start the node again."""

    code = "WORKER"


class WorkerListener(Protocol):
    """Receives the requests and reports of a worker. Answers of the worker do not arrive here."""

    def worker_proposes(self, worker: WorkerHandle, frame: Frame) -> None:
        """Send the request in ``frame`` to the metadata group, and the answer to the worker."""

    def worker_distrusts(self) -> None:
        """Load the metadata image again, because a controller has contradicted the image of the worker."""

    def worker_failed(self, error: Exception) -> None:
        """Stop the node after a fatal error of a worker."""

    def worker_damaged(self, reason: str) -> None:
        """Restart the node to repair a damaged log of a worker. ``reason``: the damaged log."""


def failure_of(number: int, body: bytes) -> Exception:
    """Return the error that the frame FATAL of worker ``number`` reports. ``body``: content of the frame.

    The class of the error decides whether the node restarts.
    """
    said = json.loads(body)
    text = f"worker {number}: {said['text']}"
    if said["never_again"]:
        return CorruptionError(text)
    return StorageError(text) if said["momentary"] else WorkerError(text)


class WorkerHandle(asyncio.Protocol):
    """The node's side of one worker process: starts it, exchanges frames with it, and ends it.

    ``hears``: receives the requests and reports of the worker. ``most_silent``: number of consecutive pings without an answer after
    which the worker counts as hanging.
    """

    def __init__(self, share: WorkerShare, hears: WorkerListener, most_silent: int) -> None:
        self.share = share
        self._hears = hears
        self._most_silent = most_silent
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[Any] | None = None
        self._unanswered = 0
        self._is_heard = False
        self._is_stopping = False
        self._has_failed = False
        self._token = 0
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._events: dict[FrameKind, asyncio.Future[Frame]] = {}
        self.signs: dict[str, Any] = {}
        """State of the worker in its last report."""
        self.sampled: dict[str, Any] = {}
        """Counters of the worker in its last sample."""
        self._told: dict[str, dict[str, Any]] = {}
        """Request -> last answer of the worker."""

    # ---- start, stop ------------------------------------------------------------------------------------------------------
    async def start(self, lock: int, setup: dict[str, Any]) -> None:
        """Start the worker process and send its setup. ``lock``: file descriptor of the lock of the data directory, to inherit."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        loop = asyncio.get_running_loop()
        for kind in (FrameKind.RECOVERED, FrameKind.SETTLED, FrameKind.CLOSED, FrameKind.STOPPED):
            self._events[kind] = loop.create_future()
        with theirs:
            command = [sys.executable, "-P", "-m", "sidecar.node.worker_main", str(theirs.fileno()), str(lock)]
            start = lambda: spawn(  # noqa: E731
                command,
                signal.SIGKILL,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), lock),
                env=worker_environment(),
                start_new_session=True,  # Ctrl-C goes to the node, which stops its workers in order
            )
            self._process = await loop.run_in_executor(None, start)
        ours.setblocking(False)
        await loop.create_unix_connection(lambda: self, sock=ours)
        self.send(FrameKind.SETUP, 0, json.dumps(setup).encode())

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def send(self, kind: FrameKind, token: int = 0, body: bytes = b"") -> None:
        """Send a frame to the worker. The call has no effect if the worker has ended.

        ``token``: number that the worker returns in its answer, 0 for none. ``body``: content of the frame.
        """
        self.send_bytes(encode(kind, token, body))

    def send_bytes(self, frame: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(frame)
        if transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            self._fail(WorkerError(f"Worker {self.share.number} does not read its messages. The node stops with exit code 1."))

    async def wait_for_event(self, kind: FrameKind) -> Frame:
        """Wait for a frame of the worker and return it. ``kind``: RECOVERED, SETTLED, CLOSED or STOPPED.

        Raises WorkerError if the worker ends before it.
        """
        return await asyncio.shield(self._events[kind])

    def event(self, kind: FrameKind) -> asyncio.Future[Frame]:
        """Return a future of the frame ``kind``, which the worker sends once: RECOVERED, SETTLED, CLOSED or STOPPED.

        Do not cancel the future, because others may wait for it.
        """
        return self._events[kind]

    def beat(self) -> None:
        """Ping the worker. Call it with each heartbeat of the node, on the event loop of the node."""
        if not self._is_heard or self._is_stopping or self._has_failed:
            return
        if self._unanswered >= self._most_silent:
            self._fail(
                WorkerError(
                    f"Worker {self.share.number} (process {self.pid}) is blocked: {self._unanswered} pings without "
                    "answer. The node stops with exit code 1."
                )
            )
            return
        self._unanswered += 1
        self.send(FrameKind.PING)

    async def stop(self, timeout_s: float) -> bool:
        """Stop the worker within ``timeout_s``. Return whether all its acknowledged data is on disk."""
        self._is_stopping = True
        clean = False
        if self._transport is not None and not self._has_failed:
            self.send(FrameKind.STOP)
            with contextlib.suppress(TimeoutError, WorkerError):
                clean = bool((await asyncio.wait_for(self.wait_for_event(FrameKind.STOPPED), timeout_s)).token)
        process = self._process
        if process is not None:
            if not clean:
                process.kill()
            code = await asyncio.to_thread(_wait_for_exit, process)
            clean = clean and code == 0
        if self._transport is not None:
            self._transport.close()
        return clean

    def _fail(self, error: Exception) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        if self._process is not None:
            self._process.kill()  # the worker must not act for the node any more
        self._hears.worker_failed(error)

    # ---- requests --------------------------------------------------------------------------------------------------------
    async def ask(self, kind: FrameKind, body: bytes, timeout_s: float) -> bytes | None:
        """Send a request of this ``kind`` to the worker, and return the body of the answer.

        None: no answer within ``timeout_s`` seconds.
        """
        self._token += 1
        token = self._token
        answer = self._asked[token] = asyncio.get_running_loop().create_future()
        self.send(kind, token, body)
        try:
            return await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            return None
        finally:
            del self._asked[token]

    async def request_status(self, what: dict[str, Any]) -> dict[str, Any]:
        """Send the status request ``what`` to the worker and return its answer. ``answers``: True if it has answered.

        Without an answer, the last answer to this kind of request is returned, so that counters never decrease.
        """
        kind = str(what["what"])
        said = await self.ask(FrameKind.ASK, json.dumps(what).encode(), ANSWER_S) if self._is_heard else None
        if said is not None:
            self._told[kind] = json.loads(said)
        return {**self._told.get(kind, {}), "answers": said is not None}

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
        self._is_heard, self._unanswered = True, 0
        if kind is FrameKind.SIGNS:
            self.signs = json.loads(frame.body)
        elif kind is FrameKind.SAMPLED:
            self.sampled = json.loads(frame.body)
        elif kind is FrameKind.PROPOSE:
            self._hears.worker_proposes(self, frame)
        elif kind in (FrameKind.TOLD, FrameKind.QUIET_OVER):
            answer = self._asked.get(frame.token)
            if answer is not None and not answer.done():
                answer.set_result(frame.body)
        elif kind in self._events:
            if not self._events[kind].done():
                self._events[kind].set_result(frame)
        elif kind is FrameKind.DISTRUST:
            self._hears.worker_distrusts()
        elif kind is FrameKind.REPAIR:
            self._hears.worker_damaged(f"worker {self.share.number}: {frame.body.decode()}")
        elif kind is FrameKind.FATAL:
            self._hears.worker_failed(failure_of(self.share.number, frame.body))
        elif kind not in (FrameKind.PONG, FrameKind.HELLO):
            raise ProtocolError(f"Internal error: a worker sent a frame {kind.name}. Please report it.")


def _wait_for_exit(process: subprocess.Popen[Any]) -> int:
    """Wait for the end of the process and return its exit code. A process that hangs is killed."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_END_S)
    process.kill()
    return process.wait()
