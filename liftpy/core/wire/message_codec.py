"""Derives the protobuf codec of a dataclass from its fields and from the descriptor of its message.

The ``.proto`` file declares the number and the wire type of a field. The dataclass declares its type, limits and meaning. Both sides
use one name: ``leader_epoch`` is ``leaderEpoch``. Nothing else names the field. A codec is built at import, and fails if a
field is missing on one side.

Example:
    PURGED_BY = MessageCodec(PurgedBy, cluster_pb2.PurgedBy)
    PURGED_BY.from_pb(PURGED_BY.to_pb(PurgedBy("n1", 7)))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

T = TypeVar("T")
M = TypeVar("M", bound=Message)
Text = tuple[Callable[[Any], str], Callable[[str], Any]]
"""Functions that write a value as text, and read it."""
_Encode = Callable[[Any], Any]
_Decode = Callable[[Any, "Names"], Any]


class Names:
    """Keeps one object for equal strings and equal tuples of strings. A large image names the same few nodes many times."""

    def __init__(self) -> None:
        self._strings: dict[str, str] = {}
        self._tuples: dict[tuple[str, ...], tuple[str, ...]] = {}

    def string(self, value: str) -> str:
        """Return the first object that was equal to ``value``."""
        return self._strings.setdefault(value, value)

    def strings(self, values: Sequence[str]) -> tuple[str, ...]:
        """Return a tuple of ``values`` with shared strings."""
        if not values:
            return ()
        made = tuple(values)
        held = self._tuples.get(made)
        if held is None:
            held = self._tuples[made] = tuple(self.string(value) for value in made)
        return held


def wire_name(field: str) -> str:
    """Return the name in a protobuf message of a dataclass field: ``leaderEpoch`` for ``leader_epoch``."""
    first, *others = field.split("_")
    return first + "".join(word.capitalize() for word in others)


class MessageCodec(Generic[T, M]):
    """Converts values of the dataclass ``kind`` to protobuf messages of one class, and back.

    Args:
        kind: Dataclass. Its fields are scalars, enums, dataclasses that have a codec, and tuples of these.
        message: Class of the protobuf message.
        renamed: Field of the dataclass -> field of the message, where the names differ.
        apart: Fields of the message that the dataclass does not have. The caller sets them.
        texts: Types that the message stores as text -> functions that write and read it.
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
        apart: Sequence[str] = (),
        texts: Mapping[type, Text] | None = None,
        zero_is_default: bool = False,
        shared: bool = False,
    ) -> None:
        self.kind, self.message = kind, message
        self.wire_names = {
            field.name: (renamed or {}).get(field.name) or wire_name(field.name) for field in fields(cast(Any, kind))
        }
        on_wire = message.DESCRIPTOR.fields_by_name
        if {*self.wire_names.values(), *apart} != set(on_wire):
            odd = sorted({*self.wire_names.values(), *apart} ^ set(on_wire))
            raise TypeError(f"{kind.__name__} and the message {message.DESCRIPTOR.name} differ in {', '.join(odd)}")
        self._shared, self._texts = shared, dict(texts or {})
        self._encoders: list[tuple[str, str, _Encode | None, bool]] = []
        self._decoders: dict[int, tuple[str, _Decode | None]] = {}
        self._missing: dict[str, Any] = {}
        hints = get_type_hints(kind)
        for field in fields(cast(Any, kind)):
            wire, hint = on_wire[self.wire_names[field.name]], hints[field.name]
            is_optional = get_origin(hint) is UnionType
            encode, decode, zero = self._converters(get_args(hint)[0] if is_optional else hint, wire)
            always = wire.has_presence or wire.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE
            self._encoders.append((field.name, wire.name, encode, always))
            self._decoders[wire.number] = (field.name, decode)
            has_default = zero_is_default or (wire.has_presence and wire.message_type is None)
            if has_default and field.default is not MISSING:
                self._missing[field.name] = field.default
            else:
                self._missing[field.name] = None if is_optional else zero()
        _CODECS[kind] = self

    def _converters(self, hint: Any, wire: Any) -> tuple[_Encode | None, _Decode | None, Callable[[], Any]]:
        """Return the functions that encode and decode a field, or None, and the function that makes the value of a missing field."""
        if wire.is_repeated:
            item = get_args(hint)[0]
            if item is str and self._shared:
                return None, lambda values, names: names.strings(values), tuple
            if not is_dataclass(item):
                return None, lambda values, names: tuple(values), tuple
            codec = _CODECS[cast(type, item)]
            to_pb, from_pb = codec.to_pb, codec.from_pb
            return lambda values: map(to_pb, values), lambda values, names: tuple(from_pb(v, names) for v in values), tuple
        if hint in self._texts:
            write, read = self._texts[hint]
            return write, lambda text, names: read(text), lambda: read("")
        if is_dataclass(hint):
            codec = _CODECS[cast(type, hint)]
            return codec.to_pb, codec.from_pb, lambda: codec.from_pb(codec.message())
        if issubclass(hint, Enum):
            number_of = getattr(hint, "of", hint)
            return None, lambda number, names: number_of(number), lambda: number_of(0)
        if hint is str and self._shared:
            return None, lambda text, names: names.string(text), str
        return None, None, hint

    def to_pb(self, value: T) -> M:
        """Return the message of ``value``."""
        found = {}
        for name, wire, encode, always in self._encoders:
            content = getattr(value, name)
            if content is not None and (content or always):
                found[wire] = content if encode is None else encode(content)
        return self.message(**found)

    def from_pb(self, message: M, names: Names | None = None) -> T:
        """Return the value of ``message``. ``names`` shares the strings of many messages."""
        names = names or Names()
        found = self._missing.copy()
        for wire, content in message.ListFields():
            known = self._decoders.get(wire.number)
            if known is not None:
                name, decode = known
                found[name] = content if decode is None else decode(content, names)
        return self.kind(**found)


_CODECS: dict[type, MessageCodec[Any, Any]] = {}
"""Dataclass -> its codec, for fields of other dataclasses."""
