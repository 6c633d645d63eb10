"""Draw the folders of the product and their imports: ``python docs/folders.py`` writes ``docs/folders.svg``.

A box is a folder with the number of its modules and lines. A row holds the folders whose imports all lie in rows further down, so
every arrow goes down. An arrow that follows from others is left out. Imports for type checkers count.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.tidy_imports import folder_imports  # noqa: E402

PICTURE = ROOT / "docs" / "folders.svg"
FACADES = {
    "liftpy",
    "liftpy.errors",
    "liftpy.config",
    "liftpy.renamed",
    "liftpy.spark",
    "sidecar",
    "sidecar.__main__",
    "liftpy.core",
}
"""Loose modules: public import paths, old names, and the entry point of the daemon."""
BOX, GAP, ROW, HEIGHT = 138, 14, 92, 40
COLORS = {"liftpy.core": "#dbeafe", "liftpy": "#dcfce7", "sidecar": "#fef3c7"}


def modules() -> dict[str, Path]:
    """Return the modules of the product by name."""
    paths = [path for top in ("liftpy", "sidecar") for path in (ROOT / top).rglob("*.py") if "_pb" not in path.parts]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    return {name: path for name, path in sorted(names.items()) if name not in FACADES}


def rows_of(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the folders in rows, the top row first: each folder lies above all that it imports. Raise ValueError for a circle."""
    rows: list[list[str]] = []
    left = dict(imports)
    placed: set[str] = set()
    while left:
        row = sorted(folder for folder, used in left.items() if used <= placed)
        if not row:
            raise ValueError(f"these folders import each other: {', '.join(sorted(left))}")
        rows.insert(0, row)
        placed |= set(row)
        left = {folder: used for folder, used in left.items() if folder not in placed}
    return rows


def direct(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the imports that do not follow from others."""

    def reached(folder: str) -> set[str]:
        return {folder}.union(*(reached(used) for used in imports[folder]))

    return {
        folder: {used for used in used_ones if not any(used in reached(other) for other in used_ones - {used})}
        for folder, used_ones in imports.items()
    }


def picture() -> str:
    """Return the picture as SVG."""
    paths = modules()
    sources = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
    imports = folder_imports({name: ast.parse(source) for name, source in sources.items()})
    folders = {name: name if paths[name].name == "__init__.py" else name.rpartition(".")[0] for name in paths}
    rows = rows_of(imports)
    width = max(len(row) for row in rows) * (BOX + GAP) + GAP
    at = {
        folder: ((width - len(row) * (BOX + GAP)) / 2 + GAP / 2 + number * (BOX + GAP), 12 + index * ROW)
        for index, row in enumerate(rows)
        for number, folder in enumerate(row)
    }
    lines = []
    for folder, used in sorted(direct(imports).items()):
        x, y = at[folder]
        for other in sorted(used):
            to_x, to_y = at[other]
            lines.append(
                f'<path d="M{x + BOX / 2:.0f} {y + HEIGHT} C{x + BOX / 2:.0f} {y + HEIGHT + 30}, {to_x + BOX / 2:.0f} {to_y - 30}, '
                f'{to_x + BOX / 2:.0f} {to_y}" marker-end="url(#head)"/>'
            )
    for folder, (x, y) in sorted(at.items()):
        inside = [name for name in paths if folders[name] == folder]
        size = sum(len(sources[name].splitlines()) for name in inside)
        color = next(color for prefix, color in COLORS.items() if folder.startswith(prefix))
        lines.append(
            f'<rect x="{x:.0f}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="5" fill="{color}"/>'
            f'<text x="{x + BOX / 2:.0f}" y="{y + 17}">{folder}</text>'
            f'<text x="{x + BOX / 2:.0f}" y="{y + 32}" class="size">{len(inside)} modules, {size:,} lines</text>'
        )
    height = 12 + len(rows) * ROW - (ROW - HEIGHT) + 12
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width * 1.4:.0f}" '
            f'height="{height * 1.4:.0f}" font-family="sans-serif" font-size="11">',
            '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<polygon points="0,0 8,4 0,8" fill="#64748b"/></marker></defs>',
            "<style>text{text-anchor:middle;fill:#0f172a}.size{font-size:10px;fill:#475569}rect{stroke:#64748b}"
            "path{fill:none;stroke:#94a3b8}</style>",
            *lines,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
