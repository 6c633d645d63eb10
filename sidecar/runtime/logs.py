"""Logs of a node: text or JSON, event names, and a rate limit for each event.

For each event and partition, five lines a second are logged, and twenty in a burst. The number of suppressed lines is
logged as soon as a line is allowed again, or a second later. Errors are never suppressed. The log level can be changed for
a limited time.

``EVENTS`` has every event that a node logs: (logger, beginning of the text) -> name. The name stays if the text changes.
docs/operating.md lists the names, and a test fails for a log line without a name.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from liftpy.config import NS_PER_S
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.rate_limits import LogRateLimit, TokenBucket, touch_entry

KEY_CHARS = 60
"""Number of characters of a text that identify it in ``EVENTS``."""
EVENTS: dict[tuple[str, str], str] = {
    ("liftpy.nats", "NATS connection restored connection=%s server=%s"): "nats.reconnected",
    ("liftpy.nats", "NATS credentials not changed error=%s: keeping the current o"): "nats.credentials_kept",
    ("liftpy.nats", "NATS: %r"): "nats.error",
    ("liftpy.nats", "NATS connection lost connection=%s reason=%s: reconnecting"): "nats.disconnected",
    ("liftpy.nats", "cannot reconnect to NATS connection=%s reason=%s: retrying"): "nats.reconnect_failed",
    ("liftpy.nats", "message processing failed subject=%r error=%r: dropping the "): "nats.message_rejected",
    ("liftpy.nats", "cannot connect to NATS servers=%s reason=%s: retrying"): "nats.connect_failed",
    ("liftpy.nats", "cannot use the credentials reason=%s: retrying"): "nats.credentials_failed",
    ("liftpy.nats", "standby connection cannot connect to NATS error=%s: retrying"): "nats.standby_connect_failed",
    ("liftpy.nats", "%s"): "nats.permission_denied",
    ("liftpy.nats", "NATS data cannot be decoded: reconnecting"): "nats.unreadable",
    ("liftpy.disk", "HW checkpoint: %s"): "disk.checkpoint_failed",
    ("liftpy.disk", "%s: a flush took %.1f s; slow ones since the last such line:"): "disk.slow_flush",
    ("liftpy.housekeeping", "cannot measure the free space in %s: %s"): "disk.space_unknown",
    ("liftpy.metadata", "%s starts as controller: %s"): "metadata.controller_starting",
    ("liftpy.metadata", "%s cannot become a controller: %s: %s"): "metadata.controller_start_failed",
    ("liftpy.metadata", "NATS, group's connection: %r"): "metadata.nats_error",
    ("liftpy.metadata", "%s names only itself as controller, but a metadata group run"): "metadata.settings_ignored",
    ("liftpy.metadata", "%s is a controller"): "metadata.became_controller",
    ("liftpy.metadata", "controller out of service node=%s error=%s: following the me"): "metadata.controller_out_of_service",
    ("liftpy.metadata", "NATS, group's connection: a message can't be taken: %r"): "metadata.message_rejected",
    ("liftpy.metadata", "%s is no longer a controller; following the metadata feed"): "metadata.became_follower",
    ("liftpy.metadata", "the settings name the controllers %s, and the group's log %s"): "metadata.settings_differ",
    ("liftpy.metadata", "cannot write events to their stream: %s; retrying"): "events.not_stored",
    ("liftpy.groups", "%s: group coordinator ended; restarting it: %s"): "group.coordinator_restarted",
    ("liftpy.groups", "inbox_prefixes leave out %s.: consumer groups have no coordi"): "group.coordinator_disabled",
    ("liftpy.node", "component failed to close component=%s, closing the others"): "node.close_failed",
    ("liftpy.node", "settings reloaded; %s"): "node.settings_reloaded",
    ("liftpy.node", "unknown environment variable, ignoring variable=%s nearest=%"): "node.unknown_variable",
    ("liftpy.node", "settings not reloaded error=%s: keeping the current ones"): "node.settings_rejected",
    ("liftpy.proposals", "%s: ISR is now %s"): "isr.changed",
    ("liftpy.proposals", "%s: removed from the ISR reason=%s"): "isr.left",
    ("liftpy.proposals", "%s: ISR change not made: %s"): "isr.change_failed",
    ("liftpy.proposals", "%s: %s leaves the ISR: its last flush took %.3f s, far longe"): "isr.slow_replica",
    ("liftpy.jetstream", "JetStream read API cannot connect to NATS error=%s: retrying"): "jetstream.connect_failed",
    ("liftpy.jetstream", "JetStream read API started subject=%s"): "jetstream.enabled",
    ("liftpy.housekeeping", "%s: compaction dropped %d records"): "log.compacted",
    ("liftpy.housekeeping", "%s: compaction: %s"): "log.compaction_failed",
    ("liftpy.node", "%s: %s"): "log.damaged",
    ("liftpy.node", "%s: the log can't be recovered: %s: %s"): "log.recovery_failed",
    ("liftpy.node", "log directory missing log=%s: records that this node acknowl"): "log.directory_lost",
    ("liftpy.node", "%s: all segments of the log are gone: records that this node"): "log.segments_lost",
    ("liftpy.partition", "%s: recovered: %s"): "log.recovered",
    ("liftpy.partition", "%s: retention: %s"): "log.retention_failed",
    ("liftpy.node", "%s: suspect: %s; %d bytes that were not known to be on the d"): "log.suspect",
    ("liftpy.membership", "transferring leaderships: %s"): "node.transferring_leaderships",
    ("liftpy.membership", "heartbeat without answer: %s"): "node.heartbeat_unanswered",
    ("liftpy.membership", "own settings (%s) differ from the cluster's (%s); using the "): "node.session_times_differ",
    ("liftpy.membership", "leaderships not transferred: %s"): "node.leaderships_not_transferred",
    ("liftpy.membership", "not registered yet: %s"): "node.registration_failed",
    ("liftpy.membership", "registered with a warning: %s"): "node.registered_with_warning",
    ("liftpy.membership", "could not report the stop to the metadata group: %s"): "node.stop_not_reported",
    ("liftpy.quorum", "the raft directory went back in time: %s knows a later proce"): "metadata.directory_went_back",
    ("liftpy.quorum", "%s says that its term is %d, which can't be true beside %d"): "metadata.impossible_term",
    ("liftpy.quorum", "controllers hold different images: %s"): "metadata.images_differ",
    ("liftpy.quorum", "the raft directory held another image than the majority's: i"): "metadata.directory_quarantined",
    ("liftpy.quorum", "closing the journal: %s"): "metadata.journal_close_failed",
    ("liftpy.quorum", "%s leads the metadata group term=%d"): "metadata.leadership_gained",
    ("liftpy.quorum", "the metadata group was %s"): "metadata.force_recovered",
    ("liftpy.quorum", "%s no longer leads the metadata group"): "metadata.leadership_lost",
    ("liftpy.quorum", "the controllers are %s here, and %s in the settings of %s: t"): "metadata.lists_differ",
    ("liftpy.quorum", "the metadata group's member stops: %s"): "metadata.controller_failed",
    ("liftpy.quorum", "the raft directory of %s %s"): "metadata.peer_directory",
    ("liftpy.quorum", "%s is no controller any more, as of index %d"): "metadata.controller_removed",
    ("liftpy.quorum", "%s is a voting member of the metadata group"): "metadata.voter_added",
    ("liftpy.quorum", "%s %s"): "metadata.waiting",
    ("liftpy.node", "wall clock not trusted, age-based retention is paused: %s"): "node.clock_untrusted",
    ("liftpy.node", "wall clock trusted again, age-based retention resumes"): "node.clock_trusted",
    ("liftpy.node", "node failed node=%s error=%s: stopping"): "node.failed",
    ("liftpy.node", "data directory was writable for other users directory=%s: pe"): "node.directory_permissions_fixed",
    ("liftpy.node", "log level changed level=%s seconds=%g"): "node.log_level_changed",
    ("liftpy.node", "log level restored level=%s"): "node.log_level_restored",
    ("liftpy.node", "this NATS server accepts clients without credentials, and ea"): "node.open_nats",
    ("liftpy.node", "another process runs as node %s: waiting for it to end"): "node.duplicate_process",
    ("liftpy.node", "log damaged node=%s log=%s: restarting to repair it"): "node.restart_for_repair",
    ("liftpy.node", "node stopped restarts=%d: starting again in %g s"): "node.restarting",
    ("liftpy.node", "stop not complete seconds=%g: forcing exit"): "node.stop_timeout",
    ("liftpy.node", "node %s stopped clean=%s seconds=%.2f"): "node.stopped",
    ("liftpy.node", "supervisor not notified state=%s error=%s: continuing"): "node.supervisor_unreachable",
    ("liftpy.node", "background task failed task=%s error=%r: stopping the node"): "node.task_failed",
    ("liftpy.node", "unknown stream directory=%s: keeping it. If the data is not "): "node.unknown_directory",
    ("liftpy.node", "node started node=%s incarnation=%d"): "node.up",
    ("liftpy.partition", "%s: HW checkpoint: %s"): "partition.checkpoint_failed",
    ("liftpy.partitions", "data of an unknown stream removed directory=%s bytes=%d"): "partition.unknown_data_removed",
    ("liftpy.partitions", "%s: deleted"): "partition.deleted",
    ("liftpy.partitions", "%s: deleted, because it moved away while this node was down"): "partition.deleted_moved_away",
    ("liftpy.partitions", "%s: the feed said that it is not held here any more, the con"): "partition.deletion_contradicted",
    ("liftpy.partitions", "%s: no controller confirms that it is not held here any more"): "partition.deletion_unconfirmed",
    ("liftpy.partitions", "transferring leaderships without a check for in-flight publi"): "leader.transfer_unverified",
    ("liftpy.partition", "%s: closing the log: %s"): "partition.close_failed",
    ("liftpy.partition", "records dropped without a stored state partition=%s below=%d"): "partition.dropped_without_state",
    ("liftpy.partitions", "%s: moved away while this node was down, and can't be delete"): "partition.delete_failed",
    ("liftpy.partitions", "%s: the log can't be opened: %s: %s"): "partition.open_failed",
    ("liftpy.partition", "%s: log %d..%d, HW %d"): "partition.opened",
    ("liftpy.proposals", "%s: its pause ends: %s"): "partition.pause_ended",
    ("liftpy.partition", "%s: cannot remove quarantined files: %s"): "partition.quarantine_not_removed",
    ("liftpy.partition", "%s: what was heard can't be looked for in its log: %s"): "partition.standby_unreadable",
    ("liftpy.partition", "%s: ignoring and deleting state file %s: %s"): "partition.state_discarded",
    ("liftpy.status", "records read stream=%s partition=%d sender=%s query=%s"): "records.read",
    ("liftpy.partition", "%s: replica is complete again, removed quarantined files=%s"): "replica.repaired",
    ("liftpy.ingest", "dropped publishes without reply subject: %s%s"): "publish.dropped",
    ("liftpy.ingest", "publishes lost with a connection that the server closed reas"): "publish.lost",
    ("liftpy.ingest", "publishes lost with a connection, number not known at_least="): "publish.lost_unknown",
    ("liftpy.proposals", "%s: giving up leadership reason=%s"): "replica.transfer_requested",
    ("liftpy.replica", "%s: heard while standing by: %d to append, %d in the log to "): "replica.standby_takeover",
    ("liftpy.proposals", "%s: leader %s lacks committed records, up to offset %d"): "replica.leader_lacks_records",
    ("liftpy.replica", "%s: discarding the local log, fetching it again from=%d"): "replica.log_reset",
    ("liftpy.replica", "%s: log truncated log_end=%d"): "replica.log_truncated",
    ("liftpy.replica", "%s: the cut waits for a flush that is not over"): "replica.truncation_waiting",
    ("liftpy.proposals", "%s: %s: %s"): "replica.proposal_rejected",
    ("liftpy.replica", "%s: %s %s in epoch %d"): "replica.role_changed",
    ("liftpy.replica", "%s: %s was served wrong bytes at offset %d: %s"): "replica.served_wrong_bytes",
    ("liftpy.driver", "%s: %s -> %s"): "replica.step",
    ("liftpy.driver", "%s: the replica is stopped: %s\n%s"): "replica.stopped",
    ("liftpy.replica", "%s: storage failed: %s"): "replica.storage_failed",
    ("liftpy.replication", "%s: offset %d came damaged from the leader, asking again: %s"): "replication.damaged",
    ("liftpy.replication", "%s: offset %d can't be read for a follower: %s"): "replication.read_failed",
    ("liftpy.replication", "leader gives no state partition=%s: it is of an earlier vers"): "replication.state_unavailable",
    ("liftpy.replication", "%s: the batch at offset %d has %d bytes, the NATS server's m"): "replication.too_large",
    ("liftpy.scrub", "%s: the scrub found damage: %s"): "scrub.damage",
    ("liftpy.scrub", "%s"): "scrub.interrupted",
    ("liftpy.scrub", "the scrub's progress can't be stored: %s"): "scrub.progress_not_stored",
    ("liftpy.services", "%s: service %s has ended: %s: %s"): "service.ended",
    ("liftpy.services", "%s: %s hands over to %s: %s"): "service.leadership_transferred",
    ("liftpy.services", "%s: service %s: %s"): "service.problem",
    ("liftpy.partition", "%s: the log begins at %d now and a service's newest snapshot"): "service.records_deleted",
    ("liftpy.services", "%s: slow services no longer delay the promotion; continuing "): "service.slow_promotion",
    ("liftpy.services", "a frame on the services' subject can't be used: %s"): "service.frame_rejected",
    ("liftpy.tracing", "the trace collector accepts no spans; dropping and counting "): "tracing.export_rejected",
    ("liftpy.tracing", "spans not created error=%r: dropping them"): "tracing.span_failed",
}


logger = logging.getLogger("liftpy.node")

LINES_PER_S = 5.0
BURST_LINES = 20.0
MOST_KEYS = 4096
"""Maximum number of distinct (event, partition). Above it, those without log lines for the longest time are forgotten."""
_LATER_NS = NS_PER_S
_OTHER = "other"
LEVELS = ("debug", "info", "warning", "error")
_NOISY = ("nats", "pysyncobj", "asyncio")
_EPOCH_AT = {"replica.role_changed": 3}
"""Event -> index of its argument that is the LeaderEpoch."""


def event_of(record: logging.LogRecord) -> str:
    """Return the event name of a log record. If ``EVENTS`` has no name for it, return the logger name with ``.other``."""
    found = EVENTS.get((record.name, str(record.msg)[:KEY_CHARS]))
    return found or f"{record.name.removeprefix('liftpy.')}.{_OTHER}"


def partition_of(record: logging.LogRecord) -> PartitionKey | None:
    """Return the partition that a log record is about. None: it is not about one partition."""
    first = record.args[0] if isinstance(record.args, tuple) and record.args else None
    return first if isinstance(first, PartitionKey) else None


class Suppression(logging.Filter):
    """Log filter that limits the rate of lines for each event and partition. Any thread may call it.

    ``say``: function that writes an additional line. ``clock``: monotonic clock, in nanoseconds.
    """

    def __init__(self, say: Callable[[logging.LogRecord], None], clock: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__()
        self._say = say
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[tuple[str, PartitionKey | None], TokenBucket] = {}
        """(event, partition) -> bucket of lines. The most recently used one is last."""
        self._suppressed: dict[tuple[str, PartitionKey | None], tuple[int, logging.LogRecord]] = {}
        """(event, partition) -> (number of suppressed lines, the last of them)."""
        self.messages: Counter[str] = Counter()
        """Level -> number of logged lines."""
        self.left_out_count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        key = event_of(record), partition_of(record)
        with self._lock:
            takes = record.levelno >= logging.ERROR or self._takes(key)
            if takes:
                self.messages[record.levelname.lower()] += 1
            else:
                self.left_out_count += 1
                count, _ = self._suppressed.get(key, (0, record))
                self._suppressed[key] = count + 1, record
            told = self._suppressed.pop(key, None) if takes else None
        if told is not None:
            self._write_count(*told)
        return takes

    def _takes(self, key: tuple[str, PartitionKey | None]) -> bool:
        bucket = touch_entry(self._buckets, key, MOST_KEYS, lambda: TokenBucket(LINES_PER_S, BURST_LINES))
        return bucket.take(1, self._clock())

    def _seen_ns(self, key: tuple[str, PartitionKey | None]) -> int:
        bucket = self._buckets.get(key)
        return 0 if bucket is None else bucket.seen_ns

    def write_counts(self, *, all_of_it: bool = False) -> None:
        """Write a line with the number of suppressed lines, for each event and partition whose last line is older than a second."""
        if not self._suppressed:
            return
        last_ns = self._clock() - _LATER_NS
        with self._lock:
            due = [key for key in self._suppressed if all_of_it or self._seen_ns(key) <= last_ns]
            told = [self._suppressed.pop(key) for key in due]
        for count, record in told:
            self._write_count(count, record)

    def _write_count(self, count: int, last: logging.LogRecord) -> None:
        text = f"suppressed {count:,} lines like this one: {last.getMessage()}"
        made = logging.LogRecord(last.name, last.levelno, last.pathname, last.lineno, text, None, None)
        made.__dict__.update(event=event_of(last), partition_key=partition_of(last), suppressed=count)
        self._say(made)


class JsonFormatter(logging.Formatter):
    """Formats log lines as JSON objects. ``facts``: returns fields about the node that each line has."""

    def __init__(self, facts: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self._facts = facts

    def format(self, record: logging.LogRecord) -> str:
        event, key = (
            getattr(record, "event", "") or event_of(record),
            getattr(record, "partition_key", None) or partition_of(record),
        )
        when = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "ts": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event,
            "msg": record.getMessage(),
            **self._facts(),
        }
        if key is not None:
            line |= {"stream": key.stream, "partition": key.partition}
        if event in _EPOCH_AT and isinstance(record.args, tuple) and len(record.args) > _EPOCH_AT[event]:
            line["epoch"] = record.args[_EPOCH_AT[event]]
        if (suppressed := getattr(record, "suppressed", 0)) > 0:
            line["suppressed"] = suppressed
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class NodeLogs:
    """Log output of one process: level, format and rate limit."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        """``node`` and ``incarnation``, if they are known."""
        self._handler: logging.Handler = logging.NullHandler()
        self.suppression = Suppression(lambda record: self._handler.emit(record))
        self._level = "info"
        self._until: Any = None

    def configure(self, level: str, form: str, node_id: str, stream: TextIO | None = None) -> None:
        """Write the log of this process to ``stream`` (default: the standard error)."""
        self.facts, self._level = {"node": node_id}, level
        handler = self._handler = logging.StreamHandler(stream or sys.stderr)
        handler.setFormatter(self._formatter(form))
        handler.addFilter(self.suppression)
        logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
        for noisy in _NOISY:
            logging.getLogger(noisy).setLevel(logging.WARNING)

    def _formatter(self, form: str) -> logging.Formatter:
        text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")
        return JsonFormatter(lambda: self.facts) if form == "json" else text

    def reconfigure(self, level: str, form: str) -> None:
        """Apply another ``level`` and another format ``form``. A temporary level stays in effect until its end."""
        self._level = level
        self._handler.setFormatter(self._formatter(form))
        if self._until is None:
            logging.getLogger().setLevel(level.upper())

    def change_level(self, level: str, for_s: float, call_later: Callable[[float, Callable[[], None]], Any]) -> None:
        """Use the log level ``level`` for ``for_s`` seconds. ``call_later``: function that starts a timer."""
        if self._until is not None:
            self._until.cancel()
        logging.getLogger().setLevel(level.upper())
        logger.warning("log level changed level=%s seconds=%g", level, for_s)
        self._until = call_later(for_s, self._fall_back)

    def _fall_back(self) -> None:
        self._until = None
        logger.warning("log level restored level=%s", self._level)
        logging.getLogger().setLevel(self._level.upper())


LOGS = NodeLogs()


# Limits the log lines about single partitions, because an event may concern thousands of them.
#
# A line costs 20 us and a write. If 5,000 partitions change their leader, the lines would cost more than the change. Suppressed
# lines are counted, and the count is logged with the next line.


MAX_LINES_PER_S = 200
SELDOM_S = 1.0


class InfoLogRateLimit:
    """Writes log lines of level ``info``, at most ``lines_per_s`` for all partitions of a process together."""

    def __init__(self, lines_per_s: int = MAX_LINES_PER_S) -> None:
        self._limit = LogRateLimit(1.0, lines_per_s)
        self.left_out_count = 0

    def info(self, logger: logging.Logger, text: str, *given: object) -> None:
        """Write the line ``text``, or only count it as suppressed if the limit is reached. ``given``: values for the text."""
        suppressed = self._limit.admit(time.monotonic())
        if suppressed is None:
            self.left_out_count += 1
            return
        if suppressed:
            logger.info("suppressed %d log lines about partitions", suppressed)
        logger.info(text, *given)


CHATTER = InfoLogRateLimit()


class WarningLogRateLimit:
    """Writes each warning at most once per second. The next line with the same text has the number of suppressed ones."""

    def __init__(self) -> None:
        self._limits: dict[str, LogRateLimit] = {}

    def warning(self, logger: logging.Logger, text: str, *given: object) -> None:
        suppressed = self._limits.setdefault(text, LogRateLimit(SELDOM_S)).admit(time.monotonic())
        if suppressed is not None:
            logger.warning(text + (f" (and {suppressed} more of these)" if suppressed else ""), *given)
