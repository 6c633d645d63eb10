"""Flood a cluster of three and say what became of it: see the package."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from liftpy.client import Client, connect
from liftpy.config import FlushPolicy, StreamConfig
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster

STREAM = "flood"
_CHECK_INTERVAL_S = 0.2
_PATIENCE_S = 30.0
"""How long nothing may change after the last publisher has ended, before what is missing counts as lost."""
_LIMIT_S = 900.0
_TELLING = ("lost", "server:", "slow", "leader", "isr", "held", "dropped", "deposed", "election", "candidate", "cut")


@dataclass
class Outcome:
    """What a flood has led to. ``lost``: sent, and neither stored nor counted."""

    sent: int
    stored: int = 0
    """Below the smallest HW of all replicas."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Reason -> messages, of all nodes."""
    cut_off: int = 0
    """How often nat-server has cut a connection of a node."""
    published_in_s: float = 0.0
    stored_in_s: float = 0.0
    leaderships: set[tuple[str, int]] = field(default_factory=set)
    """(leader, LeaderEpoch) that were seen in any node's view."""
    isr_sizes: set[int] = field(default_factory=set)
    """Sizes of the ISR that were seen, in any node's view."""
    epochs: set[int] = field(default_factory=set)
    rss_mib: dict[str, int] = field(default_factory=dict)
    """The most that a process held in memory."""

    @property
    def lost(self) -> int:
        """Neither stored nor counted; negative: something is there twice."""
        return self.sent - self.stored - sum(self.dropped.values())

    @property
    def calm(self) -> bool:
        """Whether nobody was deposed and nobody left the ISR, not even for a moment."""
        return len(self.leaderships) == 1 and self.isr_sizes == {3} and len(self.epochs) == 1

    def text(self) -> str:
        """As JSON, for people too."""
        found = {**asdict(self), "lost": self.lost, "calm": self.calm}
        return json.dumps({k: sorted(v) if isinstance(v, set) else v for k, v in found.items()})


async def flood(
    cluster: DevCluster, messages: int, *, flush: str, size_bytes: int, publishers: int, per_second: int, min_isr: int
) -> Outcome:
    """Flood a new stream of ``cluster`` and wait until all that is left is stored on all replicas."""
    assert cluster.nats is not None
    async with await connect(cluster.nats_url) as client:
        config = StreamConfig(flush=FlushPolicy.parse(flush), min_isr=min_isr)
        await client.create_stream(STREAM, STREAM, config=config)
        await _whole(client, cluster)
        share = messages // publishers
        outcome = Outcome(sent=share * publishers)
        words = [cluster.nats.port, STREAM, share, size_bytes, per_second // publishers]
        command = [sys.executable, "-m", "tests.system.flood.publisher", *map(str, words)]
        began = time.monotonic()
        processes = [await asyncio.create_subprocess_exec(*command) for _ in range(publishers)]
        sending = asyncio.gather(*(process.wait() for process in processes))
        await _watch(client, cluster, outcome, sending, began)
        assert not any(await sending), "a publisher has failed"
        outcome.rss_mib = {name: peak_mib(node.pid) for name, node in cluster.nodes.items()}
        return outcome


async def _whole(client: Client, cluster: DevCluster) -> None:
    """Wait until the new stream is led and followed by all."""
    while True:
        found = [r["partitions"] for r in await _reports(client, cluster)]
        if len(found) == len(cluster.nodes) and all(p and len(p[0]["isr"]) == 3 and p[0]["leader"] for p in found):
            return
        await asyncio.sleep(_CHECK_INTERVAL_S)


async def _reports(client: Client, cluster: DevCluster) -> list[dict[str, Any]]:
    """Of all nodes that answer: a node that is busy may take its time."""

    async def one(node: str) -> dict[str, Any] | None:
        try:
            return await client.admin.node_status(node, timeout_s=5.0)
        except LiftError:
            return None

    return [report for report in await asyncio.gather(*map(one, cluster.nodes)) if report is not None]


async def _watch(
    client: Client, cluster: DevCluster, outcome: Outcome, sending: asyncio.Future[list[int]], began: float
) -> None:
    changed, seen = time.monotonic(), -1
    while (now := time.monotonic()) - began < _LIMIT_S:
        if sending.done() and not outcome.published_in_s:
            outcome.published_in_s = round(now - began, 2)
        reports = await _reports(client, cluster)
        for partition in (p for report in reports for p in report["partitions"]):
            outcome.leaderships.add((partition["leader"], partition["leader_epoch"]))
            outcome.isr_sizes.add(len(partition["isr"]))
            outcome.epochs.add(partition["epoch"])
        if len(reports) == len(cluster.nodes):
            outcome.stored = min(p["high_watermark"] + 1 for report in reports for p in report["partitions"])
            outcome.dropped = dict(sum((dropped(report) for report in reports), Counter[str]()))
            outcome.cut_off = sum(cut_off(report) for report in reports)
            ends = sum(p["newest_offset"] for report in reports for p in report["partitions"])
            if (ends, outcome.lost) != seen:
                changed, seen = time.monotonic(), (ends, outcome.lost)  # type: ignore[assignment]
                outcome.stored_in_s = round(changed - began, 2)
        if sending.done() and (outcome.lost <= 0 or time.monotonic() - changed > _PATIENCE_S):
            return
        await asyncio.sleep(_CHECK_INTERVAL_S)


def dropped(report: dict[str, Any]) -> Counter[str]:
    """What a node says that it has dropped, by reason."""
    found: Counter[str] = Counter()
    for partition in report["partitions"]:
        found.update(partition.get("dropped", {}))
        if "dropped" not in partition:
            found.update(overloaded=partition["overloaded"], rejected=partition["rejected"])
    found["lost with a cut connection"] = report.get("connections", {}).get("ingest", {}).get("lost_with_connections", 0)
    return +found


def cut_off(report: dict[str, Any]) -> int:
    """How often a server has cut a connection of the node."""
    connections = report.get("connections", {"": report["nats"]})
    return sum(n for c in connections.values() for kind, n in c["errors"].items() if kind == "disconnected")


def peak_mib(pid: int) -> int:
    """The largest resident set so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    """Parse, flood, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_500_000)
    parser.add_argument("--flush", default="always", help="always, none or interval:<ms>")
    parser.add_argument("--size", type=int, default=100, help="bytes of a message, 8 at least")
    parser.add_argument("--publishers", type=int, default=1)
    parser.add_argument("--per-second", type=int, default=0, help="of all publishers together; 0: as fast as it goes")
    parser.add_argument("--min-isr", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="print what the nodes log about it")
    given = parser.parse_args()

    def say(node: str, line: str) -> None:
        if given.verbose and any(word in line.lower() for word in _TELLING):
            print(f"{node} | {line}", file=sys.stderr)

    with DevCluster(3, on_line=say) as cluster:
        options = {"flush": given.flush, "size_bytes": given.size, "publishers": given.publishers}
        work = flood(cluster, given.messages, per_second=given.per_second, min_isr=given.min_isr, **options)
        outcome = asyncio.run(work)
        ended = cluster.ended_nodes()
    print(outcome.text())
    sys.exit(0 if outcome.calm and outcome.lost == 0 and not ended else 1)


if __name__ == "__main__":
    main()
