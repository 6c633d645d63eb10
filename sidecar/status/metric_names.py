"""Every metric of a node: its name (``liftpy_`` before it), kind, labels, and what it says. docs/metrics.md shows the same table.

A label's values come from code, and of one label there are at most ``MOST_VALUES``: what comes later is counted as ``(other)``, so that
a node has at most 500 series, whatever it holds. ``stream`` is a label only where ``metrics_streams`` asks for it.
"""

from __future__ import annotations

from typing import NamedTuple

MOST_VALUES = 17
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


class Row(NamedTuple):
    """``labels``: their names, in order; '' none. ``by_stream``: it has a label ``stream`` too, if that is asked for."""

    kind: str
    labels: tuple[str, ...]
    text: str
    by_stream: bool = False


def _rows(kind: str, *given: tuple[str, str, str]) -> dict[str, Row]:
    made = {}
    for name, labels, text in given:
        words = labels.split()
        made[name] = Row(kind, tuple(word for word in words if word != "stream"), text, "stream" in words)
    return made


TABLE: dict[str, Row] = {
    **_rows(
        GAUGE,
        ("build_info", "version python", "1."),
        ("node_info", "node rack namespace controller", "1."),
        ("feature_level", "", "Of the cluster, as this node's image has it."),
        ("feature_level_supported", "bound", "That this node's version speaks, from min to max."),
        ("standby_buffer_bytes", "", "Memory for what was heard while standing by."),
        ("acks_waiting", "stream", "Publishers that wait for an ack."),
        ("queued_bytes", "", "What the node holds of publishes on their way, readers and standbys up to their shares."),
        (
            "ingest_unread_seconds",
            "",
            "For how long the oldest publish has waited that was read and not looked at, about (max_queue_delay_s).",
        ),
        ("queued_bytes_limit", "", "How much that may be (memory_limit_bytes); from four fifths on partitions take less."),
        ("held_bytes", "", "Publishes that are held back: their partition's ISR is short, or its followers are behind."),
        ("uncommitted_bytes", "", "Appended by leaders here and not committed, about."),
        ("uncommitted_records", "", "Records of led partitions above HW."),
        ("ingest_buffer_bytes", "", "Read from the ingest connection and not looked at."),
        ("derived_bytes", "of", "Memory for what is derived from the logs of the partitions here, about."),
        (
            "derived_bound_bytes",
            "",
            "How much that may be (node_dedup_state_bytes); leaders refuse what is new from seven eighths on.",
        ),
        (
            "partitions_with_too_many_subjects",
            "",
            "Here, with more subjects than partition_subject_index_bytes hold: none can be expected of.",
        ),
        ("partitions", "role", "Replicas on this node."),
        ("partitions_under_replicated", "stream", "Led here, with replicas out of the ISR."),
        ("partitions_at_min_isr", "", "Led here, whose ISR has no member to spare."),
        ("partitions_under_min_isr", "stream", "Led here, that commit nothing: fewer in-sync replicas than min.isr."),
        ("scrape_unread_partitions", "", "Here, that show what an earlier scrape did: in 20 ms this one had not come to them."),
        ("partitions_failed", "", "Here, whose log can't be opened or has failed."),
        ("partitions_quiet", "", "Followed here without news, asked for with others."),
        ("partitions_paused", "", "Led here, and paused by operators."),
        ("partitions_moving", "", "Led here, whose replicas are wanted elsewhere, or more or fewer of them."),
        ("replicas_with_slow_disks", "", "Of partitions led here, this node's and others', whose flushes are far slower."),
        ("replica_lag_records", "stream", "Records that the last follower of those led here lacks."),
        ("replica_lag_seconds", "stream", "Since when it has lacked some."),
        ("assembling_bytes", "", "Held by followers here of batches that come in pieces and are not whole yet."),
        ("log_size_bytes", "stream", "Of the logs here."),
        (
            "log_flushes_on_loop",
            "",
            "1 while the event loop waits for short flushes, 20 ms at most: this disk is faster than a hand-over to a thread.",
        ),
        ("disk_free_bytes", "", "In the file system of the data folder, for this node."),
        ("disk_size_bytes", "", "Of that file system."),
        ("partitions_with_set_aside_files", "", "Here, that keep damaged files until they are in sync again."),
        ("recovery_duration_seconds", "", "What recovery of the logs took at this start."),
        ("scrub_age_seconds", "", "Since the scrub was last through all logs; -1: never."),
        ("clock_doubted", "", "1 while this node's wall clock is in doubt, and nothing is removed for its age here."),
        ("clock_skew_seconds", "", "By how much it is ahead of other nodes' clocks, their median."),
        ("readers_waiting", "", "Readers in a long poll."),
        ("readers_waiting_bytes", "", "What they cost."),
        ("metadata_has_leader", "", "1 while this node knows a leader of the metadata group."),
        ("metadata_is_leader", "", "1 while this node leads it."),
        ("metadata_commit_index", "", "Of the group's log, as this controller knows it."),
        ("metadata_applied_index", "", "What this node has applied of it."),
        ("metadata_journal_bytes", "", "Of a controller's journal, on the disk."),
        ("metadata_held", "of", "What a controller keeps of the group's log."),
        ("cluster_nodes", "state", "Controllers: of the cluster, live, fenced or drained."),
        ("cluster_streams", "", "Controllers: of the cluster."),
        ("cluster_partitions_offline", "", "Controllers: that nobody may lead."),
        ("cluster_partitions_electing", "", "Controllers: that get a leader now."),
        ("nats_connected", "", "1 while all connections for data are up."),
        ("connection_up", "connection", "1 while connected."),
        ("nats_send_buffer_bytes", "connection", "What waits to be sent."),
        ("services", "role", "Replicated services registered with this node."),
        ("services_gone", "", "That were registered with this node, and are not any more."),
        (
            "services_ended",
            "",
            "Replicated services beside this node that ended without being stopped, and have not come back.",
        ),
        ("services_failing", "", "That stand at a record, since they can't apply it."),
        ("service_lag_records", "", "Records that the slowest service is behind HW."),
        ("service_output_backlog", "", "Outputs of services that are LEADER here, not written yet."),
        ("service_output_age_seconds", "", "Since a LEADER's outputs were last written, where some wait: the longest."),
        ("service_snapshot_age_seconds", "", "Since a service's newest snapshot was stored: the longest."),
        ("service_state_bytes", "", "Of the states in the services' newest snapshots."),
        (
            "service_snapshot_bytes",
            "way",
            "Of snapshots that services here fetched from, or gave to, those elsewhere, since they began.",
        ),
        ("service_queries", "state", "Of the services here, since they began, by what became of them."),
        ("coordinators", "state", "Coordinators of groups here."),
        ("groups", "", "Groups whose coordinator is LEADER here."),
        ("group_members", "", "Their live members."),
        ("group_queues", "", "Their partitions of work queues."),
        ("group_records_out", "", "Records of work queues that workers have and have not settled."),
        ("group_lag_records", "group", "Records behind what a group has committed, whose coordinator is LEADER here."),
        ("group_lag_seconds", "group", "Since when the first of them has been there, in the partition where that is longest."),
        ("group_lag_unknown", "", "Positions of those groups whose partition's end is not known."),
        ("coordinator_state_bytes", "", "Of memory, about: the states of the coordinators here."),
        ("coordinator_state_bound_bytes", "", "The bound of one; it takes no new group, member, position or queue beyond."),
        ("open_files", "", "Descriptors that are open."),
        ("open_files_limit", "", "How many there may be."),
        ("open_maps", "", "Sealed segments that are held open."),
        ("partition_budget", "", "Replicas that the limit of open files is enough for."),
    ),
    **_rows(
        COUNTER,
        ("ingest_records_total", "stream", "Records appended as leader."),
        ("ingest_bytes_total", "stream", "Bytes of record batches appended as leader."),
        ("publish_refused_total", "reason", "Publishes that somebody waits for an answer to, not stored."),
        ("publish_dropped_total", "reason", "Publishes that nobody waits for, not stored."),
        ("quota_throttled_total", "scope", "Of both, for a quota: of the whole stream, or of a token of its subject."),
        ("publish_duplicates_total", "", "Left out because a record has their message id, or sequence."),
        (
            "publish_lost_with_connections_total",
            "",
            "Delivered by a NATS server over a connection that it closed, never arrived.",
        ),
        ("publish_unknown_losses_total", "", "Ingest connections that were lost, and nobody can say what with them."),
        ("poison_envelopes_total", "", "Publishes that look enveloped and are not."),
        ("refused_replies_total", "", "Reply subjects outside the inbox prefixes."),
        ("message_ids_forgotten_total", "", "Message ids that went before their time, for want of room."),
        ("producers_forgotten_total", "", "Producers that went before their time, for want of room."),
        ("derived_refused_total", "of", "Publishes refused since there was no room for what they need."),
        ("derived_states_written_total", "", "Checkpoints of what is derived from logs."),
        ("derived_states_failed_total", "", "Such that could not be written."),
        ("replayed_bytes_total", "", "Bytes of logs that were read again for what is derived from them."),
        ("standby_messages_total", "state", "Messages heard while standing by, by what became of them."),
        ("standby_overflow_total", "", "Of those, which found no room."),
        ("isr_shrinks_total", "", "Of partitions that this node leads."),
        ("isr_expands_total", "", "Of partitions that this node leads."),
        ("replication_bytes_total", "direction", "Batches that followers here fetched (in), and leaders here sent (out)."),
        ("truncated_records_total", "", "Cut by followers here, because their leader does not have them."),
        (
            "copied_bytes_total",
            "",
            "Bytes of records that learners here were sent; growth of the partitions meanwhile included.",
        ),
        ("copied_backlog_bytes_total", "", "Of them, what counted against the node's bound of bytes a second."),
        ("copies_put_off_seconds_total", "", "By how much fetches of learners were put off, summed up."),
        ("copies_yielded_seconds_total", "", "By how much copies slowed down because pieces took long."),
        ("log_flush_moves_total", "", "How often flushing has moved between the event loop and threads."),
        ("log_flushes_total", "place", "Flushes of logs, by where they ran."),
        ("damaged_segments_total", "", "That recovery or a read met."),
        ("scrub_bytes_total", "", "Bytes of logs read back from the disk and checked."),
        ("scrub_findings_total", "", "Damage that the scrub has found."),
        ("read_records_total", "stream", "Records that readers were sent."),
        ("read_bytes_total", "stream", "Bytes of the batches that they were sent."),
        (
            "metadata_divergence_total",
            "",
            "Controllers found to hold another image than the majority, or this one at its start.",
        ),
        ("audit_dropped_total", "", "Events that this controller could not keep until they were in their stream."),
        ("metadata_leader_changes_total", "", "As this node has seen them."),
        ("metadata_late_ticks_total", "", "Ticks of the group that came more than 50 ms late."),
        ("metadata_proposals_failed_total", "reason", "Requests of this node to the group, by the error that was answered."),
        ("cluster_folders_lost_total", "", "Controllers: nodes that came back with another data folder, as this one has seen."),
        ("cluster_elections_total", "kind", "Controllers: elections of leaders, as this one has seen them since its start."),
        ("nats_reconnects_total", "connection", "How often a connection came back."),
        ("nats_messages_total", "direction", "Over all connections for data."),
        ("nats_bytes_total", "direction", "Over all connections for data."),
        ("nats_errors_total", "kind", "Errors and drops of the connections for data."),
        ("frames_refused_total", "reason", "Frames that were not taken."),
        ("log_messages_total", "level", "Lines that this process logged."),
        ("log_suppressed_total", "", "Lines that it left out, since there were too many like them."),
        ("trace_spans_dropped_total", "", "Spans over the node's budget, beyond its queue, or not taken by the collector."),
        ("incidents_total", "kind", "Rare things that a node does or meets."),
    ),
    **_rows(
        HISTOGRAM,
        ("ingest_batch_records", "", "Records of the batches appended as leader."),
        ("ack_duration_seconds", "policy", "From a publish's arrival until its ack was sent."),
        ("ingest_queue_seconds", "", "From a record's arrival until it was appended."),
        ("commit_duration_seconds", "", "From when a record was appended until HW has passed it."),
        ("log_flush_duration_seconds", "", "Of logs, as publishers wait for them."),
        ("fetch_duration_seconds", "", "From a follower's question until its answer."),
        ("read_duration_seconds", "", "From when there is something to read until it was sent."),
        ("metadata_proposal_duration_seconds", "", "Of requests of this node to the group, until they are decided."),
        ("metadata_fsync_duration_seconds", "", "Flushes of a controller's journal."),
        ("failover_duration_seconds", "", "Controllers: a partition without a leader, until it is online again."),
        ("event_loop_lag_seconds", "", "How late the node's event loop is for a timer, ten times a second."),
    ),
}

