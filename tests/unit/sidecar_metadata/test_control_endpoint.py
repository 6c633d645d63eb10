"""Test control requests from the bus: the leader answers, within a limit, and the others are silent."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.base.rate_limits import TokenBucket
from liftpy.core.metadata.controller import admission
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import InboxRule, Subjects
from sidecar.metadata import control
from sidecar.metadata.control import ControlHandler


class Message:
    def __init__(self, data: bytes, reply: str = "space.inbox.n1.1", subject: str = "space.control.node.n1") -> None:
        self.data = data
        self.reply = reply
        self.subject = subject


class Controller:
    """Provide a control endpoint with a scripted NATS connection and scripted decisions."""

    def __init__(self) -> None:
        self.leads = True
        self.image = SimpleNamespace(nodes={"n1"})
        self.may_decide = asyncio.Event()
        self.may_decide.set()
        self.says_alone: pb.ControlResponse | None = None
        self.replies: list[tuple[str, pb.ControlResponse]] = []
        self.begun: list[pb.ControlRequest] = []
        self.decided: list[pb.ControlRequest] = []
        self.listening: dict[str, Any] = {}
        self.max_payload = 1 << 20
        self.response = pb.ControlResponse(index=7)
        self.handler = ControlHandler(
            self,  # type: ignore[arg-type]
            Subjects("space", ("_INBOX.", "acme.box.")),
            InboxRule(("_INBOX.",)),
            self,  # type: ignore[arg-type]
            ReplicationConfig(groups_partitions=5, groups_replicas=2),
        )

    def listen(self, subject: str, sink: Any) -> Any:
        self.listening[subject] = sink
        return SimpleNamespace(close=lambda: self.listening.pop(subject))

    async def receive(self, message: Message) -> None:
        """Deliver a message to every matching subscription, like NATS."""
        for subject, sink in self.listening.items():
            if len(tokens := subject.split(".")) == len(given := message.subject.split(".")) and all(
                token in ("*", other) for token, other in zip(tokens, given, strict=True)
            ):
                sink(message.subject.encode(), message.reply.encode(), message.data, b"")

    def send(self, subject: str, pieces: Sequence[bytes]) -> bool:
        self.replies.append((subject, frames.decode(b"".join(pieces), pb.ControlResponse)))
        return True

    def answer_heartbeat(self, request: pb.ControlRequest) -> None:
        """Leave heartbeats to ``decide``."""

    def answer_without_leader(self, request: pb.ControlRequest) -> pb.ControlResponse | None:
        return self.says_alone

    async def decide(self, request: pb.ControlRequest, timeout_s: float) -> pb.ControlResponse:
        self.begun.append(request)
        await self.may_decide.wait()
        self.decided.append(request)
        response = pb.ControlResponse()
        response.CopyFrom(self.response)
        response.operationId = request.operationId
        return response

    async def settled(self) -> None:
        await asyncio.gather(*self.handler._request_tasks)


REQUEST = frames.encode(pb.ControlRequest(operationId=b"o" * 16, barrier=pb.Barrier()))


@pytest.fixture
async def controller() -> Controller:
    made = Controller()
    await made.handler.open()
    return made


async def test_control_endpoint_subscribes_to_node_requests_only_on_the_metadata_leader(controller: Controller) -> None:
    of_nodes, of_operators = "space.control.node.*", "space.control.admin"
    assert {of_nodes, of_operators, "space.info"} <= controller.listening.keys()
    controller.leads = False
    controller.handler.follow_leadership()
    assert of_nodes not in controller.listening
    assert {of_operators, "space.info"} <= controller.listening.keys()
    for _ in range(2):
        controller.leads = True
        controller.handler.follow_leadership()
    await controller.receive(Message(REQUEST))
    await controller.settled()
    assert len(controller.replies) == 1
    await controller.handler.close()
    assert controller.listening == {}
    controller.handler.follow_leadership()
    assert controller.listening == {}


async def test_control_endpoint_of_another_controller_sends_no_answer_to_requests_for_the_leader(
    controller: Controller,
) -> None:
    controller.leads = False
    await controller.receive(Message(REQUEST))
    assert controller.replies == []
    controller.says_alone = pb.ControlResponse(index=3)
    await controller.receive(Message(REQUEST))
    assert [response.index for _, response in controller.replies] == [3]


async def test_control_endpoint_with_too_many_requests_in_progress_answers_unavailable(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_IN_PROGRESS", 2)
    controller.may_decide.clear()
    for _ in range(3):
        await controller.receive(Message(REQUEST))
    assert [response.error for _, response in controller.replies] == [pb.ControlResponse.UNAVAILABLE]
    assert controller.handler.counters == {"control requests above the limit of requests in progress": 1}
    controller.may_decide.set()
    await controller.settled()
    assert [response.index for _, response in controller.replies[1:]] == [7, 7]
    await controller.receive(Message(REQUEST))  # there is room again
    await controller.settled()
    assert len(controller.replies) == 4


@pytest.mark.parametrize(
    "message",
    [
        *(Message(REQUEST, reply) for reply in ("", "shop.orders", "_INBOX.1")),
        *(Message(REQUEST, f"space.inbox.n1.{end}") for end in ("*", ">", "a b", "\r\nPUB x 0")),
        Message(b"junk"),
        Message(b""),
    ],
)
async def test_control_endpoint_request_with_invalid_bytes_or_reply_subject_gets_no_answer(
    controller: Controller, message: Message
) -> None:
    await controller.receive(message)
    await controller.settled()
    assert controller.replies == []
    assert controller.handler.counters == {
        "refused: no envelope" if message.data in (b"junk", b"") else "refused: invalid reply subject": 1
    }


async def test_control_endpoint_answer_above_the_message_size_is_replaced_by_an_error_with_a_hint(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.response = pb.ControlResponse(detail="x" * 5000)
    monkeypatch.setattr(controller, "max_payload", 4096)
    await controller.receive(Message(REQUEST))
    await controller.settled()
    [(_, response)] = controller.replies
    assert response.error == pb.ControlResponse.INVALID
    assert response.operationId == b"o" * 16
    assert "ask in pages" in response.detail


# ---- doors -------------------------------------------------------------------------------------------------------------------
CREATE = pb.ControlRequest(createStream=pb.CreateStream(name="s", subject="x"))
DELETE = pb.ControlRequest(deleteStream=pb.DeleteStream(name="s"))
DESCRIBE = pb.ControlRequest(describeStream=pb.DescribeStream(name="s"))
BEAT = pb.ControlRequest(heartbeat=pb.Heartbeat(nodeId="n1"))
ISR = pb.ControlRequest(changeIsr=pb.ChangeIsr(stream="s", leader="n1"))
PASS = pb.ControlRequest(passOver=pb.PassOver(stream="s", candidate="n1"))


def batch(*requests: pb.ControlRequest) -> pb.ControlRequest:
    return pb.ControlRequest(batch=pb.Batch(requests=[pb.BatchedRequest(request=request) for request in requests]))


@pytest.mark.parametrize(
    ("subject", "request_", "taken"),
    [
        ("space.info", DESCRIBE, True),
        ("space.info", DELETE, False),
        ("space.control.admin.alice", DELETE, True),
        ("space.control.admin.alice", DESCRIBE, True),
        ("space.control.admin.alice", BEAT, False),
        ("space.control.node.n1", BEAT, True),
        ("space.control.node.n1", batch(ISR, ISR), True),
        ("space.control.node.n2", BEAT, False),
        ("space.control.node.n1", batch(ISR, pb.ControlRequest(changeIsr=pb.ChangeIsr(leader="n2"))), False),
        ("space.control.node.n1", batch(batch(ISR)), False),
        ("space.control.node.n1", DELETE, False),
        ("space.control.node.n1", PASS, False),
        ("space.control.node.n1", pb.ControlRequest(), False),
    ],
)
async def test_control_endpoint_rejects_a_request_on_the_subject_of_another_request_kind(
    controller: Controller, subject: str, request_: pb.ControlRequest, taken: bool
) -> None:
    reply = "space.inbox." + subject.rpartition(".")[2] + ".x" if ".node." in subject else "_INBOX.x"
    request_.operationId = b"o" * 16
    await controller.receive(Message(frames.encode(request_), reply, subject))
    await controller.settled()
    [(where, response)] = controller.replies
    assert where == reply
    assert (response.error == pb.ControlResponse.OK) is taken, response.detail
    assert len(controller.decided) == taken


@pytest.mark.parametrize("reply", ["_INBOX.x", "space.inbox.n2.x", "space.inbox.n1", "space.inbox.n10.x", "space.feed", ""])
async def test_control_endpoint_answers_a_node_only_on_the_inbox_of_this_node(controller: Controller, reply: str) -> None:
    await controller.receive(Message(REQUEST, reply))
    await controller.settled()
    assert controller.replies == []
    assert controller.decided == []


@pytest.mark.parametrize("subject", ["space.info", "space.control.admin", "space.control.admin.alice"])
async def test_control_endpoint_does_not_answer_applications_on_inboxes_of_nodes(controller: Controller, subject: str) -> None:
    await controller.receive(Message(frames.encode(DESCRIBE), "space.inbox.n1.x", subject))
    await controller.settled()
    assert controller.replies == []


async def test_control_endpoint_truncates_an_answer_to_the_message_size(controller: Controller) -> None:
    controller.max_payload = 4096
    wide = pb.Stream(name="s", partitions=[pb.Partition(partition=n, replicas=["n" * 60]) for n in range(200)])
    controller.response = pb.ControlResponse(stream=wide)
    await controller.receive(Message(frames.encode(CREATE), "_INBOX.x", "space.control.admin"))
    await controller.receive(
        Message(frames.encode(pb.ControlRequest(describeCluster={"maxBytes": 1 << 30})), "_INBOX.x", "space.info")
    )
    await controller.settled()
    response = controller.replies[0][1]
    assert 0 < response.nextPartition == len(response.stream.partitions) < 100
    assert response.ByteSize() < 4096
    assert controller.decided[1].describeCluster.maxBytes == 2048


# ---- bounds ------------------------------------------------------------------------------------------------------------------
LONG = "a" * 400_000


async def test_control_endpoint_after_a_flood_of_large_requests_releases_their_memory(controller: Controller) -> None:
    request = pb.ControlRequest(operationId=b"o" * 16, createStream=pb.CreateStream(name=LONG, subject="x"))
    message = Message(frames.encode(request), "_INBOX.x", "space.control.admin")
    await controller.receive(message)
    tracemalloc.start()
    for _ in range(300):
        await controller.receive(message)
    await controller.settled()
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 2_000_000
    assert len(controller.replies) == 301


async def test_control_endpoint_bounds_the_bytes_of_requests_in_progress(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_IN_PROGRESS_BYTES", 2 * len(REQUEST))
    controller.may_decide.clear()
    for _ in range(3):
        await controller.receive(Message(REQUEST))
    assert [response.error for _, response in controller.replies] == [pb.ControlResponse.UNAVAILABLE]
    controller.may_decide.set()
    await controller.settled()
    await controller.receive(Message(REQUEST))
    await controller.settled()
    assert len(controller.replies) == 4


async def test_control_endpoint_truncates_a_long_reason_and_accepts_the_request(controller: Controller) -> None:
    leaving = pb.LeaveIsr(stream="s", node="n1", reason="because " * 1000)
    await controller.receive(Message(frames.encode(pb.ControlRequest(operationId=b"o" * 16, leaveIsr=leaving))))
    await controller.settled()
    assert len(controller.decided) == 1
    assert len(controller.decided[0].leaveIsr.reason) <= 256


async def test_control_endpoint_during_a_flood_drops_client_requests_undecoded_and_answers_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = 5_000_000_000
    monkeypatch.setattr(control.clock, "now_ns", lambda: now_ns)
    controller = Controller()
    await controller.handler.open()
    asked = frames.seal(pb.ControlRequest(describeCluster=pb.DescribeCluster()))
    beat = frames.seal(pb.ControlRequest(heartbeat=pb.Heartbeat(nodeId="n1", incarnation=1)))

    async def answered(count: int, message: Message) -> int:
        before = len(controller.replies)
        for _ in range(count):
            await controller.receive(message)
            await asyncio.gather(*controller.handler._request_tasks)
        return len(controller.replies) - before

    for subject in ("space.info", "space.control.admin"):
        controller.handler.counters.clear()
        controller.handler.limits.allowance = TokenBucket(400, 50)
        assert await answered(80, Message(asked, "_INBOX.x", subject)) == 50
        assert controller.handler.counters[admission.FLOODED] == 30
        controller.handler.counters.clear()
        assert await answered(80, Message(beat)) == 80, "what the cluster lives by"
        now_ns += 10_000_000
        assert await answered(80, Message(asked, "_INBOX.x", subject)) == 4, "0.01 s later"
        now_ns += 3600 * 1_000_000_000
        assert await answered(80, Message(asked, "_INBOX.x", subject)) == 50, "a quiet hour gives no more than at once"
        controller.handler.counters.clear()
        controller.leads = False
        assert await answered(80, Message(asked, "_INBOX.x", subject)) == 0
        assert controller.handler.counters[admission.FLOODED] == 80, "nor does who does not lead read them"
        controller.leads = True


async def test_control_endpoint_rejects_an_operator_above_the_rate_limit_with_a_retry_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = 5_000_000_000
    monkeypatch.setattr(control.clock, "now_ns", lambda: now_ns)
    controller = Controller()
    await controller.handler.open()
    asked = frames.seal(pb.ControlRequest(operationId=b"o" * 16, describeCluster=pb.DescribeCluster()))

    async def told(count: int, subject: str) -> list[pb.ControlResponse]:
        del controller.replies[:]
        for _ in range(count):
            await controller.receive(Message(asked, "_INBOX.x", subject))
            await asyncio.gather(*controller.handler._request_tasks)
        return [response for _, response in controller.replies if response.retryAfterMs]

    refused = await told(260, "space.control.admin.alice")
    assert len(refused) == 10
    assert (refused[0].error, refused[0].retryAfterMs, refused[0].operationId) == (
        pb.ControlResponse.UNAVAILABLE,
        21,
        b"o" * 16,
    )
    assert refused[0].detail == (
        "The request is above the rate limit of 50 requests per second for 'alice', or of 200 for all senders. Retry in 21 ms."
    )
    assert controller.handler.counters[admission.TOO_FAST] == 10
    assert await told(5, "space.control.admin.bob") == []
    assert await told(100, "space.info") == [], "readers change nothing"
    assert len(await told(260, "space.control.admin")) == 10
    assert "for all senders without a principal" in (await told(1, "space.control.admin"))[0].detail


def order(name: str) -> bytes:
    return frames.seal(pb.ControlRequest(operationId=name.encode().ljust(16), deleteStream=pb.DeleteStream(name=name)))


async def ran() -> None:
    """Let all tasks that are ready run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_control_endpoint_requests_of_a_flooding_sender_wait_without_delaying_other_senders(
    controller: Controller,
) -> None:
    controller.may_decide.clear()
    for number in range(10):
        await controller.receive(Message(order(f"s{number}"), "_INBOX.1", "space.control.admin"))
    for number in range(10):  # what speaks for a node that nobody knows
        said = pb.ControlRequest(operationId=b"o" * 16, barrier=pb.Barrier())
        await controller.receive(
            Message(frames.seal(said), f"space.inbox.ghost{number}.1", f"space.control.node.ghost{number}")
        )
    await ran()
    assert [r.deleteStream.name for r in controller.begun if r.HasField("deleteStream")] == ["s0", "s1", "s2", "s3"]
    assert sum(r.HasField("barrier") for r in controller.begun) == 4, "ghosts have turns together"
    controller.begun.clear()
    await controller.receive(Message(REQUEST))
    await controller.receive(Message(frames.seal(BEAT)))
    await controller.receive(Message(frames.seal(DESCRIBE), "_INBOX.1", "space.info"))
    await ran()
    assert [r.WhichOneof("request") for r in controller.begun] == ["barrier", "heartbeat", "describeStream"]
    for _ in range(20):
        await controller.receive(Message(frames.seal(BEAT)))
    await ran()
    assert len(controller.begun) == 23, "what is answered at once needs no turn"
    controller.may_decide.set()
    await controller.settled()
    assert [r.deleteStream.name for r in controller.decided if r.HasField("deleteStream")] == [f"s{n}" for n in range(10)]
    assert len(controller.replies) == 43
    assert len(controller.handler._turns) == 0


