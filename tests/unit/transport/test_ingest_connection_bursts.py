"""Test which part reads the ingest socket: the event loop, or a thread during a burst [A11]."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.transport import ingest_connection as module
from sidecar.transport.ingest_connection import IngestConnection
from tests.unit.transport.ingest_connection_bench import MS, Bench, Thread


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def in_a_burst(bench: Bench) -> None:
    bench.bus._burst_ns, bench.bus._large_ns = 10 * MS, 10 * MS + module._BURST_NS


async def test_ingest_connection_during_a_burst_is_read_by_a_thread(bench: Bench) -> None:
    bus = bench.bus
    in_a_burst(bench)
    assert bus._start_thread_in_burst()
    thread, transport = bus._thread, bus._receiver.transport
    assert (bus.bursts, transport.did) == (1, ["pause"])
    assert thread.given[:3] == (5, bus._append_from_thread, bus._should_read)
    assert bus._start_thread_in_burst(), "it has done so"
    assert (bus._thread, bus.bursts, transport.did) == (thread, 1, ["pause"])
    thread.given[3]()
    assert bus._thread is thread, "it says in the loop that it has ended"
    await asyncio.sleep(0)
    assert (bus._thread, thread.did, transport.did) == (None, ["stop"], ["pause", "resume"])


@pytest.mark.parametrize(
    "why", ["no burst", "not yet", "no receiver", "task", "reconnecting", "closed", "tls", "closing", "no socket"]
)
async def test_ingest_connection_is_read_by_the_event_loop_if_a_thread_cannot_read_it(bench: Bench, why: str) -> None:
    bus = bench.bus
    in_a_burst(bench)
    transport = bus._receiver.transport
    if why == "no burst":
        bus._burst_ns = 0
    elif why == "not yet":
        bus._large_ns -= 1
    elif why == "no receiver":
        bus._receiver = None
    elif why == "task":
        bus._receiver.is_idle = False
    elif why in ("reconnecting", "closed"):
        bench.monkeypatch.setattr(IngestConnection, f"is_{why}", True)
    elif why == "closing":
        transport.closing = True
    else:
        transport.info["ssl_object" if why == "tls" else "socket"] = object() if why == "tls" else None
    assert not bus._start_thread_in_burst()
    assert (bus._thread, bus.bursts, transport.did) == (None, 0, [])


@pytest.mark.parametrize("error", [OSError(24, "no descriptor"), RuntimeError("can't start new thread")])
async def test_ingest_connection_is_read_by_the_event_loop_if_no_thread_can_start(bench: Bench, error: Exception) -> None:
    bus, transport = bench.bus, bench.bus._receiver.transport

    def fails(*given: Any) -> None:
        raise error

    bench.monkeypatch.setattr(module, "SocketThread", fails)
    in_a_burst(bench)
    assert not bus._start_thread_in_burst()
    assert (bus._thread, bus.bursts, transport.did) == (None, 0, ["pause", "resume"])
    assert bus.errors["no thread to read a burst"] == 1
    assert not bus._start_thread_in_burst(), "not with the next read"
    assert bus.errors["no thread to read a burst"] == 1
    bench.monkeypatch.setattr(module, "SocketThread", Thread)
    in_a_burst(bench)
    assert bus._start_thread_in_burst(), "in the next burst"


@pytest.mark.parametrize(("thread", "receiver", "closing"), [(0, 1, 0), (1, 0, 0), (1, 1, 1)])
async def test_event_loop_does_not_resume_reading_while_the_socket_thread_runs_or_the_transport_is_closed(
    bench: Bench, thread: int, receiver: int, closing: int
) -> None:
    bus = bench.bus
    transport = bus._receiver.transport
    transport.closing = bool(closing)
    bus._thread = Thread() if thread else None
    if not receiver:
        bus._receiver = None
    bus._resume_loop_reads()
    assert (bus._thread, transport.did) == (None, [])


async def test_socket_thread_wakes_the_event_loop_once_for_several_reads(bench: Bench) -> None:
    bus = bench.bus
    calls: list[Any] = []
    bus._loop = SimpleNamespace(call_soon_threadsafe=calls.append)
    bus._pings_outstanding = 2
    bus._append_from_thread(b"ab")
    bus._append_from_thread(b"c")
    assert (list(bus._chunks), bus.waiting_bytes, calls) == ([b"ab", b"c"], 3, [bus._wake_reader])
    assert not bus._arrived.is_set(), "an event is no thing of threads"
    calls[0]()
    assert (bus._arrived.is_set(), bus._pings_outstanding) == (True, 0)
    bus._append_from_thread(b"d")
    assert len(calls) == 2

    def gone(callback: Any) -> None:
        raise RuntimeError("closed")

    bus._loop = SimpleNamespace(call_soon_threadsafe=gone)
    bus._wake_reader()
    bus._append_from_thread(b"e")
    assert bus.waiting_bytes == 5


@pytest.mark.parametrize(("since_ns", "back"), [(module._CALM_NS - 1, False), (module._CALM_NS, True)])
async def test_event_loop_reads_the_socket_again_after_the_burst(bench: Bench, since_ns: int, back: bool) -> None:
    bus = bench.bus
    waits: list[float | None] = []
    noted = SimpleNamespace(timeout=lambda seconds: waits.append(seconds) or asyncio.timeout(0))
    bench.monkeypatch.setattr(module, "asyncio", noted)
    bus._thread = Thread()
    bus._large_ns = bench.now_ns - since_ns
    bus._arrived.set()
    await bus._wait_for_data()
    assert (bus._thread is None) is back
    assert waits == [None if back else 0.2]
    assert not bus._arrived.is_set(), "it waited for something new"
