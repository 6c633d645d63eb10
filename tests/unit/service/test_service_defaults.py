"""The defaults and the beginnings of services, as they were decided (``decided.py``)."""

from __future__ import annotations

from tests.unit.decided import differences

NUMBERS = """
liftpy.service.acting: _Try.again_s 0.0, _Try.failures 0
liftpy.service.decisions: RecordWriter.__init__(timeout_s) 3.0, RecordWriter.append(first) no, DecisionWriter.__init__(timeout_s) 3.0
liftpy.service.effects: Effect.is_offer no, Effect.output_count 0
liftpy.service.host: ServiceHost._hello(leaving) no
liftpy.service.machine: _Source.offset -1, _Source.index 0, Applied.count 0
liftpy.service.outbox: Outbox.__init__(max_records) 65536
liftpy.service.peers: PeerSearch.failed(lies) no
liftpy.service.poison: SkipDecision.leader_epoch 0, Failing.tries 1, Failing.scanned 0, Failing.again_s 0.0, Failing.undone no,
  Failing.stored no
liftpy.service.replies: Reply.output_count 0, Reply.at_ns 0, Reply.leader_epoch 0
liftpy.service.routing: Place.end_offset 0, Place.last_number -1
liftpy.service.sessions: ReplicaView.epoch_start_offset 0, ReplicaView.turn 0, _Order.acknowledged no, _ServiceSession.position 0,
  _ServiceSession.output_count 0, _ServiceSession.emitted_end 0, _ServiceSession.replayed_epoch 0, _ServiceSession.excused no,
  _ServiceSession.failing no, _ServiceSession.snapshot_position 0, _ServiceSession.snapshots_wanted 0, _ServiceSession.life 0,
  _ServiceSession.version 0, _ServiceSession.active_version 0, _ServiceSession.lowest_version 0, _ServiceSession.fetching no,
  _ServiceSession.fetched_bytes 0, _ServiceSession.given_bytes 0, _Gone.position 0, _Gone.since_ns 0, _Gone.stopped no,
  ServiceSessions.__init__(compacted) no, ServiceSessions._forget(stopped) no
liftpy.service.settings: ServiceSettings.partition 0, ServiceSettings.snapshot_every 10000, ServiceSettings.snapshot_interval_s 300.0,
  ServiceSettings.snapshots_kept 3, ServiceSettings.heartbeat_s 0.25, ServiceSettings.outbox_records 65536,
  ServiceSettings.emit_window 4096, ServiceSettings.emit_poll_s 0.5, ServiceSettings.emit_timeout_s 3.0, ServiceSettings.step_s 0.02,
  ServiceSettings.read_wait_s 1.0, ServiceSettings.effects_at_once 8, ServiceSettings.effect_timeout_s 60.0,
  ServiceSettings.tick_s 0.0, ServiceSettings.snapshot_fetch_s 30.0
liftpy.service.wellness: Wellness._stays_until_ns 0
"""


def test_every_default_is_as_decided() -> None:
    assert differences(NUMBERS) == []
