"""Test the order of steps in the asyncio shell of a partition where a wrong order fails rarely."""

from __future__ import annotations

import concurrent.futures
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.base.instruments import Instruments
from liftpy.core.base.partition import PartitionState
from liftpy.errors import StorageError
from sidecar.partition.worker import PartitionWorker, count_isr
from sidecar.runtime import timers as timers_module
from sidecar.runtime.timers import Timer, Timers
from tests.unit.partition import test_log_flusher, test_state_file_writes
from tests.unit.partition.shell_parts import worker
from tests.until import until

MS = 1_000_000


# ---- the log -------------------------------------------------------------------------------------------------------------------


async def test_log_flusher_flush_that_raises_an_unexpected_exception_is_reported_as_failed(
    pool: concurrent.futures.ThreadPoolExecutor,
) -> None:
    bench = test_log_flusher.Bench(pool)
    bench.fault = ValueError("a bug, in a thread")
    bench.append()
    await until(lambda: bench.failed)
    assert bench.flushed == []
    await bench.flusher.close()


async def test_state_file_is_not_written_when_the_high_watermark_could_not_be_stored(
    pool: concurrent.futures.ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = test_state_file_writes.Bench(pool, test_state_file_writes.MemoryStorage())
    bench.append(b"1")
    stored = bench.log.checkpoint

    def fails() -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(bench.log, "checkpoint", fails)
    bench.states.checkpoint()
    await until(lambda: bench.flusher._checkpoint is None)
    assert (bench.states._writing, bench.states.writer.written) == (None, 0)
    monkeypatch.setattr(bench.log, "checkpoint", stored)
    bench.states.checkpoint()
    await until(lambda: bench.states.writer.written == 1)
    await bench.flusher.close()


@pytest.mark.parametrize("works", [True, False])
def test_partition_close_writes_the_state_file_after_a_clean_log_close(works: bool) -> None:
    closing = worker()

    def close(*, clean: bool) -> None:
        closing.told.append(f"closed, clean: {clean}")
        if not works:
            raise StorageError("the last flush has failed")

    closing.log = SimpleNamespace(close=close)
    assert PartitionWorker._close(closing, True, False, lambda: closing.told.append("state")) is works
    assert closing.told == ["closed, clean: True", *(["state"] if works else [])]


# ---- deadlines -----------------------------------------------------------------------------------------------------------------
class Wheel:
    """Timers whose clock and loop stand still until the test turns them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        monkeypatch.setattr(timers_module, "clock", SimpleNamespace(now_ns=lambda: self.now_ns))
        self.fired: list[str] = []
        loop: Any = SimpleNamespace(
            call_later=lambda delay_s, callback: SimpleNamespace(cancel=lambda: None),
            call_soon=lambda callback: SimpleNamespace(cancel=lambda: None),
        )
        self.timers = Timers(loop)

    def at(self, now_ms: int) -> list[str]:
        """What fires then."""
        self.now_ns, self.fired[:] = now_ms * MS, []
        self.timers._fire()
        return list(self.fired)


def test_timer_moved_within_one_tick_still_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = Wheel(monkeypatch)
    timer = Timer(lambda: wheel.fired.append("it"))
    wheel.timers.set(timer, 8 * MS)
    wheel.timers.set(timer, 13 * MS)
    assert [wheel.at(10), wheel.at(15), wheel.at(20)] == [[], ["it"], []]


def test_timers_closed_by_a_firing_timer_do_not_fire_others_due_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = Wheel(monkeypatch)
    wheel.timers.set(Timer(wheel.timers.close), 5 * MS)
    wheel.timers.set(Timer(lambda: wheel.fired.append("it")), 5 * MS)
    assert wheel.at(5) == []


# ---- what is shown ---------------------------------------------------------------------------------------------------------------


def test_isr_change_counter_grows_on_the_leader_only() -> None:
    small = PartitionState(partition=0, replicas=("n1", "n2"), isr=("n1",), leader="n1", leader_epoch=1, epoch=1)
    large = PartitionState(partition=0, replicas=("n1", "n2"), isr=("n1", "n2"), leader="n1", leader_epoch=1, epoch=2)
    counted = {}
    for node in ("n1", "n2"):
        instruments = Instruments()
        for before, after in ((None, small), (small, large), (large, large), (large, small), (small, large)):
            count_isr(instruments, node, before, after)
        counted[node] = instruments.isr_expands, instruments.isr_shrinks
    assert counted == {"n1": (2, 1), "n2": (0, 0)}
