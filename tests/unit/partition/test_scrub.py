"""Test the scrub over real files: sealed segments in order, from the stored position."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from liftpy.config import StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.segment import log_name
from sidecar.disk.files import DirectoryStorage
from sidecar.partition import scrub as scrub_module
from sidecar.partition.scrub import Scrub
from tests.batches import build_batch
from tests.only_in import only_in
from tests.until import until

FAST = 1 << 30


@dataclass
class Partition:
    """What the scrub sees of one."""

    key: str
    log: Log
    storage_failed: bool = False
    told: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log.on_damage = self.damaged

    def damaged(self, error: Exception) -> None:
        self.told.append(error)
        self.storage_failed = True


def partition(folder: Path, name: str) -> Partition:
    """Two sealed segments and an active one."""
    log, _ = Log.open(DirectoryStorage(folder / name), StreamConfig())
    for number in range(9):
        log.append(build_batch([b"x" * 9000], base_offset=number, leader_epoch=1))
        if number in (2, 5):
            log.roll()
    log.flush()
    return Partition(name, log)


def flip(folder: Path, name: str, base: int, position: int = 5000) -> None:
    path = folder / name / log_name(base)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    with path.open("r+b") as file:
        file.write(data)


def scrub_of(folder: Path, *partitions: Partition, bytes_per_s: int = FAST) -> tuple[Scrub, Counter[str]]:
    counters: Counter[str] = Counter()
    return Scrub(partitions, folder, bytes_per_s, counters), counters  # type: ignore[arg-type]


async def test_scrub_pass_reads_each_byte_once_and_the_next_pass_waits(tmp_path: Path) -> None:
    a, b = partition(tmp_path, "a"), partition(tmp_path, "b")
    scrub, _ = scrub_of(tmp_path, a, b)
    size_bytes = a.log.size_bytes + b.log.size_bytes
    sealed_bytes = size_bytes - sum(p.log.segments[-1].size_bytes for p in (a, b))
    scrub.start()
    await until(lambda: scrub.progress.last_full_pass_s > 0)
    assert scrub.checked_bytes == size_bytes + sealed_bytes, "what had just been sealed was read twice"
    assert not any(segment.awaits_scrub for p in (a, b) for segment in p.log.segments)
    await asyncio.sleep(0)
    await scrub.close()
    assert scrub.report()["findings"] == 0
    assert scrub_of(tmp_path)[0].progress == scrub.progress, "a restart does not begin another pass"


async def test_scrub_damage_is_reported_and_counted_once(tmp_path: Path) -> None:
    a, b = partition(tmp_path, "a"), partition(tmp_path, "b")
    flip(tmp_path, "b", 3)
    scrub, counters = scrub_of(tmp_path, a, b)
    scrub.start()
    await until(lambda: bool(b.told))
    await scrub.close()
    assert counters["scrub_damage"] == 1
    assert not a.told
    again = scrub_of(tmp_path)[0].report()
    assert again["findings"] == 1
    assert again["last_finding"].startswith("b: 00000000000000000003.log")


async def test_scrub_of_the_next_process_resumes_at_the_stored_position(tmp_path: Path) -> None:
    a = partition(tmp_path, "a")
    for segment in a.log.segments:
        segment.awaits_scrub = False
    scrub, _ = scrub_of(tmp_path, a, bytes_per_s=100_000)
    scrub.start()
    await until(lambda: scrub.progress.base_offset == 3)
    await scrub.close()
    later, _ = scrub_of(tmp_path, a)
    assert (later.progress.partition, later.progress.base_offset) == ("a", 3)
    later.start()
    await until(lambda: later.progress.last_full_pass_s > 0)
    await later.close()
    assert later.checked_bytes <= sum(segment.size_bytes for segment in a.log.segments[1:])
    assert later.progress.pass_began_s == scrub.progress.pass_began_s


async def test_scrub_with_rate_zero_reads_no_segment(tmp_path: Path) -> None:
    a = partition(tmp_path, "a")
    (tmp_path / "scrub").write_bytes(b"torn")
    scrub, _ = scrub_of(tmp_path, a, bytes_per_s=0)
    scrub.start()
    await asyncio.sleep(0)
    assert scrub.report()["checked_bytes"] == 0
    await scrub.close()
    assert (tmp_path / "scrub").read_bytes() == b"torn"


async def test_scrub_continues_after_removed_segments_and_closed_logs(tmp_path: Path) -> None:
    a, b = partition(tmp_path, "a"), partition(tmp_path, "b")
    a.log.storage.remove(log_name(3))
    b.log.close()
    scrub, counters = scrub_of(tmp_path, a, b)
    scrub.start()
    await until(lambda: scrub.progress.last_full_pass_s > 0)
    await scrub.close()
    assert counters["scrub_interrupted"] >= 1
    assert not a.told


async def test_scrub_stopped_inside_a_segment_resumes_at_that_position(tmp_path: Path) -> None:
    log, _ = Log.open(DirectoryStorage(tmp_path / "a"), StreamConfig())
    for number in range(40):
        log.append(build_batch([b"x" * 9000], base_offset=number, leader_epoch=1))
    log.flush()
    scrub, _ = scrub_of(tmp_path, Partition("a", log), bytes_per_s=100_000)
    scrub.start()
    await until(lambda: scrub.progress.position > 0)
    position = scrub.progress.position
    assert position < log.size_bytes
    await scrub.close()
    assert scrub_of(tmp_path)[0].progress.position == position, "what comes behind it has not been read"


async def test_scrub_pauses_in_proportion_to_its_read_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000, 2000, 3))
    monkeypatch.setattr(scrub_module, "time", SimpleNamespace(monotonic=lambda: float(next(clock)), time=time.time))
    rested: list[float] = []

    async def rest(seconds: float) -> None:
        rested.append(seconds)

    only_in(monkeypatch, scrub_module, "asyncio", sleep=rest)
    one = partition(tmp_path, "a")
    scrub, _ = scrub_of(tmp_path, one)
    await scrub._scan(one, one.log.segments[0], 0, FAST, 19)
    assert rested == [3.0 * 19], "a thread that works 5 % of the time, however fast the disk is"
    await scrub.close()


async def test_scrub_skips_failed_and_closed_logs(tmp_path: Path) -> None:
    failed, well, closed = partition(tmp_path, "a"), partition(tmp_path, "b"), partition(tmp_path, "c")
    flip(tmp_path, "a", 0)
    flip(tmp_path, "c", 0)
    failed.storage_failed = True
    closed.log.close()
    scrub, counters = scrub_of(tmp_path, failed, well, closed)
    scrub.start()
    await until(lambda: scrub.progress.last_full_pass_s > 0)
    await scrub.close()
    assert (scrub.progress.findings, counters["scrub_damage"]) == (0, 0)
    assert scrub.checked_bytes >= well.log.size_bytes
