"""A small application on the client: orders, invoices by a consumer group, packing by a work queue, stock by a service, a report.

``place`` stores orders. ``write_invoices`` is a member of the group ``billing`` and stores one invoice for each order.
``pack`` is a worker of the queue ``packers``. ``Stock`` is a replicated service. ``report`` counts the results.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import liftpy
from liftpy.core.wire.batch import Record
from liftpy.service import Service

STREAMS = {"orders": "shop.orders", "invoices": "shop.invoices", "stock": "shop.stock"}


@dataclass(frozen=True, slots=True)
class Order:
    """One order of a customer."""

    customer: str
    item: str
    cents: int


@dataclass(frozen=True, slots=True)
class Report:
    """Sums over all orders.

    Attributes:
        cents: Sum of the invoices by customer.
        packed: Number of packed orders.
        stock: Pieces that are left by item.
    """

    cents: dict[str, int]
    packed: int
    stock: dict[str, int]


class Stock(Service):
    """Pieces of each item. A command adds pieces, or takes one. A reply says how many are left."""

    def on_start(self, snapshot: bytes | None) -> None:
        self.pieces: dict[str, int] = json.loads(snapshot or b"{}")

    def on_record(self, record: Record) -> None:
        command: dict[str, Any] = json.loads(record.value or b"{}")
        item, pieces = str(command["item"]), int(command["pieces"])
        left = self.pieces.get(item, 0) + pieces
        if left >= 0:
            self.pieces[item] = left
        self.reply(record, b"%d" % left)

    def on_query(self, query: bytes) -> bytes:
        return json.dumps(self.pieces, sort_keys=True).encode()

    def take_snapshot(self) -> bytes:
        return json.dumps(self.pieces, sort_keys=True).encode()


async def set_up(client: liftpy.Client) -> None:
    """Create the streams of the application."""
    for name, subject in STREAMS.items():
        await client.create_stream(name, subject, exist_ok=True)


async def place(client: liftpy.Client, orders: Sequence[Order]) -> None:
    """Store each order once and in order, also if the process restarts."""
    async with client.producer("orders", id="till-1") as producer:
        for order in orders:
            value = json.dumps({"item": order.item, "cents": order.cents}).encode()
            await producer.send(value, key=order.customer.encode())


async def write_invoices(client: liftpy.Client, count: int) -> None:
    """Store an invoice for each order, as a member of a consumer group. Return after ``count`` orders."""
    written = 0
    async with client.group("billing", ["orders"]) as group:
        async for record in group:
            cents = json.loads(record.value or b"{}")["cents"]
            await client.publish("invoices", b"%d" % cents, key=record.key, msg_id=f"invoice-{record.offset}")
            written += 1
            if written == count:
                await group.commit()
                return


async def pack(client: liftpy.Client, count: int) -> None:
    """Pack ``count`` orders, as a worker of a queue. Reject an order without stock."""
    done = 0
    async with client.queue("orders", "packers") as queue:
        async for job in queue:
            item = json.loads(job.record.value or b"{}")["item"]
            command = json.dumps({"item": item, "pieces": -1}).encode()
            left = await client.services.call("stock", "stock", command, message_id=f"order-{job.record.offset}")
            await (job.ack() if int(left.value) >= 0 else job.reject("sold out"))
            done += 1
            if done == count:
                return


async def report(client: liftpy.Client) -> Report:
    """Read all invoices, the state of the queue and the stock."""
    cents: Counter[str] = Counter()
    async for record in client.consume("invoices", until="end"):
        cents[(record.key or b"").decode()] += int(record.value or b"0")
    queues = await client.queues.describe("packers")
    stock = await client.services.query("stock", b"")
    return Report(dict(cents), sum(queue.acknowledged_below for queue in queues), json.loads(stock.value))
