"""``ControllerList``: the members of the metadata group, and the single steps of a change [M10]. Pure.

The list changes by entries of the group's own log, one at a time (Raft dissertation, 4.1 to 4.2). An entry contains the
whole new list. The list applies as soon as the entry is appended. It has voters, at most one learner without vote, and
at most one voter that is leaving:

    add N          voters V            learner N               N has caught up:  voters V + N
    remove O       voters V            leaving O               O does not lead:  voters V - O
    replace O N    voters V            learner N, leaving O    N has caught up:  voters V + N, leaving O;  then voters V + N - O

The order of a replacement keeps a majority if O has failed. In a group of ``MAX_CONTROLLERS``, O is removed first, after N
has caught up: voters V - O, learner N;  then voters V - O + N. A leader that leaves transfers its leadership first. A step
is proposed only after the previous one is committed, and after an entry of the leader's own term is committed.

Example: {n1, n2, n3}, n3 has failed. ``replace n3 n4``: voters n1 n2 n3, learner n4. n4 catches up: voters n1 n2 n3 n4,
committed by n1, n2, n4. Then voters n1 n2 n4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from google.protobuf.message import DecodeError

from liftpy.core.base.ids import check_name, quote
from liftpy.core.metadata.features import LevelRange
from liftpy.core.metadata.idempotency import OPERATION_ID_SIZE_BYTES
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.message_codec import MessageCodec
from liftpy.errors import InvalidNameError

MAX_CONTROLLERS = 7
"""Maximum number of controllers. Each one must flush every decision. More controllers make the group slower and not safer."""
_MAX_TIME_NS = 1 << 63


@dataclass(frozen=True, slots=True)
class ControllerList:
    """Members of the metadata group. An empty list in an image means that the list in the settings applies."""

    voters: tuple[str, ...] = ()
    learner: str = ""
    """Node that receives the log and becomes a voter when it has caught up. '': none."""
    leaving: str = ""
    """Voter that is being removed. '': none."""
    index: int = 0
    """Index of the entry that made the list. 0: it comes from the settings."""

    @property
    def members(self) -> tuple[str, ...]:
        """All nodes that receive the log of the metadata group: voters and learner."""
        return (*self.voters, self.learner) if self.learner else self.voters

    @property
    def majority(self) -> int:
        return majority(len(self.voters))

    def names(self, node_id: str) -> bool:
        return node_id in self.members

    def as_text(self) -> str:
        parts = [f"the controllers are {', '.join(self.voters)}"]
        parts += [f"{self.learner} becomes one as soon as it has caught up"] if self.learner else []
        parts += [f"{self.leaving} is to go"] if self.leaving else []
        return "; ".join(parts)


CONTROLLERS = MessageCodec(ControllerList, pb.ControllerList)


def majority(count: int) -> int:
    """Return how many of ``count`` members are a majority."""
    return count // 2 + 1


def first_list(members: Iterable[str]) -> ControllerList:
    """Return a controller list with ``members`` as voters, as the settings name them."""
    return ControllerList(tuple(sorted(members)))


def well_formed(controllers: ControllerList) -> bool:
    """Return whether the controller list ``controllers`` is valid.

    Voters are unique and ordered by id, at most one of them leaves, and the learner is not a voter.
    """
    voters = controllers.voters
    try:
        for node_id in controllers.members:
            check_name(node_id, "controller")
    except InvalidNameError:
        return False
    right = 0 < len(voters) <= MAX_CONTROLLERS and list(voters) == sorted(set(voters))
    return right and controllers.learner not in voters and controllers.leaving in ("", *voters)


def list_of(entry: bytes, index: int) -> ControllerList | None:
    """Return the controller list in the log entry ``entry`` at ``index``, or None if the entry changes no list."""
    try:
        request = pb.ControlRequest.FromString(entry)
    except DecodeError:
        return None
    if len(request.operationId) != OPERATION_ID_SIZE_BYTES or request.timeNs >= _MAX_TIME_NS:
        return None  # as the state machine would refuse it
    if not request.HasField("changeControllers") or request.changeControllers.after >= index:
        return None
    controllers = replace(CONTROLLERS.from_pb(request.changeControllers.list), index=index)
    return controllers if well_formed(controllers) else None


@dataclass(frozen=True, slots=True)
class GroupView:
    """State of the metadata group, as one member knows it, for the decision about a change of the controllers."""

    now: ControllerList
    """Newest controller list in the log of this member."""
    leader: str
    """Node id of the metadata leader, which is the member itself."""
    live: frozenset[str]
    """Connected members that acknowledge entries, including the leader and the learner."""
    caught_up: bool = False
    """True if the learner has all committed entries, and all entries that it had lost."""
    blocked: str = ""
    """Reason why no change may be proposed now. '': none."""
    halted: str = ""
    """Reason why nothing may be decided now. '': none."""
    voters_without_digest: frozenset[str] = frozenset()
    """Voters that have not yet reported the image digest at the leader's newest checkpoint."""
    levels: Mapping[str, LevelRange | None] = field(default_factory=dict)
    """Member -> its feature levels. None: the member has not reported them in this session."""


