"""Test the rounds of retention, compaction and checkpoints."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import StreamConfig
from liftpy.core.log.log import Log
from liftpy.errors import CorruptionError, LiftError, LogClosedError, NoSpaceError, StorageError
from sidecar.partition import housekeeping
from sidecar.partition.housekeeping import SPACE_AGAIN_BYTES, Housekeeping
from tests.only_in import only_in
from tests.until import until


class FakeWorkerLog(SimpleNamespace):
    """Its log, whose rule is the real one's."""

    kept: FakeWorker
    may_give_up, may_be_cleaned = Log.may_give_up, Log.may_be_cleaned

    @property
    def config(self) -> StreamConfig:
        return self.kept.config


class FakeWorker:
    """A worker, as housekeeping sees one."""

    def __init__(self, key: str) -> None:
        self.key, self.done = key, []
        self.has_ended = False
        self.high_watermark = 0
        self.config = StreamConfig(retention_bytes=1, compaction=True)
        self.quarantined_files: tuple[str, ...] = ("old",)
        self.no_space = self.storage_failed = False
        self.disk_is_busy = self.disk_is_full = False
        self.states = SimpleNamespace(checkpoint=self.begin_checkpoint)
        self.flusher = SimpleNamespace(stalls=False, alone=lambda work: self.done.append("settle") or work())
        self.compaction: Any = SimpleNamespace(run=lambda: self.done.append("run"))
        self.begun: Any = None
        self.may_end: Any = None
        self.log = FakeWorkerLog(
            kept=self,
            log_start_offset=0,
            asked_start=0,
            closed="",
            is_full=False,
            cleaning=SimpleNamespace(purges=()),
            begin_compaction=lambda now, min_dirty_ratio: self.compaction,
            complete_compaction=lambda compaction: self.done.append("complete") or 1,
            handle_damage=lambda error: self.done.append("damage"),
        )

    def begin_checkpoint(self, stored: Callable[[], None]) -> bool:
        if not self.disk_is_busy:
            self.done.append("checkpoint")
            if not self.disk_is_full:
                stored()
        return not self.disk_is_busy

    def apply_retention(self, now: int) -> None:
        self.done.append("retention")

    def report_purged(self) -> None:
        self.done.append("report")

    def mark_changed(self) -> None:
        self.done.append("told")

    def delete_quarantined_files(self) -> None:
        self.done.append("dropped")

    def log_was_closed(self, error: StorageError) -> None:
        self.done.append("closed")


class Clocks:
    def __init__(self) -> None:
        self.time_ns = time.time_ns()
        self.runs = False

    def time_of_age_ns(self) -> int:
        return self.time_ns

    def start(self) -> None:
        self.runs = True

    async def close(self) -> None:
        self.runs = False


class FakeWorkers(list[Any]):
    everything = True

    def __init__(self, workers: list[Any]) -> None:
        super().__init__(workers)
        self.clocks = Clocks()

    def has_everything(self, worker: Any) -> bool:
        return self.everything


async def test_housekeeping_compaction_waiting_for_a_flush_does_not_delay_other_partitions(tmp_path: Path) -> None:
    slow, other = FakeWorker("a"), FakeWorker("b")
    put_off: list[Any] = []
    slow.flusher.alone = lambda work: put_off.append(work) or True
    keeping = Housekeeping(FakeWorkers([slow, other]), 1.0, tmp_path, pytest.fail)  # type: ignore[arg-type]
    await keeping._clean()
    assert ("complete" in slow.done, "complete" in other.done) == (False, True)
    (work,) = put_off
    work()
    assert slow.done[-2:] == ["complete", "told"]
    for error, said in ((CorruptionError("flip"), "damage"), (StorageError("no"), "closed")):
        slow.log.complete_compaction = lambda compaction, error=error: (_ for _ in ()).throw(error)
        work()
        assert slow.done[-1] == said, "nobody hears of an error there but who is told"


@pytest.mark.parametrize("error", [None, LogClosedError("closed"), StorageError("its file is gone"), CorruptionError("a flip")])
async def test_housekeeping_of_a_partition_closed_during_its_compaction_reports_no_failure(
    error: LiftError | None, tmp_path: Path
) -> None:
    one, other = FakeWorker("a"), FakeWorker("b")

    def run() -> None:
        one.has_ended = other.has_ended = True
        if error is not None:
            raise error

    def gone() -> None:
        one.done.append("abandoned")
        raise StorageError("its folder is gone")

    def closed(now: int, min_dirty_ratio: float) -> None:
        raise LogClosedError("closed")

    one.compaction = SimpleNamespace(run=run, abandon=gone)
    other.log.begin_compaction = closed
    await Housekeeping(FakeWorkers([one, other]), 1.0, tmp_path, pytest.fail)._clean()  # type: ignore[arg-type]
    assert one.done == ["retention", *([] if error else ["abandoned"])]
    assert other.done == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (CorruptionError("a flip"), ["damage"]),
        (StorageError("no"), ["closed"]),
        (NoSpaceError("full"), ["closed"]),
        (LiftError("x"), []),
    ],
)
async def test_housekeeping_reports_damage_found_by_compaction(error: LiftError, told: list[str], tmp_path: Path) -> None:
    one = FakeWorker("a")

    def run() -> None:
        raise error

    one.compaction = SimpleNamespace(run=run)
    await Housekeeping(FakeWorkers([one]), 1.0, tmp_path, pytest.fail)._compact(one)  # type: ignore[arg-type]
    assert one.done == told


