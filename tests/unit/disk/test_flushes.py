"""Test the thread of flushes, the measured times of flushes, and the probe of a disk at the start of a node."""

from __future__ import annotations

import concurrent.futures
import errno
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import pytest

from liftpy.config import StreamConfig
from liftpy.core.base.instruments import Histogram
from liftpy.core.log.flush import PROBES, FlushScheduler
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from sidecar.disk import flush_thread
from sidecar.disk.flush_thread import (
    PROBE_NAME,
    SAMPLES_OF_PARTITION,
    THREAD_NAME,
    WARN_EVERY_S,
    FlushThread,
    FlushTimes,
    NodeFlushTimes,
    probe_flushes,
)
from sidecar.partition.flushing import Flusher
from sidecar.runtime.timers import Timers
from tests.batches import build_batch
from tests.unit.partition.shell_parts import FlushedPartition


def test_flush_thread_returns_results_and_raises_errors_of_one_worker_thread() -> None:
    made, threads = FlushThread(FlushScheduler()), set()

    def work() -> int:
        threads.add(threading.current_thread())
        return len(threads)

    assert [made.run(work, 10), made.run(work, 10)] == [1, 1]
    (thread,) = threads
    assert (thread.name, thread.daemon) == (THREAD_NAME, True)
    with pytest.raises(ZeroDivisionError):
        made.run(lambda: 1 // 0, 10)
    made.close()
    made.close()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("fails", [False, True])
def test_flush_thread_runs_the_next_flush_in_a_new_thread_while_one_hangs(fails: bool) -> None:
    made, began, gate, threads = FlushThread(FlushScheduler()), threading.Event(), threading.Event(), []

    def hangs() -> int:
        threads.append(threading.current_thread())
        began.set()
        assert gate.wait(10)
        return 1 // 0 if fails else 7

    late = made.run(hangs, 0.001)
    assert isinstance(late, Future)
    assert not late.done()
    assert began.wait(10), "its thread may not have had the processor yet"
    assert made.run(lambda: threads.append(threading.current_thread()) or 3, 10) == 3
    assert threads[0] is not threads[1]
    gate.set()
    if fails:
        assert isinstance(late.exception(10), ZeroDivisionError)
    else:
        assert late.result(10) == 7
    threads[0].join(10)
    assert not threads[0].is_alive(), "it ends with what it did"
    made.close()


def test_flush_thread_flush_that_ends_at_its_timeout_returns_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have seen each other then: the result is returned, and nobody looks at the other."""
    gate = threading.Event()

    class Late(Future):  # type: ignore[type-arg]
        def __init__(self) -> None:
            super().__init__()
            gate.set()
            assert ended.wait(10)

    ended = threading.Event()
    run = flush_thread._Job.run

    def run_and_tell(job: flush_thread._Job) -> None:
        run(job)
        ended.set()

    monkeypatch.setattr(flush_thread, "Future", Late)
    monkeypatch.setattr(flush_thread._Job, "run", run_and_tell)
    made = FlushThread(FlushScheduler())
    assert made.run(lambda: gate.wait(10) and 5, 0.001) == 5
    made.close()


def test_flush_thread_retries_to_start_its_thread_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    made, start = FlushThread(FlushScheduler()), threading.Thread.start

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(RuntimeError):
        made.run(lambda: 1, 10)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert made.run(lambda: 2, 10) == 2, "not put before a thread that never was"
    made.close()


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


class FakeDisk:
    """Its flushes take ``took_s`` of a clock that nothing else moves; the ``fails_at``-th (from 0) fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, took_s: float, fails_at: int = -1) -> None:
        self.now_s, self.flushes = 0.0, 0
        self.took_s, self.fails_at = took_s, fails_at
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(os, "fdatasync", self.flush)

    def flush(self, descriptor: int) -> None:
        self.flushes += 1
        self.now_s += self.took_s
        if self.flushes - 1 == self.fails_at:
            raise OSError(errno.EIO, "Input/output error")


def test_flush_probe_returns_one_duration_per_flush_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FakeDisk(monkeypatch, 0.0002)
    assert probe_flushes(tmp_path) == pytest.approx([0.0002] * PROBES)
    assert disk.flushes == PROBES + 1, "the first one of a new file does not count"
    assert list(tmp_path.iterdir()) == []


def test_flush_probe_on_a_slow_disk_stops_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FakeDisk(monkeypatch, 0.008)
    assert probe_flushes(tmp_path) == pytest.approx([0.008] * 3)
    assert disk.now_s == pytest.approx(0.032)
    hanging = FakeDisk(monkeypatch, 5.0)
    assert probe_flushes(tmp_path) == [5.0]
    assert hanging.flushes == 2


@pytest.mark.parametrize("fails_at", [0, 1, PROBES])
def test_flush_probe_with_a_flush_error_returns_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    FakeDisk(monkeypatch, 0.0002, fails_at)
    assert probe_flushes(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_flush_probe_on_a_full_disk_returns_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert probe_flushes(tmp_path) is None
    monkeypatch.setattr(os, "write", lambda descriptor, data: len(data) // 2)
    assert probe_flushes(tmp_path) is None, "a short write"
    assert list(tmp_path.iterdir()) == []


def test_flush_probe_in_a_missing_directory_or_with_a_used_file_name_returns_none(tmp_path: Path) -> None:
    assert probe_flushes(tmp_path / "gone") is None
    (tmp_path / PROBE_NAME).mkdir()
    assert probe_flushes(tmp_path) is None


def test_flush_probe_on_a_symbolic_link_returns_none_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"data")
    (tmp_path / PROBE_NAME).symlink_to(tmp_path / "precious")
    assert probe_flushes(tmp_path) is None
    assert (tmp_path / "precious").read_bytes() == b"data"


def test_flush_probe_removes_the_file_of_a_killed_process(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from sidecar.disk.flush_thread import probe_flushes
os.fdatasync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
probe_flushes(Path({str(tmp_path)!r}))
"""
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [PROBE_NAME]
    assert probe_flushes(tmp_path)
    assert list(tmp_path.iterdir()) == []
