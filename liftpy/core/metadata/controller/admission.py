"""Admission: the ordered checks that a control request must pass before the log decides it. Pure.

A row is a ``Check``: a name, and a function that returns the rejection of a request, or None. The first rejection is
the answer. The rows are in four tables, because the facts for a check are known at different places:

| table | when | where it runs |
|---|---|---|
| ``ARRIVAL`` | a request arrives on NATS | ``sidecar/metadata/control.py`` |
| ``LEADER`` | the metadata leader gets a request, from NATS or from its own node | ``quorum_member.py`` |
| ``SESSIONS`` | after ``LEADER``, also for each part of a batch: rules that need the sessions of the nodes |
``active_controller.py`` |
| ``LOG`` | the request needs a log entry | ``quorum_member.py`` |

``ADMISSION`` is all of them in order. Afterwards each controller decides the request on the image by the functions in
``requests.py``. The order and the texts of rejections are part of the protocol. To add a check, add a row.

NATS permissions define who may publish on a subject. ``PERMISSIONS`` defines which requests a subject accepts, by the
table in ``requests.py``. So a client with read permission cannot change anything, and requests of node ``n1`` come only
on ``<ns>.control.node.n1``. A request without a row is rejected. Requests that would create, change or delete internal
streams need the field ``internal``.

Example: ``changeIsr`` with leader ``n2`` on ``<ns>.control.node.n1`` is rejected, also within a batch. ``deleteStream``
on ``<ns>.info`` is rejected.

Rate limit: each principal has an allowance, and all principals together have one. The rejection contains the time to
wait. The controller has allowances for at most ``MAX_PRINCIPALS`` principals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from liftpy.config import ReplicationConfig
from liftpy.core.base.ids import PROBE_STREAM, is_internal, quote
from liftpy.core.base.rate_limits import TokenBucket, touch_entry
from liftpy.core.metadata.controller.nodes import still_a_controller, unsupported_level_of
from liftpy.core.metadata.controller.partitions import REQUESTED_PAUSES
from liftpy.core.metadata.controller.requests import RequesterKind, changes_nothing, kind_of
from liftpy.core.metadata.controller.streams import MAX_PARTITIONS_PER_STREAM, with_partition_count
from liftpy.core.metadata.controller_list import GroupView
from liftpy.core.metadata.describe import fit_request
from liftpy.core.metadata.features import NO_LEVEL, UNSUPPORTED, Feature, feature_level_rejection
from liftpy.core.metadata.idempotency import error_response
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.node_identity import ProcessRelation, compare_processes
from liftpy.core.metadata.request_limits import fit
from liftpy.core.metadata.sessions import NodeSessions
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.decode_errors import REFUSED, REPLY, counter_name, has_unknown_fields
from liftpy.core.wire.subjects import PARTITION_TOKENS, overlaps_inbox
from liftpy.errors import LiftError

T = TypeVar("T")
_ERROR = pb.ControlResponse


@dataclass(frozen=True, slots=True)
class Rejection:
    """Result of a check that rejects a request."""

    response: pb.ControlResponse | None
    """Answer to the sender. None: the sender gets no answer."""
    counter: str = ""
    """Name of the controller's counter to increase. '': none."""


@dataclass(frozen=True, slots=True)
class Check(Generic[T]):
    """One row of an admission table: the name of a check, and the function that rejects a request or returns None."""

    name: str
    reject: Callable[[T], Rejection | None]
    """Function that returns the rejection of a request, or None to accept the request."""


def first_rejection(checks: tuple[Check[T], ...], facts: T) -> Rejection | None:
    """Return the rejection of the first check that rejects the request. None: all checks accept it.

    ``facts``: what the checks need to know about the request.
    """
    for check in checks:
        rejection = check.reject(facts)
        if rejection is not None:
            return rejection
    return None


class RequestSubject(Enum):
    """Kind of subject on which controllers receive requests: the subject without the namespace and the name of the sender."""

    INFO = "info"
    ADMIN = "control.admin"
    NODE = "control.node"


