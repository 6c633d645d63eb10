"""The numbers of the settings and names, as they were decided (``decided.py``)."""

from __future__ import annotations

from tests.unit.decided import differences

NUMBERS = """
liftpy.clock_trust: BOUND_NS 60000000000, PEERS 6, ASK_EVERY_S 10.0, FRESH_NS 60000000000, HOLD_NS 3600000000000,
  SLOW_NS 2000000000, NO_AGE_NS 0
liftpy.config: FlushPolicy.interval_s 0.0, StreamConfig.min_isr 0, StreamConfig.segment_bytes 256Mi,
  StreamConfig.segment_age_s 0.0, StreamConfig.retention_age_s 0.0, StreamConfig.retention_bytes 0,
  StreamConfig.retention_records 0, StreamConfig.compaction no, StreamConfig.delete_retention_s 86400.0,
  StreamConfig.failover_standby no, StreamConfig.dedup_window_s 120.0, ReplicationConfig.heartbeat_s 0.25,
  ReplicationConfig.session_s 2.0, ReplicationConfig.lease_s 0.9, ReplicationConfig.max_leader_timeout_s 2.0,
  ReplicationConfig.max_lag_time_s 5.0, ReplicationConfig.max_lag_records 0, ReplicationConfig.probe_after 0.3,
  ReplicationConfig.max_idle_wait_s 1.0, ReplicationConfig.quiet_rounds 2, ReplicationConfig.fetch_timeout_s 1.0,
  ReplicationConfig.fetch_backoff_min_s 0.05, ReplicationConfig.fetch_backoff_max_s 1.0, ReplicationConfig.candidate_timeout_s
  2.0, ReplicationConfig.replication_max_bytes 1020Ki, ReplicationConfig.hw_checkpoint_s 1.0,
  ReplicationConfig.notice_interval_s 1.0, ReplicationConfig.ingest_buffer_bytes 256Mi, ReplicationConfig.ingest_queue_bytes
  64Mi, ReplicationConfig.ingest_queue_records 256Ki, ReplicationConfig.unreplicated_bytes 128Mi,
  ReplicationConfig.node_unreplicated_bytes 512Mi, ReplicationConfig.dedup_bytes 64Mi, ReplicationConfig.batch_max_bytes
  512Ki, ReplicationConfig.batch_max_records 4Ki, ReplicationConfig.slow_flush_s 0.2, ReplicationConfig.slow_flush_factor 8.0,
  ReplicationConfig.slow_flush_time_s 5.0, ReplicationConfig.slow_flush_out_s 20.0, ReplicationConfig.hung_flush_s 30.0,
  ReplicationConfig.leader_rest_s 120.0,
  ReplicationConfig.service_grace_s 5.0, ReplicationConfig.service_hold_bytes 1Gi, ReplicationConfig.copy_bytes_per_second
  32Mi, ReplicationConfig.copy_share 0.2, ReplicationConfig.copy_least_bytes_per_second 4Mi,
  ReplicationConfig.copy_piece_bytes 128Ki, ReplicationConfig.preferred_leaders_every 0.0,
  ReplicationConfig.replacement_grace_s 300.0, ReplicationConfig.copies_at_once 64, ReplicationConfig.copies_per_node 8,
  ReplicationConfig.producer_bytes 32Mi, ReplicationConfig.producer_expiry_s 86400.0, ReplicationConfig.subjects_bytes 64Mi
liftpy.ids: MAX_SUBJECT_LENGTH 255, _SHOWN_LENGTH 80, NO_OFFSET -1
liftpy.partition: PartitionState.unclean_elected no, PartitionState.leaderships 0, PartitionState.copy_epoch 0
"""


def test_every_number_is_as_decided() -> None:
    assert differences(NUMBERS) == []
