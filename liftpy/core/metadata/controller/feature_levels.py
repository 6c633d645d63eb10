"""Feature level of the cluster: SetFeatureLevel, the levels of nodes and controllers, and the first level of a new cluster. Pure.

A level that a node or a controller does not support is never finalized. The metadata leader learns the levels from
heartbeats and from messages of controllers. A new metadata leader knows no levels, and rejects requests until it has
received them. If a node does not run, start it or remove it first. SetFeatureLevel is a compare-and-set on the
registered nodes. So it fails if a node of an older version registers at the same time.

A new cluster starts at the newest level that all its controllers support. Until this is decided, the leader logs
nothing else. If a controller sends nothing for ``REPORT_MAX_AGE_NS``, the cluster starts at the first level.

Example: a and b support 5..7, c has the version before and supports 5..6. The cluster starts at level 6. An operator
finalizes level 7 later.
"""

from __future__ import annotations

from collections.abc import Mapping

from liftpy.config import NS_PER_S, SessionTimes
from liftpy.core.metadata.codec import RULES, TIMES
from liftpy.core.metadata.controller.record_builder import Decision, RecordBuilder, Rules, refuse, repeated_answer
from liftpy.core.metadata.controller_list import GroupView
from liftpy.core.metadata.features import (
    NO_LEVEL,
    UNSUPPORTED,
    Feature,
    LevelRange,
    feature_of,
    level_range_in,
    level_range_of,
    refused_level,
)
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.records import FeatureLevelSet
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import ConfigError, IncompatibleVersionError

_ERROR = pb.ControlResponse
REPORT_MAX_AGE_NS = 3 * NS_PER_S
"""Maximum time that the leader of a new group waits for the levels of other controllers, in nanoseconds."""
NEW_GROUP_LEVEL = 1
"""Previous level in the answer for a new group. All controllers store the answer, so this value never changes."""


def set_feature_level(builder: RecordBuilder, request: pb.SetFeatureLevel) -> Decision:
    """Set the feature level of the cluster, which counts from the next entry on.

    Raise IncompatibleVersionError if this version does not support the level. Otherwise this controller would decide differently
    from the others.
    """
    image, supported = builder.image, level_range_of(builder.features)
    if request.level == image.feature_level:
        return builder.done(pb.ControlResponse(detail=f"the feature level is {request.level} already"))
    unchecked = _nodes_without_check(builder, request)
    if unchecked:
        return refuse(pb.ControlResponse.STALE, f"registered meanwhile, and not asked: {', '.join(unchecked)}")
    if request.level < image.feature_level - 1:
        detail = f"one level at a time: from {image.feature_level} to {image.feature_level - 1}"
        return refuse(pb.ControlResponse.INVALID, detail)
    if request.level not in supported or feature_of(request.level, builder.features) is None:
        raise IncompatibleVersionError(
            f"{UNSUPPORTED}the feature level becomes {request.level}, but this version supports {supported}. Start a "
            "newer version on this node."
        )
    reasons = downgrade_obstacles(image, builder.features) if request.level < image.feature_level else []
    if reasons:
        return refuse(pb.ControlResponse.INVALID, "; ".join(reasons))
    try:
        times = image.session_times or TIMES.from_pb(request.sessionTimes)
    except ConfigError as error:
        return refuse(pb.ControlResponse.INVALID, str(error))
    builder.add(FeatureLevelSet(request.level, image.rules or RULES.from_pb(request.rules), times))
    was = image.feature_level or NEW_GROUP_LEVEL
    return builder.done(pb.ControlResponse(detail=f"the feature level is {request.level}, it was {was}"))


def _nodes_without_check(builder: RecordBuilder, request: pb.SetFeatureLevel) -> list[str]:
    checked = {(node.nodeId, node.incarnation) for node in request.checked}
    return sorted(node_id for node_id, node in builder.image.nodes.items() if (node_id, node.incarnation) not in checked)


