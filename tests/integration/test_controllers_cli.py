"""``liftpy controllers add|remove|replace`` against real nodes: nobody is started again, and nothing acknowledged is lost [M10]."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from liftpy.client import Client, connect
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster
from tests import fork_server

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

LIFTPY = [sys.executable, "-c", "from sidecar.cli.main import main; main()"]


async def liftpy(cluster: DevCluster, *words: str) -> tuple[int, Any]:
    """(exit code, the JSON on standard output or what was said instead)."""
    command = [*LIFTPY, "controllers", *words, "--json", "--nats", cluster.nats_url]
    done = await asyncio.to_thread(fork_server.run, command, timeout=170)
    return done.returncode, json.loads(done.stdout) if done.returncode == 0 else json.loads(done.stderr)["error"]


class Load:
    """Publishes one record after another; ``acked``: payloads whose commit was acknowledged."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.acked: list[bytes] = []
        self.failed = 0

    async def run(self) -> None:
        number = 0
        while True:
            number += 1
            try:
                await self._client.publish("load", b"%d" % number)
                self.acked.append(b"%d" % number)
            except LiftError:
                self.failed += 1

    async def more(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        wanted = len(self.acked) + count
        async with asyncio.timeout(60):
            while len(self.acked) < wanted:
                await asyncio.sleep(0.02)


async def until(cluster: DevCluster, node_id: str, *, controller: bool) -> None:
    """Until the node says that it is a controller, or is none."""
    async with await connect(cluster.nats_url, cluster.namespace) as client, asyncio.timeout(60):
        while (await client.admin.node_status(node_id))["controller"] is not controller:
            await asyncio.sleep(0.05)


async def test_controllers_commands_replace_a_dead_controller_under_load_without_losing_acked_records() -> None:
    with DevCluster(4) as cluster:
        pids = {name: node.pid for name, node in cluster.nodes.items()}
        async with await connect(cluster.nats_url, cluster.namespace) as client:
            await client.create_stream("load", "data.load")
            load = Load(client)
            running = asyncio.create_task(load.run())
            await load.more(20)
            code, said = await liftpy(cluster, "add", "n9")
            assert (code, said["code"]) == (1, "NOT_FOUND")
            dead = next(c.node_id for c in (await client.admin.describe_cluster()).controllers if not c.leader)
            cluster.nodes[dead].kill()
            code, said = await liftpy(cluster, "replace", dead, "n4")
            assert code == 0, said
            left = sorted({"n1", "n2", "n3", "n4"} - {dead})
            assert sorted(c["node_id"] for c in said["controllers"]) == left
            await until(cluster, "n4", controller=True)
            await load.more(20)
            assert (await liftpy(cluster, "replace", dead, "n4"))[0] == 0, "the same again changes nothing"
            # The one that leads leaves, and two are left: it hands over, and follows the feed.
            leader = (await client.admin.describe_cluster()).metadata_leader
            code, said = await liftpy(cluster, "remove", leader)
            assert code == 0, said
            left.remove(leader)
            assert sorted(c["node_id"] for c in said["controllers"]) == left
            await until(cluster, leader, controller=False)
            await load.more(20)
            # Who was dead comes back: by its own log it is a controller, and is told that it is none.
            cluster.nodes[dead].start()
            await asyncio.to_thread(cluster.nodes[dead].wait_ready)
            await until(cluster, dead, controller=False)
            status = await client.admin.node_status(dead)
            assert (status["controllers"]["voters"], status["controllers"]["differ_from_settings"]) == (left, True)
            # And becomes one again, on the folder that it has.
            code, said = await liftpy(cluster, "add", dead)
            assert code == 0, said
            await until(cluster, dead, controller=True)
            await load.more(20)
            running.cancel()
            found = [record.value async for record in client.consume("load", until="end")]
            assert set(load.acked) <= set(found), "an acknowledged record is lost"
        for name, node in cluster.nodes.items():
            assert name == dead or (node.running and node.pid == pids[name]), f"{name} was started again"
