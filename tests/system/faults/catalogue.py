"""The faults. Each strikes, waits until publishes are acknowledged again, and takes back what it did.

For leaders the round's figure is the time from the strike to the ack of a publish that was sent after it; for followers how long
the ISR holds it and how long it takes back, while publishes go on.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from liftpy.core.base.worker_assignment import share_of
from tests.system.faults.disks import DISKS
from tests.system.faults.ground import STREAM, Ground
from tests.system.faults.strike import Fault, Round

TWO = {"LIFTPY_WORKERS": "2"}


# ---- followers -------------------------------------------------------------------------------------------------------------
async def _kill_follower(
    round_: Round, harm: Callable[[Path, Path], str] | None = None, *, waits_for_shrink: bool | None = None
) -> None:
    """Even rounds start it again at once, odd ones only when the ISR is without it."""
    ground = round_.ground
    node = ground.others[round_.number % 2]
    ground.kill_at_once([node])
    round_.struck(node)
    await ground.reap([node])
    if harm is not None:
        round_.note = await asyncio.to_thread(harm, ground.data(node), ground.folder(node))
    if round_.number % 2 if waits_for_shrink is None else waits_for_shrink:
        await round_.left_isr(node)
        await round_.acked()
        await round_.go_on()
    else:
        round_.note += " restarted at once"
    round_.heals()
    await ground.start([node])
    await round_.acked()


async def follower_kill(round_: Round) -> None:
    await _kill_follower(round_)


async def follower_emptied(round_: Round) -> None:
    def empty(data: Path, _: Path) -> str:
        shutil.rmtree(data)
        return "disk emptied"

    await _kill_follower(round_, empty)


async def follower_bitflip(round_: Round) -> None:
    await _kill_follower(round_, lambda _, folder: _flip_a_bit(folder))


def _flip_a_bit(folder: Path) -> str:
    """One bit in the middle of the largest segment."""
    segment = max(folder.glob("*.log"), key=lambda path: path.stat().st_size)
    position = segment.stat().st_size // 2
    with segment.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))
        os.fsync(file.fileno())
    return f"bit flipped at {position} of {segment.name}"


async def follower_pause(round_: Round) -> None:
    ground = round_.ground
    node = ground.others[round_.number % 2]
    ground.cluster.nodes[node].send(signal.SIGSTOP)
    round_.struck(node)
    try:
        await round_.acked()
        await round_.left_isr(node)
        await round_.lasts()
    finally:
        ground.cluster.nodes[node].send(signal.SIGCONT)
    round_.heals()


# ---- leaders ---------------------------------------------------------------------------------------------------------------
async def _kill(round_: Round, *nodes: str) -> None:
    round_.ground.kill_at_once(nodes)
    round_.struck(*nodes)
    await round_.acked()
    await round_.ground.reap(nodes)
    await round_.go_on()
    round_.heals()
    await round_.ground.start(nodes)


async def leader_kill(round_: Round) -> None:
    await _kill(round_, round_.ground.leader)


async def leader_pause(round_: Round) -> None:
    ground, node = round_.ground, round_.ground.leader
    ground.cluster.nodes[node].send(signal.SIGSTOP)
    round_.struck(node)
    try:
        await round_.acked()
        await round_.lasts()
    finally:
        ground.cluster.nodes[node].send(signal.SIGCONT)
    round_.heals()


async def _worker(ground: Ground, node: str) -> int:
    """Number of the process of the node that hosts the partition, which is not its first one."""
    workers = (await ground.client.admin.node_status(node))["workers"]
    found = share_of(STREAM, 0, len(workers))
    assert found, "with so many workers the partition is the first process's: choose another number"
    return int(workers[found]["pid"])


async def worker_kill(round_: Round) -> None:
    ground, node = round_.ground, round_.ground.leader
    os.kill(await _worker(ground, node), signal.SIGKILL)
    await _takes_it_down(round_, node)


async def worker_pause(round_: Round) -> None:
    """It never goes on: its node ends it."""
    ground, node = round_.ground, round_.ground.leader
    os.kill(await _worker(ground, node), signal.SIGSTOP)
    await _takes_it_down(round_, node)


async def _takes_it_down(round_: Round, node: str) -> None:
    ground = round_.ground
    round_.struck(node)
    await round_.acked()
    async with asyncio.timeout(60):
        while ground.cluster.nodes[node].running:
            await asyncio.sleep(0.05)
    await round_.go_on()
    round_.heals()
    await ground.start([node])


async def _cut(round_: Round, *, silent: bool) -> None:
    ground, node = round_.ground, round_.ground.leader
    await ground.relays[node].cut(silent=silent)
    round_.struck(node)
    try:
        await round_.acked()
        await round_.lasts()
    finally:
        await ground.relays[node].heal()
    round_.heals()


async def leader_cut(round_: Round) -> None:
    await _cut(round_, silent=True)


async def leader_disconnected(round_: Round) -> None:
    await _cut(round_, silent=False)


async def metadata_leader_kill(round_: Round) -> None:
    ground = round_.ground
    node = round_.metadata_leader = await ground.metadata_leader()
    if node == ground.leader:
        await ground.move_leadership(next(name for name in ground.replicas if name != node))
        await round_.go_on()
    await _kill(round_, node)


async def both_leaders_kill(round_: Round) -> None:
    ground = round_.ground
    node = round_.metadata_leader = await ground.metadata_leader()
    if ground.leader != node:
        await ground.move_leadership(node)
        await round_.go_on()
    await _kill(round_, node)


async def all_killed(round_: Round) -> None:
    ground = round_.ground
    nodes = tuple(ground.cluster.nodes)
    ground.kill_at_once(nodes)
    round_.struck(*nodes)
    await ground.reap(nodes)
    round_.heals()
    await ground.start(nodes)
    await round_.acked()


async def planned_transfer(round_: Round) -> None:
    """Odd rounds: of a node that leads the metadata group, too."""
    ground, node = round_.ground, round_.ground.leader
    if round_.number % 2:
        node = round_.metadata_leader = await ground.metadata_leader()
        if ground.leader != node:
            await ground.move_leadership(node)
            await round_.go_on()
    before = Counter(round_.load.counters)
    ground.cluster.nodes[node].send(signal.SIGTERM)
    round_.struck(node)
    await asyncio.to_thread(ground.cluster.nodes[node].terminate)
    await round_.acked()
    await round_.go_on()
    round_.note = f"answers but acks: {dict(round_.load.counters - before) or 'none'}"
    round_.heals()
    await ground.start([node])


async def commanded_transfer(round_: Round) -> None:
    """As ``liftpy partition transfer`` does it; every node lives."""
    ground, node = round_.ground, round_.ground.leader
    before = Counter(round_.load.counters)
    round_.struck(node)
    await ground.client.admin.elect_leader(STREAM, 0, ground.others[round_.number % 2])
    await round_.acked()
    await ground.see("another one leads", lambda seen: seen.leader not in ("", node))
    await round_.go_on()
    round_.note = f"answers but acks: {dict(round_.load.counters - before) or 'none'}"
    round_.heals()


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("follower-kill", "kill -9 of a follower", follower_kill),
        Fault("follower-pause", "a follower stands still for --pause-s and goes on", follower_pause),
        Fault("follower-emptied", "kill -9 of a follower, its data folder removed, started", follower_emptied),
        Fault("follower-bitflip", "kill -9 of a follower, one bit of its log flipped, started", follower_bitflip),
        Fault("leader-kill", "kill -9 of the leader", leader_kill),
        Fault("leader-pause", "the leader stands still for --pause-s and goes on", leader_pause),
        Fault("worker-kill", "kill -9 of the process of the leader's node that hosts the partition", worker_kill, settings=TWO),
        Fault("worker-pause", "that process stands still for good", worker_pause, settings=TWO),
        Fault("leader-cut", "nothing passes between the leader and NATS for --pause-s", leader_cut, relayed=True),
        Fault("leader-disconnected", "the leader's NATS connections are reset and refused", leader_disconnected, relayed=True),
        Fault("metadata-leader-kill", "kill -9 of the metadata leader, which leads no partition", metadata_leader_kill),
        Fault("both-leaders-kill", "kill -9 of the node that leads the metadata group and the partition", both_leaders_kill),
        Fault("all-killed", "kill -9 of all nodes at once, all started", all_killed),
        Fault("commanded-transfer", "the leadership is moved by command", commanded_transfer),
        Fault("planned-transfer", "SIGTERM to the leader's node", planned_transfer),
        *DISKS,
    )
}
