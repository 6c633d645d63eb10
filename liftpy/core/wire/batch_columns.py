"""The columns of a record batch: how its body is laid out, written and read without a Python loop over records.

Little endian, each array and each byte area from an 8-byte boundary of the body on::

    variable-length   [validity bitmap, Arrow's bit order, where its NULLS flag is set]  u32 ends[count]  bytes
                      (``ends`` is cumulative: with a leading zero it is an Arrow offsets buffer)
    dictionary        u32 entries, u32 0, variable-length column of the entries, then u32 index[count] unless entries == 1
    headers           u32 ends[count] (cumulative pair counts), then two variable-length columns: names and values
    fixed             i64 timestamps[count]; u32 offset deltas[count], ascending
    producer's note   u32 size, u32 0, bytes: one for the batch (``producer_note.py``)

Columns come in the order of the flags' values; the values' column is always there and first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from enum import Flag
from itertools import accumulate, chain, pairwise, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftpy.errors import CorruptionError

Headers = Sequence[tuple[str, bytes]]
U32 = NDArray[np.uint32]
Mask = NDArray[np.bool_]
"""bool[record_count]: which records."""
_FEW = 24
_MAX_COLUMN_BYTES = 1 << 31
_TEXT = ("utf-8", "surrogateescape")
"""Codec of subjects and header names, which are bytes on NATS. Invalid UTF-8 comes back unchanged."""


class Columns(Flag):
    """Flags of a batch: its columns besides the values, and the columns that have nulls."""

    NONE = 0
    KEYS = 1
    HEADERS = 2
    SUBJECTS = 4
    REPLIES = 8
    TIMESTAMPS = 16
    DELTAS = 32
    NOTE = 64
    VALUE_NULLS = 256
    KEY_NULLS = 512
    REPLY_NULLS = 1024
    ALL = 127 | 256 | 512 | 1024


@dataclass(frozen=True, slots=True)
class BytesColumn:
    """A column of byte strings. ``ends``: u32[count], end position of each entry in ``data``. ``validity``: Arrow's bitmap of
    nulls or None.
    """

    ends: U32
    data: memoryview
    validity: memoryview | None = None

    def to_list(self) -> list[bytes | None]:
        entries: list[bytes | None]
        width = self._width()
        if width:
            entries = np.frombuffer(self.data, dtype=f"V{width}").tolist()
        else:
            data, start = bytes(self.data), 0
            entries = [data[start : (start := end)] for end in self.ends.tolist()]
        if self.validity is not None:
            for i in np.flatnonzero(~self.valid()).tolist():
                entries[i] = None
        return entries

    def _width(self) -> int:
        """Return the common size of all entries in bytes, or 0 if they differ or are few.

        NumPy handles entries of one size five times as fast.
        """
        count, width = len(self.ends), int(self.ends[0]) if len(self.ends) > _FEW else 0
        if not width or width * count != len(self.data):
            return 0
        return width if bool((self.ends[1:] - self.ends[:-1] == width).all()) else 0

    def valid(self) -> NDArray[np.bool_]:
        """Return bool[count]. An element is False if the entry is null."""
        if self.validity is None:
            return np.ones(len(self.ends), dtype=np.bool_)
        bits = np.unpackbits(np.frombuffer(self.validity, dtype=np.uint8), bitorder="little")
        return bits[: len(self.ends)].astype(np.bool_)


@dataclass(frozen=True, slots=True)
class DictionaryColumn:
    """A column of text with few distinct values. ``entries``: the distinct values. ``index``: u32[count], index of each record's
    value.
    """

    entries: BytesColumn
    index: U32

    def to_list(self) -> list[str]:
        return list(self.each())

    def each(self) -> Iterator[str]:
        names = [(e or b"").decode(*_TEXT) for e in self.entries.to_list()]
        return repeat(names[0], len(self.index)) if len(names) == 1 else map(names.__getitem__, self.index.tolist())


@dataclass(frozen=True, slots=True)
class HeadersColumn:
    """Headers as columns. ``ends``: u32[count], cumulative number of pairs. ``names`` and ``values``: pairs of all records in
    order.
    """

    ends: U32
    names: BytesColumn
    values: BytesColumn

    def to_list(self) -> list[tuple[tuple[str, bytes], ...]]:
        names = [(n or b"").decode(*_TEXT) for n in self.names.to_list()]
        pairs = list(zip(names, [v or b"" for v in self.values.to_list()], strict=True))
        return [tuple(pairs[start:end]) for start, end in pairwise([0, *self.ends.tolist()])]


@dataclass(frozen=True, slots=True)
class ColumnSet:
    """The columns of one batch, as views into its body. None: the batch has no such column."""

    values: BytesColumn
    keys: BytesColumn | None = None
    headers: HeadersColumn | None = None
    subjects: DictionaryColumn | None = None
    replies: BytesColumn | None = None
    timestamps_ns: NDArray[np.int64] | None = None
    deltas: U32 | None = None
    note: memoryview | None = None


# ---- writing ---------------------------------------------------------------------------------------------------------


def encode_columns(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Headers | None] | None,
    subjects: Sequence[str] | None,
    replies: Sequence[str | None] | None,
    timestamps_ns: Sequence[int] | None,
    offset_deltas: Sequence[int] | None,
    note: bytes = b"",
) -> tuple[Columns, list[bytes]]:
    """Lay out the body of a batch. Return the flags of its columns, and the parts of the body in order.

    Each argument except ``note`` has one entry per record. None: the batch has no such column.
    """
    count = len(values)
    if count == 0:
        raise ValueError("A batch needs at least one record.")
    for column in (keys, headers, subjects, replies, timestamps_ns, offset_deltas):
        if column is not None and len(column) != count:
            raise ValueError(f"A column has {len(column)} entries for {count} records. Pass one entry per record.")
    pieces: list[bytes] = []
    present = Columns.VALUE_NULLS if _append_bytes(pieces, values) else Columns.NONE
    if keys is not None and any(k is not None for k in keys):
        present |= Columns.KEYS | (Columns.KEY_NULLS if _append_bytes(pieces, keys) else Columns.NONE)
    if headers is not None and any(headers):
        present |= Columns.HEADERS
        _append_headers(pieces, headers)
    if subjects is not None and any(subjects):
        present |= Columns.SUBJECTS
        _append_dictionary(pieces, subjects)
    if replies is not None and any(r is not None for r in replies):
        encoded = [None if r is None else r.encode(*_TEXT) for r in replies]
        present |= Columns.REPLIES | (Columns.REPLY_NULLS if _append_bytes(pieces, encoded) else Columns.NONE)
    if timestamps_ns is not None:
        present |= Columns.TIMESTAMPS
        _append_padded(pieces, np.asarray(timestamps_ns, dtype="<i8").tobytes())
    if offset_deltas is not None:
        present |= Columns.DELTAS
        _append_padded(pieces, np.asarray(offset_deltas, dtype="<u4").tobytes())
    if note:
        present |= Columns.NOTE
        pieces += note_column(note)
    return present, pieces


def _append_padded(pieces: list[bytes], data: bytes) -> None:
    pieces.append(data)
    if len(data) % 8:
        pieces.append(bytes(-len(data) % 8))


def _ends(entries: Sequence[Sized]) -> bytes:
    """Return the cumulative lengths of ``entries`` as ``u32[count]``.

    For a few entries, a Python loop is faster than numpy.
    """
    count = len(entries)
    if count <= _FEW:
        ends = list(accumulate(map(len, entries)))
        if count and ends[-1] >= _MAX_COLUMN_BYTES:
            raise ValueError("A column of a batch must be smaller than 2 GiB. Use smaller batches.")
        return struct.pack(f"<{count}I", *ends)
    cumulative = np.cumsum(np.fromiter(map(len, entries), dtype=np.int64, count=count), dtype=np.int64)
    if cumulative[-1] >= _MAX_COLUMN_BYTES:
        raise ValueError("A column of a batch must be smaller than 2 GiB. Use smaller batches.")
    return cumulative.astype("<u4").tobytes()


def _append_bytes(pieces: list[bytes], entries: Sequence[bytes | None]) -> bool:
    """Append a column of variable length to ``pieces``. Return whether ``entries`` has nulls, so that a bitmap comes first."""
    nulls = None in entries
    if nulls:
        valid = np.fromiter((e is not None for e in entries), dtype=np.bool_, count=len(entries))
        _append_padded(pieces, np.packbits(valid, bitorder="little").tobytes())
        entries = [e if e is not None else b"" for e in entries]
    present: Sequence[bytes] = entries  # type: ignore[assignment]
    _append_padded(pieces, _ends(present))
    _append_padded(pieces, b"".join(present))
    return nulls


def _append_dictionary(pieces: list[bytes], texts: Sequence[str]) -> None:
    numbers = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    _append_padded(pieces, struct.pack("<II", len(numbers), 0))
    _append_bytes(pieces, [text.encode(*_TEXT) for text in numbers])
    if len(numbers) > 1:
        _append_padded(pieces, np.fromiter(map(numbers.__getitem__, texts), dtype="<u4", count=len(texts)).tobytes())


def encode_bytes_column(column: BytesColumn) -> list[bytes]:
    """Return the parts of the body for a column of variable length, in order."""
    pieces: list[bytes] = []
    if column.validity is not None:
        _append_padded(pieces, bytes(column.validity))
    _append_padded(pieces, column.ends.astype("<u4").tobytes())
    _append_padded(pieces, bytes(column.data))
    return pieces


def laid_out_dictionary(column: DictionaryColumn) -> list[bytes]:
    """Return the parts of the body for a dictionary column, in order."""
    count = len(column.entries.ends)
    pieces = [struct.pack("<II", count, 0), *encode_bytes_column(column.entries)]
    return pieces + laid_out_fixed(column.index, "<u4") if count > 1 else pieces


def laid_out_headers(column: HeadersColumn) -> list[bytes]:
    """Return the parts of the body for a headers column, in order."""
    return [*laid_out_fixed(column.ends, "<u4"), *encode_bytes_column(column.names), *encode_bytes_column(column.values)]


def laid_out_fixed(entries: NDArray[Any], kind: str) -> list[bytes]:
    """Return the parts of the body for a column of numbers. ``kind``: NumPy type, such as ``<i8``."""
    pieces: list[bytes] = []
    _append_padded(pieces, entries.astype(kind).tobytes())
    return pieces


def subject_column(subject: str) -> list[bytes]:
    """Return the parts of the body for a subjects column in which all records have ``subject``.

    The column follows values, keys and headers.
    """
    pieces: list[bytes] = []
    _append_dictionary(pieces, [subject])
    return pieces


def note_column(note: bytes) -> list[bytes]:
    """Return the parts of the body for a producer's ``note``. It follows all other columns."""
    pieces: list[bytes] = []
    _append_padded(pieces, struct.pack("<II", len(note), 0))
    _append_padded(pieces, note)
    return pieces


