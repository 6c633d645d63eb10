"""Who speaks which feature levels, as the metadata leader hears it; and whether a level may be set. Pure.

Goal: no level is finalized that a node or a controller does not speak. Constraint: at the first level the image holds nothing of it,
since versions that know no levels decide beside this one; so it is kept beside the log, from heartbeats and from members' messages.
A leader that was only just elected has heard nobody, and refuses until it has: a heartbeat later it knows.

A node that does not run is not heard, and its next process may be of any version: it has to come back, or to be removed.
"""

from __future__ import annotations

from collections.abc import Mapping

from liftpy.cluster.codec import rules_to_pb, times_to_pb
from liftpy.cluster.draft import Rules, refuse
from liftpy.cluster.features import SESSION_TIMES, range_of, refused_level, why_no_way_back
from liftpy.cluster.fsm import again
from liftpy.cluster.image import ClusterImage
from liftpy.cluster.level_range import LevelRange, said
from liftpy.config import SessionTimes
from liftpy.wire._pb import cluster_pb2 as pb

_ERROR = pb.ControlResponse


class HeardLevels:
    """Of nodes; forgotten with the leadership."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[int, LevelRange]] = {}
        """Node id -> (incarnation, what it speaks); of nodes in the image."""

    def clear(self) -> None:
        """Nobody was heard yet."""
        self._of.clear()

    def heard(self, beat: pb.Heartbeat, image: ClusterImage) -> None:
        """A heartbeat; it counts if it is of the process that is registered."""
        node = image.nodes.get(beat.nodeId)
        if node is not None and node.incarnation == beat.incarnation:
            self._of[beat.nodeId] = (beat.incarnation, said(beat))

    def of(self, image: ClusterImage, node_id: str) -> LevelRange | None:
        """What the process that runs as the node speaks; None: it was not heard, or does not run."""
        incarnation, spoken = self._of.get(node_id, (0, None))
        node = image.nodes.get(node_id)
        return spoken if node is not None and node.incarnation == incarnation and not node.fenced else None

    def image_changed(self, image: ClusterImage) -> None:
        """Forget who was removed."""
        if len(self._of) > len(image.nodes):
            self._of = {node_id: held for node_id, held in self._of.items() if node_id in image.nodes}


def levels_answer(
    request: pb.ControlRequest,
    image: ClusterImage,
    heard: HeardLevels,
    controllers: Mapping[str, LevelRange | None],
    rules: Rules,
    times: SessionTimes,
) -> pb.ControlResponse | None:
    """The metadata leader's answer to a SetFeatureLevel; None: it may be logged, and says now whom it was asked of.
    ``controllers``: the other members of the group, and what they say of themselves; None: nothing in this session. ``times``: of
    this leader's settings."""
    asked = request.setFeatureLevel
    held = image.operations.get(request.operationId)
    if held is not None:
        return pb.ControlResponse.FromString(again(image, held))
    level = asked.level or image.feature_level
    reasons = [*_reasons_against(image, level, heard, controllers, rules), *_other_times(image, level, times)]
    if not asked.dryRun and not reasons:
        _fill(asked, image, rules, times)
        return None
    response = _described(image, heard, reasons) if asked.dryRun else refuse(_ERROR.INVALID, "; ".join(reasons)).response
    response.operationId, response.index = request.operationId, image.index
    return response


def _reasons_against(
    image: ClusterImage, level: int, heard: HeardLevels, controllers: Mapping[str, LevelRange | None], rules: Rules
) -> list[str]:
    """Why the level can't be set now, for people; [] if it can."""
    own = range_of(rules.features)
    if level not in own:
        return [refused_level(level, "the metadata leader", own).replace("the cluster is at", "asked for is", 1)]
    if level == image.feature_level:
        return []
    reasons = []
    for node_id in sorted(image.nodes):
        spoken = heard.of(image, node_id)
        if spoken is None:
            reasons.append(f"node {node_id} does not run, or was not heard yet: start it, or remove it")
        elif level not in spoken:
            reasons.append(
                f"node {node_id} ({image.nodes[node_id].version or 'of an unknown version'}) speaks {spoken}, not {level}"
            )
    for node_id, spoken in sorted(controllers.items()):
        if spoken is None:
            reasons.append(f"controller {node_id} is not connected: start it, or take it out of the controllers")
        elif level not in spoken:
            reasons.append(f"controller {node_id} speaks {spoken}, not {level}")
    if level < image.feature_level:
        if level != image.feature_level - 1:
            reasons.append(f"one level at a time: from {image.feature_level} to {image.feature_level - 1}")
        reasons += why_no_way_back(image, rules.features)
    return reasons


def _other_times(image: ClusterImage, level: int, own: SessionTimes) -> list[str]:
    """On the way back to where each process goes by its own settings, those must say what the cluster has."""
    held = image.session_times
    if level >= SESSION_TIMES or held is None or (held.session_ms, held.lease_ms) == (own.session_ms, own.lease_ms):
        return []
    return [f"the cluster has {held.words}, and the settings of the metadata leader say {own.words}: make them the same first"]


def _described(image: ClusterImage, heard: HeardLevels, reasons: list[str]) -> pb.ControlResponse:
    """The answer to a dry run."""
    levels = pb.FeatureLevels(level=image.feature_level, reasons=reasons)
    for node_id in sorted(image.nodes):
        spoken = heard.of(image, node_id)
        row = levels.nodes.add(nodeId=node_id, version=image.nodes[node_id].version)
        if spoken is not None:
            spoken.tell(row)
    return pb.ControlResponse(levels=levels)


def _fill(request: pb.SetFeatureLevel, image: ClusterImage, rules: Rules, times: SessionTimes) -> None:
    """Say in the request what was looked at, before it is logged."""
    del request.checked[:]
    request.checked.extend(pb.CheckedNode(nodeId=i, incarnation=image.nodes[i].incarnation) for i in sorted(image.nodes))
    request.rules.CopyFrom(rules_to_pb(image.rules or rules.shared))
    request.ClearField("sessionTimes")
    if request.level >= SESSION_TIMES:
        request.sessionTimes.CopyFrom(times_to_pb(image.session_times or times))
