"""What is described of a large cluster goes into messages of any NATS server, page by page; one stream needs no other."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.admin import Admin
from liftpy.client.client import Client
from liftpy.cluster.codec import image_from_pb
from liftpy.cluster.controller import DEFAULT_PAGE_BYTES, MAX_PAGE_BYTES, describe, describe_stream
from liftpy.cluster.fsm import ClusterFsm
from liftpy.errors import NotFoundError
from liftpy.ids import PartitionKey
from liftpy.wire import frames
from liftpy.wire._pb import cluster_pb2 as pb
from liftpy.wire.subjects import Subjects
from sidecar.status.report import Reporter
from sidecar.status.service import PAGE_PARTITIONS, _page_of

STREAMS, PARTITIONS = 150, 40
MESSAGE_BYTES = 1024 * 1024


@pytest.fixture(scope="module")
def fsm() -> ClusterFsm:
    made = ClusterFsm()
    requests = [pb.ControlRequest(registerNode=pb.RegisterNode(nodeId=f"node-{n}")) for n in range(5)]
    requests += [
        pb.ControlRequest(createStream=pb.CreateStream(name=f"stream-{n}", subject=f"subject.{n}", partitions=PARTITIONS))
        for n in range(STREAMS)
    ]
    for count, request in enumerate(requests, 1):
        request.operationId, request.timeNs = count.to_bytes(16, "big"), count
        made.apply(request.SerializeToString(), count)
    return made


class Transport:
    """Answers as the metadata leader does; notes the size of every answer."""

    def __init__(self, fsm: ClusterFsm, *, old: bool = False) -> None:
        self.fsm, self.old = fsm, old
        self.sizes: list[int] = []

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        request = frames.decode(payload, pb.ControlRequest)
        if request.HasField("describeStream"):
            response = describe_stream(self.fsm.image, request.describeStream.name)
            if self.old:
                response = pb.ControlResponse(error=pb.ControlResponse.INVALID, detail="a request of a kind that is not known")
        else:
            response = describe(self.fsm.image, None if self.old else request.describeCluster)
        response.operationId = request.operationId
        answer = frames.encode(response)
        self.sizes.append(len(answer))
        return answer


async def test_a_cluster_larger_than_a_message_is_described_whole(fsm: ClusterFsm) -> None:
    whole = describe(fsm.image)
    assert whole.ByteSize() > DEFAULT_PAGE_BYTES * 2
    transport: Any = Transport(fsm)
    found = await Admin(transport, Subjects()).describe()
    assert found.image == image_from_pb(whole.cluster.image)
    assert len(found.streams()) == STREAMS
    assert len(transport.sizes) > 2
    assert max(transport.sizes) < DEFAULT_PAGE_BYTES + 64 * 1024


async def test_one_stream_is_asked_for_alone(fsm: ClusterFsm) -> None:
    transport: Any = Transport(fsm)
    admin = Admin(transport, Subjects())
    assert await admin.stream("stream-7") == fsm.image.streams["stream-7"]
    assert transport.sizes[0] < 16 * 1024
    with pytest.raises(NotFoundError, match="there is no stream 'nobody'; there are: stream-0"):
        await admin.stream("nobody")


async def test_a_metadata_leader_of_an_older_version_is_understood(fsm: ClusterFsm) -> None:
    transport: Any = Transport(fsm, old=True)
    admin = Admin(transport, Subjects())
    assert len((await admin.describe()).streams()) == STREAMS
    assert (await admin.stream("stream-7")).name == "stream-7"


@pytest.mark.parametrize("asked", [1, 5000, 1 << 31])
def test_pages_hold_whole_streams_and_at_least_one(fsm: ClusterFsm, asked: int) -> None:
    names: list[str] = []
    after, more = "", True
    while more:
        page = describe(fsm.image, pb.DescribeCluster(paged=True, afterStream=after, maxBytes=asked)).cluster
        assert all(len(stream.partitions) == PARTITIONS for stream in page.image.streams)
        assert bool(page.image.nodes) == (not after)
        assert page.ByteSize() < max(min(asked, MAX_PAGE_BYTES), 16 * 1024) + 64 * 1024
        names += [stream.name for stream in page.image.streams]
        after, more = names[-1], page.more
    assert names == sorted(fsm.image.streams)


class Reports(Reporter):
    """Of as many partitions as wanted, each with some text."""

    def __init__(self, count: int, text: str = "x") -> None:
        keys = [PartitionKey(f"s{n // 7}", "u", n % 7) for n in range(count)]
        self._partitions = [SimpleNamespace(key=key) for key in reversed(keys)]  # type: ignore[assignment]
        self._text = text

    def report(self, only: Any = None) -> dict[str, Any]:
        keys = [worker.key for worker in only]
        return {"node": "n1", "partitions": [{"stream": k.stream, "partition": k.partition, "text": self._text} for k in keys]}


async def test_a_node_with_many_partitions_tells_all_of_them_page_by_page() -> None:
    sizes: list[int] = []
    reporter = Reports(PAGE_PARTITIONS * 5 + 3, "x" * 4000)

    async def request(subject: str, payload: bytes, timeout_s: float) -> bytes:
        answer = _page_of(reporter, payload, MESSAGE_BYTES)
        sizes.append(len(answer))
        return answer

    client: Any = SimpleNamespace(_transport=SimpleNamespace(request=request), _subjects=Subjects())
    client._status_page = lambda *given: Client._status_page(client, *given)
    status = await asyncio.wait_for(Client.node_status(client, "n1"), 20)
    told = [(p["stream"], p["partition"]) for p in status["partitions"]]
    assert told == sorted((w.key.stream, w.key.partition) for w in reporter._partitions)
    assert not status["more"]
    assert max(sizes) <= MESSAGE_BYTES


@pytest.mark.parametrize("question", [b"", b"\xb9\x0e", b"{}", b'{"after": 5}', b'{"after": ["s", "x"]}', b"[1, 2]"])
def test_any_other_question_asks_for_the_first_page(question: bytes) -> None:
    found = json.loads(_page_of(Reports(3), question, MESSAGE_BYTES))
    assert [p["partition"] for p in found["partitions"]] == [0, 1, 2]
    assert found["more"] is False
