"""Doors: on which subject which control request may be asked for, and by whom. Pure.

Goal: NATS's rights say who may publish on a subject; this says what a subject is good for. So a right to read can't change
anything, and what speaks for node ``n1`` comes from whoever may publish on ``<ns>.control.node.n1``.

Constraint: who may ask for what stands in one table (``requests.py``). A kind that is in no row is refused everywhere.

Internal streams, whose names begin with ``_``, are the cluster's own: what would make, change, cut or delete one needs ``internal``.
Where their replicas are is for operators to say as of any other: ``reassign`` and ``electLeader`` need nothing.

Worked example: ``changeIsr`` with leader ``n2`` on ``<ns>.control.node.n1`` is refused, and so it is within a batch;
``deleteStream`` on ``<ns>.info`` is refused; anything on ``<ns>.control.admin.read``, where who may read may publish as well, is
refused; ``passOver``, which only the metadata leader proposes, is refused wherever it comes from.
"""

from __future__ import annotations

from enum import Enum

from liftpy.cluster.features import UNSUPPORTED
from liftpy.cluster.requests import AskedBy, kind_of
from liftpy.ids import PROBE_STREAM, is_internal, shown
from liftpy.wire._pb import cluster_pb2 as pb
from liftpy.wire.subjects import PARTITION_WORDS
from liftpy.wire.unknown import has_unknown_fields


class Door(Enum):
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
"""Names of streams that begin so are made by the cluster alone, whatever is said; but for the one that operators probe with."""
_NO_KIND = "a request of an unknown kind"


def refusal(door: Door, who: str, request: pb.ControlRequest) -> str:
    """Why ``request`` may not be asked for there by ``who`` (the name in the subject), '' if it may."""
    if has_unknown_fields(request):
        return f"{UNSUPPORTED}the request holds fields, or is of a kind, that the metadata leader's version does not know"
    if door is not Door.INFO and who in PARTITION_WORDS:
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
    if door is Door.ADMIN and not request.internal and (guarded := _guarded(request)):
        return guarded
    if (door is Door.NODE and request.HasField("batch")) or (door is Door.ADMIN and request.batch.requests):
        each = (item.request for item in request.batch.requests)
        reasons = (_of_node(who, part) if door is Door.NODE else _of_operator(part) for part in each)
        return next((reason for reason in reasons if reason), "")
    if door is Door.NODE:
        return _of_node(who, request)
    return "" if door is Door.ADMIN and asked_by is AskedBy.OPERATORS else _elsewhere(request, door)


def _guarded(request: pb.ControlRequest) -> str:
    """Why it needs to say that an internal stream is meant."""
    for part in (request, *(item.request for item in request.batch.requests)):
        name = part.WhichOneof("request") or ""
        stream = getattr(getattr(part, name), _GUARDED[name]) if name in _GUARDED else ""
        if is_internal(stream):
            return f"stream {shown(stream)} is internal, the cluster's own: {name} needs to say that it is meant (--internal)"
    return ""


def _of_node(who: str, request: pb.ControlRequest) -> str:
    name, kind = request.WhichOneof("request"), kind_of(request)
    if name is None or kind.asked_by is not AskedBy.NODES or name == "batch":  # no batch within a batch
        return _elsewhere(request, Door.NODE)
    named = getattr(getattr(request, name), kind.asker) if kind.asker else who
    if named != who:
        return f"{name} speaks for {shown(named)} on the subject of {shown(who)}"
    return ""


def _of_operator(request: pb.ControlRequest) -> str:
    kind = kind_of(request)
    return "" if kind.asked_by is AskedBy.OPERATORS and kind.batched else _elsewhere(request, Door.ADMIN)


def _elsewhere(request: pb.ControlRequest, door: Door) -> str:
    name = request.WhichOneof("request") or _NO_KIND
    match kind_of(request).asked_by:
        case AskedBy.OPERATORS:
            return f"{name} is asked for on <namespace>.{Door.ADMIN.value}, not on .{door.value}"
        case AskedBy.NODES:
            return f"{name} is asked for by nodes, on <namespace>.{Door.NODE.value}.<id>, not on .{door.value}"
    return f"{name} is not asked for by anybody"
