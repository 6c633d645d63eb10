"""Test sessions between controllers: hellos, order, chunks, restarts and forged frames."""

from __future__ import annotations

import pickle
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.core.wire.decode_errors import REFUSED
from liftpy.errors import ConfigError, CorruptionError, ProtocolError, StorageError
from sidecar.quorum import codec, library
from sidecar.quorum import peer_sessions as module
from sidecar.quorum.codec import MAX_NUMBER
from sidecar.quorum.peer_sessions import _FRAME, _HELLO, CHUNK_BYTES, HELLO_PERIOD_S, SILENCE_S, PeerSessions
from sidecar.quorum.snapshot_file import (
    SnapshotFile,
    decode_snapshot_file,
    encode_snapshot_file,
    load_snapshot_file,
    write_snapshot_file,
)
from tests.each import each


class Pair:
    """Connect two members with a bus that the test disturbs."""

    def __init__(self, seed: int = 0, lists: dict[str, str] | None = None) -> None:
        rng = random.Random(seed)
        self.now = 0.0
        self.got: dict[str, list[bytes]] = {"a": [], "b": []}
        self.links: dict[str, list[bool]] = {"a": [], "b": []}
        self.bus: list[tuple[str, str, bytes]] = []
        self.sides = {
            me: PeerSessions(
                me,
                tuple(sorted(set((lists or {}).get(me, "ab")) - {me})),
                lambda _, body, __, me=me: self.got[me].append(body) is None,
                lambda _, up, me=me: self.links[me].append(up),
                lambda: rng.getrandbits(63),
            )
            for me in "ab"
        }
        for side in self.sides.values():
            side.set_online(True)

    def take(self) -> None:
        for me, side in self.sides.items():
            self.bus += [(me, to, frame) for to, frame in side.outbox]
            side.outbox.clear()

    def deliver(self) -> None:
        self.take()
        while self.bus:
            sender, to, frame = self.bus.pop(0)
            self.sides[to].receive(sender, frame, self.now)
            self.take()

    def connect(self) -> None:
        for side in self.sides.values():
            side.poll(self.now)
        self.deliver()
        assert all(p.up for side in self.sides.values() for p in side.peers.values())

    def settle(self) -> None:
        for _ in range(20):
            self.now += HELLO_PERIOD_S * 1.1
            for side in self.sides.values():
                side.poll(self.now)
            self.deliver()


def test_raft_session_delivers_chunked_messages_in_order() -> None:
    pair = Pair()
    pair.connect()
    bodies = [b"one", b"x" * (3 * CHUNK_BYTES + 1), b"three"]
    for body in bodies:
        assert pair.sides["a"].send("b", body, 1, pair.now)
    pair.deliver()
    assert pair.got["b"] == bodies


