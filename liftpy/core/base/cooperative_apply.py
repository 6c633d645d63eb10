"""Splits a decision that changes thousands of partitions into small steps. Pure.

Goal: a member of the metadata group sends and receives frames and heartbeats while it applies an entry that concerns a
whole node (registration, fencing, drain). 10,000 partitions take a tenth of a second on a free core, and much longer on
a busy machine.

Constraint: the entry stays one entry. No reader sees a part of it, and every controller gets the same result, wherever
the steps end.

Algorithm: a function that works through many partitions is a generator that pauses after each PER_STEP. Its caller
requests the next step at any time. The last step returns the result.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A generator that yields after each step and returns a T."""

PER_STEP = 200
"""Number of partitions per step, about 2 ms of CPU time. It affects only the pauses, and not the result."""


def run_to_end(work: Steps[T]) -> T:
    """Run all remaining steps of the generator ``work`` without a pause, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
