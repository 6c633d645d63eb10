"""Count how often each test file reaches a private name of the code. The counts may only fall.

``python -m tests.tidy_private`` writes the present counts into ``tests/private_accesses.json``. It refuses a count that has risen.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.sources import nodes

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests/private_accesses.json"
_OWN = {"self", "cls"}
_PUBLIC = {"_replace", "_asdict", "_fields", "_make", "_exit"}
"""Documented names of the standard library: those of named tuples, and ``os._exit``."""


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in _PUBLIC and not name.startswith("_pb")


def count_in(text: str) -> int:
    """Count the accesses to private attributes in a source text, and the private names given to ``setattr`` and ``patch.object``."""
    return _count(ast.walk(ast.parse(text)))


def _count(found_nodes: Iterable[ast.AST]) -> int:
    found = 0
    for node in found_nodes:
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            found += not (isinstance(node.value, ast.Name) and node.value.id in _OWN)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "setattr",
            "getattr",
            "delattr",
            "object",
        ):
            found += any(isinstance(a, ast.Constant) and isinstance(a.value, str) and _is_private(a.value) for a in node.args)
    return found


def count(folder: Path) -> dict[str, int]:
    """Return the counts of all Python files below ``folder`` that have any."""
    counts = {str(path.relative_to(ROOT)): _count(nodes(path)) for path in sorted(folder.rglob("*.py"))}
    return {name: found for name, found in counts.items() if found}


def recorded() -> dict[str, int]:
    """Return the counts that were written down."""
    return {str(name): int(found) for name, found in json.loads(RECORD.read_text(encoding="utf-8")).items()}


def differences(counts: Mapping[str, int], allowed: Mapping[str, int]) -> list[str]:
    """Return a line for each file that has more accesses than recorded, or fewer."""
    lines = []
    for name in sorted({*counts, *allowed}):
        now, most = counts.get(name, 0), allowed.get(name, 0)
        if now > most:
            lines.append(f"{name}: {now} private accesses, at most {most}")
        elif now < most:
            lines.append(f"{name}: {now} private accesses, record {now} instead of {most}")
    return lines


def main() -> int:
    """Write the counts down, unless one has risen."""
    counts = count(ROOT / "tests")
    risen = [line for line in differences(counts, recorded()) if "at most" in line] if RECORD.exists() else []
    if risen:
        print("\n".join(risen))
        return 1
    RECORD.write_text(json.dumps(counts, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{sum(counts.values())} private accesses in {len(counts)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
