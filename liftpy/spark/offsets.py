"""Offsets in the options of users and in checkpoints, as JSON. Ends are exclusive. Pure.

Two documents have the shape ``{"<stream>": {"<partition>": offset}}``, as in Spark's Kafka source:

- startingOffsets or endingOffsets of a user. -2 means earliest and -1 latest.
- The offsets in the checkpoint of a streaming query. Each stream also has its ``uid``, so that a stream that was
  deleted and created again is rejected [R9]. ``epochs`` has the LeaderEpoch of the record before the offset of each
  partition, so that a loss by an unclean election is detected [R6].

Spark compares checkpoint offsets as strings. So keys are sorted, and equal positions always have equal text. This is
possible because the LeaderEpoch of a committed record never changes.

The end of micro-batch 0 also has ``began``, the first offset that the micro-batch reads of each partition. Spark does not
store the start of a query. It requests the start again at each restart, when "latest" would be another offset [R10].

The end of a later micro-batch has ``added``, the first offset of each partition of a stream that no earlier micro-batch
has read. Retention may move the log start before the micro-batch is read, or repeated. The loss is then detected [R5].

The offset in a checkpoint is the next one to read (an exclusive end). The inclusive high watermark of the log never
appears in a checkpoint.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from liftpy.core.base.ids import check_name, quote
from liftpy.core.base.strict_json import load_json
from liftpy.errors import ConfigError, NotFoundError

EARLIEST = -2
LATEST = -1
_UID = "uid"
_EPOCHS = "epochs"
_BEGAN = "began"
_ADDED = "added"
OTHERS = "others"
"""Key of startingOffsets: -2 if the partitions of the stream that it does not name begin at their first record."""
_RELATIVE_RECORDS = re.compile(r"-([1-9]\d{0,17})")
_RELATIVE_TIME = re.compile(r"-(\d{1,9})(ms|s|m|h|d)")
_UNITS_NS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}
_NS_PER_MS = 1_000_000
_LAST_MS = 1 << 43
_BEYOND_OFFSETS = 1 << 63
_MAX_DIGITS = 10

T = TypeVar("T")
Bounds = dict[tuple[str, int], int]
"""(stream, partition) -> offset."""


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Start or end of a query, as the user gave it. Exactly one of the forms is set.

    Attributes:
        word: ``earliest`` or ``latest``, for all partitions.
        offsets: ((stream, partition), offset) of each partition. -2 is earliest, -1 is latest.
        uids: (stream, uid) of the streams that the user names with a uid.
        timestamp_ns: Time for all partitions, in ns since 1970.
        times: ((stream, partition), ns since 1970) of each partition.
        must_match: True if a partition without a record at or after the time is an error.
        back_ns: Time before now for all partitions, in ns.
        back_records: Number of records before the end of each partition.
        epochs: ((stream, partition), LeaderEpoch) of the record before an offset.
        open_streams: Streams whose other partitions, which ``offsets`` does not name, begin at their first record.
    """

    word: str = ""
    offsets: tuple[tuple[tuple[str, int], int], ...] = ()
    uids: tuple[tuple[str, str], ...] = ()
    timestamp_ns: int | None = None
    times: tuple[tuple[tuple[str, int], int], ...] = ()
    must_match: bool = False
    back_ns: int = 0
    back_records: int = 0
    epochs: tuple[tuple[tuple[str, int], int], ...] = ()
    open_streams: tuple[str, ...] = ()

    @property
    def known(self) -> StreamOffsets | None:
        """Positions whose records were committed once. None: the user named no epochs."""
        return StreamOffsets(dict(self.offsets), dict(self.uids), dict(self.epochs)) if self.epochs else None

    @property
    def timed(self) -> bool:
        """True if leaders must convert a time into an offset."""
        return self.timestamp_ns is not None or bool(self.times)

    @property
    def moving(self) -> bool:
        """True if the position depends on the current end of the log. A start after a fixed end then makes an empty range."""
        return self.timed or bool(self.back_records)

    def time_of(self, key: tuple[str, int]) -> int | None:
        """Return the requested time of a partition, in ns since 1970. None: the user set no time."""
        return self.timestamp_ns if not self.times else dict(self.times).get(key)

    def as_of(self, now_ns: int) -> OffsetSpec:
        """Return a copy whose relative time (``back_ns``) is replaced by a fixed time, relative to ``now_ns``.

        The copy means the same records whenever it is used.
        """
        return replace(self, timestamp_ns=max(0, now_ns - self.back_ns), back_ns=0) if self.back_ns else self


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """Position of a query in a checkpoint.

    Attributes:
        next_offsets: Next offset to read, by (stream, partition).
        uids: Uid of each stream, by name.
        epochs: LeaderEpoch of the record before the offset, by (stream, partition).
        began: First offset of micro-batch 0, by (stream, partition). Only the end of micro-batch 0 has it.
        added: First offset of partitions that only the end of a later micro-batch has, by (stream, partition). Added partitions
            of a stream that was read before begin at offset 0, and are missing here.
    """

    next_offsets: Bounds
    uids: dict[str, str]
    epochs: Bounds = field(default_factory=dict)
    began: Bounds = field(default_factory=dict)
    added: Bounds = field(default_factory=dict)

    @property
    def lasts(self) -> dict[tuple[str, int], tuple[int, int]]:
        """(offset, LeaderEpoch) of the last record that was read of each partition. Partitions without a known epoch are missing."""
        known = ((key, offset, self.epochs.get(key, 0)) for key, offset in self.next_offsets.items())
        return {key: (offset - 1, epoch) for key, offset, epoch in known if epoch and offset > 0}

    def to_json(self) -> dict[str, Any]:
        """Return the position as the dict that Spark stores in the checkpoint. Equal positions give equal text."""
        document: dict[str, dict[str, Any]] = {stream: {_UID: self.uids[stream]} for stream in sorted(self.uids)}
        for (stream, partition), offset in self.next_offsets.items():
            document[stream][str(partition)] = offset
        for (stream, partition), epoch in sorted(self.epochs.items()):
            if epoch:
                document[stream].setdefault(_EPOCHS, {})[str(partition)] = epoch
        for name, firsts in ((_BEGAN, self.began), (_ADDED, self.added)):
            for (stream, partition), offset in sorted(firsts.items()):
                document[stream].setdefault(name, {})[str(partition)] = offset
        return {stream: dict(sorted(entries.items())) for stream, entries in document.items()}

    @classmethod
    def from_json(cls, document: Mapping[str, object]) -> StreamOffsets:
        """Decode ``document``, the dict that a checkpoint contains. Raise ConfigError if it is invalid."""
        decoded = _decode(document, "the checkpoint's offset")
        if lacking := sorted({stream for stream, _ in decoded.next_offsets} - set(decoded.uids)):
            raise ConfigError(
                f"The offset of the checkpoint has no stream uid for {', '.join(lacking)}. Another source wrote it. "
                "Use a new checkpoint."
            )
        return decoded


