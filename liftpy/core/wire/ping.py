"""The answer to who asks whether a node is there: ``yes``, and of a version that tells it its wall time behind it.

Who asks whether it is there looks at no more than that somebody answers, so older versions take either form. Pure.
"""

from __future__ import annotations

_YES = b"yes"
_LONGEST = 20
"""Digits of nanoseconds since 1970: more than 64 bits do not need."""


def encode_presence(wall_ns: int) -> bytes:
    """``yes``, a blank, and ``wall_ns`` in digits."""
    return b"%s %d" % (_YES, wall_ns)


def decode_presence(answer: bytes) -> int | None:
    """The wall time, ns since 1970; None: it does not tell."""
    yes, _, digits = bytes(answer).partition(b" ")
    told = yes == _YES and 0 < len(digits) <= _LONGEST and digits.isdigit()
    return int(digits) if told else None
