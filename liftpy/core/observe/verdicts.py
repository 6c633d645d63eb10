"""Verdicts: the one table of what can be wrong with a cluster, as operators see it. Pure.

Each row has the word of a problem, its cause, its runbook, the events that tell of it, and the alert that fires for it. The status
page, ``liftpy top``, ``liftpy health`` and ``liftpy status`` show these rows and have no texts of their own. The documentation and
the tests of the alerts read the table, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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


def urgency_of(found: Reason) -> int:
    """Return the position of a problem in the table ``VERDICTS``, 0 for the most urgent."""
    return _PLACES[found.word]
