"""The words of pages, help, errors, public docstrings, metrics and alerts, checked for what our guide of style forbids.

It finds patterns only: a sentence that starts with a relative pronoun or with a word that points to another sentence, a fragment, a
sentence of more than 30 words, a word of the list below. Reading decides. ``tests/words.json`` has the number of findings that a file
may have. A number may only become smaller: ``python -m tests.test_words --shrink`` lowers the numbers of files that became better, and
``python -m tests.test_words FILE...`` prints the findings.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).resolve().parent.parent
EXCEPTIONS = ROOT / "tests" / "words.json"
MOST_WORDS = 30

_START = re.compile(
    r"(?:Who|Whoever|Whatever|Whichever|Of (?!course)|The same\b|As above\b|Such\b|Those\b|One that\b|Here\b|Its?(?= own\b))"
)
_WHAT = re.compile(r"What\b[^?]*$")
_BANNED = re.compile(
    r"\b(?:anew|meanwhile|beside|whoever|for good|so long|so many|somebody|nobody|makes? way|gives? way|steps? aside|sets? aside"
    r"|stands? still|stands? by|is told|are told|lets? us in|he|him|his)\b",
    re.IGNORECASE,
)
_ERROR_END = re.compile(r"(?:Error|Refused|Rejected|UsageError|BadParameter)$")


def wrong_with(sentence: str) -> str:
    """Return what is wrong with a sentence, '' if nothing is."""
    words = sentence.split()
    if _START.match(sentence) or _WHAT.match(sentence):
        return "starts with a word that points to another sentence, or with a relative pronoun"
    if len(words) > MOST_WORDS:
        return f"has {len(words)} words"
    if found := _BANNED.search(sentence):
        return f"has the word {found[0]!r}"
    return ""


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text without code, links and marks."""
    text = re.sub(r"`[^`]*`", "CODE", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"[*_]{1,2}(\S[^*_]*)[*_]{1,2}", r"\1", text)
    for sentence in re.split(r"(?<=[.!?:;])\s+(?=[A-Z0-9'\"(])|\n", text):
        if sentence.strip(" -|>#"):
            yield sentence.strip(" -|>#")


def findings(texts: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the findings of each source. ``texts``: (source, text)."""
    found: dict[str, list[str]] = {}
    for source, text in texts:
        for sentence in sentences(text):
            if why := wrong_with(sentence):
                found.setdefault(source, []).append(f"{why}: {sentence[:160]}")
    return found


def _page(text: str) -> str:
    """A page's paragraphs, each in one line, without code blocks; the cells of a table are texts of their own."""
    text = re.sub(r"(?ms)^\s*(```|~~~).*?^\s*\1\s*$", "", text)
    lines: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("|"):
            lines += line.split("|")
            lines.append("")
        elif lines and lines[-1] and line.strip() and not re.match(r"\s*(?:[-*+>#]|\d+\.)\s", line):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line.strip())
    return "\n".join(lines)


def pages() -> Iterator[tuple[str, str]]:
    """Yield the pages that users and contributors read."""
    for path in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]:
        name = path.relative_to(ROOT).as_posix()
        if name != "CHANGELOG.md":
            yield name, _page(path.read_text(encoding="utf-8"))


def _text_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text_of(part) if isinstance(part, ast.Constant) else "VALUE" for part in node.values)
    return ""


