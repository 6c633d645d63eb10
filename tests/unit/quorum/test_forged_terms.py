"""Test forged terms: they do not exceed the limit of a term, and every member can rejoin."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from liftpy.core.wire._pb import raft_pb2 as pb
from liftpy.errors import ProtocolError
from sidecar.quorum.codec import MAX_NUMBER, decode
from sidecar.quorum.peer_sessions import _DATA, _FIRST, _FRAME, _HELLO, _LAST, TERM_REACH
from tests.unit.quorum.raft_network import OurNet, our_net

FAR = [MAX_NUMBER - 1, 1 << 40]


def bodies(term: int) -> list[bytes]:
    """Return one message of each kind with a term."""
    kinds = [
        pb.RaftMessage(requestVote=pb.RaftRequestVote(term=term, lastLogIndex=1 << 40, lastLogTerm=term, transfer=True)),
        pb.RaftMessage(responseVote=pb.RaftResponseVote(term=term)),
        pb.RaftMessage(timeoutNow=pb.RaftTimeoutNow(term=term)),
        pb.RaftMessage(snapshotChunk=pb.RaftSnapshotChunk(term=term)),
        pb.RaftMessage(appendEntries=pb.RaftAppendEntries(term=term)),
        pb.RaftMessage(appendEntries=pb.RaftAppendEntries(term=term, previousIndex=1, previousTerm=0)),
    ]
    return [kind.SerializeToString() for kind in kinds]


def forge(net: OurNet, sender: str, receiver: str, body: bytes, frame_term: int) -> None:
    """Send a forged message in the running session, like an attacker who reads every frame."""
    peer = net.up[receiver].transport.sessions.peers[sender]
    head = _FRAME.pack(_DATA, _FIRST | _LAST, peer.epoch, peer.own_epoch, peer.received + 1, frame_term)
    net.up[receiver].inbox.append((sender, head + body))


def terms(net: OurNet) -> list[int]:
    return [member.core.raftCurrentTerm for member in net.up.values()]


@pytest.mark.parametrize("term", FAR)
@pytest.mark.parametrize("kind", range(len(bodies(1))))
@pytest.mark.parametrize("frame_says_so", [True, False])
def test_raft_group_after_a_forged_term_still_elects_a_leader_and_commits(
    tmp_path: Path, term: int, kind: int, frame_says_so: bool
) -> None:
    with our_net(tmp_path) as net:
        leader, near, _ = net.elected()
        known = max(terms(net))
        for victim, sender in ((leader, near), (near, leader)):
            forge(net, sender, victim, bodies(term)[kind], term if frame_says_so else known)
        net.run(lambda: False, 0.2)
        assert max(terms(net)) < known + 10
        net.crash(net.leaders()[0] if net.leaders() else leader)
        assert net.run(net.leaders)
        net.put(net.leaders()[0], b"on")
        assert net.run(lambda: b"on" in net.acknowledged())
        assert max(terms(net)) < known + 100


@pytest.mark.parametrize("term", FAR)
def test_raft_hello_that_is_forged_with_a_high_term_does_not_change_the_term(
    tmp_path: Path, term: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "liftpy.quorum")
    with our_net(tmp_path) as net:
        leader, near, _ = net.elected()
        sessions = net.up[leader].transport.sessions
        peer = sessions.peers[near]
        before = (peer.epoch, peer.up, peer.term)
        for _ in range(1000):
            net.up[leader].inbox.append((near, _FRAME.pack(_HELLO, 0, 77, peer.own_epoch, 0, term)))
        net.tick(leader)
        assert (peer.epoch, peer.up, peer.term) == before
        assert net.counter(leader, "refused: terms out of reach") == 1000
        assert len([r for r in caplog.records if "impossible term rejected" in r.getMessage()]) == 1


@pytest.mark.parametrize("ahead", [TERM_REACH + 1, 3 * TERM_REACH])
def test_controller_with_a_term_far_above_the_group_rejoins(tmp_path: Path, ahead: int) -> None:
    with our_net(tmp_path) as net:
        _, near, _ = net.elected()
        net.up[near].core.vote_is_spent_up_to(ahead)
        assert net.run(lambda: len(net.leaders()) == 1 and min(terms(net)) > ahead, 30)
        leader = net.leaders()[0]
        net.put(leader, b"on")
        assert net.run(lambda: all(b"on" in net.values(name) for name in net.up))


def test_controller_with_a_lost_directory_joins_a_raft_group_with_a_high_term(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        leader, _, far = net.elected()
        net.empty(far)
        for name in net.up:
            net.up[name].core.begin_probation()
            net.up[name].core.vote_is_spent_up_to(2 * TERM_REACH)
            net.up[name].core.end_probation()
        assert net.run(net.leaders)
        leader = net.leaders()[0]
        net.start(far)
        net.put(leader, b"on")
        assert net.run(lambda: b"on" in net.values(far), 30)


@pytest.mark.parametrize(
    "message",
    [
        pb.RaftMessage(requestVote=pb.RaftRequestVote(term=3, lastLogTerm=4)),
        pb.RaftMessage(appendEntries=pb.RaftAppendEntries(term=3, previousIndex=1, previousTerm=4)),
    ],
)
def test_raft_entry_with_a_term_above_the_term_of_its_message_is_rejected(message: pb.RaftMessage) -> None:
    with pytest.raises(ProtocolError, match="of the"):
        decode(message.SerializeToString())
