"""Test controllers that stop at once: they start no election and do not take the leadership."""

from __future__ import annotations

from pathlib import Path

from tests.unit.quorum.raft_network import our_net


def test_stopping_controller_starts_no_election(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        term = net.up[lead].core.raftCurrentTerm
        for name in (near, far):
            net.up[name].core.retired = True
        leader = net.up[lead].core
        assert net.run(lambda: {leader.match_index(name) for name in (near, far)} == {leader.log.last_index})
        leader.transferLeadership()
        for _ in range(100):
            net.step()
        assert net.leaders() == [lead]
        assert {member.core.raftCurrentTerm for member in net.up.values()} == {term}
        net.crash(lead)
        for _ in range(300):
            net.step()
        assert net.leaders() == []
        assert {member.core.raftCurrentTerm for member in net.up.values()} == {term}


def test_stopping_controller_votes_for_a_running_controller(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        net.up[near].core.retired = True
        net.crash(lead)
        assert net.run(lambda: net.leaders() == [far])
