"""Test the writers that Spark calls, on a cluster in memory: errors, failed inputs [A14], changed tasks [A17]."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark import TaskContext
from pyspark.messages import SparkSocketMessageReceiver
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.sql.types import StructType

from liftpy.client import Client
from liftpy.client.consumer import PartitionReader
from liftpy.client.metadata_requests import MetadataRequests
from liftpy.client.partition_sender import PartitionSender
from liftpy.client.producer import Producer
from liftpy.config import ReplicationConfig
from liftpy.core.metadata.image import StreamImage
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import RecordColumns
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import UnavailableError
from liftpy.spark import sink
from liftpy.spark.failures import SourceError
from liftpy.spark.sink import LiftStreamWriter, LiftWriter, Range, SinkCommitMessage, WriteResult
from liftpy.spark.source import LiftDataSource
from liftpy.testing.memory import memory_cluster

SCHEMA = StructType().add("key", "binary").add("value", "binary")
SCHEMA_OF_BATCHES = pa.schema([("key", pa.binary()), ("value", pa.binary())])
END_OF_STREAM = (-4).to_bytes(4, "big", signed=True)
TASKS = Callable[..., None]


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """Yield a client of a cluster with the stream ``out``, whose partition has memory for ten producers."""
    loop = asyncio.get_running_loop()
    config = ReplicationConfig(partition_producer_bytes=20_000)

    async with memory_cluster(config=config) as cluster, cluster.client() as made:
        await made.create_stream("out", "data.out")

        async def transport(_: float) -> Any:
            return made.transport

        def call(work: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
            assert timeout_s > 0
            return asyncio.run_coroutine_threadsafe(work, loop).result(30)

        link = SimpleNamespace(transport=transport, call=call, subjects=Subjects())
        monkeypatch.setattr(sink, "link_to", lambda access: link)
        yield made


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> TASKS:
    def of(query: str | None = "query", batch: int | None = 0, part: int = 0, attempt: int = 0, **settings: str) -> None:
        known = {sink.QUERY_ID: query, sink.BATCH_ID: None if batch is None else str(batch)}
        known |= {name.replace("_", "."): value for name, value in settings.items()}
        context = SimpleNamespace(
            getLocalProperty=known.get, partitionId=lambda: part, attemptNumber=lambda: attempt, taskAttemptId=lambda: 9
        )
        monkeypatch.setattr(TaskContext, "get", lambda: context)

    return of


def source(**options: str) -> LiftDataSource:
    return LiftDataSource(CaseInsensitiveDict({"path": "out", "checkpointLocation": "/c", "queryName": "q", **options}))


def batches(*values: bytes) -> list[pa.RecordBatch]:
    """Return one Arrow batch per row."""
    return [pa.record_batch([pa.array([b"k"]), pa.array([value])], schema=SCHEMA_OF_BATCHES) for value in values]


def run_task(
    writer: Any,
    given: Iterable[pa.RecordBatch],
    end: bytes | None = END_OF_STREAM,
    buffer_bytes: int = 65536,
    schema: pa.Schema = SCHEMA_OF_BATCHES,
) -> Any:
    """Call ``write`` as Spark's worker does: the input comes over a socket. ``end``: what the JVM writes behind Arrow's own end; None:
    the input fails behind ``given``, so that the JVM ends the stream there."""
    jvm, worker = socket.socketpair()
    with jvm, worker:
        infile = os.fdopen(os.dup(worker.fileno()), "rb", buffer_bytes)
        message_receiver = SparkSocketMessageReceiver(infile)  # as in the worker, found by whoever looks
        with jvm.makefile("wb") as pipe:
            stream = pa.ipc.new_stream(pipe, schema)
            for one in given:
                stream.write_batch(one)
            if end is not None:
                stream.close()
                pipe.write(end)
        jvm.shutdown(socket.SHUT_WR)
        written = writer.write(ArrowStreamSerializer().load_stream(infile))
        assert infile.read() == end, "the mark is left for Spark's worker"
        assert message_receiver is not None
        return written


async def write(writer: Any, *values: bytes) -> SinkCommitMessage:
    through = CloudPickleSerializer()
    pickled = through.loads(through.dumps(writer))
    message = await asyncio.to_thread(run_task, pickled, batches(*values))
    again = through.loads(through.dumps(message))
    assert isinstance(again, SinkCommitMessage)
    assert again == message
    return again


async def held(client: Client) -> list[bytes | None]:
    return [record.value async for record in client.consume("out", until="end")]


async def test_spark_sink_streaming_query_stores_each_row_once(
    client: Client, task: TASKS, caplog: pytest.LogCaptureFixture
) -> None:
    writer = source().streamWriter(SCHEMA, False)
    assert isinstance(writer, LiftStreamWriter)
    task(part=3, attempt=1)
    first = await write(writer, b"b", b"a")
    assert first == SinkCommitMessage("query", 0, 3, 1, WriteResult(2, 0, (Range("out", 0, 0, 2, 2),)))
    task(part=3, attempt=2)
    again = await write(writer, b"a", b"b")
    assert (again.sent, again.attempt) == (WriteResult(2, 2), 2)
    task(batch=1, part=3)
    await write(writer, b"a")
    assert await held(client) == [b"a", b"b", b"a"]
    with caplog.at_level(logging.INFO):
        await asyncio.to_thread(writer.commit, [first, again, None], 0)
    assert "micro-batch 0: 2 tasks (query), 4 rows, 2 of them stored before; out/0 [0, 2): 2" in caplog.text
    writer.abort([None, None], 0)
    assert len(await held(client)) == 3


async def test_spark_sink_task_repeated_without_rows_raises_diverged(client: Client, task: TASKS) -> None:
    writer = source().streamWriter(SCHEMA, False)
    task()
    assert (await write(writer)).sent == WriteResult()
    await write(writer, b"a")
    with pytest.raises(SourceError, match=r"\[DIVERGED_PRODUCER\].*1 records are already stored, but this attempt has 0"):
        await write(writer)


async def test_spark_sink_micro_batch_repeated_with_other_rows_raises_diverged(client: Client, task: TASKS) -> None:
    writer = source().streamWriter(SCHEMA, False)
    task(batch=7, part=2)
    await write(writer, b"a", b"b")
    with pytest.raises(
        SourceError, match=r"\[DIVERGED_PRODUCER\].*Batch 7 of query, task 2, .*not deterministic.*new checkpoint"
    ):
        await write(writer, b"a", b"c")
    task(batch=6, part=2)
    with pytest.raises(
        SourceError, match=r"\[PRODUCER_FENCED\].*Batch 6 of query, task 2: .*the checkpoint is older than the stream"
    ):
        await write(writer, b"a")
    assert await held(client) == [b"a", b"b"]


async def test_spark_sink_repeated_batch_write_stores_rows_once_only_with_a_write_id(client: Client, task: TASKS) -> None:
    task(query=None, batch=None)
    writer = source().writer(SCHEMA, False)
    assert isinstance(writer, LiftWriter)
    for _ in range(2):
        assert (await write(writer, b"b", b"a")).sent.rows == 2
    assert await held(client) == [b"b", b"a"] * 2
    named = source(writeId="load-1").writer(SCHEMA, False)
    assert [(await write(named, b"d", b"c")).sent.known for _ in range(2)] == [0, 2]
    assert (await held(client))[4:] == [b"c", b"d"]
    writer.commit([None])  # type: ignore[attr-defined]
    writer.abort([None])


async def test_spark_sink_numbered_batch_writes_store_each_batch_once_with_one_producer(client: Client, task: TASKS) -> None:
    """As a function of foreachBatch does, which Spark calls again for a micro-batch whose end it does not know."""
    task(query=None, batch=None)
    for number in range(12):
        for _ in range(2):
            await write(source(writeId="copy", batchId=str(number)).writer(SCHEMA, False), b"row %d" % number)
    assert await held(client) == [b"row %d" % number for number in range(12)]
    with pytest.raises(SourceError, match=r"\[PRODUCER_FENCED\].*Batch 10 of write:copy, task 0: "):
        await write(source(writeId="copy", batchId="10").writer(SCHEMA, False), b"row 10")
    with pytest.raises(SourceError, match=r"\[DIVERGED_PRODUCER\].*Batch 11 of write:copy, task 0, "):
        await write(source(writeId="copy", batchId="11").writer(SCHEMA, False), b"another row")


async def test_spark_sink_rejects_invalid_writes_before_storing_rows(client: Client, task: TASKS) -> None:
    for overwrite, schema, options, text in (
        (True, SCHEMA, {}, r"\[CONFIG\] A stream cannot be overwritten"),
        (
            False,
            StructType().add("val", "binary"),
            {},
            r"\[CONFIG\] Unknown column 'val'; did you mean 'value'",
        ),
        (
            False,
            StructType().add("value", "binary").add("timestamp", "timestamp"),
            {},
            r"\[CONFIG\] Unknown column 'timestamp'",
        ),
        (
            False,
            StructType().add("value", "interval year"),
            {},
            r"\[CONFIG\] A column has a type that Arrow lacks: .*Cast or drop",
        ),
        (
            False,
            SCHEMA,
            {"maxOffsetsPerTrigger": "5"},
            r"\[CONFIG\] Unknown option 'maxoffsetspertrigger'. It is an option for reading",
        ),
    ):
        for make in (source(**options).writer, source(**options).streamWriter):
            with pytest.raises(SourceError, match=text):
                make(schema, overwrite)
    with pytest.raises(SourceError, match="writeId is for batch writes"):
        source(writeId="x").streamWriter(SCHEMA, False)
    writer = source().streamWriter(SCHEMA, False)
    task(query=None)
    with pytest.raises(SourceError, match="id of this micro-batch"):
        await write(writer, b"a")
    task()
    nulls = pa.record_batch([pa.array([b"k"]), pa.array([None], pa.binary())], schema=SCHEMA_OF_BATCHES)
    with pytest.raises(SourceError, match=r"\[CONFIG\] 1 rows have a null value"):
        await asyncio.to_thread(run_task, writer, [nulls])
    with pytest.raises(SourceError, match=r"\[NOT_FOUND\]"):
        await write(source(path="other").streamWriter(SCHEMA, False), b"a")
    assert await held(client) == []


@pytest.mark.parametrize("end", [None, b"", END_OF_STREAM[:3], b"\xff\xff\xff\xff"])
async def test_spark_sink_task_whose_input_fails_stores_none_of_its_rows(
    client: Client, task: TASKS, end: bytes | None
) -> None:
    task(part=1)
    named = source(writeId="load-1").writer(SCHEMA, False)
    streaming = source().streamWriter(SCHEMA, False)
    for writer in (streaming, named):
        for given in (batches(b"a", b"b"), []):
            with pytest.raises(SourceError, match=r"\[INPUT_FAILED\]"):
                await asyncio.to_thread(run_task, writer, given, end)
    assert await held(client) == []
    for writer in (streaming, named):
        assert (await write(writer, b"a", b"b", b"c")).sent.rows == 3
    assert await held(client) == [b"a", b"b", b"c"] * 2
    with pytest.raises(SourceError, match=r"\[INPUT_FAILED\]"):  # at least once: what came may be stored, the task fails
        await asyncio.to_thread(run_task, source().writer(SCHEMA, False), batches(b"d"), end)


@pytest.mark.parametrize("beyond", range(5))
async def test_spark_sink_task_stores_its_rows_if_the_end_mark_is_already_buffered(
    client: Client, task: TASKS, beyond: int
) -> None:
    task()
    whole = io.BytesIO()
    with pa.ipc.new_stream(whole, SCHEMA_OF_BATCHES) as stream:
        for one in batches(b"a"):
            stream.write_batch(one)
    size = len(whole.getvalue()) + beyond
    await asyncio.to_thread(run_task, source().streamWriter(SCHEMA, False), batches(b"a"), END_OF_STREAM, size)
    assert await held(client) == [b"a"]


@pytest.mark.parametrize("streaming", [True, False])
async def test_spark_sink_micro_batch_repeated_with_fewer_tasks_raises_tasks_changed(
    client: Client, task: TASKS, streaming: bool
) -> None:
    """[A17]: the lost tasks' records are there twice."""
    batch = 0
    writer = source().streamWriter(SCHEMA, False) if streaming else source(writeId="load").writer(SCHEMA, False)

    async def commit(*messages: SinkCommitMessage) -> None:
        await asyncio.to_thread(writer.commit, list(messages), *([batch] if streaming else []))

    if streaming:
        task(batch=0, part=7)  # more tasks in the micro-batch before are no matter
        await write(writer, b"before")
        batch = 1
    for part in (1, 2):  # task 0 of three fails before it has stored anything
        task(batch=batch, part=part)
        await write(writer, b"row %d" % part)
    task(batch=batch, part=0)
    same = [await write(writer, b"row 0")]
    for part in (1, 2):
        task(batch=batch, part=part)
        same.append(await write(writer, b"row %d" % part))
    await commit(*same)
    for _ in range(2):  # the number has changed; and again, when nothing is new
        with pytest.raises(
            SourceError,
            match=r"\[TASKS_CHANGED\].*at least 3 tasks and repeated with 1.*adaptive.streaming.stateless.enabled=false",
        ):
            await commit(same[0])


