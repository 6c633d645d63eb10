"""Test how long quarantined segments stay after a recovery."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from liftpy.config import StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.recovery import MAX_QUARANTINED_FILES, delete_quarantined_files, quarantine, quarantined_names, recover
from liftpy.core.log.small_files import CHECKPOINT_NAME, Checkpoint, encode_checkpoint
from liftpy.core.log.storage import MemoryStorage
from liftpy.errors import NoSpaceError, StorageError
from sidecar.disk.files import DirectoryStorage
from tests.batches import build_batch

SMALL = StreamConfig(segment_bytes=4096)


def a_log(storage: MemoryStorage | DirectoryStorage, count: int = 60, first: int = 0) -> list[str]:
    """Flushed, over several segments; return their names."""
    log, _ = Log.open(storage, SMALL)
    for offset in range(first, first + count):
        log.append(build_batch([b"x" * 300], base_offset=offset, leader_epoch=1))
    log.flush()
    log.close()
    return [name for name in storage.names() if name.endswith(".log")]


def flip(storage: MemoryStorage, name: str) -> None:
    storage.files[name].data[700] ^= 1
    storage.files.pop(name.replace(".log", ".index"), None)  # or a sealed segment is not looked at


def note_calls(storage: MemoryStorage, told: list[int]) -> None:
    told.append(storage.calls)


def test_quarantine_renames_the_damaged_segment_and_all_later_segments() -> None:
    storage = MemoryStorage()
    segments = a_log(storage)
    assert len(segments) > 4
    flip(storage, segments[1])
    log, report = Log.open(storage, SMALL)
    behind = tuple(f"{name}.behind-0" for name in segments[2:])
    assert report.quarantined_files == tuple(sorted((f"{segments[1]}.damaged-0", *behind)))
    assert report.must_leave_isr
    log.close()
    log, report = Log.open(storage, SMALL)
    assert report.quarantined_files, "they are known after the next start, too"
    assert not report.damage
    kept = {name: bytes(file.data) for name, file in storage.files.items() if ".behind-" not in name}
    assert delete_quarantined_files(storage) == tuple(sorted(behind))
    assert {name: bytes(file.data) for name, file in storage.files.items()} == kept
    assert delete_quarantined_files(storage) == ()
    log.close()


def test_quarantine_interrupted_at_any_step_keeps_the_records_before_the_damage() -> None:
    """Recovery calls ``before_loss`` before it changes a file, because the next recovery may find no damage [S7]."""
    whole = MemoryStorage()
    segments = a_log(whole)
    flip(whole, segments[1])
    whole.sync_folder()
    (damage,) = recover(whole.crash()).report.damage
    for calls in range(100):
        storage = whole.crash()
        told: list[int] = []
        storage.fail_after(calls)
        try:
            recover(storage, before_loss=partial(note_calls, storage, told))
        except StorageError:
            pass
        else:
            break
        for power in (False, True):
            after = storage.crash(power=power)
            assert told[:1] == [0]
            log, _ = Log.open(after, SMALL)
            assert log.log_end_offset == damage.first_offset, f"after {calls} calls, {power=}"
    assert calls > 10


@pytest.mark.parametrize("room", [0, 400, 1000])
def test_quarantine_on_a_full_disk_truncates_damage_without_valid_batches_behind(room: int) -> None:
    storage = MemoryStorage()
    last = a_log(storage)[-1]
    storage.files[last].data[-10] ^= 1
    size_bytes = len(storage.files[last].data)
    storage.capacity_bytes = storage.used_bytes() + room
    log, report = Log.open(storage, SMALL, clean=True)
    assert (len(report.damage), report.lost_flushed, log.log_end_offset) == (1, False, 59)
    assert len(storage.files[last].data) == log.segments[-1].size_bytes < size_bytes
    assert report.quarantined_files == ((f"{last}.damaged-0",) if room else ())
    assert not [name for name in storage.names() if name.endswith((".tmp", ".valid"))]
    log.close(clean=False)
    assert Log.open(storage.crash(), SMALL)[0].log_end_offset == 59


def test_log_that_lost_committed_records_on_a_full_disk_appends_nothing_before_its_checkpoint_is_stored() -> None:
    """Otherwise the next recovery would count the appended records as durable [S1]."""
    storage = MemoryStorage()
    last = a_log(storage)[-1]
    storage.replace(CHECKPOINT_NAME, encode_checkpoint(Checkpoint(high_watermark=59)))
    storage.files[last].data[-10] ^= 1
    storage.capacity_bytes = 0
    log, report = Log.open(storage, SMALL)
    assert (report.lost_committed, log.log_end_offset) == (True, 59)
    batch = build_batch([b"x" * 300], base_offset=59, leader_epoch=1)
    with pytest.raises(NoSpaceError):
        log.append(batch)
    assert not log.closed
    storage.capacity_bytes = 1 << 20
    log.checkpoint()
    log.append(batch)
    again, _ = Log.open(storage.crash(power=False), SMALL)
    assert Log.open(again.storage.crash(), SMALL)[0].log_end_offset == again.log_end_offset == 60


@pytest.mark.parametrize("room", [0, 300])
def test_quarantine_on_a_full_disk_never_loses_valid_batches_behind_the_damage(room: int) -> None:
    storage = MemoryStorage()
    first = a_log(storage, count=8)[0]
    flip(storage, first)
    storage.capacity_bytes = storage.used_bytes() + room
    before, calls = bytes(storage.files[first].data), storage.calls
    with pytest.raises(NoSpaceError):
        recover(storage)
    assert bytes(storage.files[first].data) == before
    assert storage.calls == calls, "other partitions need the rest of the disk, and the opening is tried again and again"
    storage.capacity_bytes += 4096
    assert recover(storage).report.quarantined_files == (f"{first}.damaged-0",)


def test_quarantine_in_a_directory_without_free_space_writes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = a_log(storage := DirectoryStorage(tmp_path), count=8)[0]
    data = bytearray((tmp_path / first).read_bytes())
    data[700] ^= 1
    (tmp_path / first).write_bytes(data)
    made: list[str] = []
    monkeypatch.setattr(DirectoryStorage, "create", lambda storage, name: made.append(name))
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=0, f_frsize=4096))
    with pytest.raises(NoSpaceError, match="0 bytes are free"):
        recover(storage)
    assert made == []


def test_quarantine_of_repeated_damage_retains_a_bounded_number_of_files() -> None:
    storage = MemoryStorage()
    for _ in range(3):
        segments = a_log(storage, first=Log.open(storage, SMALL)[0].log_end_offset)
        flip(storage, segments[-2])
        flip(storage, segments[-3])
        log, _ = Log.open(storage, SMALL)
        log.close()
        delete_quarantined_files(storage)
    names = quarantined_names(storage.names())
    assert 1 < len(names) <= MAX_QUARANTINED_FILES
    assert all(".damaged-" in name for name in names)


def test_quarantine_of_the_same_segment_twice_uses_two_file_names() -> None:
    storage = MemoryStorage()
    (name, *_) = a_log(storage, 3)
    first = bytes(storage.files[name].data)
    quarantine(storage, 0, "damaged")
    storage.create(name).append([b"other"])
    quarantine(storage, 0, "damaged")
    assert bytes(storage.files[f"{name}.damaged-0"].data) == first
    assert bytes(storage.files[f"{name}.damaged-1"].data) == b"other"
    assert quarantined_names(storage.names()) == (f"{name}.damaged-0", f"{name}.damaged-1")


def test_quarantine_ignores_names_of_other_files() -> None:
    names = ["00000000000000000000.log", "notes.log.damaged-0", "00000000000000000000.log.damaged-x", "7.log.behind-3"]
    assert quarantined_names(names) == ("7.log.behind-3",)
