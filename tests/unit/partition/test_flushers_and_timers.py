"""Test intervals, late ends of flushes, and a close that waits for a running flush."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

from liftpy.config import StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.wire.batch import build_batch
from tests.unit.partition.shell_parts import Clocked, FlushedPartition, flusher_of
from tests.until import until


async def test_log_flusher_ignores_the_late_completion_of_a_flush_it_already_awaited(
    pool: concurrent.futures.ThreadPoolExecutor,
) -> None:
    gate, config = threading.Event(), StreamConfig()
    gate.set()
    log, _ = Log.open(MemoryStorage(fault=lambda what: gate.wait(10) and None if what == "sync" else None), config)
    partition = FlushedPartition(log)
    flushed, flusher = partition.flushed, flusher_of(partition, pool, Clocked())
    log.append(build_batch([b"x"], base_offset=0, leader_epoch=1))
    flusher.appended()
    flusher.alone(lambda: None)  # the end of its thread is still on its way to the loop
    gate.clear()
    log.append(build_batch([b"y"], base_offset=1, leader_epoch=1))
    flusher.appended()
    began = asyncio.get_running_loop().time()
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert asyncio.get_running_loop().time() - began < 5, "the loop stood still"
    assert flushed == [1]
    gate.set()
    await until(lambda: flushed == [1, 2])
    await flusher.close()


async def test_log_flusher_close_waits_for_the_running_flush(pool: concurrent.futures.ThreadPoolExecutor) -> None:
    gate, config = threading.Event(), StreamConfig()
    log, _ = Log.open(MemoryStorage(fault=lambda what: gate.wait(10) and None if what == "sync" else None), config)
    flusher = flusher_of(FlushedPartition(log), pool, Clocked())
    log.append(build_batch([b"x"], base_offset=0, leader_epoch=1))
    flusher.appended()
    closing = asyncio.create_task(flusher.close())
    turned = asyncio.get_running_loop().time()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not closing.done()
    assert asyncio.get_running_loop().time() - turned < 5, "the loop turns while it waits"
    gate.set()
    await closing
    assert log.durable_end_offset == 1
