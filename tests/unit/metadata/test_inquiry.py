"""Inquiry: a question goes to the node's notify subject, and what comes back is one of three things, or nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest

from liftpy.cluster.accusations import Question, Said
from liftpy.ids import PartitionKey
from liftpy.wire import frames
from liftpy.wire._pb import replication_pb2
from liftpy.wire.subjects import Subjects
from sidecar.metadata.inquiry import Inquiry

QUESTION = Question(PartitionKey("orders", "uid-1", 2), 7, "n2")


class Bus:
    is_connected = True

    def __init__(self, answer: bytes | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[str, replication_pb2.LeaderQuestion]] = []

    async def request(self, subject: str, payload: bytes, timeout: float) -> Any:
        self.asked.append((subject, frames.decode(payload, replication_pb2.LeaderQuestion)))
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(data=self.answer)


@pytest.mark.parametrize(
    ("answer", "testimony"),
    [
        (frames.encode(replication_pb2.LeaderTestimony(serves=True)), [Said.SERVES]),
        (frames.encode(replication_pb2.LeaderTestimony()), [Said.DOES_NOT]),
        (nats.errors.NoRespondersError(), [Said.ABSENT]),
        (TimeoutError(), []), (nats.errors.ConnectionClosedError(), []), (b"garbage", []),
    ],
)  # fmt: skip
async def test_what_is_asked_and_what_it_comes_to(answer: bytes | Exception, testimony: list[Said]) -> None:
    bus, heard = Bus(answer), []
    inquiry = Inquiry(bus, Subjects(), lambda question, said: heard.append((question, said)))  # type: ignore[arg-type]
    inquiry.ask([QUESTION])
    await asyncio.gather(*inquiry._asking)
    assert heard == [(QUESTION, said) for said in testimony]
    ((subject, asked),) = bus.asked
    assert (subject, asked.stream, asked.streamUid, asked.partition, asked.leaderEpoch) == (
        "liftpy.notify.n2", "orders", "uid-1", 2, 7,
    )  # fmt: skip
    await inquiry.close()
