"""One run: the phases, what they measure, and the gates that they must meet."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from liftpy.client import Client, connect
from liftpy.config import AckPolicy, StreamConfig
from sidecar.dev.cluster import DevCluster
from tests.system.scale.view import View

ONE_KILLED_S = 5.0
ALL_RESTARTED_S = 15.0
MORE_TERMS = 1
ANSWERED_S = 15.0
_GIVE_UP_S = 180.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much. ``idle_s``: over which the cost of idling is measured."""

    partitions: int
    nodes: int
    per_stream: int
    at_once: int
    idle_s: float


def cpu_s(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def rss_mb(pid: int) -> float:
    """Resident memory of a process, MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Run:
    """A cluster, a view of its metadata from outside, and the phases."""

    def __init__(self, sizes: Sizes, folder: Path, log: Path | None = None) -> None:
        self._sizes = sizes
        self._log: TextIO | None = log.open("w") if log else None
        # As installed: a node does not compile this project anew at each start, whatever the checkout's environment says.
        compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
        settings = {"LIFTPY_SCRUB_BYTES_PER_S": "0", **compiled}
        self.cluster = DevCluster(sizes.nodes, data=folder, on_line=self._line, settings=settings)
        self.missed: list[str] = []
        self.figures: dict[str, float] = {}
        self._view = View()
        self._client: Client

    def _line(self, node: str, line: str) -> None:
        self._view.line(line)
        if self._log is not None:
            self._log.write(f"{time.monotonic():.3f} {node} | {line}\n")

    async def all(self, only: tuple[str, ...] = ()) -> list[str]:
        """Every phase, or ``only`` those; return the gates that were missed."""
        phases: dict[str, Callable[[], Awaitable[None]]] = {
            "idle": self.idle,
            "kill-one": self.kill_one,
            "kill-all": lambda: self.restart_all("kill"),
            "stop-all": lambda: self.restart_all("stop"),
        }
        await asyncio.to_thread(self.cluster.start)
        try:
            self._client = await connect(self.cluster.nats_url)
            await self._view.open(self.cluster.nats_url, self.cluster.namespace)
            await self.create()
            for name in only or phases:
                await phases[name]()
            await self._view.close()
            await self._client.close()
        finally:
            await asyncio.to_thread(self.cluster.stop)
            if self._log is not None:
                self._log.close()
        return self.missed

    # ---- phases --------------------------------------------------------------------------------------------------------------
    async def create(self) -> None:
        """All streams, as fast as the cluster takes them; done when every partition has a leader that its node leads as."""
        sizes, began, term = self._sizes, time.monotonic(), self._view.term
        names = iter([f"s{number}" for number in range(sizes.partitions // sizes.per_stream)])
        config = StreamConfig(ack_policy=AckPolicy.ALL)

        async def worker() -> None:
            for name in names:
                await self._client.create_stream(name, f"scale.{name}", partitions=sizes.per_stream, config=config, ready_s=0)

        await asyncio.gather(*(worker() for _ in range(sizes.at_once)))
        created_s = time.monotonic() - began
        await self._answering("after the creation")
        self._say("created", created_s, term, f"answering after {time.monotonic() - began:.1f} s")

    async def idle(self) -> None:
        """What the partitions cost while nothing happens."""
        if not self._sizes.idle_s:
            return
        await asyncio.sleep(15.0)  # a partition is quiet after ten idle waits
        assert self.cluster.nats is not None
        pids = {**{name: node.pid for name, node in self.cluster.nodes.items()}, "nats-server": self.cluster.nats.pid}
        before = {name: cpu_s(pid) for name, pid in pids.items()}
        await asyncio.sleep(self._sizes.idle_s)
        shares = {name: (cpu_s(pid) - before[name]) / self._sizes.idle_s for name, pid in pids.items()}
        per_thousand = 1000 / self._sizes.partitions
        text = ", ".join(f"{name} {share:.1%} ({share * per_thousand:.1%} per 1,000)" for name, share in shares.items())
        print(f"idle: CPU of a core: {text}; RSS of a node {rss_mb(pids['n1']):.0f} MB", flush=True)

    async def kill_one(self) -> None:
        """kill -9 of the metadata leader: everything is led again within the gate; then it comes back and all is whole."""
        await self._view.until(self._view.whole, _GIVE_UP_S)
        term = self._view.term
        victim = self._view.metadata_leader
        led = len(self._view.led_by(victim))
        began = time.monotonic()
        await asyncio.to_thread(self.cluster.nodes[victim].kill)
        await self._view.until(lambda: self._view.led_without({victim}), _GIVE_UP_S)
        took_s = time.monotonic() - began
        self._gate("one node killed: all led", took_s, ONE_KILLED_S)
        self._say(f"killed {victim}, which led {led}", took_s, term)
        await self._answering("after the kill")
        began = time.monotonic()
        self.cluster.nodes[victim].start()
        await asyncio.to_thread(self.cluster.nodes[victim].wait_ready, _GIVE_UP_S)
        ready_s = time.monotonic() - began
        await self._view.until(self._view.whole, _GIVE_UP_S)
        self._say(f"{victim} is back", time.monotonic() - began, term, f"ready after {ready_s:.1f} s")
        self._terms("one node killed and back", term, 1)

    async def restart_all(self, how: str) -> None:
        """All nodes end at once and begin again: everything is led within the gate."""
        term, before = self._view.term, self._view.incarnations()
        nodes = list(self.cluster.nodes.values())
        stopping = time.monotonic()
        await asyncio.gather(*(asyncio.to_thread(node.kill if how == "kill" else node.interrupt) for node in nodes))
        began = time.monotonic()
        for node in nodes:
            node.start()
        await self._view.until(lambda: self._view.led_anew(before), _GIVE_UP_S)
        took_s = time.monotonic() - began
        self._gate(f"all nodes: {how}: all led", took_s, ALL_RESTARTED_S)
        await asyncio.gather(*(asyncio.to_thread(node.wait_ready, _GIVE_UP_S) for node in nodes))
        ready_s = time.monotonic() - began
        await self._view.until(self._view.whole, _GIVE_UP_S)
        more = f"ended in {began - stopping:.1f} s, ready after {ready_s:.1f} s, whole after {time.monotonic() - began:.1f} s"
        self._say(f"all ended ({how}) and began again", took_s, term, more)
        self._terms(f"all nodes: {how}", term, 1)
        await self._answering(f"after the {how} of all")

    # ---- measures --------------------------------------------------------------------------------------------------------------
    async def _answering(self, when: str) -> None:
        """Some partitions of all, evenly spread, acknowledge a publish each."""
        began = time.monotonic()
        late = await self._view.publish_to_some(self._view.subjects(), 64, _GIVE_UP_S)
        self._gate(f"{when}: 64 publishes acknowledged", time.monotonic() - began, ANSWERED_S)
        if late:
            print(f"{when}: {late} of 64 publishes were not acknowledged the first time", flush=True)

    def _gate(self, what: str, took_s: float, bound_s: float) -> None:
        self.figures[what] = took_s
        if took_s > bound_s:
            self.missed.append(f"{what} after {took_s:.1f} s, not within {bound_s:g} s")

    def _terms(self, what: str, before: int, needed: int) -> None:
        more = self._view.term - before - needed
        if more > MORE_TERMS:
            self.missed.append(f"{what}: {more} metadata terms more than needed")

    def _say(self, what: str, took_s: float, term: int, more: str = "") -> None:
        load = os.getloadavg()[0]
        cpu = " ".join(f"{name} {cpu_s(node.pid):.1f}" for name, node in self.cluster.nodes.items() if node.running)
        text = f"{what}: {took_s:.1f} s, terms {term} -> {self._view.term}; CPU s so far: {cpu}; load {load:.1f}"
        print(text + (f"; {more}" if more else ""), flush=True)
