"""Retention: decides which whole segments to delete by age, size and number of records.

It never deletes the active segment or a record above the high watermark [D26]. The new log start is the largest segment
base below which everything is too old, or exceeds the size or number, counted from the newest record. It is a pure
function, so that it can be previewed.

Example: segments of 10 records at 0, 10, 20 and an empty active one, high watermark 25, ``retention_records`` 15.
Deleting the first segment leaves 20 records. Deleting the second would leave 10. So the log start becomes 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from liftpy.config import NS_PER_S, StreamConfig

AT_ONCE = 32
"""Maximum number of segments that one step of retention deletes. Each takes a flush of the directory."""


class RetainedSegment(Protocol):
    """Properties of a segment on which retention decides."""

    base_offset: int
    next_offset: int
    size_bytes: int
    record_count: int
    max_timestamp_ns: int


def is_too_old(segment: RetainedSegment, config: StreamConfig, high_watermark: int, now_wall_ns: int) -> bool:
    """Return whether the whole segment is committed and older than ``retention_age_s``. ``high_watermark``: inclusive."""
    oldest_ns = now_wall_ns - int(config.retention_age_s * NS_PER_S)
    committed = segment.next_offset <= high_watermark + 1
    return bool(config.retention_age_s and segment.size_bytes and committed and segment.max_timestamp_ns < oldest_ns)


def is_below(segment: RetainedSegment, requested_start: int, high_watermark: int) -> bool:
    """Return whether the whole segment is committed and below the requested log start. ``high_watermark``: inclusive."""
    return bool(segment.size_bytes) and segment.next_offset <= min(requested_start, high_watermark + 1)


def asked_start(segments: Sequence[RetainedSegment], wanted: int) -> int:
    """Return the next log start (inclusive) on the way to ``wanted``, the log start that an operator requested.

    Each step removes at most ``AT_ONCE`` segments.
    """
    return min(wanted, segments[AT_ONCE].base_offset) if len(segments) > AT_ONCE else wanted


def retained_start(segments: Sequence[RetainedSegment], config: StreamConfig, high_watermark: int, now_wall_ns: int) -> int:
    """Return the log start after retention: the base offset of the first segment that stays.

    Args:
        segments: Ascending, the active one last.
        config: Settings of the stream.
        high_watermark: Inclusive. Records above it stay.
        now_wall_ns: Wall clock, in nanoseconds since 1970.
    """
    size_bytes = sum(s.size_bytes for s in segments)
    records = sum(s.record_count for s in segments)
    for segment in segments[:-1]:
        too_old = is_too_old(segment, config, high_watermark, now_wall_ns)
        too_large = config.retention_bytes and size_bytes - segment.size_bytes >= config.retention_bytes
        too_many = config.retention_records and records - segment.record_count >= config.retention_records
        if not (too_old or too_large or too_many) or segment.next_offset > high_watermark + 1:
            return segment.base_offset
        size_bytes -= segment.size_bytes
        records -= segment.record_count
    return segments[-1].base_offset


def limit_retention_start(segments: Sequence[RetainedSegment], wanted: int, retain_from: int | None, most_bytes: int) -> int:
    """Return the log start after retention, if a service still needs the record at ``retain_from``. None: no service needs a record.

    At most ``most_bytes`` below ``wanted``, the log start by the settings, stay for the service. Beyond this limit, retention
    wins.

    Example: segments of 10 records and 1 MB begin at 0, 10, 20 and 30. ``wanted`` is 30 and ``retain_from`` is 12. The log start
    becomes 10 if ``most_bytes`` is 2 MB, and 20 if it is 1 MB.
    """
    start, size_bytes = wanted, 0
    if retain_from is None:
        return wanted
    for segment in reversed([s for s in segments if s.base_offset < wanted and s.next_offset > retain_from]):
        size_bytes += segment.size_bytes
        if size_bytes > most_bytes:
            break
        start = segment.base_offset
    return start
