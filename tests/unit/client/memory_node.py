"""A node in memory with one partition, and consumers that read it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from liftpy.client.consumer import Consumer, PartitionReader, ReadOptions
from liftpy.config import StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.partition.reads import Chunks, Reads
from liftpy.core.replication.log_offsets import OffsetCheck, OffsetCheckResult
from liftpy.core.wire.batch import Record, split_batches
from liftpy.core.wire.subjects import Subjects
from tests.batches import build_batch

BEGAN = datetime(2026, 3, 1, tzinfo=UTC)


BEGAN_NS = int(BEGAN.timestamp()) * 10**9


class Node:
    """A node in memory with one partition. It is ReadSource, ReadShell and Transport in one object."""

    compacted, leader_epoch, leader, leads, may_serve = False, 3, "n1", True, True
    closed = False

    def __init__(self, max_payload: int = 1 << 20) -> None:
        self.log, _ = Log.open(MemoryStorage(), StreamConfig(segment_bytes=4096))
        self.records: list[Record] = []
        self.max_payload = self.max_payload_bytes = max_payload
        self.counters: Counter[str] = Counter()
        self.reads = Reads[asyncio.Future[bytes]](PartitionKey("orders", "u1", 0), "n1", self, self, self.counters)
        self.reconnected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked = 0

    # ---- the log -----------------------------------------------------------------------------------------------------
    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    def append(self, *keys: bytes | None, subject: str = "o.eu", size: int = 10) -> None:
        base = self.log.log_end_offset
        data = build_batch(
            [b"%d" % offset + b"." * size for offset in range(base, base + len(keys))],
            keys=keys,
            subjects=[subject] * len(keys),
            headers=[[("h", b"1")] if key else None for key in keys],
            base_offset=base,
            leader_epoch=1 + base // 50,
            timestamp_ns=BEGAN_NS + base * 10**9,
        )
        self.log.append(data)
        self.log.flush()
        self.log.raise_high_watermark(self.log.newest_offset)
        self.records += split_batches(data)[0].records()
        self.reads.advanced()

    def has_room_for(self, asker: asyncio.Future[bytes]) -> bool:
        return True

    def may_answer_latest(self, now_ns: int) -> bool:
        return True

    def check_reader_offset(self, last_offset: int, last_epoch: int, now_ns: int) -> OffsetCheckResult:
        assert last_epoch == self.log.epochs.epoch_at(last_offset), "what a reader says of its last record is so"
        return OffsetCheckResult(OffsetCheck.SAME)

    # ---- the way ---------------------------------------------------------------------------------------------------------
    def now_ns(self) -> int:
        return 0

    def answer(self, asker: asyncio.Future[bytes], chunks: Chunks) -> None:
        data = b"".join(chunks)
        assert len(data) <= self.max_payload
        if not asker.done():
            asker.set_result(data)

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Callable[[], None]:
        return asyncio.get_running_loop().call_later(at_ns / 1e9, callback).cancel

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        self.asked += 1
        coming: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.reads.answer_request(payload, coming)
        return await coming

    def must_be_usable(self) -> None:
        pass

    def on_close(self, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


def consumer(node: Node, start: Any = "earliest", until: Any = None, **more: Any) -> Consumer:
    way: Any = node
    options = ReadOptions(max_bytes=more.pop("max_bytes", 1 << 20), wait_s=0.05, patience_s=more.pop("patience_s", 5.0))
    return Consumer(PartitionReader(way, Subjects(), "orders", 0, options), start, until, **more)


def offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]
