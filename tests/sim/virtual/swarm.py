"""Swarm testing: each seed draws its cluster, a few kinds of faults, and a part of the features.

A history with few kinds of faults and features is short, and reaches states that a history with all of them rarely reaches, because one
kind of fault hides another. All kinds occur across seeds.
"""

from __future__ import annotations

import random

from tests.sim.virtual.operations import ACTIONS
from tests.sim.virtual.profiles import ALL_FAULTS, Profile

SWARM = "swarm"
_CLUSTERS = ((1, 1), (2, 1), (3, 3), (3, 3), (3, 3), (3, 1), (4, 3), (5, 5))
"""(nodes, controllers)."""
_LOSSES = frozenset(("bit-flip", "empty"))
"""Faults that damage the data of one node. The others must have all of it, also the metadata."""


def draw_profile(seed: int) -> Profile:
    """Return the profile of a seed."""
    draw = random.Random(f"{SWARM} {seed}")
    nodes, controllers = draw.choice(_CLUSTERS)
    kinds = [fault for fault in ALL_FAULTS if controllers > 1 or fault not in _LOSSES]

    def has(share: float = 0.5) -> bool:
        return draw.random() < share

    operations = has()
    return Profile(
        SWARM,
        nodes=nodes,
        controllers=controllers,
        busy_s=draw.choice((2.0, 4.0, 6.0)),
        pause_s=draw.choice((0.3, 1.0, 2.5)),
        faults=tuple(draw.sample(kinds, draw.choice((1, 2, 3, 5)))),
        groups=has(0.4),
        workers=draw.choice(((1,), (1,), (1, 2), (2,))),
        operations=operations,
        actions=tuple(draw.sample(ACTIONS, draw.choice((1, 3, 6)))) if operations and has(0.7) else (),
        backups=has(0.25),
        services=has(0.25),
        strangers=has(),
        rejections=has(),
        small_limits=has(),
        changes_controllers=nodes > 3 and has(),
        drills=has(0.1),
        floods=has(0.2),
    )


def features(profile: Profile) -> list[str]:
    """Return what the profile of a seed has, for the report."""
    names = ("groups", "operations", "backups", "services", "strangers", "rejections", "small_limits", "changes_controllers")
    return [
        f"{profile.nodes} nodes, {profile.controllers} controllers",
        *(name.replace("_", " ") for name in (*names, "drills", "floods") if getattr(profile, name)),
        *(f"action: {action}" for action in profile.actions),
        *(["workers"] if 2 in profile.workers else []),
    ]
