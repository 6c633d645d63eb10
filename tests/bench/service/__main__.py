"""How fast replicated services are: ``python -m tests.bench.service [--records N] [--outputs N] [--nodes N] [--short]``.

Real nodes, flushed and replicated; records of 100 B. One line each, as JSON:

``catch-up``: a service without outputs, started beside a stream that is full. ``outputs``: three copies of a service that emits every
record, one beside each node, started beside a stream that is full, until the last output is committed. ``publisher``: what the
client's own publisher, in a process like theirs, writes to a stream beside it, each message acknowledged, in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from liftpy.client import Client, PublishOptions, connect
from sidecar.dev.cluster import DevCluster
from tests.examples.processes import start_service

VALUE = b"x" * 100
_BLOCK = 2000
_MODULE = "tests.bench.service.services"
_PATIENCE_S = 300.0
_POLL_S = 0.005


async def fill(client: Client, stream: str, count: int) -> float:
    """Write ``count`` records with the client's publisher; return the seconds until all are acknowledged."""
    async with client.publisher(stream, options=PublishOptions()) as publisher:
        began = time.perf_counter()
        for _ in range(0, count, _BLOCK):
            for _ in range(_BLOCK):
                await publisher.send(VALUE)
        await publisher.flush()
        return time.perf_counter() - began


async def catch_up(client: Client, cluster: DevCluster, data: Path, count: int) -> dict[str, Any]:
    """A service without outputs beside the first node."""
    node = next(iter(cluster.nodes))
    process = start_service(
        f"{_MODULE}:Tally",
        stream="full",
        node=node,
        data=data,
        output="",
        snapshot_interval_records=1 << 30,
        nats_url=cluster.nats_url,
    )
    try:
        answer = await client.services.query("tally", b"", at_least=count, timeout_s=_PATIENCE_S)
    finally:
        process.terminate()
        process.wait(30)
    (first, began), (last, ended) = json.loads(answer.value)
    return {"what": "catch-up", "records": count, "records_per_s": round((last - first) / (ended - began))}


async def outputs(client: Client, cluster: DevCluster, data: Path, count: int) -> dict[str, Any]:
    """A service that emits every record, beside every node."""
    processes: list[subprocess.Popen[Any]] = []
    times = [(0, time.perf_counter())]
    try:
        for node in cluster.nodes:
            flags = {"stream": "some", "output": "copies", "snapshot_interval_records": 1 << 30}
            processes.append(start_service(f"{_MODULE}:Copy", node=node, data=data, nats_url=cluster.nats_url, **flags))
        until = time.perf_counter() + _PATIENCE_S
        while times[-1][0] < count:
            asked, end = time.perf_counter(), (await client.bounds("copies", 0)).end_offset
            if not end:  # it begins when the first one is there: a fast machine shows all of them at one look
                times[0] = (0, asked)
            elif end > times[-1][0]:
                times.append((end, time.perf_counter()))
            if time.perf_counter() > until:
                raise SystemExit("the outputs did not all come")
            await asyncio.sleep(_POLL_S)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)
    began, (last, ended) = times[0][1], times[-1]
    return {"what": "outputs", "records": count, "records_per_s": round(last / (ended - began))}


async def bench(records: int, output_records: int, nodes: int) -> None:
    """All of it."""
    with tempfile.TemporaryDirectory() as folder, DevCluster(nodes) as cluster:
        async with await connect(cluster.nats_url) as client:
            for stream in ("full", "some", "copies", "own"):
                await client.create_stream(stream, f"bench.{stream}")
            await fill(client, "full", records)
            await fill(client, "some", output_records)
            print(json.dumps(await catch_up(client, cluster, Path(folder), records)), flush=True)
            emitted = await outputs(client, cluster, Path(folder), output_records)
            took_s = await fill(client, "own", output_records)
            rate = output_records / took_s
            print(json.dumps(emitted | {"of_the_publisher": round(emitted["records_per_s"] / rate, 2)}), flush=True)
            print(json.dumps({"what": "publisher", "records": output_records, "records_per_s": round(rate)}), flush=True)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--outputs", type=int, default=200_000)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="little data: only shows that everything runs")
    options = parser.parse_args()
    sizes = (20_000, 4_000) if options.short else (options.records, options.outputs)
    asyncio.run(bench(*sizes, options.nodes))


if __name__ == "__main__":
    main()
