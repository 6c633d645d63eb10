"""Test the rules around PySyncObj: truncation, snapshots, the journal and accepted messages [M1, M2, M8, M9, S13]."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.log.journal_frames import FRAME_HEAD_BYTES, seal_frame
from liftpy.errors import CorruptionError, ProtocolError, StorageError
from sidecar.quorum import codec
from sidecar.quorum import driver as driver_module
from sidecar.quorum import raft_rules as hardening_module
from sidecar.quorum.codec import MAX_NUMBER, seal, unseal
from sidecar.quorum.driver import MAX_INBOX_BYTES, GroupDriver, tick_once
from sidecar.quorum.journal import _MAGIC, _RECORD, MAX_SPENT_BYTES, GroupJournal
from sidecar.quorum.library import FAIL_REASON, Node
from sidecar.quorum.peer_sessions import SILENCE_S, TERM_REACH, Peer, PeerSessions
from sidecar.quorum.probation import DirectoryLineage, is_first_start
from sidecar.quorum.raft_rules import RaftMessageChecks
from sidecar.quorum.snapshot_file import SnapshotFile, decode_snapshot_file, encode_snapshot_file


# ---- hardening ---------------------------------------------------------------------------------------------------------------
class Core:
    """A log of (command, index, term) from index ``first`` on."""

    def __init__(self, *terms: int, first: int = 1, applied: int = 1, term: int = 9, leads: bool = False) -> None:
        self.entries = [(b"c%d" % (first + n), first + n, t) for n, t in enumerate(terms)]
        self.raftLastApplied, self.raftCurrentTerm, self.raftCommitIndex, self.leads = applied, term, applied, leads
        self.next: dict[str, int] = {}
        self.log = self

    def __getitem__(self, position: int) -> tuple[bytes, int, int]:
        if position < 0:
            raise IndexError(position)
        return self.entries[position]

    @property
    def last_index(self) -> int:
        return self.entries[-1][1]

    def deleteEntriesFrom(self, position: int) -> None:
        del self.entries[position:]

    def next_index(self, node: Any) -> int:
        return self.next.get(node.id, 0)

    def set_next_index(self, node: Any, index: int) -> None:
        self.next[node.id] = index


class Hard:
    """Provide a Hardening around ``core``.

    ``handled``: messages passed to PySyncObj. ``replies``: answers without PySyncObj.
    """

    def __init__(self, core: Core) -> None:
        self.core, self.handled, self.replies, self.counters = core, [], [], Counter[str]()
        self.rules = RaftMessageChecks(core, self.handle, self.reply, self.counters)  # type: ignore[arg-type]
        self.steps_back_to: int | None = None

    def handle(self, node: Any, message: dict[str, Any]) -> None:
        self.handled.append(message)
        if self.steps_back_to is not None:
            self.core.next[node.id] = self.steps_back_to

    def reply(self, node: Any, message: dict[str, Any]) -> None:
        self.replies.append(message)

    def deliver(self, of_term: int = 9, **message: Any) -> bool:
        return self.rules.deliver(Node("b"), message, of_term)

    def append(self, previous: int, previous_term: int, *terms: int, commit: int = 0) -> bool:
        entries = [(b"c%d" % (previous + 1 + n), previous + 1 + n, t) for n, t in enumerate(terms)]
        return self.deliver(
            type="append_entries", term=9, commit_index=commit, prevLogIdx=previous, prevLogTerm=previous_term, entries=entries
        )


@pytest.mark.parametrize(("term", "taken"), [(8, False), (9, True), (10, False)])
def test_raft_append_answers_of_another_term_are_ignored(term: int, taken: bool) -> None:
    hard = Hard(Core(1, 1, 2, leads=True))
    assert hard.deliver(term, type="next_node_idx", next_node_idx=3, success=True, reset=False)
    assert bool(hard.handled) is taken
    assert hard.counters == ({} if taken else {"append_answers_of_other_term": 1})


@pytest.mark.parametrize(("index", "taken"), [(0, False), (1, True), (4, True), (5, False)])
def test_raft_append_answers_beyond_the_log_are_rejected(index: int, taken: bool) -> None:
    hard = Hard(Core(1, 1, 2, leads=True))
    assert hard.deliver(type="next_node_idx", next_node_idx=index, success=True, reset=False) is taken
    assert (len(hard.handled), hard.counters) == ((1, {}) if taken else (0, {"append_answers_beyond_log": 1}))


def test_raft_next_index_never_decreases_on_a_success_answer() -> None:
    hard = Hard(Core(1, 1, 2, leads=True))
    hard.core.next["b"] = 4
    for step, left in ((2, 4), (4, 4), (5, 5)):
        hard.steps_back_to = step
        hard.deliver(type="next_node_idx", next_node_idx=3, success=True, reset=False)
        assert hard.core.next["b"] == left


@pytest.mark.parametrize(("previous", "applied", "left"), [(3, 1, 2), (4, 1, 3), (4, 3, 3), (3, 3, 4), (2, 3, 4)])
def test_raft_conflicting_entries_are_truncated_unless_applied(previous: int, applied: int, left: int) -> None:
    hard = Hard(Core(1, 1, 2, 2, applied=applied))
    hard.append(previous, 7, 8)
    assert len(hard.core.entries) == left
    assert hard.handled, "the library answers"


@pytest.mark.parametrize("previous", [3, 5])
def test_raft_append_at_or_beyond_the_end_of_the_log_is_passed_on_and_keeps_the_session(previous: int) -> None:
    hard = Hard(Core(1, 1, 2))
    assert hard.append(previous, 2, 3)
    assert [message["prevLogIdx"] for message in hard.handled] == [previous]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_raft_append_of_entries_already_in_the_log_neither_truncates_nor_rewrites(count: int) -> None:
    hard = Hard(Core(1, 1, 2, 2, 2))
    hard.append(2, 1, *([2] * count), commit=5)
    assert hard.core.last_index == 5
    assert [message.get("entries", []) for message in hard.handled if message.get("entries")] == []
    if count < 3:
        assert hard.replies == [{"type": "next_node_idx", "next_node_idx": 3 + count, "reset": False, "success": True}]
        assert hard.handled == [{"type": "append_entries", "term": 9, "commit_index": 2 + count}], "no more than was compared"
    hard = Hard(Core(1, 1, 2))
    hard.append(2, 1, 2, 3)
    (message,) = hard.handled
    assert (message["prevLogIdx"], message["prevLogTerm"], message["entries"]) == (3, 2, [(b"c4", 4, 3)])
    hard = Hard(Core(1, 1, 2, 2))
    hard.append(2, 1, 5)
    assert hard.handled[0]["entries"] == [(b"c3", 3, 5)], "another term: not held"


def snapshot(index: int = 7, term: int = 3) -> bytes:
    return encode_snapshot_file(SnapshotFile((b"x", index, term), (b"w", index - 1, term), ("a", "b"), b"image" * 10))


def chunks(hard: Hard, data: bytes, size: int, term: int = 9, commit: int = 50) -> list[bool]:
    pieces = [(data[at : at + size], at == 0, at + size >= len(data)) for at in range(0, len(data), size)]
    return [hard.deliver(type="append_entries", term=term, commit_index=commit, serialized=piece) for piece in pieces]


def installed(hard: Hard) -> list[dict[str, Any]]:
    return [message for message in hard.handled if message.get("serialized")]


@pytest.mark.parametrize("size", [7, 40, 10_000])
def test_raft_snapshot_is_installed_after_all_chunks_arrived(size: int) -> None:
    hard = Hard(Core(1, 1))
    assert all(chunks(hard, snapshot(), size))
    (message,) = installed(hard)
    assert message["serialized"] == (snapshot(), True, True)
    assert message["commit_index"] == 7


@pytest.mark.parametrize(
    ("index", "term", "message_term", "result"),
    [(7, 3, 9, "installed"), (7, 9, 9, "installed"), (7, 10, 9, "refused"), (5, 3, 9, "held already"), (4, 2, 9, "held already"),
     (6, 2, 9, "held already"), (6, 3, 9, "installed"), (7, 3, 8, "")],
)  # fmt: skip
def test_raft_snapshot_is_installed_only_if_its_index_is_above_the_applied_index(
    index: int, term: int, message_term: int, result: str
) -> None:
    hard = Hard(Core(1, 1, 2, 2, 2, 2, applied=5))
    chunks(hard, snapshot(index, term), 10_000, term=message_term)
    assert bool(installed(hard)) is (result == "installed")
    assert dict(hard.counters) == ({f"snapshots {result}": 1} if result else {})
    if result == "held already":
        assert hard.replies[-1]["next_node_idx"] == index + 1


def test_raft_snapshot_that_is_damaged_or_sent_in_two_sessions_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    hard, data = Hard(Core(1, 1)), snapshot()
    spoilt = bytearray(data)
    spoilt[-3] ^= 1
    assert chunks(hard, bytes(spoilt), 40)[-1] is False
    assert hard.deliver(type="append_entries", term=9, commit_index=0, serialized=(data[:40], True, False))
    hard.rules.session_ended("b")
    assert not hard.deliver(type="append_entries", term=9, commit_index=0, serialized=(data[40:], False, True))
    assert not installed(hard)
    monkeypatch.setattr(hardening_module, "MAX_SNAPSHOT_BYTES", len(data) - 1)
    assert not all(chunks(hard, data, 40))
    monkeypatch.setattr(hardening_module, "MAX_SNAPSHOT_BYTES", len(data))
    assert all(chunks(hard, data, 40))


# ---- the journal -------------------------------------------------------------------------------------------------------------
def journal(folder: Path, *terms: int) -> GroupJournal:
    made = GroupJournal(folder / "journal")
    for index, term in enumerate(terms, 1):
        made.add(b"command %d" % index, index, term)
    made.sync()
    return made


def again(made: GroupJournal) -> GroupJournal:
    made.abandon()
    return GroupJournal(made._path)


def test_raft_journal_restores_votes_truncations_entries_and_commit_index(tmp_path: Path) -> None:
    made = journal(tmp_path, 1, 1, 2, 2)
    made.setCurrentTerm(7, "b")
    made.setRaftCommitIndex(3)
    made.sync()
    made.deleteEntriesFrom(2)
    made.add(b"other", 3, 7)
    made.sync()
    size = made.entry_bytes
    found = again(made)
    assert (found.getCurrentTerm(), found.getVotedForNodeId()) == (7, "b")
    assert [entry[1:] for entry in found[:]] == [(1, 1), (2, 1), (3, 7)]  # type: ignore[union-attr,misc]
    assert found.entry_bytes == size == sum(_RECORD.size + len(entry[0]) for entry in found[:])  # type: ignore[arg-type,misc]
    assert found.getRaftCommitIndex() == 3
    found.deleteEntriesFrom(1)
    assert found.getRaftCommitIndex() == 1, "never past the end"
    found.deleteEntriesTo(1)
    assert found.entry_bytes == 0
    found.abandon()


def test_raft_journal_after_a_failed_write_rejects_further_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = journal(tmp_path, 1)
    before = (tmp_path / "journal").read_bytes()
    made.add(b"x", 2, 1)

    def fails(*_: Any) -> Any:
        raise OSError(5, "no")

    with monkeypatch.context() as broken:
        broken.setattr("os.fdatasync", fails)
        with pytest.raises(StorageError):
            made.sync()
    left = (tmp_path / "journal").read_bytes()
    for _ in range(2):
        with pytest.raises(StorageError, match=r"failed\. Check"):
            made.sync()
    made.close()
    assert (tmp_path / "journal").read_bytes() == left
    assert left.startswith(before)


def test_raft_journal_with_many_obsolete_bytes_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.quorum.journal.MAX_SPENT_BYTES", 2000)
    made = journal(tmp_path, 1)
    sizes = []
    for term in range(2, 300):
        made.setCurrentTerm(term, "a")
        made.sync()
        sizes.append((tmp_path / "journal").stat().st_size)
    assert max(sizes) < 2000 + made.entry_bytes + 200
    assert made.file_bytes == sizes[-1]
    assert MAX_SPENT_BYTES == 4 << 20
    made.abandon()


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


# ---- a tick ------------------------------------------------------------------------------------------------------------------
class Ticking:
    """Provide core, transport and journal that record their calls in order."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.failure: Exception | None = None
        self.leads = self.behind = False
        self.raftLastApplied = self.last_index = 0
        self.log = self
        self.answers: list[Any] = []
        self.sessions = SimpleNamespace(outbox=[("b", b"frame")])

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.order.append(name if name != "receive" else f"receive {len(args[1])}")

    def until_election_s(self) -> float:
        return 1.0

    def propose(self, command: bytes, callback: Any, *, change: bool) -> None:
        self.answers.append(callback)


