"""Test single steps of a peer session: bytes of its frames, hello intervals, and the end of a session."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pytest

from liftpy.core.wire.decode_errors import REFUSED
from liftpy.errors import ProtocolError
from sidecar.quorum import peer_sessions as module
from sidecar.quorum.codec import MAX_NUMBER
from sidecar.quorum.peer_sessions import SELDOM_HELLO_S, SILENCE_S, Peer, PeerSessions

MEMBERS, HELLO, DATA = 3, 1, 2
FIRST, LAST, NEW = 1, 2, 4
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


# ---- a peer nobody has heard of ------------------------------------------------------------------------------------------------
def test_raft_session_with_a_new_peer_has_no_state() -> None:
    b = Peer("b", 1)
    assert (b.up, b.is_new, b.heard, b.term, b.trusted, b.other_list, b.beyond_since) == (
        False,
        False,
        False,
        0,
        True,
        False,
        None,
    )
    assert (b.epoch, b.sent, b.received, b.strangers, b.parts, b.parts_bytes) == (0, 0, 0, {}, None, 0)
    assert max(b.received_at, b.hello_at) < -1e6
    side = PeerSessions("a", ("b",), lambda *_: True, lambda *_: None, lambda: 8)
    assert (side.online, side.outbox, side.is_new(), side.term(), side.tail_for("b"), side.compare_reports("b", b"")) == (
        False, [], False, 0, b"", True
    )  # fmt: skip
    assert side.peers["b"].own_epoch == 9, "an epoch is odd, so never 0"
    assert (side.chunk_bytes, module.MAX_MESSAGE_BYTES) == (256 * 1024, 256 * 1024 * 1024)


# ---- hellos --------------------------------------------------------------------------------------------------------------------
def test_raft_hello_is_sent_after_the_controller_list_with_both_session_epochs() -> None:
    side = Side(is_new=lambda: True, tail_for=lambda peer: b"tail of " + peer.encode())
    side.core.set_online(True)
    side.core.poll(100.0)
    assert side.sent() == [
        ("b", frame(MEMBERS, epoch=1, own=0, body=LIST)),
        ("b", frame(HELLO, flags=NEW, epoch=1, own=0, body=b"tail of b")),
        ("c", frame(MEMBERS, epoch=3, own=0, body=LIST)),
        ("c", frame(HELLO, flags=NEW, epoch=3, own=0, body=b"tail of c")),
    ]
    plain = Side()
    plain.core.set_online(True)
    plain.hear(frame(HELLO))
    assert [data for _, data in plain.sent()] == [frame(MEMBERS, epoch=1, own=70, body=LIST), frame(HELLO, epoch=1, own=70)]
    assert plain.b.up


def test_raft_hellos_are_sent_four_times_a_second_and_half_as_often_in_a_session() -> None:
    side = Side()
    side.core.poll(100.0)
    assert side.sent() == [], "the bus was not reached"
    side.core.set_online(True)
    due = []
    for step in range(100, 200):
        side.core.poll(step / 100)
        due += [(to, step) for to, data in side.sent() if data[0] == HELLO]
    assert due == [("b", 100), ("c", 100), ("b", 126), ("c", 126), ("b", 152), ("c", 152), ("b", 178), ("c", 178)]
    side.connected(2.0)
    side.core.poll(2.44)
    assert [to for to, data in side.sent() if data[0] == HELLO] == ["c"]
    side.core.poll(2.46)
    assert [to for to, data in side.sent() if data[0] == HELLO] == ["b"], "the peer may have missed the one before"


class BusySide:
    """Provide a side in a session that polls ten times per second. The peer sends a message before each poll."""

    def __init__(self) -> None:
        self.tail = b"tail"
        self.side = Side(tail_for=lambda _: self.tail).connected(100.0)
        self.now = 100.0
        self.sequence = 0

    def hellos(self, seconds: float, *, silent: bool = False) -> list[float]:
        """Let time pass. Return the seconds at which the peer received a hello."""
        found = []
        began = self.now
        for step in range(1, round(seconds * 10) + 1):
            self.now = began + step / 10
            if not silent:
                self.sequence += 1
                self.side.hear(frame(DATA, flags=FIRST | LAST, sequence=self.sequence, body=b"x"), self.now)
            self.side.core.poll(self.now)
            found += [self.now - 100.0 for to, data in self.side.sent() if (to, data[0]) == ("b", HELLO)]
        return found


def test_raft_hellos_without_change_are_sent_rarely_during_message_traffic() -> None:
    busy = BusySide()
    early = busy.hellos(3.0)
    assert len(early) >= 3, "one of them may be lost"
    later = busy.hellos(12.0)
    pauses = [late - soon for soon, late in pairwise([early[-1], *later])]
    assert pauses == pytest.approx([SELDOM_HELLO_S] * len(pauses), abs=0.51)
    assert busy.side.b.up


def test_raft_hello_with_changed_content_is_repeated_at_the_short_interval() -> None:
    busy = BusySide()
    busy.hellos(5.0)
    began, busy.tail = busy.now - 100.0, b"another"
    assert busy.hellos(2.5)[:3] == pytest.approx([began + 0.5 * number for number in range(1, 4)], abs=0.41)


def test_raft_hello_is_repeated_at_the_short_interval_after_the_peer_sends_a_changed_hello() -> None:
    busy = BusySide()
    busy.hellos(5.0)
    began = busy.now - 100.0
    busy.side.hear(frame(HELLO, body=b"new tail of the peer"), busy.now)
    assert busy.hellos(2.5)[:3] == pytest.approx([began + 0.5 * number for number in range(1, 4)], abs=0.41)


def test_raft_hellos_return_to_the_short_interval_when_messages_end() -> None:
    busy = BusySide()
    busy.hellos(5.0)
    began = busy.now - 100.0
    first, second, *_ = busy.hellos(1.4, silent=True)
    assert first - began < 0.8
    assert second - began < SILENCE_S


def test_raft_hello_to_a_new_process_of_the_peer_contains_the_controller_list() -> None:
    """The new process may have another list in its settings. In a session, repeated hellos omit the list."""
    busy = BusySide()
    busy.hellos(5.0)
    busy.side.hear(frame(HELLO, epoch=71, own=0, body=b"tail"), busy.now)
    assert [data[0] for to, data in busy.side.sent() if to == "b"] == [MEMBERS, HELLO]


def test_raft_session_ends_one_and_a_half_seconds_after_the_last_frame() -> None:
    side = Side().connected(100.0)
    side.hear(frame(DATA, flags=FIRST | LAST, sequence=1, body=b"x"), 101.0)
    side.core.poll(102.5)
    assert side.b.up
    side.core.poll(102.51)
    assert (side.links, side.counted("sessions ended: silence")) == ([("b", False)], 1)
    assert (side.b.own_epoch, side.b.epoch) == (5, 70), "what it says in the old session is stale"
    side.hear(frame(DATA, flags=FIRST | LAST, sequence=2, body=b"y"), 102.6)
    assert ([body for _, body, _ in side.delivered], side.counted(f"{REFUSED}stale frame")) == ([b"x"], 1)


def test_raft_hello_is_accepted_only_if_addressed_to_the_current_process() -> None:
    told: list[tuple[str, bytes]] = []
    side = Side(compare_reports=lambda *said: told.append(said) is not None)  # type: ignore[func-returns-value]
    side.core.set_online(True)
    side.hear(frame(HELLO, flags=NEW, own=99, body=b"tail", term=4))
    assert (side.b.heard, side.b.is_new, side.b.term, side.b.epoch, told) == (False, False, 0, 0, [])
    side.hear(frame(HELLO, flags=NEW, body=b"tail", term=4))
    assert (side.b.heard, side.b.is_new, side.b.term, side.b.epoch, side.b.up) == (True, True, 4, 70, True)
    assert (side.b.trusted, told, side.b.received_at) == (False, [("b", b"tail")], 100.0)
    assert side.links == [("b", True)]
    assert side.counted("sessions_started") == 1
    side.hear(frame(HELLO), 101.0)
    assert (side.b.is_new, side.b.term, side.b.received_at, side.counted("sessions_started")) == (False, 5, 101.0, 1)

    def refuses(*_: Any) -> bool:
        raise ProtocolError("no tail")

    side.core.compare_reports = refuses
    side.hear(frame(HELLO, flags=NEW, epoch=71, term=9), 102.0)
    assert (side.b.epoch, side.b.is_new, side.b.received_at, side.counted(f"{REFUSED}hellos")) == (70, False, 101.0, 1)


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


# ---- strangers -----------------------------------------------------------------------------------------------------------------
def test_raft_hello_to_another_process_is_answered_once_with_the_current_epoch() -> None:
    side = Side()
    side.core.set_online(True)
    side.hear(frame(HELLO, own=0), 100.0)
    assert [data for _, data in side.sent()] == [frame(MEMBERS, epoch=1, own=70, body=LIST), frame(HELLO, epoch=1, own=70)]
    assert side.b.hello_at == 100.0
    side.hear(frame(HELLO, own=0), 100.02)
    assert side.sent() == [], "it was answered a moment ago"
    side.hear(frame(HELLO, own=0, epoch=71), 100.02)
    assert len(side.sent()) == 2, "another one has a turn of its own"
    side.hear(frame(HELLO, own=0), 100.021)
    assert len(side.sent()) == 2
    assert side.b.strangers == {71: 100.02, 70: 100.021}
    side.hear(frame(HELLO, own=0, epoch=1), 100.1)
    assert side.sent() == [], "its own hello, said back to it"
    assert side.counted(f"{REFUSED}hellos that answer nobody") == 5
    assert (side.b.epoch, side.b.up, side.links) == (0, False, [])


def test_raft_session_stores_at_most_64_unknown_processes() -> None:
    side = Side()
    side.core.set_online(True)
    for number in range(70):
        side.hear(frame(HELLO, own=0, epoch=100 + number), 100.0)
    assert len(side.sent()) == 2 * 64
    assert list(side.b.strangers) == list(range(100, 164))
    side.hear(frame(HELLO, own=0, epoch=100 + 69), 100.03)
    assert (len(side.sent()), side.b.strangers) == (2, {169: 100.03})


# ---- what is refused -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
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


def test_raft_controller_list_of_a_peer_is_accepted_only_with_the_current_epoch(caplog: pytest.LogCaptureFixture) -> None:
    side = Side().connected()
    side.hear(frame(MEMBERS, own=9, body=b"a, b, d"))
    assert side.b.up
    assert not side.b.other_list
    side.hear(frame(MEMBERS, body=b"a, b, d"))
    assert (side.b.up, side.b.other_list, side.links) == (False, True, [("b", False)])
    assert side.counted("sessions ended: another list of controllers") == 1
    side.hear(frame(HELLO, own=side.b.own_epoch))
    assert (side.b.up, side.counted(f"{REFUSED}hellos")) == (False, 1)
    side.hear(frame(MEMBERS, own=side.b.own_epoch, body=LIST))
    side.hear(frame(HELLO, own=side.b.own_epoch))
    assert (side.b.up, side.b.other_list) == (True, False), "the settings were mended"
    said = [r.getMessage() for r in caplog.records]
    assert said == [
        "controllers differ here=a, b, c there=a, b, d node=b: the two nodes reject each other until both lists match"
    ]
    side.hear(frame(MEMBERS, own=side.b.own_epoch, body=b"\xff'" * 900), 109.9)
    assert len(caplog.records) == 1, "said once in ten seconds"
    side.hear(frame(MEMBERS, body=b"q" * 5000), 110.0, sender="z")
    assert (len(caplog.records), side.counted(f"{REFUSED}other lists of controllers")) == (2, 3)
    assert caplog.records[-1].getMessage().count("q") == 1024
    assert side.counted(f"{REFUSED}unknown sender") == 1


def test_raft_term_far_above_the_own_term_is_logged_once_per_second(caplog: pytest.LogCaptureFixture) -> None:
    side = Side().connected(100.0)
    far = frame(HELLO, term=1 << 60)
    for at in (101.0, 101.5, 101.99, 102.0, 102.5):
        side.hear(far, at)
    assert [r.getMessage() for r in caplog.records] == [f"impossible term rejected peer=b peer_term={1 << 60} term=5"] * 2
    assert side.b.beyond_since == 101.0
    side.hear(frame(HELLO), 103.0)
    assert side.b.beyond_since is None


# ---- data ------------------------------------------------------------------------------------------------------------------------
def test_raft_message_is_sent_in_numbered_chunks() -> None:
    side = Side().connected()
    side.core.fit(1024 + 256)
    assert side.core.chunk_bytes == 1024
    assert side.core.send("b", b"x" * 1024 + b"y" * 1024 + b"z", 6, 100.0)
    assert side.core.send("b", b"w" * 1024, 7, 100.0)
    assert side.sent() == [
        ("b", frame(DATA, flags=FIRST, epoch=1, own=70, sequence=1, term=6, body=b"x" * 1024)),
        ("b", frame(DATA, epoch=1, own=70, sequence=2, term=6, body=b"y" * 1024)),
        ("b", frame(DATA, flags=LAST, epoch=1, own=70, sequence=3, term=6, body=b"z")),
        ("b", frame(DATA, flags=FIRST | LAST, epoch=1, own=70, sequence=4, term=7, body=b"w" * 1024)),
    ]
    assert side.counted("messages_sent") == 2
    assert not side.core.send("c", b"x", 6, 100.0), "there is no session"
    assert not side.core.send("z", b"x", 6, 100.0)
    assert (side.sent(), side.counted("messages_sent")) == ([], 2)
    for max_payload, chunk in ((1279, 1024), (1281, 1025), (256 * 1024 + 256, 256 * 1024), (1 << 30, 256 * 1024)):
        side.core.fit(max_payload)
        assert side.core.chunk_bytes == chunk


def test_raft_message_is_delivered_when_its_last_chunk_arrives() -> None:
    side = Side().connected()
    side.hear(frame(DATA, flags=FIRST, sequence=1, body=b"ab", term=4))
    side.hear(frame(DATA, sequence=2, body=b"cd", term=4))
    assert side.delivered == []
    side.hear(frame(DATA, sequence=2, body=b"cd", term=4))
    side.hear(frame(DATA, flags=LAST, sequence=3, body=b"e", term=5), 101.25)
    assert side.delivered == [("b", b"abcde", 5)]
    assert (side.b.parts, side.b.received, side.b.received_at) == (None, 3, 101.25)
    assert side.counted(f"{REFUSED}duplicate frame") == 1
    side.takes = False
    side.hear(frame(DATA, flags=FIRST | LAST, sequence=4, body=b"f"))
    assert (side.links, side.counted("sessions ended: refused message")) == ([("b", False)], 1)


def test_raft_session_ends_at_a_gap_and_sends_a_hello_at_once() -> None:
    side = Side().connected()
    side.core.send("b", b"x", 5, 100.0)
    side.hear(frame(DATA, flags=FIRST, sequence=1, body=b"ab"))
    side.sent()
    side.hear(frame(DATA, flags=LAST, sequence=3, body=b"e"), 101.0)
    assert (side.delivered, side.links, side.counted("sessions ended: gap")) == ([], [("b", False)], 1)
    assert (side.b.up, side.b.sent, side.b.received, side.b.parts, side.b.own_epoch) == (False, 0, 0, None, 5)
    assert [data for _, data in side.sent()] == [frame(MEMBERS, epoch=5, own=70, body=LIST), frame(HELLO, epoch=5, own=70)]


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


def test_raft_message_whose_first_chunk_arrives_again_drops_earlier_chunks() -> None:
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
