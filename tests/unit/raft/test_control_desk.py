"""Control requests from the bus: the leader answers, within a bound; the others are silent, unless nobody leads at all."""

from __future__ import annotations

import asyncio
from typing import Any

import nats.errors
import pytest

from liftpy.wire import frames
from liftpy.wire._pb import cluster_pb2 as pb
from liftpy.wire.subjects import Subjects
from sidecar.raft import control
from sidecar.raft.control import ControlDesk


class Message:
    def __init__(self, data: bytes, reply: str = "_INBOX.1") -> None:
        self.data = data
        self.reply = reply


class Controller:
    """A desk with a bus and a decision that take what the test sets."""

    def __init__(self) -> None:
        self.leads = True
        self.may_decide = asyncio.Event()
        self.may_decide.set()
        self.says_alone: pb.ControlResponse | None = None
        self.replies: list[tuple[str, pb.ControlResponse]] = []
        self.desk = ControlDesk(
            self,  # type: ignore[arg-type]
            Subjects("space", ("_INBOX.", "acme.box.")),
            lambda reply: reply.startswith(b"_INBOX."),
            lambda: self.leads,
            self.decide,
            lambda request: self.says_alone,
        )

    async def subscribe(self, subject: str, cb: Any) -> None:
        assert subject == "space.control"
        self.receive = cb

    async def publish(self, subject: str, payload: bytes) -> None:
        self.replies.append((subject, frames.decode(payload, pb.ControlResponse)))

    async def decide(self, request: pb.ControlRequest, timeout_s: float) -> pb.ControlResponse:
        await self.may_decide.wait()
        return pb.ControlResponse(operationId=request.operationId, index=7)

    async def settled(self) -> None:
        await asyncio.gather(*self.desk._under_way)


REQUEST = frames.encode(pb.ControlRequest(operationId=b"o" * 16, barrier=pb.Barrier()))


@pytest.fixture
async def controller() -> Controller:
    made = Controller()
    await made.desk.open()
    return made


async def test_the_leader_answers(controller: Controller) -> None:
    await controller.receive(Message(REQUEST))
    await controller.settled()
    [(subject, response)] = controller.replies
    assert (subject, response.operationId, response.index) == ("_INBOX.1", b"o" * 16, 7)


async def test_others_are_silent_unless_they_have_something_to_say(controller: Controller) -> None:
    controller.leads = False
    await controller.receive(Message(REQUEST))
    assert controller.replies == []
    controller.says_alone = pb.ControlResponse(index=3)
    await controller.receive(Message(REQUEST))
    assert [response.index for _, response in controller.replies] == [3]


async def test_what_is_over_the_bound_is_told_to_come_back(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_MAX_WAITING", 2)
    controller.may_decide.clear()
    for _ in range(3):
        await controller.receive(Message(REQUEST))
    assert [response.error for _, response in controller.replies] == [pb.ControlResponse.UNAVAILABLE]
    assert controller.desk.counters == {"control requests over the bound": 1}
    controller.may_decide.set()
    await controller.settled()
    assert [response.index for _, response in controller.replies[1:]] == [7, 7]
    await controller.receive(Message(REQUEST))  # there is room again
    await controller.settled()
    assert len(controller.replies) == 4


@pytest.mark.parametrize("message", [Message(REQUEST, ""), Message(REQUEST, "shop.orders"), Message(b"junk"), Message(b"")])
async def test_what_is_no_request_or_wants_no_inbox_is_not_answered(controller: Controller, message: Message) -> None:
    await controller.receive(message)
    await controller.settled()
    assert controller.replies == []
    assert controller.desk.counters == ({"control requests refused": 1} if message.data in (b"junk", b"") else {})


async def test_closing_gives_up_what_is_under_way(controller: Controller) -> None:
    controller.may_decide.clear()
    await controller.receive(Message(REQUEST))
    await controller.desk.close()
    assert controller.replies == []


@pytest.mark.parametrize(("subject", "taken"), [("acme.box.x", True), ("acme.>", True), ("shop.x", False)])
async def test_a_stream_among_the_inboxes_is_refused(controller: Controller, subject: str, taken: bool) -> None:
    request = pb.ControlRequest(operationId=b"o" * 16, createStream=pb.CreateStream(name="s", subject=subject))
    await controller.receive(Message(frames.encode(request)))
    await controller.settled()
    [(_, response)] = controller.replies
    assert (response.error == pb.ControlResponse.INVALID) is taken
    assert ("inboxes under acme.box." in response.detail) is taken


async def test_an_answer_larger_than_a_message_is_refused_with_the_way_to_ask(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = controller.publish
    tries: list[int] = []

    async def publish(subject: str, payload: bytes) -> None:
        tries.append(len(payload))
        if len(tries) == 1:
            raise nats.errors.MaxPayloadError
        await real(subject, payload)

    monkeypatch.setattr(controller, "publish", publish)
    await controller.receive(Message(REQUEST))
    await controller.settled()
    [(_, response)] = controller.replies
    assert response.error == pb.ControlResponse.INVALID
    assert response.operationId == b"o" * 16
    assert "ask in pages" in response.detail
