"""Test the shell of the metadata group at its limits: a close, unknown outcomes, a failing watcher."""

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
from liftpy.core.wire.subjects import Subjects
from sidecar.metadata import control
from sidecar.metadata.control import Forwarder
from sidecar.metadata.feed import FeedSubscriber
from tests.unit.sidecar_metadata.test_control_endpoint import REQUEST, Controller, Message

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
