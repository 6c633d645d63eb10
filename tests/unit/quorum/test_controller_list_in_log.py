"""Test the controller list in the Raft log: it applies from the append on, and follows truncations and restarts [M10]."""

from __future__ import annotations

from pathlib import Path

import pytest

from liftpy.core.metadata.controller_list import ControllerList, first_list
from liftpy.core.wire._pb import cluster_pb2 as pb
from sidecar.quorum.journal import CHANGE, GroupJournal, LogControllers, change_in
from sidecar.quorum.peer_sessions import PeerSessions
from tests.unit.quorum.raft_network import OurNet, our_net

ABC = ("a", "b", "c")


def a_change(*voters: str, after: int, learner: str = "", leaving: str = "", name: bytes = b"o") -> bytes:
    made = {"after": after, "list": {"voters": voters, "learner": learner, "leaving": leaving}}
    return pb.ControlRequest(operationId=name * 16, changeControllers=made).SerializeToString()  # type: ignore[arg-type]


def propose(net: OurNet, lead: str, change: bytes) -> list[int]:
    """Propose a change in the next tick and return the results of PySyncObj."""
    reasons: list[int] = []
    net.up[lead].core.propose(change, lambda _, reason: reasons.append(reason), change=True)
    net.up[lead].core.doTick(0)
    return reasons


def elected(net: OurNet) -> tuple[str, ...]:
    """Return the leader, which has committed an entry of its term, then the others."""
    found = net.elected()
    net.put(found[0], b"x")
    assert net.run(lambda: b"x" in net.acknowledged())
    return found


def voters(net: OurNet, name: str) -> tuple[str, ...]:
    core = net.up[name].core
    assert {node.id for node in core.otherNodes} == set(core.controllers.voters) - {name}, "the library counts the same"
    return core.controllers.voters


