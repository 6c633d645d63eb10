"""What runs beside the load while versions change: a service beside each node, and a Spark query; and what both must have."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from liftpy.client import Client, connect
from liftpy.errors import LiftError
from tests.examples.chain import Chain
from tests.examples.processes import start_service
from tests.system.spark_source.__main__ import Query
from tests.system.spark_source.judge import Reach, complaints

OUTPUT = "load-chain"
_EVERY = 500
"""Records between snapshots of the service."""


class _Expected(Chain):
    """The service over a log that is at rest. ``emitted``: all that it brings out."""

    def __init__(self) -> None:
        self.emitted: list[bytes] = []

    def emit(self, value: bytes | None, **more: Any) -> None:
        """Keep it."""
        self.emitted.append(value or b"")


def chained(records: Sequence[Any]) -> list[bytes]:
    """What the service brings out of ``records``."""
    service = _Expected()
    service.on_start(None)
    for record in records:
        service.on_record(record)
    return service.emitted


class Beside:
    """Of one cluster. ``folder``: for snapshots, logs and the query's checkpoint. ``spark``: a session, None: no query."""

    def __init__(self, client: Client, nats_url: str, stream: str, nodes: Sequence[str], folder: Path, spark: Any) -> None:
        self._client, self._nats_url, self._stream, self._nodes, self._folder = client, nats_url, stream, nodes, folder
        self._services: dict[str, subprocess.Popen[Any]] = {}
        options = {"nats": nats_url, "patience": "60", "subscribe": stream}
        self._query = None if spark is None else Query(spark, folder / "checkpoint", options)

    async def start(self) -> None:
        """The services and the query; the stream is there."""
        await self._client.create_stream(OUTPUT, f"{OUTPUT}.in", partitions=1, replicas=len(self._nodes))
        for node in self._nodes:
            self._services[node] = start_service(
                "tests.examples.chain:Chain",
                stream=self._stream,
                node=node,
                data=self._folder,
                output=OUTPUT,
                snapshot_interval_records=_EVERY,
                nats_url=self._nats_url,
            )
        if self._query is not None:
            await asyncio.to_thread(self._query.start)

    async def stop(self) -> None:
        """Both."""
        for process in self._services.values():
            process.terminate()
        for process in self._services.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, 20)
            process.kill()
        if self._query is not None:
            await asyncio.to_thread(self._query.stop)

    def ended(self) -> list[str]:
        """Services that are gone, and a query that has failed: neither may be by a change of versions."""
        gone = [
            f"the service beside {node} ended with {p.poll()}" for node, p in self._services.items() if p.poll() is not None
        ]
        failure = "" if self._query is None else self._query.failure
        return gone + ([f"the query has failed: {failure}"] if failure else [])

    async def has_all(self, count: int) -> bool:
        """Whether both have come to ``count`` records: nothing is published any more."""
        with contextlib.suppress(LiftError):
            brought_out = (await self._client.bounds(OUTPUT)).high_watermark + 1
            read = count if self._query is None else self._query.counted(self._stream)
            return brought_out >= count // 100 and read >= count
        return False

    async def wrong(self, records: Sequence[Any]) -> list[str]:
        """What they have against what the log has, ``records``, from offset 0 on."""
        found = self.ended()
        async with await connect(self._nats_url) as client:
            brought_out = [record.value async for record in client.consume(OUTPUT, until="end")]
        if brought_out != chained(records):
            found.append(f"the service brought out {len(brought_out)} values, and not those of the log")
        if self._query is not None:
            values = {0: [record.value or b"" for record in records]}
            reach = {0: Reach(0, len(records))}
            found += [f"the query: {what}" for what in complaints(self._query.rows(self._stream), values, reach)]
        return found

    def figures(self) -> str:
        """For people."""
        if self._query is None:
            return "a service beside each node"
        return f"a service beside each node, a query that read {self._query.counted(self._stream)} records"
