"""Test the Raft transport between PySyncObj and the peer sessions: accepted messages and the confirmation of a leader."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.wire.decode_errors import REFUSED
from liftpy.errors import ProtocolError
from sidecar.quorum import codec
from sidecar.quorum.codec import seal, unseal
from sidecar.quorum.transport import SessionTransport

APPEND = {
    "type": "append_entries",
    "term": 4,
    "commit_index": 2,
    "entries": [],
    "prevLogIdx": 5,
    "prevLogTerm": 3,
    "sent_ns": 70,
}
NEXT = {"type": "next_node_idx", "next_node_idx": 6, "reset": False, "success": True, "applied_index": 3, "echo_ns": 0}


class Bench:
    """Provide member a of a, b and c with fixed clocks. ``given``: messages passed to PySyncObj. ``sent``: sent messages."""

    def __init__(self, members: tuple[str, ...] = ("a", "b", "c"), **core: Any) -> None:
        self.now, self.stamp = 100.0, 1000
        self.given: list[dict[str, Any]] = []
        self.sent: list[tuple[str, dict[str, Any]]] = []
        made: Any = SessionTransport("a", members, clock=lambda: self.now, draw=lambda: 5, stamp=lambda: self.stamp)
        given = {"on_probation": False, "leads": False, "raftCurrentTerm": 4, "leader_id": "b", "raftLastApplied": 8}
        self.core: Any = SimpleNamespace(**(given | core))
        self.core.controllers = ControllerList(members)
        self.core.pre_vote = SimpleNamespace(end=lambda: None)
        self.core.without_confirming = lambda node, work: work()
        made._core = self.core
        made._hardening = SimpleNamespace(deliver=self._deliver)
        peers = {name: SimpleNamespace(trusted=True) for name in members[1:]}
        made.sessions = SimpleNamespace(counters=Counter(), peers=peers, send=self._send, poll=lambda now: None)
        self.transport = made

    def _deliver(self, node: Any, message: dict[str, Any], term: int) -> bool:
        self.given.append(message)
        return True

    def _send(self, peer: str, body: bytes, term: int, now: float) -> bool:
        self.sent.append((peer, codec.decode(body)))
        return True

    def hear(self, sender: str, message: dict[str, Any], term: int = 4) -> bool:
        return bool(self.transport._deliver(sender, codec.encode(message), term))

    def say(self, message: dict[str, Any]) -> bool:
        return bool(self.transport.send(self.transport._nodes["b"], message))

    @property
    def counters(self) -> dict[str, int]:
        return dict(self.transport.sessions.counters)


def test_raft_transport_rejects_invalid_messages_and_messages_with_a_term_above_their_frame() -> None:
    bench = Bench()
    assert bench.transport._deliver("b", b"garbage", 4) is False
    assert bench.hear("b", APPEND, term=3) is False
    assert bench.counters == {f"{REFUSED}messages": 2}
    assert bench.hear("b", APPEND, term=4)
    assert [message["type"] for message in bench.given] == ["append_entries"]


def test_raft_leader_is_confirmed_by_answers_of_a_majority_in_its_term() -> None:
    bench = Bench(("a", "b", "c", "d", "e"), leads=True)
    confirmed = bench.transport.confirmed_ns
    bench.hear("b", {**NEXT, "echo_ns": 900})
    assert confirmed() == 0, "itself and one more are no majority of five"
    bench.hear("c", {**NEXT, "echo_ns": 700})
    assert confirmed() == 700
    bench.hear("d", {**NEXT, "echo_ns": 800})
    assert confirmed() == 800
    bench.hear("c", {**NEXT, "echo_ns": 5000})
    assert confirmed() == 900, "nobody has answered what was not sent yet"
    bench.hear("b", {**NEXT, "echo_ns": 100})
    assert confirmed() == 900, "an older answer takes nothing back"
    bench.hear("e", {**NEXT, "success": False})
    bench.core.raftCurrentTerm = 5
    assert confirmed() == 0, "of an earlier term"
    bench.hear("b", {**NEXT, "echo_ns": 950}, term=4)
    assert confirmed() == 0
    for peer in ("b", "c"):
        bench.hear(peer, NEXT, term=5)
    assert confirmed() == 1000
    assert Bench(("a",), leads=True).transport.confirmed_ns() == 1000, "alone it is its own majority"


def test_raft_forwarded_command_is_rejected_with_the_next_tick() -> None:
    bench = Bench()
    answers: list[Any] = []
    bench.transport._onMessageReceived = lambda node, message: answers.append((node.id, message))
    assert not bench.say({"type": "apply_command", "request_id": 17})
    assert not bench.say({"type": "apply_command"})
    assert (bench.sent, answers) == ([], [])
    bench.transport.poll()
    bench.transport.poll()
    assert [(node, message["request_id"], message["type"]) for node, message in answers] == [
        ("b", 17, "apply_command_response")
    ]


# ---- checksums of frames ---------------------------------------------------------------------------------------------------
FRAME = bytes(range(100))


def test_raft_frame_with_a_valid_checksum_is_returned_unchanged() -> None:
    for to, sender in (("n1", "n2"), ("x" * 64, "y" * 64), ("n1", "n")):
        assert unseal(to, sender, seal(to, sender, FRAME)) == FRAME


def test_raft_frame_with_any_flipped_bit_is_rejected() -> None:
    sealed = seal("n1", "n2", FRAME)
    for at in range(len(sealed)):
        for bit in range(8):
            changed = sealed[:at] + bytes([sealed[at] ^ 1 << bit]) + sealed[at + 1 :]
            if at == 6 and bit:
                continue  # flags without a meaning
            with pytest.raises(ProtocolError):
                unseal("n1", "n2", changed)
    for end in range(len(sealed)):
        with pytest.raises(ProtocolError):
            unseal("n1", "n2", sealed[:end])


@pytest.mark.parametrize(
    ("to", "sender"), [("n2", "n1"), ("n1", "n3"), ("n3", "n2"), ("n1", "n22"), ("n", "n2"), ("n1.n2", "")]
)
def test_raft_frame_received_on_another_subject_is_rejected(to: str, sender: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        unseal(to, sender, seal("n1", "n2", FRAME))
    assert caught.value.reason == "subject"
