"""Admission: on which subject a control request is allowed, and the rate limit for operators. Pure.

NATS permissions say who may publish on a subject. This module says which requests a subject accepts, by the table in
``requests.py``. So read permission cannot change anything, and requests of node ``n1`` come only on
``<ns>.control.node.n1``. A kind without a row is rejected. Requests that would create, change or delete internal
streams need ``internal``.

Example: ``changeIsr`` with leader ``n2`` on ``<ns>.control.node.n1`` is rejected, also within a batch. ``deleteStream``
on ``<ns>.info`` is rejected.

Rate limit: each principal has an allowance, and all principals together have one. A rejected request is told when to
retry. At most ``MAX_PRINCIPALS`` are remembered.
"""

from __future__ import annotations

from enum import Enum

from liftpy.config import NS_PER_S
from liftpy.core.base.ids import PROBE_STREAM, is_internal, shown
from liftpy.core.metadata.controller.requests import AskedBy, kind_of
from liftpy.core.metadata.features import UNSUPPORTED
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.decode_errors import has_unknown_fields
from liftpy.core.wire.subjects import PARTITION_WORDS


class RequestAcl(Enum):
    """A subject on which controllers listen, without the namespace and the name of the asker."""

    INFO = "info"
    ADMIN = "control.admin"
    NODE = "control.node"


_GUARDED = {
    "createStream": "name",
    "addPartitions": "name",
    "deleteStream": "name",
    "alterStream": "name",
    "truncateBefore": "stream",
    "purgeRecords": "stream",
    "pausePartitions": "stream",
}
"""Kind of request -> its field that names a stream, which must not be an internal one."""
RESERVED = "_liftpy"
"""Prefix of stream names that only the cluster creates. The stream of ``liftpy health --probe`` is the exception."""
_NO_KIND = "a request of an unknown kind"


def refusal(door: RequestAcl, who: str, request: pb.ControlRequest) -> str:
    """Return why ``who`` (the name in the subject) must not send ``request`` there, '' if it may."""
    if has_unknown_fields(request):
        return f"{UNSUPPORTED}the request holds fields, or is of a kind, that the metadata leader's version does not know"
    if door is not RequestAcl.INFO and who in PARTITION_WORDS:
        return f"nobody is called {who!r}: who may read may publish on this subject as well"
    asked_by = kind_of(request).asked_by
    if asked_by is AskedBy.READERS:
        return ""
    if request.HasField("createStream") and (name := request.createStream.name).startswith(RESERVED) and name != PROBE_STREAM:
        return (
            f"stream {shown(request.createStream.name)} can't be made: names that begin with {RESERVED} are the cluster's own"
        )
    if request.HasField("createStream") and request.createStream.name.startswith("-"):
        return (
            f"stream {shown(request.createStream.name)} can't be made: a name that begins with - reads as an option of commands"
        )
    if door is RequestAcl.ADMIN and not request.internal and (guarded := _guarded(request)):
        return guarded
    if (door is RequestAcl.NODE and request.HasField("batch")) or (door is RequestAcl.ADMIN and request.batch.requests):
        each = (item.request for item in request.batch.requests)
        reasons = (_of_node(who, part) if door is RequestAcl.NODE else _of_operator(part) for part in each)
        return next((reason for reason in reasons if reason), "")
    if door is RequestAcl.NODE:
        return _of_node(who, request)
    return "" if door is RequestAcl.ADMIN and asked_by is AskedBy.OPERATORS else _elsewhere(request, door)


def _guarded(request: pb.ControlRequest) -> str:
    """Return why a request for an internal stream needs a confirmation."""
    for part in (request, *(item.request for item in request.batch.requests)):
        name = part.WhichOneof("request") or ""
        stream = getattr(getattr(part, name), _GUARDED[name]) if name in _GUARDED else ""
        if is_internal(stream):
            return f"stream {shown(stream)} is internal, the cluster's own: {name} needs to say that it is meant (--internal)"
    return ""


def _of_node(who: str, request: pb.ControlRequest) -> str:
    name, kind = request.WhichOneof("request"), kind_of(request)
    if name is None or kind.asked_by is not AskedBy.NODES or name == "batch":  # no batch within a batch
        return _elsewhere(request, RequestAcl.NODE)
    named = getattr(getattr(request, name), kind.asker) if kind.asker else who
    if named != who:
        return f"{name} speaks for {shown(named)} on the subject of {shown(who)}"
    return ""


def _of_operator(request: pb.ControlRequest) -> str:
    kind = kind_of(request)
    return "" if kind.asked_by is AskedBy.OPERATORS and kind.batched else _elsewhere(request, RequestAcl.ADMIN)


def _elsewhere(request: pb.ControlRequest, door: RequestAcl) -> str:
    name = request.WhichOneof("request") or _NO_KIND
    match kind_of(request).asked_by:
        case AskedBy.OPERATORS:
            return f"{name} is asked for on <namespace>.{RequestAcl.ADMIN.value}, not on .{door.value}"
        case AskedBy.NODES:
            return f"{name} is asked for by nodes, on <namespace>.{RequestAcl.NODE.value}.<id>, not on .{door.value}"
    return f"{name} is not asked for by anybody"


PER_PRINCIPAL, PRINCIPAL_AT_ONCE = 50, 250
"""A second, and at once."""
IN_ALL, ALL_AT_ONCE = 200, 1000
MAX_PRINCIPALS = 1000


class Allowance:
    """Rate limit: requests per second, and up to ``at_once`` saved ones."""

    def __init__(self, per_s: float, at_once: int) -> None:
        self._per_ns = per_s / NS_PER_S
        self._at_once = self._left = float(at_once)
        self._seen_ns = 0

    def take(self, now_ns: int) -> bool:
        """Return whether one more may be."""
        self._look(now_ns)
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def wait_ms(self, now_ns: int) -> int:
        """Return the milliseconds until one more request is allowed. 0: now."""
        self._look(now_ns)
        return 0 if self._left >= 1 else int((1 - self._left) / self._per_ns / 1_000_000) + 1

    def _look(self, now_ns: int) -> None:
        self._left = min(self._at_once, self._left + max(0, now_ns - self._seen_ns) * self._per_ns)
        self._seen_ns = now_ns


class RequestRates:
    """Rate limits of one metadata leader. ``now_ns`` is monotonic."""

    def __init__(self) -> None:
        self._in_all = Allowance(IN_ALL, ALL_AT_ONCE)
        self._of: dict[str, Allowance] = {}
        """Principal -> allowance. '' is for requests without one. The last one used is at the end."""

    def __len__(self) -> int:
        return len(self._of)

    def wait_ms(self, principal: str, now_ns: int) -> int:
        """Count a request of ``principal``. Return 0, or the time after which it may come again, in milliseconds."""
        own = self._of.pop(principal, None)
        if own is None:
            own = Allowance(PER_PRINCIPAL, PRINCIPAL_AT_ONCE)
            if len(self._of) >= MAX_PRINCIPALS:
                del self._of[next(iter(self._of))]
        self._of[principal] = own
        wait_ms = max(own.wait_ms(now_ns), self._in_all.wait_ms(now_ns))
        if not wait_ms:
            own.take(now_ns)
            self._in_all.take(now_ns)
        return wait_ms