def test_raft_tick_flushes_the_journal_before_it_ends() -> None:
    made = Ticking()
    tick_once(made, made, made, [("b", b"12"), ("c", b"3")])  # type: ignore[arg-type]
    assert made.order == ["listens", "poll", "receive 2", "receive 1", "doTick", "sync", "sync"]
    made.failure = RuntimeError("broken")
    with pytest.raises(StorageError, match="broken"):
        tick_once(made, made, made, [])  # type: ignore[arg-type]


def driving(made: Ticking, sent: list[Any], failed: list[Exception]) -> GroupDriver:
    return GroupDriver(made, made, made, lambda to, frame: sent.append((to, list(made.order))), lambda: None, failed.append)  # type: ignore[arg-type]


async def test_raft_tick_flushes_the_journal_before_it_sends_frames() -> None:
    made, sent, failed = Ticking(), [], []
    driver = driving(made, sent, failed)
    for _ in range(3):
        driver.frame_received("b", b"x" * 100)
    assert driver.inbox_bytes == 300
    driver.tick()
    assert driver.inbox_bytes == 0
    assert sent[0][1][-1] == "sync", "the journal's"
    assert made.sessions.outbox == []
    driver.stop()


async def test_raft_inbox_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "MAX_INBOX_BYTES", 1000)
    driver = driving(Ticking(), [], [])
    for _ in range(25):
        driver.frame_received("b", b"x" * 100)
    assert (driver.inbox_bytes, driver.frames_lost) == (1000, 15)
    assert MAX_INBOX_BYTES == 64 << 20
    driver.stop()


