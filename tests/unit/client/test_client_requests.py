"""Test requests of the client and their answers: service queries, admin requests, readiness, errors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest

from liftpy.client import retrying, services
from liftpy.client.admin import _READY, Admin
from liftpy.client.client import Client
from liftpy.client.services import QueryAnswer, QueryRejectedError
from liftpy.core.services.queries import QueryFailedError
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import (
    ClientClosedError,
    ConfigError,
    CorruptionError,
    InvalidNameError,
    LiftError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolError,
    UnavailableError,
)
from liftpy.nats import cancellation
from liftpy.nats import transport as transport_module
from liftpy.nats.credentials import Credentials
from liftpy.nats.transport import Transport, _LastError
from tests.each import each
from tests.unit.client.admins import admin_over


# ---- queries -----------------------------------------------------------------------------------------------------------------
class Exchange:
    """A scripted transport. Each answer is (payload, headers) or an error."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    async def exchange(self, subject: str, payload: bytes, timeout_s: float, headers: dict[str, str] | None) -> Any:
        self.asked.append((subject, payload, timeout_s, headers))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(data=answer[0], headers=answer[1])


GOOD = (b"42", {"Lift-Position": "9", "Lift-Node": "n2"})
REFUSED = (b"it is behind", {"Lift-Error": "QUERY_REJECTED"})


async def ask(transport: Any, at_least: int | None = None, timeout_s: float = 30.0, partition: int = 0) -> QueryAnswer:
    return await services.ask(transport, Subjects("ns"), "bank", b"query", partition, at_least, timeout_s)


async def test_service_query_is_retried_until_a_service_answers() -> None:
    transport = Exchange(UnavailableError("nobody"), REFUSED, OutcomeUnknownError("late"), GOOD)
    assert await ask(transport) == QueryAnswer(b"42", 9, "n2")
    assert transport.asked == [(Subjects("ns").service_query("bank"), b"query", 3.0, None)] * 4
    other = Exchange(GOOD)
    await ask(other, at_least=7, timeout_s=1.0, partition=2)
    assert other.asked == [(Subjects("ns").service_query("bank") + ".2", b"query", 1.0, {"Lift-At-Least": "7"})]


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (REFUSED, QueryRejectedError, "it is behind"),
        ((b"bug \xff", {"Lift-Error": "QUERY_FAILED"}), QueryFailedError, "bug"),
        ((b"x", {"Lift-Error": "ANYTHING"}), QueryFailedError, "x"),
        ((b"x", {}), ProtocolError, "The answer on"),
        ((b"x", None), ProtocolError, "does not come from a service"),
        ((b"x", {"Lift-Position": "-1"}), ProtocolError, "does not come from a service"),
        ((b"x", {"Lift-Position": "\u0663"}), ProtocolError, "does not come from a service"),
    ],
)
async def test_service_query_with_an_error_answer_raises_the_matching_error(
    answer: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text) as raised:
        await ask(Exchange(*[answer] * 100), timeout_s=0.0)
    assert type(raised.value) is kind


# ---- what an operator asks for -------------------------------------------------------------------------------------------------
async def test_admin_delete_remove_and_elect_requests_contain_the_arguments_of_the_call() -> None:
    asked: list[pb.ControlRequest] = []
    admin = admin_over(None, Subjects("ns"))
    requests: Any = admin._metadata

    async def command(request: pb.ControlRequest) -> Any:
        asked.append(request)
        return pb.ControlResponse(partition=pb.Partition(partition=3, leader="n2", status=pb.ONLINE))

    async def stream(name: str) -> Any:
        return SimpleNamespace(name=name, uid="u1")

    requests.command, requests.stream = command, stream
    await admin.delete_stream("s", "u1")
    await admin.remove_node("n1")
    assert (await admin.elect_leader("s", 3, "n2", unclean=True)).leader == "n2"
    assert (await admin.elect_leader("s")).leader == "n2"
    assert asked == [
        pb.ControlRequest(deleteStream=pb.DeleteStream(name="s", uid="u1")),
        pb.ControlRequest(removeNode=pb.RemoveNode(nodeId="n1")),
        pb.ControlRequest(electLeader=pb.ElectLeader(stream="s", uid="u1", partition=3, node="n2", unclean=True)),
        pb.ControlRequest(electLeader=pb.ElectLeader(stream="s", uid="u1", partition=0)),
    ]
    for wrong in (admin.delete_stream("a.b"), admin.remove_node(">"), admin.elect_leader("s", 0, "a b"), admin.stream("a.b")):
        with pytest.raises(InvalidNameError):
            await wrong
    assert len(asked) == 4


