"""A scenario: two or three features, a seed, and what comes of them."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.pairs.feature import Feature
from tests.pairs.model import WRITING_ERRORS
from tests.pairs.table import FEATURES
from tests.pairs.world import World

_TICK_S, _LATE_S = 0.05, 0.5
LONGEST_S = 120.0
"""A scenario that takes longer is a violation by itself."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Names of features, and the seed of their actions."""

    names: tuple[str, ...]
    seed: int

    @property
    def command(self) -> str:
        """What repeats it."""
        return f"python -m tests.pairs --pair {','.join(self.names)} --seed {self.seed} --count 1"


def run(scenario: Scenario) -> list[str]:
    """Run one; the violations."""
    return asyncio.run(play([FEATURES[name]() for name in scenario.names], scenario.seed))


async def play(features: Sequence[Feature], seed: int) -> list[str]:
    """Set up, let them act, end the faults, check."""
    settings: dict[str, Any] = {}
    for feature in features:
        settings |= feature.settings
    with tempfile.TemporaryDirectory(prefix="pairs-") as scratch:
        world = World(f"pairs-{seed}", Path(scratch))
        load = _Load()
        watching = asyncio.create_task(load.watch())
        try:
            async with asyncio.timeout(LONGEST_S), world.running(settings):
                try:
                    await _play(features, world, random.Random(f"{seed} {[f.name for f in features]}"))
                finally:
                    for feature in features:
                        await feature.end()
        except Exception as error:  # whatever it is, it is shown with the command that repeats it
            where = traceback.extract_tb(error.__traceback__)[-1]
            world.model.violate(f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")
        finally:
            watching.cancel()
        return [f"{violation}{load.said}" for violation in world.model.violations]


class _Load:
    """Notices that this process did not get the CPU in time: then a timeout says nothing about the cluster."""

    def __init__(self) -> None:
        self._late_s = 0.0

    async def watch(self) -> None:
        """Measure how late the event loop wakes a task."""
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(_TICK_S)
            self._late_s = max(self._late_s, time.monotonic() - before_s - _TICK_S)

    @property
    def said(self) -> str:
        """For the end of a violation."""
        if self._late_s < _LATE_S:
            return ""
        return f" [this process was {self._late_s:.1f} s late for the CPU: repeat the scenario on an idle machine]"


async def _play(features: Sequence[Feature], world: World, rng: random.Random) -> None:
    own = {feature: random.Random(rng.random()) for feature in features}
    turns = [feature for feature in features for _ in range(feature.acts)]
    rng.shuffle(turns)
    await world.write(rng, 15)
    for feature in features:
        await feature.start(world)
    while turns and not world.model.violations:
        together = [turns.pop()]
        if turns and turns[-1] is not together[0] and rng.random() < 0.5:
            together.append(turns.pop())
        await asyncio.gather(*(_act(feature, world, own[feature]) for feature in together))
        await world.write(rng, 4)
    for feature in features:
        await feature.quiet(world)
    if world.model.violations or not await world.settle():
        return
    for feature in features:
        await feature.check(world)
    await world.check()


async def _act(feature: Feature, world: World, rng: random.Random) -> None:
    """Errors of the cluster are part of a fault; what they may mean for records is noted where they are sent."""
    try:
        await feature.act(world, rng)
    except WRITING_ERRORS as error:
        if not (world.away or world.recreations):
            world.model.violate(f"{feature.name}: {type(error).__name__}: {error}")
