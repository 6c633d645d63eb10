"""Summarizes the health of a cluster in one word with reasons, from the summaries of its nodes. Pure.

``DATA UNAVAILABLE``: some partitions cannot be published to or read. ``DEGRADED``: all partitions work, and an operator has
something to repair. Reasons come most severe first. Each one names its runbook.

The module also names the problem of one partition and its urgency, so that lists of partitions begin with the most urgent.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from liftpy.config import StreamConfig
from liftpy.core.base.partition import PartitionState, PartitionStatus, Pause
from liftpy.core.observe.node_summary import DRAINED, FENCED, NodeSummary

OK, DEGRADED, UNAVAILABLE = "OK", "DEGRADED", "DATA UNAVAILABLE"
DISK_LOW = 0.15
"""Free share of a disk below which an operator should act."""
QUEUED_HIGH = 0.8
"""Share of a node's memory limit for publishes above which the node rejects some publishes."""
MOST_NAMED = 5


class Reason(NamedTuple):
    """A reason why the cluster is not healthy. ``runbook``: name of its page in docs/runbooks, without ``.md``."""

    stops: bool
    """True if some partition cannot be published to or read."""
    text: str
    runbook: str


@dataclass(frozen=True, slots=True)
class ClusterVerdict:
    """Health of a cluster: ``word`` is one of three, ``reasons`` explain it."""

    word: str
    reasons: tuple[Reason, ...]


def judge(glances: Mapping[str, NodeSummary | None]) -> ClusterVerdict:
    """Return the health of the cluster. ``glances``: node -> its summary, None if it did not answer."""
    said = [glance for glance in glances.values() if glance is not None]
    reasons = [*_cluster(said), *_nodes(glances, said)] if said else [Reason(True, "no node answers", "node-down")]
    ordered = tuple(sorted(reasons, key=lambda reason: not reason.stops))
    word = OK if not ordered else UNAVAILABLE if ordered[0].stops else DEGRADED
    return ClusterVerdict(word, ordered)


def states(glances: Mapping[str, NodeSummary | None]) -> dict[str, str]:
    """Return node -> live, fenced, drained or silent, as the controller with the newest metadata reports it."""
    controllers = [glance for glance in glances.values() if glance is not None and glance.nodes]
    known = max(controllers, key=lambda glance: glance.index).nodes if controllers else {}
    found = {node: known.get(node, "live" if glance is not None else "silent") for node, glance in glances.items()}
    for node, state in known.items():
        found.setdefault(node, state)
    return {node: "silent" if state == "live" and glances.get(node) is None else state for node, state in found.items()}


def leader_of(glances: Mapping[str, NodeSummary | None]) -> str:
    """Return the node that reports itself as metadata leader, '' for none."""
    return next((node for node, glance in sorted(glances.items()) if glance is not None and glance.metadata_leader == node), "")


def _cluster(said: list[NodeSummary]) -> Iterable[Reason]:
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
        yield Reason(True, f"{_count(short, 'partition')} under min_isr: nothing is acknowledged there", "under-min-isr")
    if under := sum(glance.under_replicated for glance in said):
        yield Reason(False, f"{_count(under, 'partition')} with replicas out of sync", "under-replicated")


def _nodes(glances: Mapping[str, NodeSummary | None], said: list[NodeSummary]) -> Iterable[Reason]:
    of = states(glances)
    for state, runbook in ((FENCED, "node-down"), ("silent", "node-down")):
        if names := sorted(node for node, one in of.items() if one == state):
            yield Reason(False, f"{state}: {_named(names)}", runbook)
    for text, runbook, found in (
        ("NATS is away from part of", "bus-flapping", [one.node for one in said if not one.nats_connected]),
        ("logs have failed on", "partition-failed", [one.node for one in said if one.failed]),
        ("services stand still on", "service-failing", [one.node for one in said if one.services_blocked]),
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


PROBLEMS = ("damaged", "offline", "electing", "under min_isr", "under-replicated", "moving", "paused", "")
"""Problems of a partition, the most urgent first. The last one means that the partition has no problem."""
FINE = len(PROBLEMS) - 1
MOST_ROWS = 500
"""Maximum number of rows in one answer, and on one page."""
MOST_MATCH = 200
"""Maximum number of characters of a search text."""
Place = tuple[int, str, int]
"""(urgency, stream, partition). Lists of partitions are sorted by it."""
FIRST: Place = (-1, "", -1)
"""The place before all partitions."""


def urgency(state: PartitionState | None, config: StreamConfig, *, failed: bool = False) -> int:
    """Return the index of the partition's problem in ``PROBLEMS``.

    ``state`` None: the metadata of the partition is not known. ``failed``: the log on this node is unusable.
    """
    if failed:
        return 0
    if state is None:
        return FINE
    if state.status is not PartitionStatus.ONLINE:
        return 1 if state.status is PartitionStatus.OFFLINE else 2
    members = len(state.isr)
    if members < state.min_isr(config):
        return 3
    if members < len(state.replicas):
        return 4
    if state.target or state.joining:
        return 5
    return FINE if state.pause is Pause.NOT_PAUSED else 6


def why_offline(stream: str, partition: int, status: str, isr: Iterable[str], incomplete: Container[str]) -> str:
    """Return why a partition waits for an operator, and the command for it. '': the partition does not wait.

    A partition waits if its last in-sync replicas came back without some records that they had acknowledged [C10].
    """
    lacking = [node for node in isr if node in incomplete]
    if status != PartitionStatus.OFFLINE.name or not lacking:
        return ""
    return (
        f"{stream}/{partition} waits for an operator: {', '.join(lacking)} may have lost acknowledged records. "
        f"If they can't be put back: liftpy partition elect {stream} {partition} --node {lacking[0]} --unclean"
    )


def partitions_question(stream: str = "", after: Place = FIRST, limit: int = MOST_ROWS) -> dict[str, Any]:
    """Return the request for the partitions of a node after the place ``after``.

    ``stream``: only the partitions of this stream.
    """
    return {"partitions": {"stream": stream, "after": list(after), "limit": limit}}


def streams_question(after: tuple[int, str] = (-1, ""), limit: int = MOST_ROWS, match: str = "") -> dict[str, Any]:
    """Return the request for the streams of the cluster after ``after``, an (urgency, name).

    ``match``: only streams that have this text in their name or subject.
    """
    return {"streams": {"after": list(after), "limit": limit, **({"match": match} if match else {})}}


def place_of(said: object) -> Place:
    """Return the place in a request. Raises ValueError if it is invalid."""
    match said:
        case [int(rank), str(stream), int(partition)] if -1 <= rank <= FINE and -1 <= partition < 1 << 31:
            return rank, stream, partition
    raise ValueError("Invalid parameter after. Use [urgency, stream, partition].")


def match_in(said: Mapping[str, Any]) -> str:
    """Return the search text in a request, in lower case. Raises ValueError if it is invalid."""
    match = said.get("match", "")
    if not isinstance(match, str) or len(match) > MOST_MATCH:
        raise ValueError(f"Invalid parameter match. Use a text of at most {MOST_MATCH} characters.")
    return match.lower()


def limit_of(said: object) -> int:
    """Return the limit in a request. Raises ValueError if it is out of range."""
    if type(said) is int and 1 <= said <= MOST_ROWS:
        return said
    raise ValueError(f"Invalid parameter limit. Use 1 to {MOST_ROWS}.")
