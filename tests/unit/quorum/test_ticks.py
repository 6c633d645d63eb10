"""Test ticks of the Raft driver: late ticks, entries that take several ticks, and log compaction [M12]."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.metadata.request_limits import SENT_TOGETHER
from sidecar.quorum import driver as driver_module
from sidecar.quorum import library
from sidecar.quorum.driver import REST_S, GroupDriver, time_to_next_tick_s
from sidecar.quorum.journal import GroupJournal
from sidecar.quorum.library import (
    APPLIED_PER_TICK_BYTES,
    COMPACT_AFTER_BYTES,
    COMPACT_AT_ONCE_BYTES,
    LULL_S,
    STEP_BYTES,
    TICK_S,
    RaftCore,
    check_library,
    settings,
)
from sidecar.quorum.transport import SessionTransport
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


STEPS = 100


class Machine:
    """Entries beginning with "long" take STEPS steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.applied: list[tuple[bytes, int]] = []
        self.fails_at = 0

    def precompute(self, entry: bytes, index: int) -> bool:
        self.steps += 1
        if self.fails_at and self.steps >= self.fails_at:
            raise ValueError(entry)
        return not entry.startswith(b"long") or self.steps >= STEPS

    def apply(self, entry: bytes, index: int) -> bytes:
        self.applied.append((entry, index))
        return entry


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def core(tmp_path: Path, machine: Machine) -> RaftCore:
    check_library()
    transport = SessionTransport("a", ("a",))
    journal = GroupJournal(tmp_path / "journal", flush=False)
    conf = settings(journal, str(tmp_path / "snapshot"), lambda *_: None, lambda *_: None, lambda *_: None, 10_000)
    member = RaftCore("a", ("a",), conf, transport, machine)
    transport.attach(member)
    while not member.leads:
        member.doTick(0.005)
    return member


def test_raft_entry_with_much_work_is_applied_once_after_several_ticks(core: RaftCore, machine: Machine) -> None:
    answers: list[bytes | None] = []
    for entry in (b"first", b"long", b"last"):
        core.propose(entry, lambda answer, reason: answers.append(answer))
    ticks, most = 0, 0
    while len(answers) < 3:
        before = machine.steps
        core.doTick(0)
        core.log.sync()
        ticks, most = ticks + 1, max(most, machine.steps - before)
        assert ticks < 10 * STEPS
        assert core.behind == (len(answers) < 3)  # so that the next tick comes at once
    assert [entry for entry, _ in machine.applied] == answers == [b"first", b"long", b"last"]
    assert most <= APPLIED_PER_TICK_BYTES // STEP_BYTES + 1
    assert ticks >= STEPS // (APPLIED_PER_TICK_BYTES // STEP_BYTES)


def test_raft_entry_with_an_exception_in_its_stepwise_apply_stops_the_member_and_is_not_applied(
    core: RaftCore, machine: Machine
) -> None:
    machine.fails_at = 3
    core.propose(b"long", lambda *_: None)
    for _ in range(20):
        core.doTick(0)
        core.log.sync()
    assert isinstance(core.failure, ValueError)
    assert not machine.applied
    assert machine.steps == 3


ENTRY = 4096


def put(net: OurNet, leader: str, size_bytes: int) -> None:
    """Append entries of the given total size. All members apply them."""
    first = net.up[leader].journal.last_index
    count = size_bytes // ENTRY + 1
    for number in range(count):
        net.put(leader, b"%d" % (first + number) + b"." * ENTRY)
    assert net.run(lambda: all(m.core.raftLastApplied >= first + count for m in net.up.values()), 6_000)


def idle(net: OurNet, seconds: float) -> None:
    until = net.now + seconds
    while net.now < until:
        net.step()


def sizes(net: OurNet) -> list[int]:
    return [len(member.journal) for member in net.up.values()]


def test_raft_log_above_the_size_limit_is_compacted_when_idle_and_loaded_from_the_snapshot(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, _ = net.elected()
        put(net, lead, COMPACT_AFTER_BYTES)
        assert min(sizes(net)) > COMPACT_AFTER_BYTES // ENTRY
        idle(net, LULL_S + 0.5)
        assert max(sizes(net)) < 10
        put(net, lead, 20 * ENTRY)
        idle(net, LULL_S + 0.5)
        assert min(sizes(net)) > 20, "one is enough"
        before = net.values(near)
        net.crash(near)
        net.start(near)
        net.tick(near)
        assert len(net.values(near)) >= len(before) - 21, "from the snapshot, before anything is heard of the others"


def test_raft_log_that_is_never_idle_is_compacted_at_a_larger_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert COMPACT_AT_ONCE_BYTES > 4 * COMPACT_AFTER_BYTES
    monkeypatch.setattr(library, "COMPACT_AT_ONCE_BYTES", 2 * COMPACT_AFTER_BYTES)
    with our_net(tmp_path) as net:
        lead, *_ = net.elected()
        found = []
        for _ in range(16):
            put(net, lead, COMPACT_AFTER_BYTES // 4)
            found.append(max(sizes(net)))
        assert COMPACT_AFTER_BYTES // ENTRY < max(found) < 2.5 * COMPACT_AFTER_BYTES // ENTRY
        assert min(found[8:]) < found[0] + 1
