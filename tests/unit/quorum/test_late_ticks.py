"""Test late ticks: a member reads its messages before it starts an election [M12]."""

from __future__ import annotations

from pathlib import Path

import pytest

from liftpy.core.metadata.request_limits import SENT_TOGETHER
from tests.unit.quorum.raft_network import OurNet, our_net

A_REQUEST_BYTES = 100
"""Or some more: what a replica asks of the group."""


def late(net: OurNet, name: str, seconds: float, leader: str) -> int:
    """Pause ``name`` for some seconds while messages of the leader wait in its socket. Return the term afterwards."""
    net.stalled = net.pairs(leader, name)
    until = net.now + seconds
    others = [other for other in net.members if other != name]
    while net.now < until:
        net.now += 0.05
        for other in others:
            net.tick(other)
            for receiver in others:
                net.deliver(other, receiver)
    net.stalled = set()
    net.tick(name)  # before it has read its socket
    net.deliver(leader, name)
    net.tick(name)
    return int(net.up[name].core.raftCurrentTerm)


@pytest.mark.parametrize("seconds", [0.3, 0.6, 1.1, 3.0])
def test_controller_with_one_late_tick_reads_messages_before_it_starts_an_election(tmp_path: Path, seconds: float) -> None:
    with our_net(tmp_path) as net:
        lead, near, _ = net.elected()
        before = net.up[lead].core.raftCurrentTerm
        assert late(net, near, seconds, lead) == before
        assert net.leaders() == [lead]


def test_controller_with_all_ticks_late_starts_an_election_within_three_seconds(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        before = net.up[near].core.raftCurrentTerm
        net.crash(lead)
        began = net.now
        while net.up[near].core.raftCurrentTerm == before:
            net.now += 0.3
            assert net.now - began < 3.0, "nobody leads, and it does not campaign"
            for name in (near, far):
                net.tick(name)


def test_raft_tick_applies_one_batch_of_requests_at_most(tmp_path: Path) -> None:
    """Between two batches the leader sends its appends, and all members read messages."""
    with our_net(tmp_path) as net:
        lead, *_ = net.elected()
        for number in range(12):
            net.put(lead, b"%d" % number + b"." * (SENT_TOGETHER * A_REQUEST_BYTES))
        before = {name: member.core.raftLastApplied for name, member in net.up.items()}
        most, steps = 0, 0
        while min(member.core.raftLastApplied - before[name] for name, member in net.up.items()) < 12:
            at = {name: member.core.raftLastApplied for name, member in net.up.items()}
            net.step()
            most = max(most, *(member.core.raftLastApplied - at[name] for name, member in net.up.items()))
            steps += 1
            assert steps < 500
        assert 1 <= most <= 2
