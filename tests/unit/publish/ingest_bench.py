"""An Ingest that is given single messages, on a bus of one subscription. Its replica appends everything at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from liftpy.config import AckPolicy, ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.publish.acks import PendingAcks
from liftpy.core.publish.ingest import Ingest
from liftpy.core.publish.memory_budget import MemoryBudget
from liftpy.core.publish.message_decoder import MessageDecoder
from liftpy.core.replication.effects import AppendBatch
from liftpy.core.replication.events import PublishesReceived
from liftpy.core.wire.batch import parse_batch
from liftpy.core.wire.subjects import InboxRule
from tests.unit.publish.unlogged import FakeReplica, create_log_state, ingest_partition

INBOXES = InboxRule(("_INBOX.",))


class FakeBus:
    """One subscription, and what would be sent."""

    max_payload = 1024 * 1024

    def __init__(self) -> None:
        self.sink: Callable[..., None] | None = None
        self.unheard: list[Callable[[], None]] = []
        self.lines: list[bytes] = []
        self.failed: list[Exception] = []
        self.left = self.listened = self.closed = 0

    def listen(
        self, subject: str, sink: Callable[..., None], queue: str = "", on_dropped: Any = None, rejector: Any = None
    ) -> Any:
        self.sink = sink
        self.listened += 1
        return self

    def call_after_read(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)

    def when_subscribed(self, heard: Callable[[], None]) -> None:
        self.unheard.append(heard)

    def close(self) -> None:
        self.sink = None
        self.closed += 1

    def leave(self) -> None:
        self.left += 1

    def sink_failed(self, subject: bytes, error: Exception) -> None:
        self.failed.append(error)

    def send_lines(self, lines: list[bytes]) -> None:
        self.lines += lines


class Bench:
    """An Ingest whose replica appends everything at once."""

    def __init__(self, may_reject: bool = True, append: bool = True, **config: Any) -> None:
        self.bus: Any = FakeBus()
        self.acks = PendingAcks(self.bus, PartitionKey("s", "u1", 0), "ev")
        self.batches: list[bytes] = []
        self.end = 0
        self.append = append
        self.tokens: list[int] = []
        self.log_state = create_log_state()
        self.replica = FakeReplica(may_reject)
        self.memory = MemoryBudget()
        self.ingest = Ingest(
            ingest_partition(self.acks, self.replica, self, self.log_state, self.feed),
            self.bus,
            MessageDecoder(self.acks.key, "ev", AckPolicy.ALL, INBOXES),
            ReplicationConfig(**config),
            time.time_ns,
            self.memory,
        )
        self.ingest.start()

    @property
    def log_end_offset(self) -> int:
        return self.end

    def feed(self, event: PublishesReceived) -> None:
        self.tokens.append(event.token)
        if self.append:
            effect = AppendBatch(token=event.token, base_offset=self.end, leader_epoch=1, timestamp_ns=event.received_wall_ns)
            batch = self.ingest.encode_batch(effect)
            self.ingest.appended(effect, batch)
            self.batches.append(batch)
            self.end += event.record_count

    def publish(self, payload: bytes, reply: bytes = b"", headers: bytes = b"") -> None:
        self.bus.sink(b"ev", reply, payload, headers)

    def counts(self) -> list[int]:
        return [parse_batch(batch).record_count for batch in self.batches]


async def turn() -> None:
    """Let what was scheduled run."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
