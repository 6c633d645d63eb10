"""Test group commit of a partition: one flush at a time, truncation waits, an error is final [S4]."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from types import SimpleNamespace

import pytest

from liftpy.config import FlushPolicy, StreamConfig
from liftpy.core.log.flush import LONG_S, MOST_WAITING, FlushScheduler
from liftpy.core.log.log import Log
from liftpy.core.log.recovery import FLUSH_FAILED_NAME
from liftpy.core.log.storage import MemoryStorage
from liftpy.errors import StorageError
from sidecar.disk.flush_thread import THREAD_NAME, FlushThread
from sidecar.partition.flushing import STALLED_S
from sidecar.runtime.timers import Timers
from tests.batches import build_batch
from tests.unit.partition.shell_parts import Clocked, FlushedPartition, flusher_of
from tests.until import until


class Bench:
    """A log in memory whose syncs wait for ``gate``."""

    def __init__(self, pool: concurrent.futures.Executor, policy: str = "always", place: FlushScheduler | None = None) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.syncs = 0
        self.synced = threading.Event()
        self.threads: list[bool] = []
        """Of each sync, whether the loop waits for it."""
        self.fault: Exception | None = None
        config = StreamConfig(flush=FlushPolicy.parse(policy))
        self.log, _ = Log.open(MemoryStorage(fault=self.called), config)
        if place is not None:
            self.log._new_names = False  # as after its first flush: those of names run in threads
        self.syncs = 0
        self.failed: list[StorageError] = []
        partition = FlushedPartition(self.log, self.failed.append)
        self.flushed = partition.flushed
        self.flusher = flusher_of(partition, pool, Timers(), None if place is None else FlushThread(place))

    def called(self, what: str) -> None:
        if what == "sync":
            self.threads.append(threading.current_thread().name == THREAD_NAME)
            assert self.gate.wait(10)
            self.syncs += 1
            self.synced.set()
            if self.fault is not None:
                raise self.fault

    def append(self) -> None:
        self.log.append(build_batch([b"x"], base_offset=self.log.log_end_offset, leader_epoch=1))
        self.flusher.appended()


async def test_log_flusher_flushes_records_appended_during_a_flush_together(pool: concurrent.futures.Executor) -> None:
    bench = Bench(pool)
    bench.gate.clear()
    bench.append()
    for _ in range(9):
        bench.append()
    assert bench.flushed == []
    bench.gate.set()
    await until(lambda: bench.flushed == [1, 10], "two flushes for ten appends")
    assert bench.flusher.count == 2


async def test_log_flusher_truncation_waits_for_the_running_flush(pool: concurrent.futures.Executor) -> None:
    bench = Bench(pool)
    bench.append()
    bench.append()
    bench.flusher.alone(lambda: bench.log.truncate_to(1))
    assert bench.flushed in ([1], [2])
    bench.append()
    await until(lambda: bench.flushed[-1] == 2, "the new record")
    assert bench.log.flushed_end_offset == 2
    await bench.flusher.close()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> FlushScheduler:
    """The place of a node whose disk is fast, however busy this machine is: on the loop."""
    monkeypatch.setattr("sidecar.partition.flushing._run_timed", lambda flush: flush.run() or 0)
    place = FlushScheduler()
    while not place.on_loop:
        place.record_thread_flush(0.0, 0)
    return place


async def test_log_flusher_short_flush_runs_on_the_event_loop_after_the_current_turn(
    pool: concurrent.futures.Executor, fast: FlushScheduler
) -> None:
    bench = Bench(pool, place=fast)
    bench.threads.clear()
    for _ in range(10):
        bench.append()
    asyncio.get_running_loop().call_soon(lambda: bench.append())
    assert (bench.syncs, bench.flushed) == (0, [])
    await asyncio.sleep(0)
    assert (bench.syncs, bench.flushed, bench.threads) == (1, [10], [True])
    await until(lambda: bench.flushed == [10, 11], "what came behind it")
    assert (bench.flusher.count, fast.done_on_loop, fast.waiting) == (2, 2, 0)
    await bench.flusher.close()


@pytest.mark.parametrize("on_loop", [True, False])
async def test_log_flusher_after_an_error_reports_the_failure_and_flushes_no_more(
    on_loop: bool, pool: concurrent.futures.Executor, fast: FlushScheduler
) -> None:
    bench = Bench(pool, place=fast if on_loop else None)
    bench.fault = StorageError("broken disk")
    bench.append()
    await until(lambda: bool(bench.failed), "the failure")
    assert bench.flushed == []
    assert bench.log.storage.load(FLUSH_FAILED_NAME) is not None
    bench.fault = None
    with pytest.raises(StorageError, match="closed"):
        bench.append()
    await bench.flusher.close()
    assert len(bench.failed) == 1


async def test_log_flusher_flush_that_raises_an_unexpected_exception_is_reported_as_failed(
    pool: concurrent.futures.Executor,
) -> None:
    bench = Bench(pool)
    bench.fault = ValueError("a bug, in a thread")
    bench.append()
    await until(lambda: bool(bench.failed), "the failure")
    assert bench.flushed == []
    await bench.flusher.close()


async def test_log_flusher_runs_flushes_in_threads_after_a_long_flush(
    pool: concurrent.futures.Executor, fast: FlushScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(pool, place=fast)
    bench.threads.clear()
    monkeypatch.setattr("sidecar.partition.flushing._run_timed", lambda flush: flush.run() or round(LONG_S * 1e9))
    bench.append()
    await asyncio.sleep(0)
    assert (bench.flushed, fast.on_loop) == ([1], False)
    monkeypatch.setattr("sidecar.partition.flushing._run_timed", lambda flush: flush.run() or 0)
    bench.append()
    await until(lambda: bench.flushed == [1, 2], "the next one")
    assert bench.threads == [True, False]
    for number in range(3, 400):
        bench.append()
        await until(lambda: bench.flushed[-1] == number, "each of them")  # noqa: B023
        if bench.threads[-1]:
            break
    assert fast.on_loop, "it is back after many short ones"
    await bench.flusher.close()


async def test_log_flusher_hanging_flush_does_not_block_the_event_loop(
    pool: concurrent.futures.Executor, fast: FlushScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flushes of this disk were short before. The loop continues after 20 ms, and other flushes run in the pool."""
    hanging, other = Bench(pool, place=fast), Bench(pool, place=fast)
    hanging.gate.clear()
    hanging.append()
    began_s = time.monotonic()
    await asyncio.sleep(0)
    assert LONG_S <= time.monotonic() - began_s < 5, "of the 10 s that the gate would be waited for"
    assert (hanging.flushed, hanging.threads[-1], fast.on_loop) == ([], True, False)
    assert (fast.waiting, fast.done_on_loop) == (0, 1)
    other.append()
    await until(lambda: other.flushed == [1], "the disk of others")
    assert other.threads[-1] is False
    hanging.append()
    monkeypatch.setattr("sidecar.partition.flushing.time", SimpleNamespace(monotonic=lambda: began_s + 31))
    assert (hanging.flusher.under_way_s >= 30, hanging.flusher.stalls, other.flusher.stalls) == (True, True, False)
    in_threads = fast.done_in_thread
    hanging.gate.set()
    await until(lambda: hanging.flushed == [1, 2], "it ends, and what came meanwhile is flushed")
    assert fast.done_in_thread == in_threads + 1, "of the second one; the first is counted already"
    assert not hanging.flusher.stalls
    await hanging.flusher.close()