async def test_admin_readiness_check_waits_for_the_status_of_the_leader_node() -> None:
    pages = [
        UnavailableError("silent"),
        {},
        {"partitions": [{"uid": "u1", "partition": 1, "phase": "anything"}]},
        {"partitions": [{"uid": "u0", "partition": 1, "phase": _READY}, {"uid": "u1", "partition": 0, "phase": _READY}]},
        {"partitions": [{"uid": "u1", "partition": 1, "phase": _READY}]},
    ]
    asked: list[Any] = []
    admin: Any = Admin.__new__(Admin)

    async def page(node: str, after: bytes, timeout_s: float) -> Any:
        asked.append((node, after, timeout_s))
        found = pages.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    admin.ask_node = page
    stream: Any = SimpleNamespace(name="s", uid="u1", partitions=[SimpleNamespace(leader="n1"), SimpleNamespace(leader="n2")])
    await admin._check_leader_status(stream, 1, 30.0)
    assert (pages, asked) == ([], [("n2", b'{"after": ["s", 0]}', 1.0)] * 5)
    pages.append({})
    with pytest.raises(UnavailableError, match="n2 is not yet"):
        await admin._check_leader_status(stream, 1, 0.0)


async def test_client_bounds_and_offset_at_return_the_values_of_the_partition_reader() -> None:
    asked: list[Any] = []

    class Reader:
        async def bounds(self, at_ns: int | None = None) -> Any:
            return ("the bounds", 7) if at_ns is None else ("the bounds", at_ns)

    client: Any = Client.__new__(Client)
    client._streams = SimpleNamespace(reader=lambda *given: asked.append(given) or Reader())
    assert await client.bounds("s", 1, options="how") == "the bounds"
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    assert await client.offset_at("s", 2, moment, options="how") == round(moment.timestamp()) * 10**9
    assert asked == [("s", 1, "how"), ("s", 2, "how")]


# ---- trying again and ending ----------------------------------------------------------------------------------------------------
@each(
    ("error", "tried", "as_read"),
    [
        (UnavailableError("x"), True, True),
        (OutcomeUnknownError("x"), True, True),
        (ProtocolError("x"), False, True),
        (CorruptionError("x"), False, True),
        (NotFoundError("x"), False, False),
        (ValueError("x"), False, False),
    ],
)
@each("reads", [False, True])
async def test_retry_attempts_retries_only_after_retryable_errors(
    error: Exception, tried: bool, as_read: bool, reads: bool
) -> None:
    attempts = 0
    with contextlib.suppress(type(error)):
        async for attempt in retrying.retry_attempts(30.0, reads=reads):
            with attempt:
                attempts += 1
                if attempts < 3:
                    raise error
    assert attempts == (3 if (as_read if reads else tried) else 1)


def own_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages of liftpy. asyncio may log about the tasks of other tests whenever garbage is collected."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("liftpy")]


async def test_end_tasks_cancels_a_task_that_swallows_cancellations_until_the_task_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cancellation, "_TRY_AGAIN_S", 0.001)
    monkeypatch.setattr(cancellation, "_TRIES", 5)
    swallowed = 0

    async def deaf(times: int) -> None:
        nonlocal swallowed
        for _ in range(times):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1

    async def failing() -> None:
        raise ValueError

    unseen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context["message"]))
    failed = asyncio.create_task(failing())
    await asyncio.wait([failed])
    await cancellation.end_tasks([failed])
    del failed
    gc.collect()
    assert unseen == [], "an error of a task that was ended is no one's any more"
    some, never = asyncio.create_task(deaf(3)), asyncio.create_task(deaf(100), name="deaf")
    done = asyncio.create_task(asyncio.sleep(0))
    await asyncio.sleep(0.001)
    try:
        await cancellation.end_tasks([some, None, done])
        assert some.done()
        assert own_messages(caplog) == []
        before = swallowed
        await cancellation.end_tasks([never])
        assert swallowed == before + 5
        assert own_messages(caplog) == ["tasks did not end tasks=deaf: abandoned"]
    finally:
        while not never.done():  # otherwise the end of the event loop waits for it forever
            never.cancel()
            await asyncio.sleep(0)


