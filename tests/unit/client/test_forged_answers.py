"""A whole answer that is not true ends no reader: what contradicts itself, or belongs elsewhere, is dropped and counted, and what would
end it is believed when it is said twice [A6]. Against a real nats-server, with a replica that lies when it is told to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from liftpy.client.client import Client
from liftpy.client.progress import ErrorConfirmation, NotServedError, ReadProgress
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import LiftError, LogTruncatedError, NotFoundError, OffsetOutOfRangeError
from liftpy.nats.transport import Transport
from tests.unit.client.read_answers import answer, batch
from tests.unit.client.test_client_consumer import QUICK, Replica, expected, values

_Error = client_pb2.ReadResponse.Error
Lie = Callable[[client_pb2.ReadResponse], None]


class Liar(Replica):
    """Answers that go through ``lies``, each once, from the answer on that has to do with records."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lies: list[Lie] = []
        self.bounds_lies: list[Lie] = []
        self.told = 0

    async def answer(self, request: client_pb2.ReadRequest) -> bytes:
        head, body = frames.decode_read_response(await super().answer(request))
        head.stream, head.partition, head.requestId = request.stream, request.partition, request.requestId
        if self.lies and request.offset > 0 and not request.boundsOnly:
            self.told += 1
            self.lies.pop(0)(head)
            body = body[:0] if head.compacted else body  # nothing is left of what is asked for
        elif self.bounds_lies and request.boundsOnly:
            self.bounds_lies.pop(0)(head)
        return frames.read_response_header(head, (body,)) + body


def _set(**fields: Any) -> Lie:
    def lie(head: client_pb2.ReadResponse) -> None:
        for name, value in fields.items():
            setattr(head, name, value)

    return lie


LIES = {
    "another uid": _set(streamUid="u9"),
    "made again": _set(error=_Error.WRONG_STREAM, streamUid="u9"),
    "refused for what it has": _set(error=_Error.WRONG_STREAM),
    "retention": _set(error=_Error.OFFSET_OUT_OF_RANGE, logStartOffset=1 << 40),
    "cut": _set(error=_Error.CUT, cutEndOffset=3),
    "cut behind what was read": _set(error=_Error.CUT, cutEndOffset=1 << 40),
    "malformed": _set(error=_Error.BAD_REQUEST),
    "unknown": _set(error=77),
    "a leader that is a line of the protocol": _set(error=_Error.NOT_LEADER, leader="x 0\r\n\r\nPUB evil 0\r\n\r\n"),
    "a leader that is a pattern": _set(error=_Error.NOT_LEADER, leader="*"),
    "another stream": _set(stream="t"),
    "another partition": _set(partition=1),
    "another request": _set(requestId=1),
    "compacted away": _set(compacted=True, nextOffset=1 << 40),
    "HW out of reach": _set(highWatermark=1 << 60),
    "HW below what is sent": _set(highWatermark=-1),
    "numbers below zero": _set(highWatermark=-5, logStartOffset=-9),
    "a piece that is none": _set(pieceTotal=1 << 20, piecePosition=5, pieceCrc=9),
}


@pytest.fixture
def subjects() -> Subjects:
    return Subjects("forged")


@pytest.fixture
async def client(nats_url: str, transport: Transport, subjects: Subjects) -> AsyncIterator[Client]:
    async with Client(transport, subjects, owns_connection=False) as client:
        yield client


@pytest.fixture
async def liar(server_side: Transport, subjects: Subjects) -> AsyncIterator[Liar]:
    liar = Liar(server_side, subjects, "n1")
    await liar.start()
    liar.grow(500)
    yield liar
    await liar.stop()


@pytest.mark.parametrize("name", LIES)
async def test_forged_read_answer_fails_no_consumer_and_loses_no_record(client: Client, liar: Liar, name: str) -> None:
    liar.lies = [LIES[name]]
    assert await values(aiter(client.consume("s", until=499, options=QUICK))) == expected(0, 500)
    assert liar.told == 1


async def test_consumer_raises_a_fatal_read_error_after_two_equal_answers(
    client: Client, liar: Liar, transport: Transport
) -> None:
    for name, kind in (("made again", NotFoundError), ("retention", OffsetOutOfRangeError), ("cut", LogTruncatedError)):
        liar.lies = [LIES[name]] * 2
        with pytest.raises(kind):
            await values(aiter(client.consume("s", until=499, options=QUICK)))
        assert liar.lies == [], "one answer was not enough, two were"
    assert transport.counters["answers doubted"] == 6


@pytest.mark.parametrize("gap", [True, False], ids=["a gap", "the rest gone"])
def test_partition_reader_skips_compacted_offsets_after_two_equal_answers(gap: bool) -> None:
    body = batch(20, 3) if gap else b""
    after = 23 if gap else 30
    progress = ReadProgress("s", 0, 10, uid="u1")
    with pytest.raises(NotServedError, match="The client asks a second node"):
        progress.accept(answer(body, hw=29, compacted=True, nextOffset=30 if not gap else 23, leader="n7"))
    assert (progress.next_offset, progress.leader, progress.suspect) == (10, "n7", None)
    progress.accept(answer(batch(10, 2), hw=29))  # another replica has them: the first was no true answer
    with pytest.raises(NotServedError, match="The client asks a second node"):
        progress.accept(answer(body, hw=29, compacted=True, nextOffset=after))
    assert progress.next_offset == 12
    progress.accept(answer(body, hw=29, compacted=True, nextOffset=after))
    assert progress.next_offset == after
    told_before = ReadProgress("s", 0, 10, uid="u1", compacted=True)  # by the bounds
    told_before.accept(answer(body, hw=29, compacted=True, nextOffset=after))
    assert told_before.next_offset == after


def test_partition_reader_raises_a_fatal_error_only_after_the_second_equal_error() -> None:
    opinion = ErrorConfirmation()
    gone, cut = NotFoundError("gone"), LogTruncatedError("cut", 3)
    said: list[LiftError] = [opinion.ask_again(gone, "n2"), opinion.ask_again(cut, "n2")]
    assert all(isinstance(error, NotServedError) and error.leader == "n2" for error in said)
    with pytest.raises(LogTruncatedError):
        opinion.ask_again(cut, "n2")
