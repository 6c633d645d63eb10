"""Events as marks of a timeline with a row for each node: whose row an event belongs to, and as what it is marked. Pure.

Events come as ``ClusterEvent.as_object`` makes them, from whoever keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MARKS = ("unclean", "offline", "fenced", "election", "isr", "restart", "upgrade", "other")
"""Most severe first: where several are at one place, this one is shown."""
CLUSTER = ""
"""The row of what is nobody's alone."""
MOST_MARKS = 2000
FILTERS = ("kind", "stream", "node")
"""By what a list of events may be narrowed."""
_OF = {
    "unclean_election": "unclean",
    "partition_offline": "offline",
    "node_fenced": "fenced",
    "folder_lost": "fenced",
    "service_ended": "offline",
    "election": "election",
    "transfer": "election",
    "isr_changed": "isr",
    "feature_level": "upgrade",
}


def fits(event: Mapping[str, Any], only: Mapping[str, str]) -> bool:
    """Whether an event is of the kind, the stream and the node's row in ``only`` (``FILTERS``; kind and stream '': of any)."""
    if only.get("kind") and event.get("kind") != only["kind"]:
        return False
    if only.get("stream") and event.get("stream") != only["stream"]:
        return False
    return "node" not in only or any(node == only["node"] for node, _ in marks_of(event))


def marks_of(event: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(node, mark) of an event, one for each row that it belongs to; the node '' is the cluster's own row."""
    kind = str(event.get("kind", ""))
    mark = _OF.get(kind, "other")
    was, now = str(event.get("was", "")), str(event.get("now", ""))
    if kind in ("election", "transfer", "unclean_election"):
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
    """(wall clock in s, node, mark, how many): what fell into the same ``step`` s of a row is one, of the most severe mark; the newest
    ``MOST_MARKS``."""
    found: dict[tuple[int, str], tuple[int, int]] = {}
    for event in events:
        at = int(event.get("time_ns", 0)) // 1_000_000_000 // step * step
        for node, mark in marks_of(event):
            severity, count = found.get((at, node), (len(MARKS), 0))
            found[at, node] = min(severity, MARKS.index(mark)), count + 1
    newest = sorted(found.items())[-MOST_MARKS:]
    return [(at, node, MARKS[severity], count) for (at, node), (severity, count) in newest]
