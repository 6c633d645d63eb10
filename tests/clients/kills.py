"""Publishing at a steady rate while the stream's leader is killed again and again: what the client was told, and what is stored.

Right is, at the client's default settings: nothing acknowledged is lost, each acknowledged value stands where its ack says, and with
message ids each is stored once. Time-outs, "nobody there" and refusals are counted and shown; with a standby there are none, and each
value is stored once without message ids, too. This project's own client sends again by itself: it is told no, or left in doubt, never,
with a standby or without, whether NATS is restarted or not.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from collections import Counter, deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from liftpy.client import Client, connect
from liftpy.config import StreamConfig
from sidecar.dev.cluster import DevCluster, DevNode
from sidecar.dev.nats_server import NatsServer, free_ports
from tests.clients.answered import Tap
from tests.clients.build import MissingError, Program
from tests.clients.protocol import Answer, Process

_BETWEEN_S = 1.0
_PATIENCE_S = 60.0
_HEARD = re.compile(r'^liftpy_standby_messages_total\{state="(\w+)"\} (\d+)', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blows:
    """What is done while a client publishes, and how it publishes. ``kills`` of leaders; ``moves`` of the leadership, by command."""

    kills: int = 0
    moves: int = 0
    nats_restarts: bool = False
    """With each kill: every other time at the same moment, else when the next leader is there."""
    server_deaths: int = 0
    """Of NATS servers, of three in a cluster, one after the other; never the one that the client and the first node are at."""
    standby: bool = False
    msg_ids: bool = True
    rate: int = 200
    how: tuple[str, ...] = ("together",)


@dataclass(slots=True)
class Cluster:
    """Three nodes and one stream: strikes its leader."""

    dev: DevCluster
    client: Client
    lines: deque[tuple[float, str]]
    """(monotonic s, what a node has said)"""
    servers: list[NatsServer] = field(default_factory=list)
    """Of NATS, where there are several."""
    standbys: Counter[str] = field(default_factory=Counter)
    """What the standbys of all processes have counted, those that are gone included."""
    slowest_s: float = 0.0
    slowest: str = ""
    """Of the kills: the longest wait for an ack, and what the nodes have said until it was over."""

    async def leader(self, stream: str) -> DevNode:
        """Once all three replicas are in sync."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                partition = (await self.client.stream(stream)).partitions[0]
                if partition.leader and len(partition.isr) == 3:
                    return self.dev.nodes[partition.leader]
                await asyncio.sleep(0.1)

    async def move_leader(self, stream: str, times: int) -> None:
        """By command, to each replica in its turn."""
        for number in range(times):
            await self.leader(stream)
            await asyncio.sleep(_BETWEEN_S)
            image = await self.client.stream(stream)
            followers = [replica for replica in image.partitions[0].isr if replica != image.partitions[0].leader]
            await self.client.admin.elect_leader(stream, 0, followers[number % 2])
        await self.leader(stream)
        await asyncio.sleep(_BETWEEN_S)

    async def kill_leaders(self, stream: str, kills: int, tap: Tap, *, nats_restarts: bool) -> None:
        """The killed one comes back, and is in sync again, before the next is killed."""
        for number in range(kills):
            node = await self.leader(stream)
            await asyncio.sleep(_BETWEEN_S)
            self.standbys += await asyncio.to_thread(_counted, node)
            tap.longest_s, began = 0.0, time.monotonic()
            killing = asyncio.create_task(asyncio.to_thread(node.kill))
            if nats_restarts and number % 2:
                await self._restart_nats()
            await killing
            async with asyncio.timeout(_PATIENCE_S):
                while (await self.client.stream(stream)).partitions[0].leader in ("", node.node_id):
                    await asyncio.sleep(0.05)
            if nats_restarts and not number % 2:
                await self._restart_nats()
            node.start()
            led_s = time.monotonic() - began
            await asyncio.to_thread(node.wait_ready)
            await self.leader(stream)
            if tap.longest_s > self.slowest_s:
                said = [
                    f"      {at - began:6.3f} {line[:200]}"
                    for at, line in [*self.lines]
                    if 0 <= at - began <= tap.longest_s + 1
                ]
                self.slowest_s = tap.longest_s
                self.slowest = "\n".join([f"kill {number} of {node.node_id}, another leads after {led_s:.2f} s", *said[:60]])

    async def kill_servers(self, stream: str, deaths: int) -> None:
        """Each is away until all replicas are in sync by the others."""
        for number in range(deaths):
            await self.leader(stream)
            await asyncio.sleep(_BETWEEN_S)
            server = self.servers[1 + number % 2]
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(2 * _BETWEEN_S)
            await self.leader(stream)
            await asyncio.to_thread(server.resume)
        await self.leader(stream)

    async def _restart_nats(self) -> None:
        assert self.dev.nats is not None
        await asyncio.to_thread(self.dev.nats.restart)

    async def heard(self) -> dict[str, int]:
        """What the standbys have counted until now, in all; what is zero is left out."""
        counted = [await asyncio.to_thread(_counted, node) for node in self.dev.nodes.values()]
        return dict(sum(counted, self.standbys))


