"""Some records of a batch, as a batch: the same stamps, offsets and reach, fewer records. Pure; by columns, not by record.

The bytes of a variable-length column are picked by a mask over bytes, so that the work follows the size of the batch and not the number
of its records. Compaction and filtered reads are the two that need it.
"""

from __future__ import annotations

import numpy as np

from liftpy.config import Codec
from liftpy.wire.batch import RecordBatch, reach, seal, sized_body
from liftpy.wire.batch_columns import (
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
    """Without the entries that no record has any more: a batch has as many records as entries, or more."""
    used, index = np.unique(column.index[mask], return_inverse=True)
    entries = np.zeros(len(column.entries.ends), dtype=np.bool_)
    entries[used] = True
    return DictionaryColumn(picked(column.entries, entries), index.astype(np.uint32))


def _headers(column: HeadersColumn, mask: Mask) -> HeadersColumn:
    counts = np.diff(column.ends, prepend=np.uint32(0)).astype(np.int64)
    pairs = np.repeat(mask, counts)
    return HeadersColumn(np.cumsum(counts[mask]).astype(np.uint32), picked(column.names, pairs), picked(column.values, pairs))
