"""Test each limit of the wire and disk formats, at the limit and one above, and values that only a forger sends."""

from __future__ import annotations

import random
import struct
from typing import Any

import crc32c
import numpy as np
import pytest

from liftpy.config import Codec
from liftpy.core.base.ids import check_data_subject, check_name, check_publisher_subject
from liftpy.core.base.strict_json import load_json, whole_number
from liftpy.core.wire import batch as batches
from liftpy.core.wire import batch_columns, envelope, frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import (
    BatchTooLargeError,
    Record,
    build_filler,
    encode_body,
    parse_batch,
    parse_header,
    split_batches,
)
from liftpy.core.wire.envelope import EnvelopeError, MessageType
from liftpy.core.wire.filters import keep_records
from liftpy.core.wire.headers import is_reserved, is_status, may_be_enveloped, pairs_of, parse_headers
from liftpy.core.wire.subjects import Subjects, is_protocol_shaped
from liftpy.errors import ConfigError, CorruptionError, InvalidNameError, ProtocolError
from tests.batches import build_batch
from tests.each import each

MOST = (1 << 63) - 1
FIELDS = {"size": (8, "<I"), "count": (12, "<I"), "base": (16, "<q"), "epoch": (24, "<Q"), "columns": (54, "<H"),
          "body": (56, "<I"), "delta": (60, "<I"), "attributes": (7, "<B")}  # fmt: skip


def forged(data: bytes, **fields: int) -> bytes:
    """The batch with other header fields and a right CRC."""
    changed = bytearray(data)
    for name, value in fields.items():
        position, kind = FIELDS[name]
        struct.pack_into(kind, changed, position, value)
    struct.pack_into("<I", changed, 0, crc32c.crc32c(bytes(changed[4:])))
    return bytes(changed)


BATCH = build_batch([b"a", b"b", b"c"], base_offset=5, leader_epoch=3)
HOLES = build_batch([b"a", b"b"], base_offset=5, leader_epoch=3, offset_deltas=[0, 4])


@each(
    ("data", "right", "wrong"),
    [
        (BATCH, {"base": 0}, {"base": -1}),
        (BATCH, {"base": MOST - 3}, {"base": MOST - 2}),
        (BATCH, {"epoch": MOST}, {"epoch": MOST + 1}),
        (BATCH, {"delta": 2}, {"delta": 3}),
        (BATCH, {"delta": 2}, {"delta": 1}),
        (HOLES, {"delta": 1}, {"delta": 0}),  # as many records as offsets, then more
        (build_filler(5, 9, 1, 0), {"delta": 1 << 31}, {"count": 1}),
        (build_filler(5, 9, 1, 0), {"delta": 0}, {"body": 1}),
        (build_filler(5, 9, 1, 0), {"delta": 0}, {"columns": 1}),
        (BATCH, {"attributes": 8}, {"size": 63}),
        (BATCH, {"body": 64 << 20}, {"body": (64 << 20) + 1}),
    ],
)
def test_batch_header_with_impossible_values_is_rejected(data: bytes, right: dict[str, int], wrong: dict[str, int]) -> None:
    parse_header(memoryview(forged(data, **right)))
    with pytest.raises(CorruptionError):
        parse_header(memoryview(forged(data, **wrong)))


def test_batch_with_a_column_past_its_end_is_rejected() -> None:
    batch, told = parse_batch(forged(HOLES, delta=3)), []
    batch.on_damage = told.append
    with pytest.raises(CorruptionError) as error:
        batch.values()
    assert told == [error.value]
    whole = parse_batch(forged(HOLES, delta=4))
    whole.on_damage = told.append
    assert (whole.values(), whole.offsets().tolist(), len(told)) == ([b"a", b"b"], [5, 9], 1)


@pytest.mark.parametrize("behind", [1, 63, 64])
def test_split_batches_with_bytes_after_the_last_batch_raises(behind: int) -> None:
    assert [b.base_offset for b in split_batches(BATCH + forged(BATCH, base=8))] == [5, 8]
    with pytest.raises(CorruptionError):
        split_batches(BATCH + bytes(behind))
    with pytest.raises(CorruptionError):
        split_batches(BATCH + forged(BATCH, base=8)[:behind])


