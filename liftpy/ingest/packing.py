"""Columns of a state file, made and read in slices. Pure.

A call into C is one in which no other thread of Python has its turn: a million numbers at once are 0.1 s, in which a node
answers nobody. So is the end of a list of a million new objects. What is made here comes in pieces, and is never one whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import Any

import numpy as np

SLICE = 8192
"""Values: less than a millisecond."""


def sliced(values: Iterable[Any]) -> Iterator[list[Any]]:
    """``SLICE`` of them at a time."""
    rest = iter(values)
    while some := list(islice(rest, SLICE)):
        yield some


def packed(values: Iterable[int], kind: Any) -> list[bytes]:
    """Numbers as a column of ``kind``, a numpy type, in pieces."""
    return [np.array(some, kind).tobytes() for some in sliced(values)]


def joined(texts: Iterable[bytes]) -> list[bytes]:
    """One behind the other, in pieces."""
    return [b"".join(some) for some in sliced(texts)]


def numbers(column: np.ndarray) -> Iterator[int]:
    """Those of a column, as Python's."""
    for at in range(0, len(column), SLICE):
        yield from column[at : at + SLICE].tolist()


def cut_up(data: bytes, at: int, sizes: np.ndarray) -> Iterator[bytes]:
    """The texts that stand in ``data`` from ``at`` on, one behind the other, of ``sizes`` bytes each."""
    for first in range(0, len(sizes), SLICE):
        ends = at + np.cumsum(sizes[first : first + SLICE], dtype=np.int64)
        for start, end in pairwise((at, *ends.tolist())):
            yield data[start:end]
        at = int(ends[-1])
