"""Test the Raft transport between PySyncObj and the peer sessions: accepted messages and the confirmation of a leader."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.wire.decode_errors import REFUSED
from sidecar.quorum import codec
from sidecar.quorum.probation import MAX_MISSED, DirectoryLineage
from sidecar.quorum.transport import _TRANSFER_S, VOTE_AGAIN_S, SessionTransport

VOTE = {"type": "request_vote", "term": 4, "last_log_index": 9, "last_log_term": 3}
TIMEOUT = {"type": "timeout_now", "term": 4}
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


@pytest.mark.parametrize(
    ("message", "heard"),
    [(VOTE, False), ({"type": "response_vote", "term": 4}, False), (TIMEOUT, False), (APPEND, True), (NEXT, True)],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_raft_member_on_probation_applies_entries_and_grants_no_vote(message: dict[str, Any], heard: bool) -> None:
    bench = Bench(on_probation=True)
    assert bench.hear("b", message), "nothing is wrong with it"
    assert bool(bench.given) is heard
    told = message if message["type"] != "timeout_now" else VOTE
    assert bench.say(told) is heard
    assert bool(bench.sent) is heard


def test_raft_append_answer_of_a_member_on_probation_has_success_false() -> None:
    bench = Bench(on_probation=True)
    bench.hear("b", APPEND)
    bench.say(NEXT)
    ((_, said),) = bench.sent
    assert (said["success"], said["reset"], said["echo_ns"], said["applied_index"]) == (False, True, 0, 8)
    bench.core.on_probation = False
    bench.say(NEXT)
    said = bench.sent[1][1]
    assert (said["success"], said["reset"], said["echo_ns"], said["applied_index"]) == (True, False, 70, 8)


@pytest.mark.parametrize(
    ("sender", "after_s", "transfer"),
    [("b", 0.0, True), ("b", _TRANSFER_S - 0.01, True), ("b", _TRANSFER_S, False), ("c", 0.0, False)],
)
def test_raft_vote_request_during_a_leadership_transfer_is_marked_as_transfer(
    sender: str, after_s: float, transfer: bool
) -> None:
    bench = Bench()
    bench.hear(sender, TIMEOUT)
    bench.now += after_s
    bench.say(VOTE)
    assert bench.sent[0][1]["transfer"] is transfer


@pytest.mark.parametrize(
    ("quiet_s", "transfer", "leads", "given"),
    [
        (0.0, False, False, False),
        (VOTE_AGAIN_S - 0.01, False, False, False),
        (VOTE_AGAIN_S, False, False, True),
        (0.0, True, False, True),
        (0.0, False, True, True),
    ],
)
def test_raft_member_with_a_live_leader_grants_no_vote(quiet_s: float, transfer: bool, leads: bool, given: bool) -> None:
    bench = Bench()
    bench.hear("b", APPEND)
    bench.now += quiet_s
    bench.core.leads = leads
    assert bench.hear("c", {**VOTE, "transfer": transfer})
    assert ("request_vote" in [message["type"] for message in bench.given]) is given
    assert bench.counters.get("votes_rejected_leader_known", 0) == (0 if given else 1)


def test_raft_append_of_an_earlier_term_does_not_mark_the_leader_alive() -> None:
    bench = Bench(raftCurrentTerm=5)
    bench.hear("b", APPEND, term=5)
    bench.hear("c", {**VOTE, "term": 5}, term=5)
    assert [message["type"] for message in bench.given] == ["append_entries", "request_vote"]
    assert bench.transport._echoes == {}


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


def test_raft_member_with_an_older_data_directory_receives_entries_and_has_no_vote() -> None:
    bench = Bench(leads=True)
    bench.transport.sessions.peers["b"].trusted = False
    assert bench.hear("b", VOTE)
    assert bench.hear("b", APPEND)
    assert (bench.given, bench.counters) == ([], {"messages_of_older_directory": 2})
    assert bench.hear("b", NEXT)
    (given,) = bench.given
    assert (given["success"], given["reset"], bench.transport.applied["b"]) == (False, True, 3)
    assert bench.transport.confirmed_ns() == 0


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


def test_data_directory_history_missing_nonce_is_reported_once(tmp_path: Any) -> None:
    numbers = iter(range(101, 999, 2))

    def folder(name: str) -> DirectoryLineage:
        (tmp_path / name).mkdir(exist_ok=True)
        return DirectoryLineage(tmp_path / name, lambda: next(numbers))

    own, peer = folder("own"), folder("peer")
    peer.known["own"] = 77  # a process of which this folder holds nothing
    for _ in range(3):
        assert own.process_hello("peer", peer.tail_for("own"))
    assert own.missed == (77,)
    for nonce in range(1001, 1001 + 2 * MAX_MISSED, 2):
        peer.known["own"] = nonce
        own.process_hello("peer", peer.tail_for("own"))
    assert own.missed == tuple(range(1001 + 0, 1001 + 2 * MAX_MISSED, 2))[-MAX_MISSED:]
    own.caught_up()
    assert (own.missed, own.holds(1001 + 2 * MAX_MISSED - 2), own.known) == ((), True, {})
    peer.known["own"] = own.nonce
    own.process_hello("peer", peer.tail_for("own"))
    assert own.missed == ()
