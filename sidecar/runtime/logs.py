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
import os
import select
import stat
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
    ("liftpy.nats", "NATS connection error=%r"): "nats.error",
    ("liftpy.nats", "NATS connection lost connection=%s reason=%s: reconnecting"): "nats.disconnected",
    ("liftpy.nats", "cannot reconnect to NATS connection=%s reason=%s: retrying"): "nats.reconnect_failed",
    ("liftpy.nats", "message processing failed subject=%r error=%r: dropping the "): "nats.message_rejected",
    ("liftpy.nats", "cannot connect to NATS servers=%s reason=%s: retrying"): "nats.connect_failed",
    ("liftpy.nats", "cannot use the credentials reason=%s: retrying"): "nats.credentials_failed",
    ("liftpy.nats", "standby connection cannot connect to NATS error=%s: retrying"): "nats.standby_connect_failed",
    ("liftpy.nats", "NATS permission denied error=%s"): "nats.permission_denied",
    ("liftpy.nats", "NATS data cannot be decoded: reconnecting"): "nats.unreadable",
    ("liftpy.disk", "HW checkpoint failed partition=%s error=%s: retrying at the "): "disk.checkpoint_failed",
    ("liftpy.disk", "slow flush log=%s seconds=%.1f slow_flushes=%d: publishers w"): "disk.slow_flush",
    ("liftpy.housekeeping", "free space not known directory=%s error=%s: retrying"): "disk.space_unknown",
    ("liftpy.metadata", "controller starting node=%s reason=%s"): "metadata.controller_starting",
    ("liftpy.metadata", "controller not started node=%s error=%s: %s"): "metadata.controller_start_failed",
    ("liftpy.metadata", "metadata group connection error=%r"): "metadata.nats_error",
    ("liftpy.metadata", "no controller answers node=%s seconds=%d: starting a metadat"): "metadata.group_assumed_absent",
    ("liftpy.metadata", "metadata group not ruled out node=%s reason=%s: asking again"): "metadata.group_unknown",
    ("liftpy.metadata", "settings name only this node as controller node=%s, but a me"): "metadata.settings_ignored",
    ("liftpy.metadata", "controller started node=%s"): "metadata.became_controller",
    ("liftpy.metadata", "controller out of service node=%s error=%s: following the me"): "metadata.controller_out_of_service",
    ("liftpy.metadata", "metadata group message failed error=%r: dropping the message"): "metadata.message_rejected",
    ("liftpy.metadata", "controller stopped node=%s: following the metadata feed"): "metadata.became_follower",
    ("liftpy.metadata", "controllers in the settings differ from the metadata log set"): "metadata.settings_differ",
    ("liftpy.metadata", "events not written to their stream error=%s: retrying"): "events.not_stored",
    ("liftpy.groups", "group coordinator failed partition=%s error=%s: restarting i"): "group.coordinator_restarted",
    ("liftpy.groups", "group coordinators not loaded error=%r: retrying after the n"): "group.coordinators_not_loaded",
    ("liftpy.groups", "group coordinators not started missing_inbox_prefix=%s: this"): "group.coordinator_disabled",
    ("liftpy.node", "component failed to close component=%s, closing the others"): "node.close_failed",
    ("liftpy.node", "log lines dropped count=%d: nothing read the standard error"): "node.log_lines_dropped",
    ("liftpy.node", "ready line not written error=%s: continuing"): "node.ready_line_not_written",
    ("liftpy.node", "settings reloaded applied=%s waiting_for_restart=%s"): "node.settings_reloaded",
    ("liftpy.node", "unknown environment variable, ignoring variable=%s nearest=%"): "node.unknown_variable",
    ("liftpy.node", "mark of a failed flush not removed log=%s error=%s: continui"): "log.mark_not_removed",
    ("liftpy.node", "settings not reloaded error=%s: keeping the current ones"): "node.settings_rejected",
    ("liftpy.workers", "worker not stopped worker=%d seconds=%.1f: killing it"): "node.worker_killed",
    ("liftpy.proposals", "ISR changed partition=%s isr=%s"): "isr.changed",
    ("liftpy.proposals", "replica removed from the ISR partition=%s reason=%s"): "isr.left",
    ("liftpy.proposals", "ISR not changed partition=%s reason=%s"): "isr.change_failed",
    ("liftpy.proposals", "slow replica removed from the ISR partition=%s replica=%s fl"): "isr.slow_replica",
    ("liftpy.jetstream", "JetStream read API cannot connect to NATS error=%s: retrying"): "jetstream.connect_failed",
    ("liftpy.jetstream", "JetStream read API started subject=%s"): "jetstream.enabled",
    ("liftpy.housekeeping", "log compacted partition=%s removed_records=%d"): "log.compacted",
    ("liftpy.housekeeping", "compaction failed partition=%s error=%s: retrying in %.0f s"): "log.compaction_failed",
    ("liftpy.node", "log damaged log=%s report=%s"): "log.damaged",
    ("liftpy.node", "log not recovered log=%s code=%s error=%s"): "log.recovery_failed",
    ("liftpy.node", "log not recovered yet log=%s error=%s: retrying"): "log.recovery_retried",
    ("liftpy.node", "log directory missing log=%s: records that this node acknowl"): "log.directory_lost",
    ("liftpy.node", "all segments missing log=%s: records that this node acknowle"): "log.segments_lost",
    ("liftpy.partition", "log recovered partition=%s report=%s"): "log.recovered",
    ("liftpy.partition", "old records deleted on a full disk partition=%s log_start=%d"): "log.deleted_on_full_disk",
    ("liftpy.partition", "retention failed partition=%s error=%s: retrying in the next"): "log.retention_failed",
    ("liftpy.node", "log suspect log=%s reason=%s rewritten_bytes=%d: these bytes"): "log.suspect",
    ("liftpy.membership", "transferring leaderships result=%s"): "node.transferring_leaderships",
    ("liftpy.membership", "heartbeat not answered reason=%s: retrying"): "node.heartbeat_unanswered",
    ("liftpy.membership", "session times in the settings differ from those of the clust"): "node.session_times_differ",
    ("liftpy.membership", "leaderships not transferred reason=%s: stopping without a tr"): "node.leaderships_not_transferred",
    ("liftpy.membership", "node not registered reason=%s: retrying"): "node.registration_failed",
    ("liftpy.membership", "node registered warning=%s"): "node.registered_with_warning",
    ("liftpy.membership", "stop not reported to the metadata group reason=%s: stopping"): "node.stop_not_reported",
    ("liftpy.quorum", "older raft directory found known_by=%s: perhaps an older cop"): "metadata.directory_went_back",
    ("liftpy.quorum", "impossible term rejected peer=%s peer_term=%d term=%d"): "metadata.impossible_term",
    ("liftpy.quorum", "images of controllers differ problem=%s"): "metadata.images_differ",
    ("liftpy.quorum", "image differs from the majority quarantined_directory=%s: fe"): "metadata.directory_quarantined",
    ("liftpy.quorum", "journal not closed error=%s: continuing"): "metadata.journal_close_failed",
    ("liftpy.quorum", "metadata leader elected node=%s term=%d"): "metadata.leadership_gained",
    ("liftpy.quorum", "metadata group recovered by force action=%s"): "metadata.force_recovered",
    ("liftpy.quorum", "metadata leadership lost node=%s"): "metadata.leadership_lost",
    ("liftpy.quorum", "controllers differ here=%s there=%s node=%s: the two nodes r"): "metadata.lists_differ",
    ("liftpy.quorum", "controller failed error=%s: stopping it"): "metadata.controller_failed",
    ("liftpy.quorum", "raft directory of a peer peer=%s state=%s"): "metadata.peer_directory",
    ("liftpy.quorum", "controller removed node=%s index=%d"): "metadata.controller_removed",
    ("liftpy.quorum", "controller votes node=%s"): "metadata.voter_added",
    ("liftpy.quorum", "controller waits node=%s reason=%s"): "metadata.waiting",
    ("liftpy.node", "wall clock not trusted reason=%s: pausing age-based retentio"): "node.clock_untrusted",
    ("liftpy.node", "wall clock trusted: resuming age-based retention"): "node.clock_trusted",
    ("liftpy.node", "node failed node=%s error=%s: stopping"): "node.failed",
    ("liftpy.node", "data directory was writable for other users directory=%s: pe"): "node.directory_permissions_fixed",
    ("liftpy.node", "log level changed level=%s seconds=%g"): "node.log_level_changed",
    ("liftpy.node", "log level restored level=%s"): "node.log_level_restored",
    ("liftpy.node", "NATS server accepts clients without credentials: each client"): "node.open_nats",
    ("liftpy.node", "another process runs as this node node=%s: waiting for its e"): "node.duplicate_process",
    ("liftpy.node", "log damaged node=%s log=%s: restarting to repair it"): "node.restart_for_repair",
    ("liftpy.node", "node stopped restarts=%d: starting again in %g s"): "node.restarting",
    ("liftpy.node", "stop not complete seconds=%g: forcing exit"): "node.stop_timeout",
    ("liftpy.node", "node stopped node=%s clean=%s seconds=%.2f"): "node.stopped",
    ("liftpy.node", "supervisor not notified state=%s error=%s: continuing"): "node.supervisor_unreachable",
    ("liftpy.node", "background task failed task=%s error=%r: stopping the node"): "node.task_failed",
    ("liftpy.node", "unknown stream directory=%s: keeping it. If the data is not "): "node.unknown_directory",
    ("liftpy.node", "node started node=%s incarnation=%d"): "node.up",
    ("liftpy.partition", "HW checkpoint failed partition=%s error=%s: retrying"): "partition.checkpoint_failed",
    ("liftpy.partitions", "data of an unknown stream removed directory=%s bytes=%d"): "partition.unknown_data_removed",
    ("liftpy.partitions", "partition not deleted partition=%s: it has left this node, b"): "partition.deletion_waits",
    ("liftpy.partitions", "metadata went back or was rescued partitions=%d: keeping the"): "partition.kept",
    ("liftpy.partitions", "partition deleted partition=%s"): "partition.deleted",
    ("liftpy.partitions", "partition deleted partition=%s: it has left this node"): "partition.deleted_moved_away",
    ("liftpy.partitions", "partition not deleted partition=%s: the metadata feed remove"): "partition.deletion_contradicted",
    ("liftpy.partitions", "partition not deleted partition=%s: no controller confirms t"): "partition.deletion_unconfirmed",
    ("liftpy.partitions", "in-flight publishes not checked error=%r: transferring the l"): "leader.transfer_unverified",
    ("liftpy.partition", "log not closed partition=%s error=%s: continuing"): "partition.close_failed",
    ("liftpy.partition", "records deleted without a stored state partition=%s below=%d"): "partition.dropped_without_state",
    ("liftpy.partitions", "partition not deleted partition=%s error=%s: retrying in %.0"): "partition.delete_failed",
    ("liftpy.partitions", "log not opened partition=%s code=%s error=%s"): "partition.open_failed",
    ("liftpy.partition", "partition opened partition=%s log_start=%d newest_offset=%d "): "partition.opened",
    ("liftpy.proposals", "pause ended partition=%s pause=%s"): "partition.pause_ended",
    ("liftpy.partition", "quarantined files not removed partition=%s error=%s: retryin"): "partition.quarantine_not_removed",
    ("liftpy.partition", "standby buffer not compared with the log partition=%s error="): "partition.standby_unreadable",
    ("liftpy.partition", "state file discarded partition=%s file=%s reason=%s"): "partition.state_discarded",
    ("liftpy.status", "records read stream=%s partition=%d sender=%s query=%s"): "records.read",
    ("liftpy.partition", "replica repaired partition=%s: removed quarantined files=%s"): "replica.repaired",
    ("liftpy.ingest", "publishes without reply subject dropped counts=%s%s"): "publish.dropped",
    ("liftpy.ingest", "publishes lost with a connection that the server closed reas"): "publish.lost",
    ("liftpy.ingest", "publishes lost with a connection, number not known at_least="): "publish.lost_unknown",
    ("liftpy.proposals", "copy failed partition=%s reason=%s: requesting that another "): "replica.copy_failed",
    ("liftpy.proposals", "leadership given up partition=%s reason=%s"): "replica.transfer_requested",
    ("liftpy.replica", "standby buffer replayed partition=%s to_append=%d already_in"): "replica.standby_takeover",
    ("liftpy.proposals", "leader lacks committed records partition=%s leader=%s hw=%d"): "replica.leader_lacks_records",
    ("liftpy.replica", "log discarded partition=%s: fetching it again from=%d"): "replica.log_reset",
    ("liftpy.replica", "log truncated partition=%s log_end=%d"): "replica.log_truncated",
    ("liftpy.replica", "truncation delayed partition=%s: waiting for the running flu"): "replica.truncation_waiting",
    ("liftpy.proposals", "proposal rejected partition=%s request=%s reason=%s"): "replica.proposal_rejected",
    ("liftpy.replica", "replica role changed partition=%s role=%s phase=%s epoch=%d"): "replica.role_changed",
    ("liftpy.replica", "replica fetched damaged bytes partition=%s replica=%s offset"): "replica.served_wrong_bytes",
    ("liftpy.driver", "replica step partition=%s event=%s effects=%s"): "replica.step",
    ("liftpy.requests", "status request failed error=%r: request rejected, node conti"): "status.request_failed",
    ("liftpy.driver", "replica stopped partition=%s error=%s\n%s"): "replica.stopped",
    ("liftpy.replica", "storage failed partition=%s error=%s"): "replica.storage_failed",
    ("liftpy.replication", "batch from the leader damaged partition=%s offset=%d error=%"): "replication.damaged",
    ("liftpy.replication", "batch not read for a follower partition=%s offset=%d error=%"): "replication.read_failed",
    ("liftpy.replication", "leader sends no state partition=%s: its version is older. Th"): "replication.state_unavailable",
    ("liftpy.replication", "batch too large for the follower partition=%s offset=%d byte"): "replication.too_large",
    ("liftpy.scrub", "damage found partition=%s error=%s"): "scrub.damage",
    ("liftpy.scrub", "scrub interrupted error=%s: continuing"): "scrub.interrupted",
    ("liftpy.scrub", "scrub progress not stored error=%s: retrying"): "scrub.progress_not_stored",
    ("liftpy.services", "service ended partition=%s service=%s kind=%s reason=%s"): "service.ended",
    ("liftpy.services", "leadership transferred for a service partition=%s from=%s to"): "service.leadership_transferred",
    ("liftpy.services", "service problem partition=%s service=%s problem=%s"): "service.problem",
    ("liftpy.partition", "records deleted before a service read them partition=%s log_"): "service.records_deleted",
    ("liftpy.services", "promotion continues without slow services partition=%s"): "service.slow_promotion",
    ("liftpy.services", "invalid service frame error=%s: ignored"): "service.frame_rejected",
    ("liftpy.tracing", "trace collector accepts no spans: dropping and counting them"): "tracing.export_rejected",
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
MAX_LINES_PER_S = 200
SELDOM_S = 1.0
_ROOM_WAIT_MS = 50
"""Time for which a line waits for room in the pipe or terminal, in milliseconds."""
_NO_WAIT_S = 5.0
"""Time after such a wait in which lines without room are dropped at once, in seconds."""


