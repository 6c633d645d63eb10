"""The short form of ``python -m tests.simulation.raft``, and the bugs that it found."""

from __future__ import annotations

from pathlib import Path

import pytest
from pysyncobj import FAIL_REASON

from tests.simulation.raft.__main__ import run_seeds
from tests.simulation.raft.group_simulation import Machine, Run, Violation

SEEDS = 80


@pytest.mark.timeout(400)
def test_no_seed_breaks_an_invariant() -> None:
    seen, failures = run_seeds(range(SEEDS))
    assert failures == []
    wanted = (
        "snapshots installed",
        "conflicts cut",
        "crashes before the flush",
        "crashes after the flush",
        "torn: append",
        "refused: duplicate frame",
        "folders put back from a copy",
    )
    assert all(seen[what] > 3 for what in wanted), seen
    assert seen["operations acknowledged"] > 10_000


def test_the_same_seed_gives_the_same_history(tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        run = Run(3, tmp_path / name)
        run.execute()
        runs.append((run.ghost, run.seen, run.acked))
    assert runs[0] == runs[1]


def test_the_checks_can_fail() -> None:
    machine = Machine({1: b"a"})
    with pytest.raises(Violation, match="M5"):
        machine.apply(b"b", 1)
    machine.apply(b"a", 1)
    with pytest.raises(Violation, match="after"):
        machine.apply(b"a", 1)
    with pytest.raises(Violation, match="twice"):
        machine.apply(b"a", 2)


def test_commands_in_the_queue_of_a_leader_that_steps_down_are_refused_not_forwarded(tmp_path: Path) -> None:
    """Seed 0 of the first version: the library forwards them by a message that is not of the protocol, and the member stopped."""
    run = Run(0, tmp_path)
    run.execute()
    member = run.up[run.members[0]]
    node = member.transport._nodes[run.members[1]]
    answers: list[int] = []
    member.core._SyncObj__commandsWaitingReply[7] = lambda _, reason: answers.append(reason)
    assert member.transport.send(node, {"type": "apply_command", "command": b"\0x", "request_id": 7}) is False
    member.transport.poll()
    assert answers == [FAIL_REASON.NOT_LEADER]
