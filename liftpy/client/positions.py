"""Start and end of a read: words, offsets, times and positions.

``Client.consume`` lists the values of ``start`` and ``until``. ``latest`` on an empty stream is the first record that
will be stored. An offset outside log start .. high watermark + 1 is an error, never a silent reset. With ``backwards`` a
time as ``start`` means the last record before it, and ``until="end"`` or None means the log start.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, SupportsIndex

from liftpy.client.arguments import MAX_INT64, check_count, check_offset
from liftpy.core.base.ids import NO_OFFSET, quote
from liftpy.errors import ConfigError, OffsetOutOfRangeError


@dataclass(frozen=True, slots=True)
class Position:
    """A position in one partition, directly after a record.

    ``Consumer.position()`` returns it, and ``start=`` accepts it. Store it as ``str(position)``. ``Position.parse``
    reads it back.

    Args:
        uid: Uid of the stream. A stream that is deleted and created again has another uid.
        offset: Offset of the next record, inclusive. With ``backwards``: of the last record that was returned.
        leader_epoch: LeaderEpoch of the last record that was returned. Default 0: none.

    Raises:
        ConfigError: A value is out of range.

    Example:
        text = str(await consumer.position())
        consumer = client.consume("orders", start=Position.parse(text))
    """

    uid: str
    offset: int
    leader_epoch: int = 0

    def __post_init__(self) -> None:
        check_offset(self.offset)
        check_count("leader_epoch", self.leader_epoch)

    def __str__(self) -> str:
        return f"{_POSITION}.{self.uid}.{self.offset}.{self.leader_epoch}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read a position from its text.

        Args:
            text: The text, as ``str(position)`` made it.

        Raises:
            ConfigError: The text is not a position.
        """
        match = _POSITION_TEXT.fullmatch(text)
        if match is None:
            raise ConfigError(f"Invalid position {quote(text)}. Give the text of a position, str(consumer.position()).")
        return cls(match[1], int(match[2]), int(match[3]))


@dataclass(frozen=True, slots=True)
class FromEnd:
    """A start that is a number of offsets (``records``) before the end."""

    records: int

    def __str__(self) -> str:
        return f"-{self.records}"


