"""Splits a decision that changes thousands of partitions into small steps. Pure.

Goal: a member of the metadata group sends and takes frames and heartbeats while it applies an entry that concerns a whole node (it
registers, is fenced, drains): 10,000 partitions take a tenth of a second of a core of its own, and many times that on a busy machine.
Constraint: the entry stays one entry. Nobody sees a part of it, and every controller comes to the same, however the steps fall.
Algorithm: whoever works through many partitions is a generator that pauses after each PER_STEP; its caller asks for the next step when
it likes, and what is returned comes with the last one.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Pauses between steps, then returns a T."""

PER_STEP = 200
"""Partitions; some 2 ms of a core. It decides nothing but when there is a pause."""


def finished(work: Steps[T]) -> T:
    """Run all remaining steps of ``work`` and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
