"""Judges the health of a cluster in one word with reasons, from the summaries of its nodes. Pure.

``DATA UNAVAILABLE``: something cannot be published or read now. ``DEGRADED``: everything can, and an operator should act. The reasons
are rows of ``VERDICTS``, the one table of what can be wrong with a cluster, as operators see it. The most severe reason comes first.

Each row of the table has the word of a problem, its cause, its runbook, the events that tell of it, and the alert that fires for it.
The status page, ``liftpy top``, ``liftpy health`` and ``liftpy status`` show these rows and have no texts of their own. The
documentation and the tests of the alerts read the table, too.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.observe.node_summary import DRAINED, FENCED, NodeSummary

OK, DEGRADED, UNAVAILABLE = "OK", "DEGRADED", "DATA UNAVAILABLE"
DISK_LOW = 0.15
"""Free share of a disk below which an operator should act."""
QUEUED_HIGH = 0.8
"""Used share of the buffers for publishes from which a node rejects some of them."""
MOST_NAMED = 5
"""Maximum number of names, and of reasons of one kind, in a verdict."""
RUNBOOKS = "docs/runbooks"


class Verdict(NamedTuple):
    """One kind of problem that a cluster can have: a row of the table ``VERDICTS``."""

    stops: bool
    """True if something cannot be published or read because of the problem."""
    cause: str
    """Cause as one clause, a template for ``str.format``."""
    runbook: str
    """Name of the page below docs/runbooks, without ``.md``."""
    events: tuple[str, ...]
    """Kinds of the events that tell of the problem. (): the problem makes no event."""
    alert: str
    """Name of the alert that fires for the problem."""
    makes_unhealthy: bool = True
    """True if ``liftpy health`` exits with 1. False for what ends by itself or is planned."""


VERDICTS: Mapping[str, Verdict] = {
    "nats-lost": Verdict(True, "{who} cannot reach NATS{why}", "nats-lost", ("nats_lost", "nats_restored"), "NatsLost"),
    "no-answer": Verdict(True, "no node answers", "node-down", ("node_fenced",), "NodeDown"),
    "no-majority": Verdict(
        True,
        "the metadata group has no leader, so leaders lose their leases and acks stop{since}",
        "no-metadata-leader",
        ("metadata_leader_lost", "metadata_leader_found"),
        "NoMetadataLeader",
    ),
    "offline": Verdict(
        True, "{partitions} offline: no replica may lead", "partitions-offline", ("partition_offline",), "PartitionsOffline"
    ),
    "suspect": Verdict(True, "{why}", "partitions-offline", ("partition_offline",), "PartitionsOffline"),
    "electing": Verdict(
        True, "{partitions} without a leader during an election", "failover-slow", ("election",), "FailoverSlow", False
    ),
    "under-min-isr": Verdict(
        True, "{partitions} under min_isr: the leader sends no acks", "under-min-isr", ("isr_changed",), "UnderMinIsr"
    ),
    "insufficient-nodes": Verdict(True, "stream {why}", "stream-waits", ("stream_created",), "StreamWaits"),
    "service-diverged": Verdict(
        False, "service next to {who} diverged: {why}", "service-ended", ("service_ended", "service_differs"), "ServiceDiverged"
    ),
    "service-ended": Verdict(False, "{who} lost a service: {why}", "service-ended", ("service_ended",), "ServiceEnded"),
    "service-blocked": Verdict(
        False, "{who} has a service that is blocked at a record", "service-failing", ("service_blocked",), "ServiceFailing"
    ),
    "group-stuck": Verdict(False, "group {why}", "group-stuck", ("group_stuck",), "GroupStuck"),
    "log-failed": Verdict(False, "{who} has a failed log", "partition-failed", ("isr_changed",), "PartitionFailed"),
    "damaged": Verdict(
        False,
        "{who} has damaged files and copies their records again",
        "damaged-segments",
        ("damage_found",),
        "DamagedSegments",
        False,
    ),
    "repaired": Verdict(False, "{why}", "damaged-segments", ("damage_repaired",), "DamagedSegments", False),
    "directory-lost": Verdict(
        False,
        "{who} came back with another data directory, and copies its replicas again",
        "data-directory-lost",
        ("data_directory_lost",),
        "DataDirectoryLost",
        False,
    ),
    "fenced": Verdict(False, "{who} sent no heartbeat for the session time", "node-down", ("node_fenced",), "NodeDown"),
    "silent": Verdict(False, "{who} does not answer", "node-down", ("node_fenced",), "NodeDown"),
    "disk-low": Verdict(False, "{who} has nearly no disk space left", "disk-full", ("disk_low",), "DiskFilling"),
    "overloaded": Verdict(
        False, "{who} rejects publishes, because its buffers are full", "overloaded", ("overloaded",), "Overloaded", False
    ),
    "under-replicated": Verdict(
        False, "{partitions} with replicas out of sync", "under-replicated", ("isr_changed",), "UnderReplicated", False
    ),
    "versions-mixed": Verdict(
        False, "nodes run different versions: {why}", "versions-mixed", ("node_registered",), "VersionsMixed", False
    ),
}
"""Word -> its row, the most urgent first. Reasons are shown in this order."""
_PLACES = {word: place for place, word in enumerate(VERDICTS)}


class Reason(NamedTuple):
    """One problem that a cluster has now, with the text for operators."""

    word: str
    """Word of the problem, a key of ``VERDICTS``."""
    stops: bool
    """True if something cannot be published or read because of the problem."""
    text: str
    """Cause of the problem."""
    runbook: str
    """Name of the page below docs/runbooks, without ``.md``."""
    events: tuple[str, ...]
    """Kinds of the events that tell of the problem."""
    alert: str
    """Name of the alert that fires for the problem."""

    def as_object(self) -> dict[str, Any]:
        return {**self._asdict(), "events": list(self.events)}

    @property
    def line(self) -> str:
        """Line about the problem for a terminal: its word, its cause and its runbook."""
        return f"{self.word}: {self.text} ({RUNBOOKS}/{self.runbook}.md)"


def reason(word: str, **facts: Any) -> Reason:
    """Return the problem that has the word ``word`` in ``VERDICTS``. ``facts``: values for the template of its cause."""
    row = VERDICTS[word]
    return Reason(word, row.stops, row.cause.format(**facts), row.runbook, row.events, row.alert)


@dataclass(frozen=True, slots=True)
class ClusterVerdict:
    """Health of a cluster. ``word``: one of three words, such as ``DEGRADED``.

    ``reasons``: the problems of the cluster. Problems that prevent a publish or a read come first.
    """

    word: str
    reasons: tuple[Reason, ...]

    def as_object(self) -> dict[str, Any]:
        return {"word": self.word, "reasons": [one.as_object() for one in self.reasons]}


def check_cluster(summaries: Mapping[str, NodeSummary | None]) -> ClusterVerdict:
    """Return the health of the cluster, as the summaries of its nodes show it.

    ``summaries``: summary of each node, by node. None: the node did not answer.
    """
    return verdict_of(_reasons(summaries))


def verdict_of(reasons: Iterable[Reason]) -> ClusterVerdict:
    """Return the health of a cluster that has the problems ``reasons``."""
    ordered = tuple(sorted(reasons, key=lambda one: (not one.stops, _PLACES[one.word])))
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
    state_of = states(summaries)
    for word in (FENCED, "silent"):
        if names := [node for node, state in state_of.items() if state == word]:
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
    versions = {one.version for one in answers if one.version and state_of.get(one.node) != DRAINED}
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
