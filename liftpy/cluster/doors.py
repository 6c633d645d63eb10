"""Doors: on which subject which control request may be asked for, and by whom. Pure.

Goal: NATS's rights say who may publish on a subject; this says what a subject is good for. So a right to read can't change
anything, and what speaks for node ``n1`` comes from whoever may publish on ``<ns>.control.node.n1``.

Constraint: the table is whole. A request of a kind that is in no row is refused everywhere, and a test compares the rows with the kinds
that there are.

Worked example: ``changeIsr`` with leader ``n2`` on ``<ns>.control.node.n1`` is refused, and so it is within a batch;
``deleteStream`` on ``<ns>.info`` is refused; anything on ``<ns>.control.admin.read``, where who may read may publish as well, is
refused; ``passOver``, which only the metadata leader proposes, is refused wherever it comes from.
"""

from __future__ import annotations

from enum import Enum

from liftpy.ids import shown
from liftpy.wire._pb import cluster_pb2 as pb
from liftpy.wire.subjects import PARTITION_WORDS


class Door(Enum):
    """A subject on which controllers listen, without the namespace and the name of who asks."""

    INFO = "info"
    ADMIN = "control.admin"
    NODE = "control.node"


READS = frozenset({"describeCluster", "describeStream"})
OPERATORS = frozenset({"createStream", "deleteStream", "removeNode", "electLeader"})
ASKER = {
    "registerNode": "nodeId",
    "heartbeat": "nodeId",
    "fenceNode": "nodeId",
    "drainNode": "nodeId",
    "changeIsr": "leader",
    "reportLeader": "witness",
    "reportPromotion": "candidate",
    "leaveIsr": "node",
    "giveUpLeadership": "leader",
}
"""What nodes ask for, and the field that says which node does."""
BY_NOBODY_ELSE = frozenset({"unfenceNode", "passOver", "concludeElection"})
"""What the metadata leader proposes itself."""


def refusal(door: Door, who: str, request: pb.ControlRequest) -> str:
    """Why ``request`` may not be asked for there by ``who`` (the name in the subject), '' if it may."""
    kind = request.WhichOneof("request") or "a request of an unknown kind"
    if door is not Door.INFO and who in PARTITION_WORDS:
        return f"nobody is called {who!r}: who may read may publish on this subject as well"
    if kind in READS:
        return ""
    if door is Door.NODE and kind == "batch":
        reasons = (_of_node(who, item.request) for item in request.batch.requests)
        return next((reason for reason in reasons if reason), "")
    if door is Door.NODE:
        return _of_node(who, request)
    if door is Door.ADMIN and kind in OPERATORS:
        return ""
    return _elsewhere(kind, door)


def _of_node(who: str, request: pb.ControlRequest) -> str:
    kind = request.WhichOneof("request") or "a request of an unknown kind"
    if kind == "barrier":
        return ""
    if kind not in ASKER:
        return _elsewhere(kind, Door.NODE)
    named = getattr(getattr(request, kind), ASKER[kind])
    if named != who:
        return f"{kind} speaks for {shown(named)} on the subject of {shown(who)}"
    return ""


def _elsewhere(kind: str, door: Door) -> str:
    if kind in OPERATORS:
        return f"{kind} is asked for on <namespace>.{Door.ADMIN.value}, not on .{door.value}"
    if kind in ASKER or kind in ("batch", "barrier"):
        return f"{kind} is asked for by nodes, on <namespace>.{Door.NODE.value}.<id>, not on .{door.value}"
    return f"{kind} is not asked for by anybody"
