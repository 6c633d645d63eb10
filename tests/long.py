"""Cases that only ``python -m pytest --long`` takes: tests marked ``long``, every case of sampled tests, and most random examples."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

VARIABLE = "TESTS_LONG"
"""``tests/conftest.py`` sets it for ``--long``, before any test module is imported."""

T = TypeVar("T")


def is_long() -> bool:
    """Return whether this run has ``--long``."""
    return bool(os.environ.get(VARIABLE))


def sampled(cases: Sequence[T], every: int) -> Sequence[T]:
    """Return the cases that this run takes: all of them with ``--long``, otherwise each ``every``-th.

    Choose an ``every`` that has no divisor in common with the period of the cases, for example an odd number for bits:
    then each position of the period still occurs.
    """
    return cases if is_long() else cases[::every]


def examples(most: int) -> int:
    """Return how many examples Hypothesis draws for a test: ``most`` with ``--long``, otherwise two fifths of them."""
    return most if is_long() else most * 2 // 5


def every(step: int) -> int:
    """Return the step of a loop over all storage calls of an operation: 1 with ``--long``, otherwise ``step``."""
    return 1 if is_long() else step
