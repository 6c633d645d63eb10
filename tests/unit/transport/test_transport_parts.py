"""Test the receiver, absence probes, the losses of a disconnect, the node's connections and the socket thread."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest
from nats.errors import UnexpectedEOF

from liftpy.core.metadata.node_identity import EarlierProcessSign
from liftpy.core.wire.subjects import Subjects
from liftpy.nats.connection import Receiver, receive
from sidecar.transport import ingest_connection, liveness
from sidecar.transport.ingest_connection import ConnectionStats, DisconnectLoss
from sidecar.transport.liveness import QUESTION, Probes, is_absent, probe_process


# ---- receiving ---------------------------------------------------------------------------------------------------------------
class Transport:
    """Notes what it and its stream protocol are told."""

    def __init__(self) -> None:
        self.did: list[Any] = []
        self.closing = False
        self.protocol: Any = self

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.did.append((name, *given))

    def get_protocol(self) -> Any:
        return self

    def get_extra_info(self, name: str) -> None:
        return None

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.closing


@pytest.fixture
async def receiver() -> Any:
    transport: Any = Transport()
    made = Receiver(transport, lambda data: data, 10)
    assert transport.protocol is made
    return made


async def test_receiver_pauses_the_socket_above_its_bound_and_resumes_after_a_read(receiver: Any) -> None:
    did = receiver.transport.did
    receiver.data_received(b"x" * 10)
    assert did == []
    receiver.data_received(b"y")
    receiver.data_received(b"z")
    assert did == [("pause_reading",)]
    assert await receiver.read() == b"x" * 10 + b"yz"
    assert did == [("pause_reading",), ("resume_reading",)]
    receiver.data_received(b"x" * 10)
    assert await receiver.read() == b"x" * 10
    assert len(did) == 2, "what was read counts no more"
    receiver.data_received(b"x" * 11)
    receiver.transport.closing = True
    await receiver.read()
    assert did[2:] == [("pause_reading",)], "one that closes is not read again"


async def test_receiver_is_idle_only_while_open_with_no_unread_bytes(receiver: Any) -> None:
    assert receiver.is_idle
    receiver.data_received(b"x")
    assert not receiver.is_idle
    await receiver.read()
    assert receiver.is_idle
    receiver.connection_lost(None)
    assert not receiver.is_idle
    other = Receiver(receiver.transport, lambda data: data, 10)
    other.data_received(b"x")
    other.stop()
    assert (other.is_idle, list(other._unread)) == (False, [])


async def test_receiver_read_raises_the_first_error_of_a_lost_connection(receiver: Any) -> None:
    receiver.connection_lost(ConnectionResetError("first"))
    receiver.eof_received()
    receiver.data_received(b"late")
    for _ in range(2):
        with pytest.raises(ConnectionResetError, match="first"):
            await receiver.read()
    assert [name for name, *_ in receiver.transport.did] == ["connection_lost", "eof_received"]
    receiver.pause_writing()
    receiver.resume_writing()
    assert receiver.transport.did[2:] == [("pause_writing",), ("resume_writing",)]


async def test_receiver_with_a_cancelled_reading_task_does_not_wake_it(receiver: Any) -> None:
    task = asyncio.ensure_future(receiver.read())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    receiver.data_received(b"x")
    assert await receiver.read() == b"x"


async def test_receiver_made_for_a_failed_stream_raises_its_error_on_read() -> None:
    def connection(reader: asyncio.StreamReader) -> Any:
        return SimpleNamespace(_transport=SimpleNamespace(_io_reader=reader, _io_writer=SimpleNamespace(transport=Transport())))

    failed, quiet = asyncio.StreamReader(), asyncio.StreamReader()
    failed.set_exception(ConnectionResetError())
    made = await receive(connection(failed), lambda data: None, 10)
    assert made is not None
    with pytest.raises(ConnectionResetError):
        await made.read()
    made = await receive(connection(quiet), lambda data: None, 7)
    assert made is not None
    assert (made.is_idle, made._bound_bytes, quiet.at_eof()) == (True, 7, True)
    for name in ("_io_reader", "_io_writer"):
        without = connection(asyncio.StreamReader())
        delattr(without._transport, name)
        assert await receive(without, lambda data: None, 10) is None
    ended = asyncio.StreamReader()
    ended.feed_eof()
    made = await receive(connection(ended), lambda data: None, 10)
    assert made is not None
    assert isinstance(made._ended, UnexpectedEOF)


# ---- who is absent -----------------------------------------------------------------------------------------------------------
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
    asked: list[Any] = []

    async def request(*given: Any, timeout: float) -> None:
        asked.append((*given, timeout))
        if answer is not None:
            raise answer

    bus: Any = SimpleNamespace(request=request)
    assert await probe_process(bus, Subjects("space"), "n1") is sign
    assert await is_absent(bus, Subjects("space"), "n1") is (sign is EarlierProcessSign.ABSENT)
    assert asked == [("space.status.n1", QUESTION, 0.5)] * 2


async def test_absence_probe_started_during_another_probe_sends_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[asyncio.Future[bool]] = []

    async def asked(*_: Any) -> bool:
        answers.append(asyncio.get_running_loop().create_future())
        return await answers[-1]

    monkeypatch.setattr(liveness, "is_absent", asked)
    told: list[str] = []
    probes = Probes(SimpleNamespace(is_connected=True), Subjects())  # type: ignore[arg-type]
    probes.ask("n1", lambda: told.append("first"))
    await asyncio.sleep(0)
    probes.ask("n1", lambda: told.append("meanwhile"))
    answers[0].set_result(True)
    while probes._asking:
        await asyncio.sleep(0)
    assert (told, len(answers), probes._waiting) == (["first"], 1, {})
    probes.ask("n1", lambda: told.append("again"))
    await asyncio.sleep(0)
    answers[1].set_result(True)
    while probes._asking:
        await asyncio.sleep(0)
    assert told == ["first", "again"]
    probes.ask("n1", lambda: told.append("too late"))
    await asyncio.sleep(0)
    await probes.close()
    assert (answers[2].cancelled(), probes._asking) == (True, {})


# ---- what cuts cost ----------------------------------------------------------------------------------------------------------
async def test_lost_message_count_of_a_connection_uses_only_that_connections_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged: list[Any] = []
    monkeypatch.setattr(ingest_connection, "spawn", lambda work, name: (judged.append(work), work.close()))
    made: Any = DisconnectLoss(None, SimpleNamespace())  # type: ignore[arg-type]
    made._count_lost_messages = lambda *given: judged.append(given) or SimpleNamespace(close=lambda: None)
    made.connection_lost("s1", 7)
    told = ConnectionStats(0, "s2", 8, 0, 3, "")
    made.record_server_report(told)
    made.connection_lost("s2", 8)
    made.record_server_report(ConnectionStats(0, "s3", 9, 0, 4, ""))  # by then of the next one
    made.messages_processed(10)
    made.messages_processed(25)
    first, second = (given for given in judged if isinstance(given, tuple))
    assert (first[0].server_id, first[0].client_id, first[0].last, *first[1:]) == ("s1", 7, None, 10)
    assert (second[0].server_id, second[0].client_id, second[0].last, *second[1:]) == ("s2", 8, told, 15)


async def test_statistics_of_a_lost_connection_are_requested_until_the_server_reports_the_close_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[Any] = []
    answers = [
        ConnectionStats(0, "s1", 7, 0, 3, ""),
        None,
        ConnectionStats(0, "s1", 7, 0, 4, "Slow Consumer (Pending Bytes)"),
        None,
    ]

    class Queue(list[ConnectionStats]):
        put_nowait = list.append

        def get(self) -> Any:
            return self.pop(0) if self else None

    async def sleep(seconds: float) -> None:
        waits.append(("sleep", seconds))

    async def wait_for(answer: Any, timeout_s: float) -> Any:
        waits.append(("wait", timeout_s))
        if answer is None:
            raise TimeoutError
        return answer

    def ask(server_id: str, client_id: int, heard: Any, *, at_once: bool) -> None:
        answer = answers.pop(0)
        if answer is not None:
            heard(answer)

    monkeypatch.setattr(ingest_connection, "asyncio", SimpleNamespace(Queue=Queue, sleep=sleep, wait_for=wait_for))
    made: Any = DisconnectLoss(SimpleNamespace(ask=ask), SimpleNamespace())  # type: ignore[arg-type]
    told = await made._request_stats(SimpleNamespace(server_id="s1", client_id=7))
    assert told.delivered == 4
    assert waits == [("wait", 0.2), ("sleep", 0.2), ("wait", 0.2), ("wait", 0.2)]
