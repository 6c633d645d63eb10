"""Test single steps of a peer session: restarted peers, foreign frames, chunks, and the end of a session."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from liftpy.core.wire.decode_errors import REFUSED
from sidecar.quorum import peer_sessions as module
from sidecar.quorum.codec import MAX_NUMBER
from sidecar.quorum.peer_sessions import PeerSessions
from tests.each import each

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
