"""ReplicationBench: the NATS side of one partition's leader, for scripts about what the simulated network has no layer for.

The shipped ``Ingest``, ``PendingAcks``, ``ReplicationHandler`` and ``ReadSubjects`` over a real ``Log`` in memory; the bus is
a list of what would be sent, and the core is a stand-in that appends at once and commits when the script says so.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from liftpy.config import NS_PER_S, AckPolicy, ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.publish.acks import PendingAcks
from liftpy.core.publish.ingest import Ingest
from liftpy.core.publish.log_state import LogState
from liftpy.core.publish.message_decoder import MessageDecoder
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.log_offsets import OffsetCheck, OffsetCheckResult
from liftpy.core.replication.messages import FetchRequest
from liftpy.core.wire.batch import RecordBatch, split_batches
from liftpy.core.wire.subjects import InboxRule, Subjects
from sidecar.partition.reads import ReadSubjects, ReadTools
from sidecar.partition.replication import ReplicationHandler
from sidecar.runtime.timers import Timers
from tests.unit.publish.unlogged import FakeReplica, ingest_partition

SUBJECT = "shop.orders"
EPOCH = 1


class FakeBus:
    """What is listened to, and what is sent; it refuses what is larger than ``max_payload``, as the connection does."""

    def __init__(self, max_payload: int = 1 << 20) -> None:
        self.max_payload = max_payload
        self.has_room = True
        self.sinks: dict[str, Callable[..., None]] = {}
        self.sent: list[tuple[str, bytes]] = []
        self.errors: Counter[str] = Counter()
        self.held: list[int] = []
        """Messages sent before each ``hold`` and ``release``."""

    def listen(
        self, subject: str, sink: Callable[..., None], queue: str = "", on_dropped: Any = None, rejector: Any = None
    ) -> Any:
        self.sinks[subject] = sink
        return FakeListener(self, subject)

    def call_after_read(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)

    def when_subscribed(self, heard: Callable[[], None]) -> None:
        heard()

    def deliver(self, subject: str, payload: bytes, reply: str = "", headers: bytes = b"") -> bool:
        sink = self.sinks.get(subject)
        if sink is not None:
            sink(subject.encode(), reply.encode(), payload, headers)
        return sink is not None

    def send(self, subject: str, pieces: Sequence[bytes], reply: str = "") -> bool:
        payload = b"".join(bytes(piece) for piece in pieces)
        if len(payload) > self.max_payload:
            self.errors["too_large"] += 1
            return False
        self.sent.append((subject, payload))
        return True

    def hold(self) -> None:
        self.held.append(len(self.sent))

    def release(self) -> None:
        self.held.append(len(self.sent))

    def send_lines(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            head, _, rest = line.partition(b"\r\n")
            _, subject, size = head.split()
            self.sent.append((subject.decode(), rest[: int(size)]))

    def retire(self, listeners: Sequence[Any]) -> None:
        for listener in listeners:
            listener.close()

    def sink_failed(self, subject: bytes, error: Exception) -> None:
        raise AssertionError(f"a message raised past its handler: {error!r}") from error

    def take(self, prefix: str) -> list[bytes]:
        """What was sent to ``prefix`` and to subjects under it, once."""
        found = [entry for entry in self.sent if entry[0] == prefix or entry[0].startswith(f"{prefix}.")]
        self.sent = [entry for entry in self.sent if entry not in found]
        return [payload for _, payload in found]


class FakeListener:
    def __init__(self, bus: FakeBus, subject: str) -> None:
        self._bus, self._subject = bus, subject

    def close(self) -> None:
        self._bus.sinks.pop(self._subject, None)

    leave = close


class ReplicationBench:
    """``uid``: of the stream. ``may_reject``: whether the leader's lease is current. Has to be made on an event loop."""

    def __init__(self, bus: FakeBus | None = None, *, uid: str = "uid-1", may_reject: bool = True, **config: Any) -> None:
        self.bus = bus or FakeBus()
        shell: Any = self.bus
        self.key = PartitionKey("orders", uid, 0)
        self.log, _ = Log.open(MemoryStorage(), StreamConfig())
        self.subjects = Subjects()
        self.counters: Counter[str] = Counter()
        self.fetches: list[FetchRequest] = []
        inboxes = InboxRule(("_INBOX.",))
        self.acks = PendingAcks(shell, self.key, SUBJECT)
        replica: Any = FakeReplica(may_reject)
        self.offset_check = OffsetCheckResult(OffsetCheck.SAME)
        """Of every reader."""
        log_state = LogState(self.log, 120 * NS_PER_S, 1 << 20, time.monotonic_ns, subject=SUBJECT)
        self.ingest = Ingest(
            ingest_partition(self.acks, replica, self.log, log_state, self._append),
            shell,
            MessageDecoder(self.key, SUBJECT, AckPolicy.ALL, inboxes),
            ReplicationConfig(**config),
            time.time_ns,
        )
        self.replication = ReplicationHandler(
            shell, self.subjects, self.key, InboxRule((self.subjects.inboxes(),)), self.fetches.append, self.counters
        )
        source: Any = _Source(self)
        self.reads = ReadSubjects(ReadTools(shell, self.subjects, inboxes, Timers(), self.counters), self.key, "n1", source)
        self.ingest.start()
        self.replication.start()

    def _append(self, event: ev.PublishesReceived) -> None:
        effect = do.AppendBatch(
            token=event.token, base_offset=self.log.log_end_offset, leader_epoch=EPOCH, timestamp_ns=event.received_wall_ns
        )
        batch = self.ingest.encode_batch(effect)
        self.log.append(batch)
        self.ingest.appended(effect, batch)

    def publish(self, payload: bytes, inbox: str = "", headers: bytes = b"") -> None:
        """A message on the data subject; ``inbox`` is its reply subject."""
        self.bus.deliver(SUBJECT, payload, f"_INBOX.{inbox}" if inbox else "", headers)

    async def turn(self) -> None:
        """Let the loop run what has been scheduled."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def commit(self) -> None:
        """Everything is flushed, replicated and committed, and publishers are told."""
        flush = self.log.begin_flush()
        if flush is not None:
            flush.run()
            self.log.complete_flush(flush)
        self.log.raise_high_watermark(self.log.newest_offset)
        self.acks.release(AckPolicy.ALL, self.log.high_watermark, EPOCH, 0)

    def answers(self, inbox: str) -> list[dict[str, Any]]:
        """What the publisher behind ``inbox`` was told since the last look."""
        return [json.loads(payload) for payload in self.bus.take(f"_INBOX.{inbox}")]

    def batches(self) -> list[RecordBatch]:
        """Everything in the log."""
        end = self.log.log_end_offset
        return split_batches(memoryview(b"".join(self.log.read(0, 1 << 30, end_offset=end).chunks))) if end else []

    def values(self) -> list[bytes | None]:
        """Of every record in the log."""
        return [value for batch in self.batches() for value in batch.values()]


class _Source:
    """What a leader's reads know of it."""

    compacted, leads, may_serve, leader, leader_epoch = False, True, True, "n1", EPOCH

    def __init__(self, bench: ReplicationBench) -> None:
        self._handler = bench

    @property
    def log(self) -> Log:
        return self._handler.log

    @property
    def high_watermark(self) -> int:
        return self._handler.log.high_watermark

    def may_answer_latest(self, now_ns: int) -> bool:
        return True

    def check_reader_offset(self, last_offset: int, last_epoch: int, now_ns: int) -> OffsetCheckResult:
        return self._handler.offset_check