async def test_spark_sink_with_a_stream_column_repeated_with_fewer_tasks_raises_tasks_changed(
    client: Client, task: TASKS
) -> None:
    """All rows of the last run are stored before, so only the rows name the stream."""
    options = LiftDataSource(CaseInsensitiveDict({}))
    writer = options.streamWriter(StructType().add("stream", "string").add("value", "binary"), False)
    schema = pa.schema([("stream", pa.string()), ("value", pa.binary())])
    for part in (1, 0, 0):
        task(part=part)
        rows = pa.record_batch([pa.array(["out"]), pa.array([b"row %d" % part])], schema=schema)
        sent = await asyncio.to_thread(run_task, writer, [rows], schema=schema)
    assert sent.sent == WriteResult(1, 1)
    with pytest.raises(SourceError, match=r"\[TASKS_CHANGED\]"):
        await asyncio.to_thread(writer.commit, [sent], 0)


@pytest.mark.parametrize("later", [0, 5])
async def test_spark_sink_stream_recreated_within_a_micro_batch_raises_not_found(
    client: Client, task: TASKS, later: int
) -> None:
    """The new stream lacks the records of the first task. When Spark repeats the micro-batch, it gets all of them."""
    await client.publish("out", b"before")
    writer = source().streamWriter(SCHEMA, False)
    task(part=0)
    sent = [await write(writer, b"row 0")]
    await client.admin.delete_stream("out")
    await client.create_stream("out", "data.out")
    for _ in range(later):
        await client.publish("out", b"other")
    task(part=1)
    sent.append(await write(writer, b"row 1"))
    with pytest.raises(SourceError, match=r"^\[NOT_FOUND\] Stream out was deleted and created again while batch 0"):
        await asyncio.to_thread(writer.commit, sent, 0)
    for part in (0, 1):
        task(part=part, attempt=1)
        sent[part] = await write(writer, b"row %d" % part)
    await asyncio.to_thread(writer.commit, sent, 0)
    assert sorted(await held(client)) == [*[b"other"] * later, b"row 0", b"row 1"]