def test_batch_header_fields_are_at_their_documented_byte_positions() -> None:
    stamps = {
        "base_offset": 101, "leader_epoch": 102, "timestamp_ns": -103, "producer_id": 104, "base_sequence": 105, "producer_epoch": 106,
    }  # fmt: skip
    data = build_batch([b"aa", b"b"], keys=[b"k", None], offset_deltas=[0, 6], codec=Codec.ZSTD, control=True, **stamps)  # type: ignore[arg-type]
    header = parse_batch(data).header
    assert {name: getattr(header, name) for name in stamps} == stamps
    crc, magic, version, attributes, *numbers = struct.unpack("<IHBBIIqQqQIHHII", data[:64])
    assert (magic, version, attributes) == (0x424C, 1, 0b1010)
    assert numbers == [
        len(data), 2, 101, 102, -103, 104, 105, 106, header.column_bits, header.body_size_bytes, 6,
    ]  # fmt: skip
    assert (header.crc, header.control, header.codec, header.record_count) == (crc, True, Codec.ZSTD, 2)
    assert (header.last_offset, header.next_offset) == (107, 108)
    assert crc == crc32c.crc32c(data[4:])
    assert header.body_size_bytes == build_batch([b"aa", b"b"], keys=[b"k", None], offset_deltas=[0, 6]).__len__() - 64


