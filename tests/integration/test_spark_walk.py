"""The walk through Spark of ``tests/examples/shop.py``, on the shared cluster and session, and the audit in executors; what a
compressed stream sends to executors."""

from __future__ import annotations

import asyncio
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import liftpy
from liftpy.config import Codec, StreamConfig
from liftpy.core.metadata.image import StreamImage
from liftpy.spark.options import Access, Selection
from liftpy.spark.pipelines.audit import audit
from liftpy.spark.pipelines.parallel import spread
from liftpy.spark.pipelines.stats import stats
from liftpy.spark.planning import PlannedRange
from liftpy.spark.process_connection import link_to
from liftpy.spark.range_reader import FetchRules, RangeReader
from sidecar.dev.cluster import DevCluster
from tests.examples.shop import LARGE, orders_of, walk

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("deltalake") is None or find_spec("matplotlib") is None, reason="not installed"),
]


@pytest.mark.long
def test_shop_example_totals_archive_and_audit_match_the_published_orders(
    spark: Any, shared_cluster: DevCluster, stream_name: str, tmp_path: Path
) -> None:
    access = Access(servers=shared_cluster.nats_url, namespace=shared_cluster.namespace)
    found = walk(spark, access, stream_name, tmp_path, tmp_path / "shop.png")
    assert found.totals == found.sold
    assert found.archived == 600
    assert found.large == [order["id"] for order in orders_of(1, 900) if order["cents"] >= LARGE]
    assert found.audited.first is None
    assert [len(one.compared) for one in found.audited.partitions] == [3, 3, 3]
    assert sum(one.measures.records for one in found.measured.partitions) == 900
    assert found.measured.streams()[0].summary()["keys"] == 4
    assert (tmp_path / "shop.png").read_bytes().startswith(b"\x89PNG")

    wanted = Selection((stream_name,))
    assert audit(access, wanted, spark=spark).to_json() == audit(access, wanted).to_json(), "executors see the same"
    assert stats(access, wanted, spark=spark).to_json() == stats(access, wanted).to_json()


def test_spark_executors_receive_the_batches_of_a_compressed_stream_compressed(
    shared_cluster: DevCluster, stream_name: str
) -> None:
    values = [b"%05d" % n + b"x" * 1000 for n in range(500)]

    async def publish() -> StreamImage:
        async with liftpy.connect(shared_cluster.nats_url, shared_cluster.namespace) as client:
            made = await client.create_stream(stream_name, f"data.{stream_name}", config=StreamConfig(codec=Codec.ZSTD))
            async with client.producer(stream_name) as producer:
                await producer.send_many(values)
            return made

    made = asyncio.run(publish())
    link = link_to(Access(servers=shared_cluster.nats_url, namespace=shared_cluster.namespace))
    partition = made.partitions[0]
    wanted = PlannedRange(stream_name, made.uid, 0, 0, len(values), 1 << 30, partition.leader, tuple(partition.replicas))
    slices = [piece for pieces in RangeReader(link, wanted, FetchRules(patience_s=30.0)).read() for piece in pieces]
    assert [record.value for piece in slices for record in piece.records()] == values
    headers = [piece.batch.header for piece in slices]
    assert {header.codec for header in headers} == {Codec.ZSTD}
    assert 0 < sum(header.size_bytes for header in headers) < sum(map(len, values)) // 10, "as they came over the line"


def test_spark_job_reports_finished_tasks_before_it_ends(spark: Any, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    told: list[tuple[int, int]] = []

    def work(piece: int) -> int:
        deadline = time.monotonic() + 60
        while piece and not seen.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return piece

    def tell(done: int, total: int) -> None:
        told.append((done, total))
        if done:
            seen.touch()

    assert spread(work, [0, 1], spark=spark, tell=tell) == [0, 1]
    assert (1, 2) in told
    assert told[-1] == (2, 2)
