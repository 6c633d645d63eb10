"""Mutants of replicas that move: what may go when, what a learner counts for, and what is deleted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata.controller import partitions as decisions
from liftpy.core.metadata.controller.reassignment import ReassignmentPlanner
from liftpy.core.replication import leader
from tests.simulation.mutants.bug import Mutant, Patches, decided, method


def a_copy_is_a_replica_at_once() -> Patches:
    """Who has only begun to copy counts: for majorities, in elections, among those who stay."""
    real = decisions.begin_copy

    def begin_copy(builder: Any, request: Any) -> Any:
        changed = builder.change

        def change(stream: Any, partition: PartitionState) -> PartitionState:
            if partition.joining:
                partition = replace(partition, replicas=(*partition.replicas, partition.joining), joining="", copy_epoch=0)
            return changed(stream, partition)  # type: ignore[no-any-return]

        builder.change = change
        return real(builder, request)

    return [decided("beginCopy", begin_copy)]


def an_unwanted_learner_goes_on() -> Patches:
    """Another target, while a copy is made: who copies goes on, and joins though nobody wants it."""
    real = decisions.reassign

    def reassign(builder: Any, request: Any) -> Any:
        found = builder.image.find(request.stream, request.uid, request.partition)
        kept = found[1] if found is not None else None
        changed = builder.change

        def change(stream: Any, partition: PartitionState) -> PartitionState:
            if kept is not None and kept.joining and not partition.joining and kept.joining not in partition.replicas:
                partition = replace(partition, joining=kept.joining, copy_epoch=kept.copy_epoch)
            return changed(stream, partition)  # type: ignore[no-any-return]

        builder.change = change
        return real(builder, request)

    return [decided("reassign", reassign)]


def gone_before_the_learner_has_joined() -> Patches:
    """The one that is not wanted goes as soon as somebody copies its log."""

    def leaving(self: PartitionState) -> str:
        unwanted = [node for node in self.replicas if self.target and node not in self.target]
        return unwanted[-1] if unwanted else ""

    def removable_replica(state: PartitionState, isr: frozenset[str], min_isr: int) -> str:
        return state.leaving if len(isr - {state.leaving}) >= 1 else ""

    return [method(PartitionState, "leaving", property(leaving)), method(leader, "removable_replica", removable_replica)]


def a_target_with_a_dead_member_stays() -> Patches:
    """The planner looks after nodes that a target wants next, and not after those that have joined."""
    return [method(ReassignmentPlanner, "_corrected_targets", lambda self, look, place: iter(()))]


MUTANTS = (
    Mutant("a target with a dead member stays", "L2; found by the whole simulator", a_target_with_a_dead_member_stays, "moves"),
    Mutant("a copy is a replica at once", "C12", a_copy_is_a_replica_at_once, "moves", 2),
    Mutant("an unwanted learner goes on", "L2", an_unwanted_learner_goes_on, "moves"),
    Mutant("gone before the learner has joined", "D24", gone_before_the_learner_has_joined, "moves"),
)