def sender_of(subject_kind: RequestSubject, subject: str, namespace: str) -> str:
    """Return the node id or principal that a request's ``subject`` names. '': it names none. ``subject_kind``: kind of the subject."""
    return subject.removeprefix(f"{namespace}.{subject_kind.value}").removeprefix(".")


# ---- limits of one controller ----------------------------------------------------------------------------------------------
PER_PRINCIPAL, PRINCIPAL_AT_ONCE = 50, 250
"""Rate limit of one principal: requests per second, and requests in one burst."""
IN_ALL, ALL_AT_ONCE = 200, 1000
MAX_PRINCIPALS = 1000


class RequestRates:
    """Limits the rate of requests, for each principal and for all together, on the metadata leader. ``now_ns`` is monotonic."""

    def __init__(self) -> None:
        self._in_all = TokenBucket(IN_ALL, ALL_AT_ONCE)
        self._buckets: dict[str, TokenBucket] = {}
        """Principal -> allowance. '' is the key for requests without a principal. The most recently used entry is last."""

    def __len__(self) -> int:
        return len(self._buckets)

    def wait_ms(self, principal: str, now_ns: int) -> int:
        """Take a token for a request of ``principal``. Return 0 if the request is allowed.

        Otherwise return the time until the next allowed request in milliseconds.
        """
        own = touch_entry(self._buckets, principal, MAX_PRINCIPALS, lambda: TokenBucket(PER_PRINCIPAL, PRINCIPAL_AT_ONCE))
        wait_ms = max(own.wait_ms(now_ns), self._in_all.wait_ms(now_ns))
        if not wait_ms:
            own.take(1, now_ns)
            self._in_all.take(1, now_ns)
        return wait_ms


_PER_S, _AT_ONCE = 400, 1000
"""Rate limit of requests of operators and clients: requests per second, and requests in one burst.

The limit keeps time for the work of the metadata group. Requests of registered nodes are not counted, because the cluster needs
their heartbeats and reports.
"""
MAX_IN_PROGRESS = 4096
"""Maximum number of requests in progress. The controller rejects further requests with UNAVAILABLE."""
MAX_IN_PROGRESS_BYTES = 16 << 20
"""Maximum total size of requests in progress, in bytes. The controller rejects further requests with UNAVAILABLE."""


class RequestLimits:
    """Rate limits, and number and size of the requests in progress, on one controller."""

    def __init__(self) -> None:
        self.allowance = TokenBucket(_PER_S, _AT_ONCE)
        self.rates = RequestRates()
        self.in_progress = 0
        self.in_progress_bytes = 0

    def begin(self, size_bytes: int) -> None:
        self.in_progress += 1
        self.in_progress_bytes += size_bytes

    def end(self, size_bytes: int) -> None:
        self.in_progress -= 1
        self.in_progress_bytes -= size_bytes


# ---- arrival ---------------------------------------------------------------------------------------------------------------
FLOODED = f"{REFUSED}control request above the rate limit of the controller"
TOO_FAST = f"{REFUSED}control request above the rate limit of operators"
"""Name of the counter of operator requests that exceed the rate limit. The answer contains the time to wait."""
NOT_ALLOWED = f"{REFUSED}control request"
"""Name of the counter of requests that are too large or invalid, or that their subject does not accept."""
OVERLOADED = "control requests above the limit of requests in progress"


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """One control request as it arrives, with the facts for its checks."""

    subject_kind: RequestSubject
    """Kind of subject on which it arrived."""
    sender: str
    """Node id or principal in the subject. '': the subject has none."""
    payload: bytes = b""
    is_reply_allowed: bool = True
    is_registered: bool = False
    """True if the sender of the request is a registered node."""
    leads: bool = True
    """True if this controller leads the metadata group."""
    describe_alone: Callable[[pb.ControlRequest], pb.ControlResponse | None] = lambda request: None
    """Function that answers a request without a metadata leader, or returns None."""
    now_ns: int = 0
    """Monotonic time, in nanoseconds."""
    max_payload_bytes: int = 1 << 20
    inbox_prefixes: tuple[str, ...] = ()
    config: ReplicationConfig = field(default_factory=ReplicationConfig)
    limits: RequestLimits = field(default_factory=RequestLimits)
    request: pb.ControlRequest = field(default_factory=pb.ControlRequest)
    """The decoded request. It is empty until the check ``envelope`` has run."""