def parse_spec(text: str, option: str, *, words: tuple[str, ...], specials: tuple[int, ...]) -> OffsetSpec:
    """Parse ``text``, the value of an option for the start or the end of a query.

    The offset of a checkpoint is valid, too. Its start offsets of a micro-batch are ignored.

    ``option``: name of the option. ``words``: allowed words. ``specials``: allowed special offsets (-2 is earliest, -1 is latest).
    Raises ConfigError that names the option and the allowed values.
    """
    if text.lower() in words:
        return OffsetSpec(word=text.lower())
    if text.strip() in (name for name, special in (("-2", EARLIEST), ("-1", LATEST)) if special in specials):
        return OffsetSpec(word="earliest" if text.strip() == "-2" else "latest")
    if spec := relative(text.strip()):
        return spec
    allowed = (
        f"{', '.join(words)}, -10m (ten minutes ago), -1000 (1000 records before the end of each partition) or JSON such as "
    )
    allowed += f'{{"orders": {{"0": 23, "1": {specials[0]}}}}}'
    try:
        document = load_json(text)
    except ValueError:
        raise ConfigError(f"Invalid {option} = {text!r}. Use {allowed}.") from None
    if not isinstance(document, dict):
        raise ConfigError(f"Invalid {option} = {text!r}. Use {allowed}.")
    open_streams = _open_streams(document) if EARLIEST in specials else []
    for stream in open_streams:
        document[stream] = {key: value for key, value in document[stream].items() if key != OTHERS}
    named = _decode(document, option)
    offsets, uids, epochs = named.next_offsets, named.uids, named.epochs
    if not offsets:
        raise ConfigError(f"Invalid {option} = {text!r}: it names no partition. Use {allowed}.")
    for (stream, partition), offset in offsets.items():
        if offset < 0 and offset not in specials:
            raise ConfigError(f"Invalid {option}: {offset} for {stream}/{partition}. Use {allowed}.")
    if lacking := sorted(epochs.keys() - offsets.keys()):
        raise ConfigError(
            f"Invalid {option}: it has epochs of {lacking[0][0]}/{lacking[0][1]} without an offset. Add the offset."
        )
    return OffsetSpec(
        offsets=tuple(sorted(offsets.items())),
        uids=tuple(sorted(uids.items())),
        epochs=tuple(sorted(epochs.items())),
        open_streams=tuple(open_streams),
    )


