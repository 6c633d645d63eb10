"""Statistics of a range of records: counts, sizes, gaps, distinct keys, by time bucket. Pure.

Goal: one pass, bounded memory, the same result however a range is cut. Buckets of time are as wide as they have to be that MAX_BUCKETS
hold all: each width is a multiple of the one before it, so that narrow buckets become wide ones by adding them up. Distinct keys are
estimated by a sketch (HyperLogLog, 4,096 registers: within 1.6 % mostly, exact or nearly so below some hundreds), sizes counted by
powers of two.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from liftpy.client.batch_view import BatchSlice
from liftpy.core.wire.batch import ByteArray
from liftpy.core.wire.batch_columns import BytesColumn, DictionaryColumn
from liftpy.core.wire.partitioner import hashes_of_column
from liftpy.errors import ConfigError

_MS, _S = 10**6, 10**9
WIDTHS_NS = (
    *(_MS, 10 * _MS, 100 * _MS, _S, 5 * _S, 15 * _S, 60 * _S, 300 * _S, 900 * _S, 3600 * _S, 21_600 * _S, 86_400 * _S),
    *(7 * 86_400 * _S, 28 * 86_400 * _S, 364 * 86_400 * _S, 3640 * 86_400 * _S),
)
"""Widths of buckets, each a multiple of the one before it; of the last one, 59 hold all the time that there is."""
MAX_BUCKETS = 60
MAX_FIXED_BUCKETS = 2000
"""Maximum number of buckets of a given width."""
MAX_SUBJECTS = 1000
"""Subjects that are counted by name; those beyond it are one."""
OTHERS = "(others)"
_REGISTERS = 4096
_INDEX_BITS = 12
_RANK_BITS = 32 - _INDEX_BITS
_ALPHA = 0.7213 / (1 + 1.079 / _REGISTERS)
_SIZES = 32


def _registers() -> NDArray[np.uint8]:
    return np.zeros(_REGISTERS, dtype=np.uint8)


@dataclass(slots=True)
class Sketch:
    """Estimator of the number of distinct entries. ``registers``: uint8[4096]."""

    registers: NDArray[np.uint8] = field(default_factory=_registers)

    def add(self, hashes: NDArray[np.uint32]) -> None:
        """uint32 hashes of entries."""
        index = (hashes >> np.uint32(_RANK_BITS)).astype(np.int64)
        rest = hashes & np.uint32((1 << _RANK_BITS) - 1)
        # frexp gives the exponent of the highest bit: the rank is the number of leading zeros of the rest, and one
        rank = (_RANK_BITS + 1 - np.frexp(rest.astype(np.float64))[1]).astype(np.uint8)
        np.maximum.at(self.registers, index, rank)

    def join(self, other: Sketch) -> None:
        """Add the entries of another sketch."""
        np.maximum(self.registers, other.registers, out=self.registers)

    @property
    def count(self) -> int:
        """Return the estimate."""
        zeros = int((self.registers == 0).sum())
        estimate = _ALPHA * _REGISTERS**2 / float(np.ldexp(1.0, -self.registers.astype(np.int64)).sum())
        if estimate <= 2.5 * _REGISTERS and zeros:
            estimate = _REGISTERS * math.log(_REGISTERS / zeros)
        elif estimate > 2**32 / 30:
            estimate = -(2**32) * math.log(max(1 - estimate / 2**32, 2**-32))
        return round(estimate)


@dataclass(slots=True)
class Bucket:
    """One time bucket.

    ``key_bytes``, ``value_bytes``: sizes of keys and values. ``stored_bytes``: size of their batches. ``tombstones``: records
    with a null value.
    """

    records: int = 0
    tombstones: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    stored_bytes: int = 0
    keys: Sketch = field(default_factory=Sketch)
    subjects: Sketch = field(default_factory=Sketch)

    def join(self, other: Bucket) -> None:
        """Add another one up."""
        self.records += other.records
        self.tombstones += other.tombstones
        self.key_bytes += other.key_bytes
        self.value_bytes += other.value_bytes
        self.stored_bytes += other.stored_bytes
        self.keys.join(other.keys)
        self.subjects.join(other.subjects)


@dataclass(slots=True, kw_only=True)
class Measures:
    """Of a range of one partition, taken in order: offsets ``start_offset`` (inclusive) to ``end_offset`` (exclusive).

    ``buckets``: number (time // ``width_ns``) -> Bucket; ``is_fixed``: they stay as wide. ``missing``: offsets without a record.
    ``first_ns``, ``last_ns``: stamps of the first and the last record. ``pause_ns``: the longest time between two records that follow
    on each other, ``pause_at`` the offset of the second. ``back_steps``: how often one is stamped before the one that it follows.
    ``sizes``: int64[32], how many values have 0, 1, 2-3, 4-7... bytes; ``largest``: of them. ``subjects``: records of each.
    """

    start_offset: int
    end_offset: int
    width_ns: int = WIDTHS_NS[0]
    is_fixed: bool = False
    buckets: dict[int, Bucket] = field(default_factory=dict)
    missing: int = 0
    largest: int = 0
    first_ns: int = 0
    last_ns: int = 0
    pause_ns: int = 0
    pause_at: int = -1
    back_steps: int = 0
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_SIZES, dtype=np.int64))
    subjects: Counter[str] = field(default_factory=Counter)

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(bucket.records for bucket in self.buckets.values())

    def add(self, piece: BatchSlice) -> None:
        """Add the next records."""
        stamps, count = piece.timestamps_ns(), piece.record_count
        self._note_times(stamps, piece.first_offset)
        columns, window = piece.batch.columns, slice(piece.first_index, piece.end_index)
        values = _lengths(columns.values)[window]
        self.sizes += np.bincount(_powers(values), minlength=_SIZES)
        self.largest = max(self.largest, int(values.max(initial=0)))
        absent = ~columns.values.valid()[window] if columns.values.validity is not None else np.zeros(count, dtype=np.bool_)
        keys = None if columns.keys is None else _part(columns.keys, window)
        entries = np.zeros(count, dtype=np.uint32)
        if columns.subjects is not None:
            index = columns.subjects.index[window]
            self.count_subjects(_counted(columns.subjects, index))
            entries = hashes_of_column(_whole(columns.subjects.entries))[index]
        stored = piece.batch.header.size_bytes * count // piece.batch.record_count
        numbers = stamps // self.width_ns
        for number in np.unique(numbers).tolist():
            within = numbers == number
            bucket = self.buckets.setdefault(number, Bucket())
            records = int(within.sum())
            bucket.records += records
            bucket.tombstones += int(absent[within].sum())
            bucket.value_bytes += int(values[within].sum())
            bucket.stored_bytes += stored * records // count
            if columns.subjects is not None:
                bucket.subjects.add(np.unique(entries[within]))
            if keys is not None:
                there = within if keys.valid is None else within & keys.valid
                bucket.key_bytes += int(keys.lengths[there].sum())
                bucket.keys.add(hashes_of_column(keys)[there])
        self.fit()

    def _note_times(self, stamps: NDArray[np.int64], offset: int) -> None:
        if self.last_ns or self.pause_at >= 0:
            stamps = np.concatenate(([self.last_ns], stamps))
            offset -= 1
        else:
            self.first_ns, self.pause_at = int(stamps[0]), offset
        steps = np.diff(stamps)
        if len(steps):
            longest = int(steps.argmax())
            if steps[longest] > self.pause_ns:
                self.pause_ns, self.pause_at = int(steps[longest]), offset + longest + 1
            self.back_steps += int((steps < 0).sum())
        self.last_ns = int(stamps[-1])

    def count_subjects(self, counts: Mapping[str, int]) -> None:
        """Count records by subject, for at most MAX_SUBJECTS subjects."""
        for name, count in counts.items():
            known = name in self.subjects or len(self.subjects) < MAX_SUBJECTS
            self.subjects[name if known else OTHERS] += count

    def join(self, later: Measures) -> None:
        """The range that follows on this one, taken apart from it."""
        self.missing += later.missing
        self.end_offset = later.end_offset
        if later.records:
            if self.records:
                step = later.first_ns - self.last_ns
                self.back_steps += step < 0
                if step > self.pause_ns:
                    self.pause_ns, self.pause_at = step, later.start_offset
            else:
                self.first_ns, self.pause_at = later.first_ns, later.pause_at
            if later.pause_ns > self.pause_ns:
                self.pause_ns, self.pause_at = later.pause_ns, later.pause_at
            self.back_steps += later.back_steps
            self.last_ns = later.last_ns
        self.largest = max(self.largest, later.largest)
        self.sizes = self.sizes + later.sizes
        self.count_subjects(later.subjects)
        self.widen(later.width_ns)
        later.widen(self.width_ns)
        for number, bucket in later.buckets.items():
            self.buckets.setdefault(number, Bucket()).join(bucket)
        self.fit()

    def widen(self, width_ns: int) -> None:
        """Buckets as wide as that, a multiple of their width; nothing happens where they are as wide."""
        if width_ns <= self.width_ns:
            return
        narrow, factor = self.buckets, width_ns // self.width_ns
        self.buckets, self.width_ns = {}, width_ns
        for number, bucket in narrow.items():
            self.buckets.setdefault(number // factor, Bucket()).join(bucket)

    def fit(self) -> None:
        """Widen until there are few enough of them. Raises ConfigError where the width was given."""
        while self.buckets and max(self.buckets) - min(self.buckets) >= (MAX_FIXED_BUCKETS if self.is_fixed else MAX_BUCKETS):
            if self.is_fixed:
                raise ConfigError(
                    f"The time range needs more than {MAX_FIXED_BUCKETS} buckets of {self.width_ns / _S:g} s. Use wider "
                    "buckets (--bucket) or a shorter range."
                )
            self.widen(WIDTHS_NS[WIDTHS_NS.index(self.width_ns) + 1])

    def finish(self) -> None:
        """Complete the range."""
        self.missing = self.end_offset - self.start_offset - self.records

    def size_below(self, share: float) -> int:
        """A size that ``share`` of the values have at most; a power of two less one, or the largest there is."""
        if not self.sizes.any():
            return 0
        power = int(np.searchsorted(np.cumsum(self.sizes), share * self.sizes.sum()))
        return min((1 << power) - 1, self.largest)


def _lengths(column: BytesColumn) -> NDArray[np.int64]:
    ends = column.ends.astype(np.int64)
    return ends - np.concatenate(([0], ends[:-1]))


def _counted(column: DictionaryColumn, index: NDArray[np.uint32]) -> dict[str, int]:
    """Return how many of the records ``index`` have each entry."""
    names = [(entry or b"").decode("utf-8", "replace") for entry in column.entries.to_list()]
    counts = np.bincount(index, minlength=len(names)).tolist()
    return {name: count for name, count in zip(names, counts, strict=True) if count and name}


def _powers(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[n]: 0 for 0, 1 for 1, 2 for 2 and 3, 3 for 4 to 7..."""
    return np.minimum(np.frexp(sizes.astype(np.float64))[1], _SIZES - 1).astype(np.int64)


def _whole(column: BytesColumn) -> ByteArray:
    offsets = np.concatenate(([0], column.ends)).astype(np.int64)
    return ByteArray(offsets, column.data, None if column.validity is None else column.valid())


def _part(column: BytesColumn, window: slice) -> ByteArray:
    whole = _whole(column)
    valid = None if whole.valid is None else whole.valid[window]
    return ByteArray(whole.offsets[window.start : window.stop + 1], whole.data, valid)