def test_raft_session_ignores_frames_of_an_older_session() -> None:
    pair = Pair()
    pair.connect()
    pair.sides["a"].send("b", b"old", 1, pair.now)
    pair.take()
    held = pair.bus.pop()
    for side in pair.sides.values():
        side.set_online(False)
        side.set_online(True)
    pair.settle()
    pair.bus.append(held)
    pair.deliver()
    assert pair.got["b"] == []
    assert pair.sides["b"].counters["refused: stale frame"] == 1


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32), st.lists(st.sampled_from(["send a", "send b", "pass", "drop", "copy", "swap", "wait"]), max_size=80)
)
def test_raft_session_over_a_lossy_bus_delivers_in_order_without_duplicates(seed: int, steps: list[str]) -> None:
    pair = Pair(seed)
    pair.connect()
    sent: dict[str, list[bytes]] = {"a": [], "b": []}
    for number, step in enumerate(steps):
        if step.startswith("send"):
            me = step[-1]
            body = b"%d" % number
            if pair.sides[me].send({"a": "b", "b": "a"}[me], body, 1, pair.now):
                sent[me].append(body)
        pair.take()
        if pair.bus and step == "drop":
            pair.bus.pop(0)
        elif pair.bus and step == "copy":
            pair.bus.insert(len(pair.bus) // 2, pair.bus[0])
        elif len(pair.bus) > 1 and step == "swap":
            pair.bus[0], pair.bus[-1] = pair.bus[-1], pair.bus[0]
        elif step == "pass":
            pair.deliver()
        elif step == "wait":
            pair.settle()
    pair.settle()
    for me, other in (("a", "b"), ("b", "a")):
        got = pair.got[other]
        assert len(set(got)) == len(got), "nothing twice"
        assert [b for b in sent[me] if b in set(got)] == got, "in order"
    assert all(p.up for side in pair.sides.values() for p in side.peers.values()), "and it heals"


@pytest.mark.parametrize("data", [b"", b"\xff\xff", pickle.dumps({"type": "response_vote", "term": 1})])
def test_raft_message_of_invalid_bytes_is_rejected(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        codec.decode(data)


def test_raft_message_that_forwards_a_command_is_rejected() -> None:
    with pytest.raises(ProtocolError, match="apply_command"):
        codec.encode({"type": "apply_command", "command": b"x"})


def test_raft_driver_disables_pickle_in_pysyncobj() -> None:
    library.check_library()
    import pysyncobj.journal
    import pysyncobj.serializer
    import pysyncobj.syncobj

    for patched in (pysyncobj.syncobj, pysyncobj.serializer):
        for name, argument in ("dumps", {"a": 1}), ("dumps", (b"command", 3, 2)), ("loads", pickle.dumps(1)), ("load", None):
            with pytest.raises(ProtocolError):
                getattr(patched.pickle, name)(argument)
    with pytest.raises(ProtocolError):
        pysyncobj.journal.loads(pickle.dumps(1))


def test_raft_driver_with_another_pysyncobj_version_raises_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "VERSION", "0.3.18")
    with pytest.raises(ConfigError, match=r"0\.3\.17\. Install"):
        library.check_library()


def test_raft_snapshot_file_that_is_incomplete_is_rejected() -> None:
    snapshot = SnapshotFile((b"\0last", 9, 2), (b"\0previous", 8, 2), ("a", "b"), b"image" * 20)
    data = encode_snapshot_file(snapshot)
    assert decode_snapshot_file(data) == snapshot
    for size in range(len(data)):
        with pytest.raises(StorageError):
            decode_snapshot_file(data[:size])
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(StorageError):
            decode_snapshot_file(bytes(damaged))
    with pytest.raises(StorageError):
        decode_snapshot_file(pickle.dumps(snapshot.image))


@pytest.mark.parametrize("lists", [{"a": "abc", "b": "abd"}, {"a": "ab", "b": "abc"}, {"a": "abc", "b": "bcd"}])
def test_raft_members_with_different_controller_lists_reject_each_other_and_log_both(
    lists: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair(lists=lists)
    for _ in range(20):
        pair.now += HELLO_PERIOD_S * 1.1
        for side in pair.sides.values():
            side.poll(pair.now)
        pair.take()
        while pair.bus:
            sender, to, frame = pair.bus.pop(0)
            if to in pair.sides:
                pair.sides[to].receive(sender, frame, pair.now)
            pair.take()
    assert pair.links == {"a": [], "b": []}
    said = [record.getMessage() for record in caplog.records if "controllers differ" in record.getMessage()]
    assert 1 <= len(said) <= 4
    assert any(", ".join(sorted(lists["a"])) in line and ", ".join(sorted(lists["b"])) in line for line in said)


@pytest.mark.parametrize("flags", [0, 4])
def test_raft_session_ignores_forged_hellos(flags: int) -> None:
    """Any client can publish a hello with the id of a member, but only readers of this member's messages can answer it."""
    pair = Pair()
    judged: list[bytes] = []
    side = pair.sides["b"]
    side.compare_reports = lambda _, tail: judged.append(tail) is None
    pair.connect()
    before, began = dict(pair.links), len(judged)
    for number in range(300):
        pair.now += 0.001
        epoch = (number * 7919) | 1
        side.receive("a", _FRAME.pack(_HELLO, flags, epoch, 0, 0, 1 << 20), pair.now)
        side.receive("a", _FRAME.pack(_HELLO, flags, epoch, 12345, 0, 2) + b"tail", pair.now)
        pair.sides["a"].send("b", b"%d" % number, 1, pair.now)
        pair.deliver()
    assert pair.links == before == {"a": [True], "b": [True]}
    assert pair.got["b"] == [b"%d" % number for number in range(300)]
    assert not [said for said in judged[began:] if said != b""], "what somebody says of a folder"
    assert side.counters["refused: hellos that answer nobody"] >= 600


def test_raft_session_of_a_dead_member_ends_during_forged_hellos() -> None:
    pair = Pair()
    pair.connect()
    side = pair.sides["b"]
    while pair.now < SILENCE_S + 0.1:
        pair.now += 0.1
        side.receive("a", _FRAME.pack(_HELLO, 0, side.peers["a"].epoch, 0, 0, 1), pair.now)
        side.poll(pair.now)
    assert pair.links["b"] == [True, False]


def test_raft_sessions_open_during_a_flood_of_forged_hellos() -> None:
    """Sessions also open after a restart of one member."""
    pair = Pair()
    for turn in range(2):
        for number in range(1000):
            pair.now += 0.001
            for me, other in ("ab", "ba"):
                pair.sides[me].receive(other, _FRAME.pack(_HELLO, 0, number * 2 + 1, 0, 0, 1), pair.now)
                pair.sides[me].poll(pair.now)
            pair.deliver()
        assert all(peer.up for side in pair.sides.values() for peer in side.peers.values()), turn
        pair.sides["a"].set_online(False)
        pair.sides["a"].set_online(True)
        assert not pair.sides["a"].peers["b"].up


def test_raft_session_of_a_restarted_member_is_replaced_at_once() -> None:
    """The first process ends without a message. Only the hello of the new process shows the restart."""
    pair = Pair()
    pair.connect()
    rng = random.Random(99)
    pair.sides["a"] = PeerSessions(
        "a",
        ("b",),
        lambda _, body, __: pair.got["a"].append(body) is None,
        lambda _, up: pair.links["a"].append(up),
        lambda: rng.getrandbits(63),
    )
    pair.sides["a"].set_online(True)
    pair.now += 0.1
    pair.sides["a"].poll(pair.now)
    pair.deliver()
    assert pair.links["b"] == [True, False, True]
    assert pair.sides["a"].peers["b"].up
    assert pair.sides["b"].counters["sessions ended: peer began anew"] == 1


def test_raft_session_ignores_its_own_echoed_hello() -> None:
    """A relay echoes messages to their sender."""
    pair = Pair()
    judged: list[bytes] = []
    side = pair.sides["b"]
    side.compare_reports = lambda _, tail: judged.append(tail) is None
    side.set_online(True)
    for _ in range(100):
        pair.now += 0.05
        side.poll(pair.now)
        said, side.outbox[:] = side.outbox[:], []
        for _, frame in said:
            side.receive("a", frame, pair.now)
    assert not side.peers["a"].up
    assert judged == []


def test_raft_snapshot_file_that_cannot_be_read_after_the_write_raises_corruption_error(tmp_path: Path) -> None:
    """PySyncObj trims the journal after the file is written [S16]."""
    entries = (b"\0last", 9, 2), (b"\0previous", 8, 2)
    write_snapshot_file(tmp_path / "dump", SnapshotFile(*entries, ("b", "a"), b"image"))
    assert load_snapshot_file(tmp_path / "dump").nodes == ("a", "b")
    with pytest.raises(CorruptionError):
        write_snapshot_file(tmp_path / "dump", SnapshotFile(entries[0], entries[0], ("a",), b"image"))


MEMBERS, HELLO, DATA = 3, 1, 2
FIRST, LAST = 1, 2
LIST = b"a, b, c"


def frame(
    kind: int, *, flags: int = 0, epoch: int = 70, own: int = 1, sequence: int = 0, term: int = 5, body: bytes = b""
) -> bytes:
    return struct.pack("<BBQQQQ", kind, flags, epoch, own, sequence, term) + body


class Side:
    """Provide member a of a, b and c in term 5. Its session epochs are 1, 3, 5, ..."""

    def __init__(self, **more: Any) -> None:
        self.drawn = 0
        self.delivered: list[tuple[str, bytes, int]] = []
        self.links: list[tuple[str, bool]] = []
        self.takes = True
        self.core = PeerSessions(
            "a", ("b", "c"), self._deliver, lambda *link: self.links.append(link), self._draw, term=lambda: 5, **more
        )
        self.b, self.c = self.core.peers["b"], self.core.peers["c"]

    def _draw(self) -> int:
        self.drawn += 2
        return self.drawn - 2

    def _deliver(self, *message: Any) -> bool:
        self.delivered.append(message)
        return self.takes

    def sent(self) -> list[tuple[str, bytes]]:
        frames, self.core.outbox[:] = self.core.outbox[:], []
        return frames

    def hear(self, data: bytes, now: float = 100.0, sender: str = "b") -> None:
        self.core.receive(sender, data, now)

    def connected(self, now: float = 100.0) -> Side:
        self.core.set_online(True)
        self.hear(frame(HELLO, own=self.b.own_epoch), now)
        assert self.b.up
        self.sent()
        self.links.clear()
        self.core.counters.clear()
        return self

    def counted(self, what: str) -> int:
        return self.core.counters[what]


# ---- hellos --------------------------------------------------------------------------------------------------------------------
def test_raft_hello_of_a_restarted_peer_is_answered_in_a_new_session() -> None:
    side = Side().connected()
    side.hear(frame(HELLO, epoch=71), 101.0)
    assert side.links == [("b", False)]
    assert side.counted("sessions ended: peer began anew") == 1
    assert (side.b.up, side.b.epoch, side.b.own_epoch, side.b.hello_at) == (False, 71, 5, 101.0)
    assert [data for _, data in side.sent()] == [frame(MEMBERS, epoch=5, own=71, body=LIST), frame(HELLO, epoch=5, own=71)]
    side.hear(frame(HELLO, epoch=71, own=5), 101.1)
    assert side.links == [("b", False), ("b", True)]
    assert side.sent() == []


def test_raft_hello_for_an_unknown_epoch_is_answered_once_per_interval() -> None:
    """Otherwise each forged hello costs this member a message."""
    side = Side().connected()
    answers = []
    for now in (101.0, 101.001, 101.002, 101.1):
        side.hear(frame(HELLO, epoch=71, own=12345), now)
        answers.append(len(side.sent()) > 0)
    assert answers == [True, False, False, True]


# ---- what is refused -------------------------------------------------------------------------------------------------------------
@each(
    ("data", "sender", "what"),
    [
        (frame(HELLO), "z", "unknown sender"),
        (frame(HELLO)[:-1], "b", "short frame"),
        (frame(9), "b", "stale frame"),
        (frame(DATA, epoch=71, flags=FIRST | LAST, sequence=1), "b", "stale frame"),
        (frame(DATA, own=2, flags=FIRST | LAST, sequence=1), "b", "stale frame"),
        (frame(DATA, term=MAX_NUMBER, flags=FIRST | LAST, sequence=1), "b", "stale frame"),
        (frame(HELLO, term=MAX_NUMBER), "b", "stale frame"),
        (frame(DATA, term=5 + (1 << 24), flags=FIRST | LAST, sequence=1), "b", "terms out of reach"),
        (frame(HELLO, term=5 + (1 << 24)), "b", "terms out of reach"),
    ],
)
def test_raft_frame_of_another_session_is_ignored_and_counted(data: bytes, sender: str, what: str) -> None:
    side = Side().connected(100.0)
    side.hear(data, 101.0, sender)
    assert dict(side.core.counters) == {f"{REFUSED}{what}": 1}
    assert (side.delivered, side.links, side.sent()) == ([], [], [])
    assert (side.b.received_at, side.b.received, side.b.term, side.b.up) == (100.0, 0, 5, True)


# ---- data ------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wrong", ["in the middle", "too much"])
def test_raft_session_ends_at_a_chunk_without_a_first_chunk_or_above_the_size_limit(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_MESSAGE_BYTES", 4)
    side = Side().connected()
    if wrong == "too much":
        side.hear(frame(DATA, flags=FIRST, sequence=1, body=b"ab"))
        side.hear(frame(DATA, sequence=2, body=b"cd"))
        assert side.b.parts_bytes == 4
        side.hear(frame(DATA, flags=LAST, sequence=3, body=b"e"))
    else:
        side.hear(frame(DATA, flags=LAST, sequence=1, body=b"ab"))
    assert (side.delivered, side.links, side.counted("sessions ended: bad chunk")) == ([], [("b", False)], 1)


def test_raft_message_after_a_repeated_first_chunk_drops_earlier_chunks() -> None:
    side = Side().connected()
    side.hear(frame(DATA, flags=FIRST, sequence=1, body=b"ab"))
    side.hear(frame(DATA, flags=FIRST, sequence=2, body=b"cd"))
    side.hear(frame(DATA, flags=LAST, sequence=3, body=b"e"))
    assert side.delivered == [("b", b"cde", 5)]


# ---- the bus -----------------------------------------------------------------------------------------------------------------------
def test_raft_sessions_and_unsent_frames_are_dropped_when_nats_disconnects() -> None:
    side = Side().connected()
    side.hear(frame(HELLO, own=3, epoch=80), sender="c")
    side.core.send("b", b"x", 5, 100.0)
    side.core.send("c", b"y", 5, 100.0)
    side.links.clear()
    side.core.set_online(False)
    assert (side.core.online, side.sent()) == (False, [])
    assert side.links == [("b", False), ("c", False)]
    assert side.counted("sessions ended: bus lost") == 2
    assert [(p.up, p.epoch, p.own_epoch) for p in (side.b, side.c)] == [(False, 0, 5), (False, 0, 7)]
    side.core.set_online(False)
    assert (side.links, side.counted("sessions ended: bus lost")) == ([("b", False), ("c", False)], 2)
    side.core.poll(200.0)
    assert side.sent() == []
    side.core.set_online(True)
    side.core.poll(200.0)
    assert [(to, data[0]) for to, data in side.sent()] == [("b", MEMBERS), ("b", HELLO), ("c", MEMBERS), ("c", HELLO)]
