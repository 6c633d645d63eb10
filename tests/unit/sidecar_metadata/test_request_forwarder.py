"""Test that a request is repeated when the metadata leader changes, and never past its deadline."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest

from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.decode_errors import REFUSED
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError
from sidecar.metadata import control
from sidecar.metadata.control import Forwarder


class Bus:
    """Give no answer to the first ``silent`` requests and answer the others at once."""

    def __init__(self, silent: int) -> None:
        self.silent = silent
        self.asked: list[pb.ControlRequest] = []
        self.arrived = asyncio.Event()

    async def request(self, subject: str, payload: bytes, timeout: float) -> Any:
        self.asked.append(frames.decode(payload, pb.ControlRequest))
        self.arrived.set()
        if len(self.asked) <= self.silent:
            await asyncio.sleep(timeout)
            raise nats.errors.TimeoutError
        answer = pb.ControlResponse(operationId=self.asked[-1].operationId)
        return type("Message", (), {"data": frames.encode(answer)})


def forwarder(bus: Bus) -> Forwarder:
    return Forwarder(bus, Subjects("space"), "n1")  # type: ignore[arg-type]


@pytest.mark.parametrize("next_leader", ["n1", "n2"])
async def test_request_forwarder_repeats_unanswered_requests_after_a_leader_change(
    monkeypatch: pytest.MonkeyPatch, next_leader: str
) -> None:
    """The same leader may lead again. It did not receive requests while NATS was down."""
    monkeypatch.setattr(control, "ATTEMPT_NS", 3600 * 1_000_000_000)
    bus = Bus(silent=1)
    made = forwarder(bus)
    made.leader_is("n1", 4)
    deciding = asyncio.create_task(made.request_until_decided(pb.ControlRequest(barrier=pb.Barrier()), 3600.0))
    await bus.arrived.wait()
    made.leader_is("n1", 4)  # nothing new
    made.leader_is("", 5)  # nobody to ask
    await asyncio.sleep(0)
    assert len(bus.asked) == 1
    made.leader_is(next_leader, 5)
    async with asyncio.timeout(60):  # much less than one attempt
        response = await deciding
    assert response.error == pb.ControlResponse.OK
    assert bus.asked[0].operationId == bus.asked[1].operationId, "one operation, however often it is asked for"


async def test_request_forwarder_ignores_an_answer_to_another_request_and_retries() -> None:
    class Mixed(Bus):
        async def request(self, subject: str, payload: bytes, timeout: float) -> Any:
            answer = await super().request(subject, payload, timeout)
            if len(self.asked) == 1:
                answer.data = frames.encode(pb.ControlResponse(operationId=b"another request!"))
            return answer

    bus = Mixed(silent=0)
    response = await forwarder(bus).request_until_decided(pb.ControlRequest(barrier=pb.Barrier()), 60.0)
    assert response.error == pb.ControlResponse.OK
    assert len(bus.asked) == 2
    assert bus.asked[0].operationId == bus.asked[1].operationId == response.operationId


class Plain:
    """Stand in for a connection: note what is sent, and pass messages to the subscription."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, str]] = []
        self.sinks: dict[str, Any] = {}

    def listen(self, subject: str, sink: Any) -> Any:
        self.sinks[subject] = sink
        return SimpleNamespace(close=lambda: self.sinks.pop(subject))

    def send(self, subject: str, pieces: tuple[bytes, ...], reply: str) -> None:
        self.sent.append((subject, b"".join(pieces), reply))

    def answer(self, payload: bytes, headers: bytes = b"") -> None:
        for subject, sink in list(self.sinks.items()):
            sink(subject.encode(), b"", payload, headers)


def test_forwarder_passes_the_answer_to_the_heartbeat_with_its_operation_id() -> None:
    bus, answered = Plain(), list[tuple[int, pb.ControlResponse]]()
    made = Forwarder(bus, Subjects("space"), "n1")  # type: ignore[arg-type]
    requests = [pb.ControlRequest(heartbeat=pb.Heartbeat(nodeId="n1"), operationId=bytes([n]) * 16) for n in range(3)]
    for number, request in enumerate(requests):
        made.send_heartbeat(request, lambda response, number=number: answered.append((number, response)))  # type: ignore[misc]
    assert [(subject, frames.decode(data, pb.ControlRequest)) for subject, data, _ in bus.sent] == [
        ("space.control.node.n1", request) for request in requests
    ]
    (inbox,) = {reply for _, _, reply in bus.sent}
    assert inbox.startswith(f"{Subjects('space').inbox('n1')}."), "only the node receives its answers"
    found = pb.ControlResponse(operationId=requests[1].operationId, index=7)
    for payload in (b"no frame", frames.seal(pb.ControlResponse(operationId=b"x" * 16)), *[frames.seal(found)] * 2):
        bus.answer(payload)
    assert answered == [(1, found)], "once, and only answers to own requests"
    bus.answer(b"", b"NATS/1.0 503\r\n\r\n")
    assert [(number, response.error) for number, response in answered[1:]] == [(2, pb.ControlResponse.UNAVAILABLE)]
    made.close()
    assert not bus.sinks


