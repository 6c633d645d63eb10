"""Checks that a request or an answer is for its receiver, by the address inside it. Other messages are dropped. Pure.

NATS brings a message to its subject, and an answer to the inbox that a request named. Neither is under a frame's CRC-32C: a relay,
a broken tool, or whoever says an overheard frame again elsewhere brings a whole frame to the wrong partition or the wrong request,
and its contents would be taken for those of another one. So requests name stream and partition, and answers the request too.

Messages of protobuf have fields for it (`streamUid` or `stream`, `partition`, `requestId`). Answers to fetches are binary: theirs
stands first in the payload (``envelope``, flag bit 1), 16 bytes big endian: request id (8) | partition (4) | CRC-32C of the stream's
uid (4). A frame that says nothing is from an older version, and taken: this finds mistakes; it is no signature.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import crc32c

from liftpy.core.base.ids import shown
from liftpy.core.wire.envelope import EnvelopeError

_ADDRESS = struct.Struct(">QII")


class MisdirectedError(EnvelopeError):
    """The frame is for another partition or another request. Ignore it: the right one may still arrive."""

    code = "MISDIRECTED"

    def __init__(self, text: str) -> None:
        super().__init__(text, "addressee")


def address(uid: str, partition: int, request_id: int) -> bytes:
    """Return the address of a request that the answer repeats."""
    return _ADDRESS.pack(request_id, partition, _uid_sum(uid))


@lru_cache(4096)
def _uid_sum(uid: str) -> int:
    return crc32c.crc32c(uid.encode())


def must_be_for(message: Any, partition: int, **said: object) -> None:
    """Raise MisdirectedError unless ``message`` names ``partition`` and the fields of ``said``.

    Messages of older versions without a partition are accepted.
    """
    if not message.HasField("partition"):
        return
    for name, value in {"partition": partition, **said}.items():
        found = getattr(message, name)
        if found != value:
            raise MisdirectedError(f"Received a {type(message).__name__} for {name} {_shown(found)}, expected {_shown(value)}")


def _shown(value: object) -> str:
    return shown(value) if isinstance(value, str) else str(value)


def must_be_at(found: bytes, expected: Callable[[], bytes]) -> None:
    """Raise MisdirectedError unless the address of an answer is ``expected``.

    b"": the answer has no address and is accepted.
    """
    if found and found != expected():
        raise MisdirectedError("Received the answer to another fetch request")
