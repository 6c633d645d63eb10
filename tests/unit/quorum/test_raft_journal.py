"""Test the raft journal: its content after any operations, damage and faults of the disk [L11, S13]."""

from __future__ import annotations

import errno
import os
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import crc32c
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from liftpy.errors import CorruptionError, StorageError, UnknownFormatError
from sidecar.quorum.journal import GroupJournal
from tests.long import examples, sampled
from tests.simulation.raft.disk import Fault, FaultyDisk, faulty_disk


@pytest.fixture(autouse=True)
def no_real_flushes() -> Iterator[None]:
    with faulty_disk():
        yield


def _filled(path: Path, entries: int = 6) -> GroupJournal:
    journal = GroupJournal(path)
    journal.setCurrentTerm(3, "b")
    for index in range(1, entries + 1):
        journal.add(b"command %d" % index, index, 3)
        journal.sync()
    return journal


def _content(journal: GroupJournal) -> tuple[list, int, str | None]:
    return list(journal[:]), journal.getCurrentTerm(), journal.getVotedForNodeId()


def test_raft_journal_truncated_at_any_byte_restores_everything_flushed_before(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = GroupJournal(path)
    sizes = [(0, 0)]
    for index in range(1, 5):
        journal.add(b"command %d" % index, index, 1)
        journal.sync()
        sizes.append((path.stat().st_size, index))
    data = path.read_bytes()
    for size in range(8, len(data)):
        path.write_bytes(data[:size])
        held = len(GroupJournal(path))
        assert held >= max(count for at, count in sizes if at <= size)
        assert GroupJournal(path)[:] == [(b"command %d" % i, i, 1) for i in range(1, held + 1)]


def test_raft_journal_repairs_a_flipped_bit_only_in_the_last_frame(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    _filled(path, 3).close()
    data = path.read_bytes()
    good = _content(GroupJournal(path))
    last_frame = len(data) - 8 - len(b"command 3") - 2 * 21 - 1
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(damaged)
        try:
            content = _content(GroupJournal(path))
        except (CorruptionError, UnknownFormatError):
            assert bit // 8 < last_frame, "only the frame that may have been torn is ever cut"
            continue
        assert bit // 8 >= last_frame
        assert content[0] == good[0][:2]


@pytest.mark.parametrize("data", [b"LFRJ", pickle.dumps({"a": 1}), b"LFRJ\x02\0\0\0" + bytes(20)])
def test_raft_journal_file_of_another_format_is_rejected_and_not_changed(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "journal"
    path.write_bytes(data)
    with pytest.raises(StorageError):
        GroupJournal(path)
    assert path.read_bytes() == data


def test_raft_journal_bytes_on_disk_are_those_of_earlier_versions(tmp_path: Path) -> None:
    journal = GroupJournal(tmp_path / "journal")
    journal.setCurrentTerm(3, "b")
    journal.add(b"\x00one", 1, 3)
    journal.sync()
    journal.add(b"two", 2, 3)
    journal.setRaftCommitIndex(1)
    journal.sync()
    journal.deleteEntriesFrom(1)
    journal.sync()
    meta = "030300000000000000010000000000000001000000" + "62"
    expected = (
        "4c46524a01000000"
        "99a68ed42f000000" + "010100000000000000030000000000000004000000" + "006f6e65" + meta + "2df5d8852e000000"
        "010200000000000000030000000000000003000000" + "74776f" + meta + "416662992b000000"
        "020200000000000000000000000000000000000000" + meta
    )
    assert (tmp_path / "journal").read_bytes().hex() == expected
    (tmp_path / "earlier").write_bytes(bytes.fromhex(expected))
    assert _content(GroupJournal(tmp_path / "earlier")) == ([(b"\x00one", 1, 3)], 3, "b")


def _framed(records: bytes) -> bytes:
    sized = struct.pack("<I", len(records)) + records
    return b"LFRJ\x01\0\0\0" + struct.pack("<I", crc32c.crc32c(sized)) + sized


_number = st.one_of(st.integers(0, 5), st.sampled_from([2**62 - 1, 2**62, 2**64 - 1]))
_record = st.builds(
    lambda kind, a, b, body, said: struct.pack("<BQQI", kind, a, b, len(body) if said is None else said) + body,
    st.integers(0, 5), _number, _number, st.binary(max_size=6), st.one_of(st.none(), st.integers(0, 2**32 - 1)),
)  # fmt: skip


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(min_size=1, max_size=80), st.lists(_record, min_size=1, max_size=5).map(b"".join)))
def test_raft_journal_of_random_bytes_opens_or_raises_corruption_error(
    tmp_path_factory: pytest.TempPathFactory, records: bytes
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    path.write_bytes(_framed(records))
    try:
        journal = GroupJournal(path)
    except CorruptionError:
        assert path.read_bytes() == _framed(records)
        return
    indexes = [index for _, index, _ in journal[:]]
    assert indexes == list(range(indexes[0], indexes[0] + len(indexes))) if indexes else True
    assert all(command and 0 < index < 2**62 and term < 2**62 for command, index, term in journal[:])
    assert journal.getCurrentTerm() < 2**62
    assert journal.getRaftCommitIndex() < 2**62
    journal.abandon()


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 4)),
        st.tuples(st.just("from"), st.integers(0, 8)),
        st.tuples(st.just("to"), st.integers(0, 4)),
        st.tuples(st.just("term"), st.integers(0, 9)),
        st.tuples(st.just("reopen")),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(_steps)
def test_raft_journal_after_random_operations_equals_a_list_model(
    tmp_path_factory: pytest.TempPathFactory, steps: list
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    journal = GroupJournal(path, flush=False)
    model: list[tuple[bytes, int, int]] = []
    term, vote, dropped = 0, None, 0
    for step in steps:
        match step:
            case ("add", count):
                for _ in range(count):
                    entry = (b"x", dropped + len(model) + 1, term)
                    journal.add(*entry)
                    model.append(entry)
            case ("from", position):
                journal.deleteEntriesFrom(position)
                del model[position:]
            case ("to", position):
                dropped += len(model[:position])
                journal.deleteEntriesTo(position)
                del model[:position]
            case ("term", number):
                term, vote = number, f"n{number}"
                journal.setCurrentTerm(term, vote)
            case ("reopen",):
                journal.close()
                journal = GroupJournal(path, flush=False)
        journal.sync()
        assert _content(journal) == (model, term, vote)
    journal.close()


def test_raft_journal_creates_no_file_before_its_first_flush(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    for before in (None, b""):
        if before is not None:
            path.write_bytes(before)
        journal = GroupJournal(path)
        assert (path.read_bytes() if path.exists() else None) == before, "nothing was promised yet"
        assert (len(journal), journal.last_index, journal.last_term, journal.getRaftCommitIndex()) == (0, 0, 0, 1)
        journal.abandon()
    journal = GroupJournal(path)
    journal.add(b"x", 1, 1)
    journal.sync()
    descriptor = journal._descriptor
    journal.add(b"y", 2, 1)
    journal.abandon()
    with pytest.raises(OSError):
        os.fstat(descriptor)
    journal.close()
    again = GroupJournal(path)
    assert len(again) == 1, "a death flushes nothing"
    again.abandon()


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