def _invalid(why_not: Callable[[RequestContext], str]) -> Callable[[RequestContext], Rejection | None]:
    """Return a check that rejects a request as INVALID if ``why_not`` returns a text. '' accepts the request."""

    def reject(arrival: RequestContext) -> Rejection | None:
        detail = why_not(arrival)
        return Rejection(error_response(arrival.request, _ERROR.INVALID, detail), NOT_ALLOWED) if detail else None

    return reject


def _reply_subject(arrival: RequestContext) -> Rejection | None:
    return None if arrival.is_reply_allowed else Rejection(None, REPLY)


def _flood(arrival: RequestContext) -> Rejection | None:
    """Reject a request above the rate limit without an answer, because decoding and answering take time."""
    return None if arrival.is_registered or arrival.limits.allowance.take(1, arrival.now_ns) else Rejection(None, FLOODED)


def _envelope(arrival: RequestContext) -> Rejection | None:
    """Decode the request and set the fields that the controller adds. Reject a request that cannot be decoded, without an answer."""
    try:
        arrival.request = request = frames.decode(arrival.payload, pb.ControlRequest)
    except LiftError as error:
        return Rejection(None, counter_name(error))
    request.sender = arrival.sender
    with_partition_count(request, arrival.config)
    fit_request(request, arrival.max_payload_bytes)
    return None


def _leader(arrival: RequestContext) -> Rejection | None:
    return None if arrival.leads else Rejection(arrival.describe_alone(arrival.request))


def _operator_rate(arrival: RequestContext) -> Rejection | None:
    if arrival.subject_kind is not RequestSubject.ADMIN:
        return None
    wait_ms = arrival.limits.rates.wait_ms(arrival.sender, arrival.now_ns)
    if not wait_ms:
        return None
    sender = quote(arrival.sender) if arrival.sender else "all senders without a principal"
    detail = (
        f"The request is above the rate limit of {PER_PRINCIPAL} requests per second for {sender}, or of {IN_ALL} for all senders. "
        f"Retry in {wait_ms} ms."
    )
    response = error_response(arrival.request, _ERROR.UNAVAILABLE, detail)
    response.retryAfterMs = wait_ms
    return Rejection(response, TOO_FAST)


def _inbox_subjects(arrival: RequestContext) -> str:
    if not arrival.request.HasField("createStream"):
        return ""
    subject, detail = arrival.request.createStream.subject, ""
    for prefix in arrival.inbox_prefixes:
        if overlaps_inbox(subject, MAX_PARTITIONS_PER_STREAM, prefix):  # it may get more partitions at any time
            detail = f"Subject {quote(subject)} overlaps with the inboxes under {prefix}. Choose another subject."
    return detail


def _size(arrival: RequestContext) -> str:
    return fit(arrival.request, len(arrival.payload))


def _known_fields(arrival: RequestContext) -> str:
    if not has_unknown_fields(arrival.request):
        return ""
    return (
        f"{UNSUPPORTED}the request has a field or a kind that the version of the metadata leader does not know. Upgrade the nodes, "
        "or use an older client."
    )


def _sender_name(arrival: RequestContext) -> str:
    if arrival.subject_kind is RequestSubject.INFO or arrival.sender not in PARTITION_TOKENS:
        return ""
    return (
        f"The sender name {arrival.sender!r} is not allowed, because clients with read permissions may publish on its subject. Use "
        "another name."
    )


def _reserved_name(arrival: RequestContext) -> str:
    name = arrival.request.createStream.name
    if not name.startswith(RESERVED) or name == PROBE_STREAM:
        return ""
    return f"Cannot create stream {quote(name)}: names that begin with {RESERVED} are reserved. Use another name."


def _option_name(arrival: RequestContext) -> str:
    name = arrival.request.createStream.name
    return (
        f"Cannot create stream {quote(name)}: commands read a name that begins with - as an option. Use another name."
        if name.startswith("-")
        else ""
    )


