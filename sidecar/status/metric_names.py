"""Table of all metrics of a node: name (without ``liftpy_``), kind, labels, rule and help. docs/metrics.md shows the same table.

The values of a label are defined in code. A label has at most ``MOST_VALUES`` values. Later values are counted as
``(other)``, so a node has at most 510 series. The label ``stream`` exists only for streams that ``metrics_streams``
names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MOST_VALUES = 17
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
SUM, FIRST, LARGEST, SMALLEST, OLDEST = "sum", "first", "largest", "smallest", "oldest"
"""Rules that combine the values of a metric in several processes of a node into one value.

FIRST: the value of the first process. OLDEST: the largest age, where -1 (never) counts as the largest. A histogram has SUM or FIRST.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One metric in the table of all metrics of a node.

    Attributes:
        labels: Names of its labels in order.
        by_stream: True if the metric can also have the label ``stream``.
        rule: Rule that combines its values in several processes of a node.
    """

    kind: str
    labels: tuple[str, ...]
    text: str
    by_stream: bool = False
    rule: str = field(default=SUM, repr=False)


def _rows(kind: str, table: str) -> Iterator[tuple[str, Row]]:
    """Yield (name, row) for the lines ``name{label,label} [rule]: text`` of a table. Indented lines continue the text.

    A line without ``[rule]`` has the rule SUM.
    """
    for line in re.sub(r"\n +", " ", table.strip()).split("\n"):
        head, _, text = line.partition(": ")
        head, _, rule = head.rstrip("]").partition(" [")
        name, _, labels = head.rstrip("}").partition("{")
        words = labels.split(",") if labels else []
        yield name, Row(kind, tuple(word for word in words if word != "stream"), text, "stream" in words, rule or SUM)


_GAUGES = """
build_info{version,python} [first]: Always 1. The labels are the versions of liftpy and Python.
uptime_seconds [largest]: Time since the start of this node, in seconds.
node_info{node,rack,namespace,controller} [first]: Always 1. The labels are the node id, its rack, its namespace, and whether it is
    a controller.
feature_level [first]: Feature level of the cluster, as this node knows it.
feature_level_supported{bound} [first]: Lowest (min) and highest (max) feature level that this node's version supports.
standby_buffer_bytes: Size of the standby buffers on this node (failover_standby), in bytes.
acks_waiting{stream}: Number of publishes on this node that wait for an ack.
queued_bytes: Memory for publishes in progress on this node, in bytes. Read buffers and standby buffers count up to their
    shares.
ingest_queue_delay_seconds [largest]: Approximate queue delay of the oldest unprocessed publish, in seconds (limit: max_queue_delay_s).
queued_bytes_limit: Limit of queued_bytes, in bytes (memory_limit_bytes). From 4/5 on, partitions accept less.
held_bytes: Size of publishes that the node holds back, in bytes: too few replicas are in sync, or the followers are behind.
uncommitted_bytes: Approximate size of records that leaders on this node appended and not committed, in bytes.
uncommitted_records: Number of records above the high watermark, over all partitions that this node leads.
ingest_buffer_bytes: Size of publishes that the node has read from NATS and not processed, in bytes.
dedup_state_bytes{of}: Approximate memory for message ids, producers and subjects of the partitions on this node, in bytes.
dedup_state_limit_bytes: Limit of dedup_state_bytes, in bytes (node_dedup_state_bytes). From 7/8 on, leaders reject new ones.
partitions_with_full_subject_index: Number of partitions on this node whose subject index exceeds partition_subject_index_bytes.
partitions{role}: Number of replicas on this node, by role.
partitions_under_replicated{stream}: Number of partitions that this node leads and that have replicas outside the ISR.
partitions_at_min_isr: Number of partitions that this node leads and whose ISR has exactly min_isr members.
partitions_under_min_isr{stream}: Number of partitions that this node leads and that commit nothing, because fewer than
    min_isr replicas are in sync.
scrape_stale_partitions: Number of partitions whose values are from an earlier scrape, because the 20 ms budget of this
    scrape was used up.
partitions_failed: Number of partitions on this node whose log has failed or cannot be opened.
partitions_quiet: Number of idle partitions that this node follows. It fetches them with one request per leader node.
partitions_paused: Number of partitions that this node leads and that an operator paused.
partitions_moving: Number of partitions that this node leads and whose replicas are being moved, added or removed.
replicas_with_slow_disks: Number of replicas with far slower flushes than other replicas, over all partitions that this node
    leads.
