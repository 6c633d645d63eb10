"""SetFeatureLevel: an operator finalizes a level, or goes back to the one before. Compare-and-set on who is registered.

The metadata leader has asked, by heartbeats and the group's own messages, who speaks the level (``level_check.py``); that is not in the
log. What is in the log is whom it has found. So a node of an older version that registers between the two is not passed over.
"""

from __future__ import annotations

from liftpy.cluster.codec import rules_from_pb, times_from_pb
from liftpy.cluster.draft import Decision, Draft, refuse
from liftpy.cluster.features import SESSION_TIMES, STRICT, UNSUPPORTED, feature_of, range_of, why_no_way_back
from liftpy.cluster.records import FeatureLevelSet
from liftpy.config import SessionTimes
from liftpy.errors import ConfigError, UnspokenError
from liftpy.wire._pb import cluster_pb2 as pb


def set_feature_level(draft: Draft, request: pb.SetFeatureLevel) -> Decision:
    """Decide by another level from the next entry on. Raises UnspokenError where this version does not speak it: a controller that
    went on would decide otherwise than the others."""
    image, spoken = draft.image, range_of(draft.features)
    if request.level == image.feature_level:
        return draft.done(pb.ControlResponse(detail=f"the feature level is {request.level} already"))
    unchecked = _unchecked(draft, request)
    if unchecked:
        return refuse(pb.ControlResponse.STALE, f"registered meanwhile, and not asked: {', '.join(unchecked)}")
    if request.level < image.feature_level:
        reasons = why_no_way_back(image, draft.features)
        if request.level != image.feature_level - 1:
            reasons = [f"one level at a time: from {image.feature_level} to {image.feature_level - 1}"]
        if reasons:
            return refuse(pb.ControlResponse.INVALID, "; ".join(reasons))
    if request.level not in spoken or feature_of(request.level, draft.features) is None:
        raise UnspokenError(f"{UNSUPPORTED}the feature level becomes {request.level}, this version speaks {spoken}")
    rules = image.rules or rules_from_pb(request.rules) if request.level >= STRICT else None
    try:
        times = _times(draft, request)
    except ConfigError as error:
        return refuse(pb.ControlResponse.INVALID, str(error))
    draft.add(FeatureLevelSet(request.level, rules, times))
    return draft.done(pb.ControlResponse(detail=f"the feature level is {request.level}, it was {image.feature_level}"))


def _times(draft: Draft, request: pb.SetFeatureLevel) -> SessionTimes | None:
    """That the image is to hold; raise ConfigError where the request says none that can be."""
    if request.level < SESSION_TIMES:
        return None
    return draft.image.session_times or times_from_pb(request.sessionTimes)


def _unchecked(draft: Draft, request: pb.SetFeatureLevel) -> list[str]:
    checked = {(node.nodeId, node.incarnation) for node in request.checked}
    return sorted(node_id for node_id, node in draft.image.nodes.items() if (node_id, node.incarnation) not in checked)
