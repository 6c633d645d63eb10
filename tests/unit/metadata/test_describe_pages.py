"""Test descriptions of a large cluster in pages that fit into a message of any NATS server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.metadata_requests import MetadataRequests
from liftpy.client.stream_info import StreamInfo
from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata import codec
from liftpy.core.metadata import describe as pages_module
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.controller_list import CONTROLLERS, ControllerList
from liftpy.core.metadata.describe import (
    DEFAULT_PAGE_BYTES,
    MAX_PAGE_BYTES,
    ClusterPages,
    StreamPages,
    cut_stream,
    describe,
    describe_stream,
    describer,
)
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import NotFoundError, ProtocolError
from sidecar.status.merged_status import NodeStatus
from sidecar.status.report import Reporter
from sidecar.status.status_api import PAGE_PARTITIONS, _encoded_page
from tests.born import born_fsm, registration
from tests.unit.client.admins import admin_over

STREAMS, PARTITIONS, WIDE = 150, 40, 10_000
MESSAGE_BYTES = 1024 * 1024


Ask = Callable[[pb.ControlRequest], pb.ControlResponse]


def asker(fsm: ClusterFsm) -> Ask:
    """Apply a request like the metadata leader."""

    def ask(request: pb.ControlRequest) -> pb.ControlResponse:
        index = fsm.image.index + 1
        request.operationId, request.timeNs = index.to_bytes(16, "big"), index
        return pb.ControlResponse.FromString(fsm.apply(request.SerializeToString(), index))

    return ask


def cluster(streams: int, node_name: str = "node-{}") -> ClusterFsm:
    made = born_fsm()
    ask = asker(made)
    for number in range(5):
        ask(pb.ControlRequest(registerNode=registration(nodeId=node_name.format(number))))
    for n in range(streams):
        ask(pb.ControlRequest(createStream=pb.CreateStream(name=f"stream-{n}", subject=f"subject.{n}", partitions=PARTITIONS)))
    return made


@pytest.fixture(scope="module")
def fsm() -> ClusterFsm:
    return cluster(STREAMS)


class Transport:
    """Answer like the metadata leader in messages of ``limit_bytes``, and record the size of each answer."""

    def __init__(self, fsm: ClusterFsm, limit_bytes: int = DEFAULT_PAGE_BYTES) -> None:
        self.fsm, self.limit_bytes = fsm, limit_bytes
        self.sizes: list[int] = []
        self.before: Callable[[int], None] = lambda count: None
        """Called with the number of the answer before it is made."""

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        self.before(len(self.sizes))
        request = frames.decode(payload, pb.ControlRequest)
        description = describer(request)
        if description is None:
            assert subject == "liftpy.control.admin"
            response = asker(self.fsm)(request)
            cut_stream(response, self.limit_bytes)
        else:
            assert subject == "liftpy.info"
            response = description(self.fsm.image)
        response.operationId = frames.decode(payload, pb.ControlRequest).operationId
        answer = frames.encode(response)
        self.sizes.append(len(answer))
        return answer


async def test_describe_cluster_larger_than_a_message_returns_all_pages(fsm: ClusterFsm) -> None:
    transport: Any = Transport(fsm)
    found = await MetadataRequests(transport, Subjects()).describe()
    assert (found.image.nodes, found.image.streams, found.image.counters) == (
        fsm.image.nodes, fsm.image.streams, fsm.image.counters,
    )  # fmt: skip
    assert len(transport.sizes) > 2
    assert max(transport.sizes) < DEFAULT_PAGE_BYTES + 1024


async def test_describe_stream_larger_than_a_message_returns_all_partitions() -> None:
    fsm = cluster(3, node_name="a-node-with-a-name-that-is-rather-long-{}")
    transport: Any = Transport(fsm)
    admin = MetadataRequests(transport, Subjects())
    made = await admin_over(transport, Subjects()).create_stream("wide", "wide", partitions=WIDE, ready_s=0)
    held = fsm.image.streams["wide"]
    assert made == StreamInfo.of(held)
    assert len(codec.image_to_bytes(fsm.image)) > MESSAGE_BYTES
    assert await admin.stream("wide") == held
    assert (await admin.describe()).image.streams == fsm.image.streams
    assert max(transport.sizes) < DEFAULT_PAGE_BYTES + 1024


async def test_describe_of_a_stream_deleted_or_recreated_between_pages_raises_not_found() -> None:
    for then in ("deleted", "made again"):
        fsm = cluster(2)
        ask = asker(fsm)
        ask(pb.ControlRequest(createStream=pb.CreateStream(name="stream-1x", subject="wide", partitions=WIDE)))

        def change(count: int, ask: Ask = ask, then: str = then) -> None:
            if count == 2:
                ask(pb.ControlRequest(deleteStream=pb.DeleteStream(name="stream-1x")))
                if then == "made again":
                    ask(pb.ControlRequest(createStream=pb.CreateStream(name="stream-1x", subject="other", partitions=3)))

        transport: Any = Transport(fsm)
        transport.before = change
        assert (await MetadataRequests(transport, Subjects()).describe()).image.streams == fsm.image.streams
        transport = Transport(fsm)
        transport.before = change
        ask(pb.ControlRequest(deleteStream=pb.DeleteStream(name="stream-1x")))
        ask(pb.ControlRequest(createStream=pb.CreateStream(name="stream-1x", subject="wide", partitions=WIDE)))
        with pytest.raises(NotFoundError):
            await MetadataRequests(transport, Subjects()).stream("stream-1x")


async def test_describe_of_one_stream_receives_one_small_answer(fsm: ClusterFsm) -> None:
    transport: Any = Transport(fsm)
    admin = MetadataRequests(transport, Subjects())
    assert await admin.stream("stream-7") == fsm.image.streams["stream-7"]
    assert transport.sizes[0] < 16 * 1024
    with pytest.raises(NotFoundError, match="there is no stream 'nobody'; there are: stream-0"):
        await admin.stream("nobody")


@pytest.mark.parametrize("asked", [1, 700, 5000, 1 << 31])
def test_describe_pages_have_at_most_the_requested_bytes(fsm: ClusterFsm, asked: int) -> None:
    pages = ClusterPages()
    while (request := pages.request) is not None:
        request.maxBytes = asked
        page = describe(fsm.image, request).cluster
        assert page.ByteSize() < max(min(asked, MAX_PAGE_BYTES), 512) + 512
        pages.add(page)
    assert codec.image_from_pb(pages.cluster.image).streams == fsm.image.streams
    assert codec.image_from_pb(pages.cluster.image).nodes == fsm.image.nodes


def test_describe_pages_each_contain_the_controllers(fsm: ClusterFsm) -> None:
    image = replace(fsm.image, controllers=ControllerList(("a", "b", "c"), "d", "b", 6))
    pages = ClusterPages()
    while (request := pages.request) is not None:
        request.maxBytes = 5000
        page = describe(image, request).cluster
        assert page.image.controllers == CONTROLLERS.to_pb(image.controllers)
        pages.add(page)
    assert codec.image_from_pb(pages.cluster.image).controllers == image.controllers


def test_describe_stream_page_has_the_requested_size_up_to_the_maximum(
    fsm: ClusterFsm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_module, "MAX_PAGE_BYTES", 1600)
    for asked, most in ((1, 512), (800, 800), (1600, 1600), (10_000, 1600)):
        found = describe_stream(fsm.image, pb.DescribeStream(name="stream-1", maxBytes=asked))
        last = found.stream.partitions[-1].ByteSize() + 6
        told = sum(partition.ByteSize() + 6 for partition in found.stream.partitions)
        assert most - last < told <= most, asked
        assert found.nextPartition == len(found.stream.partitions)


def test_describe_of_an_unknown_node_raises_not_found_with_at_most_ten_node_names() -> None:
    for count, said in ((0, "there are: none"), (10, "there are: n0, n1, n2, n3, n4, n5, n6, n7, n8, n9"), (11, "n8, n9 ...")):
        made = born_fsm()
        ask = asker(made)
        for number in range(count):
            ask(pb.ControlRequest(registerNode=registration(nodeId="nx" if number == 10 else f"n{number}")))
        answer = ask(pb.ControlRequest(setNode=pb.SetNode(nodeId="other", leaving=True)))
        assert answer.error == pb.ControlResponse.NOT_FOUND
        assert answer.detail.endswith(said)


def test_describe_page_without_streams_but_with_more_set_raises_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="empty page"):
        ClusterPages().add(pb.ClusterDescription(more=True))


class Reports(Reporter):
    """Provide reports of the given number of partitions."""

    def __init__(self, count: int, text: str = "x") -> None:
        keys = [PartitionKey(f"s{n // 7}", "u", n % 7) for n in range(count)]
        self.partitions = [SimpleNamespace(key=key) for key in reversed(keys)]  # type: ignore[assignment]
        self._text = text

    def report(self, only: Any = None) -> dict[str, Any]:
        keys = [worker.key for worker in only]
        rows = [{"stream": k.stream, "partition": k.partition, "text": self._text} for k in keys]
        return {"node": "n1", "partitions": rows, "failed_partitions": {}}


async def test_node_status_with_many_partitions_returns_all_pages() -> None:
    sizes: list[int] = []
    reporter = Reports(PAGE_PARTITIONS * 5 + 3, "x" * 4000)

    async def request(subject: str, payload: bytes, timeout_s: float) -> bytes:
        answer = await _encoded_page(NodeStatus(reporter, ()), payload, MESSAGE_BYTES)
        sizes.append(len(answer))
        return answer

    transport: Any = SimpleNamespace(request=request)
    status = await asyncio.wait_for(admin_over(transport, Subjects()).node_status("n1"), 20)
    told = [(p["stream"], p["partition"]) for p in status["partitions"]]
    assert told == sorted((w.key.stream, w.key.partition) for w in reporter.partitions)
    assert not status["more"]
    assert max(sizes) <= MESSAGE_BYTES


@pytest.mark.parametrize("question", [b"", b"\xb9\x0e", b"{}", b'{"after": 5}', b'{"after": ["s", "x"]}', b"[1, 2]"])
async def test_node_status_request_with_invalid_arguments_returns_the_first_page(question: bytes) -> None:
    found = json.loads(await _encoded_page(NodeStatus(Reports(3), ()), question, MESSAGE_BYTES))
    assert [p["partition"] for p in found["partitions"]] == [0, 1, 2]
    assert found["more"] is False


def test_describe_page_of_another_stream_or_position_is_rejected() -> None:
    def page(uid: str, *numbers: int, after: int = 0) -> pb.ControlResponse:
        stream = pb.Stream(name="s", uid=uid, partitions=[pb.Partition(partition=number) for number in numbers])
        return pb.ControlResponse(stream=stream, nextPartition=after)

    for wrong, error in ((page("u2", 2), NotFoundError), (page("u1"), ProtocolError), (page("u1", 3), ProtocolError)):
        pages = StreamPages()
        pages.add(page("u1", 0, 1, after=2))
        with pytest.raises(error):
            pages.add(wrong)
        assert [p.partition for p in pages.stream.partitions] == [0, 1]
        assert pages.request == pb.DescribeStream(name="s", uid="u1", fromPartition=2)
    pages.add(page("u1", 2, after=0))
    assert [p.partition for p in pages.stream.partitions] == [0, 1, 2]
    assert pages.request is None
