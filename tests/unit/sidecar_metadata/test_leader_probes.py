"""Test the questions of a controller to nodes: where they go, and the three possible answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata.controller.election_triggers import LeaderCheck, ProbeResult
from liftpy.core.wire import frames
from liftpy.core.wire._pb import replication_pb2
from liftpy.core.wire.subjects import Subjects
from sidecar.metadata.controller import TRANSFER_REQUEST_TIMEOUT_S, request_leadership_transfer
from sidecar.metadata.member import probe_accused_leader
from tests.each import each

QUESTION = LeaderCheck(PartitionKey("orders", "uid-1", 2), 7, "n2")


class Bus:
    is_connected = True

    def __init__(self, answer: bytes | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[str, bytes]] = []

    async def request(self, subject: str, payload: bytes, timeout: float) -> Any:
        self.asked.append((subject, payload))
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(data=self.answer)


def said_about(*, serves: bool = True, **fields: int) -> bytes:
    """Return an answer whether the leader serves, about the given partition and epoch."""
    about = {"stream": "orders", "streamUid": "uid-1", "partition": 2, "leaderEpoch": 7, **fields}
    question = replication_pb2.LeaderQuestion(**about)  # type: ignore[arg-type]
    return frames.seal(replication_pb2.LeaderTestimony(serves=serves, question=question))


@each(
    ("answer", "testimony"),
    [
        (said_about(serves=False), ProbeResult.DOES_NOT),
        (said_about(partition=2), ProbeResult.SERVES), (said_about(partition=3), None), (said_about(leaderEpoch=6), None),
        (nats.errors.NoRespondersError(), ProbeResult.ABSENT),
        (TimeoutError(), None), (nats.errors.ConnectionClosedError(), None), (b"garbage", None),
    ],
)  # fmt: skip
async def test_leader_probe_without_a_valid_answer_of_the_reported_leader_has_no_result(
    answer: bytes | Exception, testimony: ProbeResult | None
) -> None:
    bus: Any = Bus(answer)
    assert await probe_accused_leader(bus, Subjects(), QUESTION) is testimony
    [(subject, payload)] = bus.asked
    asked = frames.decode(payload, replication_pb2.LeaderQuestion)
    assert (subject, asked.stream, asked.streamUid, asked.partition, asked.leaderEpoch) == (
        "liftpy.notify.n2", "orders", "uid-1", 2, 7,
    )  # fmt: skip


ASIDE = replication_pb2.StepAside(stream="orders", streamUid="uid-1", partition=2, leaderEpoch=7)
OTHER = replication_pb2.StepAside(stream="orders", streamUid="uid-1", partition=3, leaderEpoch=7)


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([frames.seal(ASIDE)], 1), ([TimeoutError()], 1), ([nats.errors.NoRespondersError()], 1),
        ([b"yes", frames.seal(ASIDE)], 2), ([frames.seal(OTHER), frames.seal(ASIDE)], 2), ([frames.seal(OTHER)] * 9, 3),
        ([frames.seal(OTHER), TimeoutError()], 2),
    ],
)  # fmt: skip
async def test_leadership_transfer_request_to_a_node_is_repeated_until_a_valid_answer(
    answers: list[bytes | Exception], asked: int
) -> None:
    bus: Any = Bus(b"")
    given = iter(answers)

    async def request(subject: str, payload: bytes, timeout: float) -> Any:
        assert 0 < timeout <= TRANSFER_REQUEST_TIMEOUT_S
        bus.answer = next(given)
        return await Bus.request(bus, subject, payload, timeout)

    bus.request = request
    await request_leadership_transfer(bus, Subjects(), "n2", ASIDE)
    assert bus.asked == [("liftpy.notify.n2", frames.seal(ASIDE))] * asked
