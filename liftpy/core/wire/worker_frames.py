"""Frames between the processes of one node, over a private socket pair. Pure.

Layout, big endian: CRC-32C of the following bytes (4) | length of the body (4) | kind (1) | token (8) | body. A body is
a protobuf message, a snapshot of the image, or JSON. The token identifies the request of an answer, or is itself a
number. Both processes run one version of liftpy. So an unexpected frame is a bug, and ends the node.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import crc32c

from liftpy.errors import ProtocolError

_CRC = struct.Struct(">I")
_REST = struct.Struct(">IBQ")
LEASE = struct.Struct(">Q")
"""Body of HEARTBEAT_ANSWERED: length of the lease in ns. 0: length from the settings."""
TIMEOUT_MS = struct.Struct(">I")
"""Begin of the body of CONTROL_REQUEST: time limit of the request in ms."""
HEAD_BYTES = _CRC.size + _REST.size
MOST_BODY_BYTES = 64 * 1024 * 1024
MOST_IMAGE_BYTES = 512 * 1024 * 1024
"""Maximum size of an image, in bytes. The feed of the metadata group accepts no larger one."""


class FrameKind(IntEnum):
    """Kind of a frame between processes. Kinds up to SETTINGS go to a worker, the others come from it."""

    SETUP = 1
    """JSON: settings, number of the worker, and how the last process of the node stopped."""
    REGISTERED = 2
    """The node is registered. Token: its incarnation. The worker opens its partitions of the image."""
    IMAGE = 3
    """Snapshot of the metadata image. It replaces the image that the worker has."""
    ENTRY = 4
    """pb.FeedEntry: a change of the image."""
    HEARTBEAT_ANSWERED = 5
    """Token: sending time of the answered heartbeat in ns, and the granted lease (``LEASE``)."""
    PING = 6
    CONTROL_RESPONSE = 7
    """Answer to a control request (pb.ControlResponse)."""
    COMBINED_FETCH = 8
    """Fetches for the worker's quiet partitions (pb.QuietFetches)."""
    STATUS_REQUEST = 9
    """JSON: the status values to return in STATUS_ANSWER."""
    CLOSE_SUBJECTS = 10
    """Token: time limit in ms. The worker accepts no more publishes."""
    STOP = 11
    LOG_LEVEL = 12
    """JSON: level and for_s of the log."""
    SETTINGS = 13
    """JSON: settings of each process. A running process adopts those that it can change."""
    HELLO = 32
    RECOVERED = 33
    """JSON: result of the recovery of its logs."""
    PARTITIONS_OPENED = 34
    """All partitions of the image are open, or have failed to open."""
    PONG = 35
    CONTROL_REQUEST = 36
    """Timeout (``TIMEOUT_MS``), then pb.ControlRequest."""
    RELOAD_IMAGE = 37
    FATAL = 38
    """JSON: the error that stops the process."""
    REPAIR = 39
    """Text: the reason why the node must restart."""
    HEALTH_REPORT = 40
    """JSON: health values of the process."""
    SAMPLE = 45
    """JSON: counters of the process, once per second."""
    STATUS_ANSWER = 41
    """JSON: the answer to STATUS_REQUEST."""
    COMBINED_FETCH_ANSWER = 42
    """Answer about fetches of quiet partitions (pb.QuietFetchesAnswer)."""
    SUBJECTS_CLOSED = 43
    STOPPED = 44
    """Token 1: all acknowledged records are on the disk."""


class Frame(NamedTuple):
    """One frame between two processes of a node."""

    kind: FrameKind
    token: int
    body: bytes


def most_bytes(kind: int) -> int:
    """Return the maximum size of the body of a frame of this ``kind``, in bytes."""
    return MOST_IMAGE_BYTES if kind == FrameKind.IMAGE else MOST_BODY_BYTES


def encode(kind: FrameKind, token: int = 0, body: bytes = b"") -> bytes:
    """Return the bytes of a frame. Raises ProtocolError for a body that is too large.

    ``token``: identifies the request of an answer, or is itself a number. 0: not used.
    """
    if len(body) > most_bytes(kind):
        raise ProtocolError(
            f"Internal error: a frame {kind.name} of {len(body)} bytes between the processes of a node is too large. Please report it."
        )
    rest = _REST.pack(len(body), kind, token)
    return _CRC.pack(crc32c.crc32c(body, crc32c.crc32c(rest))) + rest + body


class FrameReader:
    """Splits the bytes of the connection between two processes into frames. It buffers at most one frame."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that ``data`` completes. Raises ProtocolError for invalid bytes, and accepts nothing afterwards."""
        buffer = self._held
        buffer += data
        while len(buffer) >= HEAD_BYTES:
            (crc,) = _CRC.unpack_from(buffer)
            length, kind, token = _REST.unpack_from(buffer, _CRC.size)
            if length > most_bytes(kind):
                raise ProtocolError(
                    f"Internal error: invalid frame length {length} between the processes of a node. Please report it."
                )
            end = HEAD_BYTES + length
            if len(buffer) < end:
                return
            if crc32c.crc32c(bytes(buffer[_CRC.size : end])) != crc:
                raise ProtocolError("Internal error: a frame between the processes of a node is damaged. Please report it.")
            try:
                frame = Frame(FrameKind(kind), token, bytes(buffer[HEAD_BYTES:end]))
            except ValueError:
                raise ProtocolError(
                    f"Internal error: unknown frame kind {kind} between the processes of a node. Please report it."
                ) from None
            del buffer[:end]
            yield frame
