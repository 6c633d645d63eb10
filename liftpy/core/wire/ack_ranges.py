"""Runs: one Ack for consecutive messages of one inbox, by one rule on both sides [A1, A8]. Pure.

Goal: who sends single messages by the thousand is not sent an Ack for each. Constraint: every request has exactly one answer, which
names its record. A publisher that counts its messages under one inbox, ``X.0``, ``X.1``..., says so in them (``Message.runs``). What of
them lies in one batch, with consecutive numbers at consecutive offsets, may be answered by one Ack to the first: ``recordCount`` k of
an Ack to ``X.n`` that says ``offset`` o answers ``X.n`` to ``X.n+k-1``, whose records stand at o to o+k-1. Whatever else is said, a
no, a duplicate, what a new leader has recognised, is said to each by itself.

Worked example: replies ``X.7 X.8 Y.9 X.10 X.12`` at offsets 50 to 54: Acks to ``X.7`` (50, 2 records), ``Y.9``, ``X.10``, ``X.12``.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import eq

MAX_DIGITS = 18
"""Of a number in a reply."""
_FASTER = 4


def run_end(replies: Sequence[bytes], start: int, end: int) -> int:
    """Return the exclusive end of the run that begins at ``start``, at most ``end``.

    It is ``start`` + 1 if no run begins there.
    """
    inbox, number = counted(replies[start])
    if number < 0:
        return start + 1
    place, step = start + 1, 1
    while place < end:
        found = list(replies[place : min(place + step, end)])
        wanted = _names(inbox, number + place - start, len(found))
        if found != wanted:
            return place + list(map(eq, found, wanted)).index(False)
        place, step = place + len(found), step * _FASTER
    return end


def answered_by(reply: bytes, record_count: int) -> list[bytes]:
    """The replies of the requests that an Ack to ``reply`` answers, whose ``recordCount`` is of a run; 0: one."""
    inbox, number = counted(reply)
    return [reply] if record_count <= 1 or number < 0 else _names(inbox, number, record_count)


def counted(reply: bytes) -> tuple[bytes, int]:
    """(inbox, number) of a reply that counts; the number is -1 where it does not, or is not written as it would be here."""
    inbox, _, digits = reply.rpartition(b".")
    if not inbox or not digits.isdigit() or len(digits) > MAX_DIGITS or (digits[0] == _ZERO and len(digits) > 1):
        return b"", -1
    return inbox, int(digits)


_ZERO = ord("0")


def _names(inbox: bytes, number: int, how_many: int) -> list[bytes]:
    name = inbox.replace(b"%", b"%%") + b".%d"
    return [*map(name.__mod__, range(number, number + how_many))]
