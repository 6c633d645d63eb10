"""Faults of folders that went back in time: a copy takes the place of a node's folder, or is started beside it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from pathlib import Path

from sidecar.dev.cluster import DevNode
from tests.system.faults.strike import Fault, Round

_BEHIND = 300
"""Acks that the copy does not have."""


def _copy(source: Path, target: Path) -> None:
    """As ``cp -a`` of a folder that may be in use."""
    shutil.rmtree(target, ignore_errors=True)
    for folder, _, names in os.walk(source):
        into = target / Path(folder).relative_to(source)
        into.mkdir(parents=True)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(Path(folder) / name, into / name)


async def folder_restored(round_: Round) -> None:
    """Rounds by threes: the copy of a clean stop, the copy of a running folder, a copy started beside the original.

    Of a restored folder every second three starts alone, the others together with all nodes.
    """
    ground = round_.ground
    node = ground.leader
    kind = round_.number % 3
    copy = ground.data(node).parent.parent / "copy"
    if kind == 0:
        await ground.stop(node)
    await asyncio.to_thread(_copy, ground.data(node), copy)
    if kind == 0:
        await ground.start([node])
        await ground.whole()
        await ground.move_leadership(node)
    await round_.load.acked_more(_BEHIND, 30.0)
    if kind == 2:
        await _beside(round_, node, copy)
    else:
        nodes = [node] if round_.number // 3 % 2 else list(ground.cluster.nodes)
        ground.kill_at_once(nodes)
        round_.struck(*nodes)
        await ground.reap(nodes)
        shutil.rmtree(ground.data(node))
        copy.rename(ground.data(node))
        round_.tell(f"{('clean', 'running')[kind]} copy on {node}, {len(nodes)} started")
        round_.heals()
        await ground.start(nodes)
        await round_.acked()


async def _beside(round_: Round, node: str, copy: Path) -> None:
    """The copy runs while the original does; then it is ended, and the original is there."""
    ground = round_.ground
    original = ground.cluster.nodes[node]
    command = [str(copy) if part == str(ground.data(node)) else part for part in original._command]
    said: list[str] = []
    beside = DevNode(node, command, original._environment, lambda _, line: said.append(line))
    round_.struck(node)
    beside.start()
    try:
        await round_.acked()
        await round_.lasts()
        round_.tell(f"beside {node}: {'it ran' if beside.running else beside.end_reason}")
    finally:
        await asyncio.to_thread(beside.kill)
    round_.heals()


COPIES = (
    Fault(
        "folder-restored",
        "an older copy takes the place of the leader's folder, or runs beside it",
        folder_restored,
        supervised=True,
    ),
)
