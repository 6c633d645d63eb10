"""Test pipelined requests of planned ranges, without Spark: each batch is sent once, and retries fetch missing records."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from typing import Any

import nats
import pytest

from liftpy.errors import ConfigError, UnavailableError
from liftpy.nats import blocking_connection as line_module
from liftpy.nats import connection as nats_connection
from liftpy.nats.blocking_connection import BlockingConnection, ConnectionClosedError
from liftpy.spark import process_connection, range_reader
from liftpy.spark.process_connection import ProcessConnection
from liftpy.spark.range_reader import FetchRules, RetryingRequests
from liftpy.spark.schema import omitted_parts
from tests.batches import build_batch
from tests.fake_node import FakeNode
from tests.unit.spark.test_spark_fetching import fill, offsets, planned, read_range


@pytest.fixture(autouse=True)
def retried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of end offsets that are fetched with retries. Reset the size estimate."""
    found: list[int] = []
    real = RetryingRequests.fetch

    def seen(self: RetryingRequests, end: int) -> Any:
        found.append(end)
        return real(self, end)

    monkeypatch.setattr(RetryingRequests, "fetch", seen)
    range_reader._guesses.clear()
    return found


def sent_batches(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the base offset of each batch that the node sends."""
    found: list[int] = []
    real = node.answer

    def seen(*given: Any) -> Any:
        head, batches = real(*given)
        found.extend(int.from_bytes(batch[16:24], "little") for batch in batches)
        return head, batches

    monkeypatch.setattr(node, "answer", seen)
    return found


def test_spark_pipelined_fetch_with_unaligned_requests_receives_each_batch_once(
    link: ProcessConnection, node: FakeNode, monkeypatch: pytest.MonkeyPatch, retried: list[int]
) -> None:
    sizes = [random.Random(3).randint(50, 900) for _ in range(120)]
    fill(node.add_stream("orders"), sizes, value_bytes=300)
    sent, end = sent_batches(node, monkeypatch), sum(sizes) - 7
    assert offsets(link, planned(13, end)) == list(range(13, end))
    assert not retried
    assert sorted(sent) == sorted(set(sent)), "a batch was sent twice"


def test_spark_pipelined_fetch_of_records_of_increasing_size_returns_all_records(
    link: ProcessConnection, node: FakeNode
) -> None:
    stream, source = node.add_stream("orders"), random.Random(1)
    for _ in range(150):
        fill(stream, [source.randint(1, 40)], value_bytes=source.choice([20, 500, 20_000]))
    end = stream.partitions[0].log_end_offset
    assert offsets(link, planned(0, end)) == list(range(end))


def test_spark_pipelined_fetch_of_batches_larger_than_an_answer_continues_with_single_requests(
    link: ProcessConnection, node: FakeNode, retried: list[int]
) -> None:
    stream = node.add_stream("orders")
    fill(stream, [10, 10, 10], value_bytes=20)
    fill(stream, [3] * 5, value_bytes=340_000)  # each alone is nearly an answer
    assert offsets(link, planned(0, 45)) == list(range(45))


def _next_line(link: ProcessConnection, monkeypatch: pytest.MonkeyPatch) -> BlockingConnection | None:
    """Return the next blocking connection, without the pause after a failure."""
    monkeypatch.setattr(link, "_line_after_s", 0.0)
    return link.line()


def test_spark_pipelined_fetch_whose_connection_ends_continues_with_single_requests(
    link: ProcessConnection, node: FakeNode, monkeypatch: pytest.MonkeyPatch, retried: list[int]
) -> None:
    fill(node.add_stream("orders"), [1000] * 30, value_bytes=300)
    reading = read_range(link, planned(0, 30_000), FetchRules())
    found = [record.offset for piece in next(reading) for record in piece.records()]
    line = link.line()
    assert line is not None
    line.close()
    for pieces in reading:
        found += [record.offset for piece in pieces for record in piece.records()]
    assert found == list(range(30_000))
    assert retried
    assert link.line() is None, "it is not opened again at once"
    assert offsets(link, planned(0, 30_000)) == list(range(30_000))
    assert _next_line(link, monkeypatch) is not None


def test_spark_pipelined_fetch_without_an_answer_continues_with_single_requests(
    link: ProcessConnection, node: FakeNode, monkeypatch: pytest.MonkeyPatch, retried: list[int]
) -> None:
    monkeypatch.setattr(range_reader, "ANSWER_S", 0.05)
    fill(node.add_stream("orders"), [1000] * 12, value_bytes=300)
    node.silent = {"n1"}
    assert offsets(link, planned(0, 12_000), FetchRules(patience_s=10.0)) == list(range(12_000))
    assert retried
    assert node.asked["n1"] < 8, "who does not answer is not asked for all of it"
    line = link.line()
    assert line is not None
    assert line.waiting_count == 0


def test_spark_pipelined_fetch_size_estimate_is_reused_by_the_next_task(link: ProcessConnection, node: FakeNode) -> None:
    fill(node.add_stream("orders"), [1000] * 30, value_bytes=300)
    for _ in range(2):
        node.asked.clear()
        assert offsets(link, planned(0, 30_000)) == list(range(30_000))
    (guess,) = range_reader._guesses.values()
    assert guess.batch_records == 1000
    assert 300 < guess.bytes_per_record < 310


def test_spark_pipelined_fetch_closed_early_leaves_no_requests_in_flight(link: ProcessConnection, node: FakeNode) -> None:
    fill(node.add_stream("orders"), [1000] * 30, value_bytes=300)
    assert offsets(link, planned(0, 3000)) == list(range(3000))  # now several are asked for at once
    reading = read_range(link, planned(0, 30_000), FetchRules())
    next(reading)
    line = link.line()
    assert line is not None
    reading.close()
    assert line.waiting_count == 0


def test_spark_pipelined_fetch_requests_only_the_selected_columns(link: ProcessConnection, node: FakeNode) -> None:
    stream = node.add_stream("orders")
    for base in range(0, 2000, 100):
        stream.partitions[0].append(build_batch([b"x" * 1000] * 100, keys=[b"k"] * 100, base_offset=base, leader_epoch=1))
    rules = FetchRules(left_out=omitted_parts(("offset", "timestamp")))
    pieces = [piece for found in read_range(link, planned(0, 2000), rules) for piece in found]
    assert [offset for piece in pieces for offset in piece.offsets().tolist()] == list(range(2000))
    assert sum(piece.batch.header.size_bytes for piece in pieces) < 20_000
    assert all(piece.batch.columns.keys is None for piece in pieces)
    assert omitted_parts(("value",)) == 0, "all or nothing: the rest is little beside the values"


async def test_blocking_connection_receives_an_answer_of_the_maximum_size(access: Any) -> None:
    async with await nats.connect(access.servers) as server:
        subject = server.new_inbox()

        async def respond(message: Any) -> None:
            await message.respond(b"x" * server.max_payload)

        await server.subscribe(subject, cb=respond)
        await server.flush()
        line = await line_module.open_blocking_connection(access.servers)
        assert line is not None
        assert len(await asyncio.wrap_future(line.ask(subject, b""))) == server.max_payload
        line.close()


async def test_blocking_connection_raises_no_responders_or_connection_closed_without_an_answer(
    access: Any, node: FakeNode, link: ProcessConnection
) -> None:
    line = await line_module.open_blocking_connection(access.servers)
    assert line is not None
    nobody = line.ask("liftpy.nobody.listens", b"")
    with pytest.raises(UnavailableError, match="No responders"):
        nobody.result(10)
    node.silent = {"n1"}  # it hears the request and never answers
    late = line.ask(f"{access.namespace}.orders.0.read.n1", b"")
    line.close()
    with pytest.raises(ConnectionClosedError):
        late.result(10)
    with pytest.raises(ConnectionClosedError):
        line.ask("liftpy.orders.0.read", b"").result(10)
    with pytest.raises((ConfigError, UnavailableError)):
        await line_module.open_blocking_connection("nats://127.0.0.1:1", timeout_s=0.5)


async def _end_of_other_tasks() -> None:
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)


def _line_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "liftpy-line"}


def test_spark_blocking_connection_that_opens_too_late_is_not_leaked(
    link: ProcessConnection, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_connection, "LINE_S", 0.1)
    is_mounted, before, read = threading.Event(), _line_threads(), process_connection.credentials_of

    def slow(access: Any) -> Any:
        is_mounted.wait()
        return read(access)

    monkeypatch.setattr(process_connection, "credentials_of", slow)
    assert link.line() is None, "the file with the credentials cannot be read now"
    is_mounted.set()
    link.call(_end_of_other_tasks(), 10.0)
    assert _line_threads() == before
    assert _next_line(link, monkeypatch) is not None
    assert len(_line_threads() - before) == 1


def test_spark_blocking_connection_without_a_file_descriptor_is_not_opened(
    link: ProcessConnection, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(descriptor: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(nats_connection.os, "dup", fails)
        assert link.line() is None
    link.call(_end_of_other_tasks(), 10.0)  # no task of a connection remains
    assert _next_line(link, monkeypatch) is not None
