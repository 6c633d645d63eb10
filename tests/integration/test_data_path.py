"""The whole way on real processes: plain NATS publishes, replicated, committed, acknowledged, read from every node."""

from __future__ import annotations

import json
from typing import Any

import nats.errors
import nats.js.errors
import pytest

from liftpy.config import AckPolicy, StreamConfig
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2, replication_pb2
from liftpy.core.wire.batch import split_batches
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError
from sidecar.transport.liveness import is_absent

pytestmark = pytest.mark.processes

NODES = ("n1", "n2", "n3")


async def test_publishes_without_envelope_are_stored_as_the_same_bytes_on_every_node(bench: Any, stream_name: str) -> None:
    await bench.create(stream_name)
    sent = [b"record %d" % number for number in range(5000)]
    for payload in sent:
        await bench.nc.publish(f"data.{stream_name}", payload)
    first, *others = [await bench.read_from(node, stream_name, len(sent)) for node in NODES]
    assert [value for batch in split_batches(first) for value in batch.values()] == sent
    assert all(other == first for other in others)


async def test_stream_without_acks_stores_publishes_and_answers_none(bench: Any, stream_name: str) -> None:
    await bench.client.create_stream(stream_name, f"data.{stream_name}", config=StreamConfig(ack_policy=AckPolicy.NONE))
    await bench.until(lambda: bench.ready(stream_name), "led")
    with pytest.raises((nats.errors.TimeoutError, nats.errors.NoRespondersError)):
        await bench.nc.request(f"data.{stream_name}", b"request", timeout=0.5)
    assert await bench.values_on("n1", stream_name, 1) == [b"request"]
    enveloped = frames.encode(client_pb2.Message(value=b"enveloped", ackPolicy=client_pb2.ALL))
    for payload, headers in ((enveloped, None), (b"asks", {"Lift-Ack": "all"})):
        with pytest.raises((nats.errors.TimeoutError, nats.errors.NoRespondersError)):
            await bench.nc.request(f"data.{stream_name}", payload, timeout=0.5, headers=headers)
    with pytest.raises(ConfigError, match="ack policy none"):
        await bench.client.publish(stream_name, b"with an ack")
    assert await bench.client.publish(stream_name, b"without", ack=AckPolicy.NONE) is None
    assert await bench.values_on("n1", stream_name, 4) == [b"request", b"enveloped", b"asks", b"without"]


async def test_subject_with_two_streams_gets_answers_only_from_the_stream_with_acks(bench: Any, stream_name: str) -> None:
    """A cluster of another namespace on the same NATS: its nodes' requests, and ours that listen in [A8, A9]."""
    other = f"other-{stream_name}"
    await bench.client.create_stream(stream_name, f"{other}.>")
    await bench.until(lambda: bench.ready(stream_name), "led")
    with pytest.raises(ConfigError, match="10065"):
        await bench.client.create_stream(f"{stream_name}-2", f"{other}.x")
    silent = StreamConfig(ack_policy=AckPolicy.NONE)
    await bench.client.create_stream(f"{stream_name}-3", f"{other}.x", config=silent)
    await bench.until(lambda: bench.ready(f"{stream_name}-3"), "led")
    answers: list[bytes] = []

    async def hear(message: Any) -> None:
        answers.append(message.data)

    await bench.nc.subscribe("_INBOX.both.*", cb=hear)
    await bench.nc.flush()
    protocol = frames.encode(replication_pb2.ReplicationRequest(replicaID="n2", offset=3))
    await bench.nc.publish(f"{other}.s.0.replicate", protocol, reply="_INBOX.both.1")
    assert await is_absent(bench.nc, Subjects(other), "n7") is False  # somebody listens, and nobody answers
    await bench.nc.publish(f"{other}.x", b"plain", reply="_INBOX.both.2")
    assert await bench.values_on("n1", f"{stream_name}-3", 1) == [b"plain"]

    async def answered() -> bool:
        return bool(answers)

    await bench.until(answered, "the answer")
    assert [json.loads(answer)["stream"] for answer in answers] == [stream_name]


async def test_rejected_read_contains_the_error_of_its_reason(bench: Any, stream_name: str) -> None:
    """[R7, R9]"""
    stream = await bench.create(stream_name)
    await bench.publish_acked(f"data.{stream_name}", [b"only"])
    leader = await bench.leader(stream_name)
    follower = next(node for node in NODES if node != leader)
    await bench.read_from(follower, stream_name, 1)

    async def ask(node: str, **fields: Any) -> client_pb2.ReadResponse:
        request = frames.encode(client_pb2.ReadRequest(**fields))
        return frames.decode_read_response(
            (await bench.nc.request(f"liftpy.{stream_name}.0.read.{node}", request, timeout=5)).data
        )[0]

    error = client_pb2.ReadResponse
    assert (await ask(follower, offset=5)).error == error.OFFSET_OUT_OF_RANGE
    assert (await ask(follower, offset=0, streamUid="another")).error == error.WRONG_STREAM
    assert (await ask(follower, offset=0, minHighWatermark=9)).error == error.NOT_READY
    assert (await ask(follower, offset=0, isolation=error.UNKNOWN)).error == error.NOT_LEADER
    assert (await ask(leader, offset=0, isolation=client_pb2.ReadRequest.UNCOMMITTED)).error == error.OK
    bounds = await ask(leader, boundsOnly=True)
    assert (bounds.highWatermark, bounds.logStartOffset, bounds.streamUid, bounds.leader) == (0, 0, stream.uid, leader)


async def test_deleted_stream_leaves_no_data_directory_on_any_node(bench: Any, stream_name: str) -> None:
    stream = await bench.create(stream_name)
    await bench.publish_acked(f"data.{stream_name}", [b"x"])
    folders = [bench.cluster.data / node / "streams" / f"{stream_name}-{stream.uid}" for node in NODES]
    assert all(folder.exists() for folder in folders)
    await bench.client.admin.delete_stream(stream_name)

    async def gone() -> bool:
        return not any(folder.exists() for folder in folders)

    await bench.until(gone, "the folders are removed")
    again = await bench.create(stream_name)
    assert again.uid != stream.uid
    assert await bench.publish_acked(f"data.{stream_name}", [b"new"]) == [1]