def _internal_stream(arrival: RequestContext) -> str:
    return (
        _needs_confirmation(arrival.request)
        if arrival.subject_kind is RequestSubject.ADMIN and not arrival.request.internal
        else ""
    )


def _subject_of_kind(arrival: RequestContext) -> str:
    subject_kind, sender, request = arrival.subject_kind, arrival.sender, arrival.request
    requester = kind_of(request).asked_by
    if requester is RequesterKind.READERS:
        return ""
    if (subject_kind is RequestSubject.NODE and request.HasField("batch")) or (
        subject_kind is RequestSubject.ADMIN and request.batch.requests
    ):
        each = (item.request for item in request.batch.requests)
        reasons = (_of_node(sender, part) if subject_kind is RequestSubject.NODE else _of_operator(part) for part in each)
        return next((reason for reason in reasons if reason), "")
    if subject_kind is RequestSubject.NODE:
        return _of_node(sender, request)
    return (
        ""
        if subject_kind is RequestSubject.ADMIN and requester is RequesterKind.OPERATORS
        else _elsewhere(request, subject_kind)
    )


def _pause_value(arrival: RequestContext) -> str:
    if not arrival.request.HasField("pausePartitions"):
        return ""
    pause = arrival.request.pausePartitions.pause
    if pause in REQUESTED_PAUSES:
        return ""
    known = ", ".join(f"{value} ({pb.Pause.Name(value)})" for value in REQUESTED_PAUSES)
    return f"Invalid pause = {pause}. Use one of {known}. Check that the client and the nodes have compatible versions."


def _in_progress(arrival: RequestContext) -> Rejection | None:
    limits, size_bytes = arrival.limits, len(arrival.payload)
    if limits.in_progress < MAX_IN_PROGRESS and limits.in_progress_bytes + size_bytes <= MAX_IN_PROGRESS_BYTES:
        return None
    detail = "The metadata leader has too many requests in progress."
    return Rejection(error_response(arrival.request, _ERROR.UNAVAILABLE, detail), OVERLOADED)


RECEPTION: tuple[Check[RequestContext], ...] = (
    Check("reply subject", _reply_subject),
    Check("flood", _flood),
    Check("envelope", _envelope),
    Check("leader", _leader),
    Check("operator rate", _operator_rate),
)
PERMISSIONS: tuple[Check[RequestContext], ...] = (
    Check("known fields", _invalid(_known_fields)),
    Check("sender name", _invalid(_sender_name)),
    Check("reserved stream name", _invalid(_reserved_name)),
    Check("stream name like an option", _invalid(_option_name)),
    Check("internal stream", _invalid(_internal_stream)),
    Check("subject of the kind", _invalid(_subject_of_kind)),
)
CONTENTS: tuple[Check[RequestContext], ...] = (
    Check("inbox subjects", _invalid(_inbox_subjects)),
    Check("size", _invalid(_size)),
    *PERMISSIONS,
    Check("pause value", _invalid(_pause_value)),
)
ARRIVAL: tuple[Check[RequestContext], ...] = (*RECEPTION, *CONTENTS, Check("in progress", _in_progress))
WITHOUT_LIMITS: tuple[Check[RequestContext], ...] = (
    *(check for check in RECEPTION if check.name in ("reply subject", "envelope")),
    *CONTENTS,
)
"""Checks of ``ARRIVAL`` for a group in one process. The process always leads and has no rate limits."""


def refusal(subject_kind: RequestSubject, sender: str, request: pb.ControlRequest) -> str:
    """Return why ``sender`` must not send ``request`` on a subject of the kind ``subject_kind``. '': it may.

    ``sender`` is the node id or principal in the subject.
    """
    rejection = first_rejection(PERMISSIONS, RequestContext(subject_kind=subject_kind, sender=sender, request=request))
    return rejection.response.detail if rejection is not None and rejection.response is not None else ""


# ---- permissions of subjects --------------------------------------------------------------------------------------------
RESERVED = "_liftpy"
"""Prefix of the names of internal streams. Only the cluster creates them, except the stream that operators use as a probe."""
_NO_KIND = "The request has no known kind. Check that the sender and the nodes have compatible versions."


