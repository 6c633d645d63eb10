"""The defaults and the beginnings of the cluster's state, as they were decided (``decided.py``)."""

from __future__ import annotations

from tests.unit.decided import differences

NUMBERS = """
liftpy.cluster.codec: image_to_bytes(operations) yes
liftpy.cluster.controller_list: ControllerList.index 0, GroupView.caught_up no
liftpy.cluster.decisions.placing: new_partitions(first) 0
liftpy.cluster.decisions.streams: _taken(first) 0
liftpy.cluster.draft: Rules.elections no, Draft.next_leader_epochs(count) 1, Draft.next_epochs(count) 1
liftpy.cluster.election_timers: _Clock.replayed_end_offset -1, _Clock.newest_offset -1
liftpy.cluster.feed: FeedProducer.__init__(index) 0
liftpy.cluster.fsm: _Applied.failures 0, _Applied.refused 0, ClusterFsm.__init__(elections) no
liftpy.cluster.image: NodeImage.weight 1.0, NodeImage.fenced no, NodeImage.session_time_ns 0, NodeImage.previous_incarnation 0,
  NodeImage.start 0, NodeImage.nonce 0, NodeImage.partition_budget 0, NodeImage.weight_by_hand no, NodeImage.rack_by_hand no,
  NodeImage.leaving no, StreamImage.created_time_ns 0, StreamImage.replication_factor 0, StreamImage.waiting 0,
  Counters.next_incarnation 1, Counters.next_stream_uid 1, Counters.next_leader_epoch 1, Counters.next_epoch 1,
  Counters.placement_index 0, LeaderReport.stamp_ns 0, LeaderReport.stamp_term 0, ClusterImage.index 0, ClusterImage.time_ns 0
liftpy.cluster.member: Order.takes_over -1, Order.own no, Order.is_first no
liftpy.cluster.operations: Operation.age_ns 0, OperationWindow.oldest 0, OperationWindow.next_sequence 0,
  OperationWindow.size_bytes 0
liftpy.cluster.placement: _Row.uses_start no, _Row.weighs no
liftpy.cluster.placement.facts: NodeFacts.weight 1.0, NodeFacts.live yes, NodeFacts.replicas 0, NodeFacts.leaders 0,
  NodeFacts.budget 0, NodeFacts.leaving no, Wanted.start 0, Wanted.first 0, Wanted.allow_offline no
liftpy.cluster.placement.moves: _Mover._give(to_poor) no
liftpy.cluster.placement.takers: Takers.take(strictly) no
liftpy.cluster.requests: RequestKind.read_only no, RequestKind.batched no, RequestKind.looked_at_first no
liftpy.cluster.session: _NodeSession.ending no, _NodeSession.absent no
liftpy.cluster.snapshot: encode_snapshot(operations) yes
liftpy.cluster.starts: FolderStarts.starts 0, FolderStarts.nonce 0, FolderStarts.registered 0
liftpy.cluster.trail: Trail.step_count 0
"""


def test_every_default_is_as_decided() -> None:
    assert differences(NUMBERS) == []
