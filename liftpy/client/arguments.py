"""Checks of the arguments that an application passes: times, counts, offsets, partitions, texts, lists and options.

Each check raises ConfigError that names the argument. NaN passes no check: a comparison with NaN is always False, so a wait
for it would never end.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Mapping
from numbers import Real
from typing import SupportsIndex, TypeVar

from liftpy.core.base.ids import quote
from liftpy.errors import ConfigError

_Options = TypeVar("_Options")
MAX_INT32 = (1 << 31) - 1
MAX_INT64 = (1 << 63) - 1


def check_bounds(options: object, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Check attributes of ``options`` against their (lowest, highest) value in ``bounds``.

    An attribute whose name ends with ``_s`` is a time in seconds. Any other one is a whole number.
    """
    for name, limits in bounds.items():
        check = check_number if name.endswith("_s") else check_count
        check(name, getattr(options, name), *limits)


def check_number(name: str, value: float, low: float = 0.0, high: float = math.inf) -> None:
    """Check that ``value`` is a number from ``low`` to ``high``, inclusive. By default, infinity is allowed."""
    if isinstance(value, bool) or not isinstance(value, Real) or value != value:  # NaN
        raise ConfigError(f"Invalid {name} = {quote(repr(value))}. Use a number.")
    _check_range(name, value, low, high)


def check_wait(name: str, wait_s: float) -> None:
    """Check that ``wait_s`` is a number. It may be infinite, or negative as in ``deadline - now``."""
    check_number(name, wait_s, -math.inf)


def check_count(name: str, value: SupportsIndex, low: float = 0, high: float = MAX_INT64) -> None:
    """Check that ``value`` is a whole number from ``low`` to ``high``, inclusive."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ConfigError(f"Invalid {name} = {quote(repr(value))}. Use a whole number.")
    _check_range(name, operator.index(value), low, high)


def check_partition(partition: SupportsIndex) -> None:
    """Check that ``partition`` is a partition number, 0 to 2^31-1."""
    check_count("partition", partition, 0, MAX_INT32)


def check_offset(offset: SupportsIndex, name: str = "offset") -> int:
    """Check that ``offset`` is an offset, 0 to 2^63-2, and return it as an int. ``name``: name of the argument."""
    check_count(name, offset, 0, MAX_INT64 - 1)
    return operator.index(offset)


def check_text(name: str, value: object) -> None:
    """Check that ``value`` is a text."""
    if not isinstance(value, str):
        raise ConfigError(f"Invalid {name} of type {type(value).__name__}. Use a text (str).")


def check_list(name: str, value: object, *, of: str) -> None:
    """Check that ``value`` is a list or a similar object, and no single text or bytes. ``of``: what it contains, for the error."""
    if isinstance(value, str | bytes) or not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
        raise ConfigError(f"Invalid {name} of type {type(value).__name__}. Use a list of {of}.")


def check_function(name: str, value: object) -> None:
    """Check that ``value`` is a function without ``async``. The client does not await results, so an ``async`` one would never run."""
    if not callable(value):
        raise ConfigError(f"Invalid {name} of type {type(value).__name__}. Use a function.")
    if any(map(inspect.iscoroutinefunction, (value, getattr(value, "__call__", None)))):  # noqa: B004
        raise ConfigError(f"Invalid {name}: an async function would never run. Use a function without async.")


def checked_options(options: _Options | None, expected: type[_Options], name: str = "options") -> _Options:
    """Return ``options``, or the default options of the class ``expected`` for None. ``name``: name of the argument."""
    if options is None:
        return expected()
    if not isinstance(options, expected):
        raise ConfigError(f"Invalid {name} of type {type(options).__name__}. Use {expected.__name__}(...).")
    return options


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if value < low and high == math.inf:
        raise ConfigError(f"{name} = {value} is below {low:g}. Choose {low:g} or more.")
    if not low <= value <= high:
        limits = "..".join(str(int(limit) if limit == int(limit) else limit) for limit in (low, high))
        raise ConfigError(f"{name} = {value} is outside {limits}. Choose a value in this range.")
