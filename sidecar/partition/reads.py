"""Receives read requests on the subjects ``.read`` (any ISR member, a queue group) and ``.read.<node>`` (this node).

``liftpy.core.partition.reads`` decides the answers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.instruments import Instruments
from liftpy.core.partition.reads import Chunks, PartitionFiles, ReadBudget, Reads, ReplicaSource
from liftpy.core.publish.ports import Subscription
from liftpy.core.publish.state_transfer import StateServer
from liftpy.core.wire.decode_errors import REPLY
from liftpy.core.wire.subjects import InboxRule, Subjects
from liftpy.nats.request_guard import RequestGuard
from sidecar.runtime import clock
from sidecar.runtime.timers import Timer, Timers
from sidecar.transport.connection import send_answer
from sidecar.transport.ports import Bus


@dataclass(frozen=True, slots=True)
class ReadTools:
    """Objects that the read handlers of all partitions of a node share."""

    bus: Bus
    subjects: Subjects
    inboxes: InboxRule
    timers: Timers
    counters: Counter[str]
    budget: ReadBudget = field(default_factory=ReadBudget)
    """Memory budget that the waiting readers of all partitions share."""
    instruments: Instruments = field(default_factory=Instruments)
    host: str = ""
    """Host name whose readers may open the files directly (``local_file_reads``). '': no host."""


_Asker = str | asyncio.Future[bytes]


class ReadSubjects:
    """Receives the read requests for one partition on one node, and sends the answers (implements ``ReadShell``).

    The reply subject of a request identifies the reader.
    """

    __slots__ = (
        "_bus", "_counters", "_guard", "_handler", "_inboxes", "_own", "_reads", "_shared", "_shared_subject", "_timers",
        "advanced", "mark_changed",
    )  # fmt: skip

    def __init__(self, tools: ReadTools, key: PartitionKey, node_id: str, source: ReplicaSource, folder: str = "") -> None:
        self._bus = tools.bus
        self._inboxes = tools.inboxes
        self._timers = tools.timers
        self._counters = tools.counters
        files = PartitionFiles(tools.host, folder) if tools.host and folder else None
        self._reads: Reads[_Asker] = Reads(key, node_id, source, self, tools.counters, tools.budget, tools.instruments, files)
        self.advanced = self._reads.advanced
        """Function that wakes waiting readers. Call it after a change of HW, log end or readiness."""
        self._guard = RequestGuard("read", tools.counters, self._reject)
        self.mark_changed: Callable[[], None] = lambda: None
        """Callback after the number of waiting readers or of sent records may have changed."""
        self._handler = self._guard.handler(self._request_arrived)
        self._own = self._bus.listen(tools.subjects.read_from(key.stream, key.partition, node_id), self._handler)
        self._shared: Subscription | None = None
        """Subscription to the subject that all in-sync replicas share. None: the replica does not answer there."""
        self._shared_subject = tools.subjects.read(key.stream, key.partition)

    def set_state_server(self, state_server: StateServer) -> None:
        """Set ``state_server``, which returns the state of producers and message ids. Backups request it with a read."""
        self._reads.give_state = state_server.read_piece_below

    @property
    def max_payload(self) -> int:
        """Maximum size of a message that the NATS server accepts now, in bytes."""
        return self._bus.max_payload

    def share(self, wanted: bool) -> None:
        """Join the queue group of the replicas that answer reads of this partition if ``wanted`` is True.

        Otherwise leave it.
        """
        if wanted and self._shared is None:
            self._shared = self._bus.listen(self._shared_subject, self._handler, self._shared_subject)
        elif not wanted and self._shared is not None:
            self._shared.close()
            self._shared = None

    @property
    def record_count(self) -> int:
        return self._reads.record_count

    @property
    def size_bytes(self) -> int:
        return self._reads.size_bytes

    @property
    def waiting_count(self) -> int:
        return self._reads.waiting_count

    @property
    def waiting_bytes(self) -> int:
        return self._reads.waiting_bytes

    def close(self) -> None:
        """Unsubscribe. Reject all waiting requests, because the node removes this replica."""
        self.share(False)
        self._own.close()
        self._reads.close()

    async def answer_local_read(self, payload: bytes) -> bytes:
        """Return the answer to a read request that comes from this process. ``payload``: encoded request.

        Use a timeout, because an answer may not come.
        """
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._reads.answer_request(payload, answer)
        self.mark_changed()
        return await answer

    def _request_arrived(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        if self._inboxes.allows(reply):
            self._reads.answer_request(payload, reply.decode())
            self.mark_changed()
        else:
            self._counters[REPLY] += 1

    def _reject(self, reply: bytes, error: Exception) -> None:
        self._reads.reject(reply.decode(), f"Internal error while reading: {type(error).__name__}. See the log of the node.")

    def request_failed(self, asker: _Asker, error: Exception) -> None:
        """Log and reject a request of ``asker`` that caused an unexpected ``error``. A reader in this process gets no answer."""
        self._guard.reject_failed(asker.encode() if isinstance(asker, str) else b"", error)

    # ---- what carries the answers ------------------------------------------------------------------------------------
    def has_room_for(self, asker: _Asker) -> bool:
        return self._bus.has_room or not isinstance(asker, str)

    def now_ns(self) -> int:
        return clock.now_ns()

    def answer(self, asker: _Asker, chunks: Chunks) -> None:
        """Send one message that consists of ``chunks`` to the reader ``asker``. A reader in this process gets a copy."""
        self.mark_changed()
        if isinstance(asker, str):
            send_answer(self._bus, (self._inboxes,), self._counters, asker, chunks)
        elif not asker.done():
            asker.set_result(b"".join(chunks))

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Callable[[], None]:
        timer = Timer(callback)
        self._timers.set(timer, at_ns)
        return lambda: self._timers.cancel(timer)
