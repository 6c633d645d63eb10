"""Small logs in memory, and what is stored of them, for tests."""

from __future__ import annotations

from typing import Any

from liftpy.config import StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.small_files import CHECKPOINT_NAME, Checkpoint, decode_checkpoint
from liftpy.core.log.storage import MemoryStorage
from tests.batches import build_batch

S = 1_000_000_000


def a_log(storage: MemoryStorage | None = None, **config: Any) -> Log:
    return Log.open(storage if storage is not None else MemoryStorage(), StreamConfig(**config), clean=True)[0]


def add(log: Log, count: int = 1, *, epoch: int = 1, size: int = 100, timestamp_ns: int = 0, **columns: Any) -> None:
    values: list[bytes | None] = [bytes([65 + (log.log_end_offset + i) % 26]) * size for i in range(count)]
    log.append(build_batch(values, base_offset=log.log_end_offset, leader_epoch=epoch, timestamp_ns=timestamp_ns, **columns))


def filled(batches: int = 9, *, roll_every: int = 3, storage: MemoryStorage | None = None, **config: Any) -> Log:
    """Batches of two records, epoch 1 up to the middle and 2 from there on, all flushed and committed."""
    log = a_log(storage, **config)
    for number in range(batches):
        if number and number % roll_every == 0:
            log.roll()
        add(log, 2, epoch=1 + (number >= batches // 2), timestamp_ns=number * S)
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    return log


def stored(log: Log) -> Checkpoint:
    found = decode_checkpoint(log.storage.load(CHECKPOINT_NAME))
    return found or Checkpoint()
