"""Every mutant applies to the shipped text exactly once, compiles, and says why it is a bug. Some are tried: so is the runner."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import PACKAGES, ROOT, SIMULATION

FILES = {file: (ROOT / file).read_text(encoding="utf-8") for file in {m.file for m in MUTANTS} if (ROOT / file).is_file()}


def test_each_applies_once_compiles_and_says_why() -> None:
    wrong = []
    for mutant in MUTANTS:
        if mutant.file not in FILES:
            wrong.append(f"{mutant.id}: there is no {mutant.file}")
            continue
        try:
            compile(mutant.changed(FILES[mutant.file]), mutant.file, "exec")
        except (ValueError, SyntaxError) as error:
            wrong.append(f"{mutant.id}: {error}")
        wrong += [
            f"{mutant.id}: there is no {t}" for t in mutant.tests if t != SIMULATION and not (ROOT / t.split("::")[0]).exists()
        ]
        if len(mutant.why.split()) < 4 or mutant.package not in PACKAGES:
            wrong.append(f"{mutant.id}: of which package, and what do users meet?")
    assert not wrong, "\n".join(wrong)
    assert not [name for name, count in Counter(m.id for m in MUTANTS).items() if count > 1]


def test_some_are_tried_in_a_copy_of_the_tree(tmp_path: Path) -> None:
    results = tmp_path / "results"
    words = ["--package", "disk", "--only", " probe ", "--near", "--no-baseline", "--results", str(results)]
    before = {name: (ROOT / name).stat().st_mtime_ns for name in FILES}
    ran = subprocess.run([sys.executable, "-m", "tests.mutants", *words], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [row["verdict"] for row in rows] == ["killed"] * 3
    assert "fresh: 2 of 2" in ran.stdout
    assert {name: (ROOT / name).stat().st_mtime_ns for name in FILES} == before, "never the checkout itself"
    again = subprocess.run(
        [sys.executable, "-m", "tests.mutants", *words], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert "fresh: 2 of 2" in again.stdout
    assert len(results.read_text().splitlines()) == 3, "what is decided is not tried again"