def event_of(record: logging.LogRecord) -> str:
    """Return the event name of a log record. If ``EVENTS`` has no name for it, return the logger name with ``.other``."""
    event = EVENTS.get((record.name, str(record.msg)[:KEY_CHARS]))
    return event or f"{record.name.removeprefix('liftpy.')}.{_OTHER}"


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
        self.suppressed_count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        key = event_of(record), partition_of(record)
        with self._lock:
            takes = record.levelno >= logging.ERROR or self._is_within_limit(key)
            if takes:
                self.messages[record.levelname.lower()] += 1
            else:
                self.suppressed_count += 1
                count, _ = self._suppressed.get(key, (0, record))
                self._suppressed[key] = count + 1, record
            suppression = self._suppressed.pop(key, None) if takes else None
        if suppression is not None:
            self._write_count(*suppression)
        return takes

    def _is_within_limit(self, key: tuple[str, PartitionKey | None]) -> bool:
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
            suppressions = [self._suppressed.pop(key) for key in due]
        for count, record in suppressions:
            self._write_count(count, record)

    def _write_count(self, count: int, last: logging.LogRecord) -> None:
        text = f"suppressed {count:,} lines like this one: {last.getMessage()}"
        record = logging.LogRecord(last.name, last.levelno, last.pathname, last.lineno, text, None, None)
        record.__dict__.update(event=event_of(last), partition_key=partition_of(last), suppressed=count)
        self._say(record)


