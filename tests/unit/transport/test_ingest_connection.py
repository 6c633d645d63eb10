"""Test the ingest connection: what it reads, buffers and takes in one turn [A11]."""

from __future__ import annotations

import asyncio
from typing import Any

import nats.errors
import pytest

from liftpy.core.replication.inflight_limits import NodeInflight
from sidecar.transport import ingest_connection as module
from sidecar.transport.connection import BusConnection
from sidecar.transport.ingest_connection import ConnectionStats, IngestConnection
from tests.unit.transport.ingest_connection_bench import BUFFER_BYTES, KIB, MS, Bench, Thread
from tests.unit.transport.test_ingest_connection_overload import message


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


# ---- what has come -----------------------------------------------------------------------------------------------------------
async def test_ingest_connection_with_an_empty_buffer_parses_a_read_at_once(bench: Bench) -> None:
    bus, data = bench.bus, message(b"1")
    assert bus._process_arrived(data) is None
    assert bench.got == [b"1"]
    await bus._process_data(data)
    assert bench.got == [b"1", b"1"]
    assert (bus.parsed_bytes, bus._arrived_bytes, bus._removed_bytes) == (2 * len(data),) * 3
    assert (bus.waiting_bytes, bus.most_waiting_bytes, bus._parsing) == (0, 0, False)
    assert bench.asked == [(0, False, bench.now_ns), (len(data), False, bench.now_ns)]


@pytest.mark.parametrize("why", ["something waits", "something is being parsed", "it is large", "the gate"])
async def test_ingest_connection_buffers_a_read_that_is_large_or_follows_buffered_reads(bench: Bench, why: str) -> None:
    bus = bench.bus
    data = bytes(module._PIECE_BYTES + (why == "it is large"))
    before = 0
    if why == "something waits":
        bus._append(b"abc")
        before = 3
    bus._parsing = why == "something is being parsed"
    bench.takes = why != "the gate"
    parsed = bench.parsing()
    assert bus._process_arrived(data) is data
    assert (bus._arrived_bytes, bus.parsed_bytes) == (before, 0)
    await bus._process_data(data)
    assert parsed == []
    assert (bus._arrived_bytes, bus._removed_bytes, bus.parsed_bytes) == (before + len(data), 0, 0)
    assert bus.waiting_bytes == bus.most_waiting_bytes == before + len(data)
    assert bus._chunks[-1] is data
    assert bus._arrived.is_set(), "the pump is told"


async def test_ingest_connection_reports_its_largest_backlog_in_bytes(bench: Bench) -> None:
    bus = bench.bus
    bus._append(bytes(10))
    bus._append(bytes(20))
    bus._next_piece()
    bus._append(bytes(5))
    assert (bus.waiting_bytes, bus.most_waiting_bytes) == (25, 30)


async def test_ingest_connection_does_not_start_the_socket_thread_after_a_read_that_ends_with_a_ping(bench: Bench) -> None:
    looked: list[int] = []
    bench.monkeypatch.setattr(bench.bus, "_start_thread_in_burst", lambda: looked.append(1) or False)
    assert bench.bus._process_arrived(message(b"1") + b"PING\r\n") == b""
    assert looked == []
    bench.bus._parser.reset()
    assert bench.bus._process_arrived(message(b"2")) is None
    assert looked == [1]


async def test_ingest_connection_burst_starts_at_the_first_of_consecutive_large_reads(bench: Bench) -> None:
    bus, began_ns = bench.bus, bench.now_ns
    bus._count_read(module._LARGE_BYTES - 1)
    assert (bus._large_ns, bus._burst_ns) == (0, 0)
    bus._count_read(module._LARGE_BYTES)
    bench.now_ns += 7
    bus._count_read(module._LARGE_BYTES)
    assert (bus._large_ns, bus._burst_ns) == (began_ns + 7, began_ns)
    bus._count_read(0)
    assert bus._burst_ns == began_ns, "a command that is gone on with is no read"
    bus._count_read(1)
    assert (bus._large_ns, bus._burst_ns) == (began_ns + 7, 0)
    assert bus._arrived_bytes == 3 * module._LARGE_BYTES


# ---- how full it is ----------------------------------------------------------------------------------------------------------
async def test_ingest_connection_is_full_when_buffered_bytes_plus_bytes_held_by_partitions_reach_its_size(bench: Bench) -> None:
    bus, half = bench.bus, BUFFER_BYTES // 2
    for waiting, held, fills, full in (
        (half - 1, 0, False, False),
        (half, 0, True, False),
        (0, half, True, False),
        (half - 1, half, True, False),
        (half, half, True, True),
        (0, BUFFER_BYTES - 1, True, False),
        (BUFFER_BYTES, 0, True, True),
    ):
        bus._arrived_bytes, bench.node.held_bytes = waiting, held
        assert (bus._is_half_full(), bus._is_full()) == (fills, full), (waiting, held)


