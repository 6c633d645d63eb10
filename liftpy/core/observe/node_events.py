"""Events that a node sees by itself, because no entry of the metadata log tells of them. Pure.

A node keeps its newest ``MOST_KEPT`` events in memory. Readers ask every node and sort the events in between those of the metadata
log. An event has the form of ``ClusterEvent.as_object``. Its ``index`` is the last entry of the metadata log that the node had
applied, and its ``number`` is the wall clock in microseconds. So the numbers of the log's own events are always smaller.

``NodeWatch`` compares a ``NodeSample`` with the one before and makes the events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from liftpy.config import NS_PER_S
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.strict_json import is_count

TEXTS = {
    "nats_lost": "A node lost a connection to NATS. `detail` has the URL and the error.",
    "nats_restored": "All connections of the node to NATS are up again. `detail` has the time without NATS.",
    "metadata_leader_lost": "A controller knows no leader of the metadata group.",
    "metadata_leader_found": "A controller knows a leader of the metadata group again. `detail` has the time without a leader.",
    "damage_found": "A node found damaged bytes in a log and moved the files away.",
    "damage_repaired": "A replica has the records of its damaged files again. `detail` names the offset and the leader that sent them.",
    "service_blocked": "A replicated service cannot apply a record. `detail` has its problem.",
    "service_differs": "The state of a running service differs from another instance, and no majority decides which is right.",
    "group_stuck": "A group has committed nothing for ten minutes while its lag grew.",
    "group_moves": "A group that was stuck commits again.",
    "disk_low": "Less than 15 % of the disk of a node is free.",
    "overloaded": "The buffers of a node for publishes are nearly full, so it rejects publishes.",
    "records_read": "A person read records of a stream in the page of `liftpy dashboard --show-records`. `sender` says who.",
}
"""Kind of an event -> description of the event."""
KINDS = tuple(TEXTS)
MOST_KEPT = 1000
"""Maximum number of events that a node keeps in memory."""
MOST_DETAIL_CHARS = 300
STUCK_S = 600.0
"""Time without a commit after which a group with a growing lag is stuck, in seconds. The alert GroupStuck has the same time."""
SHOWN_S = 600.0
"""Time for which a repair or a lost data directory stays in a summary, in seconds. Their alerts have the same time."""
_SHARE = 0.9
"""Share of the elapsed time by which the lag of a stuck group grows at least."""


class NodeEvents:
    """The newest events of one node.

    Args:
        node: Id of the node.
        wall_ns: Function that returns the wall clock, in nanoseconds since 1970.
        index: Function that returns the index of the last applied entry of the metadata log.
        most: Maximum number of events in memory. Default 1,000.
    """

    def __init__(
        self, node: str, wall_ns: Callable[[], int], index: Callable[[], int] = lambda: 0, most: int = MOST_KEPT
    ) -> None:
        self._node, self._wall_ns, self._index = node, wall_ns, index
        self._held: deque[dict[str, Any]] = deque(maxlen=most)

    def add(self, kind: str, *, key: PartitionKey | None = None, detail: str = "", sender: str = "", stream: str = "") -> None:
        """Add an event to the events of this node, with the current time.

        Args:
            kind: One of ``KINDS``.
            key: Partition that the event concerns. Default None: no partition.
            detail: More about the event.
            sender: Person or program that caused the event.
            stream: Stream that the event concerns, if it concerns no partition.
        """
        time_ns = self._wall_ns()
        number = max(time_ns // 1000, self._held[-1]["number"] + 1 if self._held else 0)
        moment = datetime.fromtimestamp(time_ns // 1_000_000 / 1000, UTC).isoformat(timespec="milliseconds")
        where = {"stream": key.stream, "partition": key.partition} if key is not None else {"stream": stream} if stream else {}
        texts = {"sender": sender, "detail": detail[:MOST_DETAIL_CHARS]}
        self._held.append(
            {
                "index": self._index(),
                "number": number,
                "time": moment.replace("+00:00", "Z"),
                "time_ns": time_ns,
                "kind": kind,
                "node": self._node,
                **where,
                **{name: text for name, text in texts.items() if text},
            }
        )

    def after(self, number: int, since_ns: int, limit: int) -> dict[str, Any]:
        """Return the node's answer to a request for its events: the next ``limit`` events, and whether there are more.

        The events have a number above ``number``, and are not older than ``since_ns`` (wall clock in ns since 1970).
        """
        later = (one for one in self._held if one["number"] > number and one["time_ns"] >= since_ns)
        events = list(islice(later, limit + 1))
        return {"events": events[:limit], "more": len(events) > limit}

    def recent(self, kind: str, within_s: float) -> list[dict[str, Any]]:
        since_ns = self._wall_ns() - round(within_s * NS_PER_S)
        return [one for one in self._held if one["kind"] == kind and one["time_ns"] >= since_ns]


def checked_event(event: Any) -> dict[str, Any] | None:
    """Check ``event``, an event from another node. Return it with only the known fields, or None if it is invalid."""
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str) or event["kind"] not in TEXTS:
        return None
    numbers: dict[str, Any] = {name: event.get(name) for name in ("index", "number", "time_ns")}
    if not all(is_count(one) and one >= 0 for one in numbers.values()):
        return None
    texts = {name: event[name] for name in ("node", "stream", "sender", "detail", "time") if name in event}
    if not all(isinstance(text, str) and len(text) <= MOST_DETAIL_CHARS for text in texts.values()) or "time" not in texts:
        return None
    partition = {"partition": event["partition"]} if is_count(event.get("partition")) else {}
    return {**numbers, "kind": event["kind"], **texts, **partition}


def checked_events(said: Any) -> list[dict[str, Any]]:
    """Return the valid events in ``said``, the answer of another node to a request for its events."""
    found = said.get("events") if isinstance(said, dict) else None
    return [kept for one in (found if isinstance(found, list) else []) if (kept := checked_event(one)) is not None]


@dataclass(frozen=True, slots=True)
class Damage:
    """Damaged files of a replica that the node repairs with records of the leader.

    ``offset``: first damaged offset, -1 if unknown. ``source``: node of the leader that sends the records.
    """

    offset: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSample:
    """State of a node at one moment, as input of ``NodeWatch``."""

    now_s: float
    """Monotonic time, in seconds."""
    nats_problem: str = ""
    """URL and error of the connection to NATS. '': all connections are up."""
    is_controller: bool = False
    metadata_leader: str = ""
    """Leader of the metadata group that the node knows. '': none."""
    groups: Mapping[str, tuple[int, float]] | None = None
    """Group -> (lag in records, lag in seconds), for the groups that the node coordinates. None: not measured again."""
    damage: Mapping[PartitionKey, Damage] = field(default_factory=dict)
    """Replicas of the node that still have damaged files."""
    blocked: Mapping[tuple[PartitionKey, str], str] = field(default_factory=dict)
    """(Partition, service) -> problem of a blocked service."""
    differing: Mapping[tuple[PartitionKey, str], str] = field(default_factory=dict)
    """(Partition, service) -> difference between the state of a running service and other instances."""
    is_disk_low: bool = False
    is_overloaded: bool = False


@dataclass(slots=True)
class _Progress:
    """Progress of one consumer group, to find groups that are stuck. Times are monotonic seconds.

    ``since_s``: time of its last commit. ``records``: its lag at that time.
    """

    at_s: float
    lag_s: float
    since_s: float
    records: int
    is_stuck: bool = False


class NodeWatch:
    """Compares the state of a node with its state before, and adds an event for each change.

    Args:
        events: Receiver of the events.
        stuck_s: Time without a commit after which a group is stuck, in seconds. Default 600.
        leader_of: Function that returns the leader of a partition, '' for this node. Default: no leader is known.
    """

    def __init__(
        self, events: NodeEvents, stuck_s: float = STUCK_S, leader_of: Callable[[PartitionKey], str] = lambda _: ""
    ) -> None:
        self.events = events
        self._leader_of = leader_of
        self.leaderless_since = ""
        """UTC time at which the controller lost the metadata leader, such as ``12:03:10``. '': it knows a leader."""
        self._stuck_s = stuck_s
        self._nats_lost_s: float | None = None
        self._leaderless_s: float | None = None
        self._groups: dict[str, _Progress] = {}
        self._damage: dict[PartitionKey, Damage] = {}
        self._before = NodeSample(now_s=0.0)
        self._had_leader = False

    @property
    def damaged_count(self) -> int:
        return len(self._damage)

    @property
    def differing_services(self) -> list[str]:
        return [f"{key}: {service}: {problem}" for (key, service), problem in self._before.differing.items()]

    @property
    def stuck_groups(self) -> list[str]:
        stuck = ((name, one) for name, one in sorted(self._groups.items()) if one.is_stuck)
        return [f"{name} has committed nothing for {one.at_s - one.since_s:.0f} s, and its lag grows" for name, one in stuck]

    def sampled(self, sample: NodeSample, moment: datetime) -> None:
        """Compare the new ``sample`` of the node's state with the one before, and add an event for each change."""
        before, self._before = self._before, sample
        self._nats(sample)
        self._metadata(sample, moment)
        if sample.groups is not None:
            self._check_groups(sample.groups, sample.now_s)
        self._check_damage(sample)
        for kind, problems, known in (
            ("service_blocked", sample.blocked, before.blocked),
            ("service_differs", sample.differing, before.differing),
        ):
            for (key, service), problem in problems.items():
                if (key, service) not in known:
                    self.events.add(kind, key=key, detail=f"{service}: {problem}" if problem else service)
        for kind, is_now, was in (
            ("disk_low", sample.is_disk_low, before.is_disk_low),
            ("overloaded", sample.is_overloaded, before.is_overloaded),
        ):
            if is_now and not was:
                self.events.add(kind)

    def _nats(self, sample: NodeSample) -> None:
        if sample.nats_problem and self._nats_lost_s is None:
            self._nats_lost_s = sample.now_s
            self.events.add("nats_lost", detail=sample.nats_problem)
        elif not sample.nats_problem and self._nats_lost_s is not None:
            self.events.add("nats_restored", detail=f"after {sample.now_s - self._nats_lost_s:.0f} s")
            self._nats_lost_s = None

    def _metadata(self, sample: NodeSample, moment: datetime) -> None:
        self._had_leader = self._had_leader or bool(sample.metadata_leader)
        if sample.is_controller and not sample.metadata_leader and self._leaderless_s is None and self._had_leader:
            self._leaderless_s, self.leaderless_since = sample.now_s, f"{moment:%H:%M:%S}"
            self.events.add("metadata_leader_lost")
        elif sample.metadata_leader and self._leaderless_s is not None:
            self.events.add(
                "metadata_leader_found", detail=f"{sample.metadata_leader} after {sample.now_s - self._leaderless_s:.0f} s"
            )
            self._leaderless_s, self.leaderless_since = None, ""

    def _check_groups(self, groups: Mapping[str, tuple[int, float]], now_s: float) -> None:
        self._groups = {name: one for name, one in self._groups.items() if name in groups}
        for name, (records, lag_s) in groups.items():
            known = self._groups.setdefault(name, _Progress(now_s, lag_s, now_s, records))
            has_committed = not records or lag_s < known.lag_s + _SHARE * (now_s - known.at_s)
            if has_committed and now_s > known.at_s:
                if known.is_stuck:
                    self.events.add("group_moves", detail=name)
                known.since_s, known.records, known.is_stuck = now_s, records, False
            elif not known.is_stuck and now_s - known.since_s >= self._stuck_s and records > known.records:
                known.is_stuck = True
                self.events.add("group_stuck", detail=f"{name}: lag {records:,} records, {lag_s:.0f} s")
            known.at_s, known.lag_s = now_s, lag_s

    def _check_damage(self, sample: NodeSample) -> None:
        for key, damage in sample.damage.items():
            if key not in self._damage:
                self.events.add("damage_found", key=key, detail=_at(damage.offset))
            known = self._damage.get(key, damage)
            self._damage[key] = Damage(known.offset, damage.source or known.source)
        for key in [key for key in self._damage if key not in sample.damage]:
            damage = self._damage.pop(key)
            leader = damage.source or self._leader_of(key)  # it may have become the leader since the last sample
            source = f"from {leader}" if leader else ""
            self.events.add("damage_repaired", key=key, detail=" ".join(part for part in (_at(damage.offset), source) if part))


def _at(offset: int) -> str:
    return f"offset {offset}" if offset >= 0 else ""


def repair_texts(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return texts about repaired files for the summary of a node. ``events``: events of the kind ``damage_repaired``."""
    return [f"repaired {one['stream']}/{one['partition']} {one.get('detail', '')} on {one['node']}" for one in events]