@dataclass(frozen=True, slots=True)
class NoChange:
    """The controllers do not change now. ``error``: OK if the request needs no step, for example because it is done already."""

    error: pb.ControlResponse.Error
    detail: str


Planned = ControllerList | NoChange
_ERROR = pb.ControlResponse


def plan_change(change: pb.ChangeControllers, view: GroupView, nodes: frozenset[str], fenced: frozenset[str]) -> Planned:
    """Return the next controller list for the request ``change``, a rejection, or the reason why no step is needed.

    ``nodes``: registered nodes. ``fenced``: those that do not run.
    """
    if view.blocked:  # first: an entry that is not committed may be of this very request
        return NoChange(_ERROR.UNAVAILABLE, view.blocked)
    match change.what:
        case pb.ChangeControllers.ADD:
            plan = _plan_add(change.node, view.now, nodes, fenced)
        case pb.ChangeControllers.REMOVE:
            plan = _plan_remove(change.node, view)
        case pb.ChangeControllers.REPLACE:
            plan = _plan_replace(change.replaced, change.node, view.now, nodes, fenced)
        case _:
            plan = next_step(view) or NoChange(_ERROR.OK, "no change is under way")
    if isinstance(plan, ControllerList):
        return _check_majority(plan, view) or plan
    return plan


def _change_in_progress(now: ControllerList) -> NoChange:
    replaces = f" for {now.leaving}" if now.leaving else ""
    what = f"{now.learner} is being added{replaces}" if now.learner else f"{now.leaving} is being removed"
    how = f"liftpy controllers remove {now.learner}" if now.learner else f"liftpy controllers add {now.leaving}"
    return NoChange(_ERROR.EXISTS, f"Only one change at a time: {what}. Wait until it ends, or cancel it with: {how}")


def _check_new_controller(
    node: str, now: ControllerList, nodes: frozenset[str], fenced: frozenset[str], more: int
) -> NoChange | None:
    """Return why ``node`` cannot become a controller. None: it can.

    ``now``: current list. ``nodes``: registered nodes. ``fenced``: those that do not run. ``more``: number of voters that the
    change adds.
    """
    if now.learner or now.leaving:
        return _change_in_progress(now)
    if node not in nodes:
        return NoChange(
            _ERROR.NOT_FOUND,
            f"Node {quote(node)} does not exist. Start it first, with the current controllers in its settings.",
        )
    if node in fenced:
        return NoChange(_ERROR.INVALID, f"Node {node} does not run. Start it first.")
    if len(now.voters) + more > MAX_CONTROLLERS:
        return NoChange(
            _ERROR.INVALID,
            f"The cluster has {len(now.voters)} controllers, the maximum is {MAX_CONTROLLERS}. Remove or replace one.",
        )
    return None


def _plan_add(node: str, now: ControllerList, nodes: frozenset[str], fenced: frozenset[str]) -> Planned:
    if node == now.learner and not now.leaving:
        return NoChange(_ERROR.OK, f"{node} is being added")
    if node in now.voters and node == now.leaving and not now.learner:
        return replace(now, leaving="")
    if node in now.voters and node != now.leaving:
        return NoChange(_ERROR.EXISTS, f"{node} is already a controller. Name another node.")
    return _check_new_controller(node, now, nodes, fenced, 1) or replace(now, learner=node)


