"""Test the mmap cache of sealed segments and the budget that follows from the limit of open files [L6]."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.wire.batch import split_batches
from liftpy.errors import StorageError
from sidecar.disk import files
from sidecar.disk.files import RESERVE, DirectoryStorage, DiskFile, OpenMaps, budget_of, open_count, raise_limit
from tests.batches import build_batch
from tests.open_files import open_files

SEGMENTS = 60


def filled(folder: Path, maps: OpenMaps, segments: int = SEGMENTS) -> Log:
    log, _ = Log.open(DirectoryStorage(folder, maps), StreamConfig(segment_bytes=4096))
    for number in range(segments):
        log.append(build_batch([bytes([number]) * 4000], base_offset=number))
        log.flush()
    log.raise_high_watermark(segments - 1)
    return log


def read_all(log: Log) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < log.log_end_offset:
        chunks = log.read(len(found), 4096).chunks
        found += [value for chunk in chunks for batch in split_batches(chunk) for value in batch.values()]
    return found


def test_mmap_cache_reads_many_segments_with_few_file_descriptors(tmp_path: Path) -> None:
    maps = OpenMaps(8)
    logs = [filled(tmp_path / name, maps) for name in ("a", "b", "c")]
    wanted = [bytes([number]) * 4000 for number in range(SEGMENTS)]
    for log in logs:
        assert read_all(log) == wanted
        assert len(open_files(tmp_path)) <= len(logs) + maps.bound
        assert len(maps) <= maps.bound
    for log in logs:
        log.close()
    assert open_files(tmp_path) == []
    reopened, _ = Log.open(DirectoryStorage(tmp_path / "a", maps), StreamConfig(segment_bytes=4096))
    assert len(open_files(tmp_path)) == 1
    assert read_all(reopened) == wanted
    reopened.close()


def test_mmap_cache_view_stays_readable_after_eviction_deletion_and_close(tmp_path: Path) -> None:
    log = filled(tmp_path, OpenMaps(1))
    (view,) = log.read(0, 4096).chunks
    read_all(log)
    log.drop_prefix(SEGMENTS - 1)
    log.close()
    assert split_batches(view)[0].values() == [bytes(4000)]


def test_log_read_of_a_mapped_page_that_the_disk_cannot_read_raises_storage_error(tmp_path: Path) -> None:
    """A file that became shorter under its map. An access to such a page ends the process, as an access to a bad sector does."""
    with mmap.mmap(-1, mmap.PAGESIZE) as anonymous:
        try:
            anonymous.madvise(22, 0, mmap.PAGESIZE)  # MADV_POPULATE_READ
        except OSError:
            pytest.skip("the kernel is older than 5.14")
    log = filled(tmp_path, OpenMaps(2), 3)
    assert log.read(0, 1).size_bytes > mmap.PAGESIZE / 2
    os.truncate(tmp_path / f"{0:020d}.log", 0)
    with pytest.raises(StorageError, match="Input/output error"):
        log.read(0, 1)
    assert log.read(1, 1).next_offset == 2, "the other segments can be read"


def test_mmap_cache_at_the_descriptor_limit_closes_old_maps_and_still_reads_files(tmp_path: Path) -> None:
    """In a process of its own, whose limit is lowered."""
    script = f"""
import resource, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from tests.unit.disk.test_descriptors import filled, read_all
from sidecar.disk.files import open_count
from sidecar.disk.files import OpenMaps
log = filled(Path({str(tmp_path)!r}), OpenMaps(10_000), 40)
limit = open_count() + 20
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
for _ in range(2):
    assert len(read_all(log)) == 40
print("read")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "read\n", done.stderr


@pytest.mark.parametrize(("number", "again"), [(errno.EMFILE, True), (errno.ENFILE, True), (errno.EACCES, False)])
def test_mmap_cache_at_the_descriptor_limit_is_emptied_and_the_open_retried(
    number: int, again: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    maps = OpenMaps()
    sealed = DiskFile(tmp_path / "sealed", create=True, maps=maps)
    sealed.append([b"x" * 100])
    sealed.seal()
    view = sealed.read(0, 3)
    assert len(maps) == 1
    real, tries = os.open, []

    def refuses_once(path: Any, flags: int, *more: Any) -> int:
        tries.append(not len(maps))
        if len(tries) == 1:
            raise OSError(number, "too many")
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", refuses_once)
    if again:
        DiskFile(tmp_path / "more", create=True, maps=maps).close()
        assert tries == [False, True]
    else:
        with pytest.raises(StorageError):
            DiskFile(tmp_path / "more", create=True, maps=maps)
        assert tries == [False]
    monkeypatch.undo()
    assert bytes(view) == b"xxx"
    assert bytes(sealed.read(0, 100)) == b"x" * 100, "it is mapped again"
    sealed.close()


def test_descriptor_limit_is_raised_to_the_hard_limit_and_sets_the_cache_size() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
        assert raise_limit().limit == min(hard, 1 << 20) or hard == resource.RLIM_INFINITY
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for limit in (256, 1024, 4096, 20_000, 1 << 20):
        budget = budget_of(limit)
        assert budget.partitions >= 1
        if limit > 1000:
            assert budget.partitions + budget.maps + RESERVE < limit
    assert budget_of(20_000).partitions >= 10_000


def test_open_descriptor_count_on_a_system_without_proc_is_minus_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def listdir(path: str) -> list[str]:
        assert path == "/proc/self/fd"
        if not told:
            raise FileNotFoundError
        return told

    monkeypatch.setattr(files, "os", SimpleNamespace(listdir=listdir))
    told = ["0", "1", "2", "7"]
    assert open_count() == 3, "less the one that looks"
    told = []
    assert open_count() == -1