def downgrade_obstacles(image: ClusterImage, features: tuple[Feature, ...]) -> list[str]:
    """Return the reasons why the feature level of ``image`` cannot be lowered by one. [] means that it can be lowered."""
    now = feature_of(image.feature_level, features)
    assert now is not None
    if not now.has_way_back:
        return [
            f"level {now.level} has written what versions before it can't read ({now.description}): restore a backup instead"
        ]
    return now.in_use(image)


class ReportedLevels:
    """Feature levels that nodes have reported to the metadata leader. The leader forgets them when it loses the leadership."""

    def __init__(self) -> None:
        self._reported: dict[str, tuple[int, LevelRange]] = {}
        """Node id -> (incarnation, range of levels), for registered nodes."""

    def clear(self) -> None:
        self._reported.clear()

    def record_heartbeat(self, beat: pb.Heartbeat, image: ClusterImage) -> None:
        node = image.nodes.get(beat.nodeId)
        if node is not None and node.incarnation == beat.incarnation:
            self._reported[beat.nodeId] = (beat.incarnation, level_range_in(beat))

    def levels_of(self, image: ClusterImage, node_id: str) -> LevelRange | None:
        """Return the feature levels that the running process of a node supports. None: not known, or the node does not run."""
        incarnation, level_range = self._reported.get(node_id, (0, None))
        node = image.nodes.get(node_id)
        return level_range if node is not None and node.incarnation == incarnation and not node.fenced else None

    def image_changed(self, image: ClusterImage) -> None:
        if len(self._reported) > len(image.nodes):
            self._reported = {node_id: entry for node_id, entry in self._reported.items() if node_id in image.nodes}


def levels_answer(
    request: pb.ControlRequest,
    image: ClusterImage,
    reported_levels: ReportedLevels,
    controllers: Mapping[str, LevelRange | None],
    rules: Rules,
    times: SessionTimes,
) -> pb.ControlResponse | None:
    """Return the answer to SetFeatureLevel if the level cannot be set now, or for a dry run. None: the request may be logged.

    ``reported_levels``: levels of the nodes. ``controllers``: levels of the other members, by node. None: not known.
    """
    change = request.setFeatureLevel
    operation = image.operations.get(request.operationId)
    if operation is not None:
        return pb.ControlResponse.FromString(repeated_answer(image, operation))
    level = change.level or image.feature_level
    reasons = _reasons_against(image, level, reported_levels, controllers, rules)
    if not change.dryRun and not reasons:
        _fill(change, image, rules, times)
        return None
    response = (
        _dry_run_answer(image, reported_levels, reasons)
        if change.dryRun
        else refuse(_ERROR.INVALID, "; ".join(reasons)).response
    )
    response.operationId, response.index = request.operationId, image.index
    return response


def _reasons_against(
    image: ClusterImage, level: int, reported_levels: ReportedLevels, controllers: Mapping[str, LevelRange | None], rules: Rules
) -> list[str]:
    """Return the reasons why ``level`` cannot be set now, as texts for operators. []: it can be set.

    ``reported_levels``: levels of the nodes. ``controllers``: levels of the other members, by node.
    """
    own = level_range_of(rules.features)
    if level < own.least:
        return [f"there is no level before {own.least} that the metadata leader speaks"]
    if level not in own:
        return [refused_level(level, "the metadata leader", own).replace("the cluster is at", "asked for is", 1)]
    if level == image.feature_level:
        return []
    reasons = []
    for node_id in sorted(image.nodes):
        level_range = reported_levels.levels_of(image, node_id)
        if level_range is None:
            reasons.append(f"node {node_id} does not run, or was not heard yet: start it, or remove it")
        elif level not in level_range:
            reasons.append(
                f"node {node_id} ({image.nodes[node_id].version or 'of an unknown version'}) speaks {level_range}, not {level}"
            )
    for node_id, level_range in sorted(controllers.items()):
        if level_range is None:
            reasons.append(f"controller {node_id} is not connected: start it, or take it out of the controllers")
        elif level not in level_range:
            reasons.append(f"controller {node_id} speaks {level_range}, not {level}")
    if level < image.feature_level:
        if level != image.feature_level - 1:
            reasons.append(f"one level at a time: from {image.feature_level} to {image.feature_level - 1}")
        reasons += downgrade_obstacles(image, rules.features)
    return reasons


