"""Session and lease of the whole cluster, changed under load: each node's own settings say something else, and count for nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time

import nats
import nats.errors
import pytest

from liftpy.client import Client, connect
from liftpy.config import SessionTimes
from sidecar.cli.main import main
from sidecar.dev.cluster import DevCluster
from tests.integration.conftest import show

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

OWN = {"n1": (2.0, 0.9), "n2": (6.0, 5.0), "n3": (0.8, 0.5)}
"""(session, lease) of each node's settings, in s."""
SESSION_S, LEASE_S = 1.5, 1.0
LONG_LEAST_S = 2.4
"""Until a leader is replaced that has had a lease of 3.2 s, at most a fifth of the session (4 s) before."""
STREAM = "orders"


class DifferingCluster(DevCluster):
    """Its nodes' settings are not the same."""

    def _environment(self, name: str, says_if_open: bool) -> dict[str, str]:
        session_s, lease_s = OWN[name]
        own = {"LIFTPY_REPLICATION_SESSION_S": str(session_s), "LIFTPY_REPLICATION_LEASE_S": str(lease_s)}
        return {**super()._environment(name, says_if_open), **own}


class Load:
    """Publishes one message after the other, each until it is acknowledged."""

    def __init__(self, nc: nats.NATS) -> None:
        self._nc = nc
        self.acked: list[bytes] = []

    async def run(self) -> None:
        while True:
            payload = b"%d" % len(self.acked)
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                answer = json.loads((await self._nc.request(f"data.{STREAM}", payload, timeout=0.5)).data)
                if "error" not in answer:
                    self.acked.append(payload)
            await asyncio.sleep(0.01)

    async def goes_on(self, within_s: float) -> float:
        """Wait until five more are acknowledged; return how long that took, in s."""
        began, wanted = time.monotonic(), len(self.acked) + 5
        while len(self.acked) < wanted:
            assert time.monotonic() - began < within_s, f"nothing is acknowledged within {within_s} s"
            await asyncio.sleep(0.02)
        return time.monotonic() - began


async def command(capsys: pytest.CaptureFixture[str], cluster: DevCluster, *words: str) -> tuple[int, str, str]:
    def run() -> int:
        with pytest.raises(SystemExit) as ended:
            main([*words, "--nats", cluster.nats_url])
        return int(ended.value.code or 0)

    code = await asyncio.to_thread(run)
    said = capsys.readouterr()
    return code, said.out, said.err


async def leader_of(client: Client) -> str:
    return (await client.stream(STREAM)).partitions[0].leader


async def other_leader(client: Client, than: str) -> str:
    async with asyncio.timeout(30):
        while (found := await leader_of(client)) in ("", than):
            await asyncio.sleep(0.05)
    return found


async def settled(client: Client) -> None:
    async with asyncio.timeout(30):
        while (times := await client.admin.session_times()) is None or not times.is_settled:
            await asyncio.sleep(0.05)


async def in_sync(client: Client) -> None:
    async with asyncio.timeout(30):
        while len((await client.stream(STREAM)).partitions[0].isr) < len(OWN):
            await asyncio.sleep(0.05)


@pytest.mark.long
async def test_session_times_of_the_cluster_change_under_load_whatever_the_node_settings_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines: list[str] = []

    def on_line(node: str, line: str) -> None:
        show(node, line)
        lines.append(line)

    cluster = DifferingCluster(3, on_line=on_line)
    try:
        await asyncio.to_thread(cluster.start)
        nc = await nats.connect(cluster.nats_url)
        async with connect(cluster.nats_url) as client:
            begun = await client.admin.session_times()
            assert begun is not None
            assert (begun.session_ms / 1000, begun.lease_ms / 1000) in OWN.values(), "the metadata leader's own"
            await client.create_stream(STREAM, f"data.{STREAM}")
            load = Load(nc)
            running = asyncio.create_task(load.run())
            await load.goes_on(10)

            words = ("settings", "node-session", "--session", str(SESSION_S), "--lease", str(LEASE_S))
            code, out, _ = await command(capsys, cluster, *words)
            assert (code, "session 1.5 s, lease 1 s" in out.splitlines()) == (0, True), out
            assert await client.admin.session_times() == SessionTimes(1500, 1000, change=1)
            rows = {row["name"]: row for row in await client.admin.node_settings("n2")}
            assert rows["replication.session_s"]["value"] == SESSION_S
            assert rows["replication.session_s"]["source"] == "cluster"
            assert any("cluster=session 1.5 s, lease 1 s" in line for line in lines)
            code, _, err = await command(capsys, cluster, "settings", "node-session", "--lease", "1.5")
            assert (code, "a lease of 1.5 s has to be shorter than the session, 1.5 s" in err) == (2, True)

            first = await leader_of(client)
            await asyncio.to_thread(cluster.nodes[first].kill)
            short_s = await load.goes_on(10)
            second = await other_leader(client, first)
            cluster.nodes[first].start()
            await asyncio.to_thread(cluster.nodes[first].wait_ready)
            await in_sync(client)

            assert (
                await command(capsys, cluster, "settings", "node-session", "--session", "4", "--lease", "3.2", "--no-wait")
            )[0] == 0
            code, _, err = await command(capsys, cluster, "settings", "node-session", "--session", "5")
            assert (code != 0, "the change before is not settled yet" in err) == (True, True), "one at a time"
            await settled(client)
            cluster.nodes[second].send(signal.SIGSTOP)
            long_s = await load.goes_on(20)
            assert long_s >= LONG_LEAST_S, "it was replaced while its lease could still count"
            assert short_s < long_s, "fail-over follows the session that holds"
            assert await other_leader(client, second) != second
            cluster.nodes[second].send(signal.SIGCONT)
            await in_sync(client)
            running.cancel()
            stored = [record.value async for record in client.consume(STREAM, until="end")]
            assert list(dict.fromkeys(value for value in stored if value in set(load.acked))) == load.acked
        await nc.close()
    finally:
        await asyncio.to_thread(cluster.stop)
