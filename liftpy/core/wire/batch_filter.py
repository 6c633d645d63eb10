"""Filters the records of a batch: the result has the same stamps, offsets and end, but fewer records. Works on columns. Pure.

The bytes of a variable-length column are picked by a mask over bytes, so that the work follows the size of the batch and not the number
of its records. Compaction and filtered reads are the two that need it.

Narrow batches: the same records without some of their columns, for readers that don't want these. Pure; by columns, not by record.

Offsets, stamps and reach are those of the batch. Values can't be absent from a batch, so that left out they are nulls, at 4 bytes and a
bit each. What is left goes uncompressed: it is little, and would be decompressed at once.
"""

from __future__ import annotations

import numpy as np

from liftpy.config import Codec
from liftpy.core.wire.batch import RecordBatch, reach, seal, sized_body
from liftpy.core.wire.batch_columns import (
    BytesColumn,
    Columns,
    DictionaryColumn,
    HeadersColumn,
    Mask,
    laid_out_bytes,
    laid_out_dictionary,
    laid_out_fixed,
    laid_out_headers,
    note_column,
)
from liftpy.errors import CorruptionError


def kept(batch: RecordBatch, mask: Mask, *, compressed: bool = True) -> bytes:
    """A batch of the records of ``mask`` (bool[record_count], at least one True) at their offsets, sealed anew.

    ``compressed``: as the batch is, if it is. Raises CorruptionError where the columns don't fit their header.
    """
    columns, header = batch.columns, batch.header
    present = Columns(header.column_bits) | Columns.DELTAS
    pieces = laid_out_bytes(picked(columns.values, mask))
    if columns.keys is not None:
        pieces += laid_out_bytes(picked(columns.keys, mask))
    if columns.headers is not None:
        pieces += laid_out_headers(_headers(columns.headers, mask))
    if columns.subjects is not None:
        pieces += laid_out_dictionary(_dictionary(columns.subjects, mask))
    if columns.replies is not None:
        pieces += laid_out_bytes(picked(columns.replies, mask))
    if columns.timestamps_ns is not None:
        pieces += laid_out_fixed(columns.timestamps_ns[mask], "<i8")
    deltas = (batch.offsets()[mask] - batch.base_offset).astype(np.uint32)
    pieces += laid_out_fixed(deltas, "<u4")
    if columns.note is not None:
        pieces += note_column(bytes(columns.note))
    codec = header.codec if compressed else Codec.NONE
    body = sized_body(pieces, present, len(deltas), codec, int(deltas[-1]))
    sealed = seal(
        body,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        timestamp_ns=header.timestamp_ns,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        control=header.control,
    )
    return reach(sealed, header.next_offset)


def picked(column: BytesColumn, mask: Mask) -> BytesColumn:
    """The entries of ``mask``."""
    lengths = np.diff(column.ends, prepend=np.uint32(0)).astype(np.int64)
    data = np.frombuffer(column.data, dtype=np.uint8)[np.repeat(mask, lengths)]
    validity = None
    if column.validity is not None:
        validity = memoryview(np.packbits(column.valid()[mask], bitorder="little").tobytes())
    return BytesColumn(np.cumsum(lengths[mask]).astype(np.uint32), memoryview(data.tobytes()), validity)


def _dictionary(column: DictionaryColumn, mask: Mask) -> DictionaryColumn:
    """Return ``column`` without entries that no remaining record uses."""
    used, index = np.unique(column.index[mask], return_inverse=True)
    entries = np.zeros(len(column.entries.ends), dtype=np.bool_)
    entries[used] = True
    return DictionaryColumn(picked(column.entries, entries), index.astype(np.uint32))


def _headers(column: HeadersColumn, mask: Mask) -> HeadersColumn:
    counts = np.diff(column.ends, prepend=np.uint32(0)).astype(np.int64)
    pairs = np.repeat(mask, counts)
    return HeadersColumn(np.cumsum(counts[mask]).astype(np.uint32), picked(column.names, pairs), picked(column.values, pairs))


VALUES = 128
"""Stands for the values among the bits of ``Columns``, where they need none."""
LEAVABLE = VALUES | (Columns.KEYS | Columns.HEADERS | Columns.SUBJECTS | Columns.REPLIES).value
"""What can be left out."""


def narrow(batch: RecordBatch, left_out: int) -> memoryview:
    """Return ``batch`` without the columns ``left_out``, sealed again.

    Fillers, control batches and damaged batches are returned unchanged, so that the reader reports the damage.
    """
    if batch.header.control or not batch.record_count:
        return batch.view
    try:
        columns = batch.columns
    except CorruptionError:
        return batch.view
    present, nulls = Columns.NONE, Columns(batch.header.column_bits)
    if left_out & VALUES:
        pieces, present = laid_out_bytes(_all_null(batch.record_count)), Columns.VALUE_NULLS
    else:
        pieces, present = laid_out_bytes(columns.values), nulls & Columns.VALUE_NULLS
    left = Columns(left_out & ~VALUES)
    if columns.keys is not None and Columns.KEYS not in left:
        pieces, present = pieces + laid_out_bytes(columns.keys), present | Columns.KEYS | (nulls & Columns.KEY_NULLS)
    if columns.headers is not None and Columns.HEADERS not in left:
        pieces, present = pieces + laid_out_headers(columns.headers), present | Columns.HEADERS
    if columns.subjects is not None and Columns.SUBJECTS not in left:
        pieces, present = pieces + laid_out_dictionary(columns.subjects), present | Columns.SUBJECTS
    if columns.replies is not None and Columns.REPLIES not in left:
        pieces, present = pieces + laid_out_bytes(columns.replies), present | Columns.REPLIES | (nulls & Columns.REPLY_NULLS)
    if columns.timestamps_ns is not None:
        pieces, present = pieces + laid_out_fixed(columns.timestamps_ns, "<i8"), present | Columns.TIMESTAMPS
    if columns.deltas is not None:
        pieces, present = pieces + laid_out_fixed(columns.deltas, "<u4"), present | Columns.DELTAS
    header = batch.header
    sealed = seal(
        sized_body(pieces, present, batch.record_count, Codec.NONE, header.last_offset_delta),
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        timestamp_ns=header.timestamp_ns,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    return memoryview(sealed)


def _all_null(count: int) -> BytesColumn:
    validity = memoryview(bytes((count + 7) // 8))
    return BytesColumn(np.zeros(count, dtype=np.uint32), memoryview(b""), validity)
