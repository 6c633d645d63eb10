"""Test statistics of a nats-server: the requests, which answers count, and how many messages a disconnect lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.wire.subjects import SERVER_CONNECTIONS
from sidecar.transport import ingest_connection
from sidecar.transport.ingest_connection import Backlog, ConnectionStats, DisconnectLoss
from tests.until import until

MS = 1_000_000


class Bus:
    """Keeps what is asked; ``answer`` gives an answer to the question of that number."""

    inbox = "box"

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any], str]] = []
        self.up = True
        self.sink: Any = None

    def listen(self, subject: str, sink: Any) -> None:
        assert subject == "box.connz.*"
        self.sink = sink

    def send(self, subject: str, pieces: tuple[bytes, ...], reply: str) -> bool:
        self.asked.append((subject, json.loads(b"".join(pieces)), reply))
        return self.up

    def answer(self, number: int, server: str = "s1", cid: int = 7, **fields: Any) -> None:
        found = {"cid": cid, "pending_bytes": 100, "out_msgs": 5, **fields}
        said = {"data": {"server_id": server, "connections": [{"cid": cid + 1}, found]}}
        self.raw(number, json.dumps(said).encode())

    def raw(self, number: int, payload: bytes) -> None:
        self.sink(b"box.connz.%d" % number, b"", payload, b"")


class Asker:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1_000 * MS
        monkeypatch.setattr(ingest_connection, "clock", SimpleNamespace(now_ns=lambda: self.now_ns))
        self.bus = Bus()
        self.backlog = Backlog(self.bus)  # type: ignore[arg-type]
        self.heard: list[ConnectionStats] = []

    def ask(self, after_ms: float = 0, **how: bool) -> int:
        """Whether it was asked."""
        self.now_ns += round(after_ms * MS)
        before = len(self.bus.asked)
        self.backlog.ask("s1", 7, self.heard.append, **how)
        return len(self.bus.asked) - before


@pytest.fixture
def asker(monkeypatch: pytest.MonkeyPatch) -> Asker:
    return Asker(monkeypatch)


def test_server_statistics_answer_is_delivered_once_with_the_request_time(asker: Asker) -> None:
    asker.ask()
    assert asker.bus.asked == [(SERVER_CONNECTIONS, {"cid": 7, "state": 2}, "box.connz.1")]
    request_ns = asker.now_ns
    asker.now_ns += 5 * MS
    asker.bus.answer(1, reason="Slow Consumer")
    asker.bus.answer(1)
    asker.bus.answer(2)
    assert asker.heard == [ConnectionStats(request_ns, "s1", 7, 100, 5, "Slow Consumer")]
    assert asker.ask() == 1, "who has answered may be asked at once"


def test_server_statistics_answer_without_a_request_is_ignored(asker: Asker) -> None:
    """Anybody may send to an inbox."""
    asker.bus.answer(9, server="", cid=0)
    asker.ask()
    asker.bus.answer(9, server="", cid=0)
    assert asker.heard == []
    asker.bus.answer(1)
    assert len(asker.heard) == 1


def test_server_statistics_answer_of_another_server_is_ignored(asker: Asker) -> None:
    asker.ask()
    asker.bus.answer(1, server="s2")
    asker.bus.answer(1, cid=8)
    for payload in (b"", b"[]", b"{}", b'{"data": 5}', b'{"data": {"server_id": "s1", "connections": [{"cid": 7}]}}'):
        asker.bus.raw(1, payload)
    asker.bus.answer(1, pending_bytes=-1)
    asker.bus.answer(1, out_msgs="many")
    assert asker.heard == []
    asker.bus.answer(1)
    assert [told.reason for told in asker.heard] == [""], "it is still waited for"


def test_server_statistics_are_requested_at_longer_intervals_from_a_silent_server(asker: Asker) -> None:
    assert asker.ask() == 1
    assert asker.ask(19.9) == 0
    assert asker.ask(at_once=True) == 1
    assert asker.ask(20) == 1
    assert asker.ask(1_940) == 1, "two seconds since the first one"
    assert asker.ask(30) == 1
    assert asker.ask(9_999) == 0
    assert asker.ask(1) == 1
    asker.bus.answer(len(asker.bus.asked))
    assert (asker.ask(), asker.ask(19), asker.ask(1)) == (1, 0, 1)


def test_server_statistics_are_requested_immediately_after_a_reconnect(asker: Asker) -> None:
    """After minutes without a link, a burst asks the server at once."""
    asker.ask()
    asker.bus.up = False
    assert asker.ask(1_000) == 1
    assert asker.ask(60_000) == 1
    assert (asker.ask(19.9), asker.ask(0.1)) == (0, 1)
    asker.bus.up = True
    assert (asker.ask(20), asker.ask(20), asker.ask(1_980)) == (1, 1, 1)
    assert (asker.ask(9_999), asker.ask(1)) == (0, 1), "this silence is its own"


def test_server_statistics_after_a_server_change_are_requested_at_normal_intervals(asker: Asker) -> None:
    assert (asker.ask(), asker.ask(2_000), asker.ask(20)) == (1, 1, 0)
    for count in (3, 4):
        asker.backlog.ask("s2", 3, asker.heard.append)
        assert len(asker.bus.asked) == count
        asker.now_ns += 20 * MS


# ---- what a cut has cost -----------------------------------------------------------------------------------------------------
class Server:
    """In the place of Backlog: answers with what the test gives; None: silence."""

    def __init__(self, *answers: ConnectionStats | None) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    def ask(self, server_id: str, client_id: int, heard: Callable[[ConnectionStats], None], *, at_once: bool = False) -> None:
        self.asked.append((server_id, client_id, at_once))
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            heard(answer)


CLOSED = ConnectionStats(0, "s1", 7, 4096, 30, "Slow Consumer (Pending Bytes)")


async def judged(
    server: Server | None, last: ConnectionStats | None, seen: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[DisconnectLoss, list[int]]:
    monkeypatch.setattr(ingest_connection, "_TRY_S", 0.001)
    learned: list[int] = []
    overflow: Any = SimpleNamespace(server_closed_at=learned.append)
    made = DisconnectLoss(server, overflow)  # type: ignore[arg-type]
    made._seen = 10
    if last is not None:
        made.record_server_report(last)
    made.connection_lost("s1", 7)
    made.messages_processed(seen)
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
    assert made._seen == seen
    return made, learned


@pytest.mark.parametrize(
    ("answers", "last", "lost", "unknown", "learned"),
    [
        ((CLOSED,), None, 5, 0, [4096]),  # 30 were delivered, 25 arrived
        (
            (ConnectionStats(0, "s1", 7, 0, 30, ""), CLOSED),
            None,
            5,
            0,
            [4096],
        ),  # it is asked again until the connection is closed
        ((None, CLOSED), None, 5, 0, [4096]),
        ((ConnectionStats(0, "s1", 7, 9, 20, "Client Closed"),), None, 0, 0, []),
        ((ConnectionStats(0, "s1", 7, 9, 20, "Client Closed"),), ConnectionStats(0, "s1", 7, 0, 28, ""), 3, 0, []),
        ((), ConnectionStats(0, "s1", 7, 0, 28, ""), 3, 1, []),
        ((), ConnectionStats(0, "s1", 6, 0, 28, ""), 0, 1, []),
        ((), ConnectionStats(0, "s2", 7, 0, 28, ""), 0, 1, []),  # each server counts from one on
        ((), None, 0, 1, []),
    ],
)
async def test_disconnect_counts_messages_sent_by_the_server_but_not_received(
    answers: Any, last: Any, lost: int, unknown: int, learned: list[int], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    server = Server(*answers)
    made, server_closed_at = await judged(server, last, 35, monkeypatch)
    assert (made.lost_messages, made.unknown, server_closed_at) == (lost, unknown, learned)
    assert set(server.asked) == {("s1", 7, True)}
    assert len(server.asked) == (len(answers) or ingest_connection._TRIES)
    text = caplog.messages[0] if caplog.messages else ""
    if unknown:
        assert text.endswith(f"number not known at_least={lost}")
    else:
        assert bool(text) is bool(lost)
        assert text.endswith(f" count={lost}") or not lost
