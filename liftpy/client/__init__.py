"""What applications import: connect, publish, consume, administer.

    async with liftpy.connect("nats://127.0.0.1:4222") as client:
        await client.create_stream("orders", "shop.orders")
        ack = await client.publish("orders", b"one", key=b"k")
        async for record in client.consume("orders", start="earliest", until="end"):
            print(record.offset, record.value)

asyncio on nats-py; without asyncio: ``liftpy.client.sync``. Every error is a ``liftpy.errors.LiftError``; offsets are inclusive unless
a name says ``end_offset`` or ``next_offset``; times are seconds (``_s``) or nanoseconds since 1970 (``_ns``).
"""

from __future__ import annotations

from liftpy.client.admin import ClusterState, Controller
from liftpy.client.client import Client, connect
from liftpy.client.consumer import Consumer, ReadOptions
from liftpy.client.credentials import Credentials
from liftpy.client.cursor import Cursor
from liftpy.client.events import EventKind, ReadEvent
from liftpy.client.group import Group, GroupOptions, GroupRefusedError
from liftpy.client.group_part import GroupPart
from liftpy.client.in_flight import PublishAck, PublishOptions
from liftpy.client.many import ManyConsumer, Taken, positions_from
from liftpy.client.plans import PlacementPlan, PlacementWish, Tally
from liftpy.client.positions import Bounds, Position, Start, Until, parse_start, parse_until
from liftpy.client.producer import Partitioner, Producer
from liftpy.client.producing import ManyAck, ManyReceipt, ProducerOptions, Receipt, Source
from liftpy.client.publisher import Publisher
from liftpy.client.queries import QueryAnswer, QueryFailedError, QueryRefusedError
from liftpy.client.queue import Job, LeaseLostError, Queue, QueueOptions
from liftpy.client.slices import BatchSlice

__all__ = [
    "BatchSlice",
    "Bounds",
    "Client",
    "ClusterState",
    "Consumer",
    "Controller",
    "Credentials",
    "Cursor",
    "EventKind",
    "Group",
    "GroupOptions",
    "GroupPart",
    "GroupRefusedError",
    "Job",
    "LeaseLostError",
    "ManyAck",
    "ManyConsumer",
    "ManyReceipt",
    "Partitioner",
    "PlacementPlan",
    "PlacementWish",
    "Position",
    "Producer",
    "ProducerOptions",
    "PublishAck",
    "PublishOptions",
    "Publisher",
    "QueryAnswer",
    "QueryFailedError",
    "QueryRefusedError",
    "Queue",
    "QueueOptions",
    "ReadEvent",
    "ReadOptions",
    "Receipt",
    "Source",
    "Start",
    "Taken",
    "Tally",
    "Until",
    "connect",
    "parse_start",
    "parse_until",
    "positions_from",
]