replica_lag_records{stream} [largest]: Number of records that the slowest follower lacks, over all partitions that this node leads.
replica_lag_seconds{stream} [largest]: Time since the slowest follower of a partition that this node leads was last caught up,
    in seconds.
fragment_reassembly_bytes: Size of incomplete batches that followers on this node receive in pieces, in bytes.
log_size_bytes{stream}: Size of the logs on this node, in bytes.
flush_on_event_loop [smallest]: 1 if this node flushes on its event loop (fast disk, 20 ms at most), 0 if it flushes in threads.
disk_free_bytes [first]: Free space for this node in the file system of the data directory, in bytes.
disk_size_bytes [first]: Size of the file system of the data directory, in bytes.
partitions_with_quarantined_files: Number of partitions on this node that keep quarantined (damaged) files until they are in
    sync again.
recovery_duration_seconds [largest]: Duration of the log recovery at the last start of this node, in seconds.
scrub_age_seconds [oldest]: Time since the last complete check of all logs (scrub), in seconds. -1: never.
clock_untrusted [largest]: 1 if this node does not trust its wall clock and deletes nothing by age.
clock_skew_seconds [largest]: Difference between the clock of this node and the median of the other nodes, in seconds. Positive: this
    clock is ahead.
readers_waiting: Number of read requests that wait for new records (long poll) on this node.
readers_waiting_bytes: Memory of the waiting read requests, in bytes.
metadata_has_leader [first]: 1 if this node knows a leader of the metadata group.
metadata_is_leader [first]: 1 if this node is the metadata leader.
metadata_commit_index [first]: Index of the last committed entry of the metadata log, as this controller knows it.
metadata_applied_index [first]: Index of the last entry of the metadata log that this node applied.
metadata_journal_bytes [first]: Size of the metadata journal on this controller's disk, in bytes.
metadata_journal_entries [first]: Number of entries of the metadata log that this controller keeps.
metadata_journal_memory_bytes [first]: Memory for the entries of the metadata log on this controller, in bytes.
metadata_operations [first]: Number of recent requests whose answers this controller remembers.
metadata_operations_bytes [first]: Memory for the answers of recent requests on this controller, in bytes.
cluster_nodes{state} [first]: Controllers: number of nodes in the cluster, by state (live, fenced, drained).
cluster_streams [first]: Controllers: number of streams in the cluster.
cluster_streams_waiting [first]: Controllers: number of streams that wait for nodes and have no partitions yet.
cluster_partitions_offline [first]: Controllers: number of partitions without a replica that may lead.
cluster_partitions_electing [first]: Controllers: number of partitions with an election in progress.
nats_connected [smallest]: 1 if all data connections of this node to NATS are up.
nats_connection_up{connection} [smallest]: 1 if this connection of the node to NATS is up.
nats_send_buffer_bytes{connection}: Size of the data that waits to be sent to NATS on this connection, in bytes.
services{role}: Number of replicated services that are registered with this node, by role.
services_unregistered: Number of replicated services that were registered with this node and are not any more.
services_ended: Number of replicated services next to this node that ended without being stopped and did not return.
services_diverged: Number of replicated services next to this node that ended because their state differed from the other
    instances.
services_differing: Number of running replicated services next to this node whose state differs from another instance.
services_blocked: Number of replicated services next to this node that are blocked at a record.
service_lag_records [largest]: Number of records that the slowest service next to this node is behind the high watermark.
service_output_backlog: Number of outputs of LEADER services next to this node that are not written yet.
service_output_age_seconds [largest]: Longest time since a LEADER service with waiting outputs wrote one, in seconds.
service_snapshot_age_seconds [largest]: Age of the newest snapshot of a service next to this node, in seconds. The service with the
    oldest one counts.
service_state_bytes: Size of the newest snapshots of the services next to this node, in bytes.
service_snapshot_bytes{way}: Size of the snapshots that services next to this node fetched from or gave to other nodes, in
    bytes, since they started.
service_queries{state}: Number of queries to the services next to this node since they started, by result.
coordinators{state}: Number of group coordinators on this node, by state.
groups: Number of groups whose active coordinator is on this node.
group_members: Number of live members of these groups.
queue_partitions: Number of work queue partitions of these groups.
queue_inflight_records: Number of queue records that workers have and have not acked.
group_lag_records{group}: Number of records after the committed positions of a group whose active coordinator is on this node.
group_lag_seconds{group} [largest]: Longest time that the first unread record of a partition has waited for this group, in seconds.
group_lag_unknown: Number of group positions whose partition end is not known, so that their lag is missing.
coordinator_state_bytes: Approximate memory of the coordinators on this node, in bytes.
coordinator_state_limit_bytes [largest]: Memory limit of one coordinator, in bytes. Beyond it, new groups, members, positions and
    queues are rejected.
