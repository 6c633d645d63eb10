"""Feature levels: what the controllers decide, write and send, as one number in the image. Pure.

During a rolling upgrade, two versions apply the same entries and must reach the same image. So decisions depend on the
level in the image, never on the running version. Any change that makes an entry decide differently, including bug fixes
and answer texts, needs a new level here. A released row never changes.

The metadata leader finalizes a level that all nodes and controllers support. From then on nodes without it are
rejected, and exit with code 78.

A released row never changes. A version supports all levels from the first row to the last. What the first row brought
is unconditional. An image without a level is that of a new group: its first entry that decides anything sets the level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from liftpy.core.metadata.feature_range import NO_LEVEL, LevelRange
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import IncompatibleVersionError

UNSUPPORTED = "UNSUPPORTED: "
"""Before the detail of an INVALID: the other side is of another version, and the request may well make sense there."""
FIRST = 5
"""The oldest level that this version speaks. Levels 1 to 4 were never released."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature level. A released one never changes."""

    level: int
    version: str
    """The first release that speaks it."""
    gates: str
    """Description of the feature."""
    has_way_back: bool = False
    """True if it writes nothing that a version of the previous level cannot read."""
    in_use: Callable[[ClusterImage], list[str]] = lambda _: []
    """Return the content of the image that needs the level, as text. It must be removed before the level is lowered."""
    asked: Callable[[pb.ControlRequest], str] = lambda _: ""
    """Return the part of a request that needs the level, as text. '': none. A batch is checked item by item."""


FEATURES: tuple[Feature, ...] = (
    Feature(FIRST, "0.1.0", "baseline: everything that the first release decides, writes and sends"),
)


def range_of(features: tuple[Feature, ...]) -> LevelRange:
    """Return the levels that a version with these rows speaks."""
    return LevelRange(features[0].level, features[-1].level)


SPOKEN = range_of(FEATURES)
"""Feature levels that this version supports."""


def refused_level(level: int, who: str, spoken: LevelRange) -> str:
    """Return why ``who`` cannot run at ``level``, '' if it can."""
    if level in spoken:
        return ""
    what = "a newer version" if level > spoken.most else "an older version, or to finalize a newer level first"
    return f"{UNSUPPORTED}the cluster is at feature level {level}, {who} speaks {spoken}: it needs {what}"


def check_level(image: ClusterImage, spoken: LevelRange) -> None:
    """Raise IncompatibleVersionError unless this version supports the level of an image that it has read."""
    refused = refused_level(image.feature_level, "this version", spoken) if image.feature_level != NO_LEVEL else ""
    if refused:
        raise IncompatibleVersionError(refused)


def why_not_yet(request: pb.ControlRequest, level: int, features: tuple[Feature, ...]) -> str:
    """Return why the request must not be logged at ``level``, '' if it may: controllers of an older version do not know it."""
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
    """Return the row of a level."""
    return next((feature for feature in features if feature.level == level), None)


def why_no_way_back(image: ClusterImage, features: tuple[Feature, ...]) -> list[str]:
    """Return why the feature level of ``image`` cannot be lowered by one, [] if it can."""
    now = feature_of(image.feature_level, features)
    assert now is not None
    if not now.has_way_back:
        return [f"level {now.level} has written what versions before it can't read ({now.gates}): restore a backup instead"]
    return now.in_use(image)
