"""What the tests of the log share: batches that say who they are, and a naive model."""

from __future__ import annotations

from liftpy.config import StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.wire.batch import split_batches
from tests.batches import build_batch

SMALL = StreamConfig(segment_bytes=4096)


def batch(base_offset: int, count: int = 1, epoch: int = 1, size: int = 10, timestamp_ns: int = 0) -> bytes:
    """A batch whose values name their offsets."""
    values = [b"%d:%d" % (epoch, base_offset + i) + b"." * size for i in range(count)]
    return build_batch(values, base_offset=base_offset, leader_epoch=epoch, timestamp_ns=timestamp_ns)


def fill(log: Log, batches: int, count: int = 3, epoch: int = 1, size: int = 100) -> None:
    """Append batches, without flushing."""
    for _ in range(batches):
        end = log.log_end_offset
        log.append(batch(end, count, epoch, size, timestamp_ns=end * 1000))


def content(log: Log) -> list[tuple[int, bytes | None]]:
    """Every (offset, value) in the log, read by its own reader."""
    found: list[tuple[int, bytes | None]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, 700, end_offset=log.log_end_offset)
        assert result.next_offset > offset
        for chunk in result.chunks:
            for read in split_batches(chunk):
                found += [(o, v) for o, v in zip(read.offsets().tolist(), read.values(), strict=True) if o >= offset]
        offset = result.next_offset
    return found


def reopened(storage: MemoryStorage, config: StreamConfig = SMALL) -> Log:
    """The log that the next process opens."""
    return Log.open(storage, config)[0]
