"""Counts dropped publishes without reply subject by reason, and logs them at most once a second [A11]."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

logger = logging.getLogger("liftpy.ingest")

_LOG_PERIOD_S = 1.0


class Drops:
    """Counts the publishes that a node drops, and logs them at most once a second. ``close`` logs the rest."""

    def __init__(self) -> None:
        self._unlogged_drops: Counter[tuple[str, str]] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def count(self, partition: str, reason: str, count: int) -> None:
        self._unlogged_drops[partition, reason] += count
        if self._timer is None:
            self._log_drops()

    def _log_drops(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._unlogged_drops:
            return
        drop_texts = ", ".join(
            f"{count} of {partition}: {reason}" for (partition, reason), count in self._unlogged_drops.most_common(8)
        )
        more = len(self._unlogged_drops) - 8
        logger.warning(
            "publishes without reply subject dropped counts=%s%s", drop_texts, f", and {more} more" if more > 0 else ""
        )
        self._unlogged_drops.clear()
        self._timer = asyncio.get_running_loop().call_later(_LOG_PERIOD_S, self._log_drops)

    def close(self) -> None:
        self._log_drops()
        if self._timer is not None:
            self._timer.cancel()
