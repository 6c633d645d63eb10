"""Test how a starting process finds the previous process of its node: it continues, waits or ends."""

from __future__ import annotations

from typing import Any

import nats.errors
import pytest

from liftpy.core.metadata.node_identity import EarlierProcessCheck
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import FencedError
from sidecar.metadata import membership
from sidecar.metadata.membership import wait_for_predecessor


class Bus:
    """Give the answers in order, and repeat the last one."""

    is_connected = True

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def request(self, subject: str, payload: bytes, timeout: float) -> Any:
        self.asked.append(subject)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def wait(bus: Bus, wait_s: float = 60.0) -> None:
    await wait_for_predecessor(bus, Subjects("space"), "n1", EarlierProcessCheck(0, wait_s=wait_s))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "_ASK_EVERY_S", 0.0)
    monkeypatch.setattr(membership.clock, "now_ns", lambda: 1_000_000_000)


async def test_starting_node_after_a_killed_process_sends_one_status_request() -> None:
    bus = Bus(nats.errors.NoRespondersError())
    await wait(bus)
    assert bus.asked == ["space.status.n1"]


async def test_starting_node_waits_for_a_stopping_process_of_its_id() -> None:
    bus = Bus(b"yes", b"yes", nats.errors.NoRespondersError())
    await wait(bus)
    assert len(bus.asked) == 3


async def test_starting_node_with_a_running_process_of_its_id_raises_fenced() -> None:
    with pytest.raises(FencedError, match=r"answers on space\.status\.n1.*must not use the same id"):
        await wait(Bus(b"yes"), wait_s=0.5)


async def test_starting_node_continues_if_the_earlier_process_does_not_answer() -> None:
    bus = Bus(nats.errors.TimeoutError())
    await wait(bus)
    assert len(bus.asked) == 3


async def test_starting_node_retries_the_status_request_while_its_connection_is_closed() -> None:
    bus = Bus(*[nats.errors.ConnectionClosedError()] * 9, nats.errors.NoRespondersError())
    await wait(bus)
    assert len(bus.asked) == 10
