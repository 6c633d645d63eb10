"""Summary of a node: a few numbers from the same values as its metrics, in about 1 KiB. Pure.

Counts only grow while a process lives. The viewer computes rates and percentiles from two summaries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from liftpy.core.base.instruments import LATENCY_S
from liftpy.core.base.strict_json import is_count

ASKED = b'{"glance": true}'
"""Payload of a request for the summary on ``<ns>.status.<node>``."""
MOST_ENDED, MOST_ENDED_CHARS = 3, 160
"""Maximum number of ended services in a summary, and of characters for each."""
MOST_SUSPECT, MOST_SUSPECT_CHARS = 3, 400
"""Maximum number of partitions that wait for an operator in a summary, and of characters for each."""
MOST_TEXTS, MOST_TEXT_CHARS = 3, 200
"""Maximum number of texts about streams, groups, repairs, data directories or services, and of characters for each."""
MOST_NODES = 64
"""Maximum number of nodes that a controller lists."""
LIVE, FENCED, DRAINED = "live", "fenced", "drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSummary:
    """Summary of one node. Values that an older version does not send have their defaults."""

    node: str
    version: str = ""
    incarnation: int = 0
    uptime_s: float = 0.0
    is_controller: bool = False
    metadata_leader: str = ""
    """Metadata leader that this node knows."""
    applied: int = 0
    """Index up to which this node has applied the metadata group's log."""
    feature_level: int = 0
    """Feature level of the cluster that this node knows."""
    speaks: int = 0
    """The highest feature level that this version supports."""
    nats_connected: bool = True
    nats_problem: str = ""
    """URL and error of the connection to NATS that is down. '': all connections are up."""
    leaderless_since: str = ""
    """Controllers: UTC time at which they lost the metadata leader, such as ``12:03:10``. '': they know a leader."""
    records_in: int = 0
    """Number of records appended as leader."""
    bytes_in: int = 0
    records_out: int = 0
    """Number of records sent to readers."""
    bytes_out: int = 0
    acks: tuple[int, ...] = ()
    """Number of acks by the time that they took: one per bucket of ``LATENCY_S``, and one for longer times."""
    loop_lag: tuple[int, ...] = ()
    """Number of measured delays of the event loop, by the same buckets as ``acks``."""
    leads: int = 0
    replicas: int = 0
    """Number of replicas on this node, including those that lead."""
    under_replicated: int = 0
    at_min_isr: int = 0
    under_min_isr: int = 0
    failed: int = 0
    services_blocked: int = 0
    damaged: int = 0
    """Number of replicas with damaged files that are not repaired yet."""
    repairs: tuple[str, ...] = ()
    """Repairs of the last ten minutes, as texts."""
    stuck_groups: tuple[str, ...] = ()
    """Groups of this node that commit nothing while their lag grows, as texts."""
    services_ended: int = 0
    services_diverged: int = 0
    """Number of ended services whose state differed from that of the other instances."""
    differing_services: tuple[str, ...] = ()
    """Running services whose state differs from another instance, as texts. No majority decides which state is right."""
    ended_services: tuple[str, ...] = ()
    """First ``MOST_ENDED`` ended services with their reasons, in at most ``MOST_ENDED_CHARS`` characters."""
    lag_records: int = 0
    lag_s: float = 0.0
    """Largest lag of the partitions that this node leads, in seconds."""
    disk_free: float = 1.0
    """Free share of the disk, 0 to 1."""
    queued: float = 0.0
    """Used share of the node's memory limit for publishes, 0 to 1."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Controllers: node -> live, fenced or drained. The first ``MOST_NODES`` by name."""
    index: int = 0
    """Controllers: index of the metadata group's log for which the following values are known."""
    streams: int = 0
    offline: int = 0
    suspect_partitions: tuple[str, ...] = ()
    """First ``MOST_SUSPECT`` offline partitions that wait for an operator, with the reason, in at most
    ``MOST_SUSPECT_CHARS``.
    """
    waiting_streams: tuple[str, ...] = ()
    """Controllers: streams that wait for nodes, with the reason."""
    lost_directories: tuple[str, ...] = ()
    """Controllers: nodes that came back with another data directory in the last ten minutes."""
    electing: int = 0
    elections: int = 0
    """Number of elections since this controller started."""
    term: int = 0
    """Term of the metadata leader's leadership."""
    members: Mapping[str, int] = field(default_factory=dict)
    """On the metadata leader: controller -> number of entries that it is behind. -1: it is not connected."""

    def encode(self) -> bytes:
        """Return the summary as JSON bytes. Fields with their default values are left out."""
        values = {name: value for name, value in asdict(self).items() if name == "node" or value != _DEFAULTS[name]}
        return json.dumps({"glance": values}, separators=(",", ":")).encode()


