"""Test probation: a controller with an empty directory has no vote until it has all committed entries [M2, M4]."""

from __future__ import annotations

from pathlib import Path

from sidecar.quorum.codec import decode
from sidecar.quorum.peer_sessions import _DATA, _FIRST, _FRAME, _LAST, Peer
from sidecar.quorum.probation import waits_for
from tests.unit.quorum.plain_member import Member
from tests.unit.quorum.raft_network import OurNet, our_net


def peer(name: str, *, heard: bool = True, is_new: bool = True, up: bool = True) -> Peer:
    return Peer(name, 1, up=up, heard=heard, is_new=is_new)


def behind_emptied_and_leader(net: OurNet) -> tuple[str, str, str]:
    """Return a follower without the committed entries, a follower with a lost data directory, and the leader."""
    leader, emptied, behind = net.elected()
    net.split(leader + emptied, behind)
    net.forbid_elections(behind)
    for number in range(40):
        net.put(leader, b"%d" % number)
    assert net.run(lambda: len(net.acknowledged()) == 40)
    net.empty(emptied)
    return leader, emptied, behind


def campaigns_for(net: OurNet, name: str, seconds: float) -> None:
    end = net.now + seconds
    while net.now < end:
        net.elect_now(name)
        net.run(lambda: False, 0.4)


def ready(member: Member) -> bool:
    return bool(member.core.isReady() and member.core.leader_id)


def test_controller_with_a_lost_directory_with_an_incomplete_snapshot_grants_no_vote(tmp_path: Path) -> None:
    """The first chunk makes ``isReady`` of PySyncObj true.

    Then the leader dies, and no live member has the committed entries.
    """
    with our_net(tmp_path, compact_after=15) as net:
        leader, emptied, behind = behind_emptied_and_leader(net)
        member = net.start(emptied)
        assert not member.probation.over
        cut_off = net.lose

        def without_the_last_chunk(sender: str, receiver: str, frame: bytes) -> bool:
            if cut_off(sender, receiver, frame):
                return True
            kind, flags, *_ = _FRAME.unpack_from(frame)
            if kind != _DATA or flags != _FIRST | _LAST:
                return False
            return (decode(frame[_FRAME.size :]).get("serialized") or (b"", True, False))[2]

        net.lose = without_the_last_chunk
        assert net.run(lambda: ready(member))
        assert member.machine.applied == []
        net.crash(leader)
        net.split(leader, emptied + behind)
        assert net.run(lambda: net.up[behind].transport.sessions.peers[emptied].up)
        campaigns_for(net, behind, 5)
        assert net.leaders() == []
        net.start(leader)
        net.split()
        assert net.run(lambda: len(net.values(behind)) >= 40)
        assert net.values(behind)[:40] == [b"%d" % number for number in range(40)]


def test_controller_on_probation_without_a_leader_starts_no_election_and_keeps_its_term(tmp_path: Path) -> None:
    """Otherwise its term exceeds the term of the leader, and it never catches up."""
    with our_net(tmp_path) as net:
        leader, emptied, behind = net.elected()
        net.put(leader, b"first")
        assert net.run(lambda: len(net.acknowledged()) == 1)
        net.empty(emptied)
        member = net.start(emptied)
        net.split(leader + behind, emptied)
        term = net.up[leader].core.raftCurrentTerm
        net.run(lambda: False, 4)
        net.split(leader, emptied + behind)
        net.run(lambda: False, 0.4)
        net.elect_now(behind)
        net.run(lambda: False, 1)
        assert member.core.raftCurrentTerm <= term
        net.split()
        assert net.run(lambda: net.values(emptied) == [b"first"])


def test_controller_on_probation_drops_a_term_stored_by_an_earlier_version(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        leader, emptied, _ = net.elected()
        net.put(leader, b"first")
        net.empty(emptied)
        member = net.start(emptied)
        member.journal.setCurrentTerm(1000, emptied)
        member.journal.sync()
        net.crash(emptied)
        assert net.start(emptied).core.raftCurrentTerm == 0
        assert net.run(lambda: net.values(emptied) == [b"first"])


def test_raft_group_first_start_ignores_a_hello_addressed_to_an_earlier_process(tmp_path: Path) -> None:
    """Otherwise late frames of the first start make an emptied member start a new group."""
    with our_net(tmp_path, new=True) as net:
        late = []
        post = net.post

        def keep(sender: str, receiver: str, frame: bytes) -> None:
            if receiver == "c":
                late.append((sender, frame))
            post(sender, receiver, frame)

        net.post = keep  # type: ignore[method-assign]
        lead, *_ = net.elected()
        net.put(lead, b"first")
        assert net.run(lambda: len(net.acknowledged()) == 1)
        net.post = post  # type: ignore[method-assign]
        net.empty("c")
        net.split("ab", "c")
        member = net.start("c")
        for sender, frame in late:
            member.inbox.append((sender, frame))
        net.run(lambda: False, 1)
        assert not member.probation.over


def test_raft_group_first_start_begins_when_all_controllers_are_new(tmp_path: Path) -> None:
    with our_net(tmp_path, "ab", new=True, members="abc") as net:
        net.run(lambda: False, 5)
        assert not any(member.probation.over for member in net.up.values())
        assert "waits for c" in net.up["a"].probation.waits_for()
        net.start("c")
        assert net.run(net.leaders)


def test_raft_group_first_start_with_a_majority_lets_the_late_controller_join_on_probation(tmp_path: Path) -> None:
    with our_net(tmp_path, "ab", new=True, members="abc", majority=True) as net:
        assert net.run(net.leaders)
        (leader,) = net.leaders()
        net.put(leader, b"first")
        assert net.run(lambda: len(net.acknowledged()) == 1)
        late = net.start("c")
        assert net.run(lambda: net.values("c") == [b"first"])
        assert not late.probation.over
        net.ask_for_barrier("c", leader)
        assert net.run(lambda: late.probation.over)


def test_controller_probation_wait_message_contains_the_missing_peers_and_the_operator_option() -> None:
    text = waits_for(True, [peer("n2"), peer("n3", heard=False)])
    assert "waits for n3:" in text
    assert "--bootstrap-majority" in text
    text = waits_for(True, [peer("n2", is_new=False), peer("n3", heard=False, up=False)])
    assert "known: n2; not connected: n3" in text
    assert "--bootstrap-majority" not in text
