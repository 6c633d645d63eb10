"""Wait for a condition: a test never waits for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], object], what: str = "the condition", within_s: float = 30.0) -> None:
    """Let the event loop run until ``condition`` holds. Fail after ``within_s``."""
    deadline = time.monotonic() + within_s
    for _ in iter(lambda: bool(condition()), True):
        assert time.monotonic() < deadline, f"{what} has not come about within {within_s} s"
        await asyncio.sleep(0.001)


def block_until(condition: Callable[[], object], what: str = "the condition", within_s: float = 60.0) -> None:
    """Block the thread until ``condition`` holds. Fail after ``within_s``."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} has not come about within {within_s} s"
        time.sleep(0.01)
