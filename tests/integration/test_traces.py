"""Traces of real nodes: from a plain publisher through its leader and two followers, over a fail-over too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from liftpy.trace.context import TraceContext, traceparent
from sidecar.dev.cluster import DevCluster
from tests.integration.collector import Collector, Seen
from tests.integration.conftest import QUICK, Bench, close_bench, open_bench, show

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def traced_cluster(collector: Collector) -> Iterator[DevCluster]:
    settings = {**QUICK, "LIFTPY_TRACE": "otlp", "LIFTPY_TRACE_ENDPOINT": collector.url}
    with DevCluster(3, settings=settings, on_line=show) as running:
        yield running


async def traced(bench: Bench, name: str, sender: TraceContext, seen: Collector, followers: set[str]) -> dict[str, Seen]:
    """Publish with nats-py on behalf of ``sender``; the spans of its trace, once they are there."""
    headers = {"traceparent": traceparent(sender).decode(), "tracestate": "a=b"}

    async def acked() -> bool:
        answer = await bench.nc.request(f"data.{name}", b"traced", timeout=2, headers=headers)
        return b'"seq"' in answer.data and b"error" not in answer.data

    await bench.until(acked, "acked")
    wanted = {f"append {name}/0", "flush", "commit", "ack", *(f"replicate {node}" for node in followers)}

    async def there() -> dict[str, Seen] | None:
        found = seen.of(sender.trace_id)
        return found if wanted <= found.keys() else None

    found: dict[str, Seen] = await bench.until(there, f"{wanted} are there")
    root = found[f"append {name}/0"]
    assert root.parent == sender.span_id
    assert root.links == ((sender.trace_id, sender.span_id),)
    assert {span.parent for span in found.values() if span is not root} == {root.span}
    assert not any(span.error for span in found.values())
    assert all(root.start_ns <= span.start_ns <= span.end_ns <= root.end_ns for span in found.values())
    return found


async def test_one_trace_from_a_plain_publisher_to_the_followers_and_over_a_fail_over(
    traced_cluster: DevCluster, collector: Collector, stream_name: str
) -> None:
    bench = await open_bench(traced_cluster)
    await bench.create(stream_name)
    leader = await bench.leader(stream_name)
    others = set(traced_cluster.nodes) - {leader}
    await bench.publish_acked(f"data.{stream_name}", [b"nobody traces this"])
    unsampled = TraceContext(0xABD, 1, 0)
    await bench.nc.request(f"data.{stream_name}", b"x", timeout=5, headers={"traceparent": traceparent(unsampled).decode()})
    found = await traced(bench, stream_name, TraceContext(0xABC, 0xD, 1), collector, others)
    root = found[f"append {stream_name}/0"]
    assert root.node == leader
    said = {
        key: root.attributes[key] for key in ("messaging.destination.name", "messaging.batch.message_count", "liftpy.offset")
    }
    assert said == {"messaging.destination.name": stream_name, "messaging.batch.message_count": 1, "liftpy.offset": 2}
    assert not collector.of(unsampled.trace_id)

    traced_cluster.nodes[leader].kill()

    async def another_leads() -> bool:
        return await bench.leader(stream_name) not in ("", leader) and await bench.ready(stream_name)

    await bench.until(another_leads, "another leads")
    after = await bench.leader(stream_name)
    (last,) = others - {after}
    found = await traced(bench, stream_name, TraceContext(0xABE, 0xD, 1), collector, {last})
    root = found[f"append {stream_name}/0"]
    assert (root.node, root.attributes["liftpy.leader_epoch"] > 1) == (after, True)

    async def told() -> bool:
        mine = [(span.name, span.node) for span in collector.spans]
        failed_over = [node for name, node in mine if name == f"fail-over {stream_name}/0"]
        recovered = {node for name, node in mine if name == "recovery"}
        return (f"election {stream_name}/0", after) in mine and len(failed_over) == 1 and recovered == set(traced_cluster.nodes)

    await bench.until(told, "election, fail-over and recoveries are told")
    await close_bench(bench)
