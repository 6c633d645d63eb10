"""Everything that makes something durable on real files: what it does, what it promises, and what has to be found afterwards.

``play`` works in a folder and says to the recorder what is promised when; ``holds`` opens what a power cut left, with the shipped code,
and raises AssertionError where a promise is broken. It also fails where the shipped code can't open it at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from liftpy.config import StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.log import Log
from liftpy.core.metadata.node_identity import DirectoryIdentity
from liftpy.core.services.snapshot import Identity, Snapshot
from liftpy.core.wire.batch import parse_batch, split_batches
from liftpy.errors import LiftError
from liftpy.service.snapshots import SnapshotStore
from sidecar.disk.data_folder import DataDirectory, NodeIdentity
from sidecar.disk.files import DirectoryCreator, DirectoryStorage, make_folder, replace_file
from sidecar.quorum.journal import GroupJournal
from sidecar.quorum.snapshot_file import SnapshotFile, load_snapshot_file, trim_journal, write_snapshot_file
from tests.batches import build_batch
from tests.unit.disk.recording import FILE, FOLDER, Recorder

BOTH = frozenset({FILE, FOLDER})


@dataclass(frozen=True)
class Primitive:
    """``needs``: the kinds of flushes without which a promise is broken."""

    play: Callable[[Recorder, Path], None]
    holds: Callable[[Path, list[Any]], None]
    needs: frozenset[str] = BOTH


# ---- small files ---------------------------------------------------------------------------------------------------------
def replaces(recorder: Recorder, folder: Path) -> None:
    for text in (b"one", b"two" * 1000, b"three"):
        replace_file(folder / "small", [text[:2], text[2:]])
        recorder.promise(text)


def is_replaced(folder: Path, promised: list[bytes]) -> None:
    texts = [b"one", b"two" * 1000, b"three"]
    path = folder / "small"
    if promised:
        assert path.read_bytes() in texts[len(promised) - 1 :]
    else:
        assert not path.exists() or path.read_bytes() == b"one"


def stores_identity(recorder: Recorder, folder: Path) -> None:
    data = DataDirectory(folder / "data")
    for incarnation in (1, 2, 3):
        data.store_identity(NodeIdentity("n1", incarnation, 0, DirectoryIdentity("f", incarnation, 7)))
        recorder.promise(incarnation)
    data.close()


def identity_is_there(folder: Path, promised: list[int]) -> None:
    data = DataDirectory(folder / "data")
    found = data.load_identity()
    data.close()
    assert (found.incarnation if found is not None else 0) >= (promised[-1] if promised else 0)


def changes_names(recorder: Recorder, folder: Path) -> None:
    storage = DirectoryStorage(folder / "log")
    storage.create("a").close()
    storage.sync_folder()
    recorder.promise("created")
    storage.rename("a", "b")
    storage.sync_folder()
    recorder.promise("renamed")
    storage.remove("b")
    storage.sync_folder()
    recorder.promise("removed")


def names_are_changed(folder: Path, promised: list[str]) -> None:
    left = sorted(path.name for path in (folder / "log").glob("*"))
    allowed = {"": (["a"], ["b"], []), "created": (["a"], ["b"], ["a", "b"]), "renamed": (["b"], []), "removed": ([],)}
    assert left in allowed[promised[-1] if promised else ""], left


# ---- folders -------------------------------------------------------------------------------------------------------------
def makes_folders(recorder: Recorder, folder: Path) -> None:
    make_folder(folder / "a" / "b" / "c")
    recorder.promise("a/b/c")
    os.mkdir(folder / "k", 0o750)
    os.mkdir(folder / "k" / "l", 0o750)  # who made them was killed before it flushed their names
    make_folder(folder / "k" / "l")
    recorder.promise("k/l")
    folders = DirectoryCreator()
    for name in ("s/x/0", "s/x/1", "s/y/0"):
        folders.make(folder / name)
        recorder.promise(name)


def folders_are_there(folder: Path, promised: list[str]) -> None:
    for name in promised:
        assert (folder / name).is_dir(), name


KEY = PartitionKey("orders", "u1", 0)


def deletes_a_partition(recorder: Recorder, folder: Path) -> None:
    data = DataDirectory(folder / "data")
    log, _ = Log.open(data.partition_storage(KEY), SMALL)
    _append(log, recorder, 3)
    log.close()
    recorder.promise("there")
    data.store_identity(NodeIdentity("n1", 1))
    recorder.promise("deleting")
    data.delete_partition(KEY)
    recorder.promise("deleted")
    data.close()


def partition_is_gone_or_whole(folder: Path, promised: list[Any]) -> None:
    path = folder / "data" / "streams" / "orders-u1" / "0"
    if "deleted" in promised:
        assert not path.exists()
    elif "there" in promised:
        assert path.exists() or "deleting" in promised
        if path.exists():
            log, _ = Log.open(DirectoryStorage(path), SMALL)
            assert log.log_end_offset == 3, "all of it, or nothing"


# ---- log -----------------------------------------------------------------------------------------------------------------
SMALL = StreamConfig(segment_bytes=4096)
_VALUE = b"v" * 900


def _batch(offset: int, epoch: int) -> bytes:
    return build_batch([b"%d/%d" % (offset, epoch) + _VALUE], base_offset=offset, leader_epoch=epoch, timestamp_ns=offset)


def _append(log: Log, recorder: Recorder, count: int, epoch: int = 1) -> None:
    for _ in range(count):
        log.append(_batch(log.log_end_offset, epoch))
    log.flush()
    recorder.promise(("flushed", log.log_end_offset, epoch))


def _values(log: Log) -> list[bytes]:
    data = b"".join(log.read(log.log_start_offset, 1 << 30, end_offset=log.log_end_offset).chunks)
    return [bytes(value or b"") for batch in split_batches(memoryview(data)) for value in batch.values()] if data else []


def appends(recorder: Recorder, folder: Path) -> None:
    log, _ = Log.open(DirectoryStorage(folder / "log"), SMALL)
    for _ in range(5):
        _append(log, recorder, 2)
        log.raise_high_watermark(log.newest_offset)
        log.checkpoint()
        recorder.promise(("hw", log.high_watermark))


def cuts_and_goes_on(recorder: Recorder, folder: Path) -> None:
    log, _ = Log.open(DirectoryStorage(folder / "log"), SMALL)
    _append(log, recorder, 9)
    recorder.promise(("cutting", 6))
    log.truncate_to(6)
    recorder.promise(("cut", 6))
    _append(log, recorder, 2, epoch=2)
    recorder.promise(("cutting", 1))
    log.truncate_to(1)
    recorder.promise(("cut", 1))
    _append(log, recorder, 1, epoch=5)


def begins_afresh(recorder: Recorder, folder: Path) -> None:
    log, _ = Log.open(DirectoryStorage(folder / "log"), SMALL)
    _append(log, recorder, 5)
    log.reset(100)
    recorder.promise(("start", 100))
    _append(log, recorder, 5, epoch=2)
    log.raise_high_watermark(102)
    log.drop_prefix(103)
    recorder.promise(("start", 103))


def opens_again(recorder: Recorder, folder: Path) -> None:
    """What a process that was killed left unflushed is flushed by the next one before it is shown."""
    log, _ = Log.open(DirectoryStorage(folder / "log"), SMALL)
    for offset in range(7):
        log.append(_batch(offset, 1))
    log, _ = Log.open(DirectoryStorage(folder / "log"), SMALL)
    recorder.promise(("flushed", log.log_end_offset, 1))
    _append(log, recorder, 1)


def _begins_with_a_batch(data: bytes) -> bool:
    try:
        return bool(data) and parse_batch(data) is not None
    except LiftError:
        return False


COMPACTED = StreamConfig(segment_bytes=4096, compaction=True)


def compacts(recorder: Recorder, folder: Path) -> None:
    """Three keys, five values each: the newest of each key has to be there, and every offset stays what it was."""
    log, _ = Log.open(DirectoryStorage(folder / "log"), COMPACTED)
    for offset in range(15):
        keys = [b"key %d" % (offset % 3)]
        batch = build_batch([b"%d/" % offset + _VALUE], keys=keys, base_offset=offset, leader_epoch=1, timestamp_ns=offset)
        log.append(batch)
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    log.checkpoint()
    recorder.promise(15)
    compaction = log.begin_compaction(0)
    assert compaction is not None
    compaction.run()
    assert log.complete_compaction(compaction) > 0
    recorder.promise(15)


def newest_of_each_key_is_there(folder: Path, promised: list[int]) -> None:
    if not promised:
        return
    log, report = Log.open(DirectoryStorage(folder / "log"), COMPACTED)
    assert not report.damage
    assert log.log_end_offset == 15
    assert {b"12/" + _VALUE, b"13/" + _VALUE, b"14/" + _VALUE} <= set(_values(log))
    log.close()


def log_holds(folder: Path, promised: list[tuple[Any, ...]]) -> None:
    """Everything that was flushed and not cut since, nothing that was cut, nothing before the start, no hole."""
    flushed, start, highest, written = 0, 0, 1 << 60, 1
    for promise in promised:
        match promise:
            case ("flushed", end, leader_epoch):
                flushed, highest, written = end, 1 << 60, leader_epoch
            case ("cut", end):
                flushed, highest = min(flushed, end), end
            case ("cutting", end):
                flushed = min(flushed, end)
            case ("start", offset):
                start = offset
                flushed, highest = max(flushed, offset) if flushed > offset else offset, 1 << 60
    if not (folder / "log").exists():
        assert not promised
        return
    log, report = Log.open(DirectoryStorage(folder / "log"), SMALL)
    if report.damage:  # then something right lies behind what is gone, and nobody can tell it from a fault of the disk
        assert any(_begins_with_a_batch(path.read_bytes()) for path in (folder / "log").glob("*.behind-*"))
    assert log.log_start_offset >= start
    assert log.log_end_offset >= flushed, (log.log_end_offset, promised)
    found = _values(log)
    offsets = [int(value.partition(b"/")[0]) for value in found]
    assert offsets == list(range(log.log_start_offset, log.log_end_offset)), "no hole"
    if highest < 1 << 60:
        old = [value for value in found if int(value.partition(b"/")[0]) >= highest]
        assert all(int(value.partition(b"/")[2].split(b"v")[0]) > written for value in old), "what was cut came back"
    assert log.high_watermark >= max((p[1] for p in promised if p[0] == "hw"), default=-1)
    log.close()


# ---- promises ------------------------------------------------------------------------------------------------------------
def promises_are_stored(recorder: Recorder, folder: Path) -> None:
    """Appended together, written anew by the next process, which a torn write may have gone before."""
    epoch = 0
    for _ in range(3):
        data = DataDirectory(folder / "data")
        journal = data.open_promises(lambda key: True)
        for _ in range(3):
            epoch += 1
            journal.store({"orders-u1/0": epoch, f"orders-u1/{epoch}": epoch})
            recorder.promise(epoch)
        journal.close()
        data.close()


def promises_are_kept(folder: Path, promised: list[int]) -> None:
    data = DataDirectory(folder / "data")
    journal = data.open_promises(lambda key: True)
    data.close()
    last = promised[-1] if promised else 0
    assert journal.epoch_of("orders-u1/0") in (last, last + 1)
    assert all(journal.epoch_of(f"orders-u1/{epoch}") == epoch for epoch in range(1, last + 1))
    journal.close()


# ---- the metadata group ----------------------------------------------------------------------------------------------------
def journals(recorder: Recorder, folder: Path) -> None:
    journal = GroupJournal(folder / "journal")
    for index in range(1, 7):
        journal.add(b"command %d" % index, index, index // 3)
        journal.setCurrentTerm(index, f"n{index}")
        journal.sync()
        recorder.promise((index, index))
    journal.deleteEntriesFrom(4)
    journal.add(b"other", 5, 9)
    journal.setCurrentTerm(9, None)
    journal.sync()
    recorder.promise((5, 9))
    journal = GroupJournal(folder / "journal")  # a death, and the next process
    recorder.promise((5, 9))
    journal.deleteEntriesTo(2)
    journal.sync()
    recorder.promise((5, 9))
    journal.setCurrentTerm(10, "n1")
    journal.sync()
    recorder.promise((5, 10))


def journal_holds(folder: Path, promised: list[tuple[int, int]]) -> None:
    journal = GroupJournal(folder / "journal")
    last, term = promised[-1] if promised else (0, 0)
    assert journal.getCurrentTerm() >= term
    assert journal.last_index >= (5 if term > 6 else min(last, 5))
    entries = [journal[n] for n in range(len(journal))]
    for command, index, written in entries:
        assert command in (b"command %d" % index, b"other"), command
        assert not (term > 6 and index == 5 and written < 9), "an entry that was replaced came back"
    journal.abandon()


def trims_its_journal(recorder: Recorder, folder: Path) -> None:
    """As the library does: snapshot into a temporary file, rename, then the journal without what is in it."""
    journal = GroupJournal(folder / "journal")
    for index in range(1, 9):
        journal.add(b"c%d" % index, index, 1)
    journal.sync()
    recorder.promise(8)
    for last in (4, 7):
        snapshot = SnapshotFile((b"c%d" % last, last, 1), (b"c%d" % (last - 1), last - 1, 1), ("n1",), b"image")
        write_snapshot_file(folder / "dump.tmp", snapshot)
        os.rename(folder / "dump.tmp", folder / "dump")
        trim_journal(journal, snapshot.previous, snapshot.last)
        journal.sync()
        recorder.promise(8)
    journal.close()
    load_snapshot_file(folder / "dump")


def snapshot_and_journal_hold_all(folder: Path, promised: list[int]) -> None:
    snapshot = load_snapshot_file(folder / "dump").last[1] if (folder / "dump").exists() else 0
    journal = GroupJournal(folder / "journal")
    held = {journal[n][1] for n in range(len(journal))}  # type: ignore[index]
    journal.abandon()
    missing = set(range(snapshot + 1, (promised[-1] if promised else 0) + 1)) - held
    assert not missing, f"entries {missing} are in neither"


# ---- replicated services ---------------------------------------------------------------------------------------------------
IDENTITY = Identity("counter", "orders", "u1", 0)


def stores_snapshots(recorder: Recorder, folder: Path) -> None:
    store = SnapshotStore(folder / "services", IDENTITY, kept=2, max_bytes=1 << 20)
    for position in (10, 20, 30, 40):
        store.save(_snapshot(position), compared_end=position)
        recorder.promise(position)


def _snapshot(position: int) -> Snapshot:
    return Snapshot(IDENTITY, position, 1, position, position, (), b"s" * position)


def snapshots_are_there(folder: Path, promised: list[int]) -> None:
    store = SnapshotStore(folder / "services", IDENTITY, kept=2, max_bytes=1 << 20)
    newest = store.newest()
    assert (newest.position if newest is not None else 0) >= (promised[-1] if promised else 0)


PRIMITIVES = {
    "a small file is replaced": Primitive(replaces, is_replaced),
    "the node file": Primitive(stores_identity, identity_is_there),
    "names in a folder": Primitive(changes_names, names_are_changed, frozenset({FOLDER})),
    "folders are made": Primitive(makes_folders, folders_are_there, frozenset({FOLDER})),
    "a partition is deleted": Primitive(deletes_a_partition, partition_is_gone_or_whole),
    "a log is appended to": Primitive(appends, log_holds),
    "a log is cut": Primitive(cuts_and_goes_on, log_holds),
    "a log begins afresh": Primitive(begins_afresh, log_holds),
    "a log is compacted": Primitive(compacts, newest_of_each_key_is_there),
    "a log is opened after a kill": Primitive(opens_again, log_holds),
    "promises are stored": Primitive(promises_are_stored, promises_are_kept),
    "the group's journal": Primitive(journals, journal_holds),
    "the group's snapshot": Primitive(trims_its_journal, snapshot_and_journal_hold_all),
    "a service's snapshots": Primitive(stores_snapshots, snapshots_are_there),
}
