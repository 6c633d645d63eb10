"""Test seeds of simulated clusters. ``python -m tests.simulation.replica`` runs more seeds.

``--corpus``: all that are named here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.simulation.mutants.bug import SEED_EVENTS
from tests.simulation.mutants.catalogue import MUTANTS
from tests.simulation.replica.run import run_seed, shrink
from tests.simulation.replica.worker import run_job

ROOT = Path(__file__).parents[3]
SEEDS = (*range(1, 15), 23, 27, 28)
"""26 is left out, by its twins: one of a version that does not ask for its predecessor takes the leader's place with a copy of its
running folder, while the only complete member is down; it is elected, and the others, who know of more that was committed, follow
nobody until an operator decides. Whose log is the right one nothing in the cluster can know."""
EVENTS, CORPUS_EVENTS, FOLDERS_EVENTS = 5_000, 2_500, 8_000

WORKERS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
"""The other core has another half of the suite then."""

CORPUS = (
    5, 22, 26, 27, 98, 159, 116, 161, 201, 207, 239, 292, 723, 763, 300,
    302, 307, 357, 1134, 1557, 3046, 10303, 11455, 12280, 12359, 15603, 22601, 30011, 30816, 31907, 31962,
)  # fmt: skip
"""Seeds that once found something, in the code or in the simulator, or that show a rare state (239: publishes above a limit)."""

LONGER = (14132,)
"""Of them, where the rare state comes late."""

LASTING = (*range(1, 12), 68)
"""Seeds whose faults last: the cluster has to commit again meanwhile [L10]. 68: a deaf leader was alone in the ISR."""

MANY = (5,)
"""The same with many partitions on each node."""

EDGES, LEADERS = (1, 5), (10, 38)
"""Seeds whose faults strike leaders when it matters: each is fatal to a mutant (``tests.simulation.mutants``)."""

MOVES, DRAINS = (2, 7), (3, 4)
"""Seeds whose replicas move, among the other faults."""

TIMES = (7, 9, 18)
"""Seeds in which session and lease are the cluster's, and become others; each is fatal to a mutant."""

FOLDERS = (1, 2, 3, 8)
"""Seeds whose folders are copied, put back, and run on two machines at once."""

WANTED = (
    "lasting fault, acknowledged", "gives up: its data path is down",
    "truncation", "fresh start", "refused: STALE_EPOCH", "refused: STALE_INCARNATION", "refused: BEFORE_LOG_START",
    "refused: UNKNOWN", "no responders", "ISR = min_isr", "ISR < min_isr", "ISR grew", "ISR shrank", "changeIsr STALE",
    "partition OFFLINE", "partition ELECTION", "partition CANDIDATE_FOUND", "passOver OK", "reportLeader FENCED",
    "negative ack: BELOW_MIN_ISR", "negative ack: NO_SPACE", "negative ack: OVERLOADED", "publishes held",
    "publish dropped: BELOW_MIN_ISR", "publish dropped: OVERLOADED", "publish timed out", "dropped answer: stale request",
    "role LEADER LEADER_NO_LEASE", "fault kill", "fault power", "fault power-all", "fault empty", "fault pause", "fault cut",
    "fault cut-link", "fault cut-metadata", "fault metadata-down", "fault flush-error", "fault full-disk", "fault slow-disk",
    "fault retention", "fault transfer", "fault flip", "fault slow-consumer", "fault reconnect", "fault wall-clock",
    "fault hang-promotion", "fault put-back", "fault forged-notice", "fault kill-power", "fault flip-newest",
    "fault flip-running", "fault empty-last", "fault suspend", "fault cut-connection", "expired by age",
    "fault twin", "fault twin-disk", "twin's disk: flips while it runs", "twin's disk: full", "fault other-logs",
    "fault late-answers", "fault half-open", "twin: it was the node",
    "deposed by another registration", "lost on a half-open connection",
    "fault session-ends", "a session ended under its leader", "fault hw-stalls", "segments above HW",
    "fault cut-publishes", "expired by bytes", "fault move", "copy begun", "fault drain", "fault weight", "fault factor",
    "data deleted: moved away", "fault times", "setSessionTimes OK", "setSessionTimes STALE", "settleSessionTimes OK",
    "records dropped by compaction", "damage found", "damage met by a reader", "lost",
    "duplicated", "delayed", "batch put together", "read: batch put together",
)  # fmt: skip
"""What must have happened: a fault or a rare state that never does proves nothing. ("refused: DIVERGED" is not here: a follower
that reconciles first never sends such a fetch; the mutant that does not reconcile does.)"""


