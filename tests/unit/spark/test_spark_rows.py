"""Test Arrow batches built from record batches, without Spark and NATS: equal records and the declared schema."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.client.batch_view import BatchSlice
from liftpy.config import Codec
from liftpy.core.wire.batch import parse_batch
from liftpy.spark import range_reader
from liftpy.spark.range_reader import RowBuilder
from liftpy.spark.schema import arrow_schema, default_columns
from tests.batches import build_batch
from tests.long import examples

ALL = default_columns(include_headers=True, topic=False)
BUILDER = RowBuilder("orders", 3, ALL)


def whole(batch: bytes) -> BatchSlice:
    parsed = parse_batch(memoryview(batch))
    return BatchSlice(parsed, 0, parsed.record_count)


def one_by_one(pieces: list[BatchSlice]) -> list[dict[str, Any]]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
            "subject": record.subject,
            "stream": "orders",
            "partition": 3,
            "offset": record.offset,
            "timestamp": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=record.timestamp_ns // 1000),
            "leader_epoch": record.leader_epoch,
        }
        for piece in pieces
        for record in piece.records()
    ]


def by_columns(pieces: list[BatchSlice], builder: RowBuilder = BUILDER) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch in builder.batches(pieces):
        batch.validate(full=True)
        assert batch.schema.equals(arrow_schema(builder.columns))
        found += batch.to_pylist()
    return found


optional_bytes = st.none() | st.binary(max_size=6)
header_pairs = st.none() | st.lists(st.tuples(st.sampled_from(["a", "b", "é"]), st.binary(max_size=4)), max_size=3)
record = st.tuples(optional_bytes, optional_bytes, header_pairs, st.sampled_from(["", "s", "s.x"]), st.integers(0, 1 << 60))


@st.composite
def sliced_batches(draw: st.DrawFn) -> list[BatchSlice]:
    pieces: list[BatchSlice] = []
    offset = draw(st.integers(0, 1000))
    for records in draw(st.lists(st.lists(record, min_size=1, max_size=20), min_size=1, max_size=5)):
        kept = [draw(st.booleans()) for _ in range(5)]
        batch = parse_batch(
            build_batch(
                [r[0] for r in records],
                keys=[r[1] for r in records] if kept[0] else None,
                headers=[r[2] for r in records] if kept[1] else None,
                subjects=[r[3] for r in records] if kept[2] else None,
                timestamps_ns=[r[4] for r in records] if kept[3] else None,
                offset_deltas=[2 * i for i in range(len(records))] if kept[4] else None,
                base_offset=offset,
                leader_epoch=draw(st.integers(0, 5)),
                timestamp_ns=1_700_000_000_123_456_789,
                codec=draw(st.sampled_from(list(Codec))),
            )
        )
        first = draw(st.integers(0, len(records) - 1))
        pieces.append(BatchSlice(batch, first, draw(st.integers(first + 1, len(records)))))
        offset = batch.next_offset
    return pieces


@settings(max_examples=examples(150), deadline=None)
@given(sliced_batches())
def test_spark_arrow_columns_of_a_batch_equal_the_fields_of_each_record(pieces: list[BatchSlice]) -> None:
    assert by_columns(pieces) == one_by_one(pieces)


def test_spark_arrow_rows_of_small_batches_are_joined() -> None:
    pieces = [whole(build_batch([b"v"] * 8, base_offset=first)) for first in range(0, 20_000, 8)]
    batches = list(RowBuilder("orders", 0, ("offset", "value")).batches(pieces))
    assert [b.num_rows for b in batches] == [range_reader.MAX_ROWS, 20_000 - range_reader.MAX_ROWS]
    assert batches[1].column("offset").to_pylist()[-1] == 19_999


def test_spark_arrow_rows_of_large_batches_are_split_by_rows_and_bytes() -> None:
    many = whole(build_batch([b"x"] * 40_000, base_offset=7))
    assert max(b.num_rows for b in BUILDER.batches([many])) <= range_reader.MAX_ROWS
    assert by_columns([many], RowBuilder("s", 0, ("offset",))) == [{"offset": i} for i in range(7, 40_007)]
    large = whole(build_batch([bytes(1024 * 1024)] * 40))
    batches = list(RowBuilder("s", 0, ("value",)).batches([large]))
    assert sum(b.num_rows for b in batches) == 40
    assert max(b.nbytes for b in batches) <= range_reader.MAX_BYTES + 2 * 1024 * 1024
    six, fourteen = (whole(build_batch([bytes(1024 * 1024)] * count)) for count in (6, 14))
    assert [b.num_rows for b in RowBuilder("s", 0, ("value",)).batches([six, fourteen])] == [6, 14], "joined they are too much"


def test_spark_arrow_rows_of_an_uncompressed_batch_are_not_copied() -> None:
    batch = whole(build_batch([b"0123456789" * 100] * 1000))
    made = list(RowBuilder("s", 0, ("value",)).batches([batch]))
    sealed = pa.py_buffer(batch.batch.view)
    data = made[0].column("value").buffers()[2]
    assert sealed.address <= data.address < sealed.address + sealed.size


@pytest.mark.parametrize("columns", [("offset",), ("timestamp", "offset"), ("headers",), ("stream", "partition")])
def test_spark_arrow_rows_contain_the_selected_columns_in_order(columns: tuple[str, ...]) -> None:
    piece = whole(build_batch([b"a", b"b"], base_offset=5))
    expected = [{name: row[name] for name in columns} for row in one_by_one([piece])]
    assert by_columns([piece], RowBuilder("orders", 3, columns)) == expected
