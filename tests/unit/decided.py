"""Tables of the numbers that a package decides: bounds, patience, defaults, states at the start.

A bound ten times as large fails in no test that imports it, and on somebody's machine. So each stands here once more, as a number: who
changes one changes the table, and looks at the documents and the other numbers that count on it.

A line is ``module: name value, name value``. A name is a constant, ``Class.field`` (a dataclass's default) or ``function(argument)``;
a value is a number, with Ki, Mi or Gi behind it perhaps, or yes or no, or several with ``/`` between them.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from types import ModuleType

_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_TRUTH = {"yes": True, "no": False}


def _value(said: str) -> object:
    if "/" in said:
        return tuple(_value(part) for part in said.split("/"))
    if said in _TRUTH:
        return _TRUTH[said]
    return float(said[:-2]) * _UNITS[said[-2:]] if said[-2:] in _UNITS else float(said)


def _decided(module: ModuleType, name: str) -> object:
    path, _, argument = name.rstrip(")").partition("(")
    *above, last = path.split(".")
    owner: object = module
    for part in above:
        owner = getattr(owner, part)
    if argument:
        return inspect.signature(getattr(owner, last)).parameters[argument].default
    if dataclasses.is_dataclass(owner):
        return {field.name: field.default for field in dataclasses.fields(owner)}[last]
    return getattr(owner, last)


def differences(table: str) -> list[str]:
    """What is not as the table says, a line each."""
    found = []
    for line in table.strip().replace("\n  ", " ").splitlines():
        path, _, rest = line.partition(": ")
        module = importlib.import_module(path)
        for entry in rest.split(", "):
            name, said = entry.split()
            wanted, is_now = _value(said), _decided(module, name)
            if is_now != wanted or (isinstance(wanted, bool) is not isinstance(is_now, bool)):
                found.append(f"{path}.{name} is {is_now!r}, and was decided to be {said}")
    return found
