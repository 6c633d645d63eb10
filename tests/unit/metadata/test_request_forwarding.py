"""Test which requests are repeated, for how long, and when the outcome is unknown."""

from __future__ import annotations

import pytest

from liftpy.config import NS_PER_S
from liftpy.core.metadata.idempotency import PAUSE_NS, ForwardedRequest
from liftpy.core.wire._pb import cluster_pb2 as pb

E = pb.ControlResponse
END_NS = 10 * NS_PER_S


def way() -> ForwardedRequest:
    return ForwardedRequest(pb.ControlRequest(barrier=pb.Barrier(), operationId=b"o" * 16), END_NS)


def test_request_forwarding_retries_until_its_timeout() -> None:
    made = way()
    assert made.remaining_ns(0) == END_NS
    assert made.pause_ns(0) == PAUSE_NS
    assert made.pause_ns(END_NS - 1) == 1
    assert made.remaining_ns(END_NS) == made.remaining_ns(END_NS + 5) == 0
    assert made.response.error == E.UNAVAILABLE, "nobody was asked"
    assert made.response.operationId == b"o" * 16


@pytest.mark.parametrize("error", [E.OK, E.STALE, E.INVALID, E.EXISTS, E.NOT_FOUND, E.FENCED])
def test_request_forwarding_ends_with_the_first_decisive_answer(error: pb.ControlResponse.Error) -> None:
    made = way()
    made.attempt_failed("no answer", sent=True)
    assert made.response_received(E(error=error))
    assert made.decided
    assert made.response.error == error


def test_request_forwarding_that_times_out_after_a_sent_attempt_returns_an_unknown_outcome() -> None:
    made = way()
    made.attempt_failed("no controller can be reached", sent=False)
    assert made.response.error == E.UNAVAILABLE
    made.attempt_failed("no answer", sent=True)
    made.attempt_failed("no controller can be reached", sent=False)
    assert made.response.error == E.OUTCOME_UNKNOWN
