"""Bugs that the models are to find and that ``tests.simulation.mutants`` has no use for. Each patches shipped code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from liftpy.cluster import codec, election
from liftpy.cluster.decisions import elections
from liftpy.cluster.draft import Draft
from liftpy.replica import lag
from tests.simulation.mutants.catalogue import method

Patches = list[Any]


# ---- replica -----------------------------------------------------------------------------------------------------------
def joins_before_it_has_caught_up() -> Patches:
    """Nor is it looked at whether a member still holds what is committed."""
    may_join = method(lag, "may_join", lambda progress, live, high_watermark, epoch_start: progress.position is not None)
    return [may_join, method(lag, "has_lost", lambda progress, high_watermark: False)]


def two_lead_in_one_epoch() -> Patches:
    """A candidate gets the LeaderEpoch of the leader before."""

    def propose(draft: Draft, partition: Any, candidate: str) -> Any:
        return real(draft, replace(partition), candidate)

    real = election.propose
    return [method(election, "propose", propose), method(Draft, "next_leader_epochs", lambda self, count=1: 1)]


# ---- control -----------------------------------------------------------------------------------------------------------
def fenced_nodes_are_elected() -> Patches:
    return [method(Draft, "is_live", lambda self, node_id: True)]


def one_report_deposes() -> Patches:
    return [method(elections, "_most_have_reported", lambda *args: True)]


def snapshot_forgets_the_complete() -> Patches:
    real = codec.partition_to_pb

    def forget(partition: Any) -> Any:
        return real(replace(partition, passed_over=()))

    return [method(codec, "partition_to_pb", forget)]
