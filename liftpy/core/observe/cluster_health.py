"""Judges the health of a cluster in one word with reasons, from the summaries of its nodes. Pure.

``DATA UNAVAILABLE``: something cannot be published or read now. ``DEGRADED``: everything can, and an operator should act. The reasons
are rows of ``verdicts.py``, the most severe first.

The module also names the problem of a partition and its urgency. Lists of partitions begin with the most urgent one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from liftpy.config import StreamConfig
from liftpy.core.base.partition import PartitionState, PartitionStatus, Pause
from liftpy.core.base.strict_json import is_count
from liftpy.core.observe.node_summary import DRAINED, FENCED, MOST_TEXT_CHARS, NodeSummary
from liftpy.core.observe.verdicts import Reason, reason, urgency_of

OK, DEGRADED, UNAVAILABLE = "OK", "DEGRADED", "DATA UNAVAILABLE"
DISK_LOW = 0.15
"""Free share of a disk below which an operator should act."""
QUEUED_HIGH = 0.8
"""Used share of the buffers for publishes from which a node rejects some of them."""
MOST_NAMED = 5
"""Maximum number of names, and of reasons of one kind, in a verdict."""
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


@dataclass(frozen=True, slots=True)
class ClusterVerdict:
    """Health of a cluster. ``word``: one of three words, such as ``DEGRADED``.

    ``reasons``: the problems of the cluster. Problems that prevent a publish or a read come first.
    """

    word: str
    reasons: tuple[Reason, ...]

    def as_object(self) -> dict[str, Any]:
        return {"word": self.word, "reasons": [one.as_object() for one in self.reasons]}


def judge(summaries: Mapping[str, NodeSummary | None]) -> ClusterVerdict:
    """Return the health of the cluster, judged by the summaries of its nodes.

    ``summaries``: summary of each node, by node. None: the node did not answer.
    """
    return verdict_of(_reasons(summaries))


def verdict_of(reasons: Iterable[Reason]) -> ClusterVerdict:
    """Return the health of a cluster that has the problems ``reasons``."""
    ordered = tuple(sorted(reasons, key=lambda one: (not one.stops, urgency_of(one))))
    return ClusterVerdict(OK if not ordered else UNAVAILABLE if ordered[0].stops else DEGRADED, ordered)


def states(summaries: Mapping[str, NodeSummary | None]) -> dict[str, str]:
    """Return the state of each node by its id: live, fenced, drained or silent (no answer).

    The states come from the controller with the newest metadata. ``summaries``: summary of each node, None without an answer.
    """
    newest = newest_summary(one for one in summaries.values() if one is not None and one.nodes)
    known = newest.nodes if newest is not None else {}
    node_states = {node: known.get(node, "live" if one is not None else "silent") for node, one in summaries.items()}
    for node, state in known.items():
        node_states.setdefault(node, state)
    return {node: "silent" if state == "live" and summaries.get(node) is None else state for node, state in node_states.items()}


def leader_of(summaries: Mapping[str, NodeSummary | None]) -> str:
    """Return the node that reports itself as the metadata leader. '': none does. ``summaries``: summary of each node, by node."""
    return next((node for node, one in sorted(summaries.items()) if one is not None and one.metadata_leader == node), "")


def newest_summary(summaries: Iterable[NodeSummary]) -> NodeSummary | None:
    """Return the summary of the node that has applied the most metadata entries. None: there are no summaries."""
    return max(summaries, key=lambda one: one.index, default=None)


def _reasons(summaries: Mapping[str, NodeSummary | None]) -> Iterable[Reason]:
    answers = [one for one in summaries.values() if one is not None]
    if not answers:
        yield reason("no-answer")
        return
    away = [one for one in answers if not one.nats_connected]
    if away:
        why = next((f" at {one.nats_problem}" for one in away if one.nats_problem), "")
        yield reason("nats-lost", who=_join_names([one.node for one in away]), why=why)
    if len(away) == len(answers):
        return  # the state of other nodes is not known
    yield from _cluster(answers)
    yield from _nodes(summaries, answers)


def _cluster(answers: list[NodeSummary]) -> Iterable[Reason]:
    newest = newest_summary(one for one in answers if one.is_controller)
    if not any(one.metadata_leader == one.node for one in answers):
        since = newest.leaderless_since if newest is not None else ""
        yield reason("no-majority", since=f". State of {since} UTC, may be stale" if since else "")
    if newest is not None:
        if newest.offline:
            yield reason("offline", partitions=_count(newest.offline, "partition"))
        for why in newest.suspect_partitions:
            yield reason("suspect", why=why)
        if newest.electing:
            yield reason("electing", partitions=_count(newest.electing, "partition"))
        for why in newest.waiting_streams:
            yield reason("insufficient-nodes", why=why)
    if lost := {node for one in answers for node in one.lost_directories}:  # a controller that restarts has not seen it
        yield reason("directory-lost", who=_join_names(list(lost)))
    if under_min := sum(one.under_min_isr for one in answers):
        yield reason("under-min-isr", partitions=_count(under_min, "partition"))
    if under := sum(one.under_replicated for one in answers):
        yield reason("under-replicated", partitions=_count(under, "partition"))
    for why in [text for one in answers for text in one.stuck_groups][:MOST_NAMED]:
        yield reason("group-stuck", why=why)
    for why in [text for one in answers for text in one.repairs][:MOST_NAMED]:
        yield reason("repaired", why=why)


def _nodes(summaries: Mapping[str, NodeSummary | None], answers: list[NodeSummary]) -> Iterable[Reason]:
    of = states(summaries)
    for word in (FENCED, "silent"):
        if names := [node for node, state in of.items() if state == word]:
            yield reason(word, who=_join_names(names))
    for word, nodes in (
        ("log-failed", [one.node for one in answers if one.failed]),
        ("damaged", [one.node for one in answers if one.damaged]),
        ("service-blocked", [one.node for one in answers if one.services_blocked]),
        ("disk-low", [one.node for one in answers if one.disk_free < DISK_LOW]),
        ("overloaded", [one.node for one in answers if one.queued >= QUEUED_HIGH]),
    ):
        if nodes:
            yield reason(word, who=_join_names(nodes))
    lost = [one for one in answers if one.services_diverged]
    differing = [one for one in answers if one.differing_services]
    if differing and not lost:
        why = differing[0].differing_services[0]
        yield reason("service-diverged", who=_join_names([one.node for one in differing]), why=why)
    yield from _lost_services("service-diverged", lost)
    yield from _lost_services("service-ended", [one for one in answers if one.services_ended > one.services_diverged])
    versions = {one.version for one in answers if one.version and of.get(one.node) != DRAINED}
    if len(versions) > 1:
        yield reason("versions-mixed", why=_join_names(list(versions)))


def _lost_services(word: str, lost: list[NodeSummary]) -> Iterable[Reason]:
    if lost:
        texts = (text for one in lost for text in one.ended_services if (" diverged: " in text) == (word == "service-diverged"))
        yield reason(word, who=_join_names([one.node for one in lost]), why=next(texts, "no reason is known"))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _join_names(names: list[str]) -> str:
    """Return a text with the first ``MOST_NAMED`` names in order, and the number of others."""
    more = len(names) - MOST_NAMED
    return ", ".join(sorted(names)[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def urgency(state: PartitionState | None, config: StreamConfig, *, failed: bool = False) -> int:
    """Return the urgency of a partition: the index of its problem in ``PROBLEMS``, 0 for the most urgent one.

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
    """Return why a partition stays without a leader until an operator acts, and the command for it. '': it does not.

    This happens if the last in-sync replicas came back without some records that they had acknowledged [C10].

    ``status``: status of the partition. ``isr``: its in-sync replicas. ``incomplete``: replicas that may lack records.
    """
    lacking = [node for node in isr if node in incomplete]
    if status != PartitionStatus.OFFLINE.name or not lacking:
        return ""
    return (
        f"{stream}/{partition} waits for an operator: {', '.join(lacking)} may have lost acknowledged records. "
        f"If they can't be put back: liftpy partition elect {stream} {partition} --node {lacking[0]} --unclean"
    )


