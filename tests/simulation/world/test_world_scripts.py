"""Test that the scripts of shipped nodes end well. One Python process plays all of them: it changes the standard library."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.long import is_long

ROOT = Path(__file__).resolve().parents[3]
_SCRIPT = re.compile(r"^@script\((.*)\)\nasync def script_(\w+)\(", re.MULTILINE)
NAMES = [
    pytest.param(name, marks=[pytest.mark.long] if "long=True" in options else [])
    for path in sorted((Path(__file__).parent / "scripts").glob("*.py"))
    for options, name in _SCRIPT.findall(path.read_text(encoding="utf-8"))
]


@pytest.fixture(scope="module")
def results() -> dict[str, tuple[int, list[str]]]:
    """Return script -> its seed, and wrong expectations and broken rules."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.world.scripts", "--json", *(["--long"] if is_long() else [])],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert rows, done.stderr[-4000:]
    return {row["script"]: (row["seed"], row["violations"]) for row in rows}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_world_script_played_in_virtual_time_meets_all_expectations(
    name: str, results: dict[str, tuple[int, list[str]]]
) -> None:
    seed, violations = results[name]
    assert violations == [], f"python -m tests.simulation.world.scripts --seed {seed} {name}"
