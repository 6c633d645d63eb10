"""Test the guards of the Raft driver against faults of PySyncObj 0.3.17: outcomes, arguments of apply, disk, snapshot, membership."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from liftpy.core.metadata.controller.quorum_member import EntryOutcome, ProposedEntry
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import CorruptionError, ProtocolError
from sidecar.metadata import controller as proposal_executor
from sidecar.quorum import transport as transport_module
from sidecar.quorum.driver import GroupDriver
from sidecar.quorum.journal import GroupJournal
from sidecar.quorum.library import FAIL_REASON, Node, RaftCore, check_library, outcome_of, settings
from sidecar.quorum.peer_sessions import _DATA, _FIRST, _FRAME, _LAST
from sidecar.quorum.snapshot_file import decode_snapshot_file, encode_snapshot_file
from sidecar.quorum.transport import SessionTransport
from tests.born import born_fsm, registration
from tests.each import each
from tests.unit.quorum.raft_network import OurNet, bare_member, our_net

# ---- 9: an outcome that is not known ------------------------------------------------------------------------------------


def test_raft_retry_across_a_leader_change_is_applied_once(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        machines = {}
        for name, member in net.up.items():
            machines[name] = member.core._machine = born_fsm()
        register = pb.ControlRequest(operationId=b"o" * 16, registerNode=registration(nodeId="n1"))
        net.put(lead, register.SerializeToString())
        net.stalled = {(lead, near)}
        assert net.run(lambda: len(net.up[far].journal) > 2 and machines[lead].image.nodes)
        net.crash(lead)
        net.stalled = set()
        net.results.clear()
        net.elect_now(far)
        assert net.run(lambda: net.leaders() == [far])
        register.timeNs = 5  # when it was tried again
        net.put(far, register.SerializeToString())
        assert net.run(lambda: net.results and machines[near].image == machines[far].image)
        commands = [command for command, *_ in net.up[far].journal[:] if command[:1] == b"\0"]
        assert len(commands) == 2, "the log has it twice"
        assert machines[far].image.nodes["n1"].incarnation == 1, "and it was applied once"
        register.operationId = b"p" * 16
        net.put(far, register.SerializeToString())
        assert net.run(lambda: machines[far].image.nodes["n1"].incarnation == 2), "another operation is another one"


def test_raft_proposal_to_a_follower_is_rejected_at_once(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, _ = net.elected()
        net.put(near, b"not forwarded")
        assert net.run(lambda: net.results, 0.1)
        assert net.results == [(b"not forwarded", "NOT_LEADER")]
        assert net.run(lambda: net.logs_are_equal() and not net.values(lead))


# ---- 10: what an apply knows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compacts", [False, True])
def test_raft_apply_receives_the_log_index(tmp_path: Path, compacts: bool) -> None:
    with our_net(tmp_path) as net:
        lead, near, _ = net.elected()
        for number in range(10):
            net.put(lead, b"%d" % number)
        assert net.run(lambda: len(net.values(near)) == len(net.values(lead)) == 10)
        if compacts:
            net.up[near].core.forceLogCompaction()
            assert net.run(lambda: len(net.up[near].journal) < 5)
        net.crash(near)
        net.start(near)  # and again, from the start or from the snapshot on
        net.put(lead, b"10")
        assert net.run(lambda: len(net.values(near)) == len(net.values(lead)) == 11)
        in_log = {index: command[1:] for command, index, _ in net.up[lead].journal[:] if command[:1] == b"\0"}
        for name in lead, near:
            assert {index: bytes.fromhex(value) for index, value in net.up[name].machine.applied} == in_log


class _Raising:
    def __init__(self) -> None:
        self.calls = 0

    def apply(self, entry: bytes, index: int) -> bytes:
        self.calls += 1
        raise ValueError(entry)

    def precompute(self, entry: bytes, index: int) -> bool:
        return True


class _Counting(_Raising):
    def apply(self, entry: bytes, index: int) -> bytes:
        self.calls += 1
        return b"done"


def _alone(folder: Path, machine: Any) -> RaftCore:
    check_library()
    journal = GroupJournal(folder / "journal", flush=False)
    transport = SessionTransport("a", ("a",))
    conf = settings(journal, str(folder / "snapshot"), lambda *_: None, lambda *_: None, lambda *_: None, 10_000)
    core = RaftCore("a", ("a",), conf, transport, machine)
    transport.attach(core)
    while not core.leads:
        core.doTick(0.005)
    return core


async def test_raft_callback_that_raises_stops_the_process_after_one_apply(tmp_path: Path) -> None:
    machine = _Counting()
    core = _alone(tmp_path, machine)
    failures: list[Exception] = []
    transport = core._SyncObj__transport
    driver = GroupDriver(core, transport, core.log, lambda *_: None, lambda: None, failures.append)

    def bad(*_: Any) -> None:
        raise KeyError

    core.propose(b"once", bad)
    for _ in range(20):
        driver.tick()
    assert machine.calls == 1
    assert driver.stopped
    assert [type(failure) for failure in failures] == [KeyError]
    core.log.close()


@each(
    ("answer", "reason", "outcome"),
    [
        (b"", FAIL_REASON.SUCCESS, EntryOutcome.APPLIED),
        (None, FAIL_REASON.SUCCESS, EntryOutcome.UNKNOWN),
        (None, FAIL_REASON.QUEUE_FULL, EntryOutcome.NEVER),
        (None, FAIL_REASON.MISSING_LEADER, EntryOutcome.NEVER),
        (None, FAIL_REASON.DISCARDED, EntryOutcome.NEVER),
        (None, FAIL_REASON.NOT_LEADER, EntryOutcome.NEVER),
        (None, FAIL_REASON.LEADER_CHANGED, EntryOutcome.UNKNOWN),
        (None, FAIL_REASON.REQUEST_DENIED, EntryOutcome.NEVER),
        (b"", FAIL_REASON.UNKNOWN_OUTCOME, EntryOutcome.UNKNOWN),
    ],
)
def test_raft_entry_outcome_of_each_pysyncobj_result_equals_the_expected_outcome(
    answer: bytes | None, reason: int, outcome: EntryOutcome
) -> None:
    assert outcome_of(answer, reason) is outcome


# ---- 2: acknowledged loss on a perfect FIFO network with one leader crash -----------------------------------------------


def test_raft_entries_in_flight_are_not_resent_and_survive_a_crash(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        net.split(lead + near, far)
        net.stalled = net.pairs(lead, near)
        while net.wires[lead, near] or net.wires[near, lead]:
            net.deliver(lead, near), net.tick(near)
            net.deliver(near, lead), net.tick(lead)
        for values in (b"123", b"456"):
            for one in values:
                net.put(lead, b"%c" % one + b"." * 40_000)
            net.tick(lead)
            net.deliver(lead, near), net.tick(near)
        held = net.up[near].journal.last_index
        assert held == net.up[lead].journal.last_index
        net.deliver(near, lead, 1)
        net.now += 0.2
        net.tick(lead)  # a heartbeat
        assert net.up[lead].core.match_index(near) == held - 3, "the first answer is for the first three"
        assert sum(map(len, net.wires[lead, near])) < 1_000, "what is in flight is not sent again"
        assert net.up[lead].core.next_index(Node(near)) == held + 1
        net.deliver(near, lead), net.tick(lead)
        while net.up[lead].core.behind:
            net.tick(lead)  # so many bytes are applied in more than one tick
        assert len(net.acknowledged()) == 6
        net.deliver(lead, near, 1), net.tick(near)
        assert net.up[near].journal.last_index == held
        net.crash(lead)
        net.split(near + far)
        net.stalled = set()
        assert net.run(lambda: len(net.values(far)) == 6)
        assert set(net.values(far)) == net.acknowledged()


def test_raft_append_entries_received_twice_truncates_nothing(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, _ = net.elected()
        start = net.up[lead].journal.last_index
        for number in range(6):
            net.put(lead, b"%d" % number)
        assert net.run(lambda: len(net.values(near)) == 6)
        net.step()
        net.up[lead].core.set_next_index(Node(near), start + 1)
        journal = net.up[lead].journal
        previous, again = journal[start - 1], journal[start : start + 2]
        append = {"type": "append_entries", "term": net.up[lead].core.raftCurrentTerm, "commit_index": start}
        append |= {"entries": again, "prevLogIdx": previous[1], "prevLogTerm": previous[2]}
        net.up[lead].transport.send(Node(near), append)
        net.step(), net.step()
        assert net.counter(near, "entries_known") == 2
        assert net.up[near].journal.last_index == start + 6


# ---- 3: answers without a term, votes counted twice --------------------------------------------------------------------


def test_raft_append_answer_to_an_earlier_term_is_ignored(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        before = net.up[lead].core.raftCurrentTerm
        net.stalled = {(near, lead)}
        net.put(lead, b"1")
        assert net.run(lambda: net.acknowledged())
        under_way = len(net.wires[near, lead])
        for next_leader, others in ((far, near + lead), (lead, near + far)):
            net.forbid_elections(*others)
            net.elect_now(next_leader)
            led = lambda name=next_leader: net.leaders() == [name] and net.logs_are_equal()  # noqa: E731
            assert net.run(led, 0.7)  # both together before the session ends by silence
        assert net.up[lead].core.raftCurrentTerm > before
        assert net.up[lead].core.match_index(near) == 0
        net.deliver(near, lead, under_way)
        frames, net.up[lead].inbox = net.up[lead].inbox, []
        for sender, frame in frames:
            net.up[lead].transport.receive(sender, frame)
        assert net.counter(lead, "append_answers_of_other_term") > 0
        assert net.up[lead].core.match_index(near) == 0


@pytest.mark.parametrize("beyond", [0, 1])
def test_raft_append_answer_beyond_the_log_of_the_leader_ends_the_session(tmp_path: Path, beyond: int) -> None:
    with our_net(tmp_path) as net:
        lead, near, _ = net.elected()
        last = net.up[lead].journal.last_index
        answer = {"type": "next_node_idx", "next_node_idx": last + 1 + beyond, "reset": False, "success": True}
        net.up[near].transport.send(Node(lead), answer)
        net.step(), net.step()
        assert net.counter(lead, "append_answers_beyond_log") == beyond
        assert net.counter(lead, "sessions ended: refused message") == beyond
        assert net.up[lead].core.match_index(near) <= last


def test_raft_vote_received_twice_is_counted_once(tmp_path: Path) -> None:
    with our_net(tmp_path, "abcde") as net:
        net.split("ab", "c", "de")
        once = net.post
        net.post = lambda *frame: (once(*frame), once(*frame))  # type: ignore[method-assign]
        for name in "ad" * 5:
            net.elect_now(name)  # nobody would ask for votes: no majority would give them
            assert not net.run(net.leaders, 2)
        assert all(net.counter(name, "refused: duplicate frame") for name in "abde")
        assert all(net.up[name].core.raftCurrentTerm >= 5 for name in "abde"), "they did vote"
        net.split("abcde")
        assert net.run(net.leaders)


# ---- 4: a follower that never catches up -------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [64 * 1024 * 1024, 4096])
def test_raft_follower_with_many_conflicting_entries_catches_up(tmp_path: Path, batch_size: int) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        for member in net.up.values():
            assert member.core.conf.appendEntriesBatchSizeBytes == 64 * 1024 * 1024, "the setting helps"
            member.core.conf.appendEntriesBatchSizeBytes = batch_size  # and it goes without
        net.split(lead, near + far)
        for number in range(5):
            net.put(lead, b"tail %d" % number)
        assert net.run(lambda: near in net.leaders() or far in net.leaders())
        (new,) = set(net.leaders()) & {near, far}
        for number in range(200):
            net.put(new, b"%d" % number + b"." * 100)
        assert net.run(lambda: len(net.values(near)) == len(net.values(far)) == 200)
        net.up[new].core.transferLeadership()
        assert net.run(lambda: (near + far).replace(new, "") in net.leaders())
        net.split(lead + near + far)
        assert net.run(lambda: len(net.values(lead)) == 200, 5)
        assert net.counter(lead, "conflicting_entries_truncated") >= 1
        assert not any(net.counter(name, "sessions ended: refused message") for name in net.up)
        assert net.values(lead) == net.values(near) == net.values(far)


async def test_raft_entry_above_the_batch_size_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposal_executor, "MAX_APPEND_BYTES", 4096)
    member = bare_member(tmp_path)
    request = pb.ControlRequest(createStream=pb.CreateStream(name="x" * 4096))
    response = await member._controller.propose(ProposedEntry(request))
    assert response.error == pb.ControlResponse.INVALID
    assert "too large" in response.detail
    member._log.journal.close()


# ---- the journal is rewritten in place ---------------------------------------------------------------------------------


class _Death(BaseException):
    pass


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
@pytest.mark.parametrize("after", [False, True])
def test_raft_log_of_a_member_killed_during_a_compaction_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, after: bool
) -> None:
    """[M8]"""
    path = tmp_path / "journal"
    journal = GroupJournal(path)
    for index in range(1, 101):
        journal.add(b"command", index, 1)
    journal.setCurrentTerm(3, "b")
    journal.sync()
    journal.deleteEntriesTo(10)
    real = getattr(os, call)

    def dying(*given: Any) -> Any:
        if after:
            real(*given)
        raise _Death

    with monkeypatch.context() as patch:
        patch.setattr(os, call, dying)
        with pytest.raises(_Death):
            journal.sync()
    journal.abandon()
    again = GroupJournal(path)
    first = 11 if call == "rename" and after else 1
    assert [index for _, index, _ in again[:]] == list(range(first, 101))
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (3, "b")
    again.abandon()


# ---- pickle on disk ----------------------------------------------------------------------------------------------------


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_raft_journal_entry_that_is_a_pickle_is_rejected_by_the_state_machine(tmp_path: Path) -> None:
    """[M13]"""
    evil = pickle.dumps(_Evil(tmp_path / "executed"))
    folder = tmp_path / "a"
    folder.mkdir()
    journal = GroupJournal(folder / "journal")
    journal.add(b"\1", 1, 0)
    journal.add(b"\0" + evil, 2, 1)
    journal.add(b"\2" + evil, 3, 1)  # the library would read a change of the members in it
    journal.close()
    with our_net(tmp_path, "a") as net:
        assert net.run(lambda: net.values("a"))
        assert net.values("a") == [evil]
        assert net.up["a"].core.otherNodes == set()
    answer = pb.ControlResponse.FromString(born_fsm().apply(evil, 2))
    assert answer.error == pb.ControlResponse.INVALID
    assert not (tmp_path / "executed").exists()


async def test_raft_start_with_a_pickle_as_journal_or_snapshot_file_raises_corruption_error(tmp_path: Path) -> None:
    evil = pickle.dumps(_Evil(tmp_path / "executed"))
    for name in "journal", "snapshot":
        folder = tmp_path / f"with a pickle as {name}"
        folder.mkdir()
        (folder / name).write_bytes(evil)
        with pytest.raises(CorruptionError):
            bare_member(folder)
        assert (folder / name).read_bytes() == evil
    assert not (tmp_path / "executed").exists()


# ---- 7: two changes of the members at once, and a member that votes twice ----------------------------------------------
def test_raft_membership_change_by_pysyncobj_is_rejected(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, *_ = net.elected()
        core = net.up[lead].core
        with pytest.raises(ProtocolError, match="pysyncobj tried to pickle"):
            core.addNodeToCluster(Node("d"))
        answers: list[int] = []
        for change in ("add", "d", Node("d")), ("rem", "b", Node("b")):  # what the library itself would send
            core._applyCommand(pickle.dumps(change), lambda _, reason: answers.append(reason), 2)
            assert not core._SyncObj__changeCluster(b"\2" + pickle.dumps(change))
        net.put(lead, b"behind both")
        assert net.run(lambda: all(net.values(name) == [b"behind both"] for name in "abc"))
        assert answers == [FAIL_REASON.REQUEST_DENIED] * 2
        for name, member in net.up.items():
            assert {node.id for node in member.core.otherNodes} == {*"abc"} - {name}


# ---- 8: a port for everybody, and pickles from everybody ---------------------------------------------------------------
def test_raft_frame_with_a_pickle_is_rejected_and_ends_the_session(tmp_path: Path) -> None:
    """The frame has a known sender, its session and the next sequence number."""
    evil = pickle.dumps(_Evil(tmp_path / "executed"))
    with our_net(tmp_path) as net:
        lead, near, _ = net.elected()
        transport = net.up[near].transport
        assert net.run(lambda: not net.wires[lead, near])
        peer = transport.sessions.peers[lead]
        head = _FRAME.pack(_DATA, _FIRST | _LAST, peer.epoch, peer.own_epoch, peer.received + 1, 1)
        transport.receive("stranger", head + evil)
        assert (
            net.counter(near, "refused: unknown sender"),
            net.counter(near, "refused: messages"),
        ) == (1, 0)
        transport.receive(lead, evil)
        assert net.counter(near, "refused: stale frame") == 1
        assert peer.up
        transport.receive(lead, head + evil)
        assert net.counter(near, "refused: messages") == 1
        assert net.counter(near, "sessions ended: refused message") == 1
        assert not peer.up
        net.put(lead, b"goes on")
        assert net.run(lambda: net.values(near) == [b"goes on"])
    assert not (tmp_path / "executed").exists()


# ---- snapshot --------------------------------------------------------------------------------------------------------------
def compact(net: Any, name: str) -> None:
    node = getattr(net.up[name], "core", net.up[name])
    before = node._getRaftLogSize()
    node.forceLogCompaction()
    assert net.run(lambda: node._getRaftLogSize() < before)


# ---- the commit index is raised over a tail that matches nothing --------------------------------------------------------


def test_raft_snapshot_chunks_commit_nothing(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        net.split(lead, near + far)
        for number in range(3):
            net.put(lead, b"tail %d" % number)
        assert net.run(lambda: set(net.leaders()) & {near, far})
        (new,) = set(net.leaders()) & {near, far}
        for number in range(100):
            net.put(new, b"%d" % number + b"." * 5_000)  # several pieces
        assert net.run(lambda: len(net.acknowledged()) == 100)
        compact(net, new)
        tail = net.up[lead].journal.last_index
        net.stalled = {(new, lead)}
        net.split(lead + near + far)
        pieces = 0
        while not net.counter(lead, "snapshots_installed"):
            assert not any(value.startswith(b"tail") for value in (*net.values(lead), *net.acknowledged()))
            assert net.up[lead].core.raftCommitIndex < tail - 2
            waiting = len(net.wires[new, lead])
            pieces = max(pieces, waiting)
            net.deliver(new, lead, min(1, waiting))  # one frame a step
            net.step()
        assert pieces > 2
        net.stalled = set()
        assert net.run(lambda: net.values(lead) == net.values(new))
        assert not any(value.startswith(b"tail") for value in net.values(lead))


# ---- an older snapshot discards newer entries ---------------------------------------------------------------------------


def _with_snapshot(net: OurNet) -> tuple[str, str, bytes]:
    """Return leader, follower and a snapshot of the leader, 20 entries older than the applied entries of both."""
    lead, near, _ = net.elected()
    for half in (1, 2):
        for number in range(20):
            net.put(lead, b"%d of %d" % (number, half))
        assert net.run(lambda half=half: len(net.values(near)) == len(net.acknowledged()) == 20 * half)
        if half == 1:
            compact(net, lead)
    return lead, near, (net.folder / lead / "snapshot").read_bytes()


def _send_snapshot(net: OurNet, sender: str, receiver: str, data: bytes, *, has_start: bool = True) -> None:
    core, transport = net.up[sender].core, net.up[sender].transport
    beat = {"type": "append_entries", "term": core.raftCurrentTerm, "commit_index": core.raftCommitIndex}
    for piece in (data, has_start, False), (b"", False, True):
        assert transport.send(Node(receiver), {**beat, "serialized": piece})
    net.step(), net.step()


def test_raft_repeated_snapshot_is_acknowledged_and_ignored(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, data = _with_snapshot(net)
        held = net.up[near].journal.last_index
        _send_snapshot(net, lead, near, data)
        assert net.counter(near, "snapshots_known") == 1
        assert net.up[near].journal.last_index == held
        assert len(net.values(near)) == 40


# ---- the dump is replaced before it is verified; what is wrong with it is swallowed -------------------------------------


@pytest.mark.parametrize(
    ("has_start", "spare_bytes", "counted"),
    [(True, 0, "snapshots_known"), (True, -1, "snapshot_chunks_out_of_order"), (False, 0, "snapshot_chunks_out_of_order")],
)
def test_raft_snapshot_without_its_start_or_above_the_size_limit_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_start: bool, spare_bytes: int, counted: str
) -> None:
    with our_net(tmp_path) as net:
        lead, near, data = _with_snapshot(net)
        monkeypatch.setattr(transport_module, "MAX_SNAPSHOT_BYTES", len(data) + spare_bytes)
        _send_snapshot(net, lead, near, data, has_start=has_start)
        assert net.counter(near, counted) == 1
        assert net.counter(near, "sessions ended: refused message") == (counted != "snapshots_known")


@pytest.mark.parametrize("what", ["zeros", "pickle", "shortened", "of a later term"])
def test_raft_damaged_snapshot_is_rejected_and_the_old_one_kept(tmp_path: Path, what: str) -> None:
    with our_net(tmp_path) as net:
        lead, near, data = _with_snapshot(net)
        compact(net, near)
        good, held = (tmp_path / near / "snapshot").read_bytes(), net.up[near].journal.last_index
        pickled = b"\x80\x04\x8c\x08builtins\x8c\x05print\x93\x8c\x08executed\x85R."
        last = (b"\0last", held + 9, net.up[lead].core.raftCurrentTerm + 1)
        later = encode_snapshot_file(replace(decode_snapshot_file(data), last=last))
        zeros = data[:20] + bytes(len(data) - 20)
        damaged = {"zeros": zeros, "pickle": pickled, "shortened": data[:-1], "of a later term": later}[what]
        _send_snapshot(net, lead, near, damaged)
        assert net.counter(near, "snapshots_rejected") == 1
        assert net.counter(near, "sessions ended: refused message") == 1
        assert (tmp_path / near / "snapshot").read_bytes() == good
        assert net.up[near].journal.last_index == held
        net.put(lead, b"goes on")
        assert net.run(lambda: b"goes on" in net.values(near))
