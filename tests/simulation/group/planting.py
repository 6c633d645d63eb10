"""Plants a bug into shipped code: a text of one function is another one, for as long as it takes to see it die."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True)
class PlantedBug:
    """``place``: a module of liftpy.core.groups and a function in it. ``seed``: a history in which the bug breaks ``code``."""

    name: str
    place: str
    old: str
    new: str
    seed: int
    code: str

    def function(self) -> tuple[Any, str, Any]:
        """(what has it, its name there, itself)."""
        module_name, *path = self.place.split(".")
        owner: Any = importlib.import_module(f"liftpy.core.groups.{module_name}")
        for name in path[:-1]:
            owner = getattr(owner, name)
        return owner, path[-1], inspect.getattr_static(owner, path[-1])

    def changed(self) -> Any:
        """The function with the bug. Raises AssertionError when the text is not in it exactly once."""
        _, name, found = self.function()
        plain = found.fget if isinstance(found, property) else found.__func__ if isinstance(found, classmethod) else found
        source = textwrap.dedent(inspect.getsource(plain))
        assert source.count(self.old) == 1, f"{self.name}: {self.old!r} is {source.count(self.old)} times in {self.place}"
        tree = ast.parse(source.replace(self.old, self.new))
        names: dict[str, Any] = {}
        exec(compile(tree, f"<{self.name}>", "exec"), vars(sys.modules[plain.__module__]), names)
        return names[name]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug is there."""
        owner, name, found = self.function()
        bug = self.changed()
        with ExitStack() as stack:
            stack.enter_context(patch.object(owner, name, bug))
            if inspect.ismodule(owner):
                for other in [m for m in sys.modules.values() if getattr(m, "__name__", "").startswith("liftpy.core.groups.")]:
                    if getattr(other, name, None) is found:
                        stack.enter_context(patch.object(other, name, bug))
            yield
