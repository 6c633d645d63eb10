"""The client library: connect, publish, consume, administer.

    async with liftpy.connect("nats://127.0.0.1:4222") as client:
        await client.create_stream("orders", "shop.orders")
        ack = await client.publish("orders", b"one", key=b"k")
        async for record in client.consume("orders", start="earliest", until="end"):
            print(record.offset, record.value)

The library uses asyncio and nats-py. Scripts without asyncio use ``liftpy.client.sync``. Every error is a
``liftpy.errors.LiftError``. Offsets are inclusive unless a name says ``end_offset`` or ``next_offset``. Times are
seconds (``_s``) or nanoseconds since 1970 (``_ns``).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liftpy.client.admin import Admin
    from liftpy.client.batch_view import BatchSlice, ConsumedBatch, ConsumedRecord, GroupBatch
    from liftpy.client.client import Client, connect
    from liftpy.client.consumer import Consumer, EventKind, ReadEvent, ReadOptions
    from liftpy.client.cursor import Cursor
    from liftpy.client.group import Group, GroupOptions
    from liftpy.client.group_admin import Cursors, GroupRejectedError, Groups, Queues
    from liftpy.client.in_flight import PublishAck, PublishOptions
    from liftpy.client.metadata_requests import ClusterState, Controller
    from liftpy.client.multi_consumer import ManyConsumer, positions_from
    from liftpy.client.partition_sender import ManyAck, ManyReceipt, ProducerOptions, Receipt, Source
    from liftpy.client.placement_plans import PlacementOptions, PlacementPlan, ReplicaCounts
    from liftpy.client.positions import Bounds, Position, Start, Until, parse_start, parse_until
    from liftpy.client.producer import Partitioner, Producer
    from liftpy.client.publisher import Publisher
    from liftpy.client.queue import Job, LeaseLostError, Queue, QueueOptions
    from liftpy.client.services import (
        CommandAnswer,
        CommandFailedError,
        QueryAnswer,
        QueryRejectedError,
        ReplyTooLargeError,
        Services,
    )
    from liftpy.client.stream_info import PartitionInfo, StreamInfo
    from liftpy.core.base.partition import PartitionStatus, Pause
    from liftpy.core.services.queries import QueryFailedError
    from liftpy.core.wire.batch import ByteArray, HeaderArray, Record, RecordColumns
    from liftpy.nats.credentials import Credentials

__all__ = [
    "Admin",
    "BatchSlice",
    "Bounds",
    "ByteArray",
    "Client",
    "ClusterState",
    "CommandAnswer",
    "CommandFailedError",
    "ConsumedBatch",
    "ConsumedRecord",
    "Consumer",
    "Controller",
    "Credentials",
    "Cursor",
    "Cursors",
    "EventKind",
    "Group",
    "GroupBatch",
    "GroupOptions",
    "GroupRejectedError",
    "Groups",
    "HeaderArray",
    "Job",
    "LeaseLostError",
    "ManyAck",
    "ManyConsumer",
    "ManyReceipt",
    "PartitionInfo",
    "PartitionStatus",
    "Partitioner",
    "Pause",
    "PlacementOptions",
    "PlacementPlan",
    "Position",
    "Producer",
    "ProducerOptions",
    "PublishAck",
    "PublishOptions",
    "Publisher",
    "QueryAnswer",
    "QueryFailedError",
    "QueryRejectedError",
    "Queue",
    "QueueOptions",
    "Queues",
    "ReadEvent",
    "ReadOptions",
    "Receipt",
    "Record",
    "RecordColumns",
    "ReplicaCounts",
    "ReplyTooLargeError",
    "Services",
    "Source",
    "Start",
    "StreamInfo",
    "Until",
    "connect",
    "parse_start",
    "parse_until",
    "positions_from",
]
_NAMES = {
    "liftpy.client.admin": ("Admin",),
    "liftpy.client.metadata_requests": ("ClusterState", "Controller"),
    "liftpy.client.client": ("Client", "connect"),
    "liftpy.client.consumer": ("Consumer", "EventKind", "ReadEvent", "ReadOptions"),
    "liftpy.nats.credentials": ("Credentials",),
    "liftpy.client.cursor": ("Cursor",),
    "liftpy.client.group": ("Group", "GroupOptions"),
    "liftpy.client.group_admin": ("Cursors", "GroupRejectedError", "Groups", "Queues"),
    "liftpy.client.batch_view": ("BatchSlice", "ConsumedBatch", "ConsumedRecord", "GroupBatch"),
    "liftpy.client.services": (
        "CommandAnswer",
        "CommandFailedError",
        "QueryAnswer",
        "QueryRejectedError",
        "ReplyTooLargeError",
        "Services",
    ),
    "liftpy.client.stream_info": ("PartitionInfo", "StreamInfo"),
    "liftpy.core.base.partition": ("PartitionStatus", "Pause"),
    "liftpy.client.in_flight": ("PublishAck", "PublishOptions"),
    "liftpy.client.multi_consumer": ("ManyConsumer", "positions_from"),
    "liftpy.client.placement_plans": ("PlacementPlan", "PlacementOptions", "ReplicaCounts"),
    "liftpy.client.positions": ("Bounds", "Position", "Start", "Until", "parse_start", "parse_until"),
    "liftpy.client.producer": ("Partitioner", "Producer"),
    "liftpy.client.partition_sender": ("ManyAck", "ManyReceipt", "ProducerOptions", "Receipt", "Source"),
    "liftpy.client.publisher": ("Publisher",),
    "liftpy.core.wire.batch": ("ByteArray", "HeaderArray", "Record", "RecordColumns"),
    "liftpy.core.services.queries": ("QueryFailedError",),
    "liftpy.client.queue": ("Job", "LeaseLostError", "Queue", "QueueOptions"),
}
"""Module -> names that it defines. A name is imported when it is used, so that short commands start fast."""
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


if not TYPE_CHECKING:  # otherwise mypy accepts every name

    def __getattr__(name: str) -> Any:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        attribute = globals()[name] = getattr(importlib.import_module(module), name)
        return attribute


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__") or name == "sync")})
