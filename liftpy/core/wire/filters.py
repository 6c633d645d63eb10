"""Filters: which records of a batch a reader wants (by subject or key), and which columns. Pure.

Each distinct subject of a batch is checked once. Keys are compared as arrays of bytes, all keys of one length at a
time. A record without a subject (from a producer's batch) matches no subject filter. A record without a key matches no
key filter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from liftpy.config import Codec
from liftpy.core.base.ids import check_subject, quote
from liftpy.core.wire.batch import BatchTooLargeError, RecordBatch, reach, replace_body, sized_body
from liftpy.core.wire.batch_columns import (
    BytesColumn,
    Columns,
    DictionaryColumn,
    HeadersColumn,
    Mask,
    encode_bytes_column,
    laid_out_dictionary,
    laid_out_fixed,
    laid_out_headers,
    note_column,
)
from liftpy.errors import ConfigError, CorruptionError

MAX_SUBJECTS = 64
MAX_KEYS = 256
MAX_FILTER_BYTES = 8192
"""Maximum size of all subjects and keys of a filter, in bytes. The filter is part of each read request."""
_BYTES_AT_ONCE = 1 << 20
"""Number of key bytes to compare at once. numpy needs eight times as much memory."""
_TEXT = ("utf-8", "surrogateescape")
_END = ""
"""Token below which a subject of a tree ends. No well-formed subject has an empty token."""
VALUES = 128
"""Bit that stands for the values among the bits of ``Columns``."""
LEAVABLE = VALUES | (Columns.KEYS | Columns.HEADERS | Columns.SUBJECTS | Columns.REPLIES).value
"""Columns that can be left out."""


class SubjectTree:
    """Subjects with wildcards as a tree of tokens, so that a lookup need not compare a subject with each of them [A21].

    Args:
        subjects: Well-formed subjects. ``>`` is their last token, if they have one.
    """

    def __init__(self, subjects: Iterable[str]) -> None:
        self._root: dict[str, Any] = {}
        for subject in subjects:
            node = self._root
            for token in subject.split("."):
                node = node.setdefault(token, {})
            node[_END] = {}

    def matches(self, subject: str) -> bool:
        """Return whether one of the subjects matches ``subject``, which has no wildcards."""
        nodes = [self._root]
        for token in subject.split("."):
            below = []
            for node in nodes:
                if ">" in node and token:
                    return True
                if token in node and token:
                    below.append(node[token])
                if "*" in node and token:
                    below.append(node["*"])
            if not below:
                return False
            nodes = below
        return any(_END in node for node in nodes)


@dataclass(frozen=True)
class Filter:
    """Filter of the records that a reader wants. Without subjects and keys, all records match.

    ``subjects``: subjects with wildcards, one must match. ``keys``: one must be equal. If both are given, both must match.
    Raises ConfigError beyond a limit, InvalidNameError for an invalid subject.
    """

    subjects: tuple[str, ...] = ()
    keys: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if len(self.subjects) > MAX_SUBJECTS or len(self.keys) > MAX_KEYS:
            raise ConfigError(
                f"A filter can have at most {MAX_SUBJECTS} subjects and {MAX_KEYS} keys. Use several consumers for more."
            )
        for subject in self.subjects:
            check_subject(subject)
        for key in self.keys:
            if not isinstance(key, bytes | bytearray | memoryview):
                raise ConfigError(f"Key {quote(repr(key))} of the filter is not of type bytes. Encode text first.")
        size_bytes = sum(len(subject.encode()) for subject in self.subjects) + sum(map(len, self.keys))
        if size_bytes > MAX_FILTER_BYTES:
            raise ConfigError(
                f"The subjects and keys of a filter have {size_bytes} bytes, the maximum is {MAX_FILTER_BYTES}. Use several consumers."
            )

    def __bool__(self) -> bool:
        return bool(self.subjects or self.keys)

    @cached_property
    def _tree(self) -> SubjectTree:
        return SubjectTree(self.subjects)

    def mask(self, batch: RecordBatch) -> Mask:
        """Return for each record of ``batch`` whether it matches, as bool[record_count].

        Records of a control batch never match. Raises CorruptionError as ``RecordBatch.columns``.
        """
        if batch.header.control or not batch.record_count:
            return np.zeros(batch.record_count, dtype=np.bool_)
        columns = batch.columns
        fits = np.ones(batch.record_count, dtype=np.bool_)
        if self.subjects:
            if columns.subjects is None:
                return np.zeros(batch.record_count, dtype=np.bool_)
            names = [(name or b"").decode(*_TEXT) for name in columns.subjects.entries.to_list()]
            fitting = np.fromiter(map(self._tree.matches, names), dtype=np.bool_, count=len(names))
            fits &= fitting[columns.subjects.index]
        if self.keys:
            fits &= _is_one_of(columns.keys, self.keys) if columns.keys is not None else False
        return fits


def _is_one_of(column: BytesColumn, wanted: Sequence[bytes]) -> Mask:
    ends = column.ends.astype(np.int64)
    lengths = np.diff(ends, prepend=0)
    data = np.frombuffer(column.data, dtype=np.uint8)
    mask = np.zeros(len(ends), dtype=np.bool_)
    for length in {len(key) for key in wanted}:
        of_length = np.array([key for key in wanted if len(key) == length], dtype=f"S{length or 1}")
        places = np.flatnonzero(lengths == length)
        step = max(_BYTES_AT_ONCE // max(length, 1), 1)
        for first in range(0, len(places), step):
            some = places[first : first + step]
            texts = data[(ends[some] - length)[:, None] + np.arange(length)]
            mask[some] = np.isin(texts.view(f"S{length}").ravel(), of_length) if length else True
    return mask & column.valid() if column.validity is not None else mask


NOTHING_LEFT_OUT = Filter()


# ---- batches with fewer records or columns ---------------------------------------------------------------------------


def keep_records(batch: RecordBatch, mask: Mask) -> bytes:
    """Return a batch with only those records whose entry in ``mask`` is True, at their offsets, with a new CRC.

    Timestamps, producer fields and the end of the offset range stay. The function works on columns: it picks the bytes of a
    column of variable length by a mask over bytes, so its cost depends on the size of the batch and not on the number of
    records.

    ``mask``: bool[record_count], at least one True. Raises CorruptionError if the columns do not fit their header.
    """
    columns, header = batch.columns, batch.header
    present = Columns(header.column_bits) | Columns.DELTAS
    pieces = encode_bytes_column(pick_entries(columns.values, mask))
    if columns.keys is not None:
        pieces += encode_bytes_column(pick_entries(columns.keys, mask))
    if columns.headers is not None:
        pieces += laid_out_headers(_headers(columns.headers, mask))
    if columns.subjects is not None:
        pieces += laid_out_dictionary(_dictionary(columns.subjects, mask))
    if columns.replies is not None:
        pieces += encode_bytes_column(pick_entries(columns.replies, mask))
    if columns.timestamps_ns is not None:
        pieces += laid_out_fixed(columns.timestamps_ns[mask], "<i8")
    deltas = (batch.offsets()[mask] - batch.base_offset).astype(np.uint32)
    pieces += laid_out_fixed(deltas, "<u4")
    if columns.note is not None:
        pieces += note_column(bytes(columns.note))
    body = sized_body(pieces, present, len(deltas), header.codec, int(deltas[-1]))
    return reach(replace_body(header, body), header.next_offset)


def pick_entries(column: BytesColumn, mask: Mask) -> BytesColumn:
    """Return a column with only those entries whose place in ``mask`` is True."""
    lengths = np.diff(column.ends, prepend=np.uint32(0)).astype(np.int64)
    data = np.frombuffer(column.data, dtype=np.uint8)[np.repeat(mask, lengths)]
    validity = None
    if column.validity is not None:
        validity = memoryview(np.packbits(column.valid()[mask], bitorder="little").tobytes())
    return BytesColumn(np.cumsum(lengths[mask]).astype(np.uint32), memoryview(data.tobytes()), validity)


def _dictionary(column: DictionaryColumn, mask: Mask) -> DictionaryColumn:
    """Return ``column`` with only the records whose place in ``mask`` is True, and without dictionary entries that none of these
    uses.
    """
    used, index = np.unique(column.index[mask], return_inverse=True)
    entries = np.zeros(len(column.entries.ends), dtype=np.bool_)
    entries[used] = True
    return DictionaryColumn(pick_entries(column.entries, entries), index.astype(np.uint32))


def _headers(column: HeadersColumn, mask: Mask) -> HeadersColumn:
    counts = np.diff(column.ends, prepend=np.uint32(0)).astype(np.int64)
    pairs = np.repeat(mask, counts)
    return HeadersColumn(
        np.cumsum(counts[mask]).astype(np.uint32), pick_entries(column.names, pairs), pick_entries(column.values, pairs)
    )


def narrow(batch: RecordBatch, left_out: int) -> memoryview:
    """Return ``batch`` without some columns, with a new CRC. ``left_out``: flags of the columns to omit.

    Offsets, timestamps and producer fields stay. A batch always has values. If values are omitted, they become nulls, at 4
    bytes and a bit each. The result is small and is not compressed, because the reader would decompress it at once.

    Fillers, control batches and damaged batches are returned unchanged, so that the reader reports the damage. So are batches close
    to the size limit whose result would be too large.
    """
    if batch.header.control or not batch.record_count:
        return batch.view
    try:
        columns = batch.columns
    except CorruptionError:
        return batch.view
    present, nulls = Columns.NONE, Columns(batch.header.column_bits)
    if left_out & VALUES:
        pieces, present = encode_bytes_column(_all_null(batch.record_count)), Columns.VALUE_NULLS
    else:
        pieces, present = encode_bytes_column(columns.values), nulls & Columns.VALUE_NULLS
    left = Columns(left_out & ~VALUES)
    if columns.keys is not None and Columns.KEYS not in left:
        pieces, present = pieces + encode_bytes_column(columns.keys), present | Columns.KEYS | (nulls & Columns.KEY_NULLS)
    if columns.headers is not None and Columns.HEADERS not in left:
        pieces, present = pieces + laid_out_headers(columns.headers), present | Columns.HEADERS
    if columns.subjects is not None and Columns.SUBJECTS not in left:
        pieces, present = pieces + laid_out_dictionary(columns.subjects), present | Columns.SUBJECTS
    if columns.replies is not None and Columns.REPLIES not in left:
        pieces, present = (
            pieces + encode_bytes_column(columns.replies),
            present | Columns.REPLIES | (nulls & Columns.REPLY_NULLS),
        )
    if columns.timestamps_ns is not None:
        pieces, present = pieces + laid_out_fixed(columns.timestamps_ns, "<i8"), present | Columns.TIMESTAMPS
    if columns.deltas is not None:
        pieces, present = pieces + laid_out_fixed(columns.deltas, "<u4"), present | Columns.DELTAS
    header = batch.header
    try:
        body = sized_body(pieces, present, batch.record_count, Codec.NONE, header.last_offset_delta)
    except BatchTooLargeError:
        return batch.view
    return memoryview(replace_body(header, body))


def _all_null(count: int) -> BytesColumn:
    validity = memoryview(bytes((count + 7) // 8))
    return BytesColumn(np.zeros(count, dtype=np.uint32), memoryview(b""), validity)
