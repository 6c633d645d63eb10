"""Derives the protobuf codec of a dataclass from its fields and from the descriptor of its message.

The ``.proto`` file declares the number and the wire type of a field. The dataclass declares its type, limits and meaning. Both sides
use one name: ``leader_epoch`` is ``leaderEpoch``. Nothing else names the field. A codec is built at import, and fails if a
field is missing on one side.

A codec compiles one function for each direction, as ``dataclasses`` does. So it is as fast as code that names each field.

Example:
    PURGED_BY = MessageCodec(PurgedBy, cluster_pb2.PurgedBy)
    PURGED_BY.from_pb(PURGED_BY.to_pb(PurgedBy("n1", 7)))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cached_property
from types import UnionType
from typing import Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

T = TypeVar("T")
M = TypeVar("M", bound=Message)
Converter = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""Functions that turn a value into the content of a message, and back."""


class Names:
    """Stores one object for equal strings and equal tuples of strings, to save memory.

    A large image names the same few nodes many times.
    """

    def __init__(self) -> None:
        self._strings: dict[str, str] = {}
        self._tuples: dict[tuple[str, ...], tuple[str, ...]] = {}

    def string(self, value: str) -> str:
        return self._strings.setdefault(value, value)

    def strings(self, values: Sequence[str]) -> tuple[str, ...]:
        if not values:
            return ()
        key = tuple(values)
        strings = self._tuples.get(key)
        if strings is None:
            strings = self._tuples[key] = tuple(self.string(value) for value in key)
        return strings


def wire_name(field: str) -> str:
    """Return the protobuf field name for a dataclass field: ``leaderEpoch`` for ``leader_epoch``."""
    first, *others = field.split("_")
    return first + "".join(word.capitalize() for word in others)


