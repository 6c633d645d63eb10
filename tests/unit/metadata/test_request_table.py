"""Test the table of control requests, and the order of the admission checks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from itertools import combinations

import pytest

from liftpy.client import admin
from liftpy.config import NS_PER_S
from liftpy.core.metadata.controller import admission
from liftpy.core.metadata.controller.admission import (
    ADMISSION,
    ALL_AT_ONCE,
    ARRIVAL,
    IN_ALL,
    MAX_IN_PROGRESS,
    PER_PRINCIPAL,
    PRINCIPAL_AT_ONCE,
    RequestContext,
    RequestRates,
    RequestSubject,
    first_rejection,
    refusal,
)
from liftpy.core.metadata.controller.requests import (
    REQUESTS,
    RequesterKind,
    RequestKind,
    changes_nothing,
    kind_of,
    may_be_logged,
)
from liftpy.core.metadata.request_limits import MAX_LIST_LENGTH, MAX_TEXT_BYTES, fit
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.decode_errors import REFUSED
from tests.each import each

KINDS = {field.name: field for field in pb.ControlRequest.DESCRIPTOR.oneofs_by_name["request"].fields}
NOT_READ = sorted(name for name, kind in REQUESTS.items() if kind.asked_by is not RequesterKind.READERS)


def asked(name: str, asker: str = "n1") -> pb.ControlRequest:
    request = pb.ControlRequest()
    getattr(request, name).SetInParent()
    if REQUESTS[name].asker:
        setattr(getattr(request, name), REQUESTS[name].asker, asker)
    return request


def test_request_table_has_one_row_per_kind_of_control_request() -> None:
    assert set(REQUESTS) == set(KINDS)


@each("subject_kind", RequestSubject)
@each("name", sorted(REQUESTS))
def test_control_request_without_a_kind_is_rejected_on_each_subject(name: str, subject_kind: RequestSubject) -> None:
    request = asked(name)
    getattr(request, name).MergeFromString(bytes.fromhex("c23e0161"))
    assert refusal(subject_kind, "n1", request).startswith("UNSUPPORTED: the request has a field or a kind")


def test_control_request_is_accepted_only_on_the_subject_of_its_kind() -> None:
    def those(is_so: Callable[[RequestKind], object]) -> str:
        return " ".join(sorted(name for name, kind in REQUESTS.items() if is_so(kind)))

    by = {asked_by: those(lambda kind, who=asked_by: kind.asked_by is who) for asked_by in RequesterKind}  # type: ignore[misc]
    assert by[RequesterKind.READERS] == "describeCluster describeStream openGroups"
    assert by[RequesterKind.OPERATORS] == (
        "addPartitions alterStream changeControllers createStream deleteStream electLeader pausePartitions purgeRecords "
        "reassign removeNode setDefaultQuota setFeatureLevel setNode setSessionTimes truncateBefore"
    )
    assert by[RequesterKind.NOBODY] == "beginCopy concludeElection passOver placeStream settleSessionTimes unfenceNode"
    assert those(lambda kind: kind.read_only) == "barrier describeCluster describeStream heartbeat"
    assert those(lambda kind: kind.batched) == (
        "beginCopy changeIsr concludeElection electLeader giveUpLeadership leaveIsr passOver purgeRecords reassign "
        "reportLeader reportPromotion reportPurged reportService truncateBefore wakePartition"
    )
    assert those(lambda kind: kind.has_preflight) == "changeControllers heartbeat registerNode reportLeader setFeatureLevel"
    assert {name: kind.asker for name, kind in REQUESTS.items() if kind.asker} == {
        "heartbeat": "nodeId", "registerNode": "nodeId", "fenceNode": "nodeId", "drainNode": "nodeId", "changeIsr": "leader",
        "leaveIsr": "node", "reportLeader": "witness", "reportPromotion": "candidate", "giveUpLeadership": "leader",
        "reportPurged": "node", "reportService": "node",
        "wakePartition": "leader",
    }  # fmt: skip


@each("name", sorted(KINDS))
def test_read_only_control_requests_are_logged_only_if_linearizable(name: str) -> None:
    request = asked(name)
    reads = name in ("barrier", "describeCluster", "describeStream", "heartbeat")
    assert changes_nothing(request) == reads
    assert may_be_logged(request) == (not reads or name == "barrier")
    request.linearizable = True
    assert may_be_logged(request)
    if hasattr(getattr(request, name), "dryRun"):
        getattr(request, name).dryRun = True
        assert changes_nothing(request)
    assert not changes_nothing(pb.ControlRequest()), "a kind of a later version"


def test_request_table_sender_field_exists_in_the_request() -> None:
    for name, kind in REQUESTS.items():
        assert not kind.asker or kind.asker in KINDS[name].message_type.fields_by_name, name
        assert bool(kind.asker) is (kind.asked_by is RequesterKind.NODES and name not in ("barrier", "batch")), name


def test_request_table_allows_only_requests_about_a_partition_in_batches() -> None:
    for name, kind in REQUESTS.items():
        assert not kind.batched or {"stream", "partition"} <= set(KINDS[name].message_type.fields_by_name), name
        assert not (kind.batched and kind.read_only), name


def test_request_table_operator_requests_each_have_an_admin_client_method() -> None:
    source = inspect.getsource(admin)
    for name, kind in REQUESTS.items():
        assert kind.asked_by is not RequesterKind.OPERATORS or re.search(rf"\b{name}\b", source), name


def test_control_request_of_an_unknown_kind_is_rejected_on_every_subject() -> None:
    assert kind_of(pb.ControlRequest()).asked_by is RequesterKind.NOBODY
    for subject_kind in RequestSubject:
        assert refusal(subject_kind, "n1", pb.ControlRequest())


@each("name", NOT_READ)
@each("subject_kind", list(RequestSubject))
def test_control_request_with_the_id_of_another_node_is_rejected(subject_kind: RequestSubject, name: str) -> None:
    kind, request = REQUESTS[name], asked(name)
    whose = {
        RequestSubject.INFO: RequesterKind.READERS,
        RequestSubject.ADMIN: RequesterKind.OPERATORS,
        RequestSubject.NODE: RequesterKind.NODES,
    }[subject_kind]
    assert (refusal(subject_kind, "n1", request) == "") is (kind.asked_by is whose)
    if kind.asker:
        assert refusal(subject_kind, "n2", request)
    if kind.batched:
        batch = pb.ControlRequest(batch={"requests": [{"request": request}]})
        allowed = (
            subject_kind is not RequestSubject.INFO
            and kind.asked_by is whose
            and (bool(kind.asker) or subject_kind is RequestSubject.ADMIN)
        )
        assert (refusal(subject_kind, "n1", batch) == "") is allowed


@pytest.mark.parametrize("internal", [False, True])
def test_create_stream_with_a_reserved_name_is_rejected(internal: bool) -> None:
    said = refusal(
        RequestSubject.ADMIN, "", pb.ControlRequest(createStream=pb.CreateStream(name="_liftpy-mine"), internal=internal)
    )
    probed = pb.ControlRequest(createStream=pb.CreateStream(name="_liftpy-probe"), internal=internal)
    assert (refusal(RequestSubject.ADMIN, "", probed) == "") is internal, "operators probe with it"
    assert said == "Cannot create stream '_liftpy-mine': names that begin with _liftpy are reserved. Use another name."
    assert refusal(RequestSubject.ADMIN, "", pb.ControlRequest(createStream=pb.CreateStream(name="liftpy"))) == ""


@pytest.mark.parametrize("name", ["-rf", "-", "--yes"])
def test_create_stream_with_a_name_that_starts_with_a_dash_is_rejected(name: str) -> None:
    said = refusal(
        RequestSubject.ADMIN, "", pb.ControlRequest(createStream=pb.CreateStream(name=name, subject="x.s"), internal=True)
    )
    assert "begins with -" in said


# ---- size of maps ----------------------------------------------------------------------------------------------------------
def change(incarnations: dict[str, int]) -> pb.ControlRequest:
    request = pb.ControlRequest()
    field = next(
        field
        for field in request.DESCRIPTOR.fields
        if field.message_type and "incarnations" in field.message_type.fields_by_name
    )
    asked = getattr(request, field.name)
    asked.SetInParent()
    for node, incarnation in incarnations.items():
        asked.incarnations[node] = incarnation
    return request


def test_control_request_with_a_too_large_map_field_is_rejected() -> None:
    assert fit(change({"n1": 3, "n2": 7}), 100) == ""
    assert "longer than" in fit(change({"n1": 3, "x" * (MAX_TEXT_BYTES + 1): 1}), 2000)
    assert "items" in fit(change({f"n{number}": 1 for number in range(MAX_LIST_LENGTH + 1)}), 2000)


# ---- rates -----------------------------------------------------------------------------------------------------------------
def taken(rates: RequestRates, principal: str, count: int, now_ns: int) -> int:
    return sum(rates.wait_ms(principal, now_ns) == 0 for _ in range(count))


def test_request_rate_limit_of_one_principal_does_not_affect_other_principals() -> None:
    rates = RequestRates()
    assert taken(rates, "alice", 400, 0) == PRINCIPAL_AT_ONCE
    assert rates.wait_ms("alice", 0) == 21
    assert rates.wait_ms("alice", 20_000_001) == 0
    assert taken(rates, "bob", 400, 0) == PRINCIPAL_AT_ONCE
    assert taken(rates, "alice", 400, 2 * NS_PER_S) == 2 * PER_PRINCIPAL - 1


def test_request_rate_of_all_principals_is_bounded_and_not_used_by_rejected_requests() -> None:
    rates = RequestRates()
    assert sum(taken(rates, f"p{number}", 400, 0) for number in range(8)) == ALL_AT_ONCE
    assert taken(rates, "late", 100, 0) == 0
    assert sum(taken(rates, f"p{number}", 400, NS_PER_S) for number in range(8)) == IN_ALL
    assert rates.wait_ms("late", NS_PER_S) == 6


def test_request_rate_memory_holds_a_bounded_number_of_principals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_PRINCIPALS", 2)
    rates = RequestRates()
    for principal in ("a", "b", "a", "c"):
        taken(rates, principal, PRINCIPAL_AT_ONCE, 0)
    assert len(rates) == 2
    assert rates.wait_ms("a", 0) > 0, "it asked after b"
    assert rates.wait_ms("b", 0) == 0, "it was forgotten"


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
    arrival = RequestContext(subject_kind=RequestSubject.ADMIN, sender="alice", inbox_prefixes=("_INBOX.",))
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
        arrival = RequestContext(subject_kind=RequestSubject.ADMIN, sender="alice", payload=frames.encode(request))
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
