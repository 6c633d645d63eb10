"""Where a reader starts and stops: words, offsets and times turned into offsets. Pure.

- ``earliest``: the oldest offset that is kept (log start).
- ``latest``: the last committed record, to see where the stream stands; on an empty stream the first to come.
- ``new``: only what is committed after this moment (HW + 1).
- an offset: that record, inclusive. Outside log start .. HW + 1 is an error, never a silent reset.
- a time: the first record that the leader stamped at or after it. One without a time zone is UTC; ``-10m``, or a timedelta, is so long
  before now.
- ``-1000``: so many offsets before HW + 1, or the log start.
- a Position: where a Consumer was, on the very stream that it was on.

Backwards the same say where to begin going down, from that record on (a time: from the last record before it on), and ``until``
where to end: an offset inclusive, a time at the first record stamped at or after it, ``end`` or None at the log start.

``until``: ``end`` is the HW as of now, frozen; an offset is the last one wanted, inclusive, waited for if it is still to come; a time
ends before the first record that the leader stamped at or after it, and is waited for if it is still to come; None follows for ever.
"""

from __future__ import annotations

import operator
import re
from datetime import UTC, datetime, timedelta
from typing import Literal

from liftpy.dataclass import dataclass
from liftpy.errors import ConfigError, OffsetOutOfRangeError
from liftpy.ids import shown


@dataclass(frozen=True, slots=True)
class Position:
    """Behind a record: what ``Consumer.position`` gives, and ``start`` takes. ``str`` of it is for storing, ``parse`` reads that.

    ``offset``: of the next record, inclusive (backwards: of the last one that was handed on). ``leader_epoch``: of the last one;
    0: none. ``uid``: of the stream; a stream made again under its name is another.
    """

    uid: str
    offset: int
    leader_epoch: int = 0

    def __str__(self) -> str:
        return f"{_POSITION}.{self.uid}.{self.offset}.{self.leader_epoch}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """From its text; ConfigError if it is none."""
        found = _POSITION_TEXT.fullmatch(text)
        if found is None:
            raise ConfigError(f"{shown(text)} is no position: give the text of one, str(consumer.position())")
        return cls(found[1], int(found[2]), int(found[3]))


@dataclass(frozen=True, slots=True)
class Before:
    """``records`` offsets before the end."""

    records: int

    def __str__(self) -> str:
        return f"-{self.records}"


Start = Literal["earliest", "latest", "new"] | int | datetime | timedelta | Position | Before | str
"""Where to begin; a text is what ``parse_start`` reads."""
Until = Literal["end"] | int | datetime | None
_NS_PER_US = 1000
_MAX_DIGITS = 18
"""Of an offset."""
_WORDS: dict[str, Start] = {"earliest": "earliest", "latest": "latest", "new": "new"}
_POSITION = "p1"
_POSITION_TEXT = re.compile(rf"{_POSITION}[.]([A-Za-z0-9_-]{{1,64}})[.](\d{{1,18}})[.](\d{{1,18}})")
_BEFORE = re.compile(r"-([1-9]\d{0,17})")
_RELATIVE = re.compile(r"([+-])(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)")
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a partition holds, as one replica answered it.

    ``log_start_offset``: oldest offset kept, inclusive. ``high_watermark``: last committed offset, inclusive, -1 when none.
    ``leader``: node id, empty when there is none. ``node``: who answered. ``uid``: identity of the stream behind its name.
    ``end_epoch``: LeaderEpoch of the last committed record, 0: not known (an older node, or it was dropped).
    """

    uid: str
    node: str
    leader: str
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    compacted: bool = False
    end_epoch: int = 0

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
    if isinstance(start, Before):
        return max(bounds.end_offset - start.records, bounds.log_start_offset)
    if isinstance(start, Position):
        start = start.offset
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


def timestamp_ns(moment: datetime | int) -> int:
    """Nanoseconds since 1970 of a datetime, or of themselves; one without a time zone is UTC."""
    if isinstance(moment, int):
        return moment
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    delta = aware - _EPOCH
    return ((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds) * _NS_PER_US


def resolved(start: Start, now: datetime) -> Start:
    """``start`` with texts read and times from ``now`` made times. Raises ConfigError; numpy's integers are as good as Python's."""
    if isinstance(start, str) and start not in _WORDS:
        return parse_start(start, now)
    if isinstance(start, timedelta):
        return now - abs(start)
    if not isinstance(start, str | int | datetime | Position | Before):
        try:
            return operator.index(start)
        except TypeError:
            raise ConfigError(f"start {start!r}: use 'earliest', 'latest', 'new', an offset, {_TIMES}, or a Position") from None
    return start


def parse_start(text: str, now: datetime | None = None) -> Start:
    """From a command line: a word, an offset, ``-1000``, a position's text, an ISO 8601 time, or one from ``now`` (-10m) if that is
    given; else ConfigError."""
    if text in _WORDS:
        return _WORDS[text]
    if _is_offset(text):
        return int(text)
    if before := _BEFORE.fullmatch(text):
        return Before(int(before[1]))
    if text.startswith(f"{_POSITION}."):
        return Position.parse(text)
    moment = _moment(text, now)
    if moment is None:
        raise ConfigError(
            f"start {shown(text)}: use earliest, latest, new, an offset, -1000 (so many before the end), {_TIMES}"
        )
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
