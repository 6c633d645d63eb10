"""``dataclass`` of the standard library, made in a fifth of its time: every start of a node makes 360 of them.

The library writes and compiles six functions for each class that is frozen, which is 40 % of what importing a node costs. Here
only ``__init__`` is compiled at once, comparing and hashing when they are first needed; showing and refusing assignment are closures
over the fields' names. Everything else, fields, slots, ``replace``, ``asdict``, is the library's, and so are the classes that ask
for more.
"""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import sys
from collections.abc import Callable
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """As ``dataclasses.dataclass``, with its options and its results; what differs is how long it takes."""

        def wrap(cls: type) -> Any:
            return _made(cls, **options) if _is_plain(cls, options) else dataclasses.dataclass(**options)(cls)

        return wrap if cls is None else wrap(cls)


def _is_plain(cls: type, options: dict[str, bool]) -> bool:
    """Whether it asks for nothing but what is made here; without a docstring the library writes one from ``__init__``."""
    by_itself = cls.__mro__[1:]
    inherits = any("__dataclass_fields__" in base.__dict__ or "__setattr__" in base.__dict__ for base in by_itself[:-1])
    passed_on = any("InitVar" in str(annotation) for annotation in inspect.get_annotations(cls).values())
    given = {"__init__", "__setattr__", "__delattr__", "__getstate__", "__setstate__"} & cls.__dict__.keys()
    return (
        not (inherits or passed_on or given)
        and bool(cls.__doc__)
        and options.keys() <= {"frozen", "slots", "eq", "kw_only", "unsafe_hash"}
    )


def _made(
    cls: type, *, frozen: bool = False, slots: bool = False, eq: bool = True, kw_only: bool = False, unsafe_hash: bool = False
) -> Any:
    own_hash, own_eq = "__hash__" in cls.__dict__, "__eq__" in cls.__dict__
    own_hash = own_hash and not (own_eq and cls.__dict__["__hash__"] is None)
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
    params = made.__dataclass_params__
    params.init = params.repr = True
    params.eq, params.frozen, params.unsafe_hash = eq, frozen, unsafe_hash
    fields = dataclasses.fields(made)
    _set(made, "__init__", _init(made, fields, frozen=frozen))
    shown = _repr([field.name for field in fields if field.repr])
    _set(made, "__repr__", shown if frozen else recursive_repr()(shown))
    if eq:
        if not own_eq:
            _set(made, "__eq__", _eq(made, [field.name for field in fields if field.compare]))
        if not own_hash and not frozen and not unsafe_hash:
            made.__hash__ = None
        elif not own_hash:
            hashed = [field.name for field in fields if (field.compare if field.hash is None else field.hash)]
            _set(made, "__hash__", _hash(made, hashed), over=True)
    if frozen:
        _freeze(made, frozenset(field.name for field in fields))
        if slots:
            _pickle_by_position(made, [field.name for field in fields])
    return made


def _set(cls: type, name: str, function: Callable[..., Any], *, over: bool = False) -> None:
    if over or name not in cls.__dict__:
        function.__name__, function.__qualname__, function.__module__ = name, f"{cls.__qualname__}.{name}", cls.__module__
        setattr(cls, name, function)


def _init(cls: type, fields: tuple[Any, ...], *, frozen: bool) -> Callable[..., None]:
    """The one function that is compiled: arguments, defaults and assignments of its own."""
    places: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": dataclasses.MISSING}
    positional: list[str] = []
    named: list[str] = []
    lines: list[str] = []
    for number, field in enumerate(fields):
        value = field.name
        if field.default_factory is not dataclasses.MISSING:
            places[f"_factory{number}"] = field.default_factory
            value = f"_factory{number}()" if not field.init else f"_factory{number}() if {value} is _MISSING else {value}"
            default = "=_MISSING"
        elif field.default is not dataclasses.MISSING:
            places[f"_default{number}"] = field.default
            default = f"=_default{number}"
            if not field.init:
                if not hasattr(cls, "__slots__"):
                    continue  # it is the class's
                value = f"_default{number}"
        elif not field.init:
            continue
        else:
            default = ""
        if field.init:
            (named if field.kw_only else positional).append(field.name + default)
        lines.append(f"_set(self, {field.name!r}, {value})" if frozen else f"self.{field.name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    arguments = ", ".join(["self", *positional, *(["*", *named] if named else [])])
    body = "\n  ".join(lines or ["pass"])
    source = f"def _make({', '.join(places)}):\n def __init__({arguments}):\n  {body}\n return __init__"
    namespace: dict[str, Any] = {}
    exec(source, vars(sys.modules[cls.__module__]), namespace)
    init: Callable[..., None] = namespace["_make"](**places)
    init.__annotations__ = {field.name: field.type for field in fields if field.init} | {"return": None}
    return init


def _tuple_of(it: str, names: list[str]) -> str:
    return f"({''.join(f'{it}.{name}, ' for name in names)})"


def _eq(cls: Any, names: list[str]) -> Callable[[Any, Any], Any]:
    """Compiled when it is first called: most classes are never compared."""

    def __eq__(self: Any, other: Any) -> Any:
        same = f"{_tuple_of('self', names)} == {_tuple_of('other', names)}"
        quick = _compiled("self, other", f"return {same} if other.__class__ is self.__class__ else NotImplemented")
        _set(cls, "__eq__", quick, over=True)
        return quick(self, other)

    return __eq__


def _hash(cls: Any, names: list[str]) -> Callable[[Any], int]:
    """Compiled when it is first called."""

    def __hash__(self: Any) -> int:
        quick = _compiled("self", f"return hash({_tuple_of('self', names)})")
        _set(cls, "__hash__", quick, over=True)
        return int(quick(self))

    return __hash__


def _compiled(arguments: str, body: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(f"def made({arguments}):\n {body}", {"__builtins__": builtins}, namespace)
    made: Callable[..., Any] = namespace["made"]
    return made


def _repr(names: list[str]) -> Callable[[Any], str]:
    def __repr__(self: Any) -> str:
        return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return __repr__


def _freeze(cls: Any, names: frozenset[str]) -> None:
    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    _set(cls, "__setattr__", __setattr__)
    _set(cls, "__delattr__", __delattr__)


def _pickle_by_position(cls: type, names: list[str]) -> None:
    """``copy`` and Spark's workers restore a frozen object that has slots past its own ``__setattr__``."""

    def __getstate__(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def __setstate__(self: Any, state: list[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    _set(cls, "__getstate__", __getstate__)
    _set(cls, "__setstate__", __setstate__)
