"""What tests of partitions are given."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator

import pytest


@pytest.fixture
def pool() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    """For flushes, as a node has one."""
    with concurrent.futures.ThreadPoolExecutor(2) as running:
        yield running
