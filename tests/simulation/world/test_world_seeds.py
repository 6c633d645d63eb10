"""Test a few seeds of shipped nodes in virtual time, and that a seed gives one history."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def _run(hash_seed: int, *arguments: str) -> str:
    """What the command prints, in a Python process of its own: it changes the standard library. Its strings hash as ``hash_seed``
    says."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.world", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def _digests(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line[:1].isdigit() and len(line.split()) == 2]


@pytest.mark.long
def test_shipped_node_simulation_seed_gives_the_same_trace_in_two_processes() -> None:
    first, second = (_run(seed, "--profile", "all", "--seeds", "2", "--busy", "2", "--digests") for seed in (1, 2))
    assert _digests(first) == _digests(second) != []


def test_shipped_node_simulation_seeds_with_all_faults_break_no_rule() -> None:
    _run(0, "--profile", "all", "--seeds", "1", "--busy", "3")
