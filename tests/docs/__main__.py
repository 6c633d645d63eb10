"""``python -m tests.docs [FOLDER]``: build the site as its readers get it, and look at the HTML: nothing comes from elsewhere.

Ends with 1, and says what is wrong, where a page asks for a script, a style, a font or a picture of another host, or the search would
need a server.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.docs.pages import ROOT

_LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//[^\"]*\"|<link\b[^>]*\bhref=\"(?:https?:)?//[^\"]*\""
)
_STYLED = re.compile(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)'\"]*")


def foreign(folder: Path) -> list[str]:
    """What the pages of a site would load from another host."""
    wrong = []
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".html", ".css"}:
            pattern = _LOADED if path.suffix == ".html" else _STYLED
            wrong += [f"{path.relative_to(folder)}: {match[0]}" for match in pattern.finditer(path.read_text(encoding="utf-8"))]
    return wrong


def search_needs_a_server(folder: Path) -> bool:
    """From ``file://`` scripts may be loaded, and nothing may be fetched."""
    index = (folder / "searchindex.js").read_text(encoding="utf-8")
    page = (folder / "search.html").read_text(encoding="utf-8")
    options = (folder / "_static" / "documentation_options.js").read_text(encoding="utf-8")
    return not (index.startswith("Search.setIndex(") and "searchindex.js" in page and "SHOW_SEARCH_SUMMARY: false" in options)


def build(folder: Path) -> int:
    """The site in ``folder``; the exit code of Sphinx, to which a warning is an error."""
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(folder)], cwd=ROOT, check=False
    ).returncode


def main(folder: Path) -> int:
    """Exit code."""
    if build(folder):
        return 1
    wrong = foreign(folder)
    if search_needs_a_server(folder):
        wrong.append("the search needs a server")
    print("\n".join(wrong) or f"{len(list(folder.rglob('*.html')))} pages in {folder}, nothing from elsewhere")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else Path(tempfile.mkdtemp(prefix="liftpy-docs-"))))
