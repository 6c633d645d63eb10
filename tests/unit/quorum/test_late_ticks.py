"""Test late ticks: a member reads its messages before it starts an election [M12]."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.metadata.request_limits import SENT_TOGETHER
from sidecar.quorum import driver as driver_module
from sidecar.quorum.driver import REST_S, GroupDriver, time_to_next_tick_s
from sidecar.quorum.library import TICK_S
from tests.each import each
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


def parts(leads: bool, hears: bool, election_s: float) -> tuple[Any, Any]:
    core = SimpleNamespace(leads=leads, until_append_s=lambda: 0.06, until_election_s=lambda: election_s, behind=False)
    return core, SimpleNamespace(has_leader_contact=lambda _: hears, sessions=SimpleNamespace(outbox=[]))


@each(
    ("leads", "hears", "election_s", "wait_s"),
    [
        (False, False, 0.5, TICK_S),
        (False, False, 0.03, 0.031),
        (False, False, -0.1, TICK_S),
        (False, True, 0.5, REST_S),
        (True, False, 0.5, 0.061),
    ],
)
def test_raft_tick_comes_with_the_next_append_election_or_duty(
    leads: bool, hears: bool, election_s: float, wait_s: float
) -> None:
    core, transport = parts(leads, hears, election_s)
    assert time_to_next_tick_s(core, transport, 1.0) == pytest.approx(wait_s, abs=0.01)
    assert time_to_next_tick_s(core, transport, 0.02) == pytest.approx(0.02, abs=0.01)


async def test_raft_driver_counts_no_late_tick_while_ticks_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "tick_once", lambda *_: None)
    core, transport = parts(False, True, 0.5)
    nothing: Any = None
    driver = GroupDriver(core, transport, nothing, nothing, lambda: None, nothing, lambda: 1.0)
    driver.start()
    driver.tick()
    assert driver.late_tick_count == 0
    driver.stop()
