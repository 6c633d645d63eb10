"""Messages that came together, taken apart by whether somebody waits for an answer to them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from liftpy.ingest.columns import RawMessage
from liftpy.wire.envelope import MAGIC


def runs_of(messages: list[RawMessage], replies: Sequence[bytes]) -> Iterator[list[RawMessage]]:
    """Runs of those that somebody waits for an answer to, and of those that nobody does: the core treats them differently."""
    for _, run in groupby(zip(messages, replies, strict=True), key=lambda pair: bool(pair[1])):
        yield [message for message, _ in run]


def late_ones(messages: list[RawMessage]) -> tuple[list[list[RawMessage]], list[RawMessage]]:
    """Who may be refused for having waited too long, in pieces that are read together, and the others: nobody waits for those."""
    waited_for = [message for message in messages if message[1]]
    enveloped = [[message] for message in waited_for if message[2].startswith(MAGIC)]
    plain = [message for message in waited_for if not message[2].startswith(MAGIC)] if enveloped else waited_for
    return [*([plain] if plain else []), *enveloped], [message for message in messages if not message[1]]
