"""Test the Raft journal: flushed entries are restored, torn frames are truncated, damaged files are rejected."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path

import crc32c
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from liftpy.errors import CorruptionError, StorageError, UnknownFormatError
from sidecar.quorum.journal import GroupJournal
from tests.long import examples
from tests.simulation.raft.disk import faulty_disk


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
