"""Test flush times of a node and its partitions, and the rate of slow-disk warnings."""

from __future__ import annotations

import concurrent.futures
import logging
import time
from collections import Counter

import pytest

from liftpy.config import StreamConfig
from liftpy.core.base.instruments import Histogram
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.wire.batch import build_batch
from sidecar.disk.flush_thread import SAMPLES_OF_PARTITION, WARN_EVERY_S, FlushTimes, NodeFlushTimes
from sidecar.partition.flushing import Flusher
from sidecar.runtime.timers import Timers
from tests.unit.partition.shell_parts import FlushedPartition


def test_flush_time_quantiles_include_only_the_most_recent_flushes() -> None:
    times = FlushTimes()
    assert times.report() == {"p50_ms": 0.0, "p99_ms": 0.0, "max_ms": 0.0}
    for _ in range(SAMPLES_OF_PARTITION):
        times.add(5.0)
    for number in range(1, SAMPLES_OF_PARTITION + 1):
        times.add(number / 1000)
    found = times.report()
    assert found["p50_ms"] == pytest.approx(SAMPLES_OF_PARTITION / 2, abs=1)
    assert found["p99_ms"] == pytest.approx(SAMPLES_OF_PARTITION * 0.99, abs=1)
    assert found["max_ms"] == pytest.approx(SAMPLES_OF_PARTITION, abs=0.1), "what is older is forgotten"
    assert times.count == 2 * SAMPLES_OF_PARTITION
    for _ in range(3 * SAMPLES_OF_PARTITION):
        times.add(0.002)
    assert times.report() == {"p50_ms": 2.0, "p99_ms": 2.0, "max_ms": 2.0}, "round and round"


def test_slow_flushes_are_counted_and_logged_once_per_interval(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    counters: Counter[str] = Counter()
    measured = Histogram()
    times = NodeFlushTimes(counters, measured)
    with caplog.at_level(logging.WARNING, "liftpy.disk"):
        times.flushed("s/0", 0.5)
        assert caplog.records == []
        for _ in range(5):
            times.flushed("s/1", 1.5)
        now[0] += WARN_EVERY_S
        times.flushed("s/2", 6.0)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith("slow flush log=s/1 seconds=1.5 slow_flushes=1:")
    assert said[1].startswith("slow flush log=s/2 seconds=6.0 slow_flushes=5:")
    assert counters == {"slow_flush": 6}
    assert (sum(measured.counts), measured.total) == (7, pytest.approx(14.0))


async def test_flush_time_is_measured_from_the_request_to_the_completion() -> None:
    slow_s = 0.05

    def slow(what: str) -> None:
        if what == "sync":
            time.sleep(slow_s)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        log, _ = Log.open(MemoryStorage(fault=slow), StreamConfig())
        times = NodeFlushTimes(Counter())
        flusher = Flusher(FlushedPartition(log), pool, Timers(), times)  # type: ignore[arg-type]
        log.append(build_batch([b"x"], base_offset=0, leader_epoch=1))
        flusher.appended()
        await flusher.close()
    assert times.count == flusher.times.count == 1
    assert times.report()["p50_ms"] >= slow_s * 1000
    assert flusher.times.report()["p50_ms"] >= slow_s * 1000
