"""Messages that came together, taken apart by whether somebody waits for an answer to them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from liftpy.ingest.columns import BATCH, TYPE_POSITION, RawMessage
from liftpy.ingest.jetstream import FAST_BATCH_REPLY
from liftpy.wire.envelope import MAGIC

_KIND = slice(TYPE_POSITION, TYPE_POSITION + 1)


def runs_of(messages: list[RawMessage], replies: Sequence[bytes]) -> Iterator[list[RawMessage]]:
    """Runs of those that somebody waits for an answer to, and of those that nobody does: the core treats them differently."""
    for _, run in groupby(zip(messages, replies, strict=True), key=lambda pair: bool(pair[1])):
        yield [message for message, _ in run]


def late_ones(messages: list[RawMessage]) -> tuple[list[list[RawMessage]], list[RawMessage]]:
    """Who may be refused for having waited too long, in pieces that are read together, and the others: nobody waits for those."""
    together, alone, others = list[RawMessage](), list[list[RawMessage]](), list[RawMessage]()
    for message in messages:
        _, reply, payload, _ = message
        if not reply:
            others.append(message)
        elif reply.endswith(FAST_BATCH_REPLY) or (payload[_KIND] == BATCH and payload.startswith(MAGIC)):
            alone.append([message])  # others that are read with a batch would not be looked at
        else:
            together.append(message)
    return [*([together] if together else []), *alone], others
