"""Seeds of simulated clusters in the suite's budget; ``python -m tests.simulation.replica`` runs as many as wanted."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from liftpy.testing.run import run_seed, shrink
from tests.simulation.mutants.catalogue import MUTANTS

ROOT = Path(__file__).parents[3]
SEEDS = range(1, 61)
EVENTS = 4000
SEEN: Counter[str] = Counter()

CORPUS = (5, 22, 26, 27, 98, 116, 161, 201, 207, 292, 723, 763)
"""Seeds that once found something, in the code or in the simulator."""


@pytest.mark.parametrize("seed", sorted({*SEEDS, *CORPUS}))
def test_no_invariant_breaks(seed: int) -> None:
    outcome = run_seed(seed, EVENTS)
    SEEN.update(outcome.counters)
    assert outcome.violation is None, outcome.report()


@pytest.mark.parametrize(
    "what",
    [
        "truncation", "fresh start", "refused: STALE_EPOCH", "refused: STALE_INCARNATION", "no responders",
        "ISR = min.isr", "ISR < min.isr", "ISR grew", "ISR shrank", "partition OFFLINE", "partition CANDIDATE_FOUND",
        "negative ack: BELOW_MIN_ISR", "publish timed out", "dropped answer: stale request", "role LEADER LEADER_NO_LEASE",
        "fault kill", "fault power", "fault empty", "fault pause", "fault cut", "fault cut-metadata", "fault flush-error",
        "fault full-disk", "fault retention", "fault transfer", "lost", "duplicated", "delayed",
    ],
)  # fmt: skip
def test_it_has_been_seen(what: str) -> None:
    """The coverage of the seeds above: a fault or a rare state that never happens proves nothing."""
    if sum(SEEN.values()) == 0:
        pytest.skip("the seeds have not been run in this session")
    assert SEEN[what] > 0


def _digest(seed: int, hash_seed: str) -> str:
    code = (
        "import hashlib; from liftpy.testing.run import run_seed;"
        f"print(hashlib.sha256('\\n'.join(run_seed({seed}, 2500, trace=True).trace.lines).encode()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_seed_is_one_history_whatever_the_hash_order() -> None:
    lines = run_seed(7, 2500, trace=True).trace
    assert lines is not None
    digest = hashlib.sha256("\n".join(lines.lines).encode()).hexdigest()
    assert {_digest(7, "1"), _digest(7, "2")} == {digest}


def test_a_failing_seed_is_made_short() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "no maximal ISR")
    with mutant.applied():
        failed = next(outcome for outcome in (run_seed(seed, 4000) for seed in range(1, 80)) if outcome.violation)
        short = shrink(failed, max_runs=60)
    assert short.invariant == failed.invariant
    assert len(short.plan.faults) < len(failed.plan.faults)
    assert short.trace is not None
    assert short.report().startswith(f"seed {failed.plan.seed}")
