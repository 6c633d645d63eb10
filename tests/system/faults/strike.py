"""What a fault is, and what a round of it can ask and wait for."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.system.faults.ground import DEADLINE_S, Ground, Seen
from tests.system.faults.load import Load
from tests.system.powercut.cut import PowerCut, Rule

_SHOWS_WITHIN_S = 3.0
_GO_ON = 50
"""Acks to wait for before healing, so that the fault has a life of its own."""


@dataclass(slots=True)
class Round:
    """One round. Moments: monotonic seconds, 0 when it has none."""

    ground: Ground
    load: Load
    number: int
    pause_s: float
    nodes: tuple[str, ...] = ()
    """Who was struck."""
    struck_at: float = 0.0
    acked_at: float = 0.0
    """The first ack of a publish that was sent after the strike."""
    healed_at: float = 0.0
    """The node was started, resumed or connected again."""
    metadata_leader: str = ""
    """Who led the metadata group at the strike, where the fault looked."""
    note: str = ""

    @property
    def chance(self) -> random.Random:
        """The same for every run of this round."""
        return random.Random(self.number)

    @property
    def power(self) -> PowerCut:
        """The power of all nodes, and their disks' failures."""
        assert self.ground.power is not None
        return self.ground.power

    async def restart(self, nodes: Sequence[str]) -> None:
        """kill -9 of all of them at once; nothing fails any more when they start."""
        self.ground.kill_at_once(nodes)
        await self.ground.reap(nodes)
        if self.ground.power is not None:
            self.ground.power.heal()
        await self.ground.start(nodes)

    async def comes_back(self, timeout_s: float = DEADLINE_S) -> None:
        """The strike shows in somebody's replica, and then every replica is whole again."""
        with contextlib.suppress(TimeoutError):  # it may have been over too soon to be seen
            await self.ground.see("a replica failed", lambda seen: not self.ground.is_whole(seen), _SHOWS_WITHIN_S)
        await self.ground.whole(timeout_s)

    async def all_hit(self, *rules: Rule) -> None:
        """Strike as these say, and wait until each has struck."""
        self.power.fail(*rules)
        async with asyncio.timeout(DEADLINE_S):
            while not all(self.power.hits()):
                await asyncio.sleep(0.01)

    def tell(self, what: str) -> None:
        """For the round's row."""
        self.note = f"{self.note}; {what}" if self.note else what

    def struck(self, *nodes: str) -> None:
        """Now."""
        self.struck_at, self.nodes = time.monotonic(), nodes

    def heals(self) -> None:
        """Now."""
        self.healed_at = time.monotonic()

    async def acked(self) -> None:
        """Publishes are acknowledged again."""
        self.acked_at = (await self.load.acked_since(self.struck_at, DEADLINE_S)).acked_at

    async def go_on(self) -> None:
        """Some more acks under the fault."""
        await self.load.acked_more(_GO_ON, DEADLINE_S)

    async def left_isr(self, node: str) -> Seen:
        """The ISR is without ``node``."""
        return await self.ground.see(f"{node} left the ISR", lambda seen: node not in seen.isr)

    async def lasts(self) -> None:
        """The rest of the pause."""
        await asyncio.sleep(max(0.0, self.struck_at + self.pause_s - time.monotonic()))


Strike = Callable[[Round], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """``relayed``: the connections of the nodes can be cut. ``powered``: so can their power, and their disks can fail.
    ``supervised``: a node that ends is started again. ``segment_bytes``: of the stream, 0: the default."""

    name: str
    text: str
    strike: Strike
    relayed: bool = False
    powered: bool = False
    supervised: bool = False
    segment_bytes: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the nodes, where the plan has no others."""
