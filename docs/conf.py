"""How ``python -m sphinx -W -b html docs BUILD`` makes the site: offline, no web fonts, its search works from ``file://``.

Needs ``pip install 'liftpy[docs]'``. Pages are Markdown (MyST), and read as well without being built. What the code says is put into
them by ``from_code.py``; the pages of commands are made by each build, in ``reference/cli``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import from_code  # noqa: E402

from liftpy import __version__  # noqa: E402

project = "liftpy"
author = project_copyright = "The liftpy authors"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # or a field with a text of its own would be described twice
autodoc_mock_imports = ["pyspark", "pandas", "matplotlib", "deltalake", "pyiceberg"]
smartquotes = False  # it would make a dash of an option
html_theme = "furo"
html_static_path, html_css_files = ["_static"], ["site.css"]
html_title = f"liftpy {release}"
html_show_sourcelink = html_copy_source = False
html_show_search_summary = False  # a browser fetches them page by page, and from file:// it may not
templates_path: list[str] = []
exclude_patterns = ["_build"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_use_type_comments = False
python_use_unqualified_type_names = True
add_module_names = False
nitpicky = False
INCLUDED = {f"project/{name.lower()}": f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG")}
"""Page of the site -> the page at the root that it stands for; a link to the one leads to the other."""
_LINK = re.compile(r"\[([^]]*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


class FromCode(SphinxDirective):
    """``{from-code} NAME``: the table that ``from_code.TABLES[NAME]`` makes."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The table, parsed as this page is."""
        return self.parse_text_to_nodes(from_code.TABLES[self.arguments[0]]())


def _write_command_pages(app: Sphinx) -> None:
    """``reference/cli``, which is not committed; what is there already and the same stays untouched."""
    folder = Path(app.srcdir) / "reference" / "cli"
    folder.mkdir(exist_ok=True)
    pages = from_code.command_pages()
    for path in folder.glob("*.rst"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _as_on_the_site(app: Sphinx, docname: str, source: list[str]) -> None:
    """Links that work in the repository, made to work on the site; one that leads to no page of it becomes plain text."""
    folder = HERE.parent if docname in INCLUDED else (HERE / docname).parent
    pages = {HERE.parent / name: f"/{page}.md" for page, name in INCLUDED.items()}

    def link(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        if target in pages or (docname in INCLUDED and target.is_relative_to(HERE) and target.suffix):
            return f"[{match[1]}]({pages.get(target) or '/' + str(target.relative_to(HERE))}{match[3] or ''})"
        return match[0] if target.is_relative_to(HERE) else match[1]

    text = (HERE.parent / INCLUDED[docname]).read_text(encoding="utf-8") if docname in INCLUDED else source[0]
    source[0] = _LINK.sub(link, text)


def _name_what_is_missing(app: Sphinx, *_: Any) -> None:
    for what in from_code.missing():
        logging.getLogger(__name__).warning("%s has no text: say in the code what it is", what)


def _literal_examples(app: Sphinx, what: str, name: str, given: object, options: object, lines: list[str]) -> None:
    """Make code of a section ``Example:``, and of lines that are indented behind an empty line. It runs before napoleon."""
    made: list[str] = []
    inside = section = False
    for line in lines:
        if line and not line.startswith(" "):
            inside, section = False, line in SECTIONS
        elif line.startswith("    ") and not inside:
            if section and made and made[-1] == "Example:":
                made += ["    .. code-block:: python", ""]
                inside = True
            elif not section and not (made and made[-1]):
                made += ["::", ""]
                inside = True
        made.append(f"    {line}" if inside and section and line else line)
    lines[:] = made


SECTIONS = ("Args:", "Attributes:", "Returns:", "Yields:", "Raises:", "Example:")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_directive("from-code", FromCode)
    app.connect("builder-inited", _write_command_pages)
    app.connect("autodoc-process-docstring", _literal_examples, priority=300)
    app.connect("source-read", _as_on_the_site)
    app.connect("env-updated", _name_what_is_missing)
