"""One word for a cluster, and why: from what its nodes say at a glance. Pure.

``DATA UNAVAILABLE``: somewhere nothing can be published or read now. ``DEGRADED``: all can, and something is to be done. Reasons come
most severe first; each names its runbook.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from liftpy.dataclass import dataclass
from liftpy.glance import DRAINED, FENCED, Glance

OK, DEGRADED, UNAVAILABLE = "OK", "DEGRADED", "DATA UNAVAILABLE"
DISK_LOW = 0.15
"""Part of a disk: with less of it free, somebody should act."""
QUEUED_HIGH = 0.8
"""Part of what a node may hold of publishes: from there on it refuses some."""
MOST_NAMED = 5


class Reason(NamedTuple):
    """``runbook``: the page below docs/runbooks, without ``.md``."""

    stops: bool
    """Whether somewhere nothing can be published or read."""
    text: str
    runbook: str


@dataclass(frozen=True, slots=True)
class ClusterVerdict:
    """``word``: one of three."""

    word: str
    reasons: tuple[Reason, ...]


def judge(glances: Mapping[str, Glance | None]) -> ClusterVerdict:
    """Node -> what it says; None: it does not answer."""
    said = [glance for glance in glances.values() if glance is not None]
    reasons = [*_cluster(said), *_nodes(glances, said)] if said else [Reason(True, "no node answers", "node-down")]
    ordered = tuple(sorted(reasons, key=lambda reason: not reason.stops))
    word = OK if not ordered else UNAVAILABLE if ordered[0].stops else DEGRADED
    return ClusterVerdict(word, ordered)


def states(glances: Mapping[str, Glance | None]) -> dict[str, str]:
    """Node -> live, fenced, drained, or silent; what the newest controller knows, and who answers nothing."""
    controllers = [glance for glance in glances.values() if glance is not None and glance.nodes]
    known = max(controllers, key=lambda glance: glance.index).nodes if controllers else {}
    found = {node: known.get(node, "live" if glance is not None else "silent") for node, glance in glances.items()}
    for node, state in known.items():
        found.setdefault(node, state)
    return {node: "silent" if state == "live" and glances.get(node) is None else state for node, state in found.items()}


def leader_of(glances: Mapping[str, Glance | None]) -> str:
    """Who leads the metadata group: itself says so; '' where nobody does."""
    return next((node for node, glance in sorted(glances.items()) if glance is not None and glance.metadata_leader == node), "")


def _cluster(said: list[Glance]) -> Iterable[Reason]:
    if not any(glance.metadata_leader == glance.node for glance in said):
        yield Reason(
            True,
            "nobody leads the metadata group: leaders lose their leases, and nothing is acknowledged",
            "no-metadata-leader",
        )
    controllers = [glance for glance in said if glance.is_controller]
    newest = max(controllers, key=lambda glance: glance.index, default=None)
    if newest is not None and newest.offline:
        yield Reason(True, f"{_count(newest.offline, 'partition')} offline: no replica may lead", "partitions-offline")
    for why in newest.suspect_partitions if newest is not None else ():
        yield Reason(True, why, "partitions-offline")
    if newest is not None and newest.electing:
        yield Reason(
            True, f"{_count(newest.electing, 'partition')} without a leader: an election is under way", "failover-slow"
        )
    if short := sum(glance.under_min_isr for glance in said):
        yield Reason(True, f"{_count(short, 'partition')} under min.isr: nothing is acknowledged there", "under-min-isr")
    if under := sum(glance.under_replicated for glance in said):
        yield Reason(False, f"{_count(under, 'partition')} with replicas out of sync", "under-replicated")


def _nodes(glances: Mapping[str, Glance | None], said: list[Glance]) -> Iterable[Reason]:
    of = states(glances)
    for state, runbook in ((FENCED, "node-down"), ("silent", "node-down")):
        if names := sorted(node for node, one in of.items() if one == state):
            yield Reason(False, f"{state}: {_named(names)}", runbook)
    for text, runbook, found in (
        ("NATS is away from part of", "bus-flapping", [one.node for one in said if not one.nats_connected]),
        ("logs have failed on", "partition-failed", [one.node for one in said if one.failed]),
        ("services stand still on", "service-failing", [one.node for one in said if one.services_failing]),
        ("services have ended on", "service-ended", [one.node for one in said if one.services_ended]),
        ("the disk is nearly full on", "disk-full", [one.node for one in said if one.disk_free < DISK_LOW]),
        ("publishes are refused by", "overloaded", [one.node for one in said if one.queued >= QUEUED_HIGH]),
    ):
        if found:
            why = next((w for one in said if runbook == "service-ended" for w in one.ended_services), "")
            yield Reason(False, f"{text} {_named(sorted(found))}" + (f": {why}" if why else ""), runbook)
    versions = {one.version for one in said if one.version and of.get(one.node) != DRAINED}
    if len(versions) > 1:
        yield Reason(False, f"versions are mixed: {_named(sorted(versions))}", "versions-mixed")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _named(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
