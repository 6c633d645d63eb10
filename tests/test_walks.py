"""Walks of docs/design/walks.md and ways of ARCHITECTURE.md name files and functions that exist. Walks count their files."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_TEXT = (ROOT / "docs" / "design" / "walks.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
_SECTION = re.search(r"^## Four walks\n(.*?)^## ", _TEXT, re.M | re.S)
WALKS = re.findall(r"^\*\*(.+?)\*\* \((\d+) files\)(.*?)(?=^\*\*|\Z)", _SECTION[1] if _SECTION else "", re.M | re.S)
_STEP = re.compile(r"`([\w/]+\.py)`((?:,?\s+`\w+`)*)")
MOST_FILES = {"From a plain message to Spark": 42}


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def missing(text: str) -> list[str]:
    """What a walk names and the code has not."""
    wrong = []
    for name, functions in _STEP.findall(text):
        path = ROOT / name
        if not path.exists():
            wrong.append(name)
            continue
        there = functions_of(path)
        wrong += [f"{name} {function}" for function in re.findall(r"\w+", functions) if function not in there]
    return wrong


def test_architecture_has_four_walks() -> None:
    assert len(WALKS) == 4


@pytest.mark.parametrize(("title", "count", "text"), WALKS, ids=[title for title, *_ in WALKS])
def test_architecture_walk_names_existing_files_and_functions(title: str, count: str, text: str) -> None:
    assert not missing(text)
    files = {name for name, _ in _STEP.findall(text)}
    assert len(files) == int(count) < MOST_FILES.get(title, 30)
    assert all(functions for _, functions in _STEP.findall(text)), "every step names a function"


def test_architecture_names_functions_that_exist() -> None:
    assert len(_STEP.findall(ARCHITECTURE)) > 20
    assert not missing(ARCHITECTURE)


def test_architecture_check_finds_removed_names() -> None:
    assert missing("`liftpy/gone.py` `step`") == ["liftpy/gone.py"]
    assert missing("`liftpy/core/replication/replica.py` `step`, `leap`") == ["liftpy/core/replication/replica.py leap"]
