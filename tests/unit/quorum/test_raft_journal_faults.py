"""Test the Raft journal on a disk that fails once: the next start restores everything that was returned [S13, L11]."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from liftpy.errors import StorageError
from sidecar.quorum.journal import GroupJournal
from tests.long import sampled
from tests.simulation.raft.disk import Fault, FaultyDisk, faulty_disk

Content = tuple[list, int, str | None]

STEPS: tuple[Callable[[GroupJournal], None], ...] = (
    lambda j: (j.setCurrentTerm(1, "a"), j.add(b"first", 1, 0)),
    lambda j: (j.add(b"second", 2, 1), j.add(b"third", 3, 1)),
    lambda j: j.setCurrentTerm(2, "b"),
    lambda j: (j.deleteEntriesFrom(2), j.add(b"another third", 3, 2)),
    lambda j: j.deleteEntriesTo(1),
    lambda j: j.add(b"fourth", 4, 2),
    lambda j: (j.clear(), j.add(b"eighth", 8, 2), j.add(b"ninth", 9, 2)),
    lambda j: j.add(b"tenth", 10, 2),
)


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    with faulty_disk() as made:
        yield made


def content(journal: GroupJournal) -> Content:
    return list(journal[:]), journal.getCurrentTerm(), journal.getVotedForNodeId()


def reopened(path: Path) -> Content:
    journal = GroupJournal(path)
    journal.abandon()
    return content(journal)


def calls_of_a_history(disk: FaultyDisk, folder: Path) -> dict[str, int]:
    folder.mkdir()
    journal = GroupJournal(folder / "journal")
    for step in STEPS:
        step(journal)
        journal.sync()
    journal.close()
    return dict(disk.calls)


def history_with_one_fault(disk: FaultyDisk, folder: Path, kind: str, number: int, fault: Fault) -> None:
    """Run a history in which call number ``number`` of ``kind`` fails. The member then stops and restarts."""
    folder.mkdir()
    path = folder / "journal"
    left = number

    def once(called: str, size: int) -> Fault | None:
        nonlocal left
        if called != kind:
            return None
        left -= 1
        return fault if left == 0 else None

    disk.fault = once
    shown: Content = ([], 0, None)
    journal, at = None, 0
    failures = 0
    while at < len(STEPS):
        wanted = shown
        try:
            if journal is None:
                journal = GroupJournal(path)
                assert content(journal) == shown
            STEPS[at](journal)
            wanted = content(journal)
            journal.sync()
            shown, at = wanted, at + 1
            continue
        except StorageError:
            failures += 1
        if journal is not None:
            journal.close()  # as a member that stops does, with what it still holds in memory
        for power in (False, True):
            if power:
                disk.power_cut(folder)
            found = reopened(path)
            assert found in (shown, wanted), (kind, number, fault)
            disk.power_cut(folder)
            assert reopened(path) == found, "what the opening showed is durable"
        journal, shown = GroupJournal(path), found
        if found == wanted:
            at += 1
    assert journal is not None
    journal.close()
    assert failures <= 1
    assert reopened(path) == shown
    disk.forget(folder)


@pytest.mark.parametrize("kind", ["sync", "rename", "open"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_raft_journal_after_one_failed_flush_rename_or_open_restores_all_flushed_entries(
    tmp_path: Path, disk: FaultyDisk, kind: str, number: int
) -> None:
    count = calls_of_a_history(disk, tmp_path / "counted")[kind]
    assert count > 2
    for nth in range(1, count + 1):
        history_with_one_fault(disk, tmp_path / f"{nth}", kind, nth, Fault(number))


@pytest.mark.parametrize("short", [True, False])
def test_raft_journal_after_one_failed_write_of_any_length_restores_all_flushed_entries(
    tmp_path: Path, disk: FaultyDisk, short: bool
) -> None:
    """``short``: the call reports fewer bytes. Otherwise the disk is full or broken after the write."""
    sizes: list[int] = []
    disk.fault = lambda kind, size: sizes.append(size) if kind == "write" else None
    calls_of_a_history(disk, tmp_path / "counted")
    assert len(sizes) >= len(STEPS)
    for nth, size in enumerate(sizes, start=1):
        for kept in sampled(range(size), 5):
            number = 0 if short else (errno.EIO, errno.ENOSPC)[kept % 2]
            history_with_one_fault(disk, tmp_path / f"{nth}-{kept}", "write", nth, Fault(number, kept))


def test_raft_journal_after_a_failed_flush_rejects_further_writes(tmp_path: Path, disk: FaultyDisk) -> None:
    journal = GroupJournal(tmp_path / "journal")
    STEPS[0](journal)
    journal.sync()
    disk.fault = lambda kind, _: Fault() if kind == "sync" else None
    STEPS[1](journal)
    with pytest.raises(StorageError):
        journal.sync()
    disk.fault = lambda *_: None
    size = (tmp_path / "journal").stat().st_size
    with pytest.raises(StorageError, match="restart the"):
        journal.sync()
    journal.close()
    assert (tmp_path / "journal").stat().st_size == size


def test_raft_journal_open_flushes_recovered_entries_before_it_returns_entries(tmp_path: Path, disk: FaultyDisk) -> None:
    """After a failed flush the page cache contains unflushed bytes that are marked clean [S12, S4]."""
    journal = GroupJournal(tmp_path / "journal")
    STEPS[0](journal)
    journal.sync()
    disk.fault = lambda kind, _: Fault() if kind == "sync" else None
    journal.setCurrentTerm(7, "c")
    with pytest.raises(StorageError):
        journal.sync()
    journal.abandon()
    disk.fault = lambda *_: None
    again = GroupJournal(tmp_path / "journal")
    shown = content(again)
    again.abandon()
    disk.power_cut(tmp_path)
    assert reopened(tmp_path / "journal") == shown
