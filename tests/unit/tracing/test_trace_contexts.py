"""Test trace contexts: the header ``traceparent``, and contexts of messages."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.client.partition_sender import BATCH_BYTES
from liftpy.config import Codec
from liftpy.core.observe.trace_context import (
    MAX_STATE_BYTES,
    SpanBudget,
    TraceContext,
    first_marked,
    has_traceparent,
    parse_traceparent,
    sampled_context_in,
    traceparent,
    with_context,
)
from liftpy.core.observe.tracing import MOST_LINKS, has_trace_context, may_have_context, sampled_in, traced_in
from liftpy.core.wire.batch import add_header, body_of, parse_batch
from liftpy.core.wire.headers import Headers, Pairs
from liftpy.errors import CorruptionError
from tests.batches import build_batch
from tests.each import each
from tests.fuzz import meanings

OWN, OTHER = TraceContext(5, 6, 1), TraceContext(7, 8, 1)
MARK = ("traceparent", traceparent(OWN))


def test_trace_context_is_appended_to_the_headers_once() -> None:
    assert with_context((), OWN) == (MARK,)
    assert with_context((("a", b"b"),), OWN, "x=y") == (("a", b"b"), MARK, ("tracestate", b"x=y"))
    assert with_context((MARK,), OTHER, "x=y") == (MARK,)
    assert with_context((("TraceState", b"own"),), OWN, "x=y") == (("TraceState", b"own"), MARK)


def test_trace_state_above_its_size_limit_is_not_added_to_the_headers() -> None:
    pairs = with_context((), OWN, "x" * MAX_STATE_BYTES)
    assert len(pairs) == 2
    assert sum(len(name) + len(value) for name, value in pairs) < BATCH_BYTES / 4, "what a batch has beside its records"
    assert with_context((), OWN, "x" * (MAX_STATE_BYTES + 1)) == (MARK,)


@pytest.mark.parametrize(
    ("pairs", "bears", "created"),
    [
        ((), False, None),
        ((("a", b"b"),), False, None),
        ((("a", b"b"), MARK), True, OWN),
        ((("TraceParent", traceparent(OWN)),), True, None),
        ((("traceparent", b"00-x"), MARK), True, OWN),
        ((("traceparent", traceparent(OWN._replace(flags=2))),), True, None),
    ],
)
def test_trace_context_in_message_headers_is_decoded(pairs: Pairs, bears: bool, created: TraceContext | None) -> None:
    assert (has_traceparent(pairs), sampled_context_in(pairs)) == (bears, created)
    assert (with_context(pairs, OTHER) == pairs) == bears


_HEADERS = st.lists(
    st.tuples(st.sampled_from(["a", "traceparent", "Traceparent", "bb"]), st.binary(max_size=5)), max_size=3
).map(tuple)


@given(st.lists(_HEADERS, min_size=1, max_size=5), st.sampled_from(["", "x=y"]))
def test_trace_context_of_a_batch_is_inserted_before_the_headers_of_the_first_record(headers: list[Pairs], state: str) -> None:
    columns = parse_batch(build_batch([b"v"] * len(headers), headers=list(headers))).columns
    marks = with_context((), OWN, state)
    made = parse_batch(add_header(body_of(first_marked(columns, marks))))
    first, *others = headers
    wanted = first if has_traceparent(first) else (*marks, *first)
    assert [record.headers for record in made.records()] == [wanted, *others]
    assert [record.value for record in made.records()] == [b"v"] * len(headers)


def test_span_budget_after_returned_spans_allows_new_spans() -> None:
    budget = SpanBudget(2.0)
    assert budget.takes(2, 0)
    assert not budget.takes(1, 0)
    budget.gives_back(1)
    assert budget.takes(1, 0)
    assert not budget.takes(1, 0)
    assert budget.dropped == 2


TRACE, SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
GOOD = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_FORM = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?", re.DOTALL)


def test_traceparent_is_parsed_to_its_ids_and_sampled_flag() -> None:
    context = parse_traceparent(GOOD)
    assert context == (TRACE, SPAN, 1)
    assert context.sampled
    assert traceparent(context) == GOOD
    assert not TraceContext(1, 1, 2).sampled
    assert TraceContext(1, 1, 3).sampled, "the other flags are no concern of ours"


@each(
    "value",
    [
        b"", GOOD[:-1], GOOD + b"0", GOOD + b"-", GOOD.upper(), b"ff" + GOOD[2:], b" " + GOOD, GOOD.replace(b"-", b"_"),
        b"00-" + b"0" * 32 + GOOD[35:], GOOD[:36] + b"0" * 16 + GOOD[52:], GOOD.replace(b"4bf9", b"4bg9"), b"01" + GOOD[2:] + b"x",
        b"01" + GOOD[2:] + b"-" + b"x" * 600, GOOD.replace(b"00-", b"+0-"), GOOD[:53] + b"0x",
        GOOD[:3] + GOOD[3:35].upper() + GOOD[35:], GOOD[:36] + GOOD[36:52].upper() + GOOD[52:], GOOD[:53] + b"0A",
    ],
)  # fmt: skip
def test_traceparent_that_is_malformed_is_parsed_as_none(value: bytes) -> None:
    assert parse_traceparent(value) is None


def test_traceparent_of_a_later_version_with_a_suffix_is_parsed() -> None:
    assert parse_traceparent(b"01" + GOOD[2:]) == (TRACE, SPAN, 1)
    assert parse_traceparent(b"cc" + GOOD[2:] + b"-what-ever") == (TRACE, SPAN, 1)


@settings(max_examples=40)
@given(st.one_of(st.binary(max_size=70), st.from_regex(_FORM, fullmatch=True), st.builds(
    lambda at, byte: GOOD[:at] + bytes([byte]) + GOOD[at + 1 :], st.integers(0, 54), st.integers(0, 255))))  # fmt: skip
def test_traceparent_parser_equals_a_simple_reference_parser(value: bytes) -> None:
    assert parse_traceparent(value) == meanings.traceparent(value)


def batch_of(headers: list[Headers | None], codec: Codec = Codec.NONE) -> bytes:
    return build_batch([b"value"] * len(headers), headers=headers, codec=codec)


def one(number: int, flags: int = 1) -> bytes:
    return traceparent(TraceContext(TRACE + number, SPAN + number, flags))


@pytest.mark.parametrize("codec", list(Codec))
def test_trace_context_check_of_a_batch_with_a_traceparent_header_returns_true(codec: Codec) -> None:
    headers: list[Headers | None] = [[("other", b"x" * 100)], [("traceparent", one(1))]] * 20
    assert may_have_context(batch_of(headers, codec))
    column = parse_batch(batch_of(headers, codec)).columns.headers
    assert column is not None
    assert has_trace_context(column)
    without = parse_batch(batch_of([[("xtraceparen", b"traceparent")]] * 20, codec))
    assert without.columns.headers is not None
    assert not has_trace_context(without.columns.headers)
    assert not may_have_context(batch_of([None] * 20, codec))
    assert may_have_context(batch_of([[("other", b"x" * 100)]] * 20, codec)) == (codec is not Codec.NONE), (
        "compressed, it is not looked into"
    )


@pytest.mark.parametrize("codec", list(Codec))
def test_trace_search_in_a_batch_returns_sampled_contexts_in_order(codec: Codec) -> None:
    headers: list[Headers | None] = [
        None,
        [("traceparent", one(1, 0))],
        [("tracestate", b"a=b"), ("traceparent", one(2)), ("baggage", b"x=y")],
        [("traceparent", b"00-" + b"z" * 32 + one(3)[35:])],
        [("traceparent", one(3, 0xFF))],
        [("traceparents", one(4)), ("xtraceparen", one(5)), ("Traceparent", one(6))],
        [("traceparent", one(2))],
        [("other", b"traceparent" + one(7))],
        [("traceparent", one(8, 0x0A))],
        [("traceparent", one(9, 0x0B))],
    ]
    found = traced_in(batch_of(headers, codec))
    assert [(context.trace_id - TRACE, context.flags) for context in found] == [(2, 1), (3, 0xFF), (9, 0x0B)]


def test_trace_search_in_a_large_batch_returns_at_most_the_link_limit() -> None:
    found = traced_in(batch_of([[("traceparent", one(number))] for number in range(2000)]))
    assert [context.trace_id - TRACE for context in found] == list(range(MOST_LINKS))


def test_trace_search_in_a_batch_without_sampled_contexts_returns_nothing() -> None:
    assert traced_in(batch_of([None, None])) == ()
    assert traced_in(batch_of([[("key", b"traceparent")]])) == ()
    assert traced_in(batch_of([[("traceparent", one(1, 0))]] * 3)) == ()
    assert traced_in(batch_of([[("traceparent", b"")]] * 3)) == ()


_NAMES = st.sampled_from(["traceparent", "tracestate", "traceparen", "x", "traceparenttraceparent"])
_VALUES = st.one_of(st.binary(max_size=60), st.integers(0, 255).map(lambda flags: one(1, flags)), st.just(GOOD + b"-"))


@given(st.lists(st.lists(st.tuples(_NAMES, _VALUES), max_size=3), min_size=1, max_size=12))
def test_trace_search_in_a_batch_equals_a_check_of_each_header(headers: list[list[tuple[str, bytes]]]) -> None:
    each = [meanings.traceparent(value) for pairs in headers for name, value in pairs if name == "traceparent"]
    wanted = dict.fromkeys(context for context in each if context is not None and context[2] & 1)
    assert traced_in(batch_of(list(headers))) == tuple(wanted)


def test_trace_search_in_a_part_of_a_batch_returns_only_contexts_of_the_part() -> None:
    headers: list[Headers | None] = [
        [("a", b"b"), ("traceparent", one(0))],
        None,
        [("traceparent", one(2))],
        [("traceparent", one(3))],
    ]
    column = parse_batch(batch_of(headers)).columns.headers
    assert column is not None
    found = {
        bounds: [context.trace_id - TRACE for context in sampled_in(column, *bounds)]
        for bounds in ((0, None), (0, 1), (1, 2), (1, 3), (2, 4), (3, None))
    }
    assert found == {(0, None): [0, 2, 3], (0, 1): [0], (1, 2): [], (1, 3): [2], (2, 4): [2, 3], (3, None): [3]}
    assert len(sampled_in(column, 0, 4, 2)) == 2


def test_trace_search_in_a_corrupt_batch_returns_nothing() -> None:
    batch = bytearray(batch_of([[("traceparent", one(1))]] * 40, Codec.ZSTD))
    batch[-8:] = bytes(8)
    with pytest.raises(CorruptionError):
        _ = parse_batch(bytes(batch), verify=False).columns
    assert traced_in(bytes(batch)) == ()
