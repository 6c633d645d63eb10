"""Test the order of the admission table: clients see it when a request breaks two rules."""

from __future__ import annotations

from itertools import combinations

from liftpy.core.metadata.controller.admission import (
    ADMISSION,
    ARRIVAL,
    MAX_IN_PROGRESS,
    RequestAcl,
    RequestContext,
    first_rejection,
)
from liftpy.core.metadata.request_limits import MAX_TEXT_BYTES
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.decode_errors import REFUSED
from tests.each import each

LONG = "x" * (MAX_TEXT_BYTES + 1)


def breaks(*rules: str) -> RequestContext:
    """Return an arrival that breaks these rules of ``ARRIVAL``, and no other one."""
    create = pb.CreateStream(name="-s" if "stream name like an option" in rules else "s", subject="a.b")
    if "reserved stream name" in rules:
        create.name = "_liftpy_s"
    if "inbox subjects" in rules:
        create.subject = "_INBOX.x"
    if "size" in rules:
        create.placement = LONG
    request = pb.ControlRequest(createStream=create)
    arrival = RequestContext(acl=RequestAcl.ADMIN, sender="alice", inbox_prefixes=("_INBOX.",))
    if "sender name" in rules:
        arrival.sender = "read"
    if "subject of the kind" in rules:
        request = pb.ControlRequest(heartbeat=pb.Heartbeat(nodeId=LONG if "size" in rules else "n1"))
    arrival.is_reply_allowed = "reply subject" not in rules
    arrival.leads = "leader" not in rules
    if "flood" in rules:
        while arrival.limits.allowance.take(1, 0):
            pass
    if "operator rate" in rules:
        while not arrival.limits.rates.wait_ms(arrival.sender, 0):
            pass
    arrival.limits.in_progress = MAX_IN_PROGRESS if "in progress" in rules else 0
    arrival.payload = b"junk" if "envelope" in rules else frames.encode(request)
    return arrival


AT_ARRIVAL = [
    "reply subject", "flood", "envelope", "leader", "operator rate", "inbox subjects", "size", "known fields", "sender name",
    "reserved stream name", "stream name like an option", "internal stream", "subject of the kind", "pause value", "in progress",
]  # fmt: skip
AFTERWARDS = [
    "feature level", "new leader of a new cluster", "new leader", "new cluster", "feature level of the node", "node id in use",
    "node is alive", "node is a controller", "halted",
]  # fmt: skip
TOGETHER = [name for name in AT_ARRIVAL if name not in ("known fields", "internal stream", "pause value")]
CREATE_ONLY = {"inbox subjects", "reserved stream name", "stream name like an option"}
OTHER_TEXT = {
    ("reserved stream name", "stream name like an option"),
    ("operator rate", "sender name"),
    ("size", "subject of the kind"),
}
"""Pairs in which the second rule changes the request, and so the text of the first rejection."""
PAIRS = [
    pair
    for pair in combinations(TOGETHER, 2)
    if pair not in OTHER_TEXT and not ("subject of the kind" in pair and CREATE_ONLY & {*pair})
]


def test_request_admission_checks_run_in_the_documented_order() -> None:
    assert [check.name for check in ADMISSION] == AT_ARRIVAL + AFTERWARDS


def test_request_admission_of_a_request_that_breaks_no_rule_accepts_the_request() -> None:
    assert first_rejection(ARRIVAL, breaks()) is None


@each(("first", "second"), PAIRS)
def test_request_admission_of_a_request_that_breaks_two_rules_returns_the_error_of_the_first_rule(
    first: str, second: str
) -> None:
    both, one = first_rejection(ARRIVAL, breaks(first, second)), first_rejection(ARRIVAL, breaks(first))
    assert one is not None
    assert both == one


def test_request_admission_of_an_invalid_pause_value_returns_the_valid_values() -> None:
    def admit(pause: int) -> str:
        request = pb.ControlRequest(pausePartitions=pb.PausePartitions(stream="orders", pause=pause))  # type: ignore[arg-type]
        arrival = RequestContext(acl=RequestAcl.ADMIN, sender="alice", payload=frames.encode(request))
        rejection = first_rejection(ARRIVAL, arrival)
        if rejection is None:
            return ""
        assert rejection.response is not None
        assert rejection.response.error == pb.ControlResponse.INVALID
        return rejection.response.detail

    for pause in (pb.ENDING, 9):
        assert admit(pause) == (
            f"Invalid pause = {pause}. Use one of 0 (NOT_PAUSED), 1 (UNTIL_RESUMED), 2 (UNTIL_PUBLISH), 4 (UNTIL_PUBLISH_TO_ANY). "
            "Check that the client and the nodes have compatible versions."
        )
    for pause in (pb.NOT_PAUSED, pb.UNTIL_RESUMED, pb.UNTIL_PUBLISH, pb.UNTIL_PUBLISH_TO_ANY):
        assert admit(pause) == ""


def test_request_admission_rejection_without_reply_increments_a_counter() -> None:
    for name in ("reply subject", "flood", "envelope"):
        rejection = first_rejection(ARRIVAL, breaks(name))
        assert rejection is not None
        assert rejection.response is None
        assert rejection.counter.startswith(REFUSED)
