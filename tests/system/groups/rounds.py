"""What strikes a group, one thing a round; each says what it did."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from random import Random

from tests.system.groups import judge
from tests.system.groups.ground import SESSION_S, Ground, ViolationError

MOST_MEMBERS, FEWEST_MEMBERS = 4, 2
_RETURN_S = 5.0


async def _calmly(ground: Ground, name: str, change: Callable[[], None], says: str) -> str:
    """A change by which only what has to move stops; measured from when the member says that it begins."""
    before, began_ns = ground.generations(), time.monotonic_ns()
    change()

    async def said() -> bool:
        return bool(ground.members[name].said(says))

    await ground.until(said, f"{name} {says}")
    at_ns = ground.members[name].said(says)[0]["t"]
    await ground.settle()
    after = ground.generations()
    if found := judge.disturbed(before, after):
        raise ViolationError("; ".join(found))
    took_s = ground.moved_s(at_ns)
    ground.rebalanced_s.append(took_s)
    stayed = [partition for partition in after if before.get(partition) == after[partition]]
    ground.stayed_late_s.append(ground.late_s(began_ns, stayed))
    return f"{name}: moved in {took_s:.2f} s, {len(stayed)} stayed, their records {ground.stayed_late_s[-1]:.2f} s late at most"


async def joins(ground: Ground) -> str:
    """One more member."""
    name = await ground.start()
    return await _calmly(ground, name, ground.members[name].join, "joins")


async def leaves(ground: Ground) -> str:
    """SIGTERM: it commits and says goodbye."""
    name = ground.rng.choice(ground.live)
    ground.live.remove(name)
    return await _calmly(ground, name, lambda: ground.members[name].send(signal.SIGTERM), "leaves")


async def _away(ground: Ground, name: str, struck_ns: int) -> str:
    await ground.settle()
    took_s = ground.moved_s(struck_ns)
    ground.taken_over_s.append(took_s)
    return f"{name}: taken over after {took_s:.2f} s, session {SESSION_S:g} s"


async def killed(ground: Ground) -> str:
    """kill -9: its session ends, and others go on from what was committed."""
    name, struck_ns = ground.rng.choice(ground.live), time.monotonic_ns()
    ground.live.remove(name)
    ground.members[name].process.kill()
    return await _away(ground, name, struck_ns)


async def stopped(ground: Ground) -> str:
    """SIGSTOP for longer than its session, and on: it may not go on with what others have by then."""
    name, struck_ns = ground.rng.choice(ground.live), time.monotonic_ns()
    member = ground.members[name]
    ground.live.remove(name)
    member.send(signal.SIGSTOP)
    try:
        said = await _away(ground, name, struck_ns)
    finally:
        member.send(signal.SIGCONT)
        ground.live.append(name)
    await ground.settle()
    return said


async def hesitates(ground: Ground) -> str:
    """SIGSTOP for less than its session: nothing moves."""
    name, before = ground.rng.choice(ground.live), ground.generations()
    member = ground.members[name]
    member.send(signal.SIGSTOP)
    await asyncio.sleep(SESSION_S / 3)
    member.send(signal.SIGCONT)
    await ground.settle()
    if ground.generations() != before:
        raise ViolationError(
            f"{name} was stopped for {SESSION_S / 3:g} s of {SESSION_S:g}, and {before} is {ground.generations()}"
        )
    return f"{name}: nothing moved"


async def _away_coordinator(ground: Ground, strike: Callable[[str], None], back: Callable[[str], Awaitable[None]]) -> str:
    node, before = await ground.coordinator(), ground.generations()
    struck_ns = time.monotonic_ns()
    strike(node)

    async def answered() -> bool:
        return any(member.said("commits", struck_ns + 200_000_000) for member in ground.members.values())

    took_s = await ground.until(answered, "a commit is confirmed again")
    ground.coordinator_away_s.append(took_s)
    await asyncio.sleep(ground.rng.random() * _RETURN_S)
    await back(node)
    await ground.settle()
    after = ground.generations()
    if after != before:
        raise ViolationError(f"the coordinator's fail-over has moved partitions: {before}, then {after} [G4]")
    return f"{node}, next commit after {took_s:.2f} s, nothing moved"


async def coordinator_killed(ground: Ground) -> str:
    """kill -9 of the node that coordinates: no member's session ends, nothing moves."""

    async def back(node: str) -> None:
        ground.cluster.nodes[node].start()
        await asyncio.to_thread(ground.cluster.nodes[node].wait_ready)

    return await _away_coordinator(ground, lambda node: (ground.cluster.nodes[node].kill(), None)[1], back)


async def coordinator_stopped(ground: Ground) -> str:
    """SIGSTOP of that node, until another one coordinates, and on: what it still says is fenced."""

    async def back(node: str) -> None:
        ground.cluster.nodes[node].send(signal.SIGCONT)

    return await _away_coordinator(ground, lambda node: ground.cluster.nodes[node].send(signal.SIGSTOP), back)


FAULTS: dict[str, Callable[[Ground], Awaitable[str]]] = {
    "joins": joins,
    "leaves": leaves,
    "killed": killed,
    "stopped": stopped,
    "hesitates": hesitates,
    "coordinator-killed": coordinator_killed,
    "coordinator-stopped": coordinator_stopped,
}
_SHARES = {
    "joins": 4,
    "leaves": 4,
    "killed": 2,
    "stopped": 2,
    "hesitates": 1,
    "coordinator-killed": 3,
    "coordinator-stopped": 2,
}


def drawn(rng: Random, members: int) -> str:
    """What strikes next, where there are so many members."""
    few, many = members <= FEWEST_MEMBERS, members >= MOST_MEMBERS
    if few and rng.random() < 0.5:
        return "joins"
    shares = {
        name: share
        for name, share in _SHARES.items()
        if not (few and name in ("leaves", "killed")) and not (many and name == "joins")
    }
    return rng.choices(list(shares), list(shares.values()))[0]
