"""Test the guards of the Raft driver against faults of PySyncObj 0.3.17: membership changes and pickles."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from liftpy.errors import ProtocolError
from sidecar.quorum.library import FAIL_REASON, Node
from sidecar.quorum.peer_sessions import _DATA, _FIRST, _FRAME, _LAST
from tests.unit.quorum.raft_network import our_net


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
class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


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