def _counted(node: DevNode) -> Counter[str]:
    with urllib.request.urlopen(f"{node.status_url}/metrics", timeout=10) as answer:
        return Counter({state: int(count) for state, count in _HEARD.findall(answer.read().decode())})


async def judged(client: Client, stream: str, said: Answer) -> dict[str, int | str]:
    """What is stored beside what was acknowledged."""
    stored = [int(record.value or b"-1") async for record in client.consume(stream, until="end")]
    times = Counter(stored)
    elsewhere = [number for number, seq in said["acked"] if seq > len(stored) or stored[seq - 1] != number]
    why = Counter(_kind(text) for _, text in said["failed"])
    return {
        "sent": said["sent"],
        "acked": len(said["acked"]),
        "failed": len(said["failed"]),
        "acked and lost": sum(not times[number] for number, _ in said["acked"]),
        "acked elsewhere": len(elsewhere),
        "stored twice": sum(count > 1 for count in times.values()),
        "never stored": said["sent"] - len(times),
        "why": ", ".join(f"{count} x {text}" for text, count in why.most_common(4)),
    }


def _kind(text: str) -> str:
    said = json.loads(text)
    return f"{said['err_code']} {said['description']}" if "err_code" in said else str(said.get("failed", said))[:60]


async def under_kills(programs: list[Program], blows: Blows) -> bool:
    """Print what each client was told and what is stored; whether all is as it has to be."""
    right = True
    lines = deque[tuple[float, str]](maxlen=5000)
    with ExitStack() as stack:
        servers = nats_cluster(stack) if blows.server_deaths else []
        own = {
            f"n{number + 1}": ",".join(each.url for each in servers[number:] + servers[:number])
            for number in range(len(servers))
        }
        dev = DevCluster(
            3,
            on_line=lambda node, line: lines.append((time.monotonic(), f"{node} {line}")),
            nats_url=servers[0].url if servers else "",
            node_nats_urls=own,
        )
        stack.enter_context(dev)
        async with await connect(dev.nats_url, dev.namespace) as client:
            for program in programs:
                try:
                    command, folder = await asyncio.to_thread(program.ready)
                except MissingError as missing:
                    print(f"{program.name} is left out: {missing}")
                    continue
                if "many" in program.lacks:
                    print(f"{program.name} is left out: it is a process for each message")
                    continue
                for how in blows.how:
                    right &= await _one(program, command, folder, Cluster(dev, client, lines, servers), blows, how)
    return right


def nats_cluster(stack: ExitStack) -> list[NatsServer]:
    """Three servers, ended with ``stack``."""
    ports = free_ports(3)
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    cluster = 'cluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{routes}] }}'
    return [stack.enter_context(NatsServer(config=cluster.format(port=port, routes=routes))) for port in ports]


async def _one(program: Program, command: list[str], folder: Path, cluster: Cluster, blows: Blows, how: str) -> bool:
    subject = f"kills.{program.name}.{how}".replace(" ", "-").replace("nats.", "nats-")
    stream, url = subject.replace(".", "-"), cluster.dev.nats_url
    before = Counter(await cluster.heard())
    await cluster.client.create_stream(stream, subject, config=StreamConfig(failover_standby=blows.standby))
    async with Process([*command, url], folder) as process, Tap(url, subject) as tap:
        await process.ask("steady", subject=subject, value="id-", rate=blows.rate, msg_ids=blows.msg_ids, how=how)
        if blows.moves:
            await cluster.move_leader(stream, blows.moves)
        await cluster.kill_servers(stream, blows.server_deaths)
        await cluster.kill_leaders(stream, blows.kills, tap, nats_restarts=blows.nats_restarts)
        found = await judged(cluster.client, stream, await process.ask("stop"))
        found["answered twice"] = tap.twice()
    twice = found["stored twice"] if blows.standby or blows.msg_ids else 0
    told = found["failed"] if blows.standby or program.only_kills else 0
    again = 0 if blows.kills or blows.server_deaths else found["answered twice"]
    right = not any((found["acked and lost"], found["acked elsewhere"], twice, told, again))
    numbers = ", ".join(f"{value} {what}" for what, value in found.items() if what != "why")
    print(f"{program.name}, {how}: {numbers}", flush=True)
    standbys = dict(Counter(await cluster.heard()) - before) or "none"
    print(f"    longest wait for an ack {max(cluster.slowest_s, tap.longest_s):.2f} s; standbys: {standbys}")
    if found["why"]:
        print(f"    {found['why']}")
        print(f"    the slowest: {cluster.slowest}", flush=True)
    return right
