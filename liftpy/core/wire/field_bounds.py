"""Derives the check of a message from the bounds of its fields in the ``.proto`` file.

The options in ``bounds.proto`` declare the bounds next to the number and the meaning of a field. Nothing else names them.
``checker`` compiles one function for each message, so a check is as fast as code that names each field. ``bounds_of`` returns the
bounds for code that keeps within them.

Example:
    check = checker(group_pb2.TakeRecords, ProtocolError)
    check(group_pb2.TakeRecords(maxRecords=0))  # raises ProtocolError
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from liftpy.core.base.ids import NAME, quote
from liftpy.core.wire._pb import bounds_pb2

M = TypeVar("M", bound=Message)
_MAX_INT = (1 << 63) - 1


class FieldBounds(NamedTuple):
    """Lowest and highest value of a number, or number of items of a list. Both are inclusive."""

    low: int
    high: int


def bounds_of(kind: type[Message], field: str) -> FieldBounds:
    """Return the bounds of a number, or of the number of items of a list. ``field``: its name in the message ``kind``."""
    declared = kind.DESCRIPTOR.fields_by_name[field]
    option = _option(declared, bounds_pb2.count if declared.is_repeated else bounds_pb2.bounds)
    if option is None:
        raise TypeError(f"The field {field} of {kind.DESCRIPTOR.name} has no bounds.")
    return _inclusive(option)


def max_text_of(kind: type[Message], field: str) -> int:
    """Return the maximum size of a text in bytes, or in characters, as the .proto declares it."""
    option = _option(kind.DESCRIPTOR.fields_by_name[field], bounds_pb2.text)
    if option is None:
        raise TypeError(f"The field {field} of {kind.DESCRIPTOR.name} has no maximum size.")
    return int(option.maxBytes or option.maxCharacters)


def checker(kind: type[M], error: Callable[[str], Exception]) -> Callable[[M], None]:
    """Return a function that raises ``error`` if a field of a message, or of a message inside it, is out of its bounds.

    The fields are checked in the order of the .proto.
    """
    return _compiled(kind.DESCRIPTOR, error)


def _option(field: Any, option: Any) -> Any:
    """Return the value of an option of the descriptor ``field``. None: the field does not have it."""
    options = field.GetOptions()
    return options.Extensions[option] if options.HasExtension(option) else None


def _inclusive(bounds: bounds_pb2.Bounds) -> FieldBounds:
    return FieldBounds(bounds.low, bounds.high if bounds.HasField("high") else _MAX_INT)


def _nothing(message: Message) -> None:
    """Accept every message of a class without bounds."""


@cache
def _compiled(message: Descriptor, error: Callable[[str], Exception]) -> Callable[[Any], None]:
    scope: dict[str, Any] = {"error": error, "is_name": NAME.fullmatch, "quote": quote}
    lines: list[str] = []
    for field in message.fields:
        lines += _lines(message, field, scope)
    if not lines:
        return _nothing
    if any("has(" in line for line in lines):
        lines.insert(0, "has = message.HasField")
    exec("def check(message):\n" + "".join(f"    {line}\n" for line in lines), scope)
    check: Callable[[Any], None] = scope["check"]
    return check


def _lines(message: Descriptor, field: FieldDescriptor, scope: dict[str, Any]) -> list[str]:
    """Return the statements that check one field. ``scope`` gets the functions that they call."""
    value, lines = f"message.{field.name}", []
    count, bounds = _option(field, bounds_pb2.count), _option(field, bounds_pb2.bounds)
    identifier, text = _option(field, bounds_pb2.identifier), _option(field, bounds_pb2.text)
    if count is not None:
        low, high = _inclusive(count)
        lines += [
            f"if not {low} <= len({value}) <= {high}:",
            f"    raise error(f'{message.name} has {{len({value})}} {field.name}. Use {low} to {high} of them.')",
        ]
    if bounds is not None:
        low, high = _inclusive(bounds)
        default = f"{value} and " if bounds.orZero else ""
        lines += [
            f"if {default}not {low} <= {value} <= {high}:",
            f"    raise error(f'{field.name} = {{{value}}} is outside {low}..{high}. Choose a value in this range.')",
        ]
    if identifier is not None:
        default = f"{value} and " if identifier.orEmpty else ""
        what = identifier.of or field.name
        lines += [
            f"if {default}not is_name({value}):",
            f"    raise error(f'Invalid {what} {{quote({value})}}. Use 1 to 64 of the characters A-Z a-z 0-9 _ -.')",
        ]
    if text is not None and text.maxBytes:
        lines += [
            f"if len({value}.encode()) > {text.maxBytes}:",
            f"    raise error('The {field.name} is too long. Use at most {text.maxBytes} bytes.')",
        ]
    if text is not None and text.maxCharacters:
        lines += [
            f"if len({value}) > {text.maxCharacters} or not {value}.isprintable():",
            f"    raise error('Invalid {field.name} name. Use at most {text.maxCharacters} printable characters.')",
        ]
    if field.message_type is not None:
        check = _compiled(field.message_type, scope["error"])
        if check is not _nothing:
            scope[f"check_{field.name}"] = check
            if field.is_repeated:
                lines += [f"for item in {value}:", f"    check_{field.name}(item)"]
            else:
                lines += [f"if has({field.name!r}):", f"    check_{field.name}({value})"]
    return lines
