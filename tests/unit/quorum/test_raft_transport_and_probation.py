"""Test single steps of a Raft member: lost sessions, pre-votes, durable state and the end of probation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.metadata.controller_list import ControllerList
from sidecar.quorum.probation import FILE, MARKER, DirectoryLineage, Probation
from tests.unit.quorum.test_probation import peer
from tests.unit.quorum.test_raft_rules import Core as LogCore
from tests.unit.quorum.test_raft_rules import Hard
from tests.unit.quorum.test_raft_transport import APPEND, NEXT, Bench

PRE_VOTE = {"type": "pre_vote", "term": 7, "last_log_index": 9, "last_log_term": 3}


# ---- the transport ---------------------------------------------------------------------------------------------------------------
class Told(Bench):
    """Provide a bench whose core and PySyncObj node record their calls."""

    def __init__(self, **core: Any) -> None:
        super().__init__(log=SimpleNamespace(last_term=3, last_index=9), turn_is_late=False, **core)
        self.told: list[Any] = []
        for name in ("forget_match", "cancel_snapshot", "defer_election", "step_down", "pre_vote_granted"):
            setattr(self.core, name, lambda *given, name=name: self.told.append((name, *(getattr(g, "id", g) for g in given))))
        self.transport._hardening.session_ended = lambda peer: self.told.append(("session ended", peer))
        self.transport._onNodeConnected = lambda node: self.told.append(("connected", node.id))
        self.transport._onNodeDisconnected = lambda node: self.told.append(("disconnected", node.id))
        self.core.pre_vote = SimpleNamespace(end=lambda: self.told.append("a leader is heard"))


def test_raft_session_loss_disconnects_the_peer_and_cancels_its_snapshot() -> None:
    bench = Told()
    bench.hear("b", APPEND)
    bench.told.clear()
    bench.transport._session_changed("b", False)
    assert bench.told == [("disconnected", "b"), ("cancel_snapshot", "b"), ("session ended", "b")]
    assert bench.transport._echoes == {}
    bench.told.clear()
    bench.transport._session_changed("b", True)
    assert bench.told == [("forget_match", "b"), ("connected", "b")], "it may be another process, on another folder"
    bench.transport._core = bench.transport._hardening = None
    bench.told.clear()
    bench.transport._session_changed("b", True)
    bench.transport._session_changed("b", False)
    assert bench.told == [("connected", "b"), ("disconnected", "b")], "before the library's node is made"


def test_raft_pre_vote_grant_postpones_the_election_of_the_granting_member() -> None:
    bench = Told(leads=False)
    assert bench.hear("b", PRE_VOTE, term=7)
    assert bench.told == [("defer_election", 0.1)]
    assert bench.sent == [("b", {"type": "pre_vote_granted", "term": 4})]
    assert (bench.counters, bench.given) == ({}, [])


@pytest.mark.parametrize(
    ("quiet_s", "log", "late", "granted"),
    [(0.4, 9, False, True), (0.39, 9, False, False), (0.4, 8, False, False), (0.4, 9, True, False)],
)
def test_raft_pre_vote_with_a_live_leader_or_a_shorter_log_is_not_granted(
    quiet_s: float, log: int, late: bool, granted: bool
) -> None:
    bench = Told(leads=False)
    bench.hear("c", APPEND)
    bench.core.turn_is_late = late
    bench.told.clear()
    bench.given.clear()
    bench.now += quiet_s
    assert bench.hear("b", {**PRE_VOTE, "last_log_index": log}, term=7)
    assert [kind["type"] for _, kind in bench.sent] == (["pre_vote_granted"] if granted else [])
    assert bench.counters.get("pre_votes_rejected", 0) == (0 if granted else 1)
    assert bench.told == ([("defer_election", 0.1)] if granted else [])
    assert bench.given == []


def test_raft_leader_that_receives_a_pre_vote_request_of_a_higher_term_steps_down() -> None:
    bench = Told(leads=True)
    assert bench.hear("b", PRE_VOTE, term=7)
    assert (bench.told, bench.sent, bench.counters) == ([("step_down", 7)], [], {"pre_votes_rejected": 1})


def test_raft_pre_vote_grant_is_not_passed_to_pysyncobj() -> None:
    bench = Told()
    assert bench.hear("b", {"type": "pre_vote_granted", "term": 4})
    assert (bench.told, bench.given) == ([("pre_vote_granted", "b", 4)], [])


def test_raft_append_entries_marks_the_leader_alive_and_returns_its_timestamp_in_the_answer() -> None:
    bench = Told()
    bench.hear("b", APPEND)
    assert bench.told == ["a leader is heard"]
    assert (bench.transport._leader_contact_s, bench.transport._echoes) == (100.0, {"b": 70})
    bench.say({**APPEND, "entries": []})
    assert bench.sent[-1][1]["sent_ns"] == 1000
    bench.hear("b", {**NEXT, "applied_index": 5})
    assert bench.transport.applied == {"b": 5, "c": 0}


def test_raft_member_with_an_older_data_directory_is_logged_when_detected_and_when_caught_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Told()
    answers = iter([True, False, False, True])
    bench.transport._probation = SimpleNamespace(
        process_hello=lambda *_: next(answers), lineage=SimpleNamespace(sync=lambda: bench.told.append("sync"))
    )
    believed = []
    for _ in range(4):
        bench.transport.sessions.peers["b"].trusted = trusted = bench.transport._judge("b", b"")
        believed.append(trusted)
    assert believed == [True, False, False, True]
    assert bench.told == [("forget_match", "b")] * 2, "what it acknowledged counts no more"
    assert bench.counters == {"peer_directory_older": 1, "peer_directory_current": 1}
    assert ["older: perhaps an older copy" in r.getMessage() for r in caplog.records] == [True, False]
    bench.transport.sync()
    assert bench.told[-1] == "sync"


# ---- whose memory a folder holds ---------------------------------------------------------------------------------------------------
def lineage(folder: Path, nonce: int = 5, **more: Any) -> DirectoryLineage:
    return DirectoryLineage(folder, lambda: nonce, **more)


def test_data_directory_history_is_flushed_after_catching_up(tmp_path: Path) -> None:
    own = lineage(tmp_path, 4)
    assert own.nonce == 5, "a nonce is never 0"
    own.known, own.missed, own._known_as, own._changed = {"b": 7}, (4711, 4713), {"b": 5}, True
    own.sync()
    own.caught_up()
    again = lineage(tmp_path, 9)
    assert (again.missed, again.known, again.earlier, again._known_as) == ((), {}, (4711, 4713, 5), {"b": 5})
    assert [again.holds(nonce) for nonce in (9, 5, 4711, 4713, 7)] == [True, True, True, True, False]
    before = (tmp_path / FILE).stat().st_mtime_ns
    again.caught_up()
    again.sync()
    assert (tmp_path / FILE).stat().st_mtime_ns == before, "nothing has changed"


def test_data_directory_history_of_a_peer_is_stored_with_the_next_flush(tmp_path: Path) -> None:
    own, other = lineage(tmp_path / "", 5), Path(tmp_path / "b")
    other.mkdir()
    peer_folder = lineage(other, 9)
    peer_folder.known["a"] = own.nonce
    for _ in range(2):
        assert own.process_hello("b", peer_folder.tail_for("a"))
        assert own._changed
        own.sync()
        own._changed = False
        assert own.process_hello("b", peer_folder.tail_for("a"))
        assert not own._changed, "the same again"
        own.known.clear()
    stored = lineage(tmp_path, 11)
    assert (stored.known, stored._known_as) == ({"b": 9}, {"b": 5})


# ---- probation ---------------------------------------------------------------------------------------------------------------------
class Core:
    """Provide the parts of PySyncObj that probation uses."""

    def __init__(self, last_index: int = 1) -> None:
        self.log = SimpleNamespace(last_index=last_index, sync=lambda: self.told.append("flushed"))
        self.selfNode = SimpleNamespace(id="a")
        self.on_probation = False
        self.controllers = ControllerList(("a", "b", "c"))
        self.told: list[Any] = []

    def begin_probation(self) -> None:
        self.told.append("begins")

    def end_probation(self) -> None:
        self.told.append("ends")

    def vote_is_spent_up_to(self, term: int) -> None:
        self.told.append(term)


def on_probation(folder: Path, peers: list[Any], **more: Any) -> tuple[Any, Core]:
    made, core = Probation(folder, ("a", "b", "c"), draw=lambda: 5, **more), Core()
    made.attach(core, {peer.node_id: peer for peer in peers})  # type: ignore[arg-type]
    assert core.on_probation is (not made.over)
    return made, core


def test_raft_group_first_start_with_only_a_majority_of_controllers_requires_the_operator_option(tmp_path: Path) -> None:
    peers = [peer("b"), peer("c", heard=False)]
    made, core = on_probation(tmp_path, peers)
    made.end_if_complete()
    assert (made.over, core.told) == (False, [])
    made, core = on_probation(tmp_path, peers, majority=True)
    made.end_if_complete()
    assert (made.over, made.has_been_member, core.told) == (True, True, [0, "flushed", "ends"])
    assert (tmp_path / MARKER).read_bytes() == b"a\n"
    made.end_if_complete()
    assert core.told == [0, "flushed", "ends"], "once"
    again, core = on_probation(tmp_path, peers)
    assert (again.over, again.has_been_member, core.on_probation) == (True, True, False)


def test_raft_group_first_start_sets_the_vote_to_the_highest_term_of_a_peer(tmp_path: Path) -> None:
    peers = [peer("b"), peer("c")]
    peers[0].term, peers[1].term = 6, 4
    made, core = on_probation(tmp_path, peers)
    made.end_if_complete()
    assert core.told == [6, "flushed", "ends"]


def test_controller_probation_does_not_end_with_a_barrier_of_an_earlier_probation(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text("a")
    made, core = on_probation(tmp_path, [peer("b"), peer("c")])
    made.lineage.missed = (77,)
    assert made.process_hello("b", b"")
    assert (made.over, made.turn, core.told) == (False, 1, ["begins"])
    made.process_hello("c", b"")
    assert (made.turn, core.told) == (1, ["begins"]), "it is on probation already"
    made.barrier_applied(0)
    assert core.told == ["begins"]
    made.barrier_applied(1)
    assert (made.over, core.told) == (True, ["begins", "flushed", "ends"])
    made.barrier_applied(1)
    assert core.told == ["begins", "flushed", "ends"]
    assert made.waits_for() == ""


def test_single_new_controller_votes_at_once_and_writes_the_directory_marker(tmp_path: Path) -> None:
    made, core = Probation(tmp_path, ("a",), draw=lambda: 5), Core()
    core.controllers = ControllerList(("a",))
    made.attach(core, {})  # type: ignore[arg-type]
    assert (made.over, core.on_probation, (tmp_path / MARKER).exists()) == (True, False, False)
    made.end_if_complete()
    assert ((tmp_path / MARKER).exists(), core.told) == (True, ["flushed", "ends"])
    made.lineage.missed = (77,)
    made.process_hello("b", b"")
    assert made.over, "there is nobody from whom to catch up"


def test_controller_probation_drops_term_and_vote_of_an_opened_journal(tmp_path: Path) -> None:
    forgotten: list[str] = []
    journal: Any = SimpleNamespace(forget_promises=lambda: forgotten.append("forgotten"))
    made = Probation(tmp_path, ("a", "b"), draw=lambda: 5)
    made.journal_opened(journal)
    assert forgotten == ["forgotten"]
    made.over = True
    made.journal_opened(journal)
    assert forgotten == ["forgotten"]


# ---- what is mended before the library sees it ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("commit", "committed", "held"), [(4, 9, 4), (9, 4, 4)], ids=["the leader's commit index", "what is committed here"]
)
def test_raft_snapshot_chunk_is_passed_on_as_a_heartbeat_that_commits_only_entries_in_the_log(
    commit: int, committed: int, held: int
) -> None:
    hard = Hard(LogCore(1, 1))
    hard.core.raftCommitIndex = committed
    beat = {"type": "append_entries", "term": 9, "commit_index": held}
    append = {"type": "append_entries", "term": 9, "commit_index": commit}
    assert hard.deliver(**append, serialized=None)
    assert hard.handled == [beat], "the leader makes it still"
    assert hard.deliver(**append, serialized=(b"part", True, False))
    assert (hard.handled, hard.replies) == ([beat, beat], [])
    assert hard.deliver(**{**append, "term": 8}, serialized=(b"part", False, False))
    assert len(hard.handled) == 2, "of an earlier term"
