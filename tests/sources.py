"""The syntax trees of source files, parsed once for all tests that read the code."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    """Return the tree of a file. All tests share it: change nothing in it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file, as ``ast.walk`` gives them."""
    return tuple(ast.walk(parsed(path)))
