"""Test a request whose handler raises: only this request ends [A15]. Answers go to inboxes only [A5]."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import InboxRule, Subjects
from liftpy.nats.request_guard import RequestGuard
from sidecar.metadata.control import ControlHandler
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import fatal_on, spawn
from sidecar.status.status_api import StatusHandler
from tests.until import until


class Bus:
    """Listens and sends, as a node's connection and as nats-py's."""

    max_payload = 1 << 20
    unsent_bytes = 0

    def __init__(self) -> None:
        self.listening: dict[str, Any] = {}
        self.sent: list[tuple[str, bytes]] = []

    def listen(self, subject: str, handler: Any, **_: Any) -> Any:
        self.listening[subject] = handler
        return SimpleNamespace(close=lambda: None)

    def send(self, subject: str, pieces: Any, **_: Any) -> bool:
        self.sent.append((subject, b"".join(pieces)))
        return True


@pytest.fixture(autouse=True)
async def no_failure() -> AsyncIterator[None]:
    """Check that no request ends the node."""
    fatal: list[Exception] = []
    restore = fatal_on(asyncio.get_running_loop(), fatal.append)
    yield
    restore()
    assert not fatal


async def answer(bus: Bus) -> tuple[str, bytes]:
    await until(lambda: bus.sent)
    return bus.sent[0]


async def test_request_guard_rejects_and_counts_a_request_whose_handler_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counters: Counter[str] = Counter()
    rejected: list[bytes] = []
    guard = RequestGuard("odd", counters, lambda reply, error: rejected.append(reply))

    async def work() -> None:
        "\ud800".encode()

    with caplog.at_level(logging.ERROR, "liftpy.requests"):
        for number in range(5):
            await spawn(guard.run(work(), b"_INBOX.%d" % number), "a request")
    assert rejected == [b"_INBOX.%d" % number for number in range(5)]
    assert counters == {"refused: failed request, odd": 5}
    assert sum("kind=odd" in record.getMessage() for record in caplog.records) == 1, "one line a second, however many come"


async def test_request_guard_counts_a_rejection_that_raises() -> None:
    def reject(reply: bytes, error: Exception) -> None:
        raise ValueError("no rejection either")

    counters: Counter[str] = Counter()
    RequestGuard("odd", counters, reject).handler(lambda *_: int("x") and None)(b"s", b"_INBOX.x", b"", b"")
    assert counters == {"refused: failed request, odd": 2}


@pytest.fixture
def status(tmp_path: Path) -> tuple[Bus, StatusHandler, Counter[str]]:
    bus, counters = Bus(), Counter[str]()
    handler = StatusHandler(NodeSettings("n1", tmp_path), counters)
    handler.listen(bus, Subjects("ns"), (InboxRule(("_INBOX.",)),))  # type: ignore[arg-type]
    return bus, handler, counters


@pytest.mark.parametrize("subject", ["ns.control.level.n1", "ns.control.settings.n1", "ns.status.n1"])
@pytest.mark.parametrize("reply", [b"orders", b"ns.control.admin", b"_INBOXX.a", b"", b"_INBOX.>"])
async def test_status_endpoint_sends_no_answer_to_subjects_outside_inboxes(subject: str, reply: bytes, status: Any) -> None:
    bus, _, counters = status
    for payload in (b'{"level": "info", "for_s": 1}', b'{"reload": true}', b"", b'{"history": {"step": 1}}'):
        bus.listening[subject](subject.encode(), reply, payload, b"")
        await asyncio.sleep(0)
    assert bus.sent == []
    assert counters["refused: invalid reply subject"] == 4


async def test_status_endpoint_answers_a_settings_reload_that_raises_with_an_error(status: Any) -> None:
    bus, handler, counters = status

    async def on_reload() -> dict[str, Any]:
        raise RuntimeError("a defect")

    handler.on_reload = on_reload
    bus.listening["ns.control.settings.n1"](b"", b"_INBOX.a", b'{"reload": true}', b"")
    subject, payload = await answer(bus)
    assert (subject, b"error" in payload) == ("_INBOX.a", True)
    assert counters["refused: failed request, status"] == 1


async def test_control_endpoint_answers_a_request_whose_decision_raises_with_an_error() -> None:
    async def decide(request: Any, timeout_s: float) -> Any:
        raise OverflowError("a defect")

    bus = Bus()
    connection: Any = bus
    handler = ControlHandler(
        connection, Subjects("ns"), InboxRule(("_INBOX.",)), SimpleNamespace(leads=True, decide=decide), ReplicationConfig()
    )
    await handler.open()
    request = frames.seal(pb.ControlRequest(describeCluster=pb.DescribeCluster()))
    bus.listening["ns.info"](b"ns.info", b"_INBOX.a", request, b"")
    subject, payload = await answer(bus)
    assert subject == "_INBOX.a"
    assert frames.decode(payload, pb.ControlResponse).error == pb.ControlResponse.INVALID
    await handler.close()
