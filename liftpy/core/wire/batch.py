"""The record batch: the unit of work everywhere. One layout on disk, between nodes, to readers and into Arrow.

All integers are little endian. A batch is a header of 64 bytes, then the body::

     0 u32 CRC-32C of bytes 4..size   4 u16 magic        6 u8 version        7 u8 attributes (bits 0-2 codec, 3 control)
     8 u32 size in bytes, all        12 u32 records     16 i64 base offset  24 u64 LeaderEpoch
    32 i64 timestamp ns              40 u64 producer id 48 u32 base sequence 52 u16 producer epoch
    54 u16 columns                   56 u32 body size before compression     60 u32 offset delta of the last record

The body has the columns in the order of ``Columns``. Each column begins at an 8-byte boundary. ``batch_columns`` lays
them out. The body is compressed as a whole. A batch is atomic: without a correct CRC it does not exist.

Decompression is limited to the size in the batch's header, before any byte is decompressed. The bytes come from
outside, and 8 KB can expand to gigabytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, repeat
from typing import NamedTuple

import crc32c
import lz4.block
import numpy as np
import zstandard
from numpy.typing import NDArray

from liftpy.config import Codec
from liftpy.core.base.ids import NO_OFFSET
from liftpy.core.wire.batch_columns import (
    BytesColumn,
    Columns,
    ColumnSet,
    Headers,
    HeadersColumn,
    decode_columns,
    encode_bytes_column,
    encode_columns,
    laid_out_headers,
)
from liftpy.core.wire.chunking import HEADER_SIZE_BYTES as HEADER_SIZE_BYTES
from liftpy.core.wire.chunking import MAX_BATCH_BYTES as MAX_BATCH_BYTES
from liftpy.errors import ConfigError, CorruptionError, DamagedBatchError, UnknownFormatError

_LZ4_RATIO = 255
"""Bytes that one byte of an LZ4 block decompresses to, at most."""
_LZ4_SLACK_BYTES = 64
_WINDOW_BYTES = 1 << 27
"""Window of a zstd frame: the largest that its usual levels write."""
MAGIC = 0x424C
"""The bytes ``LB``."""
VERSION = 1
SIGNATURE = b"LB\x01"
"""Magic and version at ``SIGNATURE_POSITION`` of every batch. A search for batches looks for them."""
SIGNATURE_POSITION = 4
_HEADER = struct.Struct("<IHBBIIqQqQIHHII")
_CRC = struct.Struct("<I")
_CODEC_MASK = 0b111
_CONTROL = 0b1000
_CODECS = (Codec.NONE, Codec.LZ4, Codec.ZSTD)
_ALL_COLUMNS = Columns.ALL.value
_DELTAS = Columns.DELTAS.value
_MAX_I64 = (1 << 63) - 1
"""Maximum offset and epoch. They are i64 everywhere except in the header."""
FEW = 16
"""Number of records up to which single records are faster than columns."""


def compress(body: bytes, codec: Codec) -> bytes:
    """Return ``body`` compressed with ``codec`` (LZ4 or zstd)."""
    if codec is Codec.LZ4:
        return bytes(lz4.block.compress(body, store_size=False))
    return zstandard.ZstdCompressor(level=3).compress(body)


def decompress(stored: memoryview, codec: Codec, size_bytes: int) -> bytes:
    """Return the decompressed bytes of ``stored``. Raises CorruptionError unless they are exactly ``size_bytes``."""
    try:
        if codec is Codec.LZ4:
            if size_bytes > len(stored) * _LZ4_RATIO + _LZ4_SLACK_BYTES:
                raise CorruptionError(
                    f"{len(stored)} bytes of LZ4 data cannot expand to {size_bytes} bytes. The node repairs the batch from another "
                    "replica."
                )
            body = bytes(lz4.block.decompress(stored, uncompressed_size=size_bytes))
        else:
            body = _zstd(stored, size_bytes)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError, MemoryError) as error:
        raise CorruptionError(
            f"The compressed data is damaged: {error}. The node repairs the batch from another replica."
        ) from None
    if len(body) != size_bytes:
        raise CorruptionError(
            f"The batch is damaged: it has {len(body)} bytes or more, but its header says {size_bytes}. "
            "The node repairs it from another replica."
        )
    return body


def _zstd(stored: memoryview, size_bytes: int) -> bytes:
    """Decompress a zstd frame to at most ``size_bytes`` + 1 bytes, so that the caller notices a frame that is too long."""
    named = zstandard.frame_content_size(stored)
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    if named < 0:
        with reader.stream_reader(stored) as stream:
            return stream.read(size_bytes + 1)
    if named != size_bytes:
        raise CorruptionError(
            f"the compressed frame says {named} bytes, but the header says {size_bytes}. The node repairs it from another replica."
        )
    return reader.decompress(stored, max_output_size=size_bytes)


class BatchHeader(NamedTuple):
    """The header of a batch (64 bytes). ``base_offset`` and ``last_offset`` are inclusive. ``next_offset`` is the offset after the
    batch.
    """

    crc: int
    codec: Codec
    control: bool
    size_bytes: int
    record_count: int
    base_offset: int
    leader_epoch: int
    timestamp_ns: int
    producer_id: int
    base_sequence: int
    producer_epoch: int
    column_bits: int
    """Columns that are present: a ``Columns`` as a number."""
    body_size_bytes: int
    last_offset_delta: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_compacted(self) -> bool:
        """True if compaction removed records of the batch: it has fewer records than offsets."""
        return self.record_count <= self.last_offset_delta or self.is_remains

    @property
    def is_remains(self) -> bool:
        """True for the control batch that replaces a producer's last batch when compaction has removed all records of it."""
        return self.control and self.producer_id != 0


