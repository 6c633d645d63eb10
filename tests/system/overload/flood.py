"""Three times as much as the cluster takes, with replies, for minutes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from liftpy.client import Client, connect
from liftpy.config import StreamConfig
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster

MIB = 1024 * 1024
LIMIT_BYTES = 256 * MIB
SETTINGS = {"LIFTPY_MEMORY_LIMIT_BYTES": str(LIMIT_BYTES), "LIFTPY_REPLICATION_MAX_QUEUE_DELAY_S": "0.2"}
STREAM, SIZE_BYTES, TIMES, SENDERS = "flooded", 500, 3, 2
IDS_S = 5.0
"""The window of message ids, where there are any: those of two minutes would have no room."""
CALM_S = 5.0
"""In which all is as before, at the end."""
SLOWER = 4.0
"""Times the p99 at 80 % of the peak: what accepted publishes may take."""
KEPT = 0.25
"""Of the peak: what is to be accepted of three times the peak."""
_NICE = 10
"""Publishers and nodes share two processors here; where each has its own, or its weight, a flood does not take those of the nodes."""
_CHECK_INTERVAL_S = 0.5
_SHORTEST_S = 4.0
_READY_S = 60.0


@dataclass
class Outcome:
    """What was seen."""

    seconds: float = 0.0
    peak_per_s: int = 0
    """Acknowledged, as fast as answers came."""
    at_80: dict[str, Any] = field(default_factory=dict)
    flood: list[dict[str, Any]] = field(default_factory=list)
    """Of each sender."""
    idle_mib: int = 0
    """Resident, the node that had most before."""
    most_mib: int = 0
    """The same meanwhile."""
    isr_sizes: set[int] = field(default_factory=set)
    leaderships: set[tuple[str, int]] = field(default_factory=set)
    terms: set[int] = field(default_factory=set)
    counted: dict[str, int] = field(default_factory=dict)
    """By the leader: refused and dropped, by reason."""
    calm_after_s: float = -1.0
    """Until a second at 80 % of the peak went by as before, and nobody was refused; -1: it never did."""
    ended: list[str] = field(default_factory=list)
    has_ids: bool = False
    """Each message has an id of its own."""

    def answers(self) -> Counter[str]:
        """Of all senders."""
        return sum((Counter(one["answers"]) for one in self.flood), Counter())

    def unanswered(self) -> int:
        """Of all senders."""
        return sum(one["unanswered"] for one in self.flood)

    def wrong(self) -> list[str]:
        """What must not be, for people; empty: all is well."""
        answers, most = self.answers(), 1.2 * LIMIT_BYTES / MIB
        checks = {
            f"{self.unanswered()} publishes were not answered ({self.counted})": self.unanswered(),
            f"answers {dict(answers)}": answers.keys() - {"ok", "429"} or not answers["ok"],
            f"a node took {self.most_mib} MiB, at most {most:.0f} are right": self.most_mib > most,
            f"ISR sizes {sorted(self.isr_sizes)}": self.isr_sizes != {3},
            f"leaderships {sorted(self.leaderships)}": len(self.leaderships) != 1,
            f"the metadata group elected: terms {sorted(self.terms)}": len(self.terms) != 1,
            f"nodes have ended: {self.ended}": self.ended,
        }
        return [text for text, is_wrong in checks.items() if is_wrong]

    def slow(self) -> list[str]:
        """What a quiet machine would do better."""
        p99 = max((one["ok_ms"]["p99"] for one in self.flood), default=0.0)
        said = []
        accepted_per_s = sum(one["accepted_per_s"] for one in self.flood)
        if accepted_per_s < KEPT * self.peak_per_s:
            said.append(f"{accepted_per_s}/s were accepted, {self.peak_per_s}/s can be")
        if p99 > SLOWER * self.at_80["ok_ms"]["p99"]:
            said.append(f"accepted publishes took {p99} ms (p99), at 80 % of the peak {self.at_80['ok_ms']['p99']} ms")
        if not 0 <= self.calm_after_s <= CALM_S:
            said.append(f"calm after {self.calm_after_s} s")
        return said

    def text(self) -> str:
        """As JSON."""
        return json.dumps({k: sorted(v) if isinstance(v, set) else v for k, v in asdict(self).items()})


async def run(cluster: DevCluster, seconds: float, shortest_s: float = _SHORTEST_S, has_ids: bool = False) -> Outcome:
    """A new stream of ``cluster``: its peak, 80 % of that, three times that, and after it."""
    out, before_s = Outcome(seconds=seconds, has_ids=has_ids), max(shortest_s, seconds / 15)
    async with await connect(cluster.nats_url) as client:
        window_s = IDS_S if has_ids else StreamConfig().dedup_window_s
        await client.create_stream(STREAM, STREAM, config=StreamConfig(dedup_window_s=window_s))
        await until_led(client, STREAM)
        peak = await _sender(cluster, out, 0, before_s)
        out.peak_per_s = round(peak["accepted_per_s"])
        out.at_80 = await _sender(cluster, out, round(0.8 * out.peak_per_s), before_s)
        out.idle_mib = _resident_mib(cluster)
        watching = asyncio.create_task(_watch(client, cluster, out))
        each = TIMES * out.peak_per_s // SENDERS
        out.flood = await asyncio.gather(*(_sender(cluster, out, each, seconds) for _ in range(SENDERS)))
        await _until_calm(cluster, out)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        leader = (await client.stream(STREAM)).partitions[0].leader
        said = next(p for p in (await client.admin.node_status(leader))["partitions"] if p["stream"] == STREAM)
        out.counted = {name: said[name] for name in ("overloaded", "rejected") if name in said} | said.get("dropped", {})
        out.ended = cluster.ended_nodes()
    return out


async def sender(cluster: DevCluster, subject: str, per_second: int, seconds: float, has_ids: bool) -> dict[str, Any]:
    """Run a process of ``sender.py``, and return what it reports."""
    port = int(cluster.nats_url.rpartition(":")[2])
    words = [port, subject, per_second, SIZE_BYTES, seconds, _NICE, *["ids"] * has_ids]
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


async def _sender(cluster: DevCluster, out: Outcome, per_second: int, seconds: float) -> dict[str, Any]:
    return await sender(cluster, STREAM, per_second, seconds, out.has_ids)


async def _until_calm(cluster: DevCluster, out: Outcome) -> None:
    began = time.monotonic()
    while (passed := time.monotonic() - began) < 6 * CALM_S:
        one = await _sender(cluster, out, round(0.8 * out.peak_per_s), 1.0)
        if (
            one["answers"].keys() == {"ok"}
            and not one["unanswered"]
            and one["ok_ms"]["p50"] <= SLOWER * out.at_80["ok_ms"]["p99"]
        ):
            out.calm_after_s = round(passed, 2)
            return


async def _watch(client: Client, cluster: DevCluster, out: Outcome) -> None:
    while True:
        out.most_mib = max(out.most_mib, _resident_mib(cluster))
        with contextlib.suppress(LiftError):
            partition = (await client.stream(STREAM)).partitions[0]
            out.isr_sizes.add(len(partition.isr))
            out.leaderships.add((partition.leader, partition.leader_epoch))
            found = await client.admin.describe_cluster()
            out.terms |= {controller.term for controller in found.controllers}
        await asyncio.sleep(_CHECK_INTERVAL_S)


def _resident_mib(cluster: DevCluster) -> int:
    pages = (int(Path(f"/proc/{node.pid}/statm").read_text().split()[1]) for node in cluster.nodes.values() if node.running)
    return max(pages) * 4096 // MIB