async def test_raft_proposals_in_flight_have_an_unknown_outcome_when_the_member_stops() -> None:
    made, failed = Ticking(), []
    driver = driving(made, [], failed)
    futures = [driver.propose(b"x") for _ in range(2)]
    for callback in made.answers:
        callback(b"answer", FAIL_REASON.SUCCESS)
    made.failure = RuntimeError("broken")
    driver.tick()
    assert len(failed) == 1
    assert driver.stopped
    async with asyncio.timeout(30):
        assert [await future for future in futures] == [(None, FAIL_REASON.UNKNOWN_OUTCOME)] * 2


# ---- frames, sessions, lineages ------------------------------------------------------------------------------------------------
def test_raft_frame_checked_with_another_sender_or_receiver_raises_protocol_error() -> None:
    data = seal("a", "b", b"frame")
    assert unseal("a", "b", data) == b"frame"
    for to, sender in (("a", "c"), ("b", "a"), ("a", "bb"), ("ab", ""), ("c", "b")):
        with pytest.raises(ProtocolError):
            unseal(to, sender, data)


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


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m["type"])
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
    data = snapshot()
    assert decode_snapshot_file(data).last[1:] == (7, 3)
    for position in (len(data) - 1, 13):
        with pytest.raises(CorruptionError):
            decode_snapshot_file(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
    for last, previous in ((7, 5), (7, 7), (1, 0), (MAX_NUMBER, MAX_NUMBER - 1)):
        with pytest.raises(CorruptionError):
            decode_snapshot_file(encode_snapshot_file(SnapshotFile((b"x", last, 1), (b"w", previous, 1), (), b"")))


class Talk:
    """Connect the sessions of two members with a wire that the test controls."""

    def __init__(self) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.ups: list[tuple[str, bool]] = []
        self.terms = {"a": 1, "b": 1}
        numbers = iter(range(1001, 9999, 2))
        self.sides = {
            own: PeerSessions(own, (other,), self.deliver, lambda node, up: self.ups.append((node, up)), lambda: next(numbers),
                          term=lambda own=own: self.terms[own])  # type: ignore[misc]
            for own, other in (("a", "b"), ("b", "a"))
        }  # fmt: skip
        for side in self.sides.values():
            side.set_online(True)
        self.now = 0.0

    def deliver(self, node: str, body: bytes, term: int) -> bool:
        self.got.append((node, body))
        return True

    def frames(self, own: str) -> list[bytes]:
        side = self.sides[own]
        sent = [frame for _, frame in side.outbox]
        side.outbox.clear()
        return sent

    def pass_on(self, frames: list[bytes], sender: str = "a") -> None:
        for frame in frames:
            self.sides["b" if sender == "a" else "a"].receive(sender, frame, self.now)

    def meet(self) -> None:
        for side in self.sides.values():
            side.poll(self.now)
        for _ in range(6):
            for own in "ab":
                self.pass_on(self.frames(own), own)
        assert all(peer.up for side in self.sides.values() for peer in side.peers.values())
        self.got.clear()

    def peer(self, own: str) -> Peer:
        return next(iter(self.sides[own].peers.values()))

    def data(self, *bodies: bytes) -> list[bytes]:
        for body in bodies:
            assert self.sides["a"].send("b", body, 1, self.now)
        return self.frames("a")


def test_raft_session_delivers_frames_in_order_until_a_gap_ends_the_session() -> None:
    talk = Talk()
    talk.meet()
    one, two, three = talk.data(b"1", b"2", b"3")
    talk.pass_on([one, one, two])
    assert [body for _, body in talk.got] == [b"1", b"2"]
    (four,) = talk.data(b"4")
    talk.pass_on([four, three])
    assert [body for _, body in talk.got] == [b"1", b"2"]
    assert not talk.peer("b").up


def test_raft_session_drops_chunks_of_an_ended_session() -> None:
    talk = Talk()
    for side in talk.sides.values():
        side.chunk_bytes = 4
    talk.meet()
    first, *_ = talk.data(b"aaaabbbb")
    talk.pass_on([first])
    talk.sides["b"]._end(talk.peer("b"), "test")
    assert talk.peer("b").parts is None
    talk.sides["a"].set_online(False)
    assert talk.sides["a"].outbox == []
    talk.sides["a"].set_online(True)
    talk.now += 1
    talk.meet()
    talk.pass_on(talk.data(b"whole"))
    assert [body for _, body in talk.got] == [b"whole"]


def test_raft_session_ends_at_a_too_large_message_or_after_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.quorum.peer_sessions.MAX_MESSAGE_BYTES", 8)
    talk = Talk()
    talk.sides["a"].chunk_bytes = 4
    talk.meet()
    talk.pass_on(talk.data(b"12345678"))
    assert talk.got == [("a", b"12345678")]
    talk.pass_on(talk.data(b"123456789"))
    assert not talk.peer("b").up
    talk = Talk()
    talk.meet()
    for now, up in ((SILENCE_S, True), (SILENCE_S + 0.01, False)):
        talk.sides["b"].poll(now)
        assert talk.peer("b").up is up


@pytest.mark.parametrize(
    ("ahead", "waited", "heard"),
    [(TERM_REACH - 1, 0, True), (TERM_REACH, 0, False), (TERM_REACH, 0.9, False), (TERM_REACH, 1, True)],
)
def test_raft_term_far_above_the_own_term_is_accepted_only_after_a_delay(ahead: int, waited: float, heard: bool) -> None:
    sessions, peer = Talk().sides["b"], Peer("a", 1)
    sessions._reaches(peer, 1 + ahead, 10.0)
    assert sessions._reaches(peer, 1 + ahead, 10.0 + waited) is heard


def test_raft_session_ends_when_the_peer_has_another_controller_list() -> None:
    talk = Talk()
    talk.meet()
    talk.sides["b"]._list_received(talk.peer("b"), b"a, b, c", 1.0)
    assert not talk.peer("b").up
    assert talk.peer("b").other_list


def test_raft_session_answers_unknown_processes_and_stores_at_most_one() -> None:
    talk = Talk()
    talk.meet()
    side, peer = talk.sides["b"], talk.peer("b")
    for turn in range(200):
        side._answer_stranger(peer, 5001 + turn, float(turn))
        assert side.outbox, turn
        side.outbox.clear()
    assert len(peer.strangers) <= 1


def peers(*said: str) -> list[Peer]:
    """Return peers: 'n' is connected and new, 'o' is connected and old, '-' is not connected."""
    return [Peer(f"p{i}", 1, heard=word != "-", is_new=word == "n") for i, word in enumerate(said)]


@pytest.mark.parametrize(
    ("own_is_new", "said", "majority", "first"),
    [
        (True, "nn", False, True), (True, "n-", False, False), (True, "n-", True, True), (True, "--", True, False),
        (True, "no", True, False),
        (False, "nn", True, False), (True, "nn--", True, True), (True, "n---", True, False),
        (True, "", False, True),
    ],
)  # fmt: skip
def test_raft_group_first_start_is_allowed_only_if_the_known_peers_are_new(
    own_is_new: bool, said: str, majority: bool, first: bool
) -> None:
    assert is_first_start(own_is_new, peers(*said), majority=majority) is first


def test_data_directory_history_is_reported_as_restored_by_a_trusted_peer_or_a_majority(tmp_path: Path) -> None:
    numbers = iter(range(101, 999, 2))

    def lineage(name: str, majority: int = 2) -> DirectoryLineage:
        (tmp_path / name).mkdir(exist_ok=True)
        return DirectoryLineage(tmp_path / name, lambda: next(numbers), majority)

    one, two, three = lineage("a"), lineage("b"), lineage("c")
    for peer_id, peer in (("b", two), ("c", three)):
        assert one.process_hello(peer_id, peer.tail_for("a"))
        assert peer.process_hello("a", one.tail_for(peer_id))
    copied = (tmp_path / "a" / "lineage").read_bytes()
    later = lineage("a")
    for peer in (two, three):
        assert peer.process_hello("a", later.tail_for("b")), "it follows"
        peer.sync()
    (tmp_path / "a" / "lineage").write_bytes(copied)  # an older copy is put back
    back = lineage("a")
    assert not two.process_hello("a", back.tail_for("b")), "its votes count for nothing"
    doubter = lineage("d")
    doubter.known["a"] = later.nonce
    for peer_id, known, missed in (("b", two, True),):
        back.process_hello(peer_id, known.tail_for("a"))
        assert bool(back.missed) is missed
    alone = lineage("e", 3)
    alone.known["x"] = alone.known["y"] = 7
    for count, peer_id in enumerate(("x", "y", "z"), 1):
        tail = struct.pack("<QQB", 50 + count, 4711, 0)
        alone.process_hello(peer_id, tail)
        assert bool(alone.missed) is (count == 3), "untrusted ones have to be many, a trusted one is enough"
    assert DirectoryLineage(tmp_path / "b", lambda: 5, 2).known["a"] == two.known["a"], "stored"


def test_raft_journal_is_rewritten_in_bounded_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.quorum.journal._NEW_FRAME_BYTES", 100)
    made = journal(tmp_path, *[1] * 40)
    pieces = list(made._pieces())
    assert len(pieces) > 10
    assert max(map(len, pieces)) < 300
    made.close()