class Record(NamedTuple):
    """One record of a stream.

    Attributes:
        offset: Offset in the partition.
        timestamp_ns: Time at which the leader appended it, in nanoseconds since 1970.
        key: Key, None without one.
        value: Payload. None is a tombstone.
        headers: Pairs of name and value, in order. Names may repeat.
        subject: NATS subject on which it was published, '' if it is not known.
        reply: Reply subject of the publisher, None without one.
        leader_epoch: LeaderEpoch of the leader that appended it.
    """

    offset: int
    timestamp_ns: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    subject: str
    reply: str | None
    leader_epoch: int

    def header(self, name: str, default: bytes | None = None) -> bytes | None:
        """Return the value of the first header with this name.

        Args:
            name: Name of the header. Upper and lower case differ.
            default: Value if there is no such header. Default None.
        """
        return next((value for header_name, value in self.headers if header_name == name), default)

    def header_values(self, name: str) -> list[bytes]:
        """Return the values of all headers with this name, in order.

        Args:
            name: Name of the header. Upper and lower case differ.
        """
        return [value for header_name, value in self.headers if header_name == name]


_Made = type("_Made", (tuple,), {"__slots__": (), "__new__": tuple.__new__})
_RECORD_OF: Callable[[tuple[object, ...]], Record] = type(
    "Record",
    (_Made, Record),
    {
        "__slots__": (),
        "__module__": Record.__module__,
        "__doc__": Record.__doc__,
        "__reduce__": lambda record: (Record, tuple(record)),
    },
)
"""Creates a Record from one tuple. It is faster than ``Record(...)``, and readers create millions of records per second.

A copied or unpickled record is a plain Record.
"""


