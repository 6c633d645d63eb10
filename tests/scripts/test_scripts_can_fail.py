"""A script proves something only if it can fail: each names, in ``KILLS``, the classical bugs that it must notice.

Every such bug is brought back (``tests.simulation.mutants.catalogue``, ``more_mutants``), and at least one test of the script has to
break.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest

from tests.scripts import more_mutants
from tests.simulation.mutants import catalogue

BY_NAME = {mutant.name: mutant for mutant in (*catalogue.MUTANTS, *more_mutants.MUTANTS)}
PAIRS = []


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"mutated_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


for _path in sorted(Path(__file__).parent.glob("test_*.py")):
    if _path != Path(__file__):
        PAIRS += [(_path, name) for name in getattr(_load(_path), "KILLS", ())]


def _cases(test: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """The arguments of each of its runs: every combination of its ``parametrize`` marks."""
    axes = []
    for mark in getattr(test, "pytestmark", ()):
        names = [name.strip() for name in mark.args[0].split(",")] if isinstance(mark.args[0], str) else list(mark.args[0])
        axes.append([dict(zip(names, value if len(names) > 1 else (value,), strict=True)) for value in mark.args[1]])
    wanted = set(inspect.signature(test).parameters)
    for combination in itertools.product(*axes):
        case = {name: value for part in combination for name, value in part.items()}
        if wanted - set(case) == {"tmp_path"}:
            with TemporaryDirectory() as folder:
                yield case | {"tmp_path": Path(folder)}
        elif wanted == set(case):
            yield case


@pytest.mark.parametrize(("path", "name"), PAIRS, ids=[f"{path.stem[5:]}-{name}" for path, name in PAIRS])
def test_the_bug_is_noticed(path: Path, name: str) -> None:
    module = _load(path)
    tests = [test for key, test in vars(module).items() if key.startswith("test_") and inspect.isfunction(test)]
    with BY_NAME[name].applied():
        for test in tests:
            for case in _cases(test):
                try:
                    asyncio.run(test(**case)) if inspect.iscoroutinefunction(test) else test(**case)
                except (Exception, pytest.fail.Exception):
                    return
    pytest.fail(f"{path.name} does not notice '{name}'")
