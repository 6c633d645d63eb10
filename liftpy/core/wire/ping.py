"""The answer to a presence request: ``yes``, followed by the wall time of the node in newer versions.

¶ Older versions check only that an answer arrives, so they accept both forms. Pure.

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
    """Return the wall time in ns since 1970, None if the answer has none."""
    yes, _, digits = bytes(answer).partition(b" ")
    told = yes == _YES and 0 < len(digits) <= _LONGEST and digits.isdigit()
    return int(digits) if told else None