def _append_headers(pieces: list[bytes], headers: Sequence[Headers | None]) -> None:
    filled = [pairs or () for pairs in headers]
    _append_padded(pieces, _ends(filled))
    flat = list(chain.from_iterable(filled))
    _append_bytes(pieces, [name.encode(*_TEXT) for name, _ in flat])
    _append_bytes(pieces, [value for _, value in flat])


# ---- reading ---------------------------------------------------------------------------------------------------------


class _Reader:
    """Reads a body column by column. It checks every length before use."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._position = 0

    def read(self, size_bytes: int) -> memoryview:
        """Return the next ``size_bytes`` of the body. The position moves to the 8-byte boundary after them."""
        end = self._position + size_bytes
        if size_bytes < 0 or end > len(self._body):
            raise CorruptionError(
                f"Damaged batch: a column ends at {end}, but the batch ends at {len(self._body)}. The node repairs it from "
                "another replica."
            )
        piece = self._body[self._position : end]
        self._position = end + (-end % 8)
        return piece

    @property
    def at_end(self) -> bool:
        return self._position == len(self._body)

    def u32(self, count: int) -> U32:
        return np.frombuffer(self.read(4 * count), dtype="<u4")

    def ends(self, count: int) -> U32:
        """Read the next ``count`` end positions. Raises CorruptionError if they are not ascending."""
        ends = self.u32(count)
        if count > 1 and bool((ends[1:] < ends[:-1]).any()):
            raise CorruptionError(
                "Damaged batch: the end positions of a column are not ascending. The node repairs it from another replica."
            )
        return ends

    def bytes_column(self, count: int, nulls: bool) -> BytesColumn:
        """Read the next column of variable length. ``nulls``: True if it begins with a validity bitmap."""
        validity = self.read((count + 7) // 8) if nulls else None
        ends = self.ends(count)
        return BytesColumn(ends, self.read(int(ends[-1]) if count else 0), validity)

    def dictionary(self, count: int) -> DictionaryColumn:
        entry_count = int(self.u32(2)[0])
        if not 0 < entry_count <= count:
            raise CorruptionError(
                f"Damaged batch: a dictionary has {entry_count} entries for {count} records. The node repairs it from another replica."
            )
        entries = self.bytes_column(entry_count, nulls=False)
        index = self.u32(count) if entry_count > 1 else np.zeros(count, dtype=np.uint32)
        if entry_count > 1 and int(index.max(initial=0)) >= entry_count:
            raise CorruptionError(
                "Damaged batch: a dictionary index is out of range. The node repairs it from another replica."
            )
        return DictionaryColumn(entries, index)

    def headers(self, count: int) -> HeadersColumn:
        ends = self.ends(count)
        pair_count = int(ends[-1])
        return HeadersColumn(ends, self.bytes_column(pair_count, nulls=False), self.bytes_column(pair_count, nulls=False))


def decode_columns(body: memoryview, count: int, present: Columns, *, exact: bool = False) -> ColumnSet:
    """Return the columns of a decompressed ``body`` as views. Raises CorruptionError if they do not fit.

    ``count``: number of records. ``present``: flags of the columns. ``exact``: True if they must also fill the body.
    """
    reader = _Reader(body)
    values = reader.bytes_column(count, Columns.VALUE_NULLS in present)
    keys = reader.bytes_column(count, Columns.KEY_NULLS in present) if Columns.KEYS in present else None
    headers = reader.headers(count) if Columns.HEADERS in present else None
    subjects = reader.dictionary(count) if Columns.SUBJECTS in present else None
    replies = reader.bytes_column(count, Columns.REPLY_NULLS in present) if Columns.REPLIES in present else None
    timestamps = np.frombuffer(reader.read(8 * count), dtype="<i8") if Columns.TIMESTAMPS in present else None
    deltas = reader.u32(count) if Columns.DELTAS in present else None
    if deltas is not None and bool((deltas[1:] <= deltas[:-1]).any()):
        raise CorruptionError("Damaged batch: its offsets are not ascending. The node repairs it from another replica.")
    note = reader.read(int(reader.u32(2)[0])) if Columns.NOTE in present else None
    if exact and not reader.at_end:
        raise CorruptionError("Damaged batch: it has bytes behind its last column. The node repairs it from another replica.")
    return ColumnSet(values, keys, headers, subjects, replies, timestamps, deltas, note)
