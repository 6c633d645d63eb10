"""Finds what takes bytes or text apart, in the source: so that a decoder that is new can't be left out of the fuzz."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NAMES = re.compile(r"_?(decode|parse|unseal|from_json|from_bytes)(_|d?$)|_?(un)?sealed_payload$|.*_from_(pb|bytes)$")
_CALLS = frozenset({"FromString", "ParseFromString", "MergeFromString", "unpack_from", "iter_unpack", "unpack", "frombuffer"})
_MODULES = {"json": {"loads", "load"}, "tomllib": {"loads", "load"}}


def decoders() -> set[str]:
    """``module:Class.function`` of all that takes bytes apart in ``liftpy`` and ``sidecar``, by name or by what is called in it."""
    found = set()
    for package in ("liftpy", "sidecar"):
        for path in (ROOT / package).rglob("*.py"):
            if "_pb" in path.parts:
                continue
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found |= {f"{module}:{name}" for name, node in _functions(ast.parse(path.read_text())) if _decodes(node)}
    return found


def _functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{within}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield within + node.name, node


def _decodes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return _NAMES.match(function.name) is not None or any(
        isinstance(node, ast.Call) and _takes_apart(node.func) for node in ast.walk(function)
    )


def _takes_apart(called: ast.expr) -> bool:
    if not isinstance(called, ast.Attribute):
        return isinstance(called, ast.Name) and called.id == "load_json"
    of = called.value
    return called.attr in _CALLS or (isinstance(of, ast.Name) and called.attr in _MODULES.get(of.id, ()))
