"""Test workers of a queue with the real coordinator in a cluster in memory [Q1-Q6]."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from liftpy.client import Client, Job, LeaseLostError, Queue, QueueOptions, ReadOptions, job_acks
from liftpy.client import queue as module
from liftpy.client.consumer import PartitionReader
from liftpy.client.group_admin import GroupRejectedError
from liftpy.client.metadata_requests import MetadataRequests
from liftpy.client.queue import PrefetchLimit
from liftpy.client.queue_log import QueueLog
from liftpy.config import AckPolicy, StreamConfig
from liftpy.core.groups import commands
from liftpy.core.metadata.image import StreamImage
from liftpy.errors import (
    ConfigError,
    InvalidNameError,
    NotFoundError,
    OutcomeUnknownError,
    PublishRejectedError,
    UnavailableError,
)
from liftpy.testing.memory import memory_cluster
from tests.until import until

SHORT = QueueOptions(ack_wait_s=0.2)


@pytest.fixture
def client(queue_client: Client) -> Client:
    return queue_client


async def fill(client: Client, count: int, first: int = 0, **more: Any) -> None:
    async with client.publisher("jobs") as publisher:
        for number in range(first, first + count):
            await publisher.send(b"%d" % number, **more)


def numbers(jobs: list[Job]) -> list[int]:
    return [int(job.record.value or b"") for job in jobs]


async def all_of(queue: Queue, count: int, each: Callable[[Job], Any]) -> list[int]:
    """Take ``count`` records and settle each with ``each``."""
    found: list[int] = []
    async with asyncio.timeout(60):
        async for job in queue:
            found.append(int(job.record.value or b""))
            await each(job)
            if len(found) >= count:
                return found
    return found


async def test_queue_ack_is_rejected_only_after_a_lost_lease(client: Client) -> None:
    await fill(client, 6)
    async with client.queue("jobs", "w") as one, client.queue("jobs", "w") as other:
        first, second = await one.take(2), await one.take(2)
        await one.nack(first[:1])
        (again,) = await other.take(1)
        with pytest.raises(LeaseLostError, match="1 of 4") as error:
            await one.ack([*first, *second])
        assert list(error.value.jobs) == first[:1], "the others are done"
        await again.nack()
        assert numbers(await one.take(9)) == [0, 4, 5]


@pytest.mark.parametrize("settle", [Job.extend, Job.nack])
async def test_queue_ack_next_to_another_settlement_of_its_record_is_not_rejected(
    client: Client, settle: Callable[[Job], Coroutine[Any, Any, None]]
) -> None:
    await fill(client, 3)
    async with client.queue("jobs", "workers") as queue:
        jobs = await queue.take(3)
        first = asyncio.create_task(jobs[0].ack())
        await asyncio.sleep(0)  # the others wait for the end of its command
        other = [asyncio.create_task(work) for work in (jobs[1].ack(), settle(jobs[1]), jobs[2].ack())]
        results = await asyncio.gather(first, *other, return_exceptions=True)
        assert [type(result) for result in results] == [type(None), type(None), LeaseLostError, type(None)]


async def test_queue_acknowledges_missing_offsets_of_a_granted_range(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(client, 5)
    real = QueueLog.records

    async def compacted(self: QueueLog, *given: Any) -> Any:
        return [record for record in await real(self, *given) if record.offset not in (0, 2, 4)]

    async with client.queue("jobs", "w", options=SHORT) as queue:
        with monkeypatch.context() as patched:
            patched.setattr(QueueLog, "records", compacted)
            assert numbers(await queue.take(5)) == [1, 3]
        assert queue.counters["gone or dead"] == 3
        again: set[int] = set()
        async with asyncio.timeout(60):
            while again != {1, 3}:
                again |= set(numbers(await queue.take(5)))
                assert again <= {1, 3}, "nothing else comes when their wait is over"
        async with client.queue("jobs", "w") as other:
            assert {1, 3} >= set(numbers(await other.take(5)))


async def test_queue_ack_with_more_lost_ranges_than_an_answer_names_reports_every_lost_record(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "MAX_LOST_RANGES", 4)
    await fill(client, 40)
    options = QueueOptions(ack_wait_s=600)
    async with client.queue("jobs", "w", options=options) as one, client.queue("jobs", "w", options=options) as other:
        jobs = await one.take(40)
        lost = jobs[:30:2]
        await one.nack(lost)
        with pytest.raises(LeaseLostError) as error:
            await one.ack(jobs)
        reported = {job.record.offset for job in error.value.jobs}
        assert reported >= {job.record.offset for job in lost}
        again = await other.take(40)
        assert numbers(again) == numbers(lost), "each record that looks settled is settled"


async def test_queue_settles_more_ranges_than_one_command_may_have(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MAX_RANGES", 10)
    monkeypatch.setattr(job_acks, "MAX_RANGES", 4)
    await fill(client, 50)
    async with client.queue("jobs", "w", options=QueueOptions(ack_wait_s=600)) as queue:
        jobs = await queue.take(50)
        await queue.ack(jobs[::2])
        await queue.nack(jobs[1::2])
        assert numbers(await queue.take(50)) == list(range(1, 50, 2))


async def test_queue_nack_with_delay_and_extend_change_the_redelivery_time(client: Client) -> None:
    await fill(client, 3)
    async with client.queue("jobs", "w", options=QueueOptions(ack_wait_s=600)) as queue:
        now, later, kept = await queue.take(3)
        await now.nack()
        await later.nack(delay_s=3600)
        await kept.extend()
        (again,) = await queue.take(3)
        assert (numbers([again]), again.deliveries) == ([0], 2)
        assert await queue.take(3, timeout_s=0.1) == []
        await queue.ack([again, kept])
        with pytest.raises(LeaseLostError):
            await now.nack()


async def test_queue_record_beyond_max_deliveries_is_a_dead_letter(client: Client) -> None:
    await fill(client, 3, key=b"k", headers={"h": b"v"})
    options = QueueOptions(ack_wait_s=600, max_deliveries=2, dead_letters="dead")
    async with client.queue("jobs", "w", options=options) as queue:
        bad, poison, good = await queue.take(3)
        await bad.reject("no such customer")
        await poison.nack()
        await good.ack()
        (again,) = await queue.take(3)
        await again.nack()
        assert await queue.take(3, timeout_s=0.5) == []
        buried = [record async for record in client.consume("dead", until="end")]
        said = [{name: value.decode() for name, value in record.headers if name.startswith("Dead-Letter")} for record in buried]
        assert sorted((int(record.value or b""), record.key, record.header("h")) for record in buried) == [
            (0, b"k", b"v"),
            (1, b"k", b"v"),
        ]
        by_offset = {one["Dead-Letter-Offset"]: one for one in said}
        assert (by_offset["0"]["Dead-Letter-Reason"], by_offset["1"]["Dead-Letter-Deliveries"]) == ("no such customer", "2")
        assert {(one["Dead-Letter-Group"], one["Dead-Letter-Stream"], one["Dead-Letter-Partition"]) for one in said} == {
            ("w", "jobs", "0")
        }
        assert queue.counters["buried"] == 2
    async with client.queue("jobs", "w", options=options) as queue:
        assert await queue.take(3, timeout_s=0.1) == []


async def test_queue_dead_letter_of_a_dead_letter_has_its_own_headers_first(client: Client) -> None:
    await fill(client, 1, headers={"Dead-Letter-Offset": "77", "Dead-Letter-Stream": "earlier"})
    async with client.queue("jobs", "w", options=QueueOptions(dead_letters="dead")) as queue:
        await (await queue.take(1))[0].reject("no such customer")
        assert await queue.take(1, timeout_s=0.5) == []
    (dead,) = [record async for record in client.consume("dead", until="end")]
    assert (dead.header("Dead-Letter-Offset"), dead.header("Dead-Letter-Stream")) == (b"0", b"jobs")
    assert ("Dead-Letter-Offset", b"77") in dead.headers


async def test_queue_dead_letter_above_the_message_size_is_stored_without_its_value(client: Client) -> None:
    """The record has the maximum message size, so the dead-letter headers do not fit."""
    largest = 1024 * 1024
    async with asyncio.timeout(30):
        while True:  # the largest that is taken
            try:
                await client.publish("jobs", b"v" * largest, key=b"k", headers={"h": b"1"})
                break
            except PublishRejectedError:
                largest -= 64
    await client.publish("jobs", b"", headers={"h": b"1" * largest})
    await client.publish("jobs", b"2")
    options = QueueOptions(ack_wait_s=600, max_deliveries=2, dead_letters="dead")
    async with client.queue("jobs", "w", options=options) as queue:
        for job in (await queue.take(3))[:2]:
            await job.reject("poison")
        async with asyncio.timeout(30):
            while queue.counters["buried"] < 2:
                assert await queue.take(3, timeout_s=0.1) == []
        first, second = [record async for record in client.consume("dead", until="end")]
        assert (first.value, first.key, first.header("h"), first.header("Dead-Letter-Omitted")) == (b"", b"k", b"1", b"value")
        assert (second.header("h"), second.header("Dead-Letter-Omitted")) == (None, b"value headers")
        assert [one.header("Dead-Letter-Offset") for one in (first, second)] == [b"0", b"1"]
    assert (await client.groups.describe("w")).queues[0].dead == 0


async def test_queue_dead_letter_with_a_too_long_reason_is_stored_without_the_reason(client: Client) -> None:
    await client.admin.alter_stream("dead", max_message_bytes=450)
    await fill(client, 1, key=b"k", headers={"h": b"v" * 600})
    options = QueueOptions(ack_wait_s=600, max_deliveries=2, dead_letters="dead")
    async with client.queue("jobs", "w", options=options) as queue:
        await (await queue.take(1))[0].reject("r" * 200)
        async with asyncio.timeout(30):
            while queue.counters["buried"] < 1:
                assert await queue.take(1, timeout_s=0.1) == []
    (dead,) = [record async for record in client.consume("dead", until="end")]
    assert [dead.header(f"Dead-Letter-{name}") for name in ("Offset", "Omitted")] == [b"0", b"value headers key reason"]


@pytest.mark.parametrize("state", ["paused", "deleted"])
async def test_queue_with_a_missing_dead_letter_stream_delivers_other_records(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    """The dead letter is stored when the stream exists again."""
    monkeypatch.setattr(module, "_DLQ_RETRY_S", 0.1)
    monkeypatch.setattr(module, "_DLQ_S", 1.0)
    await fill(client, 4)
    options = QueueOptions(ack_wait_s=600, max_deliveries=2, dead_letters="dead")
    async with client.queue("jobs", "w", options=options) as queue:
        await (await queue.take(1))[0].reject("poison")
        await (client.admin.pause("dead") if state == "paused" else client.admin.delete_stream("dead"))
        good: list[int] = []
        async with asyncio.timeout(60):
            while len(good) < 3 or not queue.problem:
                jobs = await queue.take(1, timeout_s=0.1)
                good += numbers(jobs)
                await queue.ack(jobs)
            assert good == [1, 2, 3]
            assert "jobs/0 offset 0" in queue.problem
            assert "dead-letter stream dead" in queue.problem
            assert queue.problem in caplog.text
            await (client.admin.resume("dead") if state == "paused" else client.create_stream("dead", "dead"))
            while not queue.counters["buried"]:
                assert await queue.take(1, timeout_s=0.1) == []
        assert [record.value async for record in client.consume("dead", until="end")] == [b"0"]
        assert queue.problem == ""


async def test_queue_close_releases_prefetched_records(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefetchLimit, "ahead", lambda self, now_ns: 8)
    await fill(client, 10)
    async with client.queue("jobs", "w") as queue:
        assert await all_of(queue, 2, Job.ack) == [0, 1]
    async with client.queue("jobs", "w") as queue:
        jobs = await queue.take(10)
        assert numbers(jobs) == list(range(2, 10))
        assert {job.deliveries for job in jobs} == {1}, "nobody has seen them"
        await queue.close()
        await queue.close()
        assert [job async for job in queue] == []


async def test_queue_does_not_deliver_buffered_records_whose_lease_expired(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefetchLimit, "ahead", lambda self, now_ns: 2)
    await fill(client, 3)
    async with client.queue("jobs", "w", options=SHORT) as slow:
        first = await anext(slow)
        while asyncio.get_running_loop().time() * 1e9 < first.until_ns:
            await asyncio.sleep(0.01)
        done: set[int] = set()
        async with asyncio.timeout(60):
            while len(done) < 3:
                job = await anext(slow)
                assert job.deliveries > 1, "those that were taken with the first one are not handed on"
                with contextlib.suppress(LeaseLostError):
                    await job.ack()
                    done.add(job.record.offset)
        assert slow.counters["expired"] >= 2


@pytest.mark.parametrize("timeout_s", [0.0, 5.0])
async def test_queue_close_ends_although_another_task_takes_in_a_loop(client: Client, timeout_s: float) -> None:
    async with client.queue("jobs", "workers") as queue:
        give_up_s = time.monotonic() + 10
        takes = 0

        async def take_on() -> None:
            nonlocal takes
            while time.monotonic() < give_up_s:
                assert await queue.take(10, timeout_s) == []
                takes += 1

        worker = asyncio.create_task(take_on())
        await asyncio.sleep(0.05)
        await queue.close()
        takes = 0
        await until(lambda: takes > 1)
        assert time.monotonic() < give_up_s
        worker.cancel()


async def test_queue_close_releases_records_granted_during_the_close(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(client, 1)
    options = QueueOptions(ack_wait_s=60)
    queue = await client.queue("jobs", "w", options=options)
    real, granted, go_on = client.services.call, asyncio.Event(), asyncio.Event()

    async def slow(service: str, stream: str, command: bytes, **how: Any) -> Any:
        answer = await real(service, stream, command, **how)
        if commands.decode_command(command).HasField("take"):
            granted.set()
            await go_on.wait()
        return answer

    monkeypatch.setattr(client.services, "call", slow)
    taking = asyncio.create_task(queue.take(1))
    await granted.wait()
    closing = asyncio.create_task(queue.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    assert await taking == []
    async with client.queue("jobs", "w", options=options) as other:
        assert numbers(await other.take(1)) == [0]


async def test_queue_skips_deleted_records(client: Client) -> None:
    for number in range(10):
        await client.publish("jobs", b"%d" % number)
    async with client.queue("jobs", "w", options=SHORT) as dead:
        await dead.take(4)
        await client.admin.truncate_before("jobs", 0, 6)
        async with asyncio.timeout(60):
            while (await client.bounds("jobs")).log_start_offset < 6:
                await asyncio.sleep(0.01)
        async with client.queue("jobs", "w") as queue:
            assert await all_of(queue, 4, Job.ack) == [6, 7, 8, 9]
            assert await queue.take(3, timeout_s=0.5) == []


async def test_queue_ack_names_only_jobs_of_the_deleted_stream_as_lost(client: Client) -> None:
    """Both streams have the same name and offsets, and one request may carry the acks of both."""
    await fill(client, 2)
    async with client.queue("jobs", "w") as queue:
        old = await queue.take(2)
        await client.admin.delete_stream("jobs")
        await client.create_stream("jobs", "jobs")
        await fill(client, 2, 7)
        new = await queue.take(2)
        assert (numbers(old), numbers(new)) == ([0, 1], [7, 8])
        with pytest.raises(LeaseLostError) as raised:
            await queue.ack([*old, *new])
        assert numbers(list(raised.value.jobs)) == [0, 1]
        assert await queue.take(2, timeout_s=0.0) == []


@pytest.mark.parametrize(
    "failures", [[UnavailableError("no metadata group"), OutcomeUnknownError("no answer")], [None]], ids=["errors", "silence"]
)
async def test_queue_take_returns_records_of_added_partitions_after_failed_stream_lookups(
    client: Client, monkeypatch: pytest.MonkeyPatch, failures: list[Exception | None]
) -> None:
    """Meanwhile the worker takes records of the known partition."""
    monkeypatch.setattr(module, "STREAM_NS", 20_000_000)
    monkeypatch.setattr(module, "LOOKUP_S", 0.02)
    real, errors, is_failing = MetadataRequests.stream, itertools.cycle(failures), True

    async def stream(requests: MetadataRequests, name: str, *, linearizable: bool = False) -> StreamImage:
        if not is_failing or name != "jobs":
            return await real(requests, name, linearizable=linearizable)
        if (error := next(errors)) is not None:
            raise error
        await asyncio.Event().wait()
        raise AssertionError

    async with client.queue("jobs", "w") as queue:
        await client.admin.add_partitions("jobs", 2)
        monkeypatch.setattr(MetadataRequests, "stream", stream)
        while queue.counters["not looked"] < len(failures):
            assert await queue.take(1, timeout_s=0.02) == []
        await fill(client, 3)
        assert await all_of(queue, 3, Job.ack) == [0, 1, 2]
        is_failing = False
        await client.publish("jobs", b"7", partition=1)
        assert await all_of(queue, 1, Job.ack) == [7]


async def test_queue_of_a_stream_without_replicas_returns_records_after_placement(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, waits = MetadataRequests.stream, 2

    async def stream(requests: MetadataRequests, name: str, *, linearizable: bool = False) -> StreamImage:
        nonlocal waits
        waits -= name == "jobs"
        found = await real(requests, name, linearizable=linearizable)
        return found if waits < 0 or name != "jobs" else dataclasses.replace(found, partitions=())

    await fill(client, 1)
    monkeypatch.setattr(MetadataRequests, "stream", stream)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with client.queue("jobs", "w") as queue:
        assert await all_of(queue, 1, Job.ack) == [0]
    assert loop.time() - began >= 0.1, "it asks every 0.05 s"


async def test_queue_with_start_new_reads_added_partitions_from_their_first_record(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STREAM_NS", 20_000_000)
    await fill(client, 3)
    async with client.queue("jobs", "w", options=QueueOptions(start="new")) as queue:
        assert await queue.take(3, timeout_s=0.0) == []
        await client.admin.add_partitions("jobs", 2)
        await client.publish("jobs", b"7", partition=1)
        assert await all_of(queue, 1, Job.ack) == [7]
        await client.admin.delete_stream("jobs")
        await client.create_stream("jobs", "jobs")
        await client.publish("jobs", b"8")
        assert await all_of(queue, 1, Job.ack) == [8]


async def test_queue_of_a_stream_created_again_with_fewer_partitions_delivers_its_records(client: Client) -> None:
    await client.admin.add_partitions("jobs", 3)
    async with client.queue("jobs", "w") as queue:
        await client.publish("jobs", b"0", partition=0)
        assert await all_of(queue, 1, Job.ack) == [0]  # the worker asks partition 1 next
        await client.admin.delete_stream("jobs")
        await client.create_stream("jobs", "jobs")
        await client.publish("jobs", b"8")
        assert await all_of(queue, 1, Job.ack) == [8]


@pytest.mark.parametrize("by_key", [False, True])
async def test_queue_delivers_from_the_position_of_a_reset_although_a_worker_is_open(client: Client, by_key: bool) -> None:
    await fill(client, 6, key=b"k")
    partition = (await client.stream("jobs")).key(0)
    async with client.queue("jobs", "w", options=QueueOptions(order_by_key=by_key)) as queue:
        assert await all_of(queue, 6, Job.ack) == [0, 1, 2, 3, 4, 5]
        await client.groups.reset("w", {partition: 2})
        (job,) = await queue.take(1, timeout_s=20)
        assert job.record.offset == 2
        with pytest.raises(GroupRejectedError, match="stop them"):
            await client.groups.reset("w", {partition: 0})
        await job.ack()
        assert await all_of(queue, 3, Job.ack) == [3, 4, 5]


async def test_queue_pending_records_are_limited_in_total_and_per_worker(client: Client) -> None:
    await fill(client, 10)
    options = QueueOptions(max_ack_pending=6, max_own_pending=4)
    async with client.queue("jobs", "w", options=options) as one, client.queue("jobs", "w", options=options) as other:
        assert [len(await one.take(9)), len(await other.take(9))] == [4, 2]
        assert await other.take(9, timeout_s=0.0) == []


async def test_queue_releases_granted_records_that_cannot_be_read(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(client, 3)
    async with client.queue("jobs", "w") as queue:

        def unreadable(*_: Any, **__: Any) -> Any:
            raise UnavailableError("no ack arrived")

        with monkeypatch.context() as patched:
            patched.setattr(QueueLog, "records", unreadable)
            with pytest.raises(UnavailableError):
                await queue.take(3)
        jobs = await queue.take(3)
        assert [(number, job.deliveries) for number, job in zip(numbers(jobs), jobs, strict=True)] == [(0, 1), (1, 1), (2, 1)]


async def test_queue_releases_granted_records_when_the_read_is_cancelled(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(client, 3)
    reading = asyncio.Event()

    async def unanswered(*_: Any, **__: Any) -> Any:
        reading.set()
        await asyncio.Event().wait()

    async with client.queue("jobs", "w", options=QueueOptions(ack_wait_s=600)) as queue, asyncio.timeout(40):
        with monkeypatch.context() as patched:
            patched.setattr(QueueLog, "records", unanswered)
            taking = asyncio.create_task(queue.take(3))
            await reading.wait()
            taking.cancel()
            next(
                task for task in asyncio.all_tasks() if task.get_name() == "records of w"
            ).cancel()  # as close() does after a while
            await asyncio.gather(taking, return_exceptions=True)
        async with client.queue("jobs", "w") as other:
            assert numbers(await other.take(3, timeout_s=20)) == [0, 1, 2]


async def test_queue_rejects_invalid_names_and_options(client: Client) -> None:
    for bad in ({"ack_wait_s": 0.01}, {"max_deliveries": 0}, {"ahead": 0}, {"start": "latest"}, {"dead_letters": "a b"}):
        with pytest.raises(ConfigError):
            QueueOptions(**bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidNameError, match="internal"):
        QueueOptions(dead_letters="_groups")
    with pytest.raises(NotFoundError):
        await client.queue("nobody", "w")
    with pytest.raises(NotFoundError):
        await client.queue("jobs", "w", options=QueueOptions(dead_letters="nobody"))
    with pytest.raises(ConfigError, match=r"dead_letters is the stream of the queue itself \(jobs\)"):  # it never ended
        await client.queue("jobs", "w", options=QueueOptions(dead_letters="jobs"))
    await client.create_stream("wild", "wild.*")
    await client.create_stream("silent", "silent", config=StreamConfig(ack_policy=AckPolicy.NONE))
    for stream in ("wild", "silent"):
        with pytest.raises(ConfigError, match=f"Stream {stream} cannot store dead letters"):
            await client.queue("jobs", "w", options=QueueOptions(dead_letters=stream))
    await fill(client, 1)
    async with client.queue("jobs", "w") as queue:
        (job,) = await queue.take(1)
        for work in (job.reject("why"), job.nack(-1.0), queue.take(0), queue.take(10_001)):
            with pytest.raises(ConfigError):
                await work
        await queue.ack([])
    async with client.queue("jobs", "v", options=QueueOptions(dead_letters="dead")) as queue:
        (job,) = await queue.take(1)
        with pytest.raises(ConfigError, match="UTF-8"):
            await job.reject("\ud800")
        await job.ack()


def commands_of(client: Client, monkeypatch: pytest.MonkeyPatch, *, ordered: bool = False) -> list[list[str]]:
    """Return a list that records the parts of each later command. ``ordered``: change each take to one in order of keys."""
    said: list[list[str]] = []
    real = client.services.call

    async def call(service: str, stream: str, command: bytes, **how: Any) -> Any:
        asked = commands.decode_command(command)
        said.append([part for part in ("settle", "take") if asked.HasField(part)])
        if ordered and asked.HasField("take"):
            asked.take.ordered = True
            command = commands.encode_command(asked)
        return await real(service, stream, command, **how)

    monkeypatch.setattr(client.services, "call", call)
    return said


async def test_queue_ack_and_next_take_share_one_request(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefetchLimit, "ahead", lambda self, now_ns: 10)
    await fill(client, 60)
    async with client.queue("jobs", "w") as queue:
        said = commands_of(client, monkeypatch)
        reads: list[int] = []
        real = PartitionReader.fetch

        async def fetch(self: PartitionReader, progress: Any, max_bytes: int | None = None) -> Any:
            reads.extend([progress.next_offset] if progress.stream == "jobs" else ())
            return await real(self, progress, max_bytes)

        monkeypatch.setattr(PartitionReader, "fetch", fetch)
        assert await all_of(queue, 40, Job.ack) == list(range(40))
        assert said.count(["take"]) == 1, "the others came with acknowledgements"
        assert 40 <= len(said) <= 41
        assert said.count(["settle", "take"]) <= 8
        assert len([at for at in reads if at < 60]) <= 3, "read once, not for each take"


async def test_queue_releases_prefetched_records_that_stay_unused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefetchLimit, "ahead", lambda self, now_ns: 5)
    monkeypatch.setattr(module, "UNTOUCHED_S", 0.05)
    await fill(client, 6)
    async with client.queue("jobs", "w", options=QueueOptions(ack_wait_s=600)) as slow, client.queue("jobs", "w") as other:
        assert numbers(await slow.take(1)) == [0]
        rest: list[Job] = []
        async with asyncio.timeout(60):
            while len(rest) < 5:
                rest += await other.take(5)
        assert sorted(numbers(rest)) == [1, 2, 3, 4, 5]
        assert {job.deliveries for job in rest} == {1}, "nobody has seen them"
        assert slow.counters["given back"] == 5


async def test_queue_take_that_is_cancelled_loses_no_records(client: Client) -> None:
    await fill(client, 3)
    async with client.queue("jobs", "w", options=QueueOptions(ack_wait_s=600)) as queue:
        taking = asyncio.create_task(queue.take(3))
        while not any(task.get_name() == "records of w" for task in asyncio.all_tasks()):
            await asyncio.sleep(0)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert [job.deliveries for job in await queue.take(3)] == [1, 1, 1]


async def test_queue_ack_is_stored_if_the_take_in_its_request_is_rejected(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker has enabled the order of keys."""
    monkeypatch.setattr(PrefetchLimit, "ahead", lambda self, now_ns: 10)
    await fill(client, 30)
    async with client.queue("jobs", "w", options=QueueOptions(max_own_pending=3)) as queue:
        jobs = (await queue.take(3))[:2]
        said = commands_of(client, monkeypatch, ordered=True)
        await queue.ack(jobs)
        assert said == [["settle", "take"], ["settle"]]
        await queue.ack(jobs)  # done: else that would be an error
        assert queue.counters["lost"] == 0


