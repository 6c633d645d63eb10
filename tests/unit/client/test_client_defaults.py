"""The defaults of the client, as they were decided (``decided.py``)."""

from __future__ import annotations

from tests.unit.decided import differences

NUMBERS = """
liftpy.client.admin: Controller.learner no, Controller.leaving no, Admin.create_stream(partitions) 1, Admin.create_stream(replicas) 0,
  Admin.plan_stream(partitions) 1, Admin.plan_stream(replicas) 0, Admin.add_partitions(partitions) 0,
  Admin.plan_partitions(partitions) 0, Admin.reset_node(weight) no, Admin.reset_node(rack) no, Admin.elect_leader(unclean) no,
  Admin.alter_stream(dry_run) no, Admin.describe(linearizable) no, Admin.stream(linearizable) no
liftpy.client.client: connect(timeout_s) 5.0, Client.create_stream(partitions) 1, Client.create_stream(replicas) 0,
  Client.create_stream(ready_s) 15.0, Client.create_stream(exist_ok) no, Client.until_ready(ready_s) 15.0,
  Client.until_ready(first) 0, Client.plan_stream(partitions) 1, Client.plan_stream(replicas) 0, Client.add_partitions(partitions) 0,
  Client.add_partitions(ready_s) 15.0, Client.plan_partitions(partitions) 0, Client.alter_stream(dry_run) no,
  Client.reset_node(weight) no, Client.reset_node(rack) no, Client.elect_leader(partition) 0, Client.elect_leader(unclean) no,
  Client.describe_cluster(linearizable) no, Client.node_status(timeout_s) 2.0, Client.consume(partition) 0,
  Client.consume(after_epoch) 0, Client.bounds(partition) 0, Client.query_service(partition) 0, Client.query_service(timeout_s) 5.0,
  Client.call_service(partition) 0, Client.call_service(timeout_s) 5.0, Client.publish(partition) 0, Client.publisher(partition) 0,
  _address(answers) yes, _address(window_s) 0.0
liftpy.client.consumer: ReadOptions.wait_s 0.6, ReadOptions.answer_timeout_s 2.0, ReadOptions.patience_s 30.0,
  ReadOptions.read_ahead 4, Consumer.__init__(after_epoch) 0
liftpy.client.in_flight: PublishOptions.window 4096, PublishOptions.timeout_s 10.0,
  PublishOptions.patience_s 30.0, PublishOptions.message_ids no, InFlight.attempt_s 10.0, InFlight.known_until 0.0,
  InFlight.maybe_stored no, InFlight.resend_at 0.0
liftpy.client.outgoing: Address.answers yes
liftpy.client.parser: StrictParser.__init__(check_subjects) yes, StrictConnection._process_info(initial_connection) no
liftpy.client.plans: PlacementWish.allow_offline no
liftpy.client.positions: Bounds.compacted no
liftpy.client.progress: NotServedError.__init__(high_watermark) -1, ReadProgress.floor_high_watermark -1,
  ReadProgress.high_watermark -1, ReadProgress.last_offset -1, ReadProgress.leader_epoch 0, ReadProgress.compacted no,
  ReadProgress.request(request_id) 0
liftpy.client.publisher: Publisher.post(addressed) no
liftpy.client.retrying: retrying(reads) no
liftpy.client.sync: connect(timeout_s) 5.0, SyncClient.publish(partition) 0, SyncClient.publisher(partition) 0,
  SyncClient.consume(partition) 0, SyncClient.consume(after_epoch) 0
liftpy.client.transport: open_connection(timeout_s) 5.0, Transport.settle(timeout_s) 5.0
liftpy.client.urls: check_urls(bare) no
"""


def test_every_default_is_as_decided() -> None:
    assert differences(NUMBERS) == []
