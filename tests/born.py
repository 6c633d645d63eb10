"""State machines of the metadata group whose group has begun: the first image holds a feature level, rules and session times.

A real group begins with an entry. Here the first image says it, so that the first entry of a test has index 1.
"""

from __future__ import annotations

from typing import Any

from liftpy.config import SessionTimes
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.features import FEATURES, SUPPORTED_LEVELS, Feature
from liftpy.core.metadata.image import ClusterImage, ClusterRules
from liftpy.core.wire._pb import cluster_pb2 as pb

TIMES = SessionTimes(2000, 900)
NEXT = Feature(SUPPORTED_LEVELS.most + 1, "next", "what the next release decides", has_way_back=True)
"""An artificial next level. ``replace`` gives it what a test needs."""
BOTH = (*FEATURES, NEXT)
"""What the next version speaks: the released levels, and the next one."""


def born_image(
    namespace: str = "liftpy", *, elections: bool = True, level: int = FEATURES[-1].level, times: SessionTimes = TIMES
) -> ClusterImage:
    """Return the image of a group that has only just begun at ``level``."""
    return ClusterImage(feature_level=level, rules=ClusterRules(namespace, elections), session_times=times)


def born_fsm(
    namespace: str = "liftpy",
    *,
    elections: bool = False,
    features: tuple[Feature, ...] = FEATURES,
    level: int = FEATURES[-1].level,
) -> ClusterFsm:
    """Return a state machine with that image."""
    fsm = ClusterFsm(namespace, elections=elections, features=features)
    fsm.image = born_image(namespace, elections=elections, level=level)
    return fsm


def registration(**fields: Any) -> pb.RegisterNode:
    """Return the registration of a node that speaks what this version speaks."""
    request = pb.RegisterNode(**fields)
    SUPPORTED_LEVELS.write_to(request)
    return request
