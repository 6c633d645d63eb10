"""Test entries that concern thousands of partitions: each tick does a bounded part of the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.quorum.journal import GroupJournal
from sidecar.quorum.library import APPLIED_PER_TICK_BYTES, STEP_BYTES, RaftCore, check_library, settings
from sidecar.quorum.transport import SessionTransport

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


def test_raft_entry_whose_stepwise_apply_raises_stops_the_member_and_is_not_applied(core: RaftCore, machine: Machine) -> None:
    machine.fails_at = 3
    core.propose(b"long", lambda *_: None)
    for _ in range(20):
        core.doTick(0)
        core.log.sync()
    assert isinstance(core.failure, ValueError)
    assert not machine.applied
    assert machine.steps == 3
