"""The numbers of the replicas, as they were decided (``decided.py``)."""

from __future__ import annotations

from tests.unit.decided import differences

NUMBERS = """
liftpy.replica.candidate: _REPORTS_PER_TIMEOUT 4
liftpy.replica.copying: _TURNS_PER_S 20, LEAST_PIECE_BYTES 4Ki, CopyPace.bytes_per_second 0, CopyPace.least_bytes_per_second
  0, CopyPace.share 1.0, CopyPace.piece_bytes 0, CopyPace.copied_bytes 0, CopyPace.backlog_bytes 0, CopyPace.waited_ns 0,
  CopyPace.yielded_ns 0, CopyPace._free_ns 0, CopyPace._turn_ns 0, CopyPace.flushed(reserved_ns) 0, LearnerCopy._asked_ns 0,
  LearnerCopy._reserved_ns 0, LearnerCopy._size_bytes 0, LearnerCopy._backlog_bytes 0, LearnerCopy._grown_bytes 0
liftpy.replica.data_path: INGEST_GRACE_NS 10e9
liftpy.replica.effects: SendFetch.flush_ns 0, SendFetch.copy_epoch 0, ReportLeader.leader_lacks no
liftpy.replica.events: LogOpened.persisted_epoch 0, LogOpened.epoch_before_start 0, PublishesReceived.plain_count 0,
  PublishesReceived.conditional no, FetchReceived.awaits_more no, FetchReceived.flush_ns 0, FetchReceived.copy_epoch 0,
  FetchAnswered.size_bytes 0, FetchPieceArrived.has_room yes, LogFlushed.took_ns 0, StorageFailed.no_space no,
  StorageFailed.token 0
liftpy.replica.follower: _REMEMBERED 16, report_leader(leader_lacks) no
liftpy.replica.intake: RECORD_OVERHEAD_BYTES 32, _NODE_PARTS 2, _FULL 0.75, _PATIENCE_NS 0.5e9, _STUCK_NS 2e9, _CALM_NS 10e9,
  LEAST_RATE_BYTES 16Mi, _MOST_RATE_BYTES 1Gi, NodeIntake.unreplicated_bytes 0, NodeIntake.held_bytes 0,
  NodeIntake.released_bytes 0, NodeIntake.full_count 0
liftpy.replica.lag: ABSENCES 2, STAY_AT_LEAST 2, _PATIENCE 6, wanted_isr(by_quorum) no, wanted_isr(replica_count) 1,
  wanted_isr(min_isr) 1
liftpy.replica.leader: _LAG_CHECKS_PER_LAG_TIME 4, _NOTICE_DELAY_NS 2e6, _ISR_RETRY_NS 250e6, _PROBE_AGAIN_NS 0.1e9,
  _ASIDE_AGAIN_NS 10e9, _HAND_OVER_AGAIN_NS 3e9, _RELEASE_BYTES 1Mi
liftpy.replica.lineage: Judgement.end_offset 0
liftpy.replica.local_log: LocalLog.log_start_offset 0, LocalLog.log_end_offset 0, LocalLog.flushed_end_offset 0,
  LocalLog.high_watermark -1, LocalLog.opened(epoch_before_start) 0
liftpy.replica.overflow: LIMIT_BYTES 52Mi, _LEAST_LIMIT_BYTES 256Ki, _MEASURED_NS 0.1e9, _MOST_INFLOW_BYTES 512Mi, FRESH_NS
  0.1e9, _BLIND_NS 250e6, BLIND_RATE_BYTES 64Mi, _MOST_BLIND_RATE_BYTES 1Gi, _LEAST_RATE_BYTES 16Mi, _WINDOW_NS 4e9,
  _PATIENCE_NS 1e9
liftpy.replica.progress: REACH_NS 10e9, DOUBT_NS 5e9, FollowerProgress.copy_epoch 0, FollowerProgress.incarnation 0,
  FollowerProgress.live no, FollowerProgress.was_caught_up no, FollowerProgress.last_fetch_ns 0,
  FollowerProgress.last_asked_ns 0, FollowerProgress.absences 0, FollowerProgress.probed no, FollowerProgress.progressed_ns 0,
  FollowerProgress.mark_end_offset -1, FollowerProgress.mark_ns 0, FollowerProgress.log_end_offset_at_last_fetch 0,
  FollowerProgress.last_request_id 0, FollowerProgress.last_request_ns 0, FollowerProgress.told_high_watermark -2,
  FollowerProgress.owed_ns 0
liftpy.replica.quiet: MAX_PER_QUESTION 512, MISSES 2, ASK_AGAIN_NS 60e9, QUIET_WAIT 0.6, _Link.asked_ns 0, _Link.misses 0
liftpy.replica.reads: MAX_WAIT_MS 30000, MAX_WAITING 4Ki, MAX_WAITING_BYTES 32Mi, MAX_REQUEST_BYTES 11520, WAITING_COST_BYTES
  1500, _HEADER_ROOM_BYTES 4Ki, _DEFAULT_BYTES 1Mi, ReadBudget.max_bytes 32Mi, ReadBudget.used_bytes 0, Reads._head(error) 0
liftpy.replica.replica: Replica.__init__(seed) 0, Replica.__init__(request_id_base) 0
liftpy.replica.role: Shared.flush_ns 0, Shared.next_request_id 1, Shared.request_id_base 0
liftpy.replica.slow_flushes: _RECENT 5, _KNOWN_FROM 3, _LONGEST 16, _Record.slow_ns 0, _Record.last_at_ns 0,
  _Record.slow_until_ns 0, _Record.judged 0, SlowFlushes.flushed(in_isr) yes
liftpy.replica.snapshot: FollowerSnapshot.flush_ms 0.0, FollowerSnapshot.has_slow_disk no, ReplicaSnapshot.has_slow_disk no
"""


def test_every_number_is_as_decided() -> None:
    assert differences(NUMBERS) == []