class MessageCodec(Generic[T, M]):
    """Converts values of the dataclass ``kind`` to protobuf messages of one class, and back.

    Args:
        kind: Dataclass. Its fields are scalars, enums, dataclasses that have a codec, and tuples of these.
        message: Class of the protobuf message.
        renamed: Field of the dataclass -> field of the message, where the names differ.
        wire_only: Fields of the message that the dataclass does not have. The caller of ``to_pb`` gives them.
        local_only: Fields of the dataclass that the message does not have. The caller of ``from_pb`` gives them.
        converters: Type or name of a field -> the functions that convert it.
        zero_is_default: True if a missing field has the default of the dataclass. False: it is zero. A field that is
            ``optional`` in the message always has the default.
        shared: True if equal strings become one object.
    """

    def __init__(
        self,
        kind: type[T],
        message: type[M],
        *,
        renamed: Mapping[str, str] | None = None,
        wire_only: Sequence[str] = (),
        local_only: Sequence[str] = (),
        converters: Mapping[type | str, Converter] | None = None,
        zero_is_default: bool = False,
        shared: bool = False,
    ) -> None:
        own = [field for field in fields(cast(Any, kind)) if field.name not in local_only]
        self.wire_names = {field.name: (renamed or {}).get(field.name) or wire_name(field.name) for field in own}
        on_wire = message.DESCRIPTOR.fields_by_name
        odd = sorted({*self.wire_names.values(), *wire_only} ^ set(on_wire))
        if odd:
            raise TypeError(f"{kind.__name__} and the message {message.DESCRIPTOR.name} differ in {', '.join(odd)}")
        self.kind, self.message = kind, message
        self._own, self._converters = own, dict(converters or {})
        self._has_wire_only, self._has_local_only = bool(wire_only), bool(local_only)
        self._zero_is_default, self._shared = zero_is_default, shared
        _CODECS[kind] = self

    def to_pb(self, value: T, **wire_only: Any) -> M:
        """Return the protobuf message of ``value``. ``wire_only``: values of message fields that the dataclass does not have."""
        return self.compiled[0](value, **wire_only)

    def from_pb(self, message: M, names: Names | None = None, **local_only: Any) -> T:
        """Return the dataclass value of ``message``.

        ``names``: shares equal strings of several messages. None: no sharing across messages. ``local_only``: values of fields that
        the message does not have.
        """
        return self.compiled[1](message, names, **local_only)

    @cached_property
    def compiled(self) -> tuple[Callable[..., M], Callable[..., T]]:
        """The functions that ``to_pb`` and ``from_pb`` call, in this order. They are compiled at the first use, not at import."""
        scope: dict[str, Any] = {"kind": self.kind, "message": self.message, "Names": Names}
        hints = get_type_hints(self.kind)
        encoded, decoded = [], []
        for field in self._own:
            wire, hint = self.message.DESCRIPTOR.fields_by_name[self.wire_names[field.name]], hints[field.name]
            is_optional = get_origin(hint) is UnionType
            hint = get_args(hint)[0] if is_optional else hint
            value, content = f"value.{field.name}", f"given.{wire.name}"
            functions, encode, decode = self._expressions(field.name, hint, wire.is_repeated)
            scope[f"encode_{field.name}"], scope[f"decode_{field.name}"] = functions
            scope[f"default_{field.name}"] = default = None if field.default is MISSING else field.default
            encode, decode = encode.format(value), decode.format(content)
            if is_optional and encode != value:
                encode = f"None if {value} is None else {encode}"
            present = f"given.HasField({wire.name!r})" if wire.has_presence else content
            may_be_missing = (
                is_optional or wire.message_type is None if wire.has_presence else self._zero_is_default and bool(default)
            )
            if may_be_missing:
                decode = f"{decode} if {present} else default_{field.name}"
            encoded.append(f"{wire.name}={encode}")
            decoded.append(decode if self._is_positional else f"{field.name}={decode}")
        wire_only, local_only = ", **wire_only" if self._has_wire_only else "", ", **local_only" if self._has_local_only else ""
        to_pb = f"lambda value{wire_only}: message({', '.join(encoded)}{wire_only})"
        expression = f"kind({', '.join(decoded)}{local_only})"
        names = "(names := names or Names()) and " if "names" in expression else ""
        from_pb = f"lambda given, names=None{local_only}: {names}{expression}"
        both: tuple[Callable[..., M], Callable[..., T]] = eval(f"{to_pb}, {from_pb}", scope)
        return both

    @property
    def _is_positional(self) -> bool:
        """True if the arguments of ``kind`` are the fields of the message in their order. Such a call is faster."""
        return not self._has_local_only and all(field.init and not field.kw_only for field in self._own)

    def _expressions(self, name: str, hint: Any, is_repeated: bool) -> tuple[tuple[Any, Any], str, str]:
        """Return the two functions that convert a field, and the Python expressions that call them to encode and to decode it.

        ``{}`` in an expression stands for the value of the field. ``hint``: type of the field. ``is_repeated``: True for a
        list.
        """
        encode, decode = f"encode_{name}", f"decode_{name}"
        converter = self._converters.get(name) or self._converters.get(hint)
        if converter is not None:
            return converter, f"{encode}({{}})", f"{decode}({{}})"
        item = get_args(hint)[0] if is_repeated else hint
        if is_dataclass(item):
            functions = _CODECS[cast(type, item)].compiled
            if is_repeated:
                return functions, f"map({encode}, {{}})", f"tuple([{decode}(item, names) for item in {{}}])"
            return functions, f"{encode}({{}})", f"{decode}({{}}, names)"
        if item is str and self._shared:
            return (None, Names.strings if is_repeated else Names.string), "{}", f"{decode}(names, {{}})"
        if is_repeated:
            return (None, None), "{}", "tuple({})"
        if issubclass(item, Enum):
            return (None, getattr(item, "of", item)), "{}", f"{decode}({{}})"
        return (None, None), "{}", "{}"


_CODECS: dict[type, MessageCodec[Any, Any]] = {}
"""Dataclass -> its codec, for fields of other dataclasses."""
