"""Test the trace context in the headers of a message, and in the first record of a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy.client.partition_sender import BATCH_BYTES
from liftpy.core.observe.trace_context import (
    MAX_STATE_BYTES,
    SpanBudget,
    TraceContext,
    first_marked,
    has_traceparent,
    sampled_context_in,
    traceparent,
    with_context,
)
from liftpy.core.wire.batch import body_of, build_batch, parse_batch, seal
from liftpy.core.wire.headers import Pairs

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
    made = parse_batch(seal(body_of(first_marked(columns, marks))))
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
