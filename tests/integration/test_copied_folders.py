"""Data folders that are copied: put back after more was acknowledged, and started beside the original [S15, C7, C12, D1]."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from sidecar.dev.cluster import DevNode
from tests.integration.conftest import show
from tests.integration.test_broken_nodes import NODES, expect_everywhere, payloads, settle

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


async def start(node: DevNode) -> None:
    await asyncio.to_thread(node.start)
    await asyncio.to_thread(node.wait_ready)


async def kill_all(bench: Any) -> None:
    for node in bench.cluster.nodes.values():
        await asyncio.to_thread(node.kill)


async def start_all(bench: Any) -> None:
    for node in bench.cluster.nodes.values():
        node.start()
    for node in bench.cluster.nodes.values():
        await asyncio.to_thread(node.wait_ready)


@pytest.mark.parametrize("role", ["leader", pytest.param("follower", marks=pytest.mark.long)])
async def test_node_with_a_directory_restored_from_a_clean_stop_catches_up(
    fragile: Any, stream_name: str, role: str, tmp_path: Path
) -> None:
    await fragile.create(stream_name)
    subject = f"data.{stream_name}"
    leader = await settle(fragile, stream_name)
    name = leader if role == "leader" else next(node for node in NODES if node != leader)
    node, folder, copy = fragile.cluster.nodes[name], fragile.cluster.data / name, tmp_path / "copy"
    acked = payloads("before the copy", 10)
    await fragile.publish_acked(subject, acked)
    assert await asyncio.to_thread(node.terminate) == 0
    await asyncio.to_thread(shutil.copytree, folder, copy)
    await start(node)
    await settle(fragile, stream_name)
    if role == "leader":
        await fragile.client.admin.elect_leader(stream_name, 0, name)
        await fragile.until(lambda: leads(fragile, stream_name, name), f"{name} leads again")
    more = payloads("after the copy", 60)
    await fragile.publish_acked(subject, more)
    await kill_all(fragile)
    await asyncio.to_thread(shutil.rmtree, folder)
    await asyncio.to_thread(shutil.copytree, copy, folder)
    await start_all(fragile)
    await settle(fragile, stream_name)
    last = payloads("in the end", 5)
    await fragile.publish_acked(subject, last)
    await expect_everywhere(fragile, stream_name, acked + more + last)
    assert any("older copy" in line for line in node.log)


async def test_controller_with_a_restored_older_directory_votes_only_after_catching_up(
    fragile: Any, stream_name: str, tmp_path: Path
) -> None:
    """Its copy's votes would be those of a folder that has forgotten what it acknowledged."""
    node, folder, copy = fragile.cluster.nodes[NODES[0]], fragile.cluster.data / NODES[0], tmp_path / "copy"
    assert await asyncio.to_thread(node.terminate) == 0
    await asyncio.to_thread(shutil.copytree, folder, copy)
    await start(node)
    await fragile.create(stream_name)
    await settle(fragile, stream_name)
    acked = payloads("after the copy", 20)
    await fragile.publish_acked(f"data.{stream_name}", acked)
    await kill_all(fragile)
    await asyncio.to_thread(shutil.rmtree, folder)
    await asyncio.to_thread(shutil.copytree, copy, folder)
    await start_all(fragile)
    await settle(fragile, stream_name)
    await expect_everywhere(fragile, stream_name, acked)
    assert any("older raft directory found" in line for line in node.log)
    for other in NODES[1:]:
        for text in ("older", "current"):

            async def is_logged(
                line: str = f"raft directory of a peer peer={NODES[0]} state={text}", other: str = other
            ) -> bool:
                return any(line in logged for logged in fragile.cluster.nodes[other].log)

            await fragile.until(is_logged, f"{other} logs that the directory is {text}")
    await asyncio.to_thread(fragile.cluster.nodes[NODES[2]].kill)
    more = payloads("with its vote", 5)
    await fragile.publish_acked(f"data.{stream_name}", more)
    await start(fragile.cluster.nodes[NODES[2]])
    await expect_everywhere(fragile, stream_name, acked + more)


async def leads(bench: Any, name: str, node: str) -> bool:
    return await bench.leader(name) == node and await bench.ready(name)


async def test_node_started_from_a_copied_directory_stops_without_harm_to_the_running_original(
    fragile: Any, stream_name: str, tmp_path: Path
) -> None:
    await fragile.create(stream_name)
    subject = f"data.{stream_name}"
    name = await settle(fragile, stream_name)
    original = fragile.cluster.nodes[name]
    acked = payloads("before the copy", 10)
    await fragile.publish_acked(subject, acked)
    copy = tmp_path / "copy"
    await asyncio.to_thread(shutil.copytree, fragile.cluster.data / name, copy)
    pid, before = original.pid, await fragile.replica(name, stream_name)
    twin = _twin(fragile, name, copy)
    twin.start()
    try:
        while twin.running:
            acked += payloads(f"{len(acked)} beside the copy", 1)
            await fragile.publish_acked(subject, acked[-1:])
        assert any("nother process runs as node" in line and "must not use the same id" in line for line in twin.log), twin.log
    finally:
        twin.kill()
    after = await fragile.replica(name, stream_name)
    assert (original.pid, original.running) == (pid, True)
    assert [after[what] for what in ("role", "leader_epoch", "epoch")] == [
        before[what] for what in ("role", "leader_epoch", "epoch")
    ]
    await expect_everywhere(fragile, stream_name, acked)


_IMPATIENT = (
    "import sys; from liftpy.core.metadata.node_identity import EarlierProcessCheck; "
    "EarlierProcessCheck.__init__.__defaults__ = (3.0, 3); "
    "from sidecar.cli.main import main; main(['sidecar', *sys.argv[1:]])"
)
"""A node that gives up after 3 s: production waits as long as a node may take to stop."""


def _twin(bench: Any, name: str, data: Path) -> DevNode:
    command = bench.cluster._command(name, list(NODES))
    at = command.index("-m")
    command[at : at + 2] = ["-c", _IMPATIENT]
    command[command.index("--data") + 1] = str(data)
    return DevNode(name, command, bench.cluster._environment(name, True), show)
