"""Feature levels: what the controllers decide, write and send, as one number in the image. Pure.

During a rolling upgrade, two versions apply the same entries and must reach the same image. So decisions depend on the
level in the image, never on the running version. Any change that makes an entry decide differently, including bug fixes
and answer texts, needs a new level here. A released row never changes.

The metadata leader finalizes a level that all nodes and controllers support. From then on nodes without it are
rejected, and exit with code 78.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from liftpy.config import ALTERABLE, ALTERABLE_AT_FIRST, NO_QUOTA, QUOTA_SETTINGS
from liftpy.core.metadata.feature_range import FIRST, LevelRange
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import IncompatibleVersionError

UNSUPPORTED = "UNSUPPORTED: "
"""Before the detail of an INVALID: the other side is of another version, and the request may well make sense there."""
STRICT = 2
"""From this level on apply stops at what it does not know, the image holds the rules, and what is applied has a digest."""
QUOTAS = 3
"""From this level on streams may have quotas."""
QUOTAS_NEED = (
    f"{UNSUPPORTED}quotas of publishes need feature level {QUOTAS}, the cluster is at level {{level}}: liftpy upgrade finalize"
)

DEFAULT_QUOTA = 4
"""From this level on the cluster may have a default quota, and streams be exempt from it."""
DEFAULT_QUOTA_NEEDS = (
    f"{UNSUPPORTED}a default quota, and streams that are exempt from it, need feature level {DEFAULT_QUOTA}, "
    "the cluster is at level {level}: liftpy upgrade finalize"
)

SESSION_TIMES = 5
"""From this level on session and lease are in the image, and the answer to a heartbeat says how long a lease it grants."""
SESSION_TIMES_NEED = (
    f"{UNSUPPORTED}session times of the whole cluster need feature level {SESSION_TIMES}, "
    "the cluster is at level {level}: liftpy upgrade finalize"
)


def _with_quotas(image: ClusterImage) -> list[str]:
    """``liftpy upgrade revert`` waits until these have none."""
    return [f"stream {name} has a quota" for name, stream in sorted(image.streams.items()) if stream.config.needs_quotas]


def _with_default_quota(image: ClusterImage) -> list[str]:
    """``liftpy upgrade revert`` waits until there is nothing of it."""
    said = ["the cluster has a default quota"] if image.default_quota != NO_QUOTA else []
    exempt = (name for name, stream in sorted(image.streams.items()) if stream.config.quota_exempt)
    return said + [f"stream {name} is exempt from the default quota" for name in exempt]


def _with_unsettled_times(image: ClusterImage) -> list[str]:
    """``liftpy upgrade revert`` waits until nothing that was granted by others than the last ones may count."""
    times = image.session_times
    return [] if times is None or times.is_settled else [f"the session times were only just changed: {times.words}"]


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature level. A released one never changes."""

    level: int
    version: str
    """The first release that speaks it."""
    gates: str
    """What it brings."""
    has_way_back: bool = False
    """It writes nothing that a version of the level before can't read."""
    in_use: Callable[[ClusterImage], list[str]] = lambda _: []
    """What of the image needs the level, for people: what has to go before the way back."""


FEATURES: tuple[Feature, ...] = (
    Feature(FIRST, "before 0.1.0", "all that releases before feature levels decide, write and say"),
    Feature(
        2,
        "0.1.0",
        "apply stops at requests that it does not know; namespace and elections are in the image; controllers compare digests; "
        "snapshots of the metadata group have version 2",
    ),
    Feature(QUOTAS, "0.1.0", "streams may have quotas of publishes", has_way_back=True, in_use=_with_quotas),
    Feature(
        DEFAULT_QUOTA,
        "0.1.0",
        "the cluster may have a default quota, and streams be exempt from it",
        has_way_back=True,
        in_use=_with_default_quota,
    ),
    Feature(
        SESSION_TIMES,
        "0.1.0",
        "session and lease are the cluster's, in the image: a node's own settings count no more",
        has_way_back=True,
        in_use=_with_unsettled_times,
    ),
)


def range_of(features: tuple[Feature, ...]) -> LevelRange:
    """The levels that a version with these rows speaks."""
    return LevelRange(features[0].level, features[-1].level)


SPOKEN = range_of(FEATURES)
"""By this version."""


def refused_level(level: int, who: str, spoken: LevelRange) -> str:
    """Why ``who`` can't take part at ``level``, '' if it can."""
    if level in spoken:
        return ""
    what = "a newer version" if level > spoken.most else "an older version, or to finalize a newer level first"
    return f"{UNSUPPORTED}the cluster is at feature level {level}, {who} speaks {spoken}: it needs {what}"


def check_level(image: ClusterImage, spoken: LevelRange) -> None:
    """Raise IncompatibleVersionError unless this version speaks the level of an image that it has read."""
    refused = refused_level(image.feature_level, "this version", spoken)
    if refused:
        raise IncompatibleVersionError(refused)


def why_not_yet(request: pb.ControlRequest, level: int) -> str:
    """Why what is asked for must not be logged at ``level``, '' if it may: a controller of a version before would not know it."""
    if level >= SESSION_TIMES:
        return ""
    for part in (request, *(item.request for item in request.batch.requests)):
        if part.HasField("setSessionTimes") or part.HasField("settleSessionTimes"):
            return SESSION_TIMES_NEED.format(level=level)
        if level >= DEFAULT_QUOTA:
            continue
        asked = part.alterStream if part.HasField("alterStream") else part.createStream
        config = asked.config
        if level < QUOTAS and (config.quotaRecordsPerS or config.quotaBytesPerS or config.quotaByToken):
            return QUOTAS_NEED.format(level=level)
        if config.quotaExempt or part.HasField("setDefaultQuota"):
            return DEFAULT_QUOTA_NEEDS.format(level=level)
    return ""


def alterable_at(level: int) -> tuple[str, ...]:
    """The settings that a stream may be given anew at a level; refusals list them, so those of older levels stay as they are."""
    if level >= DEFAULT_QUOTA:
        return ALTERABLE
    return (*ALTERABLE_AT_FIRST, *QUOTA_SETTINGS) if level >= QUOTAS else ALTERABLE_AT_FIRST


def feature_of(level: int, features: tuple[Feature, ...]) -> Feature | None:
    """The row of a level."""
    return next((feature for feature in features if feature.level == level), None)


def why_no_way_back(image: ClusterImage, features: tuple[Feature, ...]) -> list[str]:
    """Why the level of ``image`` can't be left for the one before; [] if it can."""
    now = feature_of(image.feature_level, features)
    if now is None or now is features[0]:
        return [f"there is no level before {image.feature_level} that this version speaks"]
    if not now.has_way_back:
        return [f"level {now.level} has written what versions before it can't read ({now.gates}): restore a backup instead"]
    return now.in_use(image)
