"""Faults of disks and of their power. Below each node lies the shim of ``tests.system.powercut``: what was not flushed may be gone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.system.faults.strike import Fault, Round
from tests.system.powercut.cut import ALL, FLUSH_FAILS, FLUSH_SLOW, WRITE_SHORT, Rule

_SMALL_SEGMENTS = 16 * 1024
_SLOW_FLUSH_MS = 700
_SEALED = 3


def _logs(node: str) -> str:
    return f"{node}/streams/*.log"


def _journal(node: str) -> str:
    return f"{node}/raft/journal*"


# ---- power -----------------------------------------------------------------------------------------------------------------
async def _lose_power(round_: Round, nodes: Sequence[str]) -> None:
    """The machines of ``nodes`` are off; what was not flushed may be gone, and in every third round all of it is."""
    ground = round_.ground
    ground.kill_at_once(nodes)
    await ground.reap(nodes)
    round_.power.heal()
    round_.tell(await asyncio.to_thread(round_.power.cut, nodes, None if round_.number % 3 == 2 else round_.chance))


async def power_cut_one(round_: Round) -> None:
    """Even rounds the leader's, odd ones a follower's."""
    ground = round_.ground
    node = ground.others[round_.number // 2 % 2] if round_.number % 2 else ground.leader
    round_.struck(node)
    await _lose_power(round_, [node])
    await round_.acked()
    await round_.go_on()
    round_.heals()
    await ground.start([node])


async def _lose_all_power(round_: Round) -> None:
    nodes = tuple(round_.ground.cluster.nodes)
    round_.struck(*nodes)
    await _lose_power(round_, nodes)
    round_.heals()
    await round_.ground.start(nodes)
    await round_.acked()


async def power_cut_all(round_: Round) -> None:
    await _lose_all_power(round_)


async def kill_then_power_cut(round_: Round) -> None:
    """The disks are so slow that the kill leaves sealed segments that were not flushed. Even rounds publish between kill and cut."""
    ground = round_.ground
    nodes = tuple(ground.cluster.nodes)
    segments = len(list(ground.folder(ground.leader).glob("*.log")))
    round_.power.fail(*(Rule(FLUSH_SLOW, _logs(node), ALL, value=_SLOW_FLUSH_MS) for node in nodes))
    async with asyncio.timeout(60.0):
        while len(list(ground.folder(ground.leader).glob("*.log"))) < segments + _SEALED:
            await asyncio.sleep(0.01)
    await round_.restart(nodes)
    if round_.number % 2 == 0:
        await round_.go_on()
    await _lose_all_power(round_)


# ---- flushes that fail -----------------------------------------------------------------------------------------------------
async def flush_fails_all(round_: Round) -> None:
    """One flush fails on every node, so that its pages count as clean. The nodes continue, and lose their power.

    In even rounds the nodes restart by themselves. In odd rounds they are killed and started. The flush is slow first, so that it
    has many pages: the last page of a file is written again with the next record.
    """
    nodes = tuple(round_.ground.cluster.nodes)
    round_.struck(*nodes)
    slow = [Rule(FLUSH_SLOW, _logs(node), value=_SLOW_FLUSH_MS) for node in nodes]
    await round_.all_hit(*slow, *(Rule(FLUSH_FAILS, _logs(node)) for node in nodes))
    if round_.number % 2:
        await round_.restart(nodes)
    await round_.acked()
    if round_.number % 2 == 0:
        await round_.comes_back()
    acked_at, struck_at = round_.acked_at, round_.struck_at
    await round_.go_on()
    await _lose_all_power(round_)
    round_.tell(f"{round_.acked_at - round_.struck_at:.2f} s to the next ack after the cut")
    round_.acked_at, round_.struck_at = acked_at, struck_at


async def flush_fails_leader(round_: Round) -> None:
    """Even rounds once, odd ones until the round is over. Another node leads, and the leader comes back without help."""
    leader, lasts = round_.ground.leader, bool(round_.number % 2)
    round_.tell("lasted" if lasts else "once")
    round_.struck(leader)
    await round_.all_hit(Rule(FLUSH_FAILS, _logs(leader), ALL if lasts else 1))
    await round_.acked()
    await round_.go_on()
    round_.power.heal()
    round_.heals()
    await round_.comes_back()


# ---- the journal -----------------------------------------------------------------------------------------------------------
def _controllers(round_: Round) -> Sequence[str]:
    """One in even rounds, all of them in odd ones."""
    controllers = tuple(round_.ground.cluster.nodes)[:3]
    return controllers if round_.number % 2 else (controllers[round_.number // 2 % 3],)


async def journal_short_write(round_: Round) -> None:
    """A few bytes of a frame, as a disk that is full has room for."""
    nodes = _controllers(round_)
    size_bytes = round_.chance.choice((1, 4, 8, 20, 35))
    round_.struck(*nodes)
    await round_.all_hit(*(Rule(WRITE_SHORT, _journal(node), value=size_bytes) for node in nodes))
    round_.tell(f"{size_bytes} bytes")
    round_.heals()
    await round_.acked()
    await round_.comes_back()


DISKS = (
    Fault(
        "power-cut-one",
        "the power of the leader's machine, or a follower's, is cut",
        power_cut_one,
        powered=True,
        supervised=True,
    ),
    Fault("power-cut-all", "the power of all machines is cut at once", power_cut_all, powered=True, supervised=True),
    Fault(
        "kill-then-power-cut",
        "kill -9 of all nodes while flushes are slow, all started, then the power of all machines is cut",
        kill_then_power_cut,
        powered=True,
        supervised=True,
        segment_bytes=_SMALL_SEGMENTS,
    ),
    Fault(
        "flush-fails-all",
        "a flush of the log fails on all nodes, they restart, the power is cut",
        flush_fails_all,
        powered=True,
        supervised=True,
    ),
    Fault(
        "flush-fails-leader",
        "flushes of the leader's log fail, once or until healed",
        flush_fails_leader,
        powered=True,
        supervised=True,
    ),
    Fault(
        "journal-short-write",
        "a frame of the metadata journal is written in part",
        journal_short_write,
        powered=True,
        supervised=True,
    ),
)
