"""Feature levels: one number in the image that defines how controllers decide, and what they write and send. Pure.

During a rolling upgrade, two versions apply the same entries and must compute the same image. So decisions depend on
the level in the image, never on the running version. A change that makes an entry decide differently needs a new row.
This includes bug fixes and answer texts.

The metadata leader finalizes a level that all nodes and controllers support. From then on, a node without it is
rejected and exits with code 78.

A released row never changes. A version supports all levels from the first row to the last. The code does not check for
the features of the first row. An image without a level belongs to a new group: its first entry that decides anything
sets the level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import GROUPS_STREAM
from liftpy.errors import IncompatibleVersionError

NO_LEVEL = 0
"""Level of the image of a new group. Nothing is decided before the level is set."""
UNSUPPORTED = "UNSUPPORTED: "
"""Prefix of the detail of an INVALID answer if the other side has another version. A newer version may accept the request."""
FIRST = 5
"""Oldest level that this version supports. Levels 1 to 4 were never released."""
DAMAGED_LOGS = 6
"""First level at which a registration can name the damaged logs of the node."""
QUEUE_EPOCHS = 7
"""First level at which the coordinators of work queues store LeaderEpochs."""
EFFECT_NUMBERS = 7
"""First level at which services number effects by the records that request them."""


@dataclass(frozen=True, slots=True)
class LevelRange:
    """Range of feature levels that a process supports, inclusive."""

    least: int
    most: int

    def __contains__(self, level: int) -> bool:
        return self.least <= level <= self.most

    def __str__(self) -> str:
        return f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"

    def write_to(self, message: Any) -> None:
        message.minLevel, message.maxLevel = self.least, self.most


DEFAULT_LEVELS = LevelRange(1, 1)
"""Range that is used for a message without one. No released version supports it, so the node is rejected.

Controllers store the text of the rejection, which contains this range. The range must not change.
"""


def level_range_in(message: Any) -> LevelRange:
    """Return the range of levels in the protobuf message ``message``, or ``DEFAULT_LEVELS`` if it names none."""
    return LevelRange(message.minLevel, message.maxLevel or message.minLevel) if message.minLevel else DEFAULT_LEVELS


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature level, as a row of the table of features. The row of a released level never changes."""

    level: int
    version: str
    """First release that supports the level."""
    description: str
    """Changes of the level, as text for people."""
    has_way_back: bool = False
    """True if versions of the previous level can read everything that this level writes."""
    in_use: Callable[[Any], list[str]] = lambda _: []
    """Function of a ClusterImage that returns the contents that need the level, as texts. They must be removed before the level is
    lowered.
    """
    asked: Callable[[pb.ControlRequest], str] = lambda _: ""
    """Function that returns the part of a request that needs the level, as text. '': none. Each item of a batch is checked."""


FEATURES: tuple[Feature, ...] = (
    Feature(FIRST, "0.1.0", "baseline: everything that the first release decides, writes and sends"),
    Feature(
        DAMAGED_LOGS,
        "0.1.0",
        "a node that registers names its damaged logs, and stays in the ISR of its other partitions",
        has_way_back=True,
        asked=lambda request: "a registration that names damaged logs" if request.registerNode.damagedLogs else "",
    ),
    Feature(
        QUEUE_EPOCHS,
        "0.1.0",
        "work queues store LeaderEpochs, so that they notice records that an unclean election lost, and services number effects "
        "by the records that request them",
        has_way_back=True,
        in_use=lambda image: [f"stream {GROUPS_STREAM}: its coordinators"] if GROUPS_STREAM in image.streams else [],
    ),
)


def level_range_of(features: tuple[Feature, ...]) -> LevelRange:
    """Return the range of levels that a version with these ``features`` supports, from the first to the last."""
    return LevelRange(features[0].level, features[-1].level)


SUPPORTED_LEVELS = level_range_of(FEATURES)
"""Feature levels that this version supports."""


def refused_level(level: int, who: str, supported: LevelRange) -> str:
    """Return why the process ``who``, which supports the levels ``supported``, cannot run at ``level``. '': it can."""
    if level in supported:
        return ""
    what = "a newer version" if level > supported.most else "an older version, or to finalize a newer level first"
    return f"{UNSUPPORTED}the cluster is at feature level {level}, {who} speaks {supported}: it needs {what}"


def check_level(level: int, supported: LevelRange) -> None:
    """Raise IncompatibleVersionError if ``supported``, the levels of this version, does not contain the feature level of an image."""
    refused = refused_level(level, "this version", supported) if level != NO_LEVEL else ""
    if refused:
        raise IncompatibleVersionError(refused)


def feature_level_rejection(request: pb.ControlRequest, level: int, features: tuple[Feature, ...]) -> str:
    """Return why the request must not be logged at the feature level ``level``. '': it may.

    Below the level of the request, there may be controllers of an older version that do not know it.
    """
    for part in (request, *(item.request for item in request.batch.requests)):
        for feature in features:
            what = feature.asked(part) if feature.level > level else ""
            if what:
                return (
                    f"{UNSUPPORTED}{what} needs feature level {feature.level}, the cluster is at level {level}: "
                    "liftpy upgrade finalize"
                )
    return ""


def feature_of(level: int, features: tuple[Feature, ...]) -> Feature | None:
    """Return the feature with this level, or None if there is none."""
    return next((feature for feature in features if feature.level == level), None)


@dataclass(frozen=True, slots=True)
class FeatureLevels:
    """Feature level of the cluster, and the levels of its nodes."""

    level: int
    """Feature level of the cluster."""
    spoken: Mapping[str, LevelRange | None]
    """Node id -> range of levels that it supports. None: not known."""
    versions: Mapping[str, str]
    """Node id -> version."""
    reasons: tuple[str, ...] = ()
    """Reasons why the requested level cannot be finalized. (): it can."""
