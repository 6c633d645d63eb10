"""Copies and forms of state machines: what a search does to an object that was written to live once.

``Structure`` is told which classes are state (their objects are copied, attribute by attribute) and which are values (frozen
and hashable, kept as they are). Any other class is an error: nothing is shared between two copies, or left out of a form,
because somebody has added an attribute. ``form`` is a hashable value that two objects have in common if they behave the same;
objects that occur twice are told apart from objects that are equal. Both can rename node ids on their way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

Names = Mapping[str, str]
_ATOMS = (int, float, bool, bytes, type(None), Enum)


class Structure:
    """``state``: classes whose objects change. ``values``: frozen dataclasses."""

    def __init__(self, state: Iterable[type], values: Iterable[type]) -> None:
        self._state = frozenset(state)
        self._values = frozenset(values)
        self._slots: dict[type, tuple[str, ...]] = {}

    def _attributes(self, value: Any) -> list[str]:
        kind = type(value)
        slots = self._slots.get(kind)
        if slots is None:
            found = [name for base in kind.__mro__ for name in _as_tuple(base.__dict__.get("__slots__", ()))]
            slots = self._slots[kind] = tuple(name for name in found if name not in ("__dict__", "__weakref__"))
        return [*slots, *sorted(getattr(value, "__dict__", ()))]

    def copy(self, value: Any, names: Names | None = None, memo: dict[int, Any] | None = None) -> Any:
        """A copy that shares nothing that changes; with ``names`` under other node ids."""
        memo = {} if memo is None else memo
        kind = type(value)
        if kind is str:
            return names.get(value, value) if names else value
        if isinstance(value, _ATOMS):
            return value
        if kind in self._state:
            held = memo.get(id(value))
            if held is None:
                held = memo[id(value)] = kind.__new__(kind)
                for name in self._attributes(value):
                    object.__setattr__(held, name, self.copy(getattr(value, name), names, memo))
            return held
        if kind is dict:
            return {self.copy(k, names, memo): self.copy(v, names, memo) for k, v in value.items()}
        if kind is deque:
            return deque((self.copy(item, names, memo) for item in value), value.maxlen)
        if kind in (list, tuple, set, frozenset):
            return kind(self.copy(item, names, memo) for item in value)
        if kind in self._values:
            if not names or not is_dataclass(kind):
                return value
            return kind(**{f.name: self.copy(getattr(value, f.name), names, memo) for f in fields(kind) if f.init})
        raise TypeError(f"{kind.__module__}.{kind.__qualname__} is neither state nor value: say which it is")

    def form(self, value: Any, memo: dict[int, int] | None = None) -> Hashable:
        """Equal for objects that behave the same."""
        memo = {} if memo is None else memo
        kind = type(value)
        if kind is str or isinstance(value, _ATOMS) or kind in self._values:
            return value  # type: ignore[no-any-return]
        if kind in self._state:
            number = memo.get(id(value))
            if number is not None:
                return ("same", number)
            memo[id(value)] = len(memo)
            return (kind.__name__, *(self.form(getattr(value, name), memo) for name in self._attributes(value)))
        if kind is dict:
            return tuple(sorted(((str(k), self.form(v, memo)) for k, v in value.items()), key=lambda item: item[0]))
        if kind in (list, tuple, deque):
            return tuple(self.form(item, memo) for item in value)
        if kind in (set, frozenset):
            return frozenset(self.form(item, memo) for item in value)
        raise TypeError(f"{kind.__module__}.{kind.__qualname__} is neither state nor value: say which it is")


def _as_tuple(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


class Interned:
    """Values by number: the same number for equal ones. ``held`` is what is kept beside the value that it is found by."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.held: list[Any] = []

    def number(self, form: Hashable, held: Any = None) -> int:
        """Of ``form``; ``held`` is kept with it the first time."""
        number = self._numbers.get(form)
        if number is None:
            number = self._numbers[form] = len(self.held)
            self.held.append(form if held is None else held)
        return number

    def __getitem__(self, number: int) -> Any:
        return self.held[number]

    def __len__(self) -> int:
        return len(self.held)
