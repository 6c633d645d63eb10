"""Test that a record made by a batch in bulk behaves like a ``Record``."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy.core.wire.batch import Record, build_batch, parse_batch


def made(**columns: Any) -> Record:
    return next(parse_batch(build_batch([b"value"], base_offset=7, leader_epoch=3, timestamp_ns=5, **columns)).records())


def test_batch_record_equals_a_record_with_the_same_fields() -> None:
    record = made(keys=[b"k"], headers=[[("h", b"1"), ("h", b"2")]], subjects=["s.1"], replies=["r"])
    plain = Record(7, 5, b"k", b"value", (("h", b"1"), ("h", b"2")), "s.1", "r", 3)
    assert isinstance(record, Record)
    assert (record, hash(record), repr(record), record._asdict()) == (plain, hash(plain), repr(plain), plain._asdict())
    assert plain == record
    assert (record.header("h"), record.header_values("h"), record._fields) == (b"1", [b"1", b"2"], Record._fields)
    assert record._replace(offset=8) == plain._replace(offset=8)
    match record:
        case Record(offset=7, key=key):
            assert key == b"k"
        case _:
            pytest.fail("it is no Record")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_batch_record_can_be_pickled_and_copied(protocol: int) -> None:
    record = made(keys=[b"k"])
    for other in (pickle.loads(pickle.dumps(record, protocol)), copy.copy(record), copy.deepcopy(record)):
        assert (type(other), other) == (Record, record)


def test_batch_record_is_immutable_and_has_no_instance_dictionary() -> None:
    record: Any = made()
    with pytest.raises(AttributeError):
        record.offset = 8
    with pytest.raises(AttributeError):
        record.anything = 8


@given(st.integers(0, 40), st.integers(1, 70), st.data())
def test_batch_values_of_equal_or_different_sizes_encoded_and_decoded_are_equal(
    size_bytes: int, count: int, data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.binary(min_size=size_bytes, max_size=size_bytes), min_size=count, max_size=count))
    odd = data.draw(st.integers(-1, count - 1))
    if odd >= 0:
        values[odd] = data.draw(st.none() | st.binary(max_size=size_bytes + 1))
    if odd > 0:  # the sizes' sum is what it would be
        values[odd - 1] = bytes(max(2 * size_bytes - len(values[odd] or b""), 0))
    batch = parse_batch(build_batch(values, keys=values))
    assert (batch.values(), batch.keys()) == (values, values)
    assert {type(value) for value in batch.values()} <= {bytes, type(None)}
    assert [record.value for record in batch.records()] == values
