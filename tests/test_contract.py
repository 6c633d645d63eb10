"""The contract in the tree: every code that is cited is in ``docs/invariants.md``, every invariant is checked where that says, and
what the documents point at is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.each import each

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ROW = re.compile(r"^\| ([A-Z]\d{1,2}) \| (.+) \| (.+) \|$")
CODE = re.compile(r"(?<![\w.#-])([ACDGLMQRS]\d{1,2})(?![\w-])")
NOT_BUILT = "not built yet"
HERE = Path(__file__).resolve()


def _texts(*suffixes: str) -> dict[Path, str]:
    folders = [ROOT / name for name in ("liftpy", "sidecar", "tests", "protos", "docs")]
    found = [path for folder in folders for path in folder.rglob("*") if path.suffix in suffixes] + [
        path for path in ROOT.glob("*") if path.suffix in suffixes
    ]
    kept = (path for path in found if "_pb" not in path.parts and path != HERE)
    return {path: path.read_text(encoding="utf-8") for path in sorted(kept)}


SOURCES = _texts(".py", ".proto")
PAGES = _texts(".md")
INVARIANTS = {
    match[1]: match[3] for line in PAGES[DOCS / "invariants.md"].splitlines() if (match := ROW.match(line)) is not None
}


def _at(path: Path, text: str, position: int) -> str:
    return f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, position) + 1}"


def test_invariant_codes_are_unique() -> None:
    rows = [match[1] for line in PAGES[DOCS / "invariants.md"].splitlines() if (match := ROW.match(line)) is not None]
    assert len(rows) > 100
    assert sorted(rows) == sorted(set(rows))
    by_letter: dict[str, list[int]] = {}
    for code in rows:
        by_letter.setdefault(code[0], []).append(int(code[1:]))
    assert {letter: sorted(numbers) for letter, numbers in by_letter.items()} == {
        letter: list(range(1, len(numbers) + 1)) for letter, numbers in by_letter.items()
    }


def test_invariant_codes_in_sources_are_documented() -> None:
    unknown = [
        f"{_at(path, text, match.start())} {match[1]}"
        for path, text in {**SOURCES, **PAGES}.items()
        for match in CODE.finditer(text)
        if match[1] not in INVARIANTS
    ]
    assert not unknown, f"cited, and not in docs/invariants.md: {unknown}"


def _is_cited(code: str, path: Path) -> bool:
    """By a test in whatever way, by shipped code as the name of a check."""
    text = SOURCES[path]
    if path.is_relative_to(ROOT / "tests"):
        return any(match[1] == code for match in CODE.finditer(text))
    return f'"{code}"' in text


@each("code", INVARIANTS)
def test_invariant_is_cited_by_its_check_or_test(code: str) -> None:
    checked_by = INVARIANTS[code]
    if checked_by.startswith(NOT_BUILT):
        citing = [str(path.relative_to(ROOT)) for path, text in SOURCES.items() if re.search(rf"\b{code}\b", text)]
        assert not citing, f"{code} is cited by {citing}: is it built? Then docs/invariants.md has to name its check"
        return
    path = ROOT / checked_by.strip("`")
    assert path in SOURCES, f"{code}: {path} does not exist"
    assert _is_cited(code, path), f"{code}: {checked_by} does not cite it"


HEADINGS = {line[3:].strip() for line in PAGES[DOCS / "protocol.md"].splitlines() if line.startswith("## ")}


def test_protocol_citations_name_existing_sections() -> None:
    for path, text in SOURCES.items():
        for match in re.finditer(r"\[protocol: ([^\]]+)\]", text):
            unknown = {name.strip() for name in match[1].split(";")} - HEADINGS
            assert not unknown, f"{_at(path, text, match.start())}: docs/protocol.md has no section {unknown}"
        outside = re.search(r"\[spec\b|\bspec \d|[Ss]pecification", text)
        assert outside is None, f"{_at(path, text, outside.start())} cites what is not in the tree: say docs/protocol.md"


@each("path", PAGES)
def test_docs_links_and_paths_exist(path: Path) -> None:
    text = PAGES[path]
    for match in re.finditer(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in match[1]:
            assert (path.parent / match[1]).exists(), f"{_at(path, text, match.start())}: {match[1]}"
    if path.name == "CHANGELOG.md":
        return  # it tells of what was there then
    for match in re.finditer(r"`((?:liftpy|sidecar|tests|protos|docs)/[\w/.-]*)", text):
        named = match[1].rstrip(".")
        assert (ROOT / named).exists(), f"{_at(path, text, match.start())}: {named}"


def _fields(path: Path) -> list[tuple[str, str, str]]:
    """(class, field, what the string behind it says) of every frozen class of a module."""
    found = []
    for node in ast.parse(SOURCES[path]).body:
        if isinstance(node, ast.ClassDef) and node.decorator_list:
            for field, behind in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    said = behind.value if isinstance(behind, ast.Expr) else None
                    text = said.value if isinstance(said, ast.Constant) and isinstance(said.value, str) else ""
                    found.append((node.name, field.target.id, text))
    return found


@pytest.mark.parametrize("module", ["events", "effects"])
def test_replication_fields_have_texts_and_offsets_say_if_inclusive(module: str) -> None:
    fields = _fields(ROOT / "liftpy" / "core" / "replication" / f"{module}.py")
    assert len(fields) > 50
    for name, field, text in fields:
        assert text, f"{module}.{name}.{field} does not say what it is"
        if field.endswith("offset") or field == "high_watermark":
            wanted = "exclusive" if field.endswith("end_offset") else "inclusive"
            assert re.search(rf"\b{wanted}\b", text.lower()), f"{module}.{name}.{field} has to say {wanted}"
        if field.endswith("_ns"):
            assert re.search(r"\b(ns|nanoseconds)\b", text), f"{module}.{name}.{field} has to say its unit"
