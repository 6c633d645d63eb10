"""Which scripts name which bugs, and whether a script notices one that is brought back."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest

from tests.simulation.mutants.catalogue import MUTANTS

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def pairs() -> list[tuple[Path, str]]:
    """(script, name of a mutant) as the scripts' ``KILLS`` say."""
    files = [path for path in sorted(Path(__file__).parent.glob("test_*.py")) if path.name != "test_planted_bugs.py"]
    return [(path, name) for path in files for name in getattr(load(path), "KILLS", ())]


def load(path: Path) -> ModuleType:
    """A script as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"mutated_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def noticed(path: Path, name: str) -> str:
    """What breaks first in the script when the bug is there; '': nothing does."""
    module = load(path)
    tests = [test for key, test in vars(module).items() if key.startswith("test_") and inspect.isfunction(test)]
    with BY_NAME[name].applied(), contextlib.redirect_stderr(io.StringIO()):
        for test in tests:
            for case in _cases(test):
                try:
                    asyncio.run(test(**case)) if inspect.iscoroutinefunction(test) else test(**case)
                except (Exception, pytest.fail.Exception) as broken:
                    found = f"{type(broken).__name__}: {broken}"
                    assert not is_a_misfit(found), f"{name} does not fit the code: {found}"
                    return found
    return ""


def is_a_misfit(found: str) -> bool:
    """Whether what a mutant breaks with says that it does not fit the code any more, and nothing about the bug."""
    return found.startswith(("TypeError", "AttributeError", "NameError", "UnboundLocalError"))


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