class BatchTooLargeError(ValueError):
    """A batch would be larger than MAX_BATCH_BYTES (``size_bytes``). Send fewer records at once, or smaller ones."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"a batch holds at most {MAX_BATCH_BYTES} bytes, not {size_bytes}: send fewer records at once")
        self.size_bytes = size_bytes


class RecordBatch:
    """View of one batch in a buffer. It copies nothing before a column is used, and never copies uncompressed columns."""

    __slots__ = ("__dict__", "header", "on_damage", "view")
    arrived_ns = 0
    """Time at which a traced reader received the batch, in ns since 1970. 0: not set."""

    def __init__(self, header: BatchHeader, view: memoryview) -> None:
        self.header = header
        self.view = view
        """The whole batch, header included."""
        self.on_damage: Callable[[CorruptionError], None] | None = None
        """Called for columns that cannot be decoded, which happens long after the batch was received."""

    @property
    def base_offset(self) -> int:
        """Offset of the first record before compaction. The first remaining record may have a larger offset."""
        return self.header.base_offset

    @property
    def last_offset(self) -> int:
        return self.header.last_offset

    @property
    def next_offset(self) -> int:
        return self.header.next_offset

    @property
    def record_count(self) -> int:
        """Number of records. 0 for a filler, which replaces batches that compaction has removed."""
        return self.header.record_count

    @property
    def leader_epoch(self) -> int:
        return self.header.leader_epoch

    @property
    def timestamp_ns(self) -> int:
        """Wall-clock time at which the leader appended the batch, in nanoseconds since 1970.

        The leader uses the time of other nodes while it does not trust its own clock.
        """
        return self.header.timestamp_ns

    @cached_property
    def columns(self) -> ColumnSet:
        """Decompressed columns. Raises CorruptionError if they do not match their header."""
        try:
            return self._decoded()
        except CorruptionError as error:
            if self.on_damage is not None:
                self.on_damage(error)
            raise

    def _decoded(self) -> ColumnSet:
        columns = decode_columns(self.body(), self.header.record_count, Columns(self.header.column_bits))
        if columns.deltas is not None and int(columns.deltas[-1]) > self.header.last_offset_delta:
            raise CorruptionError(
                f"The batch at offset {self.base_offset} is damaged: it has a record beyond its last "
                "offset. The node repairs it from another replica."
            )
        return columns

    def body(self) -> memoryview:
        """Return the decompressed body. Raises CorruptionError if it does not match its header."""
        stored = self.view[HEADER_SIZE_BYTES:]
        if self.header.codec is Codec.NONE:
            return stored
        try:
            return memoryview(decompress(stored, self.header.codec, self.header.body_size_bytes))
        except CorruptionError as error:
            raise CorruptionError(
                f"Cannot decompress the batch at offset {self.base_offset} ({len(stored)} bytes). {error}"
            ) from None

    def offsets(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        deltas = self.columns.deltas
        if deltas is None:
            return np.arange(self.base_offset, self.base_offset + self.record_count, dtype=np.int64)
        return self.base_offset + deltas.astype(np.int64)

    def timestamps_ns(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        own = self.columns.timestamps_ns
        return np.full(self.record_count, self.timestamp_ns, dtype=np.int64) if own is None else own

    def values(self) -> list[bytes | None]:
        return self.columns.values.to_list()

    def keys(self) -> list[bytes | None]:
        """Return the keys as Python objects. They are all None if the batch has no key column."""
        return self.columns.keys.to_list() if self.columns.keys is not None else [None] * self.record_count

    def replies(self) -> list[str | None]:
        replies = self.columns.replies
        if replies is None:
            return [None] * self.record_count
        return [None if r is None else r.decode("utf-8", "surrogateescape") for r in replies.to_list()]

    def records(self) -> Iterator[Record]:
        """Yield the records one by one. Use it for user callbacks only. All other code works on columns."""
        columns = self.columns
        values = self.values()
        rows = zip(
            self.offsets().tolist(),
            repeat(self.timestamp_ns) if columns.timestamps_ns is None else columns.timestamps_ns.tolist(),
            repeat(None) if columns.keys is None else columns.keys.to_list(),
            values,
            repeat(()) if columns.headers is None else columns.headers.to_list(),
            repeat("") if columns.subjects is None else columns.subjects.each(),
            repeat(None) if columns.replies is None else self.replies(),
            repeat(self.leader_epoch),
            strict=False,  # of the endless ones; the others were checked against the count
        )
        return map(_RECORD_OF, rows)


class Body(NamedTuple):
    """Records of a batch, laid out and compressed, without the header. ``add_header`` adds it with the leader's fields."""

    pieces: tuple[bytes, ...]
    codec: Codec
    columns: Columns
    record_count: int
    body_size_bytes: int
    """Size before compression, in bytes."""
    last_offset_delta: int
    size_bytes: int
    """Size of the batch with its header, in bytes."""