open_files: Number of open file descriptors, summed over the processes of this node.
open_files_limit: Limit of open file descriptors, summed over the processes of this node.
open_maps: Number of mapped sealed segments, summed over the processes of this node.
partition_budget [first]: Number of replicas that the limit of open files allows on this node.
"""

_COUNTERS = """
ingest_records_total{stream}: Records that this node appended as leader.
ingest_bytes_total{stream}: Bytes of record batches that this node appended as leader.
publish_rejected_total{reason}: Publishes with reply subject that this node rejected, by reason.
publish_dropped_total{reason}: Publishes without reply subject that this node dropped, by reason.
quota_throttled_total{scope}: Publishes that a quota rejected or dropped: quota of the stream, or of a subject token.
publish_duplicates_total: Publishes that were not stored again, because their message id or sequence is stored already.
publish_lost_on_disconnect_total: Messages that a NATS server sent before it closed the connection, and that never arrived.
publish_lost_unknown_total: Lost ingest connections for which the number of lost messages is not known.
invalid_envelopes_total: Publishes that look like envelopes and cannot be decoded.
reply_subjects_rejected_total: Publishes whose reply subject is outside inbox_prefixes. They get no ack.
message_ids_evicted_total: Message ids that were dropped before the end of the deduplication window, because memory was full.
producers_evicted_total: Producers that were dropped before they expired, because memory was full.
dedup_state_rejected_total{of}: Publishes that were rejected because there was no memory for a new message id, producer or
    subject.
dedup_state_checkpoints_total: Checkpoints of message ids, producers and subjects that were written.
dedup_state_checkpoint_failures_total: Checkpoints of message ids, producers and subjects that could not be written.
dedup_state_replayed_bytes_total: Bytes of logs that were read again to rebuild message ids, producers and subjects.
standby_messages_total{state}: Messages that standby followers on this node received, by result.
standby_overflow_total: Messages that a standby buffer dropped because it was full.
isr_shrinks_total: Replicas that left the ISR of partitions that this node leads.
isr_expands_total: Replicas that joined the ISR of partitions that this node leads.
replication_bytes_total{direction}: Bytes of batches that followers on this node fetched (in) and leaders on this node sent
    (out).