def _errors(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if _ERROR_END.search(name):
                yield from filter(None, map(_text_of, node.args))


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Of public classes and functions at the top of a module, and of public methods."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield ast.get_docstring(node) or ""
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and not inner.name.startswith("_"):
                    yield ast.get_docstring(inner) or ""


PUBLIC = ("liftpy/client/", "liftpy/service/", "liftpy/spark/", "liftpy/config.py", "liftpy/errors.py")


def code() -> Iterator[tuple[str, str]]:
    """Yield error texts of all modules, and docstrings of public ones."""
    listed = subprocess.run(
        ["git", "ls-files", "liftpy", "sidecar"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in listed.split():
        if not name.endswith(".py") or "_pb" in name or not (ROOT / name).exists():
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        if not name.startswith(PUBLIC) and "Error(" not in text and "Refused(" not in text:
            continue
        tree = ast.parse(text)
        for error in _errors(tree):
            yield f"{name} (errors)", error
        if name.startswith(PUBLIC):
            for docstring in _docstrings(tree):
                yield f"{name} (docstrings)", _page(docstring)


def help_texts() -> Iterator[tuple[str, str]]:
    """Yield the help of each command and option."""
    from tests.freeze.parts import commands

    for path, command in commands():
        yield " ".join(path), _page((command.help or "").replace("\b", "```\n").replace("```\n", ""))
        for param in command.params:
            if isinstance(param, click.Option):
                yield " ".join(path), (param.help or "").partition("  [")[0]


def metrics_and_alerts() -> Iterator[tuple[str, str]]:
    """Yield the help of each metric, and the texts of the alerts."""
    from tests.freeze.parts import metric_texts

    for row in metric_texts().values():
        found = ast.literal_eval(row) if row[:1] in "('\"" else row
        for text in found if isinstance(found, tuple) else (found,):
            if isinstance(text, str):
                yield "metrics", text
    for path in sorted((ROOT / "deploy" / "prometheus").iterdir()):
        for text in re.findall(r"(?m)^\s*(?:summary|description):\s*[|>]?-?\s*(.+)$", path.read_text(encoding="utf-8")):
            yield "alerts", re.sub(r"\{\{.*?\}\}", "VALUE", text)


SOURCES = {"pages": pages, "code": code, "help": help_texts, "metrics": metrics_and_alerts}


@pytest.mark.parametrize("kind", SOURCES)
def test_word_check_findings_do_not_exceed_the_exception_list(kind: str) -> None:
    listed: dict[str, int] = json.loads(EXCEPTIONS.read_text(encoding="utf-8"))
    found = findings(SOURCES[kind]())
    over = {source: rows for source, rows in found.items() if len(rows) > listed.get(source, 0)}
    assert not over, "\n".join(
        f"{source}: {len(rows)}, {listed.get(source, 0)} allowed\n  " + "\n  ".join(rows) for source, rows in over.items()
    )


@pytest.mark.parametrize(
    "planted",
    [
        "Who asks first may be told 503.", "The same in bytes.", "Of a new table.", "The wait begins anew.",
        "What nobody waits for is dropped.", " ".join(["word"] * 31) + ".",
    ],
)  # fmt: skip
def test_words_check_finds_a_planted_sentence(planted: str) -> None:
    assert findings(iter([("page", f"The leader stores the record. {planted}")]))["page"]


def test_words_check_accepts_simple_sentences() -> None:
    plain = "The node drops publishes without reply subject, and counts them. Set --nats or LIFTPY_NATS. What does it cost?"
    assert findings(iter([("page", plain)])) == {}


def main() -> None:
    """Print findings, or lower the numbers of the list."""
    found = {source: rows for texts in SOURCES.values() for source, rows in findings(texts()).items()}
    if "--shrink" in sys.argv or "--begin" in sys.argv:
        listed = json.loads(EXCEPTIONS.read_text(encoding="utf-8")) if EXCEPTIONS.exists() else {}
        count = {source: len(rows) for source, rows in found.items()}
        kept = {name: min(number, count.get(name, 0)) for name, number in listed.items()} if "--shrink" in sys.argv else count
        EXCEPTIONS.write_text(
            json.dumps({name: kept[name] for name in sorted(kept) if kept[name]}, indent=0) + "\n", encoding="utf-8"
        )
        return
    for source, rows in sorted(found.items()):
        if not sys.argv[1:] or any(source.startswith(name) for name in sys.argv[1:]):
            print(f"{source}: {len(rows)}\n  " + "\n  ".join(rows))


if __name__ == "__main__":
    main()
