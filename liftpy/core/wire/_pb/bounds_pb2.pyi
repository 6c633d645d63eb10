from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor
BOUNDS_FIELD_NUMBER: _ClassVar[int]
bounds: _descriptor.FieldDescriptor
COUNT_FIELD_NUMBER: _ClassVar[int]
count: _descriptor.FieldDescriptor
IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
identifier: _descriptor.FieldDescriptor
TEXT_FIELD_NUMBER: _ClassVar[int]
text: _descriptor.FieldDescriptor

class Bounds(_message.Message):
    __slots__ = ("low", "high", "orZero")
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    ORZERO_FIELD_NUMBER: _ClassVar[int]
    low: int
    high: int
    orZero: bool
    def __init__(self, low: _Optional[int] = ..., high: _Optional[int] = ..., orZero: _Optional[bool] = ...) -> None: ...

class IdentifierBounds(_message.Message):
    __slots__ = ("of", "orEmpty")
    OF_FIELD_NUMBER: _ClassVar[int]
    OREMPTY_FIELD_NUMBER: _ClassVar[int]
    of: str
    orEmpty: bool
    def __init__(self, of: _Optional[str] = ..., orEmpty: _Optional[bool] = ...) -> None: ...

class TextBounds(_message.Message):
    __slots__ = ("maxBytes", "maxCharacters")
    MAXBYTES_FIELD_NUMBER: _ClassVar[int]
    MAXCHARACTERS_FIELD_NUMBER: _ClassVar[int]
    maxBytes: int
    maxCharacters: int
    def __init__(self, maxBytes: _Optional[int] = ..., maxCharacters: _Optional[int] = ...) -> None: ...
