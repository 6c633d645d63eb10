"""Test the mutation tool: its mutants compile, it reports which are noticed, and it leaves the checkout unchanged."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.mutate.__main__ import changed_lines, choose
from tests.mutate.cover import choose_cover
from tests.mutate.operators import Mutant, make_mutants
from tests.mutate.runner import Tree, find_tests, scripts_that_run

SOURCE = '''"""A module."""

import os


class Store:
    def __init__(self) -> None:
        """Start."""
        self.size = 0

    async def put(self, key: str = "ä", ready: bool = True) -> int:
        if not key and ready or self.size >= 4:
            raise ValueError(f"no {key}")
        try:
            await self.write(key)
        finally:
            self.close()
        while self.size < 2:
            self.size += 1
            continue
        log.info("done")
        return self.size - 1 if key is None else 7
'''


def test_mutation_of_a_module_creates_compilable_mutants_for_each_operator() -> None:
    mutants = make_mutants("store.py", SOURCE)
    for mutant in mutants:
        compile(mutant.apply(SOURCE), "store.py", "exec")
    mistakes = " | ".join(mutant.mistake for mutant in mutants)
    for word in (
        "delete 'self.size = 0'", "True -> False", "and -> or", "or -> and", ">= -> >", "drop 'not'", "delete 'raise", "drop 'await'",
        "drop 'finally", "never enter", "delete 'self.size += 1'", "continue -> break",
        "return None", "- -> +", "is -> is not", "7 -> 8",
    ):  # fmt: skip
        assert word in mistakes
    assert "log.info" not in mistakes
    assert len({mutant.id for mutant in mutants}) == len(mutants)


def test_mutant_after_a_two_byte_letter_replaces_the_text_at_its_position() -> None:
    mutant = next(m for m in make_mutants("store.py", SOURCE) if m.mistake == "True -> False")
    assert 'key: str = "ä", ready: bool = False' in mutant.apply(SOURCE)


def _make_repository(root: Path) -> None:
    files = {
        "liftpy/__init__.py": "",
        "liftpy/bound.py": "def within(n):\n    return n < 3\n\n\ndef untested(n):\n    return n < 4\n",
        "tests/unit/test_bound.py": "from liftpy.bound import within\n\n\ndef test_within():\n    assert not within(3)\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    git = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "start"], check=True)


def test_mutation_run_reports_mutants_as_killed_or_survived(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    _make_repository(root)
    mutants = {m.mistake: m for m in choose([], None, 0, 1, root) if m.mistake.startswith("< -> <=")}
    tree = Tree(tmp_path / "copy", root)
    verdicts = {mistake: tree.attempt(mutant, 30.0, wide=False).verdict for mistake, mutant in mutants.items()}
    assert verdicts == {"< -> <= in 'n < 3'": "killed", "< -> <= in 'n < 4'": "survived"}
    assert "n < 3" in (root / "liftpy/bound.py").read_text(encoding="utf-8")


def test_mutation_run_uses_tests_that_import_the_module_through_a_helper(tmp_path: Path) -> None:
    unit = tmp_path / "tests/unit"
    unit.mkdir(parents=True)
    for name, text in {
        "bench.py": "from liftpy.bound import within",
        "test_bench.py": "from tests.unit.bench import within",
        "test_bound.py": "import liftpy.bound",
        "test_other.py": "import liftpy.other",
    }.items():
        (unit / name).write_text(text, encoding="utf-8")
    assert find_tests(tmp_path, "liftpy/bound.py", wide=False) == ["tests/unit/test_bench.py", "tests/unit/test_bound.py"]


def test_mutation_selection_since_a_revision_contains_only_mutants_of_changed_lines(tmp_path: Path) -> None:
    _make_repository(tmp_path)
    path = tmp_path / "liftpy/bound.py"
    path.write_text(path.read_text(encoding="utf-8").replace("n < 4", "n < 5"), encoding="utf-8")
    assert changed_lines("HEAD", tmp_path) == {"liftpy/bound.py": {6}}
    assert {mutant.line for mutant in choose([], "HEAD", 0, 1, tmp_path)} == {6}


def test_mutant_of_a_function_is_tried_with_the_scripts_that_run_its_lines() -> None:
    text = "LIMIT = 1\n\n\ndef double(x):\n    return x * 2\n\n\ndef half(x):\n    return x / 2\n"
    rows = [
        {"script": "runs both", "reached": {"m.py": [5, 9]}},
        {"script": "runs half", "reached": {"m.py": [9]}},
        {"script": "runs another module", "reached": {"other.py": [5, 9]}},
    ]

    def mutant(line: int) -> Mutant:
        start = sum(len(text) for text in text.splitlines(keepends=True)[: line - 1])
        return Mutant("m.py", line, start, start + 1, "", "dropped")

    assert scripts_that_run(mutant(9), text, rows) == ["runs half", "runs both"]
    assert scripts_that_run(mutant(5), text, rows) == ["runs both"]
    assert scripts_that_run(mutant(1), text, rows) is None


def test_mutant_cover_leaves_out_tests_that_notice_no_mutant_alone() -> None:
    noticed_by = {"m1": {"a", "b"}, "m2": {"b"}, "m3": {"b", "c"}, "m4": {"d", "scripts"}}
    assert choose_cover(noticed_by) == ["b", "d"]
    assert choose_cover(noticed_by, keep=("scripts",)) == ["b"]