Start = Literal["earliest", "latest", "new"] | int | datetime | timedelta | Position | FromEnd | str
"""Where to start reading. ``parse_start`` reads it from a text."""
Until = Literal["end"] | int | datetime | None
_NS_PER_US = 1000
_MAX_DIGITS = 18
"""Maximum number of digits of an offset."""
_WORDS: dict[str, Start] = {"earliest": "earliest", "latest": "latest", "new": "new"}
_POSITION = "p1"
_POSITION_TEXT = re.compile(rf"{_POSITION}[.]([A-Za-z0-9_-]{{1,64}})[.](\d{{1,18}})[.](\d{{1,18}})")
_BEFORE = re.compile(r"-([1-9]\d{0,17})")
_RELATIVE = re.compile(r"([+-])(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)")
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_RANGE = "Use a time from 1677-09-21T00:12:43 to 2262-04-11T23:47:16 UTC."


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of offsets of a partition, as one replica answered.

    Attributes:
        uid: Uid of the stream.
        node: Node that answered.
        leader: Id of the leader, '' if there is none.
        leader_epoch: LeaderEpoch of the leader.
        log_start_offset: Oldest offset that is kept, inclusive.
        high_watermark: Last committed offset, inclusive. -1: none.
        compacted: True if the stream is compacted.
        end_epoch: LeaderEpoch of the last committed record. 0: not known.
        deletes_end: Exclusive offset below which the replica may have deleted tombstones.
    """

    uid: str
    node: str
    leader: str
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    compacted: bool = False
    end_epoch: int = 0
    deletes_end: int = 0

    @property
    def end_offset(self) -> int:
        """Exclusive end of the readable records: the offset of the next record to be committed."""
        return max(self.high_watermark + 1, self.log_start_offset)


def start_offset(start: Start, bounds: Bounds, place: str) -> int:
    """Return the first offset to read, inclusive. Raise OffsetOutOfRangeError if it is outside ``bounds``.

    ``start`` must not be a time, because only a replica can turn a time into an offset. ``place``: the partition, for the error text.
    """
    if start == "earliest":
        return bounds.log_start_offset
    if start == "latest":
        return max(bounds.high_watermark, bounds.log_start_offset)
    if start == "new":
        return bounds.end_offset
    if isinstance(start, FromEnd):
        return max(bounds.end_offset - start.records, bounds.log_start_offset)
    if isinstance(start, Position):
        start = start.offset
    if not isinstance(start, int):
        raise ConfigError(f"Invalid start {start!r}. Use 'earliest', 'latest', 'new', an offset or a datetime.")
    if not bounds.log_start_offset <= start <= bounds.end_offset:
        raise out_of_range(place, start, bounds.log_start_offset, bounds.high_watermark)
    return start


def end_offset(until: Until, bounds: Bounds) -> int | None:
    """Return the offset at which a read ends, exclusive. ``until``: end that the user gave. ``bounds``: bounds of the partition.

    None: the read never ends, or the end is a time that a replica must turn into an offset.
    """
    if until is None or isinstance(until, datetime):
        return None
    if until == "end":
        return bounds.end_offset
    if not isinstance(until, int) or until < -1:
        raise ConfigError(f"Invalid until {until!r}. Use 'end', the last offset to read, a datetime, or None to read forever.")
    return until + 1


def out_of_range(place: str, offset: int, log_start_offset: int, high_watermark: int) -> OffsetOutOfRangeError:
    """Return an OffsetOutOfRangeError for ``offset`` of the partition ``place``. Its text names the valid range."""
    return OffsetOutOfRangeError(
        f"Offset {offset} of {place} is outside {log_start_offset}..{high_watermark + 1}. The log starts at "
        f"{log_start_offset} and is committed up to {high_watermark}. Choose an offset in this range, or "
        "'earliest', 'latest' or 'new'."
    )


def timestamp_ns(moment: datetime | SupportsIndex, name: str = "time") -> int:
    """Return a datetime (UTC without a time zone), or a number of nanoseconds, as nanoseconds since 1970.

    Raises ConfigError if it does not fit into 64 bits. ``name``: name of the argument in the error text.
    """
    if isinstance(moment, datetime):
        try:
            delta = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
        except OverflowError:  # year 1 or 9999, and a time zone
            raise ConfigError(f"Invalid {name} {quote(str(moment))}. {_TIME_RANGE}") from None
        time_ns = ((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds) * _NS_PER_US
    elif isinstance(moment, bool) or not hasattr(moment, "__index__"):
        raise ConfigError(f"Invalid {name} {quote(repr(moment))}. Use a datetime, or nanoseconds since 1970 as an int.")
    else:
        time_ns = operator.index(moment)
    if not -MAX_INT64 - 1 <= time_ns <= MAX_INT64:
        raise ConfigError(f"Invalid {name} {quote(str(moment))}. {_TIME_RANGE}")
    return time_ns


def resolve_start(start: Start, now: datetime) -> Start:
    """Return ``start`` with texts parsed, and with durations turned into times before ``now``.

    A negative number is a number of offsets before the end. NumPy integers are accepted. Raises ConfigError for an invalid start.
    """
    if isinstance(start, str):
        return start if start in _WORDS else parse_start(start, now)
    if isinstance(start, timedelta):
        try:
            start = now - abs(start)
        except OverflowError:
            raise ConfigError(f"Invalid start {start!r}. {_TIME_RANGE}") from None
    if isinstance(start, datetime):
        timestamp_ns(start, "start")
        return start
    if isinstance(start, Position | FromEnd):
        return start
    if isinstance(start, bool) or not hasattr(start, "__index__"):
        raise ConfigError(
            f"Invalid start {quote(repr(start))}. Use 'earliest', 'latest', 'new', an offset, -1000 (1000 offsets "
            f"before the end), {_TIMES}, or a Position."
        )
    number = operator.index(start)
    return check_offset(number, "start") if number >= 0 else FromEnd(check_offset(-number, "start -"))


def checked_until(until: Until) -> Until:
    """Return ``until``. Raise ConfigError if its type or value is not allowed."""
    if until is None or until == "end":
        return until
    if isinstance(until, datetime):
        timestamp_ns(until, "until")
        return until
    if isinstance(until, bool | str) or not hasattr(until, "__index__"):
        raise ConfigError(
            f"Invalid until {quote(repr(until))}. Use 'end', the last offset to read, a datetime, or None to read forever."
        )
    number = operator.index(until)
    return number if number == NO_OFFSET else check_offset(number, "until")


def parse_start(text: str, now: datetime | None = None, name: str = "start") -> Start:
    """Read the start of a read from a text, as the command line does.

    Args:
        text: ``earliest``, ``latest``, ``new``, an offset, ``-1000``, the text of a Position, an ISO 8601 time, or
            ``-10m``.
        now: Time that ``-10m`` is relative to. Default None: such texts are errors.
        name: Name of the argument in the error text. Default ``start``.

    Returns:
        A value for ``start=``.

    Raises:
        ConfigError: The text is none of these, or the time is out of range.

    Example:
        start = parse_start("-1000")
    """
    if text in _WORDS:
        return _WORDS[text]
    if _is_offset(text):
        return int(text)
    if before := _BEFORE.fullmatch(text):
        return FromEnd(int(before[1]))
    if text.startswith(f"{_POSITION}."):
        return Position.parse(text)
    moment = _moment(text, now, name)
    if moment is None:
        raise ConfigError(
            f"Invalid {name} {quote(text)}. Use earliest, latest, new, an offset, -1000 (1000 offsets before the "
            f"end), {_TIMES}."
        )
    return moment


def parse_until(text: str | None, now: datetime | None = None, name: str = "until") -> Until:
    """Read the end of a read from a text, as the command line does.

    Args:
        text: ``end``, an offset, an ISO 8601 time, ``-10m``, or None for no end.
        now: Time that ``-10m`` is relative to. Default None: such texts are errors.
        name: Name of the argument in the error text. Default ``until``.

    Returns:
        A value for ``until=``.

    Raises:
        ConfigError: The text is none of these, or the time is out of range.

    Example:
        until = parse_until("end")
    """
    if text is None:
        return None
    if text == "end":
        return "end"
    if _is_offset(text):
        return int(text)
    moment = _moment(text, now, name)
    if moment is None:
        raise ConfigError(f"Invalid {name} {quote(text)}. Use end, the last offset to read, {_TIMES}.")
    return moment


_TIMES = "a time such as 2026-01-31T12:00:00, or a relative time such as -10m (ms, s, m, h, d)"


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _moment(text: str, now: datetime | None, name: str) -> datetime | None:
    """Return the time in ``text``. None: the text is not a time. Raise ConfigError if the time is out of range."""
    relative = _RELATIVE.fullmatch(text) if now is not None else None
    try:
        if relative is None or now is None:
            moment = datetime.fromisoformat(text)
        else:
            seconds = float(relative[2]) * _UNITS_S[relative[3]]
            moment = now + timedelta(seconds=-seconds if relative[1] == "-" else seconds)
    except ValueError:
        return None
    except OverflowError:
        raise ConfigError(f"Invalid {name} {quote(text)}. {_TIME_RANGE}") from None
    try:
        timestamp_ns(moment, name)
    except ConfigError:
        raise ConfigError(f"Invalid {name} {quote(text)}. {_TIME_RANGE}") from None
    return moment
