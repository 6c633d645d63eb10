"""Test that the scripts of shipped nodes end well. One Python process plays all of them: it changes the standard library."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_SCRIPT = re.compile(r"^async def script_(\w+)\(", re.MULTILINE)
NAMES = [
    name
    for path in sorted((Path(__file__).parent / "scripts").glob("*.py"))
    for name in _SCRIPT.findall(path.read_text(encoding="utf-8"))
]


@pytest.fixture(scope="module")
def results() -> dict[str, list[str]]:
    """Return script -> wrong expectations and broken rules."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.world.scripts", "--json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert rows, done.stderr[-4000:]
    return {row["script"]: row["violations"] for row in rows}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_script_of_shipped_nodes_shows_what_users_and_operators_see(name: str, results: dict[str, list[str]]) -> None:
    assert results[name] == []