def encode_body(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
    subjects: Sequence[str] | None = None,
    replies: Sequence[str | None] | None = None,
    timestamps_ns: Sequence[int] | None = None,
    offset_deltas: Sequence[int] | None = None,
    codec: Codec = Codec.NONE,
    note: bytes = b"",
) -> Body:
    """Return the body of a batch of ``len(values)`` records, at least one.

    Optional columns have one entry per record. A column in which every entry is None is omitted. ``codec``: compression.
    ``note``: encoded fields of the producer. Raises ValueError for no records or columns of other lengths. Raises
    BatchTooLargeError for a batch of more than MAX_BATCH_BYTES before compression.
    """
    present, pieces = encode_columns(values, keys, headers, subjects, replies, timestamps_ns, offset_deltas, note)
    last_delta = offset_deltas[-1] if offset_deltas is not None else len(values) - 1
    return sized_body(pieces, present, len(values), codec, last_delta)


def sized_body(pieces: list[bytes], present: Columns, count: int, codec: Codec, last_delta: int | None = None) -> Body:
    """Return a body of ``count`` records, compressed with ``codec``. Raises BatchTooLargeError.

    There is room for the offsets of the records. Compaction and filtered reads add them when they remove other records.

    Args:
        pieces: Columns as laid out, in order.
        present: Flags of these columns.
        count: Number of records.
        codec: Compression.
        last_delta: Offset of the last record, relative to the first one. None: the offsets have no gap.
    """
    body_size_bytes = sum(map(len, pieces))
    most_bytes = HEADER_SIZE_BYTES + body_size_bytes + (0 if Columns.DELTAS in present else _padded(4 * count))
    if most_bytes > MAX_BATCH_BYTES:
        raise BatchTooLargeError(most_bytes)
    if codec is not Codec.NONE:
        compressed = compress(b"".join(pieces), codec)
        if HEADER_SIZE_BYTES + len(compressed) > MAX_BATCH_BYTES:  # data that does not compress becomes a little larger
            codec = Codec.NONE
        else:
            pieces = [compressed]
    size_bytes = HEADER_SIZE_BYTES + sum(map(len, pieces))
    last_delta = count - 1 if last_delta is None else last_delta
    return Body(tuple(pieces), codec, present, count, body_size_bytes, last_delta, size_bytes)


def add_header(
    body: Body,
    *,
    base_offset: int = 0,
    leader_epoch: int = 0,
    timestamp_ns: int = 0,
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    control: bool = False,
) -> bytes:
    """Return the complete batch: ``body`` with a header of these fields and its CRC. Producer fields are 0 without a producer."""
    head = _HEADER.pack(
        0,
        MAGIC,
        VERSION,
        body.codec.value | (_CONTROL if control else 0),
        body.size_bytes,
        body.record_count,
        base_offset,
        leader_epoch,
        timestamp_ns,
        producer_id,
        base_sequence,
        producer_epoch,
        body.columns.value,
        body.body_size_bytes,
        body.last_offset_delta,
    )[4:]
    crc = crc32c.crc32c(head)
    for piece in body.pieces:  # a handful: joining them once, at the end, saves a copy of the body
        crc = crc32c.crc32c(piece, crc)
    return b"".join((_CRC.pack(crc), head, *body.pieces))