@pytest.mark.parametrize("fails_at", ["run", "complete"])
async def test_housekeeping_repeats_a_compaction_without_space_less_and_less_often(
    fails_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run reads its segments before it knows that there is no space."""
    monkeypatch.setattr(housekeeping, "RETENTION_EVERY_S", 0.002)
    one, runs, has_space = FakeWorker("a"), list[float](), False

    def fails(at: str) -> int:
        runs.extend([time.monotonic()] * (at == "run"))
        if at == fails_at and not has_space:
            raise NoSpaceError("full")
        return 1

    one.compaction = SimpleNamespace(run=lambda: fails("run"))
    one.log.complete_compaction = lambda compaction: fails("complete")
    keeping = Housekeeping(FakeWorkers([one]), 1.0, tmp_path, pytest.fail)  # type: ignore[arg-type]
    keeping.start()
    await until(lambda: len(runs) >= 2)
    await asyncio.sleep(0.6)
    assert len(runs) <= 12
    has_space = True
    await until(lambda: "told" in one.done)
    runs.clear()
    await until(lambda: len(runs) > 20)
    await keeping.close()


async def test_housekeeping_repeats_a_failed_checkpoint_although_the_high_watermark_has_not_changed(tmp_path: Path) -> None:
    """A log that was opened on a full disk accepts no records, so its HW cannot rise, before its checkpoint is stored [S1]."""
    one, failed = FakeWorker("a"), FakeWorker("b")
    one.disk_is_full = failed.disk_is_full = True
    keeping = Housekeeping(FakeWorkers([one, failed]), 1.0, tmp_path, pytest.fail)  # type: ignore[arg-type]
    for is_full in (True, True, False, False):
        one.disk_is_full = is_full
        await keeping._checkpoints()
        failed.storage_failed = True
    assert one.done == ["checkpoint"] * 3
    assert failed.done == ["checkpoint"], "a failed log waits for the restart of the node"


async def test_housekeeping_deletes_old_records_and_stores_checkpoints_during_a_long_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "RETENTION_EVERY_S", 0.002)
    slow, counted, other = FakeWorker("a"), FakeWorker("b"), FakeWorker("c")
    slow.config, counted.config = (
        StreamConfig(retention_bytes=1, compaction=True),
        StreamConfig(retention_bytes=1, max_per_subject=1),
    )
    for worker in (slow, counted, other):
        begun, may_end = threading.Event(), threading.Event()
        worker.compaction = SimpleNamespace(run=lambda begun=begun, may_end=may_end: begun.set() or may_end.wait())
        worker.begun, worker.may_end = begun, may_end
    keeping = Housekeeping(FakeWorkers([slow, counted, other]), 0.001, tmp_path, pytest.fail)  # type: ignore[arg-type]
    keeping.start()
    for worker, waits in ((slow, False), (counted, True)):
        await until(worker.begun.is_set)
        for one in (slow, counted, other):
            one.done.clear()
            one.high_watermark += 1
        await until(lambda: other.done.count("retention") > 2 and "checkpoint" in other.done)
        assert "checkpoint" in worker.done
        assert ("retention" in worker.done) is not waits, "the counts of subjects would not fit the remaining records"
        assert not other.begun.is_set(), "compactions run one after another"
        monkeypatch.setattr(housekeeping, "RETENTION_WAIT_S", 0.0)
        await until(lambda worker=worker: "retention" in worker.done)  # type: ignore[misc]
        monkeypatch.setattr(housekeeping, "RETENTION_WAIT_S", 600.0)
        worker.may_end.set()
    other.may_end.set()
    await keeping.close()


async def test_housekeeping_deletes_segments_of_other_logs_while_one_log_has_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless, other = FakeWorker("a"), FakeWorker("b")
    endless.apply_retention = lambda now: endless.done.append("retention") or True  # type: ignore[method-assign, assignment, func-returns-value]
    monkeypatch.setattr(housekeeping, "RETENTION_EVERY_S", 0.02)
    for _ in range(2):
        await Housekeeping(FakeWorkers([endless, other]), 1.0, tmp_path, pytest.fail)._retention()  # type: ignore[arg-type]
    assert len(endless.done) > 4
    assert other.done == ["retention"] * 2


async def test_housekeeping_repeats_retention_of_a_partition_while_it_deletes_segments(tmp_path: Path) -> None:
    one, moves = FakeWorker("a"), [True, True, False]
    one.config, one.quarantined_files = StreamConfig(retention_bytes=1), ()
    one.apply_retention = lambda now: moves.pop(0)  # type: ignore[method-assign, assignment]
    await Housekeeping(FakeWorkers([one]), 1.0, tmp_path, pytest.fail)._retention()  # type: ignore[arg-type]
    assert moves == []


async def test_housekeeping_of_a_log_that_a_full_disk_has_closed_runs_only_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "RETENTION_EVERY_S", 0.002)
    full, broken, rolling = FakeWorker("a"), FakeWorker("b"), FakeWorker("c")
    full.storage_failed = broken.storage_failed = rolling.storage_failed = True
    full.log.closed, full.log.is_full, broken.log.closed = "no space left on device", True, "I/O error"
    keeping = Housekeeping(FakeWorkers([full, broken, rolling]), 0.001, tmp_path, pytest.fail)  # type: ignore[arg-type]
    keeping.start()
    await until(lambda: len(full.done) >= 2)
    await keeping.close()
    assert (set(full.done), broken.done) == ({"retention"}, [])
    assert set(rolling.done) == {"retention"}, "a full disk at a roll stops the partition, and leaves the log open"


async def test_housekeeping_deletes_nothing_in_the_round_that_restarts_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restart may come before the state of the deleted records is stored [A16]."""
    monkeypatch.setattr(housekeeping, "RETENTION_EVERY_S", 0.002)
    now_s = itertools.count(0.0, 100.0)
    only_in(monkeypatch, housekeeping, "time", monotonic=lambda: next(now_s))
    full, reasons = FakeWorker("a"), []
    full.no_space = full.storage_failed = True
    keeping = Housekeeping(FakeWorkers([full]), 0.001, tmp_path, reasons.append)  # type: ignore[arg-type]
    monkeypatch.setattr(housekeeping.shutil, "disk_usage", lambda _: SimpleNamespace(total=LARGE, free=LARGE))
    keeping.start()
    await until(lambda: len(reasons) >= 2)
    await keeping.close()
    assert full.done == []


MIB = 1 << 20


LARGE = 1 << 40


@pytest.mark.parametrize(
    ("no_space", "total", "free", "uptime_s", "comes_back"),
    [
        (True, LARGE, SPACE_AGAIN_BYTES, 61.0, True),
        (True, LARGE, SPACE_AGAIN_BYTES - 1, 61.0, False),
        (True, LARGE, SPACE_AGAIN_BYTES, 59.0, False),
        (False, LARGE, SPACE_AGAIN_BYTES, 61.0, False),
        (True, 64 * MIB, 4 * MIB, 61.0, True),
        (True, 64 * MIB, 3 * MIB, 61.0, False),
        (True, 5 * 1024 * MIB, 255 * MIB, 61.0, False),
    ],
)
async def test_housekeeping_restarts_partitions_stopped_by_a_full_disk_when_space_is_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_space: bool, total: int, free: int, uptime_s: float, comes_back: bool
) -> None:
    monkeypatch.setattr(housekeeping.shutil, "disk_usage", lambda _: SimpleNamespace(total=total, free=free))
    assert await restarts(monkeypatch, tmp_path, no_space=no_space, uptime_s=uptime_s) is comes_back
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("files", "free_files", "comes_back"),
    [(1 << 30, 1024, True), (1 << 30, 1023, False), (1000, 50, True), (1000, 49, False), (0, 0, True)],
)
async def test_housekeeping_does_not_restart_the_node_without_free_inodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: int, free_files: int, comes_back: bool
) -> None:
    monkeypatch.setattr(housekeeping.shutil, "disk_usage", lambda _: SimpleNamespace(total=LARGE, free=LARGE))
    only_in(monkeypatch, housekeeping, "os", statvfs=lambda _: SimpleNamespace(f_files=files, f_favail=free_files))
    assert await restarts(monkeypatch, tmp_path) is comes_back


async def test_housekeeping_does_not_restart_the_node_above_a_quota(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(_: Path) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(housekeeping.shutil, "disk_usage", lambda _: SimpleNamespace(total=LARGE, free=LARGE))
    monkeypatch.setattr(housekeeping, "write_space_probe", fails)
    assert not await restarts(monkeypatch, tmp_path)


async def restarts(monkeypatch: pytest.MonkeyPatch, folder: Path, *, no_space: bool = True, uptime_s: float = 61.0) -> bool:
    """Return whether the node restarts at the first check of the space in ``folder``."""
    now = [1000.0]
    only_in(monkeypatch, housekeeping, "time", monotonic=lambda: now[0])
    workers: Any = [SimpleNamespace(key="orders/0", no_space=no_space)]
    reasons: list[str] = []
    keeping = Housekeeping(workers, 1.0, folder, reasons.append)
    now[0] += uptime_s
    await keeping._check_space()
    assert all("orders/0" in reason for reason in reasons)
    return bool(reasons)