_MAPPINGS: dict[str, type] = {"nodes": str, "members": int}
"""Field that is a mapping -> type of its values."""


_TEXTS = {
    "ended_services": (MOST_ENDED, MOST_ENDED_CHARS),
    "suspect_partitions": (MOST_SUSPECT, MOST_SUSPECT_CHARS),
    **dict.fromkeys(
        ("repairs", "stuck_groups", "waiting_streams", "lost_directories", "differing_services"), (MOST_TEXTS, MOST_TEXT_CHARS)
    ),
}
"""Field -> (maximum number of texts, maximum characters of each)."""


_DEFAULTS: dict[str, Any] = {one.name: {} if one.name in _MAPPINGS else one.default for one in fields(NodeSummary)}


def summary_from_json(document: object) -> NodeSummary | None:
    """Return the summary in ``document``, a node's answer as decoded JSON. None: it is invalid. Unknown fields are ignored."""
    values: dict[str, Any] = {}
    if not isinstance(document, dict):
        return None
    for name, value in document.items():
        if name in _DEFAULTS and (valid_value := _checked_value(name, value)) is not None:
            values[name] = valid_value
    return NodeSummary(**values) if values.get("node") else None


def _checked_value(name: str, value: Any) -> Any:
    """Return ``value`` if the field ``name`` of a summary may have it, otherwise None. Too long lists of texts are shortened."""
    default = _DEFAULTS[name]
    if name in _MAPPINGS:
        good = (
            isinstance(value, dict) and len(value) <= MOST_NODES and all(type(one) is _MAPPINGS[name] for one in value.values())
        )
        good = good and (_MAPPINGS[name] is not int or all(map(is_count, value.values())))
        return value if good else None
    if name == "node" or isinstance(default, str):
        return value if isinstance(value, str) else None
    if name in _TEXTS:
        most, chars = _TEXTS[name]
        good = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return tuple(one[:chars] for one in value[:most]) if good else None
    if isinstance(default, tuple):
        good = isinstance(value, list) and len(value) <= len(LATENCY_S) + 1 and all(map(is_count, value))
        return tuple(value) if good else None
    if isinstance(default, bool):
        return value if type(value) is bool else None
    kinds = (int,) if type(default) is int else (int, float)
    return value if type(value) in kinds and value >= 0 and (type(value) is float or is_count(value)) else None


def percentile(counts: Sequence[int], part: float, bounds: Sequence[float] = LATENCY_S) -> float | None:
    """Return the percentile ``part`` (0 to 1) of a histogram in s, estimated as Prometheus does. None: the counts are all 0.

    ``counts``: number of values in each bucket. ``bounds``: upper bounds of the buckets in s.
    """
    wanted, below = sum(counts) * part, 0
    if not wanted:
        return None
    for number, count in enumerate(counts[: len(bounds)]):
        if count and below + count >= wanted:
            low = bounds[number - 1] if number else 0.0
            return low + (bounds[number] - low) * (wanted - below) / count
        below += count
    return bounds[-1]