def replace_body(header: BatchHeader, body: Body) -> bytes:
    """Return a batch of ``body`` with the offset, epoch, time, producer and kind of ``header``."""
    return add_header(
        body,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        timestamp_ns=header.timestamp_ns,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        control=header.control,
    )


def build_filler(base_offset: int, next_offset: int, leader_epoch: int, timestamp_ns: int) -> bytes:
    """Return a filler: a batch without records over the offsets ``base_offset`` (inclusive) to ``next_offset`` (exclusive).

    It replaces batches that compaction removed, so that batches follow each other without a gap [D15].
    """
    fields = (HEADER_SIZE_BYTES, 0, base_offset, leader_epoch, timestamp_ns, 0, 0, 0, 0, 0, next_offset - base_offset - 1)
    head = _HEADER.pack(0, MAGIC, VERSION, 0, *fields)[4:]
    return _CRC.pack(crc32c.crc32c(head)) + head


def build_remains(batch: RecordBatch) -> bytes:
    """Build the control batch that compaction leaves when it removes all records of a producer's last batch.

    It has the same offsets, stamps and note, so that a reader of the log knows the position of the producer [A4].

    Its only record is null. A batch with a column must have a record, and readers skip records of control batches.
    """
    header = batch.header
    delta, note = header.last_offset_delta, batch.columns.note
    body = encode_body([None], offset_deltas=[delta] if delta else None, note=b"" if note is None else bytes(note))
    return replace_body(header._replace(control=True), body)


def reach(batch: bytes | memoryview, next_offset: int) -> bytes:
    """Return ``batch`` with its offset range extended to ``next_offset`` (exclusive), and with a new CRC.

    Compaction uses it when it has removed the records after the batch.
    """
    stretched = bytearray(batch)
    base_offset = struct.unpack_from("<q", stretched, 16)[0]
    struct.pack_into("<I", stretched, 60, next_offset - base_offset - 1)
    _CRC.pack_into(stretched, 0, crc32c.crc32c(memoryview(stretched)[4:]))
    return bytes(stretched)


def with_producer_epoch(batch: bytes, producer_epoch: int) -> bytes:
    """Return ``batch`` with another producer epoch in its header and a new CRC."""
    stamped = bytearray(batch)
    struct.pack_into("<H", stamped, 52, producer_epoch)
    _CRC.pack_into(stamped, 0, crc32c.crc32c(memoryview(stamped)[4:]))
    return bytes(stamped)


def parse_header(buffer: memoryview, position: int = 0) -> BatchHeader:
    """Return the header of the batch at ``position`` of ``buffer``. Its CRC is not checked.

    Raises UnknownFormatError for another version [S11], CorruptionError for anything that is not a whole batch.
    """
    _check_length(buffer, position)
    fields = _HEADER.unpack_from(buffer, position)
    crc, magic, version, attributes, size_bytes, count, base, epoch, timestamp, producer, sequence, producer_epoch = fields[:12]
    if magic != MAGIC:
        raise CorruptionError(
            f"Damaged batch at position {position}: wrong magic number {magic:#06x}. The node repairs it from another replica."
        )
    if version != VERSION:
        raise UnknownFormatError(
            f"The batch at position {position} has format version {version}, but this version reads {VERSION}. Upgrade liftpy."
        )
    columns, body_size_bytes, last_delta = fields[12:]
    if attributes & _CODEC_MASK >= len(_CODECS) or columns & ~_ALL_COLUMNS or attributes & ~(_CODEC_MASK | _CONTROL):
        raise UnknownFormatError(f"The batch at position {position} has an unknown codec or column. Upgrade liftpy.")
    in_bounds = HEADER_SIZE_BYTES < size_bytes <= MAX_BATCH_BYTES and body_size_bytes <= MAX_BATCH_BYTES
    filler = size_bytes == HEADER_SIZE_BYTES and count == body_size_bytes == columns == 0
    dense = count == last_delta + 1 or (columns & _DELTAS and count <= last_delta + 1)
    numbers = base >= 0 and base + last_delta < _MAX_I64 and epoch <= _MAX_I64
    if not (numbers and ((in_bounds and count > 0 and dense) or filler)):
        raise CorruptionError(
            f"The batch at position {position} has an invalid header: {size_bytes} bytes, {count} records at offset {base}. "
            "The node repairs it from another replica."
        )
    return BatchHeader(
        crc,
        _CODECS[attributes & _CODEC_MASK],
        bool(attributes & _CONTROL),
        size_bytes,
        count,
        base,
        epoch,
        timestamp,
        producer,
        sequence,
        producer_epoch,
        columns,
        body_size_bytes,
        last_delta,
    )


