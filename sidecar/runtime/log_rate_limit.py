"""Limits the log lines about single partitions, because an event may concern thousands of them.

A line costs 20 us and a write; the lines of 5,000 partitions that change their leader cost more than the change. What is left out is
counted, and the count is logged with the next line that is not.
"""

from __future__ import annotations

import logging
import time

LINES_PER_S = 200
SELDOM_S = 1.0


class Chatter:
    """Rate-limited ``info`` log lines, shared by all partitions of a process."""

    def __init__(self, lines_per_s: int = LINES_PER_S) -> None:
        self._lines_per_s = lines_per_s
        self._second = 0
        self._lines = 0
        self.left_out_count = 0
        self._untold = 0

    def info(self, logger: logging.Logger, text: str, *given: object) -> None:
        """Log it, or count it."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._lines = second, 0
            if self._untold:
                logger.info("suppressed %d log lines about partitions", self._untold)
                self._untold = 0
        if self._lines < self._lines_per_s:
            self._lines += 1
            logger.info(text, *given)
        else:
            self._untold += 1
            self.left_out_count += 1


CHATTER = Chatter()


class LogRateLimit:
    """Limits log lines to one per second and text. The next line tells how many were left out."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[float, int]] = {}
        """Text -> (when it was said last, how often it was left out since)."""

    def warning(self, logger: logging.Logger, text: str, *given: object) -> None:
        """Log it as a warning, or count it."""
        now = time.monotonic()
        said_at, left_out = self._said.get(text, (now - SELDOM_S, 0))
        if now - said_at < SELDOM_S:
            self._said[text] = said_at, left_out + 1
            return
        self._said[text] = now, 0
        logger.warning(text + (f" (and {left_out} more of these)" if left_out else ""), *given)
