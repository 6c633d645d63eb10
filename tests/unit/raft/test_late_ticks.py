"""A member whose ticks come late has heard nobody meanwhile, whoever spoke: that is no reason to depose the leader [M12]."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.raft.ours import OurNet, our_net


def late(net: OurNet, name: str, seconds: float, leader: str) -> int:
    """The machine gives ``name`` no time for so long, and what the leader sends waits in its socket; return the term afterwards."""
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
def test_a_member_that_was_late_listens_before_it_campaigns(tmp_path: Path, seconds: float) -> None:
    with our_net(tmp_path) as net:
        lead, near, _ = net.elected()
        before = net.up[lead].core.raftCurrentTerm
        assert late(net, near, seconds, lead) == before
        assert net.leaders() == [lead]


def test_a_member_that_is_always_late_campaigns_all_the_same(tmp_path: Path) -> None:
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
