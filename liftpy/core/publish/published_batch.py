"""Validates a record batch that a publisher built (BatchPublish), before it is stored. Pure.

Readers trust the batches of a log. So the CRC, the sizes, the ends of each column and the header names are checked. The
body is stored as it is. The leader sets offsets, LeaderEpoch and timestamp.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from liftpy.config import Codec
from liftpy.core.publish.dedup_window import ids_of
from liftpy.core.publish.jetstream_headers import first_refused
from liftpy.core.replication.effects import RejectReason
from liftpy.core.wire.batch import HEADER_SIZE_BYTES, BatchHeader, Body, RecordBatch, encode_body, parse_batch, sized_body
from liftpy.core.wire.batch_columns import (
    BytesColumn,
    Columns,
    ColumnSet,
    HeadersColumn,
    decode_columns,
    note_column,
    subject_column,
)
from liftpy.core.wire.headers import may_be_enveloped
from liftpy.errors import CorruptionError, LiftError, UnknownFormatError

MAX_BATCH_RECORDS = 65_536
MAX_HEADERS = 1024
MAX_HEADER_BYTES = 64 * 1024
"""Of one record."""
_ALLOWED = Columns.KEYS | Columns.HEADERS | Columns.VALUE_NULLS | Columns.KEY_NULLS


class InvalidBatchError(LiftError):
    """The batch cannot be stored as it is. ``reason`` and the text go into the answer."""

    code = "INVALID_BATCH"

    def __init__(self, text: str, reason: RejectReason = RejectReason.MALFORMED) -> None:
        super().__init__(text)
        self.reason = reason


class Published(NamedTuple):
    """A valid batch. ``ids``: message ids by record index. ``columns``: as received. ``note``: of its producer."""

    body: Body
    ids: dict[int, bytes]
    header: BatchHeader
    columns: ColumnSet
    note: bytes = b""


def body_to_store(published: memoryview, subject: str, codec: Codec, note: bytes = b"") -> Published:
    """The body of the one batch in ``published``, with its subject, its producer's ``note``, and in the stream's ``codec``.

    Raises InvalidBatchError, BatchTooLargeError where the subject makes it too large.
    """
    batch = _parsed(published)
    header = batch.header
    if header.codec is not Codec.NONE or header.control or header.column_bits & ~_ALLOWED.value:
        raise InvalidBatchError(
            "a published batch must be uncompressed, must not be a control batch, and can have only values, keys and headers."
        )
    if not header.producer_id and (header.base_sequence or header.producer_epoch):
        raise InvalidBatchError("the batch has a sequence or an epoch, but no producer id. Check the version of the client.")
    if not 0 < header.record_count <= MAX_BATCH_RECORDS:
        raise InvalidBatchError(
            f"a published batch must have 1 to {MAX_BATCH_RECORDS} records, not {header.record_count}. Send smaller batches.",
            RejectReason.TOO_LARGE,
        )
    present = Columns(header.column_bits)
    body = batch.view[HEADER_SIZE_BYTES:]
    try:
        columns = decode_columns(body, header.record_count, present, exact=True)
    except CorruptionError as error:
        raise InvalidBatchError(str(error)) from None
    _check(columns)
    pieces, stored_columns = [bytes(body), *subject_column(subject)], present | Columns.SUBJECTS
    if note:
        pieces, stored_columns = [*pieces, *note_column(note)], stored_columns | Columns.NOTE
    stored = sized_body(pieces, stored_columns, header.record_count, codec)
    return Published(stored, ids_of(columns.headers), header, columns, note)


def body_after(published: Published, first: int, subject: str, codec: Codec) -> Body:
    """Return the body without its first ``first`` records, which are already stored."""
    columns = published.columns
    values = columns.values.to_list()[first:]
    keys = None if columns.keys is None else columns.keys.to_list()[first:]
    headers = None if columns.headers is None else columns.headers.to_list()[first:]
    return encode_body(values, keys=keys, headers=headers, subjects=[subject] * len(values), codec=codec, note=published.note)


def _parsed(published: memoryview) -> RecordBatch:
    try:
        batch = parse_batch(published)
    except (CorruptionError, UnknownFormatError) as error:
        raise InvalidBatchError(str(error)) from None
    if batch.header.size_bytes != len(published):
        raise InvalidBatchError(
            f"the message has {len(published)} bytes, but its batch has {batch.header.size_bytes}. Check "
            "the version of the client."
        )
    return batch


def _check(columns: ColumnSet) -> None:
    for column in (columns.values, columns.keys):
        if column is not None and column.validity is not None and bool(_sizes(column)[~column.valid()].any()):
            raise InvalidBatchError("a null value has bytes, but a tombstone must be empty. Check the version of the client.")
    if columns.headers is not None:
        _check_sizes(columns.headers)
        names = {name.decode("utf-8", "surrogateescape") for name in _distinct_names(columns.headers)}
        asked = first_refused(names)
        if asked:
            detail = f"{asked!r} within a published batch is not heeded; the offset that is expected stands beside the batch"
            raise InvalidBatchError(detail, RejectReason.UNSUPPORTED)
        wrong = next((name for name in sorted(names) if not may_be_enveloped(name)), None)
        if wrong is not None:
            raise InvalidBatchError(
                f"Invalid header name {wrong[:80]!r}. Use names that are not empty and do not start with Lift-."
            )


def _sizes(column: BytesColumn) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    sizes = column.ends.astype(np.int64)
    sizes[1:] -= sizes[:-1].copy()
    return sizes


def largest_record_bytes(columns: ColumnSet, first: int = 0) -> int:
    """Value, key and headers of one record, at most, of those from index ``first`` on."""
    sizes = _sizes(columns.values)
    if columns.keys is not None:
        sizes = sizes + _sizes(columns.keys)
    if columns.headers is not None:
        sizes = sizes + _header_bytes(columns.headers)
    return int(sizes[first:].max())


def _header_bytes(headers: HeadersColumn) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Names and values, by record."""
    size_bytes = np.concatenate(([0], headers.names.ends.astype(np.int64) + headers.values.ends))[headers.ends.astype(np.int64)]
    return np.diff(size_bytes, prepend=0)


def _check_sizes(headers: HeadersColumn) -> None:
    if np.diff(headers.ends.astype(np.int64), prepend=0).max() > MAX_HEADERS or _header_bytes(headers).max() > MAX_HEADER_BYTES:
        raise InvalidBatchError(
            f"a record has more than {MAX_HEADERS} headers, or more than {MAX_HEADER_BYTES} bytes of headers. Use fewer or "
            "shorter headers.",
            RejectReason.TOO_LARGE,
        )


def _distinct_names(headers: HeadersColumn) -> set[bytes]:
    """Mostly all records have the same names in the same order: those are compared as one piece of memory."""
    names, count = headers.names, len(headers.ends)
    width = int(headers.ends[0])
    if width and len(names.ends) == width * count:
        sizes, data = _sizes(names), bytes(names.data)
        first_bytes = int(names.ends[width - 1])
        same = data == data[:first_bytes] * count and bool((sizes.reshape(count, width) == sizes[:width]).all())
        if same and bool((np.diff(headers.ends, prepend=0) == width).all()):
            names = BytesColumn(names.ends[:width], names.data[:first_bytes])
    return {name or b"" for name in names.to_list()}
