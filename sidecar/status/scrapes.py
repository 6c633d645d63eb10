"""Formats metrics as text for Prometheus, in a thread, so that the event loop is not blocked.

The first scrape imports prometheus_client. A node that nobody scrapes saves its 2 MB.
"""

from __future__ import annotations

import asyncio
from typing import Any

from sidecar.status.figures import Figures


async def metrics_text(figures: Figures) -> bytes:
    """Return the text of ``/metrics`` with the values in ``figures``."""
    return await asyncio.to_thread(_metrics_text, figures)


async def partitions_text(partitions: list[dict[str, Any]]) -> bytes:
    """Return the text of ``/metrics/partitions`` for the rows ``partitions`` of a node's report."""
    return await asyncio.to_thread(_partitions_text, partitions)


def _metrics_text(figures: Figures) -> bytes:
    from sidecar.status.metrics import exposition

    return exposition(figures)


def _partitions_text(partitions: list[dict[str, Any]]) -> bytes:
    from sidecar.status.metrics import by_partition

    return by_partition(partitions)
