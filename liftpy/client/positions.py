"""Where a reader starts and stops: words, offsets and times turned into offsets. Pure.

- ``earliest``: the oldest offset that is kept (log start).
- ``latest``: the last committed record, to see where the stream stands; on an empty stream the first to come.
- ``new``: only what is committed after this moment (HW + 1).
- an offset: that record, inclusive. Outside log start .. HW + 1 is an error, never a silent reset.
- a time: the first record that the leader stamped at or after it.

``until``: ``end`` is the HW as of now, frozen; an offset is the last one wanted, inclusive, waited for if it is still to come; a time
ends before the first record that the leader stamped at or after it, and is waited for if it is still to come; None follows for ever.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from liftpy.errors import ConfigError, OffsetOutOfRangeError
from liftpy.ids import shown

Start = Literal["earliest", "latest", "new"] | int | datetime
Until = Literal["end"] | int | datetime | None
_NS_PER_US = 1000
_MAX_DIGITS = 18
"""Of an offset."""
_WORDS: dict[str, Start] = {"earliest": "earliest", "latest": "latest", "new": "new"}
_RELATIVE = re.compile(r"([+-])(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)")
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a partition holds, as one replica answered it.

    ``log_start_offset``: oldest offset kept, inclusive. ``high_watermark``: last committed offset, inclusive, -1 when none.
    ``leader``: node id, empty when there is none. ``node``: who answered. ``uid``: identity of the stream behind its name.
    """

    uid: str
    node: str
    leader: str
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    compacted: bool = False

    @property
    def end_offset(self) -> int:
        """Offset of the next record to be committed: HW + 1, exclusive end of what can be read now."""
        return max(self.high_watermark + 1, self.log_start_offset)


def start_offset(start: Start, bounds: Bounds) -> int:
    """First offset to read, inclusive; raise OffsetOutOfRangeError below the log start. Times are resolved by the replica."""
    if start == "earliest":
        return bounds.log_start_offset
    if start == "latest":
        return max(bounds.high_watermark, bounds.log_start_offset)
    if start == "new":
        return bounds.end_offset
    if not isinstance(start, int):
        raise ConfigError(f"start {start!r}: use 'earliest', 'latest', 'new', an offset or a datetime")
    if not bounds.log_start_offset <= start <= bounds.end_offset:
        raise out_of_range(start, bounds.log_start_offset, bounds.high_watermark)
    return start


def end_offset(until: Until, bounds: Bounds) -> int | None:
    """Offset to stop before, exclusive; None: never stop, or not known yet. A time is resolved by the replica."""
    if until is None or isinstance(until, datetime):
        return None
    if until == "end":
        return bounds.end_offset
    if not isinstance(until, int) or until < -1:
        raise ConfigError(f"until {until!r}: use 'end', the last offset wanted, a datetime, or None to follow")
    return until + 1


def out_of_range(offset: int, log_start_offset: int, high_watermark: int) -> OffsetOutOfRangeError:
    """The error for an offset outside the readable range; its text names the range."""
    return OffsetOutOfRangeError(
        f"offset {offset} is outside {log_start_offset}..{high_watermark + 1}: the log starts at {log_start_offset} and is "
        f"committed up to {high_watermark}; choose an offset in there, or 'earliest', 'latest', 'new'"
    )


def timestamp_ns(moment: datetime) -> int:
    """Nanoseconds since 1970 of a datetime; one without a time zone is UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    delta = aware - _EPOCH
    return ((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds) * _NS_PER_US


def parse_start(text: str, now: datetime | None = None) -> Start:
    """From a command line: a word, an offset, an ISO 8601 time, or one from ``now`` (-10m) if that is given; else ConfigError."""
    if text in _WORDS:
        return _WORDS[text]
    if _is_offset(text):
        return int(text)
    moment = _moment(text, now)
    if moment is None:
        raise ConfigError(f"start {shown(text)}: use earliest, latest, new, an offset, {_TIMES}")
    return moment


def parse_until(text: str | None, now: datetime | None = None) -> Until:
    """From a command line: ``end``, an offset, a time as of ``parse_start``, or nothing; ConfigError otherwise."""
    if text is None:
        return None
    if text == "end":
        return "end"
    if _is_offset(text):
        return int(text)
    moment = _moment(text, now)
    if moment is None:
        raise ConfigError(f"until {shown(text)}: use end, an offset (the last one wanted), {_TIMES}")
    return moment


_TIMES = "a time as 2026-01-31T12:00:00, or one from now as -10m (ms, s, m, h, d)"


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _moment(text: str, now: datetime | None) -> datetime | None:
    relative = _RELATIVE.fullmatch(text)
    try:
        if relative is None or now is None:
            return datetime.fromisoformat(text)
        seconds = float(relative[2]) * _UNITS_S[relative[3]]
        return now + timedelta(seconds=-seconds if relative[1] == "-" else seconds)
    except (ValueError, OverflowError):
        return None


def check_partition(partition: int) -> None:
    """Raise ConfigError where it is none."""
    if partition < 0:
        raise ConfigError(f"partition {partition}: partitions are numbered from 0")
