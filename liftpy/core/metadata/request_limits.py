"""Size limits of control requests, checked before a request is stored or logged, and of batches of requests. Pure.

The whole request, each text and each list has a limit. The limits apply to all fields, because the fields are found in
the protobuf schema. Reasons are only for people, and are shortened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from liftpy.core.base.ids import quote
from liftpy.core.wire._pb import cluster_pb2 as pb

MAX_REQUEST_BYTES = 64 * 1024
MAX_TEXT_BYTES = 1024
"""Maximum size of one name, subject or setting in UTF-8, in bytes. Most texts have a lower limit."""
MAX_LIST_LENGTH = 256
_LONG_LISTS = {"manual": 10_000}
"""Field with a longer list -> its maximum length. Such a list is a manual assignment, and MAX_REQUEST_BYTES limits it, too."""
_FOR_PEOPLE = "reason"
MAX_REQUESTS = 200
"""Maximum number of requests in an accepted batch.

The value never changes, because old log entries must be decided as before.
"""
SENT_TOGETHER = 80
"""Maximum number of requests in a batch that a node sends.

Each controller needs about 10 ms for such a batch. Meanwhile the controller neither sends nor receives.
"""
MAX_BATCH_BYTES = 48 * 1024
"""Maximum size of one batch's requests, in bytes. An entry of the log has at most 64 KiB."""


def fit(request: pb.ControlRequest, size_bytes: int) -> str:
    """Shorten long reasons in the request. Return why the request is too large. '': it is accepted.

    ``size_bytes``: size of the whole request.
    """
    if size_bytes > MAX_REQUEST_BYTES:
        return f"the request has {size_bytes} bytes, more than {MAX_REQUEST_BYTES}"
    return _wrong(request, "")


def _wrong(message: Message, path: str) -> str:
    for field, value in message.ListFields():
        where = f"{path}{field.name}"
        values = value if field.is_repeated else (value,)
        most = _LONG_LISTS.get(field.name, MAX_LIST_LENGTH)
        if len(values) > most:
            return f"{where} has {len(values)} items, more than {most}"
        if field.name == _FOR_PEOPLE:
            setattr(message, field.name, value[: MAX_TEXT_BYTES // 4])
            continue
        for member, item in _members(field, values):
            wrong = _wrong_item(member, item, where)
            if wrong:
                return wrong
    return ""


def _members(field: FieldDescriptor, values: Any) -> Iterator[tuple[FieldDescriptor, Any]]:
    kind = field.message_type
    if kind is None or not kind.GetOptions().map_entry:
        yield from ((field, item) for item in values)
        return
    of_keys, of_values = (kind.fields_by_name[name] for name in ("key", "value"))
    for key, value in values.items():
        yield from ((of_keys, key), (of_values, value))


def _wrong_item(field: FieldDescriptor, item: Any, where: str) -> str:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return _wrong(item, f"{where}.")
    if field.type == FieldDescriptor.TYPE_STRING and len(item.encode()) > MAX_TEXT_BYTES:
        return f"{where} is {quote(item)}, longer than {MAX_TEXT_BYTES} bytes"
    if field.type == FieldDescriptor.TYPE_BYTES and len(item) > MAX_TEXT_BYTES:
        return f"{where} has {len(item)} bytes, more than {MAX_TEXT_BYTES}"
    return ""
