"""An Ingest that is given whole batches, and a log that takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from liftpy.config import AckPolicy, Codec, ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.publish.acks import PendingAcks
from liftpy.core.publish.ingest import Ingest
from liftpy.core.publish.memory_budget import MemoryBudget
from liftpy.core.publish.message_decoder import MessageDecoder
from liftpy.core.replication.effects import AppendBatch
from liftpy.core.replication.events import DuplicateReceived, PublishesReceived
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import RecordBatch, parse_batch
from liftpy.core.wire.subjects import InboxRule
from tests.unit.publish.unlogged import FakeReplica, create_log_state, ingest_partition

_Ack = client_pb2.Ack


class Bench:
    """A partition of the stream s, whose uid is u1; what is taken is appended at once, and committed by ``commit``."""

    max_payload = 1 << 20

    def __init__(
        self,
        policy: AckPolicy = AckPolicy.ALL,
        codec: Codec = Codec.NONE,
        *,
        takes: bool = True,
        partition: int = 1,
        memory: MemoryBudget | None = None,
    ) -> None:
        self.batches: list[RecordBatch] = []
        self.events: list[PublishesReceived] = []
        self.repeated: list[DuplicateReceived] = []
        self.lines: list[bytes] = []
        self.acks = PendingAcks(self, PartitionKey("s", "u1", partition), f"ev.{partition}")
        self.replica = FakeReplica(is_busy=not takes)
        shell: Any = self
        self.ingest = Ingest(
            ingest_partition(self.acks, self.replica, self, create_log_state(), self.append),
            shell,
            MessageDecoder(self.acks.key, f"ev.{partition}", policy, InboxRule(("_INBOX.",)), codec),
            ReplicationConfig(),
            lambda: 77,
            memory,
        )
        self.ingest.start()

    @property
    def log_end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    end = log_end_offset

    def listen(self, subject: str, sink: Any, on_dropped: Any = None, rejector: Any = None) -> Any:
        return None

    def when_subscribed(self, heard: Callable[[], None]) -> None:
        heard()

    def call_after_read(self, callback: Callable[[], None]) -> None:
        pass

    def send_lines(self, lines: Any) -> None:
        self.lines += lines

    def append(self, event: PublishesReceived | DuplicateReceived) -> None:
        if isinstance(event, DuplicateReceived):
            self.repeated.append(event)
            return
        self.events.append(event)
        effect = AppendBatch(token=event.token, base_offset=self.end, leader_epoch=3, timestamp_ns=event.received_wall_ns)
        batch = self.ingest.encode_batch(effect)
        assert len(batch) == event.size_bytes
        self.ingest.appended(effect, batch)
        self.batches.append(parse_batch(batch))

    def sink_failed(self, subject: bytes, error: Exception) -> None:
        raise error

    def arrive(self, *messages: tuple[bytes, bytes, bytes]) -> None:
        for reply, payload, block in messages:
            self.ingest._message_arrived(self.acks._data_subject.encode(), reply, payload, block)
        self.ingest._drain()

    def commit(self, policy: AckPolicy = AckPolicy.ALL) -> list[_Ack]:
        self.acks.release(policy, self.end - 1, 3, 0)
        return self.answers()

    def answers(self) -> list[_Ack]:
        lines, self.lines = self.lines, []
        return [frames.decode(line.split(b"\r\n", 1)[1][:-2], _Ack) for line in lines]


def published(batch: bytes, **head: Any) -> bytes:
    fields = {"stream": "s", "streamUid": "u1", "partition": 1, "ackPolicy": client_pb2.ALL} | head
    return frames.batch_publish(client_pb2.BatchPublish(**fields), batch)
