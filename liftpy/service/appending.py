"""Appending records that a service has emitted: one BatchPublish at an expected offset, one ack that is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from liftpy.client.transport import Transport
from liftpy.errors import UnavailableError
from liftpy.service.outbox import OutputConflictError
from liftpy.wire import frames
from liftpy.wire._pb import client_pb2
from liftpy.wire.batch import build_batch
from liftpy.wire.headers import Pairs

Row = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes]] | Pairs]
"""(value, key, headers)"""


class NotWrittenError(UnavailableError):
    """An output was not acknowledged, or refused because it was not its turn: look at the stream and go on from there."""

    code = "NOT_WRITTEN"


class Destination(NamedTuple):
    """Of the partition that is written to. ``subject``: its data subject."""

    stream: str
    uid: str
    partition: int
    subject: str


def frame_of(to: Destination, expected_offset: int, rows: Sequence[Row]) -> bytes:
    """The message that appends ``rows`` at ``expected_offset``, or nothing."""
    head = client_pb2.BatchPublish(
        stream=to.stream,
        streamUid=to.uid,
        partition=to.partition,
        expectedOffset=expected_offset,
        ackPolicy=client_pb2.ALL,
    )
    values, keys, headers = zip(*rows, strict=True)
    return frames.batch_publish(head, build_batch(values, keys=keys, headers=headers))


def fitting(to: Destination, expected_offset: int, rows: Sequence[Row], max_payload: int) -> tuple[bytes, int]:
    """The message of as many of ``rows``, from the first on, as fit into ``max_payload`` by halves; and how many. At least one."""
    count = len(rows)
    frame = frame_of(to, expected_offset, rows)
    while len(frame) > max_payload and count > 1:
        count //= 2
        frame = frame_of(to, expected_offset, rows[:count])
    return frame, count


async def append(
    transport: Transport, to: Destination, frame: bytes, expected_offset: int, count: int, timeout_s: float
) -> None:
    """Send ``frame``; raise NotWrittenError unless its ``count`` records are acknowledged at ``expected_offset``."""
    which = f"output at offset {expected_offset} of {to.stream}/{to.partition}"
    ack = frames.decode(await transport.request(to.subject, frame, timeout_s), client_pb2.Ack)
    named = (ack.stream, ack.partition) == (to.stream, to.partition)
    if not named or ack.streamUid not in ("", to.uid):  # somebody else answers there: it says nothing [A9]
        raise NotWrittenError(f"{which} was answered by {ack.stream!r}/{ack.partition} (uid {ack.streamUid})")
    if ack.ackError != client_pb2.Ack.OK:
        reason = client_pb2.Ack.Error.Name(ack.ackError) if ack.ackError in client_pb2.Ack.Error.values() else ack.ackError
        raise NotWrittenError(f"{which} was refused: {reason} {ack.detail}".rstrip())
    if (ack.offset, ack.recordCount) != (expected_offset, count):
        raise OutputConflictError(
            f"{which} and {count - 1} more were written as {ack.recordCount} records from {ack.offset} on"
        )