async def test_log_flusher_truncation_or_failure_waits_for_a_hanging_flush(
    pool: concurrent.futures.Executor, fast: FlushScheduler
) -> None:
    cut, failing = Bench(pool, place=fast), Bench(pool, place=fast)
    for bench in (cut, failing):
        while not fast.on_loop:
            fast.record_thread_flush(0.0, 0)
        bench.gate.clear()
        bench.append()
        bench.append()
        await asyncio.sleep(0)
        assert (bench.threads[-1], bench.flushed, fast.on_loop) == (True, [], False)
    done: list[int] = []
    assert cut.flusher.alone(lambda: done.append(cut.log.truncate_to(1))), "the loop does not wait for it"
    assert (cut.flushed, done) == ([], [])
    cut.gate.set()
    await until(lambda: bool(done), "the cut")
    assert (cut.flushed, done) == ([2], [1]), "settled, not forgotten"
    failing.fault = StorageError("broken disk")
    failing.gate.set()
    await until(lambda: bool(failing.failed), "the failure is told")
    assert failing.flushed == []
    await cut.flusher.close()
    await failing.flusher.close()


async def test_log_flusher_hanging_checkpoint_counts_as_stalled(
    pool: concurrent.futures.Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, gate = Bench(pool), threading.Event()
    monkeypatch.setattr(bench.log, "checkpoint", lambda: gate.wait(10))
    assert bench.flusher.under_way_s == 0
    bench.flusher.checkpoint()
    await until(lambda: bench.flusher.under_way_s > 0, "it runs")
    now = time.monotonic()
    monkeypatch.setattr("sidecar.partition.flushing.time", SimpleNamespace(monotonic=lambda: now + STALLED_S))
    assert bench.flusher.stalls
    gate.set()
    await until(lambda: bench.flusher.under_way_s == 0, "it is over")
    await bench.flusher.close()


async def test_log_flushers_of_many_logs_flush_in_parallel(pool: concurrent.futures.Executor, fast: FlushScheduler) -> None:
    benches = [Bench(pool, place=fast) for _ in range(3 * MOST_WAITING)]
    for bench in benches:
        bench.threads.clear()
        bench.append()
    await until(lambda: all(bench.flushed == [1] for bench in benches), "all")
    assert sum(bench.threads == [True] for bench in benches) == MOST_WAITING
    assert fast.waiting == 0
    for bench in benches:
        await bench.flusher.close()


async def test_log_flusher_truncated_or_closed_before_its_flush_starts_flushes_only_remaining_records(
    pool: concurrent.futures.Executor, fast: FlushScheduler
) -> None:
    cut, ended = Bench(pool, place=fast), Bench(pool, place=fast)
    cut.append()
    cut.append()
    cut.flusher.alone(lambda: cut.log.truncate_to(1))
    ended.append()
    await ended.flusher.close()
    await until(lambda: cut.flushed == [1], "what the cut has left")
    for _ in range(3):
        await asyncio.sleep(0)
    assert (ended.syncs, ended.flushed, fast.waiting) == (0, [], 0), "the log is closed by then, which flushes"
    await cut.flusher.close()


async def test_log_flusher_truncation_waits_for_a_hanging_checkpoint(
    pool: concurrent.futures.Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(pool)
    bench.append()
    await until(lambda: bench.flushed == [1], "flushed")
    free = threading.Event()
    monkeypatch.setattr(bench.log, "checkpoint", lambda: free.wait(10))
    assert bench.flusher.checkpoint()
    done: list[int] = []
    assert bench.flusher.alone(lambda: done.append(1))
    free.set()
    await until(lambda: done == [1], "behind it")
    assert not bench.flusher.alone(lambda: done.append(2))
    assert done == [1, 2], "nothing runs: at once"
    await bench.flusher.close()


async def test_log_flusher_with_policy_none_or_interval_reports_records_at_once(pool: concurrent.futures.Executor) -> None:
    bench = Bench(pool, "none")
    bench.append()
    assert bench.flushed == [1]
    assert bench.syncs == 0
    bench = Bench(pool, "interval:10")
    bench.append()
    bench.append()
    assert bench.flushed == [1, 2]
    await until(lambda: bench.syncs == 1, "one flush for both")
    assert bench.flushed == [1, 2]
    await bench.flusher.close()


# ---- late ends and the close -----------------------------------------------------------------------------------------------
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
