"""Pages for contributors name files, modules and functions that exist. Walks of docs/design/walks.md count their files."""

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


PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "tests/README.md")
_FOLDERS = ("liftpy/", "sidecar/", "tests/", "docs/", "deploy/", "protos/")
_MODULE = re.compile(r"python3? -m ((?:tests|liftpy|sidecar)(?:\.\w+)*)")


def missing_files(text: str) -> list[str]:
    """Return the files, folders and modules in ``text`` that do not exist."""
    spans = re.findall(r"`([\w./-]+)`", text)
    names = {path.name for folder in _FOLDERS for path in (ROOT / folder).rglob("*.*")} | {
        path.name for path in ROOT.glob("*.*")
    }
    wrong = [span for span in spans if span.startswith(_FOLDERS) and not (ROOT / span).exists()]
    wrong += [span for span in spans if re.fullmatch(r"\w+\.(py|proto|md|toml|yml)", span) and span not in names]
    modules = {name: ROOT / name.replace(".", "/") for name in _MODULE.findall(text)}
    return wrong + [
        name for name, path in modules.items() if not (path.with_suffix(".py").exists() or (path / "__main__.py").exists())
    ]


@pytest.mark.parametrize("page", PAGES)
def test_contributor_page_names_files_and_modules_that_exist(page: str) -> None:
    assert not missing_files((ROOT / page).read_text(encoding="utf-8"))


def test_contributor_page_check_finds_removed_files_and_modules() -> None:
    gone = ["liftpy/gone.py", "tests/gone", "gone.proto", "tests.gone"]
    assert missing_files("`liftpy/gone.py`, `liftpy/config.py`, `tests/gone`, `gone.proto`, `python -m tests.gone`") == gone
