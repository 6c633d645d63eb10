"""Messages that came together, taken apart by whether somebody waits for an answer to them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from liftpy.ingest.columns import BATCH, TYPE_POSITION, RawMessage
from liftpy.ingest.jetstream import FAST_BATCH_REPLY
from liftpy.wire.envelope import MAGIC


def runs_of(messages: list[RawMessage], replies: Sequence[bytes]) -> Iterator[list[RawMessage]]:
    """Runs of those that somebody waits for an answer to, and of those that nobody does: the core treats them differently."""
    for _, run in groupby(zip(messages, replies, strict=True), key=lambda pair: bool(pair[1])):
        yield [message for message, _ in run]


def late_ones(messages: list[RawMessage]) -> tuple[list[list[RawMessage]], list[RawMessage]]:
    """Who may be refused for having waited too long, in pieces that are read together, and the others: nobody waits for those."""
    waited_for = [message for message in messages if message[1]]
    alone = [[message] for message in waited_for if _is_alone(message)]
    together = [message for message in waited_for if not _is_alone(message)] if alone else waited_for
    return [*([together] if together else []), *alone], [message for message in messages if not message[1]]


def _is_alone(message: RawMessage) -> bool:
    """Whether others that are read with it would not be looked at: it may be a whole batch, or one of a fast batch."""
    _, reply, payload, _ = message
    kind = payload[TYPE_POSITION : TYPE_POSITION + 1]
    return (kind == BATCH and payload.startswith(MAGIC)) or reply.endswith(FAST_BATCH_REPLY)
