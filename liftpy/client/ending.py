"""Ending tasks that use nats-py."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

_TRY_AGAIN_S = 0.1


async def end_tasks(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    """Cancel until it takes: nats-py swallows a cancellation here and there, and a loop around it would go on for ever."""
    pending = {task for task in tasks if task is not None and not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_TRY_AGAIN_S)
