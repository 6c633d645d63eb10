"""Test filters of readers and filtered batches against a naive check of each record."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.config import Codec
from liftpy.core.wire import filters
from liftpy.core.wire.batch import Record, RecordBatch, build_filler, parse_batch
from liftpy.core.wire.filters import Filter, SubjectTree, keep_records
from liftpy.core.wire.subjects import matcher
from liftpy.errors import ConfigError, InvalidNameError
from tests.batches import build_batch

_KEYS = [b"", b"a", b"b", b"a\0", b"\0\0", b"ab", b"a" * 40, b"b" * 40]
_SUBJECTS = ["", "o", "o.eu", "o.us", "o.eu.1", "p.eu", "o.\udce9"]
_FILTERS = ["o", "o.*", "o.>", "*.eu", ">", "p.eu", "*.*.1", "q"]

records = st.lists(
    st.tuples(
        st.one_of(st.none(), st.binary(max_size=5)),
        st.one_of(st.none(), st.sampled_from(_KEYS)),
        st.lists(st.tuples(st.sampled_from(["h", "Nats-Msg-Id"]), st.binary(max_size=3)), max_size=2),
        st.sampled_from(_SUBJECTS),
        st.one_of(st.none(), st.just("_INBOX.1.2")),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=30,
)


def made(rows: list[Any], codec: Codec = Codec.NONE, with_times: bool = False) -> RecordBatch:
    """A batch at 100 with holes where the last field of a row is not 0."""
    deltas, at = [], 0
    for row in rows:
        at += row[5]
        deltas.append(at)
        at += 1
    values, keys, headers, subjects, replies = ([row[i] for row in rows] for i in range(5))
    return parse_batch(
        build_batch(
            values,
            base_offset=100,
            leader_epoch=3,
            timestamp_ns=50,
            keys=keys,
            headers=headers,
            subjects=subjects,
            replies=replies,
            timestamps_ns=list(range(1000, 1000 + len(rows))) if with_times else None,
            offset_deltas=deltas,
            codec=codec,
            producer_id=7,
            producer_epoch=2,
            base_sequence=9,
        )
    )


def matches(pattern: str, subject: str) -> bool:
    words, found = pattern.split("."), subject.split(".") if subject else []
    for place, word in enumerate(words):
        if word == ">":
            return len(found) > place
        if place >= len(found) or word not in ("*", found[place]):
            return False
    return len(found) == len(words)


def fits(record: Record, wanted: Filter) -> bool:
    by_subject = not wanted.subjects or any(matches(pattern, record.subject) for pattern in wanted.subjects)
    return by_subject and (not wanted.keys or record.key in wanted.keys)


@given(
    records,
    st.lists(st.sampled_from(_FILTERS), max_size=3),
    st.lists(st.sampled_from(_KEYS), max_size=3),
    st.sampled_from(list(Codec)),
    st.booleans(),
)
def test_filter_returns_the_same_records_as_a_record_by_record_check(
    rows: list[Any], subjects: list[str], keys: list[bytes], codec: Codec, with_times: bool
) -> None:
    batch, wanted = made(rows, codec, with_times), Filter(tuple(subjects), tuple(keys))
    mask = wanted.mask(batch)
    expected = [record for record in batch.records() if fits(record, wanted)]
    assert mask.tolist() == [fits(record, wanted) for record in batch.records()]
    if not expected:
        return
    rest = parse_batch(keep_records(batch, mask))
    assert list(rest.records()) == expected
    assert (rest.base_offset, rest.next_offset, rest.leader_epoch) == (100, batch.next_offset, 3)
    same = ("timestamp_ns", "producer_id", "producer_epoch", "base_sequence", "control")
    assert [getattr(rest.header, name) for name in same] == [getattr(batch.header, name) for name in same]
    assert rest.header.codec is codec
    assert list(parse_batch(keep_records(rest, np.ones(len(expected), dtype=np.bool_))).records()) == expected


def test_filtered_batch_contains_the_producer_note() -> None:
    batch = parse_batch(build_batch([b"a", b"b"], keys=[b"a", b"b"], note=b"who and where"))
    rest = parse_batch(keep_records(batch, Filter(keys=(b"b",)).mask(batch)))
    assert bytes(rest.columns.note or b"") == b"who and where"


def test_filter_matches_no_record_without_the_field_and_an_empty_filter_matches_all() -> None:
    bare = parse_batch(build_batch([b"v"] * 3))
    assert Filter(subjects=(">",)).mask(bare).tolist() == [False] * 3
    assert Filter(keys=(b"",)).mask(bare).tolist() == [False] * 3
    assert Filter().mask(bare).tolist() == [True] * 3
    assert not Filter()
    assert Filter(keys=(b"",))
    assert not Filter(keys=(b"a",)).mask(parse_batch(build_filler(5, 9, 1, 0))).size
    control = parse_batch(build_batch([b"v"], keys=[b"a"], control=True))
    assert Filter(keys=(b"a",)).mask(control).tolist() == [False]


def test_filter_returns_the_same_records_for_any_comparison_group_size(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [b"%03d" % (number % 7) for number in range(100)]
    batch = parse_batch(build_batch(keys, keys=keys))
    expected = [key in (b"003", b"005") for key in keys]
    for bytes_at_once in (1, 10, 300, 1 << 20):
        monkeypatch.setattr(filters, "_BYTES_AT_ONCE", bytes_at_once)
        assert Filter(keys=(b"003", b"005", b"3")).mask(batch).tolist() == expected


@pytest.mark.parametrize("wrong", ["", "a..b", "a b", ">.a", "a.", "a\n"])
def test_filter_with_an_invalid_subject_is_rejected(wrong: str) -> None:
    with pytest.raises(InvalidNameError, match=re.escape(f"subject {wrong!r} is not a NATS subject")):
        Filter(subjects=(wrong,))


def test_filter_above_the_size_limit_is_rejected() -> None:
    Filter(subjects=("s",) * filters.MAX_SUBJECTS, keys=(b"k",) * filters.MAX_KEYS)
    count = "A filter can have at most 64 subjects and 256 keys"
    for wrong, text in (
        ({"subjects": ("s",) * 65}, count),
        ({"keys": (b"k",) * 257}, count),
        ({"keys": (b"k" * 8192, b"k")}, "8193 bytes, the maximum is 8192"),
        ({"subjects": ("s" * 240,) * 35}, "8400 bytes, the maximum is 8192"),
    ):
        with pytest.raises(ConfigError, match=text):
            Filter(**wrong)


TOKENS = st.sampled_from(["a", "b", "c", "*"])
PATTERNS = st.tuples(st.lists(TOKENS, min_size=1, max_size=4), st.booleans()).map(
    lambda p: ".".join([*p[0], *([">"] if p[1] else [])])
)
LITERALS = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=5).map(".".join)


@settings(deadline=None)
@given(st.lists(PATTERNS, max_size=8), LITERALS)
def test_subject_tree_matches_a_subject_if_any_of_its_filters_matches(patterns: list[str], literal: str) -> None:
    assert SubjectTree(patterns).matches(literal) == any(matcher(pattern)(literal) for pattern in patterns)
    assert SubjectTree([*patterns, ">"]).matches(literal)
