"""Test the probes of absent nodes, and the end of tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import nats.errors
import pytest

from liftpy.core.metadata.node_identity import EarlierProcessSign
from liftpy.core.wire.subjects import Subjects
from liftpy.nats.cancellation import end_tasks
from sidecar.transport.liveness import Probes, is_absent, probe_process


class Bus:
    """Answers when told: an exception is raised, None is an answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_connected = True
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def request(self, subject: str, payload: bytes, timeout: float) -> None:
        self.asked.append(subject)
        await asyncio.shield(self.answer)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_absence_probes_of_the_same_node_share_one_request_and_are_told_only_of_its_absence() -> None:
    bus, told = Bus(), []
    probes = Probes(bus, Subjects("space"))  # type: ignore[arg-type]
    for number in range(3):
        probes.ask("n1", lambda number=number: told.append(number))
    probes.ask("n2", lambda: told.append(9))
    await turns()
    assert bus.asked == ["space.status.n1", "space.status.n2"]
    bus.answer.set_exception(nats.errors.NoRespondersError())
    await turns()
    assert sorted(told) == [0, 1, 2, 9]
    probes.ask("n1", lambda: told.append(4))
    await turns()
    assert (bus.asked[2:], sorted(told)) == (["space.status.n1"], [0, 1, 2, 4, 9])
    bus.answer = asyncio.get_running_loop().create_future()
    bus.answer.set_result(None)
    probes.ask("n1", pytest.fail)
    await turns()
    assert len(bus.asked) == 4
    await probes.close()


async def test_absence_probe_without_a_connection_or_after_close_does_not_report_the_node_as_absent() -> None:
    bus, told = Bus(), []
    probes = Probes(bus, Subjects())  # type: ignore[arg-type]
    bus.is_connected = False
    probes.ask("n1", lambda: told.append("absent"))
    await turns()
    assert (bus.asked, told) == ([], [])
    bus.is_connected = True
    probes.ask("n1", lambda: told.append("absent"))
    await turns()
    await probes.close()
    bus.answer.set_exception(nats.errors.NoRespondersError())
    bus.answer.exception()
    await turns()
    assert told == []


@pytest.mark.parametrize(
    ("answer", "sign"),
    [
        (None, EarlierProcessSign.PRESENT),
        (nats.errors.NoRespondersError(), EarlierProcessSign.ABSENT),
        (nats.errors.TimeoutError(), EarlierProcessSign.SILENT),
        (TimeoutError(), EarlierProcessSign.SILENT),
        (nats.errors.ConnectionClosedError(), EarlierProcessSign.UNASKED),
        (OSError(), EarlierProcessSign.UNASKED),
    ],
)
async def test_node_is_absent_only_if_its_status_request_has_no_responders(answer: Any, sign: EarlierProcessSign) -> None:
    bus: Any = Bus()
    if answer is None:
        bus.answer.set_result(None)
    else:
        bus.answer.set_exception(answer)
    assert await probe_process(bus, Subjects("space"), "n1") is sign
    assert await is_absent(bus, Subjects("space"), "n1") is (sign is EarlierProcessSign.ABSENT)


async def test_end_tasks_repeats_the_cancellation_of_a_task_that_swallows_cancelled_error() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 2:
                    raise

    async def failed() -> None:
        raise ValueError("of no interest any more")

    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(asyncio.sleep(3600)), asyncio.create_task(failed())]
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await end_tasks([*tasks, None])
    assert swallowed == 2
    assert tasks[1].cancelled()
    assert isinstance(tasks[2].exception(), ValueError)
