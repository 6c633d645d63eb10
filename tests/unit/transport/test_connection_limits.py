"""Test what a connection sends, buffers and rejects at its size limits, and what it logs."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import NS_PER_S
from liftpy.errors import NotAllowedError
from sidecar.transport import connection as module
from sidecar.transport import credentials, ingest_connection
from sidecar.transport.connection import BusConnection
from sidecar.transport.credentials import _MAX_REPORTED_DENIALS, PermissionWatch
from sidecar.transport.ingest_connection import Drops
from tests.until import until


class Sending(BusConnection):
    """Connected or not as the test says; what it writes is kept here."""

    up, waiting = True, 0

    @property
    def _is_up(self) -> bool:
        return self.up

    @property
    def unsent_bytes(self) -> int:
        return self.waiting

    def _write(self, pieces: Any, size_bytes: int) -> None:
        self.written.append((b"".join(pieces), size_bytes))


@pytest.fixture
async def sending() -> Sending:
    made = Sending("acks")
    made.written = []  # type: ignore[attr-defined]
    made._max_payload = 1000
    made._send_buffer_bytes = 5000
    return made


async def test_connection_send_above_the_buffer_or_max_payload_returns_false_and_counts_an_error(sending: Any) -> None:
    sending.waiting = 4900
    assert sending.send("s", [b"x" * 100])
    assert not sending.send("s", [b"x" * 101])
    sending.waiting = 0
    assert sending.send("s", [b"x" * 1000])
    assert not sending.send("s", [b"x" * 1001])
    assert sending.errors == {"send_buffer_full": 1, "too_large": 1}
    assert [size for _, size in sending.written] == [100, 1000]


async def test_connection_while_disconnected_drops_and_counts_a_message(sending: Any) -> None:
    sending.up = False
    assert not sending.send("s", [b""])
    assert sending.errors == {"dropped_disconnected": 1}
    assert sending.written == []


@pytest.mark.parametrize(("up", "bound"), [(True, 5000), (False, 300)])
async def test_connection_buffers_acks_up_to_a_bound_and_counts_the_dropped_acks(
    up: bool, bound: int, sending: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ACK_BUFFER_BYTES", 300)
    sending.up = up
    sending.send_lines([b"x" * (bound - 1), b"y"])
    sending.waiting = 1
    sending.send_lines([b"x" * (bound - 3), b"y", b"z"])
    sending.send_lines([b"x"])
    assert sending.written == [(b"x" * (bound - 1) + b"y", bound), (b"x" * (bound - 3) + b"yz", bound - 1), (b"x", 1)]
    sending.waiting = bound
    sending.send_lines([b"x", b"y"])
    assert sending.errors == {"acks_dropped": 2}
    assert (sending.stats["out_msgs"], sending.stats["out_bytes"]) == (6, 2 * bound)


async def test_connection_accepts_data_only_if_a_message_of_max_payload_fits_into_its_buffer(sending: Any) -> None:
    sending.waiting = 4000
    assert sending.has_room
    sending.waiting = 4001
    assert not sending.has_room
    sending.waiting, sending.up = 0, False
    assert not sending.has_room


# ---- rights ----------------------------------------------------------------------------------------------------------------
@pytest.fixture
def watch() -> Any:
    made: Any = PermissionWatch("ns", lambda error: made.ended.append(error), Counter())
    made.ended = []
    return made


def test_permission_denial_for_a_subject_in_the_own_namespace_stops_a_starting_node(
    watch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    watch.record_denial(True, "shop.orders")
    watch.record_denial(False, "nsx.raft.n1")
    assert watch.ended == []
    watch.record_denial(False, "ns.raft.n1")
    watch.record_denial(True, "ns.raft.n2")
    (error,) = watch.ended
    assert isinstance(error, NotAllowedError)
    assert "does not let this node subscribe on ns.raft.n1" in str(error)
    assert "--role node --namespace ns" in str(error)
    assert [text.partition(".  ")[0].partition(". Give")[0] for text in caplog.messages] == [
        "NATS permission denied error=NATS does not let this node publish on shop.orders",
        "NATS permission denied error=NATS does not let this node subscribe on nsx.raft.n1",
        "NATS permission denied error=NATS does not let this node publish on ns.raft.n2",
    ]
    assert watch._counters == {"permission_denied": 4}


def test_permission_denial_after_the_start_is_logged_once_per_subject_and_interval(
    watch: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 0
    monkeypatch.setattr(credentials, "clock", SimpleNamespace(now_ns=lambda: now_ns))
    watch.start_completed()
    for logged in (2, 4):
        for _ in range(2):
            watch.record_denial(True, "ns.a")
            watch.record_denial(False, "ns.a")
        assert (watch.ended, len(caplog.messages)) == ([], logged)
        now_ns += round(credentials.REPORT_AGAIN_S * NS_PER_S)
    for number in range(2 * _MAX_REPORTED_DENIALS):
        watch.record_denial(True, f"s.{number}")
    assert len(caplog.messages) == 4 + _MAX_REPORTED_DENIALS
    assert watch._counters == {"permission_denied": 8 + 2 * _MAX_REPORTED_DENIALS}


# ---- what was dropped ------------------------------------------------------------------------------------------------------
async def test_dropped_publishes_are_logged_once_per_interval(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_connection, "_LOG_PERIOD_S", 0.05)
    drops = Drops()

    def logged() -> list[str]:
        return [text.rpartition("counts=")[2] for text in caplog.messages]

    drops.count("s/0", "overloaded", 3)
    for number in range(10):
        drops.count(f"s/{number}", "overloaded", number + 1)
    assert logged() == ["3 of s/0: overloaded"]
    await until(lambda: len(logged()) == 2)
    largest = ", ".join(f"{number + 1} of s/{number}: overloaded" for number in range(9, 1, -1))
    assert logged()[1] == f"{largest}, and 2 more"
    await until(lambda: drops._timer is None)
    assert len(logged()) == 2, "there is nothing to say"
    drops.count("s/1", "below_min_isr", 1)
    assert len(logged()) == 3, "at once again"
    drops.count("s/1", "below_min_isr", 2)
    drops.close()
    assert logged()[2:] == ["1 of s/1: below_min_isr", "2 of s/1: below_min_isr"]
