"""Columns of a state file, made in slices. Pure.

A call into C is one in which no other thread of Python has its turn: a million numbers at once are 0.1 s, in which a node
answers nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

SLICE = 8192
"""Values: less than a millisecond."""


def packed(values: Sequence[int], kind: Any) -> bytes:
    """Numbers as a column of ``kind``, a numpy type."""
    return b"".join(np.array(values[at : at + SLICE], kind).tobytes() for at in range(0, len(values), SLICE))


def joined(pieces: Sequence[bytes]) -> bytes:
    """One behind the other."""
    return b"".join(b"".join(pieces[at : at + SLICE]) for at in range(0, len(pieces), SLICE))
