"""Asking the bus for a late node: only "no responders" is a proof that it is gone."""

from __future__ import annotations

import asyncio
from typing import Any

import nats.errors
import pytest

from liftpy.wire.subjects import Subjects
from sidecar.metadata.presence import Presence


class Bus:
    """Answers a status request as told: an exception is raised, None is an answer; "wait" hangs."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.is_connected = True

    async def request(self, subject: str, payload: bytes, timeout: float) -> None:
        self.asked.append(subject)
        if self.answer == "wait":
            await asyncio.Event().wait()
        if self.answer is not None:
            raise self.answer


async def look(bus: Bus, late: list[str]) -> list[str]:
    gone: list[str] = []
    presence = Presence(bus, Subjects("space"), gone.append)  # type: ignore[arg-type]
    presence.look(lambda: late)
    presence.look(lambda: late)  # too soon: nobody is asked for again
    for _ in range(3):
        await asyncio.sleep(0)
    await presence.close()
    return gone


async def test_nobody_listens_for_it() -> None:
    bus = Bus(nats.errors.NoRespondersError())
    assert await look(bus, ["n1", "n2"]) == ["n1", "n2"]
    assert bus.asked == ["space.status.n1", "space.status.n2"]


@pytest.mark.parametrize(
    "answer", [None, "wait", TimeoutError(), nats.errors.TimeoutError(), nats.errors.ConnectionClosedError()]
)
async def test_everything_else_proves_nothing(answer: Any) -> None:
    assert await look(Bus(answer), ["n1"]) == []


async def test_without_a_connection_nobody_is_asked() -> None:
    bus = Bus(nats.errors.NoRespondersError())
    bus.is_connected = False
    assert await look(bus, ["n1"]) == []
    assert bus.asked == []
