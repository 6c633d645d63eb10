"""What ``test_tidy`` knows of import circles: modules that can't be read, or moved, one without the other."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping


def _imported(node: ast.AST, modules: Mapping[str, ast.Module], *, types: bool) -> Iterator[str]:
    """``from a import b``: the module ``a.b`` where there is one, else ``a``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING") and not types:
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            names = (f"{child.module}.{alias.name}" for alias in child.names)
            yield from (name if name in modules else child.module for name in names)
        yield from _imported(child, modules, types=types)


def circles(trees: Mapping[str, ast.Module], *, types: bool = False) -> list[frozenset[str]]:
    """Groups of modules each of which reaches the others by imports; ``types``: those for type checkers count as well."""
    edges = {module: {n for n in _imported(tree, trees, types=types) if n in trees} for module, tree in trees.items()}
    return [group for group in _groups(edges) if len(group) > 1]


def folder_of(module: str, modules: Iterable[str]) -> str:
    """Return the package that ``module`` lies in. A package is its own folder."""
    below = module + "."
    return module if any(name.startswith(below) for name in modules) else module.rpartition(".")[0] or module


def folder_imports(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return, for each folder, the other folders that its modules import. Imports for type checkers count."""
    folders = {module: folder_of(module, trees) for module in trees}
    edges: dict[str, set[str]] = {folder: set() for folder in folders.values()}
    for module, tree in trees.items():
        edges[folders[module]] |= {folders[name] for name in _imported(tree, trees, types=True) if name in trees}
    return {folder: used - {folder} for folder, used in edges.items()}


def folder_circles(trees: Mapping[str, ast.Module]) -> list[frozenset[str]]:
    """Return the groups of folders that import each other."""
    return [group for group in _groups(folder_imports(trees)) if len(group) > 1]


def _groups(edges: Mapping[str, set[str]]) -> list[frozenset[str]]:
    reach = {start: _reached(edges, start) for start in edges}
    return list({frozenset(other for other in reach[start] if start in reach[other]) | {start} for start in edges})


def _reached(edges: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    left = [start]
    while left:
        for name in edges[left.pop()] - seen:
            seen.add(name)
            left.append(name)
    return seen