def message_of(record: logging.LogRecord) -> str:
    """Return the message. An error text ends with a period, so the period is left out before ``: retrying`` and similar words."""
    return record.getMessage().replace(".: ", ": ")


class TextFormatter(logging.Formatter):
    """Formats log lines as text, with the local time."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = message_of(record)
        return super().formatMessage(record)


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
            "msg": message_of(record),
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


def _may_stall(stream: TextIO) -> bool:
    """Return whether ``stream`` is a pipe, socket or terminal, whose reader may pause."""
    try:
        return not stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):  # a buffer in memory
        return False


def _descriptor_of(stream: TextIO) -> int:
    """Return a new descriptor of the pipe or terminal ``stream``, whose writes never wait. Other processes keep theirs unchanged."""
    try:
        return os.open(f"/proc/self/fd/{stream.fileno()}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:  # a socket, or a pipe of another user
        return os.dup(stream.fileno())


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes log lines to a stream. If nothing reads the stream, it drops and counts lines, so that the process never waits.

    Otherwise a paused reader (a terminal after Ctrl-S, a log collector that hangs) would block the event loop of a node. The node
    would lose its leaderships, and would not react to SIGTERM.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._descriptor = _descriptor_of(stream) if _may_stall(stream) else -1
        self._room = select.poll()
        if self._descriptor >= 0:
            self._room.register(self._descriptor, select.POLLOUT)
        self._dropped_count = 0
        self._is_cut = False
        """True if the last line was written in part."""
        self._may_wait_s = 0.0
        """Monotonic time from which a line may wait for room again, in seconds."""

    def emit(self, record: logging.LogRecord) -> None:
        if self._descriptor < 0:
            super().emit(record)
            return
        self.acquire()  # the rate limit also calls this method, from any thread
        try:
            if self._dropped_count and self._room.poll(0):
                count, self._dropped_count = self._dropped_count, 0
                logger.warning("log lines dropped count=%d: nothing read the standard error", count)
            if not self._write(f"{self.format(record)}{self.terminator}".encode(errors="backslashreplace")):
                self._dropped_count += 1
        except Exception:
            self.handleError(record)
        finally:
            self.release()

    def _write(self, line: bytes) -> bool:
        """Write ``line``. Return False if it was dropped, or written in part. A line may wait for room for a short time."""
        wait_ms = _ROOM_WAIT_MS if time.monotonic() >= self._may_wait_s else 0
        rest = memoryview(b"\n" * self._is_cut + line)
        size_bytes = len(rest)
        try:
            while rest and self._room.poll(wait_ms):
                rest = rest[os.write(self._descriptor, rest[: select.PIPE_BUF]) :]
        except OSError:  # the pipe is closed, or another process has used the room
            pass
        self._is_cut = 0 < len(rest) < size_bytes or (self._is_cut and len(rest) == size_bytes)
        if rest and wait_ms:
            self._may_wait_s = time.monotonic() + _NO_WAIT_S
        return not rest

    def close(self) -> None:
        super().close()
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class NodeLogs:
    """Log output of one process: level, format and rate limit."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        """``node`` and ``incarnation``, if they are known."""
        self._handler: logging.Handler = logging.NullHandler()
        self.suppression = Suppression(lambda record: self._handler.emit(record))
        self._level = "info"
        self._until: Any = None
        """Timer that ends the temporary level. None: there is no temporary level."""

    def configure(self, level: str, form: str, node_id: str, stream: TextIO | None = None) -> None:
        """Write the log of this process to ``stream`` (default: the standard error)."""
        self.facts, self._level = {"node": node_id}, level
        handler = self._handler = LogHandler(stream or sys.stderr)
        handler.setFormatter(self._formatter(form))
        handler.addFilter(self.suppression)
        logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
        for noisy in _NOISY:
            logging.getLogger(noisy).setLevel(logging.WARNING)

    def _formatter(self, form: str) -> logging.Formatter:
        return JsonFormatter(lambda: self.facts) if form == "json" else TextFormatter()

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

    def close(self) -> None:
        """End the temporary level, and write the counts of suppressed lines, because the node stops."""
        if self._until is not None:
            self._until.cancel()
            self._fall_back()
        self.suppression.write_counts(all_of_it=True)

    def _fall_back(self) -> None:
        self._until = None
        logger.warning("log level restored level=%s", self._level)
        logging.getLogger().setLevel(self._level.upper())


LOGS = NodeLogs()


class InfoLogRateLimit:
    """Writes log lines of level ``info``, at most ``lines_per_s`` for all partitions of a process together.

    An event may concern thousands of partitions. A line costs 20 us and a write. If 5,000 partitions change their leader, the
    lines would cost more than the change. Suppressed lines are counted, and the count is logged with the next line.
    """

    def __init__(self, lines_per_s: int = MAX_LINES_PER_S) -> None:
        self._limit = LogRateLimit(1.0, lines_per_s)

    def info(self, logger: logging.Logger, text: str, *arguments: object) -> None:
        """Write the line ``text``, or only count it as suppressed if the limit is reached. ``arguments``: values for the text."""
        suppressed = self._limit.admit(time.monotonic())
        if suppressed is None:
            return
        if suppressed:
            logger.info("log lines about partitions suppressed count=%d", suppressed)
        logger.info(text, *arguments)


INFO_LOG_LIMIT = InfoLogRateLimit()


class WarningLogRateLimit:
    """Writes each warning at most once per second. The next line with the same text has the number of suppressed ones."""

    def __init__(self) -> None:
        self._limits: dict[str, LogRateLimit] = {}

    def warning(self, logger: logging.Logger, text: str, *arguments: object) -> None:
        suppressed = self._limits.setdefault(text, LogRateLimit(SELDOM_S)).admit(time.monotonic())
        if suppressed is not None:
            logger.warning(text + (f" (and {suppressed} more of these)" if suppressed else ""), *arguments)