@pytest.mark.parametrize("is_created_again", [True, False])
async def test_spark_sink_stream_deleted_within_a_write_without_write_id_raises_not_found(
    client: Client, task: TASKS, is_created_again: bool
) -> None:
    """The rows of the first task are lost."""
    writer = source().writer(SCHEMA, False)
    sent = []
    for part in (0, 1):
        task(part=part)
        sent.append(await write(writer, b"row %d" % part))
        if is_created_again and part == 0:
            await client.admin.delete_stream("out")
            await client.create_stream("out", "data.out")
    if not is_created_again:
        await client.admin.delete_stream("out")
    with pytest.raises(SourceError, match=r"^\[NOT_FOUND\]"):
        await asyncio.to_thread(writer.commit, sent)


@pytest.mark.parametrize(("records", "is_found"), [(4, True), (10, False)])
async def test_spark_sink_search_for_records_of_lost_tasks_reads_the_last_four_mib_of_the_log(
    client: Client, task: TASKS, records: int, is_found: bool
) -> None:
    writer = source().streamWriter(SCHEMA, False)
    task(part=1)
    await write(writer, b"row 1")
    for _ in range(records):
        await client.publish("out", bytes(600_000))
    task(part=0)
    sent = await write(writer, b"row 0")
    found = pytest.raises(SourceError, match=r"\[TASKS_CHANGED\]") if is_found else contextlib.nullcontext()
    with found:
        await asyncio.to_thread(writer.commit, [sent], 0)


