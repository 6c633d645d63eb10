"""Test a few seeds of ``python -m tests.simulation.raft``, the seeds that detect its mutants, and its checks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from pysyncobj import FAIL_REASON

from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import born_fsm, born_image, registration
from tests.simulation.raft.__main__ import run_seed, run_seeds
from tests.simulation.raft.draws import Draws
from tests.simulation.raft.ghost import CheckedFsm, Ghost, Violation
from tests.simulation.raft.group_simulation import Run
from tests.simulation.raft.mutants import MUTANTS, RaftMutant
from tests.simulation.raft.plots import PLOTS

ONE_IS_LEFT = 1000
"""A seed in which the group shrinks to one voter, which dies before it has flushed what it decided alone."""
SEEDS = (2, 4, 5, 11, ONE_IS_LEFT)
"""The cheapest seeds that together show every state of ``test_raft_simulation_seeds_break_no_invariant``."""

WITH_DEADLINES = 10_004
"""A seed in which controllers tick at deadlines."""

_TRACE = """
import hashlib, logging, sys, tempfile
from pathlib import Path
from tests.simulation.raft.group_simulation import Run
logging.disable(logging.CRITICAL)
for seed in (1, 3):
    with tempfile.TemporaryDirectory() as folder:
        run = Run(seed, Path(folder))
        run.execute()
        run.close()
    seen = (sorted(run.ghost.entries.items()), sorted(run.seen.items()), sorted(run.acked.items()), run.now)
    print(hashlib.sha256(repr(seen).encode()).hexdigest())
"""


@pytest.mark.timeout(600)
def test_raft_simulation_seeds_break_no_invariant() -> None:
    seen, failures = run_seeds(SEEDS)
    assert failures == []
    wanted = (
        "snapshots_installed",
        "conflicting_entries_truncated",
        "crashes before the flush",
        "crashes after the flush",
        "torn: append",
        "refused: duplicate frame",
        "folders put back from a copy",
        "ticks of a stale metadata leader",
        "chunks of the feed's snapshots",
        "controllers paused",
        "folders kept against the image",
        "nodes fenced",
        "nodes found absent",
        "nodes: clean stops",
        "orders: UNKNOWN",
        "orders: NEVER",
        "leaders lost at once to a member on probation",
        *(f"plots: {kind}" for kind in PLOTS if kind != "stops midway"),  # which these seeds hardly ever try
    )
    assert [what for what in wanted if not seen[what]] == []
    assert seen["operations acknowledged"] > 2_000


@pytest.mark.timeout(200)
def test_raft_simulation_with_tick_deadlines_breaks_no_invariant() -> None:
    seen, failures = run_seeds([WITH_DEADLINES])
    assert failures == []
    wanted = ("ticks of a settled leader", "late ticks", "controllers paused", "leaders elected", "snapshots_installed")
    assert [what for what in wanted if not seen[what]] == []


@pytest.mark.timeout(200)
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if not m.slow], ids=lambda mutant: mutant.name)
def test_raft_mutant_is_detected_by_its_seed(mutant: RaftMutant) -> None:
    """``python -m tests.simulation.raft --mutants`` also runs the seed without the mutant, which has to be clean."""
    with mutant.applied():
        assert run_seed(mutant.seed, Counter()), "it survives"


@pytest.mark.long
def test_raft_simulation_seed_gives_the_same_history_for_any_python_hash_seed() -> None:
    printed = []
    for hash_seed in ("1", "2"):
        given = {**os.environ, "PYTHONHASHSEED": hash_seed}
        printed.append(subprocess.run([sys.executable, "-c", _TRACE], env=given, check=True, capture_output=True).stdout)
    assert printed[0] == printed[1]
    first, second = printed[0].split()
    assert first != second, "two seeds have two histories"


def test_raft_simulation_fault_kinds_draw_from_separate_random_generators() -> None:
    alone, beside = Draws(7), Draws(7)
    for _ in range(5):
        beside["a kind that is new"].random()
    assert [alone["cut"].random() for _ in range(5)] == [beside["cut"].random() for _ in range(5)]
    assert alone["cut"].random() != alone["pause"].random()


def _entry(number: int) -> bytes:
    create = pb.CreateStream(name=f"s{number}", subject=f"s{number}")
    return pb.ControlRequest(createStream=create, operationId=number.to_bytes(16)).SerializeToString()


def _begun(fsm: CheckedFsm) -> CheckedFsm:
    """Give ``fsm`` the image of a group that has begun."""
    fsm.image = born_image()
    return fsm


def test_raft_simulation_checks_report_diverged_metadata() -> None:
    ghost = Ghost()
    _begun(CheckedFsm(ghost, "a")).apply(_entry(1), 1)
    with pytest.raises(Violation, match="elsewhere"):
        _begun(CheckedFsm(ghost, "b")).apply(_entry(2), 1)
    with pytest.raises(Violation, match="is not the group's"):
        ghost.check_restored(ClusterImage(index=1), "b")
    with pytest.raises(Violation, match="is not the group's"):
        ghost.check_fed(ClusterImage(index=7), "d0")
    with pytest.raises(Violation, match="index 0"):
        ghost.check_fed(ClusterImage(), "d0")
    with pytest.raises(Violation, match="told that it is refused"):
        ghost.told_refused(pb.ControlRequest.FromString(_entry(1)))
    ghost.told_refused(pb.ControlRequest.FromString(_entry(3)))
    later = CheckedFsm(ghost, "c")
    later.image = replace(born_image(), index=1)
    with pytest.raises(Violation, match="its caller was told"):
        later.apply(_entry(3), 3)


def test_raft_simulation_detects_metadata_that_is_visible_before_its_entry_is_applied() -> None:
    ghost = Ghost()
    fsm = _begun(CheckedFsm(ghost, "a", lambda: 3))
    before = fsm.image
    assert [fsm.precompute(_entry(1), 1) for _ in range(3)] == [False, False, True]
    assert fsm.image is before
    fsm.apply(_entry(1), 1)
    assert fsm.image.index == 1
    early = patch.object(ClusterFsm, "precompute", lambda self, entry, index: setattr(self, "image", ClusterImage(index=9)))
    with early, pytest.raises(Violation, match="shows before it is applied"):
        fsm.precompute(_entry(2), 2)


def test_raft_simulation_detects_an_operation_applied_twice() -> None:
    ghost, fsm = Ghost(), born_fsm(elections=True)
    register = registration(nodeId="d0")
    entry = pb.ControlRequest(registerNode=register, operationId=b"r" * 16).SerializeToString()
    for index in (1, 2):
        before = fsm.image
        answer = fsm.apply(entry, index)
        if index == 2:
            fsm.image, fsm.last_records = ClusterImage(index=2), (object(),)  # type: ignore[assignment]
            with pytest.raises(Violation, match="twice"):
                ghost.applied(entry, index, before, fsm, answer)
        else:
            ghost.applied(entry, index, before, fsm, answer)


def test_raft_simulation_leader_that_steps_down_rejects_queued_commands(tmp_path: Path) -> None:
    """The library forwards them by a message that is not of the protocol, and the member stopped."""
    run = Run(3, tmp_path)
    run.execute()
    log = run.up[run.members[0]].log
    node = log.transport._nodes[run.members[1]]
    answers: list[int] = []
    log.core._SyncObj__commandsWaitingReply[7] = lambda _, reason: answers.append(reason)
    assert log.transport.send(node, {"type": "apply_command", "command": b"\0x", "request_id": 7}) is False
    log.transport.poll()
    assert answers == [FAIL_REASON.NOT_LEADER]
    run.close()
