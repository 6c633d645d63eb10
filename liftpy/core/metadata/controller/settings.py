"""SetDefaultQuota, SetSessionTimes and SetFeatureLevel.

SetSessionTimes is a compare-and-set on the number of the change. The previous times stay valid until no session and no
lease with them can exist. The metadata leader then sends SettleSessionTimes. Until then no further change is accepted.

SetFeatureLevel is a compare-and-set on the registered nodes. So it fails if a node of an older version registers at the
same time.
"""

from __future__ import annotations

from liftpy.config import NS_PER_S, SessionTimes, check_session_times
from liftpy.core.base.invariants import check
from liftpy.core.metadata.codec import QUOTA, RULES, TIMES
from liftpy.core.metadata.features import UNSUPPORTED, downgrade_obstacles, feature_of, level_range_of
from liftpy.core.metadata.record_builder import Decision, RecordBuilder, refuse
from liftpy.core.metadata.records import DefaultQuotaSet, FeatureLevelSet, SessionTimesSet
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import ConfigError, IncompatibleVersionError

NEW_GROUP_LEVEL = 1
"""Previous level in the answer for a new group. All controllers store the answer, so this value never changes."""


def set_default_quota(draft: RecordBuilder, request: pb.SetDefaultQuota) -> Decision:
    """Set the values of the cluster's default quota that the request names. Other values do not change."""
    image = draft.image
    whole = QUOTA.to_pb(image.default_quota)
    for name in ("recordsPerS", "bytesPerS", "byToken"):
        if request.HasField(name):
            setattr(whole, name, getattr(request, name))
    try:
        quota = QUOTA.from_pb(whole)
    except ConfigError as error:
        return refuse(pb.ControlResponse.INVALID, f"default quota: {error}")
    if quota != image.default_quota:
        draft.add(DefaultQuotaSet(quota))
    return draft.done(pb.ControlResponse(defaultQuota=whole))


def set_session_times(draft: RecordBuilder, request: pb.SetSessionTimes) -> Decision:
    """Set the session and lease times of the cluster that the request names. Without a change, do nothing."""
    current = _session_times_in_effect(draft)
    try:
        check_session_times(request.sessionMs, request.leaseMs)
    except ConfigError as error:
        return refuse(pb.ControlResponse.INVALID, str(error))
    if (request.sessionMs, request.leaseMs) == (current.session_ms, current.lease_ms):
        return _session_times_response(draft, current)
    if request.change != current.change:
        return refuse(pb.ControlResponse.STALE, f"the session times were changed meanwhile: {current.words}")
    if not current.is_settled:
        longest_s = current.longest_session_ns / NS_PER_S
        detail = f"the change before is not settled yet, which takes {longest_s:g} s of one metadata leader: {current.words}"
        return refuse(pb.ControlResponse.STALE, detail)
    changed = current.changed(request.sessionMs, request.leaseMs)
    draft.add(SessionTimesSet(changed))
    return _session_times_response(draft, changed)


def settle_session_times(draft: RecordBuilder, request: pb.SettleSessionTimes) -> Decision:
    """Stop using the session times from before the last change, because no session and no lease with them can exist any more."""
    current = _session_times_in_effect(draft)
    if request.change != current.change:
        return refuse(pb.ControlResponse.STALE, f"the session times were changed meanwhile: {current.words}")
    if not current.is_settled:
        current = current.settled()
        draft.add(SessionTimesSet(current))
    return _session_times_response(draft, current)


def _session_times_response(draft: RecordBuilder, times: SessionTimes) -> Decision:
    return draft.done(pb.ControlResponse(sessionTimes=TIMES.to_pb(times)))


def _session_times_in_effect(draft: RecordBuilder) -> SessionTimes:
    times = draft.image.session_times
    check(times is not None, "M5", "session times at level", draft.image.feature_level)
    assert times is not None
    return times


def set_feature_level(draft: RecordBuilder, request: pb.SetFeatureLevel) -> Decision:
    """Set the feature level of the cluster, which counts from the next entry on.

    Raise IncompatibleVersionError if this version does not support the level. Otherwise this controller would decide differently
    from the others.
    """
    image, supported = draft.image, level_range_of(draft.features)
    if request.level == image.feature_level:
        return draft.done(pb.ControlResponse(detail=f"the feature level is {request.level} already"))
    unchecked = _nodes_without_check(draft, request)
    if unchecked:
        return refuse(pb.ControlResponse.STALE, f"registered meanwhile, and not asked: {', '.join(unchecked)}")
    if request.level < image.feature_level - 1:
        detail = f"one level at a time: from {image.feature_level} to {image.feature_level - 1}"
        return refuse(pb.ControlResponse.INVALID, detail)
    if request.level not in supported or feature_of(request.level, draft.features) is None:
        raise IncompatibleVersionError(
            f"{UNSUPPORTED}the feature level becomes {request.level}, but this version supports {supported}. Start a "
            "newer version on this node."
        )
    reasons = downgrade_obstacles(image, draft.features) if request.level < image.feature_level else []
    if reasons:
        return refuse(pb.ControlResponse.INVALID, "; ".join(reasons))
    try:
        times = image.session_times or TIMES.from_pb(request.sessionTimes)
    except ConfigError as error:
        return refuse(pb.ControlResponse.INVALID, str(error))
    draft.add(FeatureLevelSet(request.level, image.rules or RULES.from_pb(request.rules), times))
    was = image.feature_level or NEW_GROUP_LEVEL
    return draft.done(pb.ControlResponse(detail=f"the feature level is {request.level}, it was {was}"))


def _nodes_without_check(draft: RecordBuilder, request: pb.SetFeatureLevel) -> list[str]:
    checked = {(node.nodeId, node.incarnation) for node in request.checked}
    return sorted(node_id for node_id, node in draft.image.nodes.items() if (node_id, node.incarnation) not in checked)