def test_forwarder_continues_after_a_heartbeat_answer_that_its_node_cannot_process() -> None:
    bus, answered = Plain(), list[pb.ControlResponse]()
    made = Forwarder(bus, Subjects("space"), "n1")  # type: ignore[arg-type]

    def fail(_: pb.ControlResponse) -> None:
        raise ValueError("impossible")

    for number, then in ((1, fail), (2, answered.append)):
        request = pb.ControlRequest(heartbeat=pb.Heartbeat(nodeId="n1"), operationId=bytes([number]) * 16)
        made.send_heartbeat(request, then)
        bus.answer(frames.seal(pb.ControlResponse(operationId=request.operationId)))
    assert len(answered) == 1
    assert made.counters[f"{REFUSED}failed request, heartbeat answer"] == 1


OUTCOME_UNKNOWN, UNAVAILABLE = pb.ControlResponse.OUTCOME_UNKNOWN, pb.ControlResponse.UNAVAILABLE


NS = 1_000_000_000


class Slow(Bus):
    """Answer requests after a few turns of the event loop."""

    async def request(self, subject: str, payload: bytes, timeout: float) -> Any:
        self.subject, self.timeout = subject, timeout
        for _ in range(5):
            await asyncio.sleep(0)
        return await super().request(subject, payload, timeout)


async def test_request_forwarder_does_not_repeat_a_request_after_an_earlier_leader_change() -> None:
    bus = Slow(silent=0)
    made = Forwarder(bus, Subjects("space"), "n1")  # type: ignore[arg-type]
    made.leader_is("n1", 1)
    made.leader_is("n2", 2)
    response = await made.request_until_decided(pb.ControlRequest(barrier=pb.Barrier()), 60.0)
    assert (response.error, len(bus.asked), bus.subject) == (pb.ControlResponse.OK, 1, "space.control.node.n1")
    assert 0 < bus.timeout <= control.ATTEMPT_NS / NS
    assert len(bus.asked[0].operationId) == 16


@pytest.mark.parametrize(
    ("error", "outcome", "detail"),
    [
        (nats.errors.NoRespondersError(), UNAVAILABLE, "no controller can be reached"),
        (nats.errors.ConnectionClosedError(), UNAVAILABLE, "no controller can be reached"),
        (nats.errors.OutboundBufferLimitError(), UNAVAILABLE, "no controller can be reached"),
        (nats.errors.TimeoutError(), OUTCOME_UNKNOWN, "no answer from the metadata leader: TimeoutError"),
        (nats.errors.StaleConnectionError(), OUTCOME_UNKNOWN, "no answer from the metadata leader: StaleConnectionError"),
        (TimeoutError(), OUTCOME_UNKNOWN, "no answer from the metadata leader: TimeoutError"),
        (ConfigError("odd"), OUTCOME_UNKNOWN, "no answer from the metadata leader: ConfigError"),
    ],
)
async def test_request_forwarder_error_distinguishes_sent_from_unsent_requests(
    error: Exception, outcome: Any, detail: str
) -> None:
    class Failing(Bus):
        async def request(self, subject: str, payload: bytes, timeout: float) -> Any:
            raise error

    made = Forwarder(Failing(0), Subjects("space"), "n1")  # type: ignore[arg-type]
    response = await made.request_until_decided(pb.ControlRequest(barrier=pb.Barrier()), 0.05)
    assert (response.error, response.detail) == (outcome, detail)


async def test_request_forwarder_on_the_metadata_leader_decides_locally_with_the_remaining_timeout() -> None:
    given: list[float] = []

    async def here(request: pb.ControlRequest, timeout_s: float) -> pb.ControlResponse:
        given.append(timeout_s)
        error = UNAVAILABLE if len(given) == 1 else pb.ControlResponse.OK
        return pb.ControlResponse(error=error, index=len(given))

    bus = Bus(silent=0)
    made = Forwarder(bus, Subjects("space"), "n1")  # type: ignore[arg-type]
    response = await made.request_until_decided(pb.ControlRequest(barrier=pb.Barrier()), 60.0, here)
    assert (response.index, bus.asked) == (2, [])
    assert 59 < given[1] < given[0] <= 60
