"""The feature level of a group that is new: the newest that all its controllers speak, set by an entry before anything else. Pure.

Goal: a new cluster begins at the newest level, without an operator. Constraint: a cluster that was ever used stays at its level
until somebody finalizes; versions that know no levels may be among the controllers, and they apply the same entries.

Algorithm: while the image is that of a group in which nothing was ever decided, its leader lets nothing else into the log. It waits
until it has heard what every other controller speaks, and orders ``SetFeatureLevel`` for the newest level in common. Nobody is
registered yet, so apply finds nobody who was not asked; with a node in the image the entry changes nothing. Who is not heard within
``HEARD_WITHIN_NS`` (a first start with a majority) may be of any version: the group begins at the first level.

Worked example: a and b speak 1..2, c is of the version before and says nothing: 1..1. The level stays 1, nothing is logged for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from liftpy.cluster.codec import rules_to_pb, times_to_pb
from liftpy.cluster.controller_list import GroupView
from liftpy.cluster.draft import Rules
from liftpy.cluster.features import SESSION_TIMES, range_of
from liftpy.cluster.image import ClusterImage, Counters
from liftpy.cluster.level_range import FIRST, LevelRange
from liftpy.config import NS_PER_S, SessionTimes
from liftpy.wire._pb import cluster_pb2 as pb

HEARD_WITHIN_NS = 3 * NS_PER_S
"""So long a new group's leader waits for controllers that it has not heard in this session."""


def is_unborn(image: ClusterImage) -> bool:
    """Whether nothing was ever decided on it."""
    used = image.nodes or image.streams or image.counters != Counters() or image.controllers.index
    return not used and image.feature_level == FIRST


def level_at_birth(own: LevelRange, others: Mapping[str, LevelRange | None], *, waited: bool) -> int | str:
    """The level to begin at; or why none can be chosen now, for people. ``others``: of the other controllers, None: not heard;
    ``waited``: for them, long enough."""
    silent = sorted(node_id for node_id, spoken in others.items() if spoken is None)
    if silent and not waited:
        return f"the group is new, and its leader has not heard yet which feature levels {', '.join(silent)} speaks"
    heard = {node_id: spoken or LevelRange(FIRST, FIRST) for node_id, spoken in others.items()}
    ranges = [own, *heard.values()]
    level = min(spoken.most for spoken in ranges)
    if level < max(spoken.least for spoken in ranges):
        said = ", ".join(f"{node_id} {spoken}" for node_id, spoken in sorted(heard.items()))
        return f"the group is new, and its controllers speak no feature level in common: the leader {own}, {said}"
    return level


def begin_at(level: int, rules: Rules, times: SessionTimes) -> pb.ControlRequest:
    """The request that has a new group begin at ``level``, with what the settings of its leader say."""
    begin = pb.SetFeatureLevel(level=level, rules=rules_to_pb(rules.shared))
    if level >= SESSION_TIMES:
        begin.sessionTimes.CopyFrom(times_to_pb(times))
    return pb.ControlRequest(setFeatureLevel=begin)


class Birth:
    """Of one metadata leader. ``why``: while it is not '', nothing else may go into the log, for people."""

    def __init__(self, rules: Rules, times: SessionTimes) -> None:
        self._rules = rules
        self._times = times
        self._spoken = range_of(rules.features)
        self._since_ns = 0
        self._is_ordered = False
        self.why = ""

    def is_ahead(self, image: ClusterImage) -> bool:
        """Whether the level of a group with this image is still to be chosen; never by who speaks the first one alone."""
        return self._spoken.most > FIRST and is_unborn(image)

    def lead(self, image: ClusterImage, now_ns: int) -> None:
        """The duties begin, and ``image`` holds everything that was committed before."""
        self._since_ns, self._is_ordered = now_ns, False
        self.why = "the group is new, and its feature level is being decided" if self.is_ahead(image) else ""

    def due(self, image: ClusterImage, view: GroupView, now_ns: int) -> pb.ControlRequest | None:
        """What to order now; say ``ended`` once it is over."""
        if self.why and not self.is_ahead(image):
            self.why = ""
        if not self.why or self._is_ordered or view.halted:
            return None
        waited = now_ns - self._since_ns >= HEARD_WITHIN_NS
        level = level_at_birth(self._spoken, view.levels, waited=waited)
        if isinstance(level, str):
            self.why = level
            return None
        if level == image.feature_level:
            self.why = ""
            return None
        self._is_ordered = True
        return begin_at(level, self._rules, self._times)

    def ended(self) -> None:
        """The order is applied, or is known not to be: where nothing came of it, it is due again."""
        self._is_ordered = False