async def test_ingest_connection_above_half_its_buffer_reads_only_to_avoid_a_slow_consumer_disconnect(bench: Bench) -> None:
    bus, asked = bench.bus, []
    alone = True

    def can_stop_reading(read_bytes: int, now_ns: int) -> bool:
        asked.append((read_bytes, now_ns))
        return alone

    bench.monkeypatch.setattr(bus.overflow, "can_stop_reading", can_stop_reading)
    bus._arrived_bytes = BUFFER_BYTES // 2 - 1
    assert bus._should_read()
    assert asked == []
    bus._arrived_bytes = half = BUFFER_BYTES // 2
    assert not bus._should_read()
    assert asked == [(half, bench.now_ns)]
    bus._read_at_least_to = half
    assert not bus._should_read()
    bus._read_at_least_to = half + 1
    assert bus._should_read()
    bus._read_at_least_to, alone = 0, False
    assert bus._should_read()
    bus._arrived_bytes, bus._read_at_least_to = BUFFER_BYTES, 2 * BUFFER_BYTES
    assert not bus._should_read(), "a full buffer takes nothing"


async def test_ingest_connection_read_by_a_thread_does_not_block_its_reading_task(bench: Bench) -> None:
    bench.takes = False
    bench.bus._thread = Thread()
    await bench.bus._process_data(bytes(BUFFER_BYTES))
    assert bench.bus.errors == {}


# ---- a connection is lost ----------------------------------------------------------------------------------------------------
async def test_ingest_connection_to_a_server_without_an_id_has_an_empty_identity(bench: Bench) -> None:
    bench.bus._server_info, bench.bus._client_id = {}, None
    assert bench.bus._identity() == ("", 0)


# ---- what is taken in a turn -------------------------------------------------------------------------------------------------
async def test_ingest_connection_turn_parses_a_bounded_number_of_bytes(bench: Bench) -> None:
    bus, pieces = bench.bus, bench.parsing()
    bus._append(bytes(300 * KIB))
    bus._append(bytes(10))
    await bus._process_some()
    assert pieces == [(64 * KIB, False)] * 4
    assert (bus.parsed_bytes, bus.waiting_bytes, bus._position) == (256 * KIB, 44 * KIB + 10, 256 * KIB)
    assert bus._room.is_set()
    await bus._process_some()
    assert pieces[4:] == [(44 * KIB, False), (10, False)]
    assert (bus.parsed_bytes, bus.waiting_bytes, bus._position, len(bus._chunks)) == (300 * KIB + 10, 0, 0, 0)


async def test_ingest_connection_turn_ends_after_its_time_limit(bench: Bench) -> None:
    bus, pieces = bench.bus, bench.parsing(each_ns=2 * MS)
    for _ in range(5):
        bus._append(bytes(1000))
    await bus._process_some()
    assert len(pieces) == 2
    bench.takes = False
    await bus._process_some()
    assert len(pieces) == 2, "nor more than partitions can hold"


# ---- what is left out --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("waiting", "held", "due", "full", "left_out"),
    [
        (600 * KIB, 0, 400 * KIB, False, 0),
        (600 * KIB, 0, 400 * KIB + 1, False, 1),
        (600 * KIB, 100 * KIB, 301 * KIB, False, KIB),
        (937 * KIB, 0, 0, False, 0),
        (937 * KIB + 512, 0, 0, True, 0),
        (1100 * KIB, 0, 70 * KIB, True, 70 * KIB),
    ],
)
async def test_ingest_connection_drops_buffered_bytes_to_make_room_for_bytes_it_must_read(
    bench: Bench, waiting: int, held: int, due: int, full: bool, left_out: int
) -> None:
    bus, asked, told = bench.bus, [], []

    def due_bytes(*given: Any) -> int:
        asked.append(given)
        return due

    async def leave_out(size_bytes: int) -> None:
        told.append(size_bytes)

    bench.monkeypatch.setattr(bus.overflow, "due_bytes", due_bytes)
    bench.monkeypatch.setattr(bus.overflow, "roomy", lambda: pytest.fail("it is half full"))
    bus._drop_without_reply = leave_out
    bus._removed_bytes, bus._arrived_bytes, bench.node.held_bytes = 50, waiting + 50, held
    bus._pings_outstanding = 1
    await bus._make_room()
    assert asked == [(full, waiting + 50, 50, bench.now_ns)]
    assert bus._read_at_least_to == waiting + 50 + due
    assert told == ([left_out] if left_out else [])
    assert bus._pings_outstanding == 1
    bus._thread = Thread()
    await bus._make_room()
    assert bus._pings_outstanding == 0, "the thread does not read while there is no room"


async def test_ingest_connection_that_drops_bytes_drops_whole_chunks_and_wakes_the_socket_thread(bench: Bench) -> None:
    bus, pieces = bench.bus, bench.parsing()
    for _ in range(5):
        bus._append(bytes(1000))
    thread = bus._thread = Thread()
    await bus._drop_without_reply(2001)
    assert pieces == [(1000, True)] * 3
    assert (bus._parser.drops_unread, bus.parsed_bytes, bus.waiting_bytes) == (False, 0, 2000)
    assert (bus._room.is_set(), thread.did) == (True, ["resume"])
    await bus._drop_without_reply(2000)
    await bus._drop_without_reply(1)
    assert len(pieces) == 5