async def test_spark_sink_micro_batch_with_a_lost_ack_finds_records_of_lost_tasks(
    client: Client, task: TASKS, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that knows only the offsets of the newest batches answers -1 for earlier ones that are sent again."""
    writer = source().streamWriter(SCHEMA, False)
    task(part=1)
    await write(writer, b"row 1")
    task(part=0)
    process_answer = PartitionSender.process_answer

    def repeated(self: Any, sequence: int, attempt: int, message: Any) -> None:
        ack = frames.decode(message.data, client_pb2.Ack)
        ack.duplicate, ack.offset = True, -1
        process_answer(self, sequence, attempt, SimpleNamespace(data=frames.encode(ack), headers=None))

    monkeypatch.setattr(PartitionSender, "process_answer", repeated)
    sent = await write(writer, b"row 0")
    assert sent.sent.ranges == ()
    with pytest.raises(SourceError, match=r"\[TASKS_CHANGED\]"):
        await asyncio.to_thread(writer.commit, [sent], 0)


async def test_spark_sink_search_for_records_of_lost_tasks_reads_several_partitions_at_once(
    client: Client, task: TASKS, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.admin.add_partitions("out", 40)
    reading, most, total = 0, 0, 0
    fetch = PartitionReader.fetch

    async def counted(self: PartitionReader, progress: Any) -> Any:
        nonlocal reading, most, total
        reading, total = reading + 1, total + 1
        most = max(most, reading)
        await asyncio.sleep(0.001)
        try:
            return await fetch(self, progress)
        finally:
            reading -= 1

    for partition in range(40):
        await client.publish("out", b"other", partition=partition)
    writer = source().streamWriter(SCHEMA, False)
    task()
    sent = await write(writer, b"row 0")
    monkeypatch.setattr(PartitionReader, "fetch", counted)
    await asyncio.to_thread(writer.commit, [sent], 0)
    assert total >= 39
    assert 2 <= most <= 16


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("begun", "now"),
    [
        ({"spark_master": "local[4]"}, {"spark_master": "local[1]"}),
        ({"spark_master": "local[1]"}, {"spark_master": "local[4]"}),
        ({"spark_sql_shuffle_partitions": "8"}, {}),
        ({}, {"spark_sql_adaptive_enabled": "false"}),
        ({"spark_executor_instances": "2"}, {"spark_executor_instances": "3"}),
    ],
)
async def test_spark_sink_micro_batch_repeated_with_other_task_settings_stores_nothing(
    client: Client, task: TASKS, streaming: bool, begun: dict[str, str], now: dict[str, str]
) -> None:
    writer = source().streamWriter(SCHEMA, False) if streaming else source(writeId="load").writer(SCHEMA, False)
    for part in (1, 2):  # task 0 of three fails before it has stored anything
        task(part=part, **begun)
        await write(writer, b"row %d" % part)
    stored = await held(client)
    for part in (0, 3):
        task(part=part, **now)
        with pytest.raises(SourceError, match=r"\[TASKS_CHANGED\].*adaptive.streaming.stateless.enabled=false"):
            await write(writer, b"row 0", b"row 1", b"row 2")
        assert await held(client) == stored
    task(part=0, **begun)
    await write(writer, b"row 0")
    assert sorted(await held(client)) == [b"row 0", b"row 1", b"row 2"]
    if streaming:
        task(batch=1, part=0, **now)
        await write(writer, b"the next batch")


async def test_spark_sink_task_outside_a_spark_worker_is_rejected(client: Client, task: TASKS) -> None:
    task()
    with pytest.raises(SourceError, match="not show where the input"):
        await asyncio.to_thread(source().streamWriter(SCHEMA, False).write, iter(batches(b"a")))
    assert await held(client) == []


@pytest.fixture
def stale_metadata(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function. After its call, a controller that is behind describes only partition 0 of each stream."""
    current = MetadataRequests.stream

    async def older(self: MetadataRequests, name: str, *, linearizable: bool = False) -> StreamImage:
        image = await current(self, name, linearizable=linearizable)
        return image if linearizable else replace(image, partitions=image.partitions[:1])

    return lambda: monkeypatch.setattr(MetadataRequests, "stream", older)


@pytest.mark.parametrize("rows", [1, 20])
async def test_spark_sink_task_repeated_with_an_older_number_of_partitions_stores_each_row_once(
    client: Client, task: TASKS, stale_metadata: Callable[[], None], rows: int
) -> None:
    """With one row, none of the partitions that the controller describes has records of the micro-batch."""
    await client.admin.add_partitions("out", 4)
    given = [pa.record_batch([pa.array([b"%d" % n for n in range(1, 1 + rows)])] * 2, schema=SCHEMA_OF_BATCHES)]
    writer = source().streamWriter(SCHEMA, False)
    task()
    await asyncio.to_thread(run_task, writer, given)
    stale_metadata()
    task(attempt=1)
    sent = await asyncio.to_thread(run_task, writer, given)
    assert (sent.sent.rows, sent.sent.known) == (rows, rows)


async def test_spark_sink_commit_with_an_older_number_of_partitions_finds_records_of_lost_tasks(
    client: Client, task: TASKS, stale_metadata: Callable[[], None]
) -> None:
    """[A17]: the records of the lost task are in a partition that the controller does not describe."""
    await client.admin.add_partitions("out", 4)
    row = pa.record_batch([pa.array([b"1"])] * 2, schema=SCHEMA_OF_BATCHES)
    writer = source().streamWriter(SCHEMA, False)
    task(part=1)
    await asyncio.to_thread(run_task, writer, [row])
    stale_metadata()
    task(part=0)
    sent = await asyncio.to_thread(run_task, writer, [row])
    with pytest.raises(SourceError, match=r"\[TASKS_CHANGED\]"):
        await asyncio.to_thread(writer.commit, [sent], 0)


async def test_spark_sink_micro_batch_repeated_with_another_option_order_stores_nothing(
    client: Client, task: TASKS, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows without a key would go to other partitions, and be stored twice before another partition finds the difference."""
    await client.create_stream("pair", "data.pair", partitions=2)
    send = Producer.send_columns

    async def send_without_leader_0(self: Producer, columns: RecordColumns, *, partition: int) -> Any:
        if partition:
            return await send(self, columns, partition=partition)

        async def fail() -> None:
            raise UnavailableError("The leader of pair/0 does not answer.")

        return fail()

    rows = pa.record_batch([pa.array([None, None], pa.binary()), pa.array([b"z", b"a"])], schema=SCHEMA_OF_BATCHES)

    async def write_in(order: str) -> Any:
        return await asyncio.to_thread(run_task, source(path="pair", order=order).streamWriter(SCHEMA, False), [rows])

    async def held() -> list[list[bytes | None]]:
        return [[record.value async for record in client.consume("pair", number, until="end")] for number in range(2)]

    for first, other in (("plan", "content"), ("content", "plan")):
        task(query=first)
        with monkeypatch.context() as patch:
            patch.setattr(Producer, "send_columns", send_without_leader_0)
            with pytest.raises(SourceError, match="leader of pair/0"):
                await write_in(first)
        stored = await held()
        with pytest.raises(SourceError, match=rf"\[TASKS_CHANGED\].*This task stored nothing.*order={other}"):
            await write_in(other)
        assert await held() == stored
        assert (await write_in(first)).sent == WriteResult(2, 1, (Range("pair", 0, len(stored[0]), len(stored[0]) + 1, 1),))