def _needs_confirmation(request: pb.ControlRequest) -> str:
    """Return why a request must confirm that it means an internal stream (``--internal``). '': it names no internal stream."""
    for part in (request, *(item.request for item in request.batch.requests)):
        name = part.WhichOneof("request") or ""
        field = kind_of(part).names_stream
        stream = getattr(getattr(part, name), field) if field else ""
        if is_internal(stream):
            return f"Stream {quote(stream)} is internal. Only the cluster uses it. To send {name} anyway, set --internal."
    return ""


def _of_node(who: str, request: pb.ControlRequest) -> str:
    name, kind = request.WhichOneof("request"), kind_of(request)
    if name is None or kind.asked_by is not RequesterKind.NODES or name == "batch":  # no batch within a batch
        return _elsewhere(request, RequestSubject.NODE)
    named = getattr(getattr(request, name), kind.asker) if kind.asker else who
    if named != who:
        return f"{name} names node {quote(named)}, but arrived on the subject of node {quote(who)}. Use the subject of the named node."
    return ""


def _of_operator(request: pb.ControlRequest) -> str:
    kind = kind_of(request)
    return "" if kind.asked_by is RequesterKind.OPERATORS and kind.batched else _elsewhere(request, RequestSubject.ADMIN)


def _elsewhere(request: pb.ControlRequest, subject_kind: RequestSubject) -> str:
    name = request.WhichOneof("request")
    if name is None:
        return _NO_KIND
    arrived = f"{name} arrived on <namespace>.{subject_kind.value}"
    match kind_of(request).asked_by:
        case RequesterKind.OPERATORS:
            return f"{arrived}. Operators must send it on <namespace>.{RequestSubject.ADMIN.value}."
        case RequesterKind.NODES:
            return f"{arrived}. Only nodes may send it, on <namespace>.{RequestSubject.NODE.value}.<id>."
    return f"{arrived}. Only the metadata leader may propose it."


# ---- leader ----------------------------------------------------------------------------------------------------------------
_NEW = "The metadata leader was elected a moment ago, and is not ready yet."


@dataclass(frozen=True, slots=True)
class LeaderFacts:
    """Facts about a request for the checks of the metadata leader."""

    request: pb.ControlRequest
    feature_level: int
    """Feature level of the image."""
    features: tuple[Feature, ...]
    """Features that this controller knows."""
    is_active: bool
    """True if the leader has applied all entries that were committed before its term. Then it knows the sessions."""
    bootstrap: str
    """Reason why a new cluster has no feature level yet. '': it has a level."""


def _decides(request: pb.ControlRequest) -> bool:
    return request.HasField("batch") or not (kind_of(request).read_only or changes_nothing(request))


def _feature_level(facts: LeaderFacts) -> Rejection | None:
    unknown_to_others = feature_level_rejection(facts.request, facts.feature_level, facts.features)
    return Rejection(error_response(facts.request, _ERROR.INVALID, unknown_to_others)) if unknown_to_others else None


def _unavailable(request: pb.ControlRequest, detail: str) -> Rejection:
    return Rejection(error_response(request, _ERROR.UNAVAILABLE, detail))


def _new_leader_of_a_new_cluster(facts: LeaderFacts) -> Rejection | None:
    is_early = not facts.is_active and facts.feature_level == NO_LEVEL and _decides(facts.request)
    return _unavailable(facts.request, _NEW) if is_early else None


def _new_leader(facts: LeaderFacts) -> Rejection | None:
    needs_sessions = facts.request.HasField("batch") or kind_of(facts.request).has_preflight
    return _unavailable(facts.request, _NEW) if not facts.is_active and needs_sessions else None


def _new_cluster(facts: LeaderFacts) -> Rejection | None:
    waits = facts.is_active and facts.bootstrap and _decides(facts.request)
    return _unavailable(facts.request, facts.bootstrap) if waits else None


LEADER: tuple[Check[LeaderFacts], ...] = (
    Check("feature level", _feature_level),
    Check("new leader of a new cluster", _new_leader_of_a_new_cluster),
    Check("new leader", _new_leader),
    Check("new cluster", _new_cluster),
)


