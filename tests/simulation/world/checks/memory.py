"""Sizes of everything that grows in a node: lists, sets and dictionaries of its objects, tasks and timers."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter, deque
from collections.abc import Iterable
from types import CellType, FunctionType, MethodType
from typing import Any

from tests.simulation.world.node_process import NodeProcess

_GROWING = (dict, list, set, deque)
_CONTAINERS = (*_GROWING, frozenset, tuple)
_OWN = ("liftpy.", "sidecar.")


def sizes_of(node: NodeProcess) -> Counter[str]:
    """Return how much a node keeps: name of a class and an attribute -> number of elements in all objects of this class."""
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    waiting: list[Any] = list(node.programs)
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if any(kind.__module__.startswith(_OWN) for kind in type(one).__mro__):
            for name, value in _attributes(one):
                if isinstance(value, _GROWING) and id(value) not in seen:
                    sizes[f"{type(one).__name__}.{name}"] += len(value)
                waiting.append(value)
        else:
            waiting += _parts(one)
    for process in node.process.running if node.process is not None else ():
        for loop in process.loops:
            sizes["tasks"] += len(asyncio.all_tasks(loop))
            sizes["timers"] += len(loop.timers)
    return sizes


def _attributes(one: Any) -> Iterable[tuple[str, Any]]:
    """Return the attributes of an object of liftpy, those in slots, too."""
    if isinstance(one, type):
        return
    yield from getattr(one, "__dict__", {}).items()
    for kind in type(one).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if not name.startswith("__") and hasattr(one, name):
                yield name, getattr(one, name)


def _parts(one: Any) -> list[Any]:
    """Return what a container or a callback refers to. Objects of other libraries are left out."""
    if isinstance(one, dict):
        return [*one.keys(), *one.values()]
    if isinstance(one, _CONTAINERS):
        return list(one)
    if isinstance(one, MethodType):
        return [one.__self__]
    if isinstance(one, functools.partial):
        return [one.func, one.args, one.keywords]
    if isinstance(one, FunctionType):
        return [cell.cell_contents for cell in one.__closure__ or () if isinstance(cell, CellType) and _has_content(cell)]
    return []


def _has_content(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
