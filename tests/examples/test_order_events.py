from __future__ import annotations

import asyncio

from liftpy.testing.memory import memory_cluster
from tests.examples.order_events import Order, Report, Stock, pack, place, report, set_up, write_invoices


async def test_order_events_report_has_the_invoices_the_packed_orders_and_the_stock() -> None:
    orders = [Order("ann", "tea", 300), Order("bob", "tea", 300), Order("ann", "cup", 900)]
    async with memory_cluster() as cluster, cluster.client() as client, asyncio.timeout(60):
        await set_up(client)
        await asyncio.to_thread(cluster.serve, Stock, "stock", "stock")
        for item in (b"tea", b"cup"):
            await client.services.call("stock", "stock", b'{"item": "%s", "pieces": 5}' % item)
        await place(client, orders)
        await asyncio.gather(write_invoices(client, 3), pack(client, 3))
        assert await report(client) == Report({"ann": 1200, "bob": 300}, 3, {"cup": 4, "tea": 3})
        assert [one.name for one in await client.groups.list()] == ["billing", "packers"]