def claimed_size_bytes(buffer: memoryview) -> int:
    """Return the size of a batch as the header at its begin states it, unchecked. Use it only to read the bytes for ``parse_batch``.

    Raises CorruptionError if there is no complete header.
    """
    _check_length(buffer, 0)
    return int(_HEADER.unpack_from(buffer)[4])


def _check_length(buffer: memoryview, position: int) -> None:
    if len(buffer) - position < HEADER_SIZE_BYTES:
        raise CorruptionError(
            f"Damaged batch at position {position}: {len(buffer) - position} bytes are less than a batch header. The node repairs it "
            "from another replica."
        )


def parse_batch(buffer: bytes | memoryview, position: int = 0, *, verify: bool = True) -> RecordBatch:
    """Return the batch at ``position`` of ``buffer``. ``verify``: True to check its CRC.

    Raises UnknownFormatError for another version, CorruptionError for anything else that is not a complete, valid batch.
    """
    view = memoryview(buffer)
    try:
        header = parse_header(view, position)
    except UnknownFormatError:
        _refuse_if_damaged(view, position)
        raise
    end = position + header.size_bytes
    if end > len(view):
        raise CorruptionError(
            f"Damaged batch at position {position}: its header says {header.size_bytes} bytes, but only "
            f"{len(view) - position} exist. The node repairs it from another replica."
        )
    if verify and crc32c.crc32c(view[position + 4 : end]) != header.crc:
        raise CorruptionError(
            f"Damaged batch at position {position} (offset {header.base_offset}): its CRC-32C does not match. The node repairs it from "
            "another replica."
        )
    return RecordBatch(header, view[position:end])


def split_batches(buffer: bytes | memoryview, *, verify: bool = True) -> list[RecordBatch]:
    """Return the consecutive batches in ``buffer``. ``verify``: True to check their CRCs.

    Raises the errors of ``parse_batch``. DamagedBatchError contains the offset of the damaged batch.
    """
    view = memoryview(buffer)
    batches: list[RecordBatch] = []
    position = 0
    try:
        while position < len(view):
            batch = parse_batch(view, position, verify=verify)
            batches.append(batch)
            position += batch.header.size_bytes
    except CorruptionError as error:
        raise DamagedBatchError(str(error), batches[-1].next_offset if batches else NO_OFFSET) from None
    return batches


def _refuse_if_damaged(view: memoryview, position: int) -> None:
    """Raise CorruptionError if a batch of a seemingly unknown version has a wrong CRC, because then a bit has flipped."""
    crc, _, _, _, size_bytes = _HEADER.unpack_from(view, position)[:5]
    if crc32c.crc32c(view[position + 4 : position + size_bytes]) != crc:
        raise CorruptionError(
            f"Damaged batch at position {position}: its version, codec or column flags are invalid. The node repairs "
            "it from another replica."
        )


