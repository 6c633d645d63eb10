"""Narrow batches: the same records without some of their columns, for readers that don't want these. Pure; by columns, not by record.

Offsets, stamps and reach are those of the batch. Values can't be absent from a batch, so that left out they are nulls, at 4 bytes and a
bit each. What is left goes uncompressed: it is little, and would be decompressed at once.
"""

from __future__ import annotations

import numpy as np

from liftpy.config import Codec
from liftpy.errors import CorruptionError
from liftpy.wire.batch import RecordBatch, seal, sized_body
from liftpy.wire.batch_columns import (
    BytesColumn,
    Columns,
    laid_out_bytes,
    laid_out_dictionary,
    laid_out_fixed,
    laid_out_headers,
)

VALUES = 128
"""Stands for the values among the bits of ``Columns``, where they need none."""
LEAVABLE = VALUES | (Columns.KEYS | Columns.HEADERS | Columns.SUBJECTS | Columns.REPLIES).value
"""What can be left out."""


def narrow(batch: RecordBatch, left_out: int) -> memoryview:
    """``batch`` without the columns of ``left_out``, sealed anew; as it is where nothing of it can be left out: a filler, a control
    batch, one whose columns don't fit their header (the reader says so, as it does of the whole)."""
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