async def test_ingest_connection_that_drops_bytes_stops_at_its_time_limit(bench: Bench) -> None:
    bus, pieces = bench.bus, bench.parsing(each_ns=4 * MS)
    thread = bus._thread = Thread()
    for _ in range(5):
        bus._append(bytes(1000))
    bench.node.held_bytes = BUFFER_BYTES
    await bus._drop_without_reply(1 << 40)
    assert len(pieces) == 2
    assert (bus._room.is_set(), thread.did) == (False, [])


async def test_ingest_connection_leaves_its_dropping_mode_when_the_parser_raises(bench: Bench) -> None:
    async def fails(piece: bytes) -> None:
        raise asyncio.CancelledError

    bench.bus._parser.parse = fails
    bench.bus._append(b"x")
    with pytest.raises(asyncio.CancelledError):
        await bench.bus._drop_without_reply(1)
    assert (bench.bus._parser.drops_unread, bench.bus._parsing) == (False, False)


async def test_ingest_connection_counts_dropped_messages_per_subscription(bench: Bench) -> None:
    bench.bus.listen("two", lambda *_: None)
    bench.bus._append(message(b"1") * 3 + message(b"wants an answer", b"_INBOX.a") + message(b"", subject=b"two", sid=2))
    await bench.bus._drop_without_reply(1)
    assert (bench.given_up, bench.bus.dropped_unread, bench.got) == ([3], 4, [b"wants an answer"])


async def test_ingest_connection_counts_dropped_messages_for_the_new_handler_after_a_takeover(bench: Bench) -> None:
    before: list[int] = []
    after: list[int] = []
    listener = bench.bus.listen("two", lambda *_: None, given_up=before.append)
    listener.feed_to(lambda *_: None, after.append)
    bench.bus._append(message(b"", subject=b"two", sid=2))
    await bench.bus._drop_without_reply(1)
    assert (before, after) == ([], [1])


@pytest.mark.parametrize(
    ("server", "client_id", "reason", "heard"),
    [("s1", 7, "", True), ("s1", 8, "", False), ("s2", 7, "", False), ("s1", 7, "Slow Consumer", False)],
)
async def test_ingest_connection_ignores_server_statistics_of_another_connection(
    bench: Bench, server: str, client_id: int, reason: str, heard: bool
) -> None:
    bus = bench.bus
    noted: list[Any] = []
    bench.monkeypatch.setattr(bus.overflow, "record_pong", lambda *given: noted.append(given))
    bench.monkeypatch.setattr(bus.disconnect_loss, "record_server_report", noted.append)
    bus._client_id = 7
    bus._server_info = {"server_id": "s1"}
    told = ConnectionStats(3, server, client_id, 100, 5, reason)
    bus._record_server_report(50, told)
    assert noted == ([told, (100, 50, 3)] if heard else [])


# ---- what can't be read ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [OSError("gone"), nats.errors.ProtocolError(), KeyError("a bug")])
@pytest.mark.parametrize("lost", [0, 1])
async def test_ingest_connection_with_unparsable_bytes_closes_and_clears_its_buffer(
    bench: Bench, error: Exception, lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    bus, ended = bench.bus, []

    async def fails(piece: bytes) -> None:
        raise error

    async def op_err(why: Exception) -> None:
        ended.append(why)

    bus._parser.parse, bus._process_op_err = fails, op_err
    bus._parser.lost = lost
    bus._append(bytes(100))
    bus._append(bytes(module._PIECE_BYTES + 1))
    if lost:
        bus._chunks.append(None)
        bus._append(b"of the next one")
    await bus._parse_piece(bus._next_piece())
    assert bus.errors == {"unreadable": 1}
    assert ended == ([] if lost else [error]), "one that is lost is not ended again"
    assert list(bus._chunks) == ([None, b"of the next one"] if lost else [])
    assert bus.waiting_bytes == (15 if lost else 0)
    assert len(caplog.messages) == isinstance(error, KeyError)


# ---- the end -----------------------------------------------------------------------------------------------------------------
async def test_ingest_connection_close_ends_its_socket_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []

    async def close(self: Any, *given: Any) -> None:
        closed.append(given)

    monkeypatch.setattr(BusConnection, "_close", close)
    bus: Any = IngestConnection(NodeInflight(), BUFFER_BYTES)
    thread = bus._thread = Thread()
    task = bus._pump_task
    await asyncio.sleep(0)
    await bus._close(IngestConnection.CLOSED, False)
    assert (thread.did, bus._thread, task.done(), closed) == (["stop"], None, False, [(IngestConnection.CLOSED, False)])
    await bus.stop()
    assert (task.cancelled(), closed[1:]) == (True, [(IngestConnection.CLOSED, True)])
