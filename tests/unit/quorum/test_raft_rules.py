"""Test the journal, the messages and the sessions around PySyncObj: what they accept [M2, M8, M9, S13]."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.log.small_files import FRAME_HEAD_BYTES, seal_frame
from liftpy.core.wire._pb import raft_pb2 as pb
from liftpy.errors import CorruptionError, ProtocolError
from sidecar.quorum import codec, library
from sidecar.quorum import driver as driver_module
from sidecar.quorum import journal as journal_module
from sidecar.quorum.codec import MAX_NUMBER, decode
from sidecar.quorum.driver import GroupDriver
from sidecar.quorum.journal import _MAGIC, _RECORD, GroupJournal
from sidecar.quorum.snapshot_file import SnapshotFile, decode_snapshot_file, encode_snapshot_file
from tests.each import each
from tests.unit.quorum.raft_network import our_net


def snapshot(index: int = 7, term: int = 3) -> bytes:
    return encode_snapshot_file(SnapshotFile((b"x", index, term), (b"w", index - 1, term), ("a", "b"), b"image" * 10))


# ---- the journal -------------------------------------------------------------------------------------------------------------
def journal(folder: Path, *terms: int) -> GroupJournal:
    made = GroupJournal(folder / "journal")
    for index, term in enumerate(terms, 1):
        made.add(b"command %d" % index, index, term)
    made.sync()
    return made


def framed(*records: tuple[int, int, int, bytes]) -> bytes:
    return seal_frame(b"".join(_RECORD.pack(kind, a, b, len(body)) + body for kind, a, b, body in records))


@pytest.mark.parametrize(
    ("records", "right"),
    [
        ([(1, 1, 1, b"a"), (1, 2, 1, b"b")], True), ([(1, 1, 1, b"a"), (1, 3, 1, b"b")], False), ([(1, 1, 1, b"")], False),
        ([(1, 0, 1, b"a")], False), ([(1, MAX_NUMBER, 1, b"a")], False), ([(1, 1, MAX_NUMBER, b"a")], False), ([(9, 1, 1, b"")], False),
        ([(3, MAX_NUMBER - 1, 1, b"a")], True), ([(3, MAX_NUMBER, 1, b"a")], False), ([(3, 1, 1, b"\xff")], False),
        ([(1, 5, 1, b"a"), (1, 5, 2, b"b")], True), ([(1, 5, 1, b"a"), (2, 5, 0, b""), (1, 6, 2, b"b")], True),
    ],
)  # fmt: skip
def test_raft_journal_with_an_invalid_record_raises_corruption_error(records: list[Any], right: bool, tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(_MAGIC + framed(*records))
    if right:
        GroupJournal(tmp_path / "journal").abandon()
    else:
        with pytest.raises(CorruptionError):
            GroupJournal(tmp_path / "journal")


def test_raft_journal_with_a_torn_frame_is_truncated_only_if_no_valid_frame_follows(tmp_path: Path) -> None:
    first, second = framed((1, 1, 1, b"a")), framed((1, 2, 1, b"b"))
    for torn in (second[:-1], second[:FRAME_HEAD_BYTES], b"\0" * 30):
        (tmp_path / "journal").write_bytes(_MAGIC + first + torn)
        found = GroupJournal(tmp_path / "journal")
        assert len(found) == 1
        found.abandon()
        (tmp_path / "journal").write_bytes(_MAGIC + first + torn + framed((1, 3, 1, b"c")))
        with pytest.raises(CorruptionError):
            GroupJournal(tmp_path / "journal")


# ---- frames, sessions, lineages ------------------------------------------------------------------------------------------------
MESSAGES: list[dict[str, Any]] = [
    {"type": "append_entries", "term": 3, "commit_index": 2, "entries": [(b"a", 5, 3), (b"b", 6, 3)], "prevLogIdx": 4, "prevLogTerm": 2,
     "sent_ns": 7, "checkpoint": (0, b"")},
    {"type": "append_entries", "term": 3, "commit_index": 2, "entries": [], "prevLogIdx": None, "prevLogTerm": None, "sent_ns": 7,
     "checkpoint": (1024, b"8 bytes.")},
    {"type": "append_entries", "term": 3, "commit_index": 2, "serialized": (b"part", True, False), "sent_ns": 7},
    {"type": "append_entries", "term": 3, "commit_index": 2, "serialized": None, "sent_ns": 7},
    {"type": "next_node_idx", "next_node_idx": 5, "reset": True, "success": False, "applied_index": 4, "echo_ns": 9,
     "levels": (1, 2), "checkpoint": (1024, b"8 bytes.")},
    {"type": "request_vote", "term": 3, "last_log_index": 5, "last_log_term": 2, "transfer": True},
    {"type": "response_vote", "term": 3},
    {"type": "timeout_now", "term": 3},
]  # fmt: skip


@each("message", MESSAGES)
def test_raft_message_after_encode_and_decode_is_equal(message: dict[str, Any]) -> None:
    assert codec.decode(codec.encode(message)) == message
    if "checkpoint" in message:
        for wrong in ((0, b"8 bytes."), (9, b""), (9, b"7 bytes"), (MAX_NUMBER, b"8 bytes.")):
            with pytest.raises(ProtocolError):
                codec.decode(codec.encode({**message, "checkpoint": wrong}))
    for name in set(message) & {"term", "commit_index", "next_node_idx", "applied_index", "last_log_index"}:
        with pytest.raises(ProtocolError):
            codec.decode(codec.encode({**message, name: MAX_NUMBER}))


@pytest.mark.parametrize(
    "wrong",
    [{"entries": [(b"a", 6, 3)]}, {"entries": [(b"a", 5, 3), (b"b", 7, 3)]}, {"entries": [(b"", 5, 3)]}, {"entries": [(b"a", 5, 4)]},
     {"prevLogTerm": 4}],
)  # fmt: skip
def test_raft_message_with_non_consecutive_entries_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        codec.decode(codec.encode({**MESSAGES[0], **wrong}))


def test_raft_snapshot_file_without_two_consecutive_last_entries_is_rejected() -> None:
    assert decode_snapshot_file(snapshot()).last[1:] == (7, 3)
    for last, previous in ((7, 5), (7, 7), (1, 0), (MAX_NUMBER, MAX_NUMBER - 1)):
        with pytest.raises(CorruptionError):
            decode_snapshot_file(encode_snapshot_file(SnapshotFile((b"x", last, 1), (b"w", previous, 1), (), b"")))


def test_raft_journal_is_rewritten_in_bounded_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.quorum.journal._NEW_FRAME_BYTES", 100)
    made = journal(tmp_path, *[1] * 40)
    pieces = list(made._pieces())
    assert len(pieces) > 10
    assert max(map(len, pieces)) < 300
    made.close()


# ---- limits of messages ----------------------------------------------------------------------------------------------------
TOO_MUCH = [MAX_NUMBER, 2**64 - 1]


@each("number", TOO_MUCH)
@each(
    "message",
    [
        lambda n: pb.RaftMessage(requestVote=pb.RaftRequestVote(term=n)),
        lambda n: pb.RaftMessage(requestVote=pb.RaftRequestVote(term=1, lastLogIndex=n)),
        lambda n: pb.RaftMessage(requestVote=pb.RaftRequestVote(term=1, lastLogTerm=n)),
        lambda n: pb.RaftMessage(responseVote=pb.RaftResponseVote(term=n)),
        lambda n: pb.RaftMessage(timeoutNow=pb.RaftTimeoutNow(term=n)),
        lambda n: pb.RaftMessage(nextIndex=pb.RaftNextIndex(nextIndex=n)),
        lambda n: pb.RaftMessage(nextIndex=pb.RaftNextIndex(nextIndex=1, appliedIndex=n)),
        lambda n: pb.RaftMessage(snapshotChunk=pb.RaftSnapshotChunk(term=n)),
        lambda n: pb.RaftMessage(snapshotChunk=pb.RaftSnapshotChunk(commitIndex=n)),
        lambda n: pb.RaftMessage(appendEntries=pb.RaftAppendEntries(term=n)),
        lambda n: pb.RaftMessage(appendEntries=pb.RaftAppendEntries(previousIndex=n, previousTerm=1)),
        lambda n: pb.RaftMessage(appendEntries=pb.RaftAppendEntries(entries=[pb.RaftEntry(command=b"c", index=n)])),
        lambda n: pb.RaftMessage(appendEntries=pb.RaftAppendEntries(entries=[pb.RaftEntry(command=b"c", index=1, term=n)])),
    ],
)
def test_raft_message_with_a_term_or_index_above_the_limit_is_rejected(message: Any, number: int) -> None:
    with pytest.raises(ProtocolError):
        decode(message(number).SerializeToString())


# ---- limits of bytes -------------------------------------------------------------------------------------------------------
LARGE = 20_000
ENTRIES = 60
BOUND = 200_000


def test_raft_log_with_few_large_entries_is_compacted_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit in entries alone would keep 10,000 entries."""
    monkeypatch.setattr(library, "COMPACT_AFTER_BYTES", BOUND)
    monkeypatch.setattr(library, "COMPACT_AT_ONCE_BYTES", BOUND)
    with our_net(tmp_path) as net:
        leader, *_ = net.elected()
        most = {"held": 0, "stored": 0}
        for number in range(ENTRIES):
            value = b"%d " % number + b"x" * LARGE
            net.put(leader, value)
            assert net.run(lambda value=value: value in net.acknowledged())
            net.run(lambda: len({len(net.values(name)) for name in net.up}) == 1, 2)
            for name, member in net.up.items():
                most["held"] = max(most["held"], member.journal.entry_bytes)
                most["stored"] = max(most["stored"], (tmp_path / name / "journal").stat().st_size)
        assert BOUND / 2 < most["held"] <= BOUND + 6 * LARGE, most
        assert most["stored"] <= BOUND + 6 * LARGE, most
        assert all(member.core.compactions >= ENTRIES * LARGE // (2 * BOUND) for member in net.up.values())
        net.crash(*net.up)
        for name in net.members:
            net.start(name)
        leader, *_ = net.elected()
        net.put(leader, b"after")
        assert net.run(lambda: all(net.values(name)[-1:] == [b"after"] for name in net.up))


def test_raft_journal_of_commit_index_updates_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit index is written every second: 3 MB a day, and nothing to compact."""
    monkeypatch.setattr(journal_module, "MAX_SPENT_BYTES", 5_000)
    journal = GroupJournal(tmp_path / "journal", flush=False)
    journal.add(b"\x00command", 1, 1)
    for second in range(2_000):
        journal.setRaftCommitIndex(1)
        journal.setCurrentTerm(second, "n2")
        journal.onOneSecondTimer()
        journal.sync()
        size_bytes = (tmp_path / "journal").stat().st_size
        assert size_bytes == journal.file_bytes <= 5_000 + 200
    journal.close()
    again = GroupJournal(tmp_path / "journal", flush=False)
    assert (again.getCurrentTerm(), len(again), again.entry_bytes) == (1999, 1, 21 + 8)
    again.close()


async def test_raft_inbox_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "MAX_INBOX_BYTES", 1_000)
    unused: Any = SimpleNamespace(leads=False)
    driver = GroupDriver(unused, unused, unused, lambda *_: None, lambda: None, lambda _: None)
    driver.stopped = True
    for number in range(50):
        driver.frame_received("n2", bytes([number]) * 100)
        assert driver.inbox_bytes <= 1_000
    assert (len(driver._inbox), driver.frames_lost) == (10, 40)
    assert driver._inbox[-1][1][0] == 49, "the oldest is lost: its session sees a gap"
    driver.frame_received("n2", b"x" * 5_000)
    assert len(driver._inbox) == 1, "one always comes in"