# ---- the transport ----------------------------------------------------------------------------------------------------------------
@each(
    ("error", "size", "kind", "text"),
    [
        (
            nats.errors.MaxPayloadError(),
            10,
            ProtocolError,
            "The message has 10 bytes, more than the NATS server accepts. Send a smaller message, or increase max_payload on the server.",  # noqa: E501
        ),
        (
            nats.errors.ConnectionClosedError(),
            10,
            UnavailableError,
            "NATS connection error on s: nats: connection closed. Check the NATS server, then retry.",
        ),
        (OSError(), 10, UnavailableError, "NATS connection error on s: OSError. Check the NATS server, then retry."),
        (ValueError("odd"), 10, UnavailableError, "NATS connection error on s: odd. Check the NATS server, then retry."),
        (
            OSError(),
            transport_module.ROOM_BYTES // 2,
            UnavailableError,
            "NATS connection error on s: OSError. Check the NATS server, then retry.",
        ),
        (None, 10, None, ""),
        (None, transport_module.ROOM_BYTES // 2, None, ""),
    ],
)
@each("closed", [False, True])
async def test_nats_transport_write_that_fails_raises_the_matching_liftpy_error(
    error: Any, size: int, kind: Any, text: str, closed: bool
) -> None:
    sent: list[Any] = []

    class Connection:
        async def publish(self, subject: str, payload: bytes, reply: str, headers: Any) -> None:
            sent.append((subject, len(payload), reply, headers))
            if error is not None:
                raise error

    made: Any = Transport.__new__(Transport)
    made.connection = Connection()

    def must_be_usable() -> None:
        if closed:
            raise ClientClosedError("closed")

    made.must_be_usable = must_be_usable
    work = made.write("s", bytes(size), "r", {"a": "b"}, asyncio.get_running_loop().time() + 30)
    if kind is None:
        await work
    else:
        says_so = closed and kind is UnavailableError
        with pytest.raises(ClientClosedError if says_so else kind, match="closed" if says_so else text):
            await work
    assert sent == [("s", size, "r", {"a": "b"})]


@pytest.mark.parametrize("error", [nats.errors.ConnectionClosedError(), OSError(), TimeoutError()])
async def test_nats_transport_flush_that_fails_raises_unavailable(error: Exception) -> None:
    flushed: list[float] = []

    class Connection:
        async def flush(self, timeout: float) -> None:
            flushed.append(timeout)
            if len(flushed) == 2:
                raise error

    connection: Any = Connection()
    made = Transport(connection)
    with pytest.raises(UnavailableError, match="NATS connection error"):
        await made.settle(3.0)
    await made.settle(4.0)
    assert flushed == [3.0, 3.0, 4.0, 4.0], "twice: the first PING overtakes what is buffered"


async def test_nats_connection_errors_record_the_last_error_and_an_authorization_failure() -> None:
    seen = _LastError()
    await seen.note(LiftError(""))
    assert (seen.last, seen.not_accepted) == ("LiftError", False)
    await seen.note(nats.errors.Error("NATS server error: 'Authorization Violation'"))
    await seen.note(OSError("cut"))
    assert (seen.last, seen.not_accepted) == ("cut", True), "what came of a second try may be another"


# ---- credentials --------------------------------------------------------------------------------------------------------------------
def test_credentials_become_connect_options_of_nats_py(tmp_path: Path) -> None:
    assert Credentials().nats_options() == {}
    assert Credentials(user="u", password="p", inbox_prefix="_INBOX_me").nats_options() == {
        "user": "u", "password": "p", "inbox_prefix": b"_INBOX_me",
    }  # fmt: skip
    assert Credentials(token="t").nats_options() == {"token": "t"}
    (tmp_path / "bad.pem").write_text("no certificate")
    for given, text in (
        ({"tls_ca_file": str(tmp_path / "missing")}, "a file with certificates"),
        ({"tls_ca_file": str(tmp_path / "bad.pem")}, "Cannot use tls_ca_file .*bad.pem: .*no certificate"),
    ):
        with pytest.raises(ConfigError, match=text):
            Credentials(**given).nats_options()
    certificate = str(tmp_path / "bad.pem")
    with pytest.raises(ConfigError, match=r"tls_cert_file .* with tls_key_file .*bad.pem: "):
        Credentials(tls_cert_file=certificate, tls_key_file=certificate).nats_options()