# ---- sessions --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SessionFacts:
    """Facts about a request, or one item of a batch, for the checks that need the sessions of the nodes."""

    request: pb.ControlRequest
    image: ClusterImage
    sessions: NodeSessions
    now_ns: int
    """Monotonic time, in nanoseconds."""


def _level_of_the_node(facts: SessionFacts) -> Rejection | None:
    if not facts.request.HasField("registerNode"):
        return None
    beyond = unsupported_level_of(facts.image, facts.request.registerNode)
    return Rejection(error_response(facts.request, _ERROR.INVALID, beyond)) if beyond else None


def _node_id_in_use(facts: SessionFacts) -> Rejection | None:
    """Reject a registration while another process uses the node id. The new process retries until the other process stops."""
    request = facts.request.registerNode
    known = facts.image.nodes.get(request.nodeId) if facts.request.HasField("registerNode") else None
    if known is None or compare_processes(known, request) in (ProcessRelation.SAME, ProcessRelation.OUTDATED):
        return None
    if not facts.sessions.may_still_run(request.nodeId, facts.now_ns):
        return None
    detail = (
        f"Node {known.node_id!r} runs already, as incarnation {known.incarnation} (start {known.start} of data directory "
        f"{quote(known.folder_id)}). Start {request.start} of data directory {quote(request.folderId)} can register when that process "
        "has stopped. Give each node its own id."
    )
    response = error_response(facts.request, _ERROR.EXISTS, detail)
    return Rejection(response, "registrations with the id of a running node")


def _node_is_alive(facts: SessionFacts) -> Rejection | None:
    """Reject the removal of a fenced node that still sends heartbeats. The running node would not notice its removal."""
    node_id = facts.request.removeNode.nodeId
    node = facts.image.nodes.get(node_id) if facts.request.HasField("removeNode") else None
    if node is None or not node.fenced or not facts.sessions.runs(node_id, facts.now_ns):
        return None
    return Rejection(error_response(facts.request, _ERROR.INVALID, f"node {node_id!r} is alive: stop it first"))


SESSIONS: tuple[Check[SessionFacts], ...] = (
    Check("feature level of the node", _level_of_the_node),
    Check("node id in use", _node_id_in_use),
    Check("node is alive", _node_is_alive),
)


# ---- log -------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class LogFacts:
    """Facts about a request for the checks before it is logged."""

    request: pb.ControlRequest
    is_active: bool
    """True if the leader has applied all entries that were committed before its term."""
    view: GroupView
    is_confirmed: bool
    """True if no other controller can be the metadata leader."""
    is_logged: bool
    """True if the log may contain an entry of the operation that is not applied yet."""


def _node_is_a_controller(facts: LogFacts) -> Rejection | None:
    """Reject the removal of a node that is a controller. The image names the controllers only after their first change."""
    node_id = facts.request.removeNode.nodeId
    if not (facts.is_active and facts.request.HasField("removeNode") and facts.view.now.names(node_id)):
        return None
    return Rejection(error_response(facts.request, _ERROR.INVALID, still_a_controller(node_id)))


def _images_differ(facts: LogFacts) -> Rejection | None:
    """Reject all requests while no majority of the controllers has the same image.

    The barrier of a new voter is still accepted.
    """
    request, view = facts.request, facts.view
    catches_up = request.HasField("barrier") and request.sender in view.now.members and request.sender not in view.live
    if not view.halted or catches_up:
        return None
    if not facts.is_confirmed:
        return Rejection(None)
    error = _ERROR.OUTCOME_UNKNOWN if facts.is_logged else _ERROR.UNAVAILABLE
    return Rejection(error_response(request, error, view.halted))


LOG: tuple[Check[LogFacts], ...] = (
    Check("node is a controller", _node_is_a_controller),
    Check("halted", _images_differ),
)
ADMISSION: tuple[Check[Any], ...] = (*ARRIVAL, *LEADER, *SESSIONS, *LOG)
"""All checks in the order in which a controller runs them."""
