"""Requests of a replica to the metadata group.

The effects of ``Request`` are such requests. An effect and its request in ``cluster.proto`` use equal names. So a new
field needs only a number there and a field of the effect.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, cast

from liftpy.core.base.ids import PartitionKey
from liftpy.core.replication import effects as do
from liftpy.core.wire._pb import cluster_pb2
from liftpy.core.wire.message_codec import wire_name

Request = (
    do.ProposeIsr
    | do.ReportLeader
    | do.LeaveIsr
    | do.GiveUpLeadership
    | do.TransferLeadership
    | do.WakePartition
    | do.ReportPromotion
)
"""Effects that are requests to the metadata group."""
_NAMES: dict[type, str] = {
    do.ProposeIsr: "changeIsr",
    do.ReportLeader: "reportLeader",
    do.LeaveIsr: "leaveIsr",
    do.GiveUpLeadership: "giveUpLeadership",
    do.TransferLeadership: "giveUpLeadership",
    do.WakePartition: "wakePartition",
    do.ReportPromotion: "reportPromotion",
}
_IDS = ("leader", "witness", "node", "candidate")
"""Fields of requests with the node id of the sender, unless the effect has such a field."""
_INCARNATIONS = ("incarnation", "witnessIncarnation", "candidateIncarnation")


@cache
def _fields_of(effect: Any) -> tuple[str, dict[str, str], list[str], list[str]]:
    """Return how an effect of class ``effect`` becomes a request to the metadata group.

    The parts are the name of the request, a mapping from its fields to fields of the effect, and two lists. They contain the
    fields for the node id and for the incarnation of the sender.
    """
    name = _NAMES[effect]
    message: Any = cluster_pb2.ControlRequest.DESCRIPTOR.fields_by_name[name].message_type
    wire = message.fields_by_name
    own = {wire_name(field.name): field.name for field in fields(effect) if wire_name(field.name) in wire}
    return name, own, [field for field in _IDS if field in wire and field not in own], [f for f in _INCARNATIONS if f in wire]


def request_of(effect: Request, key: PartitionKey, node_id: str, incarnation: int) -> cluster_pb2.ControlRequest:
    """Return the request to the metadata group that ``effect`` stands for.

    Args:
        effect: Effect of the sending replica.
        key: Partition of the replica.
        node_id: Node of the replica.
        incarnation: Incarnation of the node's process.
    """
    name, own, ids, incarnations = _fields_of(cast(Any, type(effect)))
    arguments: dict[str, Any] = {"stream": key.stream, "uid": key.uid, "partition": key.partition}
    arguments |= dict.fromkeys(ids, node_id) | dict.fromkeys(incarnations, incarnation)
    for field, attribute in own.items():
        value = getattr(effect, attribute)
        arguments[field] = sorted(value) if isinstance(value, frozenset) else dict(value) if isinstance(value, tuple) else value
    return cluster_pb2.ControlRequest(**cast(Any, {name: arguments}))
