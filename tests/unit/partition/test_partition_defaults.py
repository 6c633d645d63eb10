"""The defaults of a partition's shell, of its ingest and of the commands, as they were decided (``decided.py``)."""

from __future__ import annotations

from tests.unit.decided import differences

NUMBERS = """
liftpy.ingest.acks: Envelope.record_count 0, Publishers.batch_records 0, PendingAcks.reject(leader_epoch) 0,
  PendingAcks.reject(epoch) 0, PendingAcks._ack(duplicate) no
liftpy.ingest.columns: MessageColumns.apart no
liftpy.ingest.ingest: IngestCounters.records 0, IngestCounters.size_bytes 0, IngestCounters.batches 0, IngestCounters.overloaded 0,
  IngestCounters.rejected 0, IngestCounters.duplicates 0, Ingest.reject(epoch) 0
liftpy.ingest.jetstream: _unsupported(code) 400
liftpy.ingest.recent_ids: _Taken.size_bytes 0
sidecar.partition.executor: Executor.failed(token) 0
sidecar.partition.scrub: ScrubProgress.base_offset -1, ScrubProgress.position 0, ScrubProgress.pass_began_s 0.0,
  ScrubProgress.last_full_pass_s 0.0, ScrubProgress.findings 0, Scrub._scan(in_order) no
sidecar.partition.services: PartitionServices.__init__(compacted) no
sidecar.partition.worker: PartitionWorker.stop(delete) no
sidecar.cli.partition: _moved(unclean) no
sidecar.cli.publish: _Report.published 0, _Report.refused 0, _Report.first_offset -1, _Report.last_offset -1,
  _Report.first_refused_line 0
sidecar.cli.service_orders: pass_over(force) no
sidecar.cli.session: with_client(timeout_s) 5.0
"""


def test_every_default_is_as_decided() -> None:
    assert differences(NUMBERS) == []
