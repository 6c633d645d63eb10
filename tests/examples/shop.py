"""A walk through Spark: ``python -m tests.examples.shop [--plot shop.png]``, on a cluster of this machine.

Orders are published, a streaming query copies the large ones into a stream of their own, an archive puts all into a Delta table, the
table and the live stream are one DataFrame that is added up by country, an audit proves that all replicas hold the same, and stats
draws what there was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import liftpy
from liftpy.spark.options import Access, Selection
from liftpy.spark.pipelines.archive import ArchivePlan, archive, whole
from liftpy.spark.pipelines.audit import audit
from liftpy.spark.pipelines.audit_findings import AuditReport
from liftpy.spark.pipelines.stats import StatsReport, save_plot, stats
from liftpy.spark.session import local_session
from sidecar.dev.cluster import DevCluster

LARGE = 15_000
COUNTRIES = ("DE", "FR", "IT", "PL")
PATIENCE_S = 120


@dataclass(frozen=True, slots=True)
class Walk:
    """What came of it. ``sold``, ``totals``: cents by country, as published and as table and stream together have them.

    ``archived``: records put into the table. ``large``: ids of the orders in the stream of large ones, in ascending order.
    """

    sold: dict[str, int]
    totals: dict[str, int]
    archived: int
    large: list[int]
    audited: AuditReport
    measured: StatsReport


def orders_of(seed: int, count: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {"id": number, "country": rng.choice(COUNTRIES), "cents": rng.randint(100, 20_000), "note": "x" * rng.randint(0, 200)}
        for number in range(count)
    ]


async def publish(access: Access, stream: str, orders: list[dict[str, Any]]) -> None:
    async with liftpy.connect(access.servers, access.namespace) as client:
        await client.create_stream(stream, f"data.{stream}", partitions=2, exist_ok=True)
        await client.create_stream(f"{stream}-large", f"data.{stream}-large", exist_ok=True)
        async with client.producer(stream) as producer:
            keys = [order["country"].encode() for order in orders]
            await producer.send_many([json.dumps(order).encode() for order in orders], keys=keys)


async def ids_in(access: Access, stream: str) -> list[int]:
    """Of the orders in a stream, in ascending order."""
    async with liftpy.connect(access.servers, access.namespace) as client:
        return sorted([json.loads(record.value or b"")["id"] async for record in client.consume(stream, until="end")])


def copy_large(spark: Any, access: Access, stream: str, folder: Path) -> None:
    """Large orders into a stream of their own, each once: all that are there, and end; run again, it goes on from its checkpoint."""
    options = {"nats": access.servers, "namespace": access.namespace}
    orders = spark.readStream.format("liftpy").options(**options, startingOffsets="earliest", columns="key,value").load(stream)
    query = (
        orders.where(f"cast(get_json_object(cast(value as string), '$.cents') as long) >= {LARGE}")
        .writeStream.format("liftpy")
        .options(**options, checkpointLocation=str(folder / "large"))
        .trigger(availableNow=True)
        .start(f"{stream}-large")
    )
    if not query.awaitTermination(PATIENCE_S):
        raise TimeoutError("the query did not end")


def totals_of(orders: Any) -> dict[str, int]:
    """Cents by country."""
    rows = (
        orders.selectExpr("from_json(cast(value as string), 'country string, cents long') as o")
        .groupBy("o.country")
        .sum("o.cents")
    )
    return dict(rows.collect())


def walk(spark: Any, access: Access, stream: str, folder: Path, plot: Path | None) -> Walk:
    """All of it, on a stream of that name."""
    orders = orders_of(1, 900)
    first, second = orders[:600], orders[600:]
    asyncio.run(publish(access, stream, first))
    source = {"nats": access.servers, "namespace": access.namespace}
    table = str(folder / "archive")
    archived = archive(spark, ArchivePlan(streams=(stream,), table=table, source=source))
    asyncio.run(publish(access, stream, second))
    copy_large(spark, access, stream, folder)
    everything = whole(spark, table, stream, source)  # the first 600 from the table, the others from the cluster
    audited = audit(access, Selection((stream, f"{stream}-large")))
    measured = stats(access, Selection((stream,)))
    if plot is not None:
        save_plot(measured, plot)
    sold = {place: sum(order["cents"] for order in orders if order["country"] == place) for place in COUNTRIES}
    return Walk(sold, totals_of(everything), archived, asyncio.run(ids_in(access, f"{stream}-large")), audited, measured)


def main() -> int:
    """See the docstring above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, default=Path("shop.png"))
    plot = parser.parse_args().plot
    with DevCluster(3) as cluster, tempfile.TemporaryDirectory(prefix="liftpy-shop-") as name:
        spark = local_session("liftpy shop", settings={"spark.sql.warehouse.dir": f"{name}/warehouse"})
        found = walk(spark, Access(servers=cluster.nats_url, namespace=cluster.namespace), "orders", Path(name), plot)
        spark.stop()
    print(f"cents by country: {found.totals}; {len(found.large)} large orders; {found.archived} records in the archive")
    print(f"replicas {'agree' if found.audited.first is None else found.audited.first}; plot: {plot}")
    return 0 if found.totals == found.sold and found.audited.first is None else 1


if __name__ == "__main__":
    sys.exit(main())
