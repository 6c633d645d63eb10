"""Test that the Arrow rows are the records, for any batches and any split."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.config import Codec
from liftpy.core.log.arrow import SCHEMA, to_arrow
from liftpy.core.wire.batch import RecordBatch, build_filler, parse_batch, split_batches
from liftpy.errors import CorruptionError
from tests.batches import build_batch
from tests.long import examples

_bytes = st.binary(max_size=12)
_name = st.text("abé", min_size=1, max_size=4)


@st.composite
def _logs(draw: st.DrawFn) -> list[RecordBatch]:
    """Batches that follow on each other, each with columns of its own."""
    offset, buffer = draw(st.integers(0, 50)), b""
    for epoch in range(1, draw(st.integers(1, 5)) + 1):
        count = draw(st.integers(0, 6))
        if count == 0:
            buffer += build_filler(offset, offset + 3, epoch, 0)
            offset += 3
            continue

        def column(entry: st.SearchStrategy, count: int = count) -> list | None:
            return draw(st.none() | st.lists(entry, min_size=count, max_size=count))

        deltas = draw(st.none() | st.sets(st.integers(0, 30), min_size=count, max_size=count).map(sorted))
        made = build_batch(
            draw(st.lists(st.none() | _bytes, min_size=count, max_size=count)),
            base_offset=offset,
            leader_epoch=epoch,
            timestamp_ns=epoch * 1000,
            keys=column(st.none() | _bytes),
            headers=column(st.none() | st.lists(st.tuples(_name, _bytes), max_size=2)),
            subjects=column(_name),
            timestamps_ns=column(st.integers(0, 2**60)),
            offset_deltas=deltas,
            codec=draw(st.sampled_from(Codec)),
        )
        buffer += made
        offset = parse_batch(made).next_offset
    return split_batches(buffer)


def _rows(batches: list[RecordBatch], first: int, end: int) -> list[dict]:
    return [
        {
            "offset": r.offset,
            "timestamp": r.timestamp_ns,
            "key": r.key,
            "value": r.value,
            "headers": [{"key": k, "value": v} for k, v in r.headers] or None,
            "subject": r.subject,
            "leader_epoch": r.leader_epoch,
        }
        for batch in batches
        for r in batch.records()
        if first <= r.offset < end
    ]


@settings(max_examples=examples(80), deadline=None)
@given(_logs(), st.integers(0, 60), st.integers(0, 150))
def test_to_arrow_rows_are_the_records_between_the_offsets(batches: list[RecordBatch], first: int, end: int) -> None:
    got = to_arrow(batches, from_offset=first, end_offset=end)
    got.validate(full=True)
    numbers = pa.RecordBatch.from_arrays(
        [c.cast(pa.int64()) if n == "timestamp" else c for n, c in zip(got.schema.names, got.columns, strict=True)],
        names=got.schema.names,
    )
    assert got.schema == SCHEMA
    assert numbers.to_pylist() == _rows(batches, first, end)


def test_to_arrow_without_batches_has_no_rows() -> None:
    assert to_arrow([]).num_rows == 0
    assert to_arrow([]).schema == SCHEMA


def test_to_arrow_returns_the_chosen_columns() -> None:
    got = to_arrow(split_batches(build_batch([b"a"], base_offset=4)), columns=["value", "offset"])
    assert got.to_pydict() == {"value": [b"a"], "offset": [4]}


def test_to_arrow_does_not_copy_the_bytes_of_a_single_batch() -> None:
    buffer = build_batch([b"abc", b"defgh"])
    data = to_arrow(split_batches(buffer)).column("value").buffers()[2]
    assert np.shares_memory(np.frombuffer(data, dtype=np.uint8), np.frombuffer(buffer, dtype=np.uint8))


def test_to_arrow_with_inconsistent_columns_raises_corruption() -> None:
    damaged = bytearray(build_batch([b"abc"]))
    damaged[64:68] = b"\xff\xff\xff\x7f"
    with pytest.raises(CorruptionError):
        to_arrow(split_batches(bytes(damaged), verify=False))


def test_to_arrow_leaves_out_control_batches() -> None:
    parts = [
        build_batch([b"a", b"b"], base_offset=0, leader_epoch=1),
        build_batch([b"for the log itself"], base_offset=2, leader_epoch=1, control=True),
        build_batch([b"c"], base_offset=3, leader_epoch=1),
    ]
    rows = to_arrow(split_batches(b"".join(parts)), columns=["offset", "value"])
    assert rows.to_pydict() == {"offset": [0, 1, 3], "value": [b"a", b"b", b"c"]}
    assert to_arrow(split_batches(parts[1])).num_rows == 0
    assert to_arrow(split_batches(b"".join(parts)), from_offset=1, end_offset=3).num_rows == 1
