"""Faults of disks and of their power. Below each node lies the shim of ``tests.system.powercut``: what was not flushed may be gone."""

from __future__ import annotations

import asyncio
import errno
import shutil
import time
from collections.abc import Callable, Sequence

from tests.system.faults.ground import DEADLINE_S
from tests.system.faults.strike import Fault, Round
from tests.system.powercut.cut import ALL, FLUSH_FAILS, FLUSH_SLOW, WRITE_FAILS, WRITE_SHORT, Rule

_SMALL_SEGMENTS = 16 * 1024
_SLOW_FLUSH_MS = 700
_SLOW_FLUSHES_MS = (1500, 6000, 700)
_LOOKED_AT_S = 1.5
_LOOKED_AT_ACKS = 200
"""How long publishes are looked at, before and after."""
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
async def _fail_then_lose_power(round_: Round, files: Callable[[str], str]) -> None:
    """One flush fails on every node, the pages count as clean; the nodes go on, and lose their power.

    Even rounds leave it to the nodes to start anew, in odd ones somebody kills and starts them.

    It takes its time first, so that it is many pages: the last one of a file is written again with the next record.
    """
    nodes = tuple(round_.ground.cluster.nodes)
    round_.struck(*nodes)
    slow = [Rule(FLUSH_SLOW, files(node), value=_SLOW_FLUSH_MS) for node in nodes]
    await round_.all_hit(*slow, *(Rule(FLUSH_FAILS, files(node)) for node in nodes))
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


async def flush_fails_all(round_: Round) -> None:
    await _fail_then_lose_power(round_, _logs)


async def journal_flush_fails_all(round_: Round) -> None:
    await _fail_then_lose_power(round_, _journal)


async def flush_fails_leader(round_: Round) -> None:
    """Even rounds once, odd ones until the round is over."""
    lasts = bool(round_.number % 2)
    round_.tell("lasted" if lasts else "once")
    await _leader_fails(round_, Rule(FLUSH_FAILS, _logs(round_.ground.leader), ALL if lasts else 1))


async def disk_full_leader(round_: Round) -> None:
    """Even rounds notice it when they write, odd ones when they flush. A node looks for space again after a minute."""
    by_flush = bool(round_.number % 2)
    round_.tell("noticed by a flush" if by_flush else "noticed by a write")
    op = FLUSH_FAILS if by_flush else WRITE_FAILS
    await _leader_fails(round_, Rule(op, _logs(round_.ground.leader), ALL, errno.ENOSPC), 2 * DEADLINE_S)


async def _leader_fails(round_: Round, rule: Rule, back_within_s: float = DEADLINE_S) -> None:
    """The leader's disk fails, another leads, the disk is whole again, and the node too, with nobody's help."""
    round_.struck(round_.ground.leader)
    await round_.all_hit(rule)
    await round_.acked()
    await round_.go_on()
    round_.power.heal()
    round_.heals()
    await round_.comes_back(back_within_s)


# ---- flushes that are slow -------------------------------------------------------------------------------------------------
async def _slow_disk(round_: Round, node: str) -> None:
    """The flushes of ``node``'s logs take long until all wait for them no more: 1.5 s, 6 s, 0.7 s by turns."""
    ground, load = round_.ground, round_.load
    slow_ms = _SLOW_FLUSHES_MS[round_.number % 3]
    before_s = load.p50_s(time.monotonic() - _LOOKED_AT_S, time.monotonic())
    round_.struck(node)
    round_.power.fail(Rule(FLUSH_SLOW, _logs(node), ALL, value=slow_ms))
    await ground.see(f"{node} makes way", lambda seen: seen.leader not in ("", node) and node not in seen.isr, 60.0)
    rid_at = time.monotonic()
    await round_.acked()
    await load.acked_since(rid_at, DEADLINE_S, _LOOKED_AT_ACKS)  # not those that had waited for the slow flushes
    after_s = load.p50_s(rid_at, time.monotonic())
    round_.tell(
        f"+{slow_ms} ms: p50 {before_s:.3f} s before, {load.p50_s(round_.struck_at, rid_at):.3f} s for "
        f"{rid_at - round_.struck_at:.1f} s, then {after_s:.3f} s"
    )
    round_.power.heal()
    round_.heals()
    if not 0 < after_s < 5 * before_s + 0.1:
        raise TimeoutError("publishes are not as fast as before")
    await ground.whole(2 * DEADLINE_S)


async def slow_disk_follower(round_: Round) -> None:
    await _slow_disk(round_, round_.ground.others[round_.number % 2])


async def slow_disk_leader(round_: Round) -> None:
    await _slow_disk(round_, round_.ground.leader)


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


async def journal_write_fails(round_: Round) -> None:
    """Three writes of the journal fail: with ENOSPC and EIO by turns."""
    nodes = _controllers(round_)
    error = (errno.ENOSPC, errno.EIO)[round_.number // 2 % 2]
    round_.struck(*nodes)
    await round_.all_hit(*(Rule(WRITE_FAILS, _journal(node), 3, error) for node in nodes))
    round_.tell(errno.errorcode[error])
    round_.heals()
    await round_.acked()
    await round_.comes_back()


# ---- what was written and reads otherwise ----------------------------------------------------------------------------------
async def flip_served(round_: Round) -> None:
    """A byte flips in a sealed segment that the leader wrote; then a follower needs all of it."""
    ground = round_.ground
    leader, node = ground.leader, ground.others[round_.number % 2]
    async with asyncio.timeout(60.0):
        while len(sealed := sorted(ground.folder(leader).glob("*.log"))[:-1]) < _SEALED:
            await asyncio.sleep(0.01)
    ground.kill_at_once([node])
    await ground.reap([node])
    segment = sealed[-1 - round_.number % _SEALED]
    position = round_.chance.randrange(segment.stat().st_size)
    with segment.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))
    round_.tell(f"byte {position} of {segment.name} on {leader}")
    shutil.rmtree(ground.data(node))
    round_.struck(leader)
    round_.heals()
    await ground.start([node])
    await round_.acked()


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
        "slow-disk-follower",
        "flushes of a follower's logs take long: it leaves the ISR, and comes back",
        slow_disk_follower,
        powered=True,
        supervised=True,
    ),
    Fault(
        "slow-disk-leader",
        "flushes of the leader's logs take long: it hands over and leaves the ISR, and comes back",
        slow_disk_leader,
        powered=True,
        supervised=True,
        settings={"LIFTPY_REPLICATION_MIN_LEADERSHIP_S": "1"},
    ),
    Fault("disk-full-leader", "the leader's disk is full until healed", disk_full_leader, powered=True, supervised=True),
    Fault(
        "journal-flush-fails",
        "a flush of the metadata journal fails on all nodes, they restart, the power is cut",
        journal_flush_fails_all,
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
    Fault(
        "journal-write-fails", "three writes of the metadata journal fail", journal_write_fails, powered=True, supervised=True
    ),
    Fault(
        "flip-served",
        "a byte flips in a sealed segment of the leader, a follower is emptied and needs it",
        flip_served,
        segment_bytes=_SMALL_SEGMENTS * 4,
    ),
)