truncated_records_total: Records that followers on this node removed because their leader does not have them.
replica_copy_bytes_total: Bytes of records that learners on this node copied, including new records.
replica_copy_backlog_bytes_total: Part of replica_copy_bytes_total that counts for copy_bytes_per_s.
copy_throttle_rate_seconds_total: Time that learners waited because of copy_bytes_per_s, in seconds.
copy_throttle_load_seconds_total: Time that learners waited because of copy_duty_cycle, in seconds.
flush_place_changes_total: Switches between flushing on the event loop and flushing in threads.
log_flushes_total{place}: Flushes of logs, by place (event loop or thread).
damaged_segments_total: Damaged segments that recovery or a read found.
scrub_bytes_total: Bytes of logs that the scrub read and checked.
scrub_damage_total: Damaged places that the scrub found.
read_records_total{stream}: Records that this node sent to readers.
read_bytes_total{stream}: Bytes of batches that this node sent to readers.
metadata_divergence_total [first]: Controllers whose metadata differed from the majority, as this controller found.
audit_dropped_total: Cluster events that this controller lost before they were in the stream _liftpy-events.
metadata_compactions_total [first]: Number of times this controller compacted its metadata log.
metadata_leader_changes_total [first]: Changes of the metadata leader that this node saw.
metadata_late_ticks_total [first]: Ticks of the metadata group that were more than 50 ms late.
metadata_proposals_failed_total{reason} [first]: Requests of this node to the metadata group that failed, by error.
cluster_data_directories_lost_total [first]: Controllers: nodes that returned with another data directory, as this controller saw.
cluster_elections_total{kind} [first]: Controllers: leader elections by kind, as this controller saw since its start.
nats_reconnects_total{connection}: Reconnects to NATS, by connection.
nats_messages_total{direction}: Messages over all data connections to NATS, by direction.
nats_bytes_total{direction}: Bytes over all data connections to NATS, by direction.
nats_errors_total{kind}: Errors and dropped messages on the data connections to NATS, by kind.
frames_rejected_total{reason}: Protocol messages that this node rejected, by reason.
log_messages_total{level}: Log lines of all processes of this node, by level.
log_suppressed_total: Log lines that the processes of this node left out because of too many similar lines.
trace_spans_dropped_total: Trace spans that were dropped: over the budget, over the queue limit, or rejected by the collector.
incidents_total{kind}: Rare events on this node, by kind. The kinds are listed in docs/metrics.md.
"""

_HISTOGRAMS = """
ingest_batch_records: Records per batch that this node appended as leader.
ack_duration_seconds{policy}: Time from the arrival of a publish until its ack was sent, in seconds, by ack policy.
ingest_queue_seconds: Time from the arrival of a record until it was appended, in seconds.
commit_duration_seconds: Time from the append of a record until it was committed, in seconds.
log_flush_duration_seconds: Duration of log flushes, as publishers wait for them, in seconds.
fetch_duration_seconds: Time from a follower's fetch request until its answer, in seconds.
read_duration_seconds: Time from the first available record until the answer to the reader, in seconds.
metadata_proposal_duration_seconds [first]: Time from a request of this node to the metadata group until its decision, in seconds.
metadata_fsync_duration_seconds [first]: Duration of journal flushes on this controller, in seconds.
failover_duration_seconds [first]: Controllers: time that a partition had no leader, in seconds.
event_loop_lag_seconds: Delay of a timer on the node's event loop, in seconds, measured ten times a second (idle: once).
"""

TABLE: dict[str, Row] = {
    **dict(_rows(GAUGE, _GAUGES)),
    **dict(_rows(COUNTER, _COUNTERS)),
    **dict(_rows(HISTOGRAM, _HISTOGRAMS)),
}

INCIDENTS = (
    "slow_flush",
    "storage_failure",
    "damage_met",
    "suspect_log",
    "service_records_deleted",
    "clock_skew_unknown",
    "dedup_state_discarded",
    "dedup_state_restored",
    "slow_replica_evicted",
    "transfer_slow_disk",
    "transfer_move",
    "transfer_service",
    "service_end_without_event",
    "transfer_missed_publishes",
    "coordinator_restarted",
    "group_check_failed",
    "permission_denied",
    "fetch_read_failed",
    "batch_too_large_for_follower",
    "read_failed",
    "fetched_damage",
    "reader_of_lost_records",
    "reader_not_waited",
    "read_dropped",
    "local_files_served",
    "idle_poll_timeout",
    "scrub_damage",
    "scrub_interrupted",
    "jetstream_rejected",
)
"""Counters of a node that are labels of ``incidents_total``. Other counters appear only on the page."""
ERRORS = (
    "send_buffer_full",
    "dropped_disconnected",
    "too_large",
    "acks_dropped",
    "not_taken",
    "foreign_subject",
    "malformed",
    "undecodable",
    "late_pong",
    "ingest_buffer_full",
    "unreadable",
    "disconnected",
)
"""Labels of connection errors. ``server``: errors that a server reports. ``other``: all other errors."""

MOST_SERIES_OF_A_STREAM = 2000
OF_A_PARTITION: dict[str, tuple[str, str, str]] = {
    "partition_ingest_records_total": (COUNTER, "records_in", "Records appended as leader, since this log was opened."),
    "partition_ingest_bytes_total": (COUNTER, "bytes_in", "Bytes of record batches appended as leader, since then."),
    "partition_log_size_bytes": (GAUGE, "log_bytes", "Size of the log on this node, in bytes."),
    "partition_log_start_offset": (GAUGE, "log_start_offset", "Inclusive."),
    "partition_newest_offset": (GAUGE, "newest_offset", "Inclusive; -1: none."),
    "partition_high_watermark": (GAUGE, "high_watermark", "Inclusive; -1: none."),
    "partition_leader_epoch": (GAUGE, "leader_epoch", "As this node knows it."),
    "partition_acks_waiting": (GAUGE, "waiting_acks", "Publishers that wait for an ack."),
    "partition_readers_waiting": (GAUGE, "waiting_readers", "Readers in a long poll."),
    "partition_is_leader": (GAUGE, "role", "1 where this node leads it."),
}
"""Metrics of ``/metrics/partitions``: name -> (kind, field of the node's report, help). The labels are ``stream`` and ``partition``."""
MOST_PARTITIONS = MOST_SERIES_OF_A_STREAM // len(OF_A_PARTITION)
"""Maximum number of partitions in one answer to ``/metrics/partitions``."""