def test_build_batch_above_the_size_limit_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    room_for_offsets = 8
    monkeypatch.setattr(batches, "MAX_BATCH_BYTES", encode_body([b"x" * 100]).size_bytes + room_for_offsets)
    assert parse_batch(build_batch([b"x" * 100])).values() == [b"x" * 100]
    with pytest.raises(BatchTooLargeError):
        encode_body([b"x" * 108])
    with pytest.raises(BatchTooLargeError):  # before compression it is: nobody could read it
        encode_body([b"x" * 108], codec=Codec.ZSTD)
    monkeypatch.setattr(batches, "compress", lambda body, codec: body + b"!" * 9)  # what does not compress gets larger
    assert encode_body([b"x" * 100], codec=Codec.LZ4).codec is Codec.NONE


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("count", [2, 3, 50])
def test_batch_of_the_maximum_size_has_room_for_a_part_of_its_records(
    count: int, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction and filtered reads build batches with some of the records, and with their offsets."""
    for size_bytes in range(1, 60, 7):
        values: list[bytes | None] = [random.Random(number).randbytes(size_bytes) for number in range(count)]
        values[0] = b""
        monkeypatch.setattr(batches, "MAX_BATCH_BYTES", 1 << 20)
        largest = encode_body(values, subjects=["s"] * count).size_bytes
        for maximum in range(largest, largest + 4 * count + 16):
            monkeypatch.setattr(batches, "MAX_BATCH_BYTES", maximum)
            try:
                batch = parse_batch(build_batch(values, subjects=["s"] * count, codec=codec))
            except BatchTooLargeError:
                continue
            mask = np.arange(count) > 0
            assert parse_batch(keep_records(batch, mask)).values() == values[1:]
            break
        else:
            raise AssertionError("no size is large enough")


def column_body(*numbers: int, data: bytes = b"") -> memoryview:
    """Values of ``numbers`` (ends), then ``data``, each from an 8-byte boundary on."""
    ends = struct.pack(f"<{len(numbers)}I", *numbers)
    return memoryview(ends + bytes(-len(ends) % 8) + data + bytes(-len(data) % 8))


@pytest.mark.parametrize("ends", [(3, 2), (1, 3, 2), (2, 1, 3), (5, 4, 9)])
def test_batch_column_with_decreasing_end_positions_is_rejected(ends: tuple[int, ...]) -> None:
    with pytest.raises(CorruptionError):
        batch_columns.decode_columns(column_body(*ends, data=b"abcdefghi"), len(ends), batch_columns.Columns.NONE)
    rising = tuple(sorted(ends))
    found = batch_columns.decode_columns(column_body(*rising, data=b"abcdefghi"), len(ends), batch_columns.Columns.NONE)
    assert b"".join(v or b"" for v in found.values.to_list()) == b"abcdefghi"[: rising[-1]]


@pytest.mark.parametrize(("deltas", "fits"), [((0, 1, 2), True), ((0, 1, 1), False), ((0, 2, 1), False), ((1, 1, 2), False)])
def test_batch_with_offset_deltas_that_do_not_increase_is_rejected(deltas: tuple[int, ...], fits: bool) -> None:
    body = bytes(column_body(1, 2, 3, data=b"abc")) + struct.pack("<3I", *deltas)
    if fits:
        assert batch_columns.decode_columns(memoryview(body), 3, batch_columns.Columns.DELTAS).deltas is not None
    else:
        with pytest.raises(CorruptionError):
            batch_columns.decode_columns(memoryview(body), 3, batch_columns.Columns.DELTAS)


@pytest.mark.parametrize(
    ("entries", "index", "found"),
    [
        (b"xy", (0, 1, 0), ["x", "y", "x"]),
        (b"xy", (0, 1, 2), None),
        (b"xy", (9, 0, 1), None),
        (b"", (0, 0, 0), None),
        (b"x", (0, 0, 0), ["x", "x", "x"]),
        (b"xyz", (2, 1, 0), ["z", "y", "x"]),
        (b"wxyz", (0, 0, 0), None),
    ],
)
def test_batch_dictionary_has_one_entry_to_one_per_record_and_each_index_names_an_entry(
    entries: bytes, index: tuple[int, ...], found: list[str] | None
) -> None:
    dictionary = struct.pack("<II", len(entries), 0) + bytes(column_body(*range(1, len(entries) + 1), data=entries))
    body = memoryview(bytes(column_body(1, 2, 3, data=b"abc")) + dictionary + struct.pack("<3I", *index) + bytes(4))
    if found is None:
        with pytest.raises(CorruptionError):
            batch_columns.decode_columns(body, 3, batch_columns.Columns.SUBJECTS)
    else:
        subjects = batch_columns.decode_columns(body, 3, batch_columns.Columns.SUBJECTS).subjects
        assert subjects is not None
        assert subjects.to_list() == found


@each("count", [1, 7, 8, 9, 24, 25, 64, 65])
def test_batch_columns_of_any_length_encoded_and_decoded_are_equal(count: int) -> None:
    """Around a byte of the bitmap, and where numpy takes over."""
    values = [None if i % 3 == 2 else bytes([i]) * (i % 5) for i in range(count)]
    headers = [((f"h{i}", b"v"),) * (i % 3) for i in range(count)]
    replies = [None if i % 2 else f"r{i}" for i in range(count)]
    subjects = [f"s{i % 3}" for i in range(count)]
    found = parse_batch(build_batch(values, keys=values[::-1], headers=headers, subjects=subjects, replies=replies))
    assert found.values() == values
    assert found.keys() == (values[::-1] if any(v is not None for v in values) else [None] * count)
    assert [(r.headers, r.subject, r.reply) for r in found.records()] == list(zip(headers, subjects, replies, strict=True))


class Long:
    """An entry of so many bytes that nobody has to hold."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


@pytest.mark.parametrize("count", [4, 40])
def test_batch_column_of_two_gibibytes_is_rejected(count: int) -> None:
    share = (1 << 31) // count
    with pytest.raises(ValueError, match="2 GiB"):
        batch_columns._ends([Long(share), *(Long(share) for _ in range(count - 1)), Long((1 << 31) % count)])
    assert len(batch_columns._ends([*(Long(share) for _ in range(count - 1)), Long(share - 1)])) == 4 * count


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("off_by", [-1, 1, 1 << 30])
def test_batch_body_of_another_than_the_declared_size_is_rejected(codec: Codec, off_by: int) -> None:
    body = b"many of the same " * 40
    stored = memoryview(batches.compress(body, codec))
    assert batches.decompress(stored, codec, len(body)) == body
    with pytest.raises(CorruptionError):
        batches.decompress(stored, codec, len(body) + off_by)


# ---- envelopes and frames ----------------------------------------------------------------------------------------------------


@each("kind", list(MessageType))
def test_envelope_of_another_type_is_rejected(kind: MessageType) -> None:
    frame = envelope.encode(kind, b"")
    assert envelope.decode(frame, kind)[0] is kind
    for other in MessageType:
        if other is not kind:
            with pytest.raises(EnvelopeError):
                envelope.decode(frame, other)


def test_read_response_with_a_header_longer_than_its_frame_is_rejected() -> None:
    head = client_pb2.ReadResponse(node="n1", nextOffset=4)
    body = head.SerializeToString()
    for claimed, fits in ((len(body), True), (len(body) + 1, False), (len(body) + 9, False)):
        frame = envelope.encode(MessageType.READ_RESPONSE, struct.pack(">I", claimed) + body)
        if fits:
            assert frames.decode_read_response(frame)[0] == head
        else:
            with pytest.raises(ProtocolError, match="is longer than its frame"):
                frames.decode_read_response(frame)


# ---- names, subjects, headers ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("length", [1, 64, 65])
def test_stream_name_above_64_characters_is_rejected(length: int) -> None:
    if length <= 64:
        assert check_name("n" * length, "x") == "n" * length
    else:
        with pytest.raises(InvalidNameError):
            check_name("n" * length, "x")


@pytest.mark.parametrize("check", [lambda s: check_data_subject(s, "liftpy"), check_publisher_subject])
def test_subject_above_the_maximum_length_or_tokens_is_rejected(check: Any) -> None:
    assert check("a" * 255) == "a" * 255
    assert check("a.*.>") == "a.*.>"
    for wrong in ("a" * 256, "", ".", "a.", ".a", "a..b", "a.>.b", "a b", "a\tb", "a\x7f", "a*", "a.b>"):
        with pytest.raises(InvalidNameError):
            check(wrong)


@each("first", ["liftpy", "*", ">", "$SYS", "$JS", "_INBOX", "_INBOX_alice", "_INBOXES"])
def test_stream_subject_in_the_namespace_of_the_cluster_is_rejected(first: str) -> None:
    for subject in (first,) if first == ">" else (first, f"{first}.x"):
        with pytest.raises(InvalidNameError):
            check_data_subject(subject, "liftpy")
    assert check_data_subject("liftpyx.a", "liftpy") == "liftpyx.a"


def test_protocol_subject_check_accepts_only_protocol_subjects_of_any_namespace() -> None:
    subjects = Subjects("other")
    ours = [subjects.replicate("s", 0), subjects.offset("s", 1), subjects.read("s", 2), subjects.read_from("s", 2, "n1"),
            subjects.notify("n"), subjects.info(), subjects.feed(), subjects.raft("a", "b"), subjects.status("n")]  # fmt: skip
    assert all(map(is_protocol_shaped, ours))
    for data in ("orders", "orders.1", "a.b.c", "a.b.c.d", "a.b.c.reads", "a.b.c.d.read", "a.b.read"):
        assert not is_protocol_shaped(data), data


@pytest.mark.parametrize("name", ["Lift-Key", "lift-key", "LIFT-ANY", "lIfT-x", ""])
def test_reserved_header_name_in_any_case_is_recognized(name: str) -> None:
    assert is_reserved(name)
    assert not may_be_enveloped(name)
    with pytest.raises(ConfigError):
        pairs_of({name: b"x"})
    assert not is_reserved("Lift")
    assert not is_reserved("xlift-")


@pytest.mark.parametrize("value", ["text", b"text", bytearray(b"text"), memoryview(b"text")])
def test_header_value_that_is_neither_text_nor_bytes_raises(value: Any) -> None:
    assert pairs_of([("a", value), ("a", value)]) == (("a", b"text"), ("a", b"text"))
    for wrong in (7, None, [b"x"]):
        with pytest.raises(ConfigError):
            pairs_of({"a": wrong})  # type: ignore[dict-item]


def test_record_headers_are_decoded_in_their_order() -> None:
    record = Record(0, 0, None, None, (("a", b"1"), ("b", b"2"), ("a", b"3")), "", None, 1)
    assert record.header_values("a") == [b"1", b"3"]
    assert (record.header("a"), record.header("A"), record.header("c", b"no")) == (b"1", None, b"no")


def test_header_block_is_parsed_as_by_nats_server() -> None:
    block = b"NATS/1.0\r\nA: one \t\r\nB:\t two\r\nA:three\r\nname\xff: v\xfe\r\nno colon\r\n: no name\r\n\r\n"
    assert parse_headers(block) == [("A", b"one \t"), ("B", b"two"), ("A", b"three"), ("name\udcff", b"v\xfe")]
    assert is_status(b"NATS/1.0 503\r\n\r\n", b"")
    assert not is_status(b"NATS/1.0\r\nA: b\r\n\r\n", b""), "an empty publish with headers"
    assert not is_status(b"NATS/1.0 503\r\n\r\n", b"payload")


# ---- numbers -----------------------------------------------------------------------------------------------------------------
def test_strict_json_rejects_numbers_that_are_not_integers() -> None:
    assert [whole_number(n, 0, 3) for n in (0, 3)] == [0, 3]
    for wrong in (-1, 4, True, False, 1.0, "1", None):
        with pytest.raises(ValueError, match="not a whole number"):
            whole_number(wrong, 0, 3)
    for text in ("1e999", "-1e999", "NaN", "Infinity", "[" * 100_000):
        with pytest.raises(ValueError):
            load_json(text)
    assert load_json("[1.5, 1e300, 10000000000000000000000]") == [1.5, 1e300, 10**22]
