"""Test reading the headers of a small batch without columns: same result, and no read past the end of the body."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy.config import Codec
from liftpy.core.publish.dedup_window import ids_of
from liftpy.core.publish.log_state import headers_of
from liftpy.core.wire.batch import FEW, build_batch, few_headers, split_batches
from liftpy.core.wire.batch_columns import Columns
from liftpy.errors import CorruptionError

Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]
PAIRS = st.lists(
    st.tuples(st.sampled_from(["Nats-Msg-Id", "h", "", "Nats-Expected-Last-Subject-Sequence"]), st.binary(max_size=9)),
    max_size=3,
)
ROWS = st.lists(
    st.tuples(st.one_of(st.none(), st.binary(max_size=20)), st.one_of(st.none(), st.binary(max_size=3)), PAIRS),
    min_size=1,
    max_size=FEW,
)


@given(ROWS, st.booleans(), st.sampled_from([Codec.NONE, Codec.LZ4]))
def test_few_headers_returns_the_same_headers_as_the_columns(rows: list[Row], keys: bool, codec: Codec) -> None:
    values, of_keys, pairs = zip(*rows, strict=True)
    headers = [tuple(of_record) for of_record in pairs]
    own_keys = of_keys if keys else None
    built = build_batch(values, base_offset=70, leader_epoch=1, keys=own_keys, headers=headers, codec=codec)
    (batch,) = split_batches(built)
    present = Columns(batch.header.column_bits)
    if Columns.HEADERS not in present:
        return
    wanted = [(record, name.encode(), value) for record, of_record in enumerate(pairs) for name, value in of_record]
    assert few_headers(batch.body(), len(rows), present) == wanted
    ids, asks = headers_of(batch)
    assert ids == {70 + record: message_id for record, message_id in ids_of(batch.columns.headers).items()}
    assert asks == any(name == b"Nats-Expected-Last-Subject-Sequence" for _, name, _ in wanted)


def body_of(*pairs: tuple[str, bytes]) -> tuple[bytearray, Columns]:
    (batch,) = split_batches(build_batch([b"v"], base_offset=0, leader_epoch=1, headers=[pairs]))
    return bytearray(batch.body()), Columns(batch.header.column_bits)


def test_few_headers_of_a_truncated_or_inconsistent_body_raises_corruption() -> None:
    whole, present = body_of(("name", b"value"), ("other", b"x"))
    for end in range(len(whole) - 8):
        with pytest.raises(CorruptionError):
            few_headers(memoryview(whole)[:end], 1, present)
    for at in range(0, len(whole) - 3, 4):
        for number in (0, 3, 0xFFFFFFFF):
            broken = bytearray(whole)
            struct.pack_into("<I", broken, at, number)
            try:
                found = few_headers(memoryview(broken), 1, present)
            except CorruptionError:
                continue
            assert sum(len(name) + len(value) for _, name, value in found) <= len(whole)


@pytest.mark.parametrize("column", [0, 1])
def test_few_headers_with_decreasing_end_positions_raises_corruption(column: int) -> None:
    (batch,) = split_batches(build_batch([b"", b""], base_offset=0, leader_epoch=1, headers=[(("a", b"1"),), (("b", b"2"),)]))
    body, at = bytearray(batch.body()), (8, 16)[column]
    ends = struct.unpack_from("<2I", body, at)
    assert ends == (1, 2)
    struct.pack_into("<2I", body, at, 2, 1) if column else struct.pack_into("<2I", body, at, 3, 2)
    with pytest.raises(CorruptionError):
        few_headers(memoryview(body), 2, Columns(batch.header.column_bits))


def test_headers_of_a_batch_with_many_records_are_read_from_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftpy.core.publish.log_state.few_headers", None)
    headers = [(("Nats-Msg-Id", b"%d" % number),) for number in range(FEW + 1)]
    (batch,) = split_batches(build_batch([b""] * (FEW + 1), base_offset=0, leader_epoch=1, headers=headers))
    assert headers_of(batch) == ({number: b"%d" % number for number in range(FEW + 1)}, False)
