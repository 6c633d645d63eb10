"""Test that a request is repeated when the metadata leader changes, and never past its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest

from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.decode_errors import REFUSED
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError
from sidecar.metadata import control
from sidecar.metadata.control import Forwarder
from sidecar.metadata.feed import FeedSubscriber
from tests.unit.sidecar_metadata.test_control_endpoint import REQUEST, Controller, Message


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


# ---- timeouts --------------------------------------------------------------------------------------------------------------
S = 1_000_000_000


async def turns(condition: Callable[[], object] = lambda: False, most: int = 50) -> None:
    """Run a limited number of turns of the event loop until ``condition``."""
    for _ in range(most):
        if condition():
            return
        await asyncio.sleep(0)


# ---- the handler ------------------------------------------------------------------------------------------------------------
@pytest.fixture
async def handler() -> Controller:
    made = Controller()
    await made.handler.open()
    return made


async def test_control_endpoint_request_cancelled_by_close_gets_no_answer(handler: Controller) -> None:
    handler.may_decide.clear()
    await handler.receive(Message(REQUEST))
    await turns(lambda: handler.begun)
    await handler.handler.close()
    handler.may_decide.set()
    await turns()
    assert (handler.decided, handler.replies, handler.listening, len(handler.handler._request_tasks)) == ([], [], {}, 0)


# ---- forwarding ----------------------------------------------------------------------------------------------------------
class Asked:
    """Answer requests from ``answers``: raise an exception, give no answer for None, or send bytes with the operation id."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[pb.ControlRequest] = []

    async def request(self, subject: str, payload: bytes, timeout: float) -> Any:
        self.asked.append(frames.decode(payload, pb.ControlRequest))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await asyncio.sleep(timeout)
            raise nats.errors.TimeoutError
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(data=frames.encode(pb.ControlResponse(operationId=answer)))


UNREACHED, UNKNOWN = pb.ControlResponse.UNAVAILABLE, pb.ControlResponse.OUTCOME_UNKNOWN


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([nats.errors.NoRespondersError()], UNREACHED),
        ([nats.errors.ConnectionClosedError()], UNREACHED),
        ([nats.errors.OutboundBufferLimitError()], UNREACHED),
        ([b"another request!", nats.errors.NoRespondersError()], UNKNOWN),
        ([nats.errors.TimeoutError(), nats.errors.NoRespondersError()], UNKNOWN),
        ([TimeoutError(), nats.errors.NoRespondersError()], UNKNOWN),
    ],
    ids=str,
)
async def test_request_forwarder_timeout_after_sending_returns_an_unknown_outcome(
    answers: list[Any], error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = Asked(*answers)
    monkeypatch.setattr(control, "clock", SimpleNamespace(now_ns=lambda: len(bus.asked) * S // 10))
    made = Forwarder(bus, Subjects("space"), "n1")  # type: ignore[arg-type]
    request = pb.ControlRequest(barrier=pb.Barrier(), operationId=b"this very one...")
    response = await made.request_until_decided(request, 0.3)  # three requests of 0.1 s each, however long they took
    assert response.error == error
    assert len(bus.asked) == 3
    assert {asked.operationId for asked in bus.asked} == {b"this very one..."}


# ---- the feed ------------------------------------------------------------------------------------------------------------
class Feed:
    """Fail requests in the order of the test, then give no answer. ``left`` contains ended subscriptions."""

    def __init__(self, *failures: Exception) -> None:
        self.failures, self.asked, self.left = list(failures), 0, 0

    async def subscribe(self, subject: str, **_: Any) -> Any:
        async def unsubscribe() -> None:
            self.left += 1

        return SimpleNamespace(unsubscribe=unsubscribe)

    async def request(self, subject: str, payload: bytes, timeout: float) -> Any:
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)
        await asyncio.Event().wait()


async def test_metadata_feed_subscriber_watcher_that_raises_is_reported() -> None:
    node: Any = FeedSubscriber("n9", Feed(), Subjects("ns"))  # type: ignore[arg-type]
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    def fails(before: ClusterImage, image: ClusterImage) -> None:
        raise KeyError("a bug")

    node.watch(fails)
    node._show(ClusterImage())
    asyncio.get_running_loop().set_exception_handler(None)
    assert [(context["message"], repr(context["exception"])) for context in told] == [
        ("following the feed has ended", "KeyError('a bug')")
    ]