def partitions_question(stream: str = "", after: Place = FIRST, limit: int = MOST_ROWS) -> dict[str, Any]:
    """Return a request to a node, as JSON object, for the next page of its partitions, most urgent first.

    ``stream``: only the partitions of this stream, '' for all. ``after``: place of the last partition of the page before.
    ``limit``: maximum number of rows.
    """
    return {"partitions": {"stream": stream, "after": list(after), "limit": limit}}


def streams_question(after: tuple[int, str] = (-1, ""), limit: int = MOST_ROWS, match: str = "") -> dict[str, Any]:
    """Return a request to a node, as JSON object, for the next page of the streams of the cluster, most urgent first.

    ``after``: (urgency, name) of the last stream of the page before. ``limit``: maximum number of rows. ``match``: only streams
    with this text in their name or subject.
    """
    return {"streams": {"after": list(after), "limit": limit, **({"match": match} if match else {})}}


def place_of(value: object) -> Place:
    """Return the start of the page in a request: (urgency, stream, partition) of the last partition of the page before.

    Raises ValueError if it is invalid.
    """
    match value:
        case [int(rank), str(stream), int(partition)] if -1 <= rank <= FINE and -1 <= partition < 1 << 31:
            return rank, stream, partition
    raise ValueError("Invalid parameter 'after'. Use [urgency, stream, partition].")


def match_in(query: Mapping[str, Any]) -> str:
    """Return the search text that the request ``query`` contains, in lower case. Raises ValueError if it is invalid."""
    match = query.get("match", "")
    if not isinstance(match, str) or len(match) > MOST_MATCH:
        raise ValueError(f"Invalid parameter match. Use a text of at most {MOST_MATCH} characters.")
    return match.lower()


def checked_fields(
    row: object, wanted: Mapping[str, type], *, optional: Container[str] = (), most_chars: int | None = MOST_TEXT_CHARS
) -> dict[str, Any] | None:
    """Check ``row``, a table row from another node. Return it with only the known fields, or None if a type is wrong.

    ``wanted``: type of each value (text, count or number from 0 on), by name. ``optional``: names that may be missing or None.
    ``most_chars``: length to which texts are cut. None: they are not cut.
    """
    if not isinstance(row, dict):
        return None
    kept: dict[str, Any] = {}
    for name, kind in wanted.items():
        value = row.get(name)
        if value is None and name in optional:
            kept[name] = None
        elif kind is str and isinstance(value, str):
            kept[name] = value[:most_chars]
        elif is_count(value) if kind is int else kind is float and _is_measure(value):
            kept[name] = value
        else:
            return None
    return kept


def _is_measure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12


def limit_of(value: object) -> int:
    """Return ``value``, the maximum number of rows in a request, if it is in range. Otherwise raise ValueError."""
    if type(value) is int and 1 <= value <= MOST_ROWS:
        return value
    raise ValueError(f"Invalid parameter limit. Use 1 to {MOST_ROWS}.")
