"""One trace from a publisher to a micro-batch of Spark; see ``liftpy/spark/tracing.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("opentelemetry.sdk")

from liftpy.client.client import connect
from liftpy.core.observe.trace_context import sampled_context_in
from liftpy.spark.tracing import processing
from sidecar.dev.cluster import DevCluster
from tests.integration.test_uncommitted_reads import Application

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
QUERY_TIMEOUT_S = 120


async def published(cluster: DevCluster, name: str, app: Application) -> list[tuple[int, int]]:
    """Two messages that are traced between two that are not; (trace, span) of the two, as they are stored."""
    async with await connect(cluster.nats_url, cluster.namespace) as plain:
        await plain.create_stream(name, name)
        await plain.publish(name, b"0")
        async with await connect(cluster.nats_url, cluster.namespace, trace=app.provider) as client:
            for value in (b"1", b"2"):
                await client.publish(name, value, headers={"kind": b"order"})
        await plain.publish(name, b"3", headers={"traceparent": b"nonsense"})
        contexts = [sampled_context_in(record.headers) async for record in plain.consume(name, until="end")]
    assert [context is not None for context in contexts] == [False, True, True, False]
    return [(context.trace_id, context.span_id) for context in contexts if context is not None]


@pytest.mark.long
async def test_spark_micro_batch_span_belongs_to_the_trace_of_the_first_publisher(
    shared_cluster: DevCluster, spark: Any, stream_name: str, tmp_path: Path
) -> None:
    app = Application()
    sent = await published(shared_cluster, stream_name, app)
    rows = spark.readStream.format("liftpy").options(
        nats=shared_cluster.nats_url, namespace=shared_cluster.namespace, stream=stream_name
    )
    batch_of = rows.options(startingOffsets="earliest", includeHeaders="true").load().coalesce(1)
    met: list[Any] = []

    def bill(batch: Any, batch_id: int) -> None:
        with processing(batch, stream_name, trace=app.provider) as span:
            met.append((span, batch.count()))
        with processing(batch.where("offset = 0"), stream_name, trace=app.provider) as none:
            met.append((none, 1))

    query = (
        batch_of.writeStream.foreachBatch(bill).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    )
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    (span, count), (none, _) = met
    assert (count, none) == (4, None), "where no record is traced there is no span"
    found = app.of(sent[0][0])
    assert found.keys() == {"send", "process"}, "one trace"
    done = found["process"]
    assert done.context == span.get_span_context()
    assert done.parent is not None
    assert done.parent.span_id == sent[0][1] == found["send"].context.span_id  # type: ignore[union-attr]
    assert [(link.context.trace_id, link.context.span_id) for link in done.links] == sent
    said = done.attributes or {}
    assert (said["messaging.destination.name"], said["liftpy.offset"]) == (stream_name, 1)
