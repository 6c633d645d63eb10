"""Reads the stream of events for a page, newest first, from this node's own replica.

It reads committed events backwards, ``STEP`` at once and at most ``MOST_LOOKED_AT`` per request. The caller continues
from there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from liftpy.config import NS_PER_S
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.strict_json import load_json, whole_number
from liftpy.core.log.log import Log
from liftpy.core.observe.cluster_health import MOST_ROWS, limit_of
from liftpy.core.observe.timeline import FILTERS, fits
from liftpy.core.wire.batch import RecordBatch, split_batches
from liftpy.core.wire.subjects import EVENTS_STREAM
from liftpy.errors import LiftError
from sidecar.status.report import Reporter

STEP = 500
MOST_LOOKED_AT = 20_000
SKEW_NS = 60 * NS_PER_S
"""Maximum difference between the clocks of the metadata leader, which stamps the events, and of the stream's leader."""
NOT_TOLD = "request"
"""Events about users are shown only to operators (`liftpy events`)."""
SLICE_S = 0.002
_READ_BYTES = 256 * 1024
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class KeptQuestion:
    """Query for events before ``before`` (index, number, exclusive, None: any), in [``since_ns``, ``until_ns``), that match
    ``only``. ``below``: offset of that place in the stream, None: it is searched."""

    before: Place | None
    below: int | None
    since_ns: int
    until_ns: int
    only: dict[str, str]
    limit: int

    @classmethod
    def of(cls, said: Any) -> KeptQuestion:
        """Parse ``{"kept": {"before": [index, number, offset], "since_ns": 0, "until_ns": 0, "kind": ""}, "limit": 500}``.

        Raises ValueError.
        """
        if not isinstance(said, dict) or not isinstance(asked := said.get("kept"), dict):
            raise ValueError("Invalid parameter kept. Use an object.")
        before = below = None
        match asked.get("before"):
            case None:
                pass
            case [index, number, *offset] if len(offset) < 2:
                before = whole_number(index, 0, 1 << 63), whole_number(number, 0, 1 << 31)
                below = whole_number(offset[0], 0, 1 << 63) if offset else None
            case _:
                raise ValueError("Invalid parameter before. Use [index, number] or [index, number, offset].")
        only = {name: asked[name] for name in FILTERS if name in asked}
        if not all(isinstance(value, str) for value in only.values()):
            raise ValueError("Invalid parameter kind, stream or node. Use names.")
        since_ns, until_ns = (whole_number(asked.get(name, 0), 0, 1 << 63) for name in ("since_ns", "until_ns"))
        return cls(before, below, since_ns, until_ns, only, limit_of(said.get("limit", MOST_ROWS)))


async def kept_events(reporter: Reporter, said: Any) -> dict[str, Any] | None:
    """Return ``kept``: events, newest first, ``more``: there may be others, ``last``: place before which the next query begins.
    Or ``at``: nodes that have the events. None: invalid query."""
    question = KeptQuestion.of(said)
    stream = reporter.group.image.streams.get(EVENTS_STREAM)
    if stream is None or not stream.partitions:
        return None
    key = PartitionKey(EVENTS_STREAM, stream.uid, 0)
    worker = next((one for one in reporter.partitions if one.key == key), None)
    if worker is None or not worker.is_in_sync:
        return {"at": [node for node in stream.partitions[0].isr if node != reporter.node_id]}
    try:
        return await _looked_through(worker.log, worker.high_watermark + 1, question)
    except LiftError:
        return None  # damaged, or gone meanwhile


async def _looked_through(log: Log, end: int, question: KeptQuestion) -> dict[str, Any]:
    if question.until_ns:
        end = min(end, log.offset_for_timestamp(question.until_ns + SKEW_NS))
    if question.below is not None:
        end = min(end, question.below)
    found: list[dict[str, Any]] = []
    last: tuple[int, int, int] | None = None
    lowest = end - MOST_LOOKED_AT
    began = time.monotonic()
    while end > max(log.log_start_offset, lowest):
        batches = _between(log, max(log.log_start_offset, end - STEP), end)
        for offset, event in _newest_first(batches, end):
            if event["time_ns"] < question.since_ns or len(found) == question.limit:
                return {"kept": found, "more": len(found) == question.limit, "last": last}
            last = event["index"], event["number"], offset
            if _is_wanted(event, question):
                found.append(event)
        end = batches[0].base_offset
        if time.monotonic() - began > SLICE_S:
            await asyncio.sleep(0)
            began = time.monotonic()
    return {"kept": found, "more": end > log.log_start_offset, "last": last}


def _is_wanted(event: dict[str, Any], question: KeptQuestion) -> bool:
    if question.before is not None and (event["index"], event["number"]) >= question.before:
        return False
    if question.until_ns and event["time_ns"] >= question.until_ns:
        return False
    return event["kind"] != NOT_TOLD and fits(event, question.only)


def _between(log: Log, start: int, end: int) -> list[RecordBatch]:
    """Return the whole batches of [``start``, ``end``)."""
    found: list[RecordBatch] = []
    while start < end:
        found += split_batches(b"".join(log.read(start, _READ_BYTES).chunks))
        start = found[-1].next_offset
    return found


def _newest_first(batches: list[RecordBatch], end: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (offset, event) below ``end``, newest first. Other records are skipped."""
    for batch in reversed(batches):
        values = batch.values()
        for number in range(min(len(values), end - batch.base_offset) - 1, -1, -1):
            value = values[number]
            try:
                event = load_json(value) if value else None
            except ValueError:
                continue
            if isinstance(event, dict) and all(type(event.get(name)) is int for name in ("index", "number", "time_ns")):
                yield batch.base_offset + number, {"kind": "", **event}
