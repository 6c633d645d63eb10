"""Placement: which nodes hold the replicas of a partition. Pure.

``place`` takes the nodes and the wanted partitions, and returns the replicas of each, preferred leader first. Only live
nodes with room are chosen. Each policy has a row in ``POLICIES``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType

from liftpy.core.base.cooperative_apply import Steps, run_to_end
from liftpy.core.metadata.placement.facts import (
    NodeFacts,
    NoRoomError,
    NotEnoughNodesError,
    PlacementError,
    PlacementRequest,
    PlacementResult,
    Policy,
    Replicas,
    sort_by_id,
)
from liftpy.core.metadata.placement.policies import least_loaded, manual, rack, rack_strict, rendezvous, round_robin

DEFAULT_POLICY = "round-robin"
MANUAL = "manual"
NO_RACKS = "no node has a rack: placed round robin"
_MOMENT_HASHES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    place: Policy
    uses_start: bool = False
    """True if the policy continues at the start index of the previous placement. All such policies share one index."""
    weighs: bool = False
    """True if the policy ignores nodes of weight 0."""
    check: Callable[[Sequence[NodeFacts], PlacementRequest], None] | None = None
    """Function that raises PlacementError if the policy cannot place replicas on these nodes. None: no check."""


def _check_racks(nodes: Sequence[NodeFacts], wanted: PlacementRequest) -> None:
    without = [node.node_id for node in nodes if not node.rack]
    if without and len(without) < len(nodes):
        raise PlacementError(
            f"placement {wanted.policy!r}: no rack on {', '.join(without)}: set one for every node, or for none"
        )


def _check_racks_strictly(nodes: Sequence[NodeFacts], wanted: PlacementRequest) -> None:
    _check_racks(nodes, wanted)
    racks = len({node.rack for node in nodes if node.rack})
    if wanted.replication_factor > racks:
        raise PlacementError(
            f"placement {wanted.policy!r}: {wanted.replication_factor} replicas need as many racks, there are {racks}"
        )


POLICIES: MappingProxyType[str, _Row] = MappingProxyType(
    {
        DEFAULT_POLICY: _Row(place=round_robin, uses_start=True),
        "rack": _Row(place=rack, uses_start=True, check=_check_racks),
        "rack-strict": _Row(place=rack_strict, uses_start=True, check=_check_racks_strictly),
        "rendezvous": _Row(place=rendezvous, weighs=True),
        "least-loaded": _Row(place=least_loaded, weighs=True),
    }
)
"""Name -> policy, without ``manual``."""
POLICY_NAMES = (*POLICIES, MANUAL)


def place(nodes: Sequence[NodeFacts], wanted: PlacementRequest) -> PlacementResult:
    """Choose the nodes for the replicas of the ``wanted`` partitions. Return the assignment.

    Raises:
        NotEnoughNodesError: There are fewer nodes than replicas.
        NoRoomError: Too few nodes have room.
        ManualError: The manual assignment is invalid.
        PlacementError: The policy is unknown, or numbers or racks are invalid.
    """
    return run_to_end(place_in_steps(nodes, wanted))


def place_in_steps(nodes: Sequence[NodeFacts], wanted: PlacementRequest) -> Steps[PlacementResult]:
    """Choose the nodes for the replicas of the ``wanted`` partitions, in steps. Return the assignment. Raises as ``place``."""
    if wanted.policy == MANUAL:
        return PlacementResult(replicas=manual(nodes, wanted), next_start=wanted.start)
    candidates = candidates_for(nodes, wanted)
    row = POLICIES[wanted.policy or DEFAULT_POLICY]
    without_racks = wanted.policy == "rack" and not candidates[0].rack
    replicas = yield from _within_budgets(round_robin if without_racks else row.place, row, candidates, wanted)
    next_start = wanted.start + wanted.partitions * row.uses_start
    return PlacementResult(replicas=replicas, next_start=next_start, notes=(NO_RACKS,) if without_racks else ())


def takes_long(nodes: Sequence[NodeFacts], wanted: PlacementRequest) -> bool:
    """Return whether the placement takes so long that it should run in steps, with pauses for other work."""
    return wanted.policy == "rendezvous" and len(nodes) * wanted.partitions > _MOMENT_HASHES


def candidates_for(nodes: Sequence[NodeFacts], wanted: PlacementRequest) -> list[NodeFacts]:
    """Return the nodes from which a policy other than ``manual`` chooses for the partitions ``wanted``, in order.

    Raises as ``place``, except for lack of room. The call is cheap.
    """
    row = POLICIES.get(wanted.policy or DEFAULT_POLICY)
    if row is None:
        raise PlacementError(f"placement {wanted.policy!r} is not known: use one of {', '.join(POLICY_NAMES)}")
    if wanted.partitions <= 0:
        raise PlacementError("partitions must be greater than 0")
    if wanted.replication_factor <= 0:
        raise PlacementError("replication factor must be greater than 0")
    live = [node for node in sort_by_id(nodes) if node.takes]
    if row.weighs:
        wrong = [f"{node.node_id} ({node.weight:g})" for node in live if not (isfinite(node.weight) and node.weight >= 0)]
        if wrong:
            raise PlacementError(
                f"placement {wanted.policy!r}: invalid weight of {', '.join(wrong)}. Use 0 or more (liftpy node set-weight)"
            )
        live = [node for node in live if node.weight > 0]
    if wanted.replication_factor > len(live):
        raise NotEnoughNodesError(wanted.replication_factor - len(live))
    if row.check is not None:
        row.check(live, wanted)
    return live


def _within_budgets(policy: Policy, row: _Row, nodes: list[NodeFacts], wanted: PlacementRequest) -> Steps[list[Replicas]]:
    """Return an assignment in which no node has more replicas than its budget.

    If a node exceeds its budget, place again without this node.
    """
    candidates, full = nodes, list[NodeFacts]()
    while True:
        try:
            if full and wanted.replication_factor > len(candidates):
                raise NotEnoughNodesError(wanted.replication_factor - len(candidates))
            if full and row.check is not None:
                row.check(candidates, wanted)
            replicas = yield from policy(candidates, wanted)
        except PlacementError:
            full = full or [node for node in nodes if node.room(wanted.partitions) < wanted.partitions]
            if not full:
                raise
            raise NoRoomError(_no_room(full)) from None
        counts = Counter(node for partition in replicas for node in partition)
        over = [node for node in candidates if counts[node.node_id] > node.room(counts[node.node_id])]
        if not over:
            return replicas
        full += over
        candidates = [node for node in candidates if node not in over]


def _no_room(full: Sequence[NodeFacts]) -> str:
    some = ", ".join(f"{node.node_id} ({node.replicas} of {node.budget})" for node in full[:4]) + (
        " ..." if len(full) > 4 else ""
    )
    return (
        f"no room: {some} would hold more partitions than their limits of open files are enough for: add nodes, delete "
        "streams, ask for fewer partitions, or raise the limit (ulimit -n, LimitNOFILE) and restart the nodes"
    )
