"""Derived state for an Ingest that is tested without a log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from liftpy.core.publish.log_state import LogState

WINDOW_NS = 120 * 1_000_000_000


def derived_state(window_ns: int = WINDOW_NS, max_bytes: int = 1 << 20) -> LogState:
    """Of an empty log; it is told of what is appended by the Ingest, and of nothing else."""
    log: Any = SimpleNamespace(log_start_offset=0, log_end_offset=0, high_watermark=-1)
    return LogState(log, window_ns, max_bytes, lambda: 0)
