"""Test reads of planned ranges over NATS from a node in memory, without Spark: order, failover, data loss."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from liftpy.errors import DataLossError, ProtocolError, UnavailableError
from liftpy.nats.credentials import Credentials
from liftpy.spark import process_connection as link_module
from liftpy.spark.options import Access
from liftpy.spark.planning import PlannedRange
from liftpy.spark.process_connection import ProcessConnection, credentials_of, link_to
from liftpy.spark.range_reader import FetchRules, RangeReader, RetryingRequests
from sidecar.dev.nats_server import NatsServer
from tests.batches import build_batch
from tests.fake_node import FakeNode, FakeStream, fake_node_in_thread

QUICK = FetchRules(patience_s=30.0)


def fill(stream: FakeStream, sizes: list[int], *, epoch: int = 1, partition: int = 0, value_bytes: int = 20) -> None:
    """Append committed batches of these record counts; the value of a record is its offset, padded."""
    log = stream.partitions[partition]
    for size in sizes:
        first = log.log_end_offset
        values = [b"%020d" % i + bytes(value_bytes - 20) for i in range(first, first + size)]
        log.append(build_batch(values, base_offset=first, leader_epoch=epoch, timestamp_ns=(1 + first) * 1000))


def planned(start: int, end: int, *, uid: str = "uid-orders", epoch: int = 1) -> PlannedRange:
    return PlannedRange("orders", uid, 0, start, end, epoch, "n1", ("n1", "n2", "n3"))


def read_range(link: ProcessConnection, wanted: PlannedRange, rules: FetchRules) -> Any:
    """Read a range as a Spark task does."""
    return RangeReader(link, wanted, rules).read()


def fetch_range(link: ProcessConnection, wanted: PlannedRange, rules: FetchRules) -> Any:
    """Read a range with single requests and retries only."""
    return RangeReader(link, wanted, rules, [RetryingRequests]).read()


def offsets(link: ProcessConnection, wanted: PlannedRange, rules: FetchRules = QUICK, by: Any = read_range) -> list[int]:
    found: list[int] = []
    for pieces in by(link, wanted, rules):
        for piece in pieces:
            found += [record.offset for record in piece.records()]
    return found


def test_spark_fetch_returns_exactly_the_planned_records_in_order(link: ProcessConnection, node: FakeNode) -> None:
    fill(node.add_stream("orders"), [1, 7, 300, 5000, 5000, 5000, 3])
    for start, end in ((0, 15311), (4, 5), (9, 400), (15310, 15311), (307, 12345)):
        assert offsets(link, planned(start, end)) == list(range(start, end))


@pytest.mark.parametrize(("by", "most"), [(read_range, 2 * 19), (fetch_range, 60 // 3 + 5)], ids=["pipelined", "single"])
def test_spark_fetch_requests_each_batch_once(link: ProcessConnection, node: FakeNode, by: Any, most: int) -> None:
    """An answer has three batches of 306 KB. The first pipelined requests do not know its size yet."""
    fill(node.add_stream("orders"), [1000] * 60, value_bytes=300)
    assert offsets(link, planned(0, 60_000), by=by) == list(range(60_000))
    assert sum(node.asked.values()) <= most


@pytest.mark.parametrize("by", [read_range, fetch_range])
def test_spark_fetch_of_records_that_suddenly_grow_holds_only_some_megabytes(
    link: ProcessConnection, node: FakeNode, by: Any
) -> None:
    stream = node.add_stream("orders")
    fill(stream, [100] * 25, value_bytes=1000)
    fill(stream, [10] * 250, value_bytes=12_000)
    held_bytes, found = [], []
    for pieces in by(link, planned(0, 5000), QUICK):
        held_bytes.append(sum(piece.batch.header.size_bytes for piece in pieces))
        found += [int(offset) for piece in pieces for offset in piece.offsets()]
    assert found == list(range(5000))
    assert max(held_bytes) < 6_000_000


def test_spark_fetch_excludes_records_committed_after_planning(link: ProcessConnection, node: FakeNode) -> None:
    stream = node.add_stream("orders")
    fill(stream, [100, 100])
    stream.partitions[0].append(build_batch([b"x"] * 50, base_offset=200, leader_epoch=1), commit=False)
    assert offsets(link, planned(0, 150)) == list(range(150))


def test_spark_fetch_from_lagging_replicas_returns_all_planned_records(link: ProcessConnection, node: FakeNode) -> None:
    fill(node.add_stream("orders"), [50, 50])
    node.lagging = {"n1": 49, "n2": -1}
    assert offsets(link, planned(0, 100), FetchRules(patience_s=10.0)) == list(range(100))


def test_spark_fetch_without_a_replica_that_has_the_range_raises_unavailable(link: ProcessConnection, node: FakeNode) -> None:
    fill(node.add_stream("orders"), [50])
    with pytest.raises(UnavailableError, match="NOT_READY"):
        offsets(link, planned(0, 60), FetchRules(patience_s=0.3))


def test_spark_fetch_of_records_deleted_after_planning_raises_data_loss_or_logs_a_warning(
    link: ProcessConnection, node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    stream = node.add_stream("orders")
    fill(stream, [50, 50])
    stream.partitions[0].log_start_offset = 50
    with pytest.raises(DataLossError, match=r"OFFSET_OUT_OF_RANGE orders/0 .*offsets \[10, 50\) were deleted after planning"):
        offsets(link, planned(10, 100))
    tolerant = replace(QUICK, fail_on_data_loss=False)
    assert offsets(link, planned(10, 100), tolerant) == list(range(50, 100))
    assert "offsets [10, 50) were deleted" in caplog.text
    assert offsets(link, planned(10, 40), tolerant) == []


def test_spark_fetch_of_records_rewritten_after_planning_is_rejected(link: ProcessConnection, node: FakeNode) -> None:
    stream = node.add_stream("orders")
    fill(stream, [50], epoch=1)
    fill(stream, [50], epoch=3)
    with pytest.raises(DataLossError, match="unclean election"):
        offsets(link, planned(0, 100, epoch=2))
    assert offsets(link, planned(0, 100, epoch=3)) == list(range(100))


def test_spark_fetch_rejects_a_missing_offset_in_a_batch_unless_compacted(link: ProcessConnection, node: FakeNode) -> None:
    stream = node.add_stream("orders")
    stream.partitions[0].append(build_batch([b"a", b"b"], base_offset=0, leader_epoch=1, offset_deltas=[0, 4]))
    with pytest.raises(ProtocolError, match="lacks records"):
        offsets(link, planned(0, 5))
    stream.partitions[0].compacted = True
    assert offsets(link, replace(planned(0, 5), compacted=True)) == [0, 4]


@pytest.mark.parametrize("by", [read_range, fetch_range])
def test_spark_fetch_of_records_purged_after_planning_returns_the_others(
    link: ProcessConnection, node: FakeNode, by: Any
) -> None:
    (log,) = node.add_stream("orders").partitions
    log.append(build_batch([b"a", b"b"], base_offset=0, leader_epoch=1, offset_deltas=[0, 4]))
    log.append(build_batch([b"c"], base_offset=8, leader_epoch=1))
    log.compacted = True
    assert offsets(link, planned(0, 9), by=by) == [0, 4, 8]


def test_spark_fetch_of_a_range_planned_as_compacted_sends_one_request(link: ProcessConnection, node: FakeNode) -> None:
    stream = node.add_stream("orders")
    for base in (0, 10):
        stream.partitions[0].append(build_batch([b"a"], base_offset=base, leader_epoch=1))
    stream.partitions[0].compacted = True
    assert offsets(link, replace(planned(0, 11), compacted=True)) == [0, 10]
    assert sum(node.asked.values()) == 1
    assert offsets(link, planned(0, 11)) == [0, 10]
    assert sum(node.asked.values()) > 2, "the plan did not say so: another answer had to"


def test_spark_fetch_accepts_deletions_only_from_the_leader(link: ProcessConnection, node: FakeNode) -> None:
    fill(node.add_stream("orders"), [50, 50])
    node.trimmed = {"n2": 50, "n3": 100}
    assert offsets(link, replace(planned(0, 100), leader="n1", replicas=("n3", "n2"))) == list(range(100))


def test_spark_fetch_rejects_epochs_that_decrease_between_answers(link: ProcessConnection, node: FakeNode) -> None:
    stream = node.add_stream("orders")
    fill(stream, [1000] * 6, epoch=2, value_bytes=300)
    fill(stream, [1000] * 6, epoch=1, value_bytes=300)
    with pytest.raises(ProtocolError, match="LeaderEpoch 1 at offset 6000 follows the higher epoch 2"):
        offsets(link, planned(0, 12_000, epoch=2), FetchRules(patience_s=0.3))


def test_spark_fetch_distributes_ranges_over_replicas_or_reads_from_the_leader(link: ProcessConnection, node: FakeNode) -> None:
    fill(node.add_stream("orders"), [1000] * 12, value_bytes=300)
    offsets(link, planned(0, 12_000), replace(QUICK, leader_first=True))
    assert set(node.asked) == {"n1"}
    node.asked.clear()
    starts = range(0, 12_000, 1000)
    for start in starts:
        offsets(link, planned(start, start + 1000))
    assert set(node.asked) == {"n1", "n2", "n3"}, "different ranges go to different replicas"
    assert sum(node.asked.values()) == len(starts)


def test_spark_fetch_closed_early_leaves_no_requests_in_flight(link: ProcessConnection, node: FakeNode) -> None:
    fill(node.add_stream("orders"), [1000] * 40, value_bytes=300)
    reading = fetch_range(link, planned(0, 40_000), FetchRules(patience_s=60.0))
    assert next(reading)
    node.silent = set(node.node_ids)
    reading.close()
    for _ in range(200):
        tasks = link.call(_tasks(), 5)
        if not tasks:
            break
    assert not tasks


async def _tasks() -> list[str]:
    await asyncio.sleep(0.005)
    return [str(t) for t in asyncio.all_tasks() if "_fetch_span" in str(t)]


def test_spark_connection_with_equal_settings_is_shared_within_a_process(access: Access, node: FakeNode) -> None:
    assert link_to(access) is link_to(replace(access))
    assert link_to(access) is not link_to(replace(access, namespace="other"))


def test_spark_connection_cache_is_bounded_and_keeps_the_last_used_connections(
    access: Access, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "MAX_LINKS", 2)
    oldest, used = (link_to(replace(access, namespace=name)) for name in ("one", "two"))
    connection = oldest.call(oldest.transport(), 5).connection
    link_to(access)
    assert link_to(replace(access, namespace="two")) is used
    deadline = time.monotonic() + 5
    while not connection.is_closed and time.monotonic() < deadline:
        time.sleep(0.005)
    assert connection.is_closed
    assert link_to(replace(access, namespace="one")) is not oldest
    assert link_to(replace(access, namespace="two")) is used, "the other was used before it"


def test_spark_connection_close_cancels_its_running_tasks(access: Access) -> None:
    link = link_module.ProcessConnection(access)
    waiting = link.submit(asyncio.Event().wait())
    link.close()
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result(5)


def test_spark_connection_credentials_read_secrets_from_files(tmp_path: Path) -> None:
    for name, secret in (("password", "open sesame\n"), ("token", " t0ken \n")):
        (tmp_path / name).write_text(secret)
    always = {name: f"some_{name}" for name in ("tls_ca_file", "tls_cert_file", "tls_key_file", "inbox_prefix")}
    password, token = {"password_file": str(tmp_path / "password")}, {"token_file": str(tmp_path / "token")}
    for given, made in (
        ({"creds_file": "some.creds"}, {"creds_file": "some.creds"}),
        ({"nkey_seed_file": "some.nk"}, {"nkey_seed_file": "some.nk"}),
        ({"user": "ali"} | password, {"user": "ali", "password": "open sesame"}),
        (token, {"token": "t0ken"}),
    ):
        assert credentials_of(Access(**always, **given)) == Credentials(**always, **made)


def test_spark_fetch_during_a_nats_restart_returns_all_records() -> None:
    with NatsServer() as server, fake_node_in_thread(server.url) as node:
        fill(node.add_stream("orders"), [1000] * 30, value_bytes=300)
        reading = fetch_range(link_to(Access(servers=server.url)), planned(0, 30_000), FetchRules(patience_s=20.0))
        found = [record.offset for piece in next(reading) for record in piece.records()]
        server.restart()
        found += [record.offset for pieces in reading for piece in pieces for record in piece.records()]
    assert found == list(range(30_000))


class Never(concurrent.futures.Future[None]):
    """A result that does not come in any time."""

    def result(self, timeout: float | None = None) -> None:
        raise concurrent.futures.TimeoutError


def test_spark_connection_result_without_an_answer_raises_unavailable_after_a_timeout() -> None:
    never = Never()
    with pytest.raises(UnavailableError, match="No answer from NATS or the node within 5 s"):
        link_module.result_of(never, 5.0)
    assert never.cancelled()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_spark_connection_cache_of_a_forked_worker_is_empty(access: Access, link: ProcessConnection) -> None:
    assert link_to(access) is link
    with link_module._lock:  # as a thread of the parent may hold it
        child = os.fork()
        if not child:
            signal.alarm(20)
            os._exit(int(link_to(access) is link))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert link_to(access) is link, "the parent's are its own"
