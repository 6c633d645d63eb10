"""What a feature of the table is."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from tests.pairs.world import World


class Feature:
    """One row of the table. An instance lives for one scenario.

    ``start`` sets up what it needs. ``act`` does something: it is called several times, maybe while another feature acts. ``quiet``
    ends what keeps others from finishing. ``check`` looks when all is quiet: it raises AssertionError or tells ``world.model``.
    """

    name: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    acts: ClassVar[int] = 3
    """How often it acts in a scenario."""
    writes: ClassVar[int] = 0
    """Records that it publishes when it acts, unless ``act`` is its own."""
    settings: ClassVar[dict[str, Any]] = {}
    """Fields of ``StreamConfig`` that the stream is made with."""

    async def start(self, world: World) -> None:
        """Set up, on an empty stream."""

    async def act(self, world: World, rng: random.Random) -> None:
        """Do it once."""
        await world.write(rng, self.writes)

    async def quiet(self, world: World) -> None:
        """End faults and pauses."""

    async def check(self, world: World) -> None:
        """Look."""

    async def end(self) -> None:
        """Let go of what it holds, also after an error."""