def _plan_remove(node: str, view: GroupView) -> Planned:
    now = view.now
    if node == now.learner:
        return replace(now, learner="", leaving="")
    if node == now.leaving and not now.learner:
        return NoChange(_ERROR.OK, f"{node} is being removed")
    if now.learner or now.leaving:
        return _change_in_progress(now)
    if node not in now.voters:
        return NoChange(_ERROR.NOT_FOUND, f"{quote(node)} is not a controller. Use one of: {', '.join(now.voters)}.")
    if len(now.voters) == 1:
        return NoChange(_ERROR.INVALID, f"{node} is the last controller. Add another one first.")
    return _check_majority_without(now, node, view) or replace(now, leaving=node)


def _plan_replace(old: str, new: str, now: ControllerList, nodes: frozenset[str], fenced: frozenset[str]) -> Planned:
    was_full = len(now.voters) == MAX_CONTROLLERS - 1  # then the old controller is removed first
    is_removed_first = was_full and new == now.learner and not now.leaving and old not in now.voters
    if is_removed_first or (now.leaving == old and new in now.members and old != new):
        return NoChange(_ERROR.OK, f"{old} is being replaced by {new}")
    if new in now.voters and old not in now.members and not (now.learner or now.leaving):
        return NoChange(_ERROR.OK, f"{new} is a controller, and {old} is none")
    if now.learner or now.leaving:
        return _change_in_progress(now)
    if old not in now.voters:
        return NoChange(_ERROR.NOT_FOUND, f"{quote(old)} is not a controller. Use one of: {', '.join(now.voters)}.")
    if new in now.voters:
        return NoChange(_ERROR.EXISTS, f"{new} is already a controller. Name another node.")
    return _check_new_controller(new, now, nodes, fenced, 0) or replace(now, learner=new, leaving=old)


def _check_majority(plan: ControllerList, view: GroupView) -> NoChange | None:
    """Return a rejection if the planned list ``plan`` would have no live majority. None: it has one.

    The learner counts as a voter.
    """
    voters = {*plan.voters, plan.learner} - {""}
    live = (view.live & voters) | ({plan.learner} - {""})
    needed = majority(len(voters))
    if len(live) >= needed:
        return None
    return NoChange(
        _ERROR.INVALID,
        f"After this change, {needed} of {len(voters)} controllers must be alive, but only {len(live)} are: "
        f"{', '.join(sorted(live))}. Start the others first.",
    )


def _check_majority_without(now: ControllerList, node: str, view: GroupView) -> NoChange | None:
    return _check_majority(replace(now, voters=tuple(v for v in now.voters if v != node), learner=""), view)


def next_step(view: GroupView) -> ControllerList | None:
    """Return the controller list of the next step of the running change. None: there is no change, or it must wait."""
    now = view.now
    if waits_for(view):
        return None
    if now.learner and not _removes_first(now):
        return ControllerList(tuple(sorted((*now.voters, now.learner))), leaving=now.leaving)
    if now.leaving and now.leaving != view.leader:
        return ControllerList(tuple(v for v in now.voters if v != now.leaving), now.learner)
    return None


def _removes_first(now: ControllerList) -> bool:
    """Return whether a replacement removes the old controller before the new one votes, because the group is full."""
    return bool(now.learner and now.leaving) and len(now.voters) >= MAX_CONTROLLERS


def leader_must_transfer(view: GroupView) -> bool:
    """Return whether the running change waits only for the leader, which must transfer its leadership and leave."""
    now = view.now
    return now.leaving == view.leader and (not now.learner or _removes_first(now)) and not waits_for(view)


def waits_for(view: GroupView) -> str:
    """Return what the running change of the controllers waits for, as text. '': it does not wait, or there is no change."""
    now = view.now
    if not (now.learner or now.leaving):
        return ""
    if view.blocked:
        return view.blocked
    if now.learner and now.learner not in view.live:
        return f"{now.learner} is not heard"
    if now.learner and not view.caught_up:
        return f"{now.learner} has not caught up"
    adds = now.learner and not _removes_first(now)
    refused = _check_majority(now, view) if adds else _check_majority_without(now, now.leaving, view)
    return refused.detail if refused is not None else ""
