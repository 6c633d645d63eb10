"""Test a batch above max_payload for a follower whose version takes no fragments: the node logs it once."""

from __future__ import annotations

import pytest

from liftpy.core.replication import effects as do
from liftpy.core.replication.events import FetchReceived
from liftpy.core.wire import frames
from liftpy.core.wire._pb import replication_pb2 as pb
from tests.scripts.replication_bench import EPOCH, ReplicationBench


def fetch(bench: ReplicationBench) -> None:
    request = pb.ReplicationRequest(replicaID="n2", offset=-1, leaderEpoch=EPOCH, requestId=1, maxBytes=1 << 20)
    bench.bus.deliver(bench.subjects.replicate("orders", 0), frames.encode(request), "liftpy.inbox.n2.f")
    event = bench.fetches.pop()
    assert isinstance(event, FetchReceived)
    bench.replication.send_response(
        do.SendFetchResponse(token=event.token, from_offset=0, max_bytes=1 << 20, leader_epoch=EPOCH),
        bench.log,
        bench.log.high_watermark,
    )


async def test_batch_above_max_payload_for_a_follower_that_does_not_support_fragments_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = ReplicationBench()
    bench.publish(b"x" * 500_000)
    await bench.turn()
    bench.commit()
    fetch(bench)
    assert caplog.text == ""
    bench.bus.max_payload = 64 * 1024
    for _ in range(3):
        fetch(bench)
    assert caplog.text.count("max_payload=65536: its version accepts no chunks") == 1
    assert bench.counters["batch_too_large_for_follower"] == 3