def _dry_run_answer(image: ClusterImage, reported_levels: ReportedLevels, reasons: list[str]) -> pb.ControlResponse:
    levels = pb.FeatureLevels(level=image.feature_level, reasons=reasons)
    for node_id in sorted(image.nodes):
        level_range = reported_levels.levels_of(image, node_id)
        row = levels.nodes.add(nodeId=node_id, version=image.nodes[node_id].version)
        if level_range is not None:
            level_range.write_to(row)
    return pb.ControlResponse(levels=levels)


def _fill(request: pb.SetFeatureLevel, image: ClusterImage, rules: Rules, times: SessionTimes) -> None:
    del request.checked[:]
    request.checked.extend(pb.CheckedNode(nodeId=i, incarnation=image.nodes[i].incarnation) for i in sorted(image.nodes))
    request.rules.CopyFrom(RULES.to_pb(image.rules or rules.stored_rules))
    request.sessionTimes.CopyFrom(TIMES.to_pb(image.session_times or times))


def first_level_of_a_cluster(own: LevelRange, others: Mapping[str, LevelRange | None], *, waited: bool) -> int | str:
    """Return the first feature level of a new cluster, or a text with the reason why none can be chosen now.

    ``own``: levels of this controller. ``others``: levels of the other controllers, None without contact. ``waited``: True
    after the maximum wait for contact.
    """
    silent = sorted(node_id for node_id, level_range in others.items() if level_range is None)
    if silent and not waited:
        return f"the group is new, and its leader has not heard yet which feature levels {', '.join(silent)} speaks"
    known_ranges = {node_id: level_range or LevelRange(own.least, own.least) for node_id, level_range in others.items()}
    ranges = [own, *known_ranges.values()]
    level = min(level_range.most for level_range in ranges)
    if level < max(level_range.least for level_range in ranges):
        range_texts = ", ".join(f"{node_id} {level_range}" for node_id, level_range in sorted(known_ranges.items()))
        return f"the group is new, and its controllers speak no feature level in common: the leader {own}, {range_texts}"
    return level


def begin_at(level: int, rules: Rules, times: SessionTimes) -> pb.ControlRequest:
    """Return the request that sets the first feature level of a new group, with the settings of its leader."""
    begin = pb.SetFeatureLevel(level=level, rules=RULES.to_pb(rules.stored_rules), sessionTimes=TIMES.to_pb(times))
    return pb.ControlRequest(setFeatureLevel=begin)


class LevelBootstrap:
    """Chooses the first feature level of a new cluster.

    ``why``: reason why none is chosen yet. While it is not '', the leader logs nothing else.
    """

    def __init__(self, rules: Rules, times: SessionTimes) -> None:
        self._rules = rules
        self._times = times
        self._spoken = level_range_of(rules.features)
        self._since_ns = 0
        self._is_ordered = False
        self.why = ""

    def lead(self, image: ClusterImage, now_ns: int) -> None:
        """Start to choose a level if the cluster has none, because this node became the metadata leader.

        ``image`` must contain all committed entries.
        """
        self._since_ns, self._is_ordered = now_ns, False
        self.why = "the group is new, and its feature level is being decided" if image.feature_level == NO_LEVEL else ""

    def take_due(self, image: ClusterImage, view: GroupView, now_ns: int) -> pb.ControlRequest | None:
        """Return the request that sets the first level, if it must be proposed now. None: it must not.

        The caller must call ``request_ended`` after the request.
        """
        if image.feature_level != NO_LEVEL:
            self.why = ""
        if not self.why or self._is_ordered or view.halted:
            return None
        waited = now_ns - self._since_ns >= REPORT_MAX_AGE_NS
        level = first_level_of_a_cluster(self._spoken, view.levels, waited=waited)
        if isinstance(level, str):
            self.why = level
            return None
        self._is_ordered = True
        return begin_at(level, self._rules, self._times)

    def request_ended(self) -> None:
        """Record that the proposed request has ended. If it was certainly not applied, ``take_due`` returns it again."""
        self._is_ordered = False