INCIDENTS = {
    "slow flushes": "slow_flush",
    "storage failures": "storage_failure",
    "damage met": "damage_met",
    "logs that a failed flush had closed": "suspect_log",
    "records that a service needed and retention removed": "service_records_gone",
    "looks for what is too old that waited for a clock to be trusted": "age_not_told",
    "derived states left out": "derived_state_left_out",
    "derived states restored": "derived_state_restored",
    "replicas out of an ISR for slow flushes": "slow_replica_evicted",
    "leaderships handed over for slow flushes": "handed_over_slow",
    "leaderships handed over for services": "handed_over_services",
    "ends of services that became no events": "service_end_without_event",
    "leaderships handed over for publishes that went past": "handed_over_went_past",
    "coordinators begun anew": "coordinator_restarted",
    "looks at groups that failed": "group_look_failed",
    "refused by NATS's rights": "rights_denied",
    "failed fetch reads": "fetch_read_failed",
    "failed reads": "read_failed",
    "fetched batches that are damaged": "fetched_damage",
    "readers of lost records": "reader_of_lost_records",
    "readers answered without their wait": "reader_not_waited",
    "reads dropped, too many answers unsent": "read_dropped",
    "ranges told as files": "files_told",
    "leaders' nodes silent about quiet fetches": "quiet_silence",
    "scrub: damage found": "scrub_damage",
    "scrub: interrupted": "scrub_interrupted",
    "jetstream requests refused": "jetstream_refused",
}
"""Name of a node's counter -> how it is labelled; of others the page tells."""
ERRORS = {
    "send buffer full": "send_buffer_full",
    "dropped while disconnected": "dropped_disconnected",
    "larger than max_payload": "too_large",
    "acks dropped": "acks_dropped",
    "messages not taken": "not_taken",
    "messages under a foreign subject": "foreign_subject",
    "malformed message lines": "malformed",
    "messages that can't be decoded": "undecodable",
    "late PONGs": "late_pong",
    "held back: the ingest buffer is full": "ingest_buffer_full",
    "unreadable streams": "unreadable",
    "disconnected": "disconnected",
}
"""The same of a connection's errors; what a server says is ``server``, all else ``other``."""
