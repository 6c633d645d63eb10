"""A stream that is held to its quota, beside one that has none."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from liftpy.client import Client, PublishOptions, connect
from liftpy.config import StreamConfig
from liftpy.core.publish.quota import BURST_S
from sidecar.dev.cluster import DevCluster

QUOTA_PER_S, OFFERED_PER_S, NEIGHBOUR_PER_S = 1000, 3000, 1000
SIZE_BYTES = 100
_READY_S = 60.0
_CHECK_INTERVAL_S = 0.02


@dataclass
class Outcome:
    """What became of both."""

    seconds: float = 0.0
    tolerance: float = 0.02
    """Of the rate, downwards and upwards."""
    alone: dict[str, Any] = field(default_factory=dict)
    """The neighbour, before."""
    held: dict[str, Any] = field(default_factory=dict)
    """The stream with a quota."""
    beside: dict[str, Any] = field(default_factory=dict)
    """The neighbour, meanwhile."""
    altered: dict[str, Any] = field(default_factory=dict)
    """The stream with twice the quota."""
    default: dict[str, Any] = field(default_factory=dict)
    """A stream without a quota of its own, since the cluster has a default one."""
    after_kill: dict[str, Any] = field(default_factory=dict)
    """The same, led by another node: its leader was killed."""
    by_client: int = 0
    """Messages that one publisher of the client had acknowledged in ``client_s``, far more being offered."""
    client_s: float = 0.0

    def wrong(self) -> list[str]:
        """What must not be, for people; empty: all is well."""
        said = []
        for name, one, per_s in (
            ("held", self.held, QUOTA_PER_S), ("altered", self.altered, 2 * QUOTA_PER_S), ("default", self.default, QUOTA_PER_S),
            ("after_kill", self.after_kill, QUOTA_PER_S),
        ):  # fmt: skip
            accepted, due = one["answers"].get("ok", 0), per_s * one["seconds"]
            if not due * (1 - self.tolerance) <= accepted <= (due + per_s * BURST_S) * (1 + self.tolerance):
                said.append(f"{name}: {accepted} were accepted in {one['seconds']} s, {due:.0f} are due")
            if one["unanswered"] or one["answers"].keys() - {"ok", "quota"} or not one["answers"].get("quota"):
                said.append(f"{name}: {one['unanswered']} unanswered, answers {one['answers']}")
        if self.beside["unanswered"] or self.beside["answers"].keys() - {"ok"}:
            said.append(f"the neighbour: {self.beside['unanswered']} unanswered, answers {self.beside['answers']}")
        if self.by_client > QUOTA_PER_S * 2 * (self.client_s + BURST_S) * (1 + self.tolerance):
            said.append(f"the client's publisher had {self.by_client} taken in {self.client_s} s")
        return said

    def slow(self) -> list[str]:
        """What a quiet machine would do better."""
        said = []
        if self.held["refused_ms"]["p99"] > 50:
            said.append(f"refused publishes were answered after {self.held['refused_ms']}")
        if self.beside["accepted_per_s"] < 0.95 * self.alone["accepted_per_s"]:
            said.append(f"the neighbour had {self.beside['accepted_per_s']}/s, alone {self.alone['accepted_per_s']}/s")
        if self.by_client < QUOTA_PER_S * 2 * self.client_s * 0.9:
            said.append(f"the client's publisher had {self.by_client} taken in {self.client_s} s only")
        return said

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


async def sender(
    cluster: DevCluster, subject: str, per_second: int, size_bytes: int, seconds: float, nice: int = 0, has_ids: bool = False
) -> dict[str, Any]:
    """A process of ``sender.py``; what it says."""
    port = int(cluster.nats_url.rpartition(":")[2])
    words = [port, subject, per_second, size_bytes, seconds, nice, *["ids"] * has_ids]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.system.overload.sender", *map(str, words), stdout=asyncio.subprocess.PIPE
    )
    try:
        out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return {**json.loads(out), "seconds": seconds}


async def until_led(client: Client, name: str) -> None:
    """Until a publish is acknowledged."""
    deadline = time.monotonic() + _READY_S
    while True:
        try:
            await client.publish(name, b"first", timeout_s=5.0)
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.05)


async def until_known(cluster: DevCluster, client: Client) -> None:
    """Until what the metadata group has answered holds on all nodes that run."""
    running = [name for name, node in cluster.nodes.items() if node.running]

    async def index_of(node: str) -> int:
        return int((await client.admin.node_status(node))["metadata_index"])

    await until_all_have(running, index_of)


async def until_all_have(nodes: Sequence[str], index_of: Callable[[str], Awaitable[int]], ready_s: float = _READY_S) -> None:
    """Until all of them have applied as much of the metadata log as any of them has now: one of them leads it, and has applied what it
    answered. Raises TimeoutError."""
    wanted = max([await index_of(node) for node in nodes])
    async with asyncio.timeout(ready_s):
        for node in nodes:
            while await index_of(node) < wanted:
                await asyncio.sleep(_CHECK_INTERVAL_S)


async def run(cluster: DevCluster, seconds: float, tolerance: float = 0.02) -> Outcome:
    """Two new streams of ``cluster``; what their publishers met."""
    out = Outcome(seconds=seconds, tolerance=tolerance)
    async with await connect(cluster.nats_url) as client:
        await client.create_stream("held", "held", config=StreamConfig(quota_records_per_s=QUOTA_PER_S))
        await client.create_stream("neighbour", "neighbour")
        await until_led(client, "held")
        await until_led(client, "neighbour")
        out.alone = await sender(cluster, "neighbour", NEIGHBOUR_PER_S, SIZE_BYTES, seconds / 2)
        out.held, out.beside = await asyncio.gather(
            sender(cluster, "held", OFFERED_PER_S, SIZE_BYTES, seconds),
            sender(cluster, "neighbour", NEIGHBOUR_PER_S, SIZE_BYTES, seconds),
        )
        await client.admin.alter_stream("held", quota_records_per_s=2 * QUOTA_PER_S)
        await until_known(cluster, client)
        out.altered = await sender(cluster, "held", 2 * OFFERED_PER_S, SIZE_BYTES, seconds / 2)
        await _by_client(client, out, seconds / 2)
        await _by_default(cluster, client, out, seconds / 2)
    return out


async def _by_default(cluster: DevCluster, client: Client, out: Outcome, seconds: float) -> None:
    """A stream that was led before there was a default, and by who leads it next."""
    stream = await client.create_stream("plain", "plain")
    await until_led(client, "plain")
    await client.admin.set_default_quota(records_per_s=QUOTA_PER_S)
    await until_known(cluster, client)
    out.default = await sender(cluster, "plain", OFFERED_PER_S, SIZE_BYTES, seconds)
    await asyncio.to_thread(cluster.nodes[stream.partitions[0].leader].kill)
    await until_led(client, "plain")
    out.after_kill = await sender(cluster, "plain", OFFERED_PER_S, SIZE_BYTES, seconds)


async def _by_client(client: Client, out: Outcome, seconds: float) -> None:
    """As fast as the client's publisher lets it."""
    async with client.publisher("held", options=PublishOptions(window=1000)) as publisher:
        began = time.monotonic()
        taken: list[asyncio.Future[Any]] = []
        while time.monotonic() - began < seconds:
            taken.append(await publisher.send(b"c" * SIZE_BYTES))
        out.client_s = round(time.monotonic() - began, 2)
        out.by_client = sum(one.done() for one in taken)
        await publisher.flush()