# ---- records by columns ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class ByteArray:
    """A column of byte strings, in the layout of Arrow's large binary arrays.

    Attributes:
        offsets: int64[count + 1], where each entry begins in ``data``, and where the last one ends.
        data: Bytes of all entries.
        valid: bool[count], False where an entry is null and has no bytes. Default None: no entry is null.

    Example:
        values = ByteArray.of([b"one", None, b"three"])
    """

    offsets: NDArray[np.int64]
    data: memoryview
    valid: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, entries: Sequence[bytes | None]) -> ByteArray:
        """Return a column of ``entries``.

        Args:
            entries: The byte strings. None: a null.
        """
        lengths = np.fromiter((len(entry or b"") for entry in entries), dtype=np.int64, count=len(entries))
        valid = np.fromiter((entry is not None for entry in entries), dtype=np.bool_, count=len(entries))
        data = memoryview(b"".join([entry or b"" for entry in entries]))
        return cls(np.concatenate(([0], np.cumsum(lengths))), data, None if valid.all() else valid)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.offsets[1:] - self.offsets[:-1]

    def column(self, start: int, end: int) -> BytesColumn:
        """Return the entries of a range as a column of a batch.

        Args:
            start: First entry, inclusive.
            end: End of the range, exclusive. The range has less than 2 GiB.
        """
        first, last = int(self.offsets[start]), int(self.offsets[end])
        ends = (self.offsets[start + 1 : end + 1] - first).astype(np.uint32)
        validity = None
        if self.valid is not None and not self.valid[start:end].all():
            validity = memoryview(np.packbits(self.valid[start:end], bitorder="little").tobytes())
        return BytesColumn(ends, self.data[first:last], validity)


@dataclass(frozen=True, slots=True, eq=False)
class HeaderArray:
    """Headers of records as columns.

    Attributes:
        offsets: int64[count + 1], where the headers of each record begin in ``names``, and where the last ones end.
        names: Names of all headers in order, without nulls.
        values: Values of all headers in order, without nulls.
    """

    offsets: NDArray[np.int64]
    names: ByteArray
    values: ByteArray

    def column(self, start: int, end: int) -> HeadersColumn:
        """Return the headers of a range of records as a column of a batch.

        Args:
            start: First record, inclusive.
            end: End of the range, exclusive.
        """
        first, last = int(self.offsets[start]), int(self.offsets[end])
        ends = (self.offsets[start + 1 : end + 1] - first).astype(np.uint32)
        return HeadersColumn(ends, self.names.column(first, last), self.values.column(first, last))


@dataclass(frozen=True, slots=True, eq=False)
class RecordColumns:
    """Values, keys and headers of records as columns of the same length, for ``Producer.send_columns``.

    A sender that has arrays makes batches of them without a Python statement for each record. The columns have the layout of
    Arrow's buffers: offsets, bytes, validity. A batch is cut out of them by slices and subtractions of arrays.

    Attributes:
        values: Value of each record. A null is a tombstone.
        keys: Key of each record. Default None: no record has a key.
        headers: Headers of each record. Default None: no record has headers.

    Raises:
        ConfigError: The columns have different lengths.

    Example:
        columns = RecordColumns(ByteArray.of([b"one", b"two"]), keys=ByteArray.of([b"a", b"b"]))
        await producer.send_columns(columns, partition=0)
    """

    values: ByteArray
    keys: ByteArray | None = None
    headers: HeaderArray | None = None

    def __post_init__(self) -> None:
        counts = [len(column.offsets) - 1 for column in (self.keys, self.headers) if column is not None]
        if any(count != len(self.values) for count in counts):
            raise ConfigError(
                f"The columns have different lengths: {counts} entries for {len(self.values)} values. Pass one entry per value."
            )

    def __len__(self) -> int:
        return len(self.values)

    def sizes(self, record_bytes: int) -> NDArray[np.int64]:
        """Return the approximate size of each record in bytes, as int64[count].

        Args:
            record_bytes: Overhead of a record and of each of its headers, in bytes.
        """
        sizes = self.values.lengths + record_bytes
        if self.keys is not None:
            sizes = sizes + self.keys.lengths
        if self.headers is not None:
            pairs = np.concatenate(([0], np.cumsum(self.headers.names.lengths + self.headers.values.lengths + record_bytes)))
            sizes = sizes + np.diff(pairs[self.headers.offsets])
        return sizes

    def cut(self, start: int, end: int) -> ColumnSet:
        """Return the columns of a range of records, for a batch.

        Args:
            start: First record, inclusive.
            end: End of the range, exclusive.
        """
        keys = None if self.keys is None else self.keys.column(start, end)
        if keys is not None and self.keys is not None and self.keys.valid is not None and not self.keys.valid[start:end].any():
            keys = None
        headers = None if self.headers is None else self.headers.column(start, end)
        if headers is not None and not len(headers.names.ends):
            headers = None
        return ColumnSet(self.values.column(start, end), keys, headers)


