"""Test snapshot files on disk: locks, flushes, quarantine and retention [S16]."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from liftpy.core.services.effects import EffectCause, PendingEffects
from liftpy.core.services.snapshot import Identity, ReplayPoint, Section, Snapshot
from liftpy.core.services.versions import encode_section
from liftpy.errors import StorageError, UnknownFormatError
from liftpy.service.snapshots import SnapshotStore, _digest

WHO = Identity("bank", "orders", "u7", 0)


def store(folder: Path, kept: int = 2) -> SnapshotStore:
    return SnapshotStore(folder, WHO, kept=kept, max_bytes=10_000)


def snapshot(position: int, outputs: int = 0) -> Snapshot:
    return Snapshot(WHO, position, 1, 0, outputs, (), b"state %d" % position)


def test_service_snapshot_store_opened_by_the_next_process_returns_the_newest_snapshot(tmp_path: Path) -> None:
    first = store(tmp_path)
    assert first.newest() is None
    for position in (10, 20, 30):
        first.save(snapshot(position), compared_end=100)
    second = store(tmp_path)
    assert second.newest() == snapshot(30)
    assert second.positions() == [20, 30]
    assert second.newest(lambda s: s.position < 30) == snapshot(20)


def test_service_snapshot_store_keeps_the_newest_snapshot_before_unwritten_outputs(tmp_path: Path) -> None:
    found = store(tmp_path)
    for position in range(10, 100, 10):
        found.save(snapshot(position, outputs=position), compared_end=25)
    assert found.positions() == [20, 80, 90]
    found.save(snapshot(100, outputs=100), compared_end=95)
    assert found.positions() == [90, 100]


def test_service_snapshot_store_keeps_the_oldest_snapshot_until_outputs_are_compared(tmp_path: Path) -> None:
    found = store(tmp_path)
    for position in range(10, 60, 10):
        found.save(snapshot(position, outputs=position), compared_end=0)
    assert found.positions() == [10, 40, 50]
    found.save(snapshot(60, outputs=60), compared_end=15)
    assert found.positions() == [10, 50, 60]
    found.save(snapshot(70, outputs=70), compared_end=65)
    assert found.positions() == [60, 70]


@pytest.mark.parametrize("damage", [b"", b"LIFTSNAP", b"x" * 200])
def test_service_snapshot_store_quarantines_a_damaged_snapshot_and_returns_the_older_snapshot(
    tmp_path: Path, damage: bytes
) -> None:
    found = store(tmp_path)
    found.save(snapshot(10), 0)
    found.save(snapshot(20), 0)
    newest = found.folder / f"{20:020d}.snapshot"
    newest.write_bytes(damage)
    assert found.newest() == snapshot(10)
    assert newest.with_suffix(".damaged").exists()
    found.save(snapshot(20), 0)
    assert found.newest() == snapshot(20)


def test_service_snapshot_store_restores_a_quarantined_snapshot_that_can_be_read_again(tmp_path: Path) -> None:
    """Commit 6ef61ecd quarantined whole files."""
    found = store(tmp_path)
    found.save(snapshot(10), 0)
    found.save(snapshot(20), 0)
    for position in (10, 20):
        path = found.folder / f"{position:020d}.snapshot"
        path.rename(path.with_suffix(".damaged"))
    assert store(tmp_path).newest(lambda s: s.position < 20) == snapshot(10)
    assert store(tmp_path).newest() == snapshot(20)
    assert found.positions() == [10, 20]


def test_service_snapshot_store_deletes_quarantined_snapshots_past_the_log_end(tmp_path: Path) -> None:
    found = store(tmp_path)
    found.save(snapshot(10), 0)
    path = found.folder / f"{10:020d}.snapshot"
    path.rename(path.with_suffix(".damaged"))
    found.drop_above(9)
    assert found.newest() is None


UNREADABLE = replace(snapshot(20), sections=((Section.ANSWERS, b"what no reader takes"),))


def test_service_snapshot_store_keeps_older_snapshots_if_the_new_snapshot_cannot_be_read_back(tmp_path: Path) -> None:
    found = store(tmp_path)
    found.save(snapshot(10), 0)
    with pytest.raises(StorageError, match="not stored"):
        found.save(UNREADABLE, 0)
    assert found.positions() == [10]
    assert store(tmp_path).newest() == snapshot(10)


def test_service_snapshot_store_on_a_disk_that_loses_a_write_does_not_store_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = store(tmp_path)
    found.save(snapshot(10), 0)
    older, read = snapshot(10).encode(), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: older if path.suffix == ".tmp" else read(path))
    with pytest.raises(StorageError, match="differs from what was written"):
        found.save(snapshot(20), 0)
    assert found.positions() == [10]


def test_service_snapshot_store_with_a_snapshot_of_a_newer_format_raises_and_keeps_the_file(tmp_path: Path) -> None:
    found = store(tmp_path)
    found.save(snapshot(10), 0)
    path = found.folder / f"{10:020d}.snapshot"
    data = bytearray(path.read_bytes())
    data[8] = 9
    path.write_bytes(bytes(data))
    with pytest.raises(UnknownFormatError):
        found.newest()
    assert path.read_bytes() == bytes(data)


def test_service_snapshot_store_after_a_truncation_deletes_snapshots_above_it(tmp_path: Path) -> None:
    found = store(tmp_path, kept=5)
    for position in (10, 20, 30):
        found.save(snapshot(position), 0)
    found.drop_above(20)
    assert found.positions() == [10, 20]
    with pytest.raises(StorageError, match="max_snapshot_bytes"):
        found.save(Snapshot(WHO, 40, 1, 0, 0, (), b"x" * 20_000), 0)


def test_service_snapshot_store_deletes_files_of_interrupted_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = store(tmp_path)
    for name in ("20.tmp", "30.incoming"):
        (found.folder / name).write_bytes(b"half")
    found = store(tmp_path)
    assert list(found.folder.iterdir()) == []

    def refused(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(StorageError, match="no space left"):
        found.save(snapshot(40), 0)
    assert list(found.folder.iterdir()) == [], "the disk is full"


@pytest.mark.parametrize("what", ["newest", "drop_above", "set_aside"])
def test_service_snapshot_store_on_a_read_only_disk_raises_storage_error(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = store(tmp_path)
    found.save(snapshot(10), compared_end=0)
    if what == "newest":
        path = next(tmp_path.rglob("*10*"))
        path.write_bytes(path.read_bytes()[:-1])

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "read-only file system")

    for name in ("rename", "unlink"):
        monkeypatch.setattr(Path, name, refused)
    ways = {
        "newest": found.newest,
        "drop_above": lambda: found.drop_above(5),
        "set_aside": lambda: found.set_aside(lambda _: True),
    }
    with pytest.raises(StorageError, match="read-only file system"):
        ways[what]()


@pytest.mark.parametrize("way", ["own", "of another node"])
def test_service_snapshot_store_renames_a_snapshot_only_after_its_flush(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = store(tmp_path)
    data = snapshot(10).encode()
    done: list[object] = []
    sync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        status = os.fstat(descriptor)
        done.append(status.st_size if stat.S_ISREG(status.st_mode) else "names")
        sync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        done.append(target.name)
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    if way == "own":
        found.save(snapshot(10), 0)
    else:
        incoming = found.receive_snapshot(10)
        incoming.write(data[:7])
        incoming.write(data[7:])
        incoming.finish(_digest(data).digest())
    assert done == [len(data), f"{10:020d}.snapshot", "names"]
    assert found.newest() == snapshot(10)


def test_service_snapshot_store_flushes_all_new_directories_of_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(
        "liftpy.service.snapshots._flush_names", lambda folder: flushed.append(str(folder.relative_to(tmp_path)))
    )
    data = tmp_path / "new" / "data"
    found = store(data)
    below = ["new/data/bank/orders-u7", "new/data/bank", "new/data", "new"]
    assert flushed == [*below, "."], "those that were made, up to one that was there"
    flushed.clear()
    assert store(data).folder == found.folder == data / "bank" / "orders-u7" / "0"
    assert flushed == below, "a process may have died before it flushed them; what is above the data folder is not its own"
    assert [path.stat().st_mode & 0o777 for path in (found.folder, data)] == [0o750, 0o750]


def test_service_snapshot_store_names_the_snapshots_from_which_a_replay_can_start(tmp_path: Path) -> None:
    effects = PendingEffects("")
    effects.add("charge", b"7", None, EffectCause(0, 1), is_offer=False, output_count=0)
    effects.end(0)
    sections = ((Section.PARAMETERS, b"p" * 16), (Section.EFFECTS, effects.encode()), (Section.VERSION, encode_section(3)))
    files = store(tmp_path, kept=4)
    for one in (snapshot(5), replace(snapshot(10, outputs=2), sections=sections), snapshot(15, outputs=4)):
        files.save(one, 0)
    path = next(path for path in files.folder.iterdir() if path.stem.endswith("15"))
    path.write_bytes(path.read_bytes()[:60])
    assert files.replay_points() == [ReplayPoint(5, 0, 0, 1), ReplayPoint(10, 2, 1, 3)]