async def test_queue_ack_after_a_change_of_leader_sends_no_second_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The take in the first command requires a comparison of the log, which only the next take makes."""
    monkeypatch.setattr(PrefetchLimit, "ahead", lambda self, now_ns: 10)
    options = QueueOptions(max_own_pending=3)
    async with memory_cluster() as cluster, cluster.client() as client, asyncio.timeout(60):
        await asyncio.to_thread(cluster.serve_groups)
        await client.create_stream("jobs", "jobs", replicas=2)
        await fill(client, 30)
        async with client.queue("jobs", "w", options=options) as queue, client.queue("jobs", "w", options=options) as other:
            jobs = await queue.take(3)
            (partition,) = (await client.stream("jobs")).partitions
            (follower,) = set(partition.replicas) - {partition.leader}
            await client.admin.elect_leader("jobs", 0, follower)
            assert numbers(await other.take(3)) == [3, 4, 5]
            said = commands_of(client, monkeypatch)
            for job in jobs:
                await job.ack()
            assert said == [["settle", "take"], ["settle"], ["settle"]]
            jobs = await queue.take(3)
            assert numbers(jobs) == [6, 7, 8]
            await queue.ack(jobs)
            assert said[3:] == [["take"], ["take"], ["settle", "take"]]
            assert queue.counters["lost"] == 0


async def _never_answer(*_: Any) -> Any:
    raise OutcomeUnknownError("no answer")


@pytest.mark.parametrize("fault", ["no nodes", "silent coordinator"])
async def test_queue_iteration_waits_for_a_coordinator_longer_than_one_take(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_COMMAND_S", 0.2)
    options = QueueOptions(read=ReadOptions(patience_s=0.2))
    async with memory_cluster() as cluster, cluster.client() as client, asyncio.timeout(60):
        await asyncio.to_thread(cluster.serve_groups)
        await client.create_stream("jobs", "jobs")
        await fill(client, 2)
        async with client.queue("jobs", "w", options=options) as queue:
            jobs = aiter(queue)
            await (await anext(jobs)).ack()
            with monkeypatch.context() as patched:
                if fault == "no nodes":
                    for node in cluster.nodes:
                        await asyncio.to_thread(cluster.kill, node)
                else:
                    patched.setattr(module, "ask_coordinator", _never_answer)
                with pytest.raises((UnavailableError, OutcomeUnknownError)):
                    await queue.take(1)
                waiting = asyncio.create_task(anext(jobs))
                failed = queue.counters["not brought"]
                await until(lambda: queue.counters["not brought"] >= failed + 3)
                assert not waiting.done()
            await asyncio.to_thread(cluster.heal)
            assert numbers([await waiting]) == [1]


async def test_queue_take_with_an_infinite_timeout_returns_the_first_record(client: Client) -> None:
    async with client.queue("jobs", "w") as queue:
        with pytest.raises(ConfigError, match="timeout_s"):
            await queue.take(timeout_s=float("nan"))
        taking = asyncio.create_task(queue.take(timeout_s=float("inf")))
        await fill(client, 1)
        assert numbers(await taking) == [0]


async def test_queue_at_the_end_pauses_between_reads_that_fail(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = PartitionReader.fetch, itertools.count(1)

    async def fetch(self: PartitionReader, progress: Any, max_bytes: int | None = None) -> Any:
        if progress.stream != "jobs":
            return await real(self, progress, max_bytes)
        next(count)
        raise UnavailableError("nobody")

    async with client.queue("jobs", "w", options=QueueOptions(start="new")) as queue:
        monkeypatch.setattr(PartitionReader, "fetch", fetch)
        assert await queue.take(1, 1.0) == []
        assert 2 < next(count) < 20


async def test_queue_without_long_polls_pauses_between_requests_at_the_end(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, count = client.transport.request, itertools.count(1)

    async def request(*arguments: Any, **more: Any) -> bytes:
        next(count)
        return await real(*arguments, **more)

    async with client.queue("jobs", "workers", options=QueueOptions(start="new", read=ReadOptions(wait_s=0))) as queue:
        monkeypatch.setattr(client.transport, "request", request)
        assert await queue.take(1, 1.0) == []
        assert next(count) < 40