def _open_streams(document: Mapping[str, object]) -> list[str]:
    """Return the streams for which ``document``, a JSON object of a user, has the key ``others``."""
    with_others = (
        stream for stream, entries in document.items() if isinstance(entries, dict) and entries.get(OTHERS) == EARLIEST
    )
    return sorted(with_others)


def relative(text: str) -> OffsetSpec | None:
    """Parse a relative start, ``-10m`` or ``-1000``. None: ``text`` has another form.

    -1 and -2 mean the end and the beginning, as in Spark's Kafka source. For these texts, the result is also None.
    """
    if (records := _RELATIVE_RECORDS.fullmatch(text)) and int(text) not in (EARLIEST, LATEST):
        return OffsetSpec(back_records=int(records[1]))
    if (time := _RELATIVE_TIME.fullmatch(text)) and int(time[1]):
        return OffsetSpec(back_ns=int(time[1]) * _UNITS_NS[time[2]])
    return None


def parse_times(text: str, option: str, *, must_match: bool) -> OffsetSpec:
    """Parse JSON that gives a time for each partition, in milliseconds since 1970.

    ``option``: name of the option, for the error text. ``must_match``: True if a partition without a record at or after its time is an
    error. Raises ConfigError.
    """
    problem = f'Invalid {option} = {quote(text)}. Use JSON such as {{"orders": {{"0": 1767225600000}}}}, in ms since 1970.'
    try:
        document = load_json(text)
    except ValueError:
        raise ConfigError(problem) from None
    if not isinstance(document, dict) or not document:
        raise ConfigError(problem)
    named = _decode(document, option)
    times = named.next_offsets
    if not times or not all(0 <= moment <= _LAST_MS for moment in times.values()):
        raise ConfigError(problem)
    in_ns = sorted((key, moment * _NS_PER_MS) for key, moment in times.items())
    return OffsetSpec(times=tuple(in_ns), uids=tuple(sorted(named.uids.items())), must_match=must_match)


def _decode(document: Mapping[str, object], what: str) -> StreamOffsets:
    """Return the offsets, uids and LeaderEpochs in a JSON object that a user or a checkpoint contains.

    ``what``: name of the option, for the error text. Raises ConfigError if the object is not valid.
    """
    decoded = StreamOffsets({}, {})
    firsts = {_BEGAN: decoded.began, _ADDED: decoded.added}
    for stream, entries in document.items():
        check_name(stream, f"{what}: stream")
        if not isinstance(entries, Mapping):
            raise ConfigError(f'Invalid {what}: {stream!r} must map partitions to offsets, as in {{"orders": {{"0": 100}}}}.')
        for key, value in entries.items():
            if key == _UID and isinstance(value, str):
                decoded.uids[stream] = value
            elif key == _EPOCHS and isinstance(value, Mapping) and all(_is_epoch(*entry) for entry in value.items()):
                decoded.epochs.update({(stream, int(partition)): epoch for partition, epoch in value.items()})
            elif key in firsts and isinstance(value, Mapping) and all(_is_offset(*entry) for entry in value.items()):
                firsts[key].update({(stream, int(partition)): offset for partition, offset in value.items()})
            elif _is_partition(key) and type(value) is int and abs(value) < _BEYOND_OFFSETS:
                decoded.next_offsets[stream, int(key)] = value
            else:
                text = f"{what}: {quote(str(key))}: {quote(_brief(value))} of stream {stream} is not a partition number and its offset"
                raise ConfigError(text)
    return decoded


def _is_epoch(partition: object, value: object) -> bool:
    return _is_partition(partition) and type(value) is int and 0 < value < _BEYOND_OFFSETS


def _is_offset(partition: object, value: object) -> bool:
    return _is_partition(partition) and type(value) is int and 0 <= value < _BEYOND_OFFSETS


def _is_partition(key: object) -> bool:
    return isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= _MAX_DIGITS and key == str(int(key))


def _brief(value: object) -> str:
    return "a number above all offsets" if type(value) is int and abs(value) >= _BEYOND_OFFSETS else str(value)


