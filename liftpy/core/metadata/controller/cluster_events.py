"""Cluster events: what happened in the cluster, in the order of the metadata log, and who requested it. Pure.

Each controller derives equal events from the metadata log, and keeps the newest ones in memory. (``index``, ``number``)
identifies an event on every controller, so a reader can continue at another controller. Every request of an operator
that reaches the log is an event, even if it is rejected there. A request that is rejected before the log is not an
event. The controller that rejects it logs and counts it.

``EventLog`` decides which events to write to the stream ``_liftpy-events`` next, each once and in order. It reads the
last record of the stream and writes the events after it. Each publish names the offset that it expects. So a second
writer is rejected, and reads the end again. If events leave the memory before they are written, one event ``gap``
replaces them.

Example: the stream ends at offset 41 with event (907, 1). The memory holds (907, 0..2) and (911, 0). The leader
publishes (907, 2) after offset 41 and (911, 0) after 42. Both are rejected, because another leader was faster. It reads
the end again: offset 43 with event (911, 0). Nothing is left to write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any

from google.protobuf.message import DecodeError

from liftpy.config import NS_PER_S
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.base.strict_json import load_json, whole_number
from liftpy.core.metadata.controller.requests import RequesterKind, changes_nothing, kind_of
from liftpy.core.metadata.controller.streams import why_it_waits
from liftpy.core.metadata.image import ClusterImage, NodeImage
from liftpy.core.metadata.records import (
    ControllersChanged,
    DefaultQuotaSet,
    FeatureLevelSet,
    NodeChanged,
    NodeRemoved,
    PartitionsAdded,
    PartitionStateChanged,
    Record,
    SessionTimesSet,
    StreamAltered,
    StreamCreated,
    StreamDeleted,
)
from liftpy.core.wire._pb import cluster_pb2 as pb

TEXTS = {
    "request": "An operator asked for a change. `outcome` says whether it was done or rejected.",
    "election": "A partition got a new leader, because the old one failed.",
    "leadership_transfer": "A leader transferred its leadership to another in-sync replica.",
    "unclean_election": "An operator elected a leader that may lack committed records.",
    "partition_offline": "A partition has no replica that may lead.",
    "isr_changed": "A replica left or joined the ISR of a partition.",
    "replicas_changed": "A partition got other replicas.",
    "pause_changed": "A partition was paused or resumed.",
    "stream_created": "A stream was created.",
    "stream_deleted": "A stream was deleted.",
    "stream_altered": "Settings of a stream were changed.",
    "partitions_added": "A stream got more partitions.",
    "node_registered": "A node started and registered.",
    "node_fenced": "A node sent no heartbeat for the session time. Its partitions get other leaders.",
    "node_unfenced": "A fenced node sends heartbeats again.",
    "node_drain_started": "An operator started to drain a node.",
    "node_drain_cancelled": "An operator stopped draining a node.",
    "node_changed": "The weight or rack of a node was changed.",
    "node_removed": "A stopped node was removed from the cluster.",
    "data_directory_lost": "A node came back with another data directory.",
    "controllers_changed": "A controller was added, removed or replaced.",
    "feature_level_changed": "The feature level of the cluster was changed.",
    "default_quota_changed": "The default quota of streams was changed.",
    "session_times_changed": "The session or lease time of the cluster was changed.",
    "service_ended": "A replicated service ended without being stopped.",
    "data_loss": "The metadata group was rebuilt from one controller and may lack decisions.",
    "gap": "Events were lost before they were written to the stream.",
}
"""Kind of an event -> description of the event."""
KINDS = tuple(kind for kind in TEXTS if kind != "gap")
MOST_EVENTS = 10_000
"""Number of events that a controller keeps."""
MOST_NOTED = 4096
"""Maximum number of log entries that wait until their events are derived."""
MOST_DETAIL_CHARS = 300
_ERRORS = pb.ControlResponse.Error
_Found = tuple[str, dict[str, Any]]
GAP = "gap"
NOTHING = (0, -1)
"""Place before all events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEvent:
    """One event in the cluster, such as an election. Fields that do not apply are empty."""

    index: int
    """Index of the metadata log entry."""
    number: int
    """Number of the event within the entry, from 0."""
    time_ns: int
    """Wall clock of the metadata leader when it proposed the entry, in nanoseconds since 1970."""
    kind: str
    """Kind of the event."""
    stream: str = ""
    """Name of the stream. '': the event concerns no stream."""
    partition: int = -1
    """Number of the partition. -1: the event concerns no partition."""
    node: str = ""
    """Id of the node. '': the event concerns no node."""
    was: str = ""
    """Value before the event: the leader, the ISR, the controllers or the setting."""
    now: str = ""
    """Value after the event."""
    request: str = ""
    """Name of the request (kind `request`)."""
    sender: str = ""
    """Principal that sent the request. '': the NATS permissions name none, or the request came from the metadata leader itself."""
    operation_id: str = ""
    """Operation id of the request. A repeated request has the same id."""
    outcome: str = ""
    """Result of the request: `done` or `rejected`."""
    error: str = ""
    """Error code of a rejected request."""
    detail: str = ""
    """More about the event, as text of at most 300 characters."""

    @property
    def place(self) -> tuple[int, int]:
        """Position of the event as (index, number). Later events have higher positions."""
        return self.index, self.number

    def as_object(self) -> dict[str, Any]:
        """Return the event as a JSON object without empty fields. ``time`` is UTC, RFC 3339, in milliseconds."""
        moment = datetime.fromtimestamp(self.time_ns // 1_000_000 / 1000, UTC).isoformat(timespec="milliseconds")
        values = {
            one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("index", "number", "time_ns", "kind")
        }
        shown = {name: value for name, value in values.items() if value not in ("", -1)}
        return {
            "index": self.index,
            "number": self.number,
            "time": moment.replace("+00:00", "Z"),
            "time_ns": self.time_ns,
            "kind": self.kind,
            **shown,
        }


def data_loss(index: int, time_ns: int, detail: str) -> ClusterEvent:
    """Return the event that reports a metadata group that was rebuilt at ``index``. The group may lack decisions.

    ``time_ns``: wall clock of the event. ``detail``: text for operators.
    """
    return ClusterEvent(index=index, number=0, time_ns=time_ns, kind="data_loss", detail=detail)


def event_text(event: dict[str, Any], *, named: bool = True) -> str:
    """Return one line of text for ``event``, an object from ``as_object``. ``named`` True: the line begins with the kind."""
    what = str(event.get("kind", "?")) if named else ""
    if "stream" in event:
        where = f"{event['stream']}/{event['partition']}" if "partition" in event else str(event["stream"])
    else:
        where = str(event.get("node", ""))
    change = f"{event.get('was') or 'none'} -> {event.get('now') or 'none'}" if "was" in event or "now" in event else ""
    if event.get("kind") == "request":
        what, where = f"{event.get('request')} {event.get('outcome')}", where or "the cluster"
        change = f"by {event.get('sender') or 'an unauthenticated sender'}" + (
            f", {event['error']}" if "error" in event else ""
        )
    detail = str(event.get("detail", ""))
    end = f"{change}{':' if 'error' in event else ','} {detail}" if change and detail else change or detail
    return " ".join(part for part in (what.replace("_", " "), where, end) if part)


class EventCauses:
    """Remembers why elections and ISR changes of partitions have begun. The causes become the details of events.

    A request names the cause, and its election ends with a later entry of the log. A controller that restarts from a
    snapshot in between does not know the cause. It remembers the newest ``MOST_EVENTS`` causes.
    """

    def __init__(self) -> None:
        self._causes: dict[tuple[str, int], str] = {}

    def note(self, stream: str, partition: int, cause: str) -> None:
        """Store the cause of the next election of a partition."""
        self._causes.pop((stream, partition), None)
        while len(self._causes) >= MOST_EVENTS:
            del self._causes[next(iter(self._causes))]
        self._causes[stream, partition] = cause

    def cause_of(self, stream: str, partition: int) -> str:
        return self._causes.get((stream, partition), "")

    def forget(self, stream: str, partition: int) -> None:
        self._causes.pop((stream, partition), None)


def events_of(
    before: ClusterImage, entry: bytes, answer: bytes, records: Iterable[Record], index: int, causes: EventCauses | None = None
) -> Iterator[ClusterEvent]:
    """Yield the events of the log entry ``index``. A read-only request has no events.

    ``before``: image before the entry. ``answer``: serialized result of the entry. ``causes``: causes that earlier entries named.
    """
    try:
        request = pb.ControlRequest.FromString(entry)
    except DecodeError:
        return
    known = EventCauses() if causes is None else causes
    parts = [item.request for item in request.batch.requests] if request.HasField("batch") else [request]
    named, whole = _causes_in(parts, request.sender, before)
    for number, (kind, values) in enumerate(
        chain(_request_events(before, request, parts, answer), _record_events(before, records, known, named, whole))
    ):
        yield ClusterEvent(index=index, number=number, time_ns=request.timeNs, kind=kind, **values)


def _request_events(
    before: ClusterImage, request: pb.ControlRequest, parts: Sequence[pb.ControlRequest], answer: bytes
) -> Iterator[_Found]:
    if not any(_is_always_an_event(part) for part in parts):
        return
    if changes_nothing(request) or before.operations.get(request.operationId) is not None:
        return
    response = pb.ControlResponse.FromString(answer)
    answers = {item.number: (item.error, item.detail) for item in response.batch.answers}
    for number, part in enumerate(parts):
        if not _is_always_an_event(part):
            continue
        error, detail = response.error, response.detail
        if request.HasField("batch"):
            error, detail = answers.get(request.batch.requests[number].number, (_ERRORS.UNKNOWN, "not decided"))
        if part.HasField("reportService"):
            if error == _ERRORS.OK:
                yield "service_ended", _service_details(part.reportService)
            continue
        name = part.WhichOneof("request") or ""
        values: dict[str, Any] = {"request": name, "sender": request.sender, "operation_id": request.operationId.hex()}
        values |= _subject_of_event(getattr(part, name))
        if error == _ERRORS.OK:
            yield "request", {**values, "outcome": "done"}
        else:
            detail = detail[:MOST_DETAIL_CHARS]
            yield "request", {**values, "outcome": "rejected", "error": pb.ControlResponse.Error.Name(error), "detail": detail}


def _is_always_an_event(part: pb.ControlRequest) -> bool:
    return kind_of(part).asked_by is RequesterKind.OPERATORS or part.HasField("reportService")


def _service_details(report: pb.ReportService) -> dict[str, Any]:
    detail = f"{report.service} on {report.node} {report.ending}: {report.reason}"[:MOST_DETAIL_CHARS]
    return {"stream": report.stream, "partition": report.partition, "node": report.node, "detail": detail}


def _subject_of_event(request: Any) -> dict[str, Any]:
    names = {one.name for one in request.DESCRIPTOR.fields}
    values: dict[str, Any] = {}
    for field in ("stream", "name"):
        if field in names and isinstance(getattr(request, field), str) and getattr(request, field):
            values["stream"] = getattr(request, field)
            break
    if "partition" in names:
        values["partition"] = request.partition
    if "level" in names:
        values["now"] = str(request.level)
    if isinstance(request, pb.SetDefaultQuota | pb.SetSessionTimes):
        values["now"] = ", ".join(f"{field.name} {value}" for field, value in request.ListFields())
    for field in ("nodeId", "node"):
        if field in names and isinstance(getattr(request, field), str) and getattr(request, field):
            values["node"] = getattr(request, field)
            break
    return values


def _why_isr_changes(change: pb.ChangeIsr, before: ClusterImage) -> str:
    if change.lost:
        return f"{', '.join(change.lost)} lost acknowledged records"
    if change.evicted:
        return f"{change.evicted} is not a replica any more"
    found = before.find(change.stream, change.uid, change.partition)
    left = sorted(set(found[1].isr) - set(change.isr)) if found is not None else []
    texts = {True: "is fenced", False: "fell behind the leader"}
    return ", ".join(f"{one} {texts[one not in before.nodes or before.nodes[one].fenced]}" for one in left)


def _causes_in(parts: Iterable[pb.ControlRequest], sender: str, before: ClusterImage) -> tuple[dict[tuple[str, int], str], str]:
    """Return the causes that requests name: by partition, and for all other partitions and nodes of the entry.

    ``parts``: requests of the entry. ``sender``: their sender. ``before``: image before the entry.
    """
    named: dict[tuple[str, int], str] = {}
    whole = ""
    for part in parts:
        name = part.WhichOneof("request") or ""
        request = getattr(part, name, None)
        match request:
            case pb.GiveUpLeadership():
                named[request.stream, request.partition] = request.reason
            case pb.LeaveIsr():
                named[request.stream, request.partition] = f"{request.node}: {request.reason}"
            case pb.ReportLeader() if request.leader:  # a report during an election has no leader, and says only a position
                lacks = "lacks committed records" if request.leaderLacks else f"cannot be reached by {request.witness}"
                named[request.stream, request.partition] = f"{request.leader} {lacks}"
            case pb.ChangeIsr():
                named[request.stream, request.partition] = _why_isr_changes(request, before)
            case pb.PassOver():
                named[request.stream, request.partition] = f"candidate {request.candidate} made no progress"
            case pb.ElectLeader():
                named[request.stream, request.partition] = f"requested by {sender or 'an operator'}"
            case pb.FenceNode():
                times = before.session_times
                silence = f"no heartbeat for {times.session_ms / 1000:g} s" if times is not None else "no heartbeat"
                whole = f"{request.nodeId} stopped" if sender == request.nodeId else f"{request.nodeId} sent {silence}"
            case pb.RegisterNode():
                whole = f"{request.nodeId} started"
            case pb.DrainNode():
                whole = f"{request.nodeId} stops"
    return named, whole


def _record_events(
    before: ClusterImage, records: Iterable[Record], causes: EventCauses, named: Mapping[tuple[str, int], str], whole: str
) -> Iterator[_Found]:
    partitions: dict[tuple[str, int], PartitionState | None] = {}
    nodes: dict[str, NodeImage | None] = {}
    controllers = before.controllers
    for record in records:
        match record:
            case StreamCreated(stream):
                partitions.update({(stream.uid, one.partition): one for one in stream.partitions})
                count = stream.partition_count
                detail = f"{count} partition{'' if count == 1 else 's'} on {stream.subject}"
                waits = f", waits for nodes: {why_it_waits(before, stream)}" if stream.waiting else ""
                yield "stream_created", {"stream": stream.name, "detail": (detail + waits)[:MOST_DETAIL_CHARS]}
            case StreamDeleted(name, _):
                yield "stream_deleted", {"stream": name}
            case PartitionsAdded(stream_name, uid, added):
                partitions.update({(uid, one.partition): one for one in added})
                yield "partitions_added", {"stream": stream_name, "now": str(len(added))}
            case StreamAltered():
                yield "stream_altered", {"stream": record.stream}
            case NodeChanged(node):
                known = nodes[node.node_id] if node.node_id in nodes else before.nodes.get(node.node_id)
                nodes[node.node_id] = node
                yield from _node(known, node, whole)
            case NodeRemoved(node_id):
                nodes[node_id] = None
                yield "node_removed", {"node": node_id}
            case PartitionStateChanged(stream_name, uid, partition):
                key = (uid, partition.partition)
                found = before.find(stream_name, uid, partition.partition)
                old = partitions[key] if key in partitions else found[1] if found is not None else None
                partitions[key] = partition
                if old is not None:
                    where = {"stream": stream_name, "partition": partition.partition}
                    place = (stream_name, partition.partition)
                    cause = named.get(place, whole) or causes.cause_of(*place)
                    yield from ((kind, {**where, **values}) for kind, values in _partition(old, partition, cause))
                    if partition.status is PartitionStatus.ONLINE:
                        causes.forget(*place)
                    elif cause:
                        causes.note(*place, cause)
            case FeatureLevelSet(feature_level):
                yield "feature_level_changed", {"was": str(before.feature_level), "now": str(feature_level)}
            case DefaultQuotaSet(quota):
                yield "default_quota_changed", {"was": before.default_quota.words, "now": quota.words}
            case SessionTimesSet(times) if before.session_times is not None:
                yield "session_times_changed", {"was": before.session_times.words, "now": times.words}
            case ControllersChanged(changed):
                yield "controllers_changed", {"was": " ".join(controllers.members), "now": " ".join(changed.members)}
                controllers = changed


def _node(old: NodeImage | None, new: NodeImage, cause: str) -> Iterator[_Found]:
    values = {"node": new.node_id}
    if old is None or old.incarnation != new.incarnation:
        was = _process(old) if old is not None else ""
        yield "node_registered", {**values, "was": was, "now": _process(new)}
        if old is not None and old.folder_id and new.folder_id != old.folder_id:
            yield "data_directory_lost", {**values, "detail": "the node came back with another data directory"}
    if old is not None and old.incarnation == new.incarnation and old.fenced != new.fenced:
        yield (
            ("node_fenced", {**values, "detail": cause.removeprefix(f"{new.node_id} ")})
            if new.fenced
            else ("node_unfenced", values)
        )
    if old is not None and old.leaving != new.leaving:
        yield ("node_drain_started" if new.leaving else "node_drain_cancelled"), values
    if old is not None and (old.weight, old.rack) != (new.weight, new.rack):
        yield "node_changed", {**values, "was": _place(old), "now": _place(new)}


def _process(node: NodeImage) -> str:
    return f"incarnation {node.incarnation}" + (f" of {node.version}" if node.version else "")


def _place(node: NodeImage) -> str:
    return f"weight {node.weight:g}" + (f", rack {node.rack}" if node.rack else "")


def _partition(old: PartitionState, new: PartitionState, cause: str) -> Iterator[_Found]:
    because = f", because {cause}" if cause else ""
    if new.unclean_elected and not old.unclean_elected:
        yield "unclean_election", {"now": new.leader, "detail": "the new leader may lack acknowledged records"}
    if new.status is PartitionStatus.OFFLINE and old.status is not PartitionStatus.OFFLINE:
        yield "partition_offline", {"was": old.leader or old.last_leader, "detail": cause}
    elif new.status is PartitionStatus.ONLINE and (new.leaderships > old.leaderships or new.leader_epoch > old.leader_epoch):
        before = old.deposed or old.leader or old.last_leader
        kind = "leadership_transfer" if before and before != new.leader and before in new.isr else "election"
        yield kind, {"was": before, "now": new.leader, "detail": f"epoch {new.leader_epoch}{because}"[:MOST_DETAIL_CHARS]}
    if set(old.isr) != set(new.isr):
        detail = cause[:MOST_DETAIL_CHARS] if set(old.isr) - set(new.isr) else ""
        yield "isr_changed", {"was": " ".join(old.isr), "now": " ".join(new.isr), "detail": detail}
    if old.replicas != new.replicas:
        yield "replicas_changed", {"was": " ".join(old.replicas), "now": " ".join(new.replicas)}
    if old.pause is not new.pause:
        yield "pause_changed", {"was": old.pause.words, "now": new.pause.words}


class RecentEvents:
    """The newest cluster events, in order, in the memory of each controller.

    ``note_entry`` only queues an entry. ``derive_events`` derives its events in portions, because one entry may move thousands of
    partitions.
    """

    def __init__(self, most: int = MOST_EVENTS, most_noted: int = MOST_NOTED) -> None:
        self._events: deque[ClusterEvent] = deque(maxlen=most)
        self._noted: deque[tuple[int, Iterator[ClusterEvent]]] = deque()
        self._most_noted = most_noted
        self.causes = EventCauses()
        """Causes of elections that have not ended."""
        self.index = 0
        """Index of the last entry whose events were derived."""
        self.begins = 0
        """Index of the metadata log up to which this controller lacks some events."""
        self.begins_ns = 0
        """Wall time from which the events are complete, in nanoseconds since 1970."""
        self.dropped = 0
        """Number of entries that were dropped because too many entries waited."""
        self.written: tuple[int, int] | None = None
        """Place of the last event in the event stream, on the controller that writes it. None: this controller does not write."""
        self.lost = 0
        """Number of events that left the memory before they were written to the event stream."""

    def note_entry(self, index: int, events: Iterator[ClusterEvent]) -> None:
        if len(self._noted) >= self._most_noted:
            self.begins, _ = self._noted.popleft()
            self.begins_ns = self._events[-1].time_ns if self._events else self.begins_ns
            self.dropped += 1
        self._noted.append((index, events))

    def derive_events(self, most: int) -> list[ClusterEvent]:
        """Derive up to ``most`` further events from the queued entries, and return them."""
        new_events: list[ClusterEvent] = []
        while self._noted and len(new_events) < most:
            index, events = self._noted[0]
            new_events += islice(events, most - len(new_events))
            if len(new_events) < most:
                self._noted.popleft()
                self.index = index
        for event in new_events:
            if len(self._events) == self._events.maxlen:
                oldest = self._events[0]
                self.begins, self.begins_ns = max(self.begins, oldest.index), max(self.begins_ns, oldest.time_ns)
                self.lost += self.written is not None and oldest.place > self.written
            self._events.append(event)
        return new_events

    def restart_after_snapshot(self, index: int, time_ns: int) -> None:
        """Restart with an empty trail, because the image was loaded from a snapshot of ``time_ns``.

        Earlier events are unknown.
        """
        self._events.clear()
        self._noted.clear()
        self.index = self.begins = index
        self.begins_ns = time_ns

    def add_event(self, event: ClusterEvent) -> None:
        """Add an event that has no log entry, such as a rebuilt group."""
        self._events.append(event)

    @property
    def newest(self) -> tuple[int, int]:
        """Place of the newest event of this trail. (0, -1): there are no events."""
        return self._events[-1].place if self._events else (0, -1)

    def events_after(self, place: tuple[int, int], since_ns: int, count: int) -> list[ClusterEvent]:
        """Return the first ``count`` events after ``place`` that are not older than ``since_ns`` (wall clock)."""
        return list(islice((one for one in self._events if one.place > place and one.time_ns >= since_ns), count))


def is_recent(event: ClusterEvent, now_ns: int) -> bool:
    """Return whether the event is at most one minute old by the wall clock."""
    return event.time_ns >= now_ns - 60 * NS_PER_S


@dataclass(frozen=True, slots=True)
class EventStreamEnd:
    """End of the event stream: ``offset`` of its last record (-1: none), and ``place`` of the last event."""

    offset: int
    place: tuple[int, int]


def place_in(record: bytes) -> tuple[int, int]:
    """Return the place of the event that a record of the event stream contains. Raise ValueError if the record is invalid."""
    position = load_json(record)
    if not isinstance(position, dict):
        raise ValueError("The value is not a cluster event: a field is missing or has the wrong type.")
    return whole_number(position.get("index"), 0, 1 << 63), whole_number(position.get("number"), -1, 1 << 31)


def last_place_of(records: Sequence[bytes | None]) -> tuple[int, int] | None:
    """Return the place of the last event in ``records``, which come from the event stream. None: no record is valid.

    A record may be invalid if NATS permissions let other clients publish.
    """
    for record in reversed(records):
        with suppress(ValueError):
            return place_in(record or b"")
    return None


class EventLog:
    """Decides which events of ``trail`` must still be written to the event stream.

    The shell reads the tail while it is None and calls ``set_tail``. It publishes the events of ``take_due``. Then it calls
    ``record_stored``, or ``forget_tail`` after a failure.
    """

    def __init__(self, trail: RecentEvents) -> None:
        self._trail = trail
        self.tail: EventStreamEnd | None = None

    def set_tail(self, tail: EventStreamEnd) -> None:
        self.tail = tail
        self._trail.written = tail.place

    def forget_tail(self) -> None:
        """Forget the end of the event stream, so that the shell reads it again.

        This is needed if another controller may have written, or if the result of a publish is unknown.
        """
        self.tail = None

    def resign(self) -> None:
        self.tail = self._trail.written = None

    @property
    def has_events_to_write(self) -> bool:
        return self.tail is None or self._trail.newest > self.tail.place

    def take_due(self, most: int) -> list[dict[str, Any]]:
        """Return up to ``most`` events that must be written to the event stream next, as JSON objects."""
        if self.tail is None:
            return []
        place = self.tail.place
        events = self._trail.events_after(place, 0, most)
        gap = self._gap(place, events)
        return [*gap, *(event.as_object() for event in events)][:most]

    def record_stored(self, events: list[dict[str, Any]], offset: int) -> None:
        """Remove ``events`` from the events to write, because they are stored in the stream. ``offset``: offset of the last one."""
        last = events[-1]
        self.set_tail(EventStreamEnd(offset, (last["index"], last["number"])))

    def _gap(self, place: tuple[int, int], events: list[ClusterEvent]) -> list[dict[str, Any]]:
        """Return one event that stands for all events after ``place`` that are not in memory any more. []: there are none.

        ``events``: the events after ``place`` that are in memory.
        """
        begins = self._trail.begins
        if begins > place[0] and not (events and events[0].place <= (begins, 0)):
            number = events[0].number - 1 if events and events[0].index == begins else -1
            end = (begins, number)
        elif events and events[0].index == place[0] and events[0].number > place[1] + 1:
            end = (place[0], events[0].number - 1)
        else:
            return []
        about = ClusterEvent(
            index=end[0],
            number=end[1],
            time_ns=self._trail.begins_ns or (events[0].time_ns if events else 0),
            kind=GAP,
            was=f"{place[0]}.{place[1]}",
            now=f"{end[0]}.{end[1]}",
            detail="what happened between is not known any more: no controller held it when it could be written",
        )
        return [about.as_object()]