def test_controller_change_applies_when_appended_and_is_undone_by_a_truncation(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, one, other = elected(net)
        net.split(lead, one + other)
        remaining = tuple(sorted((lead, one)))
        assert propose(net, lead, a_change(*remaining, after=0)) == []
        assert voters(net, lead) == remaining, "nobody has it but the leader"
        assert set(net.up[lead].core.members) == set(ABC), "it listens to who may lead and take it back"
        assert net.run(lambda: net.up[one].core.leads or net.up[other].core.leads)
        assert voters(net, one) == voters(net, other) == ABC
        net.split()
        assert net.run(lambda: voters(net, lead) == ABC), "the others' log has another entry in its place"
        assert net.run(net.logs_are_equal)


def test_controller_list_after_a_restart_is_read_from_the_raft_journal(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, one, other = elected(net)
        remaining = tuple(sorted((lead, one)))
        propose(net, lead, a_change(*remaining, after=0))
        assert net.run(lambda: voters(net, one) == remaining)
        net.crash(one)
        member = net.start(one)
        assert member.core.raftLastApplied == 1
        assert voters(net, one) == remaining
        assert set(member.transport.sessions.peers) <= {lead, other}
        assert net.run(lambda: net.up[one].core.raftLastApplied > 2)
        assert net.run(lambda: set(net.up[lead].transport.sessions.peers) == {one}), "it is committed: the third one is gone"


def test_controller_list_after_a_restart_is_the_newest_of_snapshot_and_journal() -> None:
    entry = CHANGE + a_change("a", "b", after=0)
    by_log = LogControllers(first_list("cba"), ControllerList(("a", "b", "c"), "d", "", 4))
    assert by_log.newest([]).index == 4
    assert by_log.newest([(entry, 9, 2)]).voters == ("a", "b")
    assert by_log.at(8, [(entry, 9, 2)]).index == 4
    assert by_log.at(3, [(entry, 9, 2)]) == first_list("abc")
    for other in (b"\x00" + entry[1:], b"\x02", b"\x02garbage", b""):
        assert change_in(other, 9) is None
    joins = LogControllers(ControllerList(("a", "b"), "d", "", 20))
    assert joins.newest([(entry, 9, 2)]).index == 20, "what is committed is newer than a log that does not get there"
    assert joins.at(10, []).voters == ("a", "b")


def test_controller_list_of_the_raft_journal_is_restored_after_a_truncation(tmp_path: Path) -> None:
    told: list[int] = []
    journal = GroupJournal(tmp_path / "journal", flush=False)
    journal.changed = lambda: told.append(len(journal.changes))
    journal.add(b"\1", 1, 0)
    for index in range(2, 6):
        journal.add((CHANGE if index % 2 else b"\0") + a_change("a", after=0), index, 1)
    assert [index for _, index, _ in journal.changes] == [3, 5]
    journal.deleteEntriesFrom(4)
    assert ([index for _, index, _ in journal.changes], told) == ([3], [1, 2, 1])
    journal.sync()
    journal.close()
    again = GroupJournal(tmp_path / "journal", flush=False)
    assert [index for _, index, _ in again.changes] == [3]
    again.deleteEntriesTo(1)
    assert len(again.changes) == 1
    again.deleteEntriesTo(2)
    assert again.changes == [], "a snapshot holds it"
    again.clear()
    again.abandon()


@pytest.mark.parametrize(("own", "said", "refused"), [(0, 0, True), (5, 0, False), (0, 5, False), (5, 5, False)])
def test_controllers_in_settings_are_ignored_as_soon_as_a_controller_list_is_in_the_log(
    own: int, said: int, refused: bool
) -> None:
    frames: dict[str, PeerSessions] = {}
    drawn = iter(range(1, 100, 2))
    for name, peers, index in (("a", ("b", "c"), own), ("b", ("a", "d"), said)):
        made = PeerSessions(
            name, peers, lambda *_: True, lambda *_: None, lambda: next(drawn), by_log=lambda index=index: index
        )
        made.set_online(True)
        frames[name] = made
    for now in range(1, 6):
        for made in frames.values():
            made.poll(float(now))
        for sender, made in frames.items():
            leaving, made.outbox[:] = made.outbox[:], []
            for receiver, frame in leaving:
                if receiver in frames:
                    frames[receiver].receive(sender, frame, float(now))
    assert (not frames["a"].peers["b"].up) is refused
    assert (not frames["b"].peers["a"].up) is refused


def test_raft_peers_are_added_and_removed_with_the_controller_list() -> None:
    ended: list[tuple[str, bool]] = []
    made = PeerSessions("a", ("b", "c"), lambda *_: True, lambda *given: ended.append(given), lambda: 5)
    made.peers["c"].up = True
    kept = made.peers["b"]
    made.follow(("b", "d"))
    assert list(made.peers) == ["b", "d"]
    assert made.peers["b"] is kept
    assert ended == [("c", False)]
    assert not made.send("c", b"x", 1, 0.0)


def test_single_controller_applies_entries_only_after_their_flush(tmp_path: Path) -> None:
    with our_net(tmp_path, "a") as net:
        elected(net)
        member = net.up["a"]
        core, journal = member.core, member.journal
        member.propose(b"y")
        core.doTick(0)
        core.doTick(0)
        assert journal.last_index == core.raftCommitIndex + 1 == core.raftLastApplied + 1, "a power cut here would take it"
        assert core.behind, "the next tick comes at once"
        journal.sync()
        core.doTick(0)
        assert (core.raftCommitIndex, core.raftLastApplied) == (journal.last_index, journal.last_index)
        assert not core.behind
        assert b"y" in net.values("a")


def test_last_remaining_controller_applies_its_controller_change_after_the_flush(tmp_path: Path) -> None:
    with our_net(tmp_path, "ab") as net:
        lead, other = elected(net)
        member = net.up[lead]
        assert propose(net, lead, a_change(lead, after=0)) == []
        change = member.journal.last_index
        member.propose(b"behind it")
        for _ in range(3):
            member.core.doTick(0)
            assert member.core.raftLastApplied < change, (
                "the other one, with a list of two, may lead and put another in its place"
            )
        net.crash(lead)
        net.start(lead)
        assert net.run(lambda: bool(net.leaders()))
        assert voters(net, lead) == voters(net, other) == tuple(sorted((lead, other))), "it went with the memory"