Job = tuple[int, int, str | None]
"""Seed, events, profile."""


def corpus() -> list[Job]:
    """All seeds that are named here."""
    jobs: list[Job] = [(seed, EVENTS, None) for seed in SEEDS]
    jobs += [(seed, CORPUS_EVENTS, None) for seed in CORPUS] + [(seed, EVENTS, None) for seed in LONGER]
    jobs += [(seed, EVENTS, "lasting") for seed in LASTING] + [(seed, EVENTS, "lasting-many") for seed in MANY]
    jobs += [(seed, FOLDERS_EVENTS, "folders") for seed in FOLDERS]
    jobs += [(seed, SEED_EVENTS, "edges") for seed in EDGES] + [(seed, SEED_EVENTS, "lasting-leaders") for seed in LEADERS]
    jobs += [(seed, SEED_EVENTS, "moves") for seed in MOVES] + [(seed, SEED_EVENTS, "drains") for seed in DRAINS]
    return jobs + [(seed, SEED_EVENTS, "times") for seed in TIMES]


SHORT: tuple[Job, ...] = (
    (1, EVENTS, None),
    (7, EVENTS, None),
    (10, EVENTS, None),
    (14, EVENTS, None),
    (22, CORPUS_EVENTS, None),
    (23, EVENTS, None),
    (159, CORPUS_EVENTS, None),
    (161, CORPUS_EVENTS, None),
    (207, CORPUS_EVENTS, None),
    (239, CORPUS_EVENTS, None),
    (302, CORPUS_EVENTS, None),
    (12359, CORPUS_EVENTS, None),
    (14132, EVENTS, None),
    (4, SEED_EVENTS, "drains"),
    (1, SEED_EVENTS, "edges"),
    (5, SEED_EVENTS, "edges"),
    (8, FOLDERS_EVENTS, "folders"),
    (68, EVENTS, "lasting"),
    (10, SEED_EVENTS, "lasting-leaders"),
    (5, EVENTS, "lasting-many"),
    (2, SEED_EVENTS, "moves"),
    (7, SEED_EVENTS, "times"),
)  # fmt: skip
"""Cheap ones that together show everything that is wanted, and some more: at least one of each profile. The other ones take five times
as long: run ``--corpus`` where a rule of a replica changes."""


@pytest.mark.timeout(900)
def test_simulation_seeds_break_no_invariant_and_cover_every_event() -> None:
    assert set(SHORT) <= set(corpus())
    seen: Counter[str] = Counter()
    failures = []
    with get_context("spawn").Pool(WORKERS) as pool:
        for _, _, _, report, counters in pool.imap_unordered(run_job, SHORT):
            seen += counters
            failures += [report] if report else []
    assert not failures, "\n".join(failures)
    assert [what for what in WANTED if not seen[what]] == []


HISTORIES = ((7, ""), (8, "disks"), (10, "lasting"))


def _digest(hash_seed: str) -> str:
    code = (
        "import hashlib; from tests.simulation.replica.run import run_seed;"
        f"lines = [line for seed, profile in {HISTORIES}"
        " for line in run_seed(seed, 1500, trace=True, profile=profile).trace.lines];"
        "print(len(lines), hashlib.sha256('\\n'.join(lines).encode()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.long
def test_simulation_seed_gives_the_same_history_for_any_hash_order() -> None:
    assert _digest("1") == _digest("2")


def test_simulation_seed_that_fails_is_shrunk_to_a_shorter_history() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "no maximal ISR")
    with mutant.applied():
        failed = next(outcome for outcome in (run_seed(seed, 1500) for seed in range(26, 80)) if outcome.violation)
        short = shrink(failed, max_runs=20)
    assert short.invariant == failed.invariant
    assert len(short.plan.faults) < len(failed.plan.faults)
    assert short.trace is not None
    assert short.report().startswith(f"seed {failed.plan.seed}")
