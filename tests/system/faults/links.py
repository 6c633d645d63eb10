"""Faults of one node's data path: its connection for replication and publishes is cut, the one of its metadata group is not."""

from __future__ import annotations

from tests.system.faults.strike import Fault, Round


async def isr_of_two_cut(round_: Round) -> None:
    """The ISR is two; even rounds cut off the follower's data, odd ones the leader's. The third one is healthy again at once."""
    ground = round_.ground
    leader, third = ground.leader, ground.others[round_.number // 2 % 2]
    follower = next(name for name in ground.others if name != third)
    ground.kill_at_once([third])
    await ground.reap([third])
    await round_.left_isr(third)
    await round_.go_on()
    node = leader if round_.number % 2 else follower
    await ground.relays[node].cut(silent=True, name=f"liftpy-{node}")
    round_.struck(node)
    round_.tell(f"the {'leader' if node == leader else 'follower'}'s data path")
    try:
        await ground.start([third])
        await round_.acked()
        await round_.lasts()
    finally:
        await ground.relays[node].heal()
    round_.heals()


LINKS = (
    Fault(
        "isr-of-two-cut", "with an ISR of two the follower's data path is cut, or the leader's", isr_of_two_cut, relayed=True
    ),
)
