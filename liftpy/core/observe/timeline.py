"""Events as marks on a timeline with one row per node. Pure.

Events have the form of ``ClusterEvent.as_object``.

The module also groups events that an operator sees as one. For example, after the loss of a node a thousand partitions get
another leader and a shorter ISR.

Algorithm: events that say the same about different partitions form one group, if each is at most ``TOGETHER_NS`` after the
one before. The group is shown at its newest event, even if other events came in between. Important events (an unclean
election, a request) are never grouped. A page that shows groups also offers the single events.

Worked example: n3 led 334 of 1,000 partitions and is fenced. 334 elections and 1,000 ISR changes in four entries of the log
become "334 partitions of 10 streams: n3 -> n1 (167), n2 (167)" and "1,000 partitions of 10 streams: n3 left".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from liftpy.config import NS_PER_S

MARKS = ("unclean", "offline", "fenced", "election", "isr", "restart", "upgrade", "other")
"""Kinds of marks, most severe first. If several marks are at one place, the page shows the most severe one."""
CLUSTER = ""
"""Name of the row for events that belong to no single node."""
MOST_MARKS = 2000
FILTERS = ("kind", "stream", "node")
"""Fields by which a list of events can be filtered."""
_OF = {
    "unclean_election": "unclean",
    "partition_offline": "offline",
    "node_fenced": "fenced",
    "data_directory_lost": "fenced",
    "service_ended": "offline",
    "election": "election",
    "leadership_transfer": "election",
    "isr_changed": "isr",
    "feature_level_changed": "upgrade",
    "nats_lost": "fenced",
    "metadata_leader_lost": "offline",
    "damage_found": "offline",
    "service_blocked": "offline",
    "service_differs": "offline",
    "group_stuck": "offline",
}
TOGETHER_NS = 2 * NS_PER_S
"""Maximum time in ns between two events of a group. An election of thousands of partitions takes several entries of the log."""
SKEW_NS = 60 * NS_PER_S
"""Maximum difference between the clocks of the metadata leader and the leader of the stream of events, in nanoseconds."""
_LEADERS = ("election", "leadership_transfer", "partition_offline")
_Event = dict[str, Any]


def fits(event: Mapping[str, Any], only: Mapping[str, str]) -> bool:
    """Return whether an event passes the filters ``only``: a wanted value for each of ``FILTERS``.

    The value '' for kind or stream lets every event pass.
    """
    if only.get("kind") and event.get("kind") != only["kind"]:
        return False
    if only.get("stream") and event.get("stream") != only["stream"]:
        return False
    return "node" not in only or any(node == only["node"] for node, _ in marks_of(event))


def marks_of(event: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the marks of one event on the timeline as (node, kind of mark). The node is the timeline row of the mark.

    An event may concern several nodes. The node '' is the row of the cluster.
    """
    kind = str(event.get("kind", ""))
    mark = _OF.get(kind, "other")
    was, now = str(event.get("was", "")), str(event.get("now", ""))
    if kind in ("election", "leadership_transfer", "unclean_election"):
        return [(now, mark)]
    if kind == "partition_offline":
        return [(was, mark)]
    if kind == "isr_changed":
        return [(node, mark) for node in sorted(set(was.split()) ^ set(now.split()))]
    if kind == "node_registered":
        return [(str(event.get("node", "")), "upgrade" if was and _version(was) != _version(now) else "restart")]
    return [(str(event.get("node", CLUSTER)), mark)]


def _version(process: str) -> str:
    return process.partition(" of ")[2]


def marks(events: Iterable[Mapping[str, Any]], step: int) -> list[tuple[int, str, str, int]]:
    """Return the newest ``MOST_MARKS`` marks of a timeline as (wall clock in s, node, kind of mark, number of events).

    Marks of one node within ``step`` seconds are combined into the most severe one.
    """
    counts: dict[tuple[int, str], tuple[int, int]] = {}
    for event in events:
        at = int(event.get("time_ns", 0)) // 1_000_000_000 // step * step
        for node, mark in marks_of(event):
            severity, count = counts.get((at, node), (len(MARKS), 0))
            counts[at, node] = min(severity, MARKS.index(mark)), count + 1
    newest = sorted(counts.items())[-MOST_MARKS:]
    return [(at, node, MARKS[severity], count) for (at, node), (severity, count) in newest]


def group_events(events: Iterable[_Event]) -> list[list[_Event]]:
    """Group events that people see as one, such as the elections after the loss of a node.

    Args:
        events: Objects of ``ClusterEvent.as_object``, newest first.

    Returns:
        The groups, newest first. The events in a group are ordered in the same way.
    """
    groups: list[list[_Event]] = []
    newest: dict[tuple[str, ...], list[_Event]] = {}
    for event in events:
        meaning = _group_key(event)
        group = newest.get(meaning) if meaning is not None else None
        if group is not None and group[-1]["time_ns"] - event["time_ns"] <= TOGETHER_NS:
            group.append(event)
            continue
        groups.append([event])
        if meaning is not None:
            newest[meaning] = groups[-1]
    return groups


def summarize_group(group: list[_Event]) -> str:
    """Return a group of events as one line of text. The line does not contain their kind."""
    streams = {str(event["stream"]) for event in group}
    where = next(iter(streams)) if len(streams) == 1 else f"{len(streams):,} streams"
    kind = group[0]["kind"]
    if kind == "isr_changed":
        left, returned_nodes = _changed_members(group[0])
        changes = ", ".join([f"{node} left" for node in left] + [f"{node} is back" for node in returned_nodes])
    else:
        changes = f"{group[0].get('was') or 'none'}"
        if kind != "partition_offline":
            to = Counter(str(event.get("now") or "none") for event in group)
            changes += " -> " + ", ".join(f"{node} ({count:,})" for node, count in sorted(to.items()))
    return f"{len(group):,} partitions of {where}: {changes}{_causes(group)}"


def _causes(group: list[_Event]) -> str:
    details = (str(event.get("detail") or "") for event in group)
    causes = Counter(one.partition(", because ")[2] if one.startswith("epoch ") else one for one in details)
    del causes[""]
    if not causes:
        return ""
    others = len(causes) - 1
    more = f" (and {others:,} other {'cause' if others == 1 else 'causes'})" if others else ""
    return f", because {causes.most_common(1)[0][0]}{more}"


def _group_key(event: _Event) -> tuple[str, ...] | None:
    """Return a key that is equal for events that belong to one group. None: the event is never grouped."""
    kind = str(event.get("kind"))
    if "stream" not in event or "partition" not in event:
        return None
    if kind == "isr_changed":
        left, returned_nodes = _changed_members(event)
        return (kind, " ".join(left), " ".join(returned_nodes))
    return (kind, str(event.get("was") or "")) if kind in _LEADERS else None


def _changed_members(event: _Event) -> tuple[list[str], list[str]]:
    was, now = (set(str(event.get(name) or "").split()) for name in ("was", "now"))
    return sorted(was - now), sorted(now - was)
