"""``python -m tests.docs [FOLDER]``: build the site as its readers get it, and look at the HTML: nothing comes from elsewhere.
Where there is a chromium (Debian's), it searches, from ``file://``.

Ends with 1, and says what is wrong, where a page asks for a script, a style, a font or a picture of another host, or the search would
need a server.
"""

from __future__ import annotations

import re
import shutil
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


def problems_in_a_browser(folder: Path, chromium: str) -> list[str]:
    """The search, tried from ``file://``: what it does not find, what fails, and whom it asks beside the disk."""
    from playwright.sync_api import sync_playwright

    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("pageerror", lambda error: wrong.append(f"a script fails: {error}"))
        page.on("console", lambda line: wrong.append(f"a script says: {line.text}") if line.type == "error" else None)
        page.on(
            "request", lambda asked: None if asked.url.startswith(("file:", "data:")) else wrong.append(f"asks {asked.url}")
        )
        for word, found in (
            ("session_s", "Settings"),
            ("dedup-window", "Coming from JetStream"),
            ("alter_stream", "Python API"),
        ):
            page.goto(f"{folder.resolve().as_uri()}/search.html?q={word}")
            page.wait_for_function("document.querySelector('#search-results p')?.textContent.includes('finished')")
            if found not in page.locator("#search-results").inner_text():
                wrong.append(f"searching for {word} does not find {found}")
        browser.close()
    return wrong


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
    if chromium := shutil.which("chromium"):
        wrong += problems_in_a_browser(folder, chromium)
    print("\n".join(wrong) or f"{len(list(folder.rglob('*.html')))} pages in {folder}, nothing from elsewhere")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else Path(tempfile.mkdtemp(prefix="liftpy-docs-"))))
