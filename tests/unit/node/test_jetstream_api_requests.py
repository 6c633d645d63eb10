"""Test the requests of JetStream's read API. Invalid ones get the errors of nats-server 2.15.1."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.node.jetstream_protocol import (
    JsRejection,
    kind_of,
    overlap,
    parse_request,
    rejection_answer,
    time_text,
)
from tests.each import each

GET, DIRECT = "STREAM.MSG.GET.orders", "DIRECT.GET.orders"


@each(
    ("text", "at_ns"),
    [
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("1970-01-01T01:00:00.000000007+01:00", 7),
        ("1970-01-01T00:00:00.000000001Z", 1),
    ],
)
def test_jetstream_times_are_parsed_to_the_nanosecond(text: str, at_ns: int) -> None:
    assert parse_request(DIRECT, json.dumps({"start_time": text, "batch": 2}).encode()).start_ns == at_ns
    assert parse_request(DIRECT, json.dumps({"multi_last": ["a"], "up_to_time": text}).encode()).up_to_ns == at_ns


BAD = JsRejection(400, 10003, "bad request")
NO_STREAM = JsRejection(404, 10059, "stream not found")


@each(
    ("rest", "body", "rejection"),
    [
        (GET, b"", BAD),
        (GET, b"{}", BAD),
        (GET, b'{"seq":0}', BAD),
        (GET, b'{"seq":1,"last_by_subj":"a"}', BAD),
        (GET, b'{"last_by_subj":"a","next_by_subj":"a"}', BAD),
        (GET, b'{"seq":1,"start_time":"1970-01-01T00:00:01Z"}', BAD),
        (GET, b'{"seq":1,"batch":2}', JsRejection(400, 10003, "bad request: 'batch' is an unknown field")),
        (GET, b'{"seq":-1}', JsRejection(400, 10003, f"bad request: seq must be a number from 0 to {1 << 62}")),
        (GET, b'{"seq":true}', JsRejection(400, 10003, f"bad request: seq must be a number from 0 to {1 << 62}")),
        (GET, b'{"last_by_subj":"a b"}', JsRejection(400, 10003, "bad request: the subject is not a valid NATS subject")),
        (GET, b'{"last_by_subj":7}', JsRejection(400, 10003, "bad request: the subject is not a valid NATS subject")),
        (
            GET,
            b'{"start_time":"tomorrow"}',
            JsRejection(400, 10003, "bad request: the time is not valid, use a time such as 2026-01-31T10:00:00Z"),
        ),
        (
            GET,
            b'{"start_time":"2026-02-31T10:00:00Z"}',
            JsRejection(400, 10003, "bad request: the time does not exist in the calendar"),
        ),
        (GET, b"[]", JsRejection(400, 10025, "invalid JSON: the request must be a JSON object")),
        (GET, b"x" * 65_537, JsRejection(400, 10025, "invalid JSON: the request is longer than 65536 bytes")),
        ("STREAM.MSG.GET.", b'{"seq":1}', NO_STREAM),
        ("CONSUMER.LIST.", b"", NO_STREAM),
        ("STREAM.INFO.a.b", b"", NO_STREAM),
        ("STREAM.INFO.or ders", b"", NO_STREAM),
        ("STREAM.INFO.orders:0", b"", NO_STREAM),
        ("STREAM.INFO.orders:x", b"", NO_STREAM),
        (
            "STREAM.INFO.orders",
            b'{"subjects_filter":">"}',
            JsRejection(400, 10003, "bad request: subjects_filter and deleted_details are not supported"),
        ),
        (
            "STREAM.CREATE.x",
            b"{}",
            JsRejection(
                400, 10003, "bad request: STREAM.CREATE.x is not supported. liftpy supports only requests that read streams"
            ),
        ),
        (DIRECT, b"", JsRejection(408, 0, "Empty Request")),
        (DIRECT, b"{}", JsRejection(408, 0, "Empty Request")),
        (DIRECT, b"nonsense", JsRejection(408, 0, "Malformed Request")),
        (DIRECT, b'{"last_by_subj":"a","batch":2}', JsRejection(408, 0, "Bad Request")),
        (DIRECT, b'{"seq":1,"up_to_seq":2}', JsRejection(408, 0, "Bad Request")),
        (DIRECT, b'{"seq":1,"max_bytes":2}', JsRejection(408, 0, "Bad Request")),
        (DIRECT, b'{"multi_last":"a"}', JsRejection(408, 0, "Bad Request")),
        (DIRECT, b'{"multi_last":["a"],"up_to_seq":2,"up_to_time":"1970-01-01T00:00:01Z"}', JsRejection(408, 0, "Bad Request")),
        (DIRECT, json.dumps({"multi_last": ["a"] * 65}).encode(), JsRejection(408, 0, "Bad Request")),
        ("DIRECT.GET.or ders", b'{"seq":1}', JsRejection(503, 0, "No Responders")),
    ],
)
def test_jetstream_request_that_is_invalid_gets_the_error_of_nats_server(
    rest: str, body: bytes, rejection: JsRejection
) -> None:
    with pytest.raises(JsRejection) as found:
        parse_request(rest, body)
    assert found.value == rejection


@given(
    st.sampled_from([GET, DIRECT, "STREAM.NAMES", "STREAM.INFO.orders"]),
    st.binary(max_size=60) | st.from_regex(rb'\{"[a-z_]*":[^"]*\}'),
)
def test_jetstream_request_of_any_bytes_is_parsed_or_rejected(rest: str, body: bytes) -> None:
    kind, rejection = kind_of(rest)[0], None
    try:
        assert parse_request(rest, body).kind is kind
    except JsRejection as error:
        rejection = error
    if rejection is not None:
        part = rejection_answer(kind, rejection)
        assert str(rejection.code).encode() in (part.headers or part.payload)


@each(
    ("one", "other", "do"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.>", "a", False),
        ("a.>", "a.b.c", True),
        (">", "a", True),
        ("*.b", "a.*", True),
        ("*.b", "a.c", False),
        ("a.b", "a.b.c", False),
    ],
)
def test_jetstream_subject_filters_overlap_as_in_nats(one: str, other: str, do: bool) -> None:
    assert (overlap(one, other), overlap(other, one)) == (do, do)


@pytest.mark.parametrize(
    ("at_ns", "text"),
    [
        (None, "0001-01-01T00:00:00Z"),
        (0, "0001-01-01T00:00:00Z"),
        (1, "1970-01-01T00:00:00.000000001Z"),
        (1_500_000_000, "1970-01-01T00:00:01.5Z"),
        (1_795_460_166_626_926_151, "2026-11-23T18:56:06.626926151Z"),
        (86_400_000_000_000, "1970-01-02T00:00:00Z"),
    ],
)
def test_jetstream_times_are_formatted_as_in_go(at_ns: int | None, text: str) -> None:
    assert time_text(at_ns) == text