def check_uids(known: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise NotFoundError if a stream was deleted and created again [R9].

    ``known``: earlier uid of each stream. ``now``: current uid of each stream.
    """
    for stream in sorted(find_recreated_streams(known, now)):
        raise NotFoundError(
            f"Stream {stream} was deleted and created again: the offsets belong to uid {known[stream]}, the uid "
            f"is now {now[stream]}. Use a new checkpoint and a new output. To read the new stream from its "
            "beginning, set onRecreated=earliest."
        )


def check_spec_uids(specs: Iterable[OffsetSpec], now: Mapping[str, str]) -> None:
    """Raise NotFoundError if a user named an offset of a stream that was deleted and created again [R9].

    ``specs``: starts and ends of a query. ``now``: current uid of each stream.
    """
    known = {stream: uid for spec in specs for stream, uid in spec.uids}
    for stream in sorted(find_recreated_streams(known, now)):
        raise NotFoundError(
            f"Stream {stream} was deleted and created again: the requested offsets belong to uid {known[stream]}, the uid is now "
            f"{now[stream]}. Use offsets of the current stream, or earliest."
        )


def known_positions(specs: Iterable[OffsetSpec]) -> list[StreamOffsets]:
    """Return the positions in ``specs`` for which the user gave LeaderEpochs of records that were read before.

    Leaders check whether these records still exist [R6].
    """
    return [one.known for one in specs if one.known is not None]


def find_recreated_streams(known: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """Return the names of the streams that were deleted and created again.

    ``known``: earlier uid of each stream. ``now``: current uid of each stream.
    """
    return {stream for stream, uid in known.items() if stream in now and now[stream] != uid}


def without(offsets: Mapping[tuple[str, int], int], streams: set[str]) -> Bounds:
    """Return ``offsets`` without the partitions of the named ``streams``."""
    return {key: offset for key, offset in offsets.items() if key[0] not in streams}


def raise_to_start(end: Bounds, start: Mapping[tuple[str, int], int]) -> Bounds:
    """Return the end ``end`` of a micro-batch, raised to ``start`` where it is lower, with all partitions of ``start``.

    Spark does not check that offsets only grow.
    """
    clamped = {key: max(offset, start.get(key, offset)) for key, offset in end.items()}
    return {**start, **clamped}


def share_out(limit_records: int, start: Mapping[tuple[str, int], int], end: Bounds) -> Bounds:
    """Return the ends of a micro-batch that has at most ``limit_records`` records, from ``start`` (inclusive) on.

    ``end``: ends without the limit, exclusive. Each partition gets a share in proportion to its unread records, at least one record.
    Shares are rounded down, and the rest goes to the partitions with the largest remainders, one record each. If there are more
    partitions with unread records than the limit, they take turns.
    """
    waiting = {key: count for key, offset in end.items() if (count := offset - start.get(key, offset)) > 0}
    total = sum(waiting.values())
    if total <= limit_records:
        return dict(end)
    limit_records = max(1, limit_records)
    if len(waiting) > limit_records:  # each micro-batch moves the turn by the number of its records
        turns = in_turn(sorted(waiting), sum(start[key] for key in waiting))
        share = dict.fromkeys(turns[:limit_records], 1)
    else:
        share = _proportional_shares(limit_records, waiting, total)
    return {key: start.get(key, offset) + share.get(key, 0) for key, offset in end.items()}


def _proportional_shares(limit_records: int, waiting: Bounds, total: int) -> Bounds:
    """Return the share of each partition in ``limit_records``, which is at least the number of partitions.

    ``waiting``: number of unread records of each partition, at least 1. ``total``: their sum.
    """
    share = {key: limit_records * count // total for key, count in waiting.items()}
    by_remainder = sorted(waiting, key=lambda key: (-(limit_records * waiting[key] % total), key))
    for key in by_remainder[: limit_records - sum(share.values())]:
        share[key] += 1
    largest = [(-count, key) for key, count in share.items()]
    heapq.heapify(largest)
    for key in [key for key, count in share.items() if not count]:
        count, giver = largest[0]
        heapq.heapreplace(largest, (count + 1, giver))
        share[giver], share[key] = -count - 1, 1
    return share


def in_turn(keys: Sequence[T], turn: int) -> list[T]:
    """Return ``keys`` from the one at index ``turn`` on, modulo their number, and then those before it."""
    first = turn % len(keys) if keys else 0
    return [*keys[first:], *keys[:first]]