def body_of(columns: ColumnSet) -> Body:
    """Return the body of a batch of ``columns``, without compression. Raises BatchTooLargeError."""
    present, pieces = Columns.NONE, encode_bytes_column(columns.values)
    if columns.values.validity is not None:
        present |= Columns.VALUE_NULLS
    if columns.keys is not None:
        present |= Columns.KEYS | (Columns.NONE if columns.keys.validity is None else Columns.KEY_NULLS)
        pieces += encode_bytes_column(columns.keys)
    if columns.headers is not None:
        present |= Columns.HEADERS
        pieces += laid_out_headers(columns.headers)
    return sized_body(pieces, present, len(columns.values.ends), Codec.NONE)


def few_headers(body: memoryview, count: int, present: Columns) -> list[tuple[int, bytes, bytes]]:
    """Return (index of the record, name, value) of all headers of a batch, in order.

    For few records it is faster than columns. ``body``: decompressed body, which has a headers column. ``count``: number of
    records, at least 1. ``present``: flags of its columns. Raises CorruptionError if the headers do not fit into the body.
    """
    position = 0
    try:
        for nulls, is_there in ((Columns.VALUE_NULLS, True), (Columns.KEY_NULLS, Columns.KEYS in present)):
            if is_there:
                if nulls in present:
                    position += _padded((count + 7) // 8)
                (size_bytes,) = struct.unpack_from("<I", body, position + 4 * (count - 1))
                position += _padded(4 * count) + _padded(size_bytes)
        ends = struct.unpack_from(f"<{count}I", body, position)
        position += _padded(4 * count)
        names, position = _texts(body, position, ends[-1])
        values, _ = _texts(body, position, ends[-1])
    except struct.error as error:
        raise CorruptionError(
            f"Damaged batch: its headers end beyond the batch: {error}. The node repairs it from another replica."
        ) from None
    pairs, first = [], 0
    for record, end in enumerate(ends):
        if not first <= end <= ends[-1]:
            raise CorruptionError(
                "Damaged batch: the end positions of a column are not ascending. The node repairs it from another replica."
            )
        pairs += [(record, names[pair], values[pair]) for pair in range(first, end)]
        first = end
    return pairs


def _texts(body: memoryview, position: int, count: int) -> tuple[list[bytes], int]:
    if position + 4 * count > len(body):
        raise CorruptionError(
            f"Damaged batch: it has fewer bytes than its {count} headers need. The node repairs it from another replica."
        )
    ends = struct.unpack_from(f"<{count}I", body, position)
    position += _padded(4 * count)
    size_bytes = ends[-1] if count else 0
    if position + size_bytes > len(body) or any(end < before for before, end in pairwise(ends)):
        raise CorruptionError(
            "Damaged batch: the sizes of its header columns do not match. The node repairs it from another replica."
        )
    data = bytes(body[position : position + size_bytes])
    return [data[start:end] for start, end in pairwise((0, *ends))], position + _padded(size_bytes)


def _padded(size_bytes: int) -> int:
    return size_bytes + -size_bytes % 8