async def test_control_endpoint_makes_one_description_per_turn_of_the_event_loop(controller: Controller) -> None:
    """A page takes 30 ms, so that hundreds of them in one turn would cost the controller its leadership."""
    for number in range(50):
        request = pb.ControlRequest(operationId=number.to_bytes(16), describeCluster=pb.DescribeCluster())
        await controller.receive(Message(frames.encode(request), f"_INBOX.{number}", "space.info"))
    counts = [0]
    while counts[-1] < 50:
        await asyncio.sleep(0)
        counts.append(len(controller.begun))
        assert counts[-1] - counts[-2] <= 1
        assert len(counts) < 1000
    await controller.settled()
    assert len(controller.replies) == 50


async def test_control_endpoint_request_that_waits_too_long_for_admission_gets_unavailable(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_TIMEOUT_S", 0.01)
    controller.may_decide.clear()
    for number in range(7):
        await controller.receive(Message(order(f"s{number}"), "_INBOX.1", "space.control.admin"))
    async with asyncio.timeout(30):
        while len(controller.replies) < 3:
            await asyncio.sleep(0.005)
    assert {response.error for _, response in controller.replies} == {pb.ControlResponse.UNAVAILABLE}
    assert controller.handler.counters == {control.NO_TURN: 3}
    controller.may_decide.set()
    await controller.settled()
    assert [r.deleteStream.name for r in controller.decided] == ["s0", "s1", "s2", "s3"]
    assert len(controller.handler._turns) == 0


async def test_control_endpoint_requests_of_unknown_nodes_share_one_rate_limit(controller: Controller) -> None:
    controller.handler.limits.allowance = TokenBucket(0.0, 3)
    for number in range(5):
        beat = pb.ControlRequest(heartbeat=pb.Heartbeat(nodeId="ghost", incarnation=number))
        await controller.receive(Message(frames.seal(beat), "space.inbox.ghost.1", "space.control.node.ghost"))
    await controller.settled()
    assert (len(controller.replies), controller.handler.counters[admission.FLOODED]) == (3, 2)
