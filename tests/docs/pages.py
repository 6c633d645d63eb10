"""The project's pages, and what stands in them: links, fences, words in backticks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^( *)(`{3,})([^`\n]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fence: ``language`` as written behind it, ``text`` without its indent, ``line`` of its first line from 1."""

    page: str
    line: int
    language: str
    text: str

    @property
    def at(self) -> str:
        """For people."""
        return f"{self.page}:{self.line}"


@cache
def pages() -> dict[str, str]:
    """Path below the root -> text, of every page that tells what there is now (CHANGELOG.md tells of what was)."""
    found = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    found += [ROOT / "tests" / name for name in ("MEASURED.md", "README.md")]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(set(found))}


def blocks(page: str) -> list[Block]:
    """Its fences, in order."""
    text = pages()[page]
    found = []
    for match in _FENCE.finditer(text):
        body = "".join(line.removeprefix(match[1]) for line in match[4].splitlines(keepends=True))
        found.append(Block(page, text.count("\n", 0, match.start(4)) + 1, match[3].strip(), body))
    return found


def prose(page: str) -> str:
    """Without fences and comments; lines stay where they are."""
    text = pages()[page]
    for pattern in (_FENCE, _COMMENT):
        text = pattern.sub(lambda match: "\n" * match[0].count("\n"), text)
    return text


def spans(page: str) -> Iterator[tuple[int, str]]:
    """(line, words) of what stands in backticks; one that runs over a line's end has a space there."""
    text = prose(page)
    for match in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text):
        yield text.count("\n", 0, match.start()) + 1, " ".join(match[1].split())


def slugs(page: str) -> set[str]:
    """Anchors of its headings, as GitHub and MyST make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", prose(page), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        slug, count = words, 0
        while slug in found:
            count += 1
            slug = f"{words}-{count}"
        found.add(slug)
    return found


def links(page: str) -> Iterator[tuple[int, str, str]]:
    """(line, target as a path below the root or '' for this page, anchor) of each link within the project."""
    text = prose(page)
    for match in _LINK.finditer(text):
        if re.match(r"[a-z]+:", match[1]):
            continue
        path, _, anchor = match[1].partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        yield text.count("\n", 0, match.start()) + 1, str(target.resolve().relative_to(ROOT)), anchor


def dead_links(page: str) -> list[str]:
    """Those that lead nowhere."""
    wrong = []
    for line, target, anchor in links(page):
        if not (ROOT / target).exists() and target not in pages():
            wrong.append(f"{page}:{line}: {target} is not there")
        elif anchor and target in pages() and anchor not in slugs(target):
            wrong.append(f"{page}:{line}: {target} has no heading #{anchor}")
    return wrong
