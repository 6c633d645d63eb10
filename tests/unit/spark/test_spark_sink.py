"""Test the Spark sink without Spark: options, columns, row order, partitions, and the rows that tasks store."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest

from liftpy.client import Client
from liftpy.client.metadata_requests import MetadataRequests
from liftpy.client.write_epoch import Round
from liftpy.config import AckPolicy, StreamConfig
from liftpy.core.wire.partitioner import partition_of
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError, InvalidNameError, NotFoundError, PublishRejectedError
from liftpy.spark.options import SinkOptions
from liftpy.spark.sink import WriteResult, gather_rows, send_round
from liftpy.spark.sink_rows import as_binary, bytes_of, check_rows, check_schema, in_order, places_of
from liftpy.testing.memory import memory_cluster

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


# ---- options ----------------------------------------------------------------------------------------------------------------
def test_spark_sink_option_names_are_parsed_without_regard_to_case() -> None:
    found = SinkOptions.parse(
        {"path": "out", "checkpointLocation": "/c", "queryName": "q", "nats": "nats://h:1", "patience": "5"}
    )
    assert (found.stream, found.access.servers, found.patience_s) == ("out", "nats://h:1", 5.0)
    assert (found.by_content, found.tombstones, found.write_id) == (True, False, "")
    found = SinkOptions.parse(
        {"STREAM": "out", "writeid": "w", "order": "plan", "nullvalues": "tombstone", "maxTaskBytes": "9"}
    )
    assert (found.stream, found.write_id, found.by_content, found.tombstones) == ("out", "w", False, True)
    assert found.max_task_bytes == 9
    assert SinkOptions.parse({}).stream == ""


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"startingOffsets": "earliest"},
            "'startingOffsets'. It is an option for reading, not for writing. Known options: stream,",
        ),
        ({"writeIds": "x"}, "did you mean 'writeId'"),
        ({"kafka.bootstrap.servers": "x"}, "option of Kafka's sink. Use nats."),
        ({"atomic": "true"}, "The option atomic does not exist"),
        ({"path": "a", "stream": "b"}, "name two streams"),
        ({"stream": "a.b"}, "stream"),
        ({"order": "size"}, "Invalid order = 'size'. Use content or plan."),
        ({"writeId": ""}, "1 to 100 bytes"),
        ({"writeId": "x" * 101}, "1 to 100 bytes"),
        ({"batchId": "7"}, "batchId needs the option writeId"),
        ({"batchId": "-1", "writeId": "x"}, "batchId"),
        ({"maxTaskBytes": "0"}, "maxTaskBytes"),
        ({"nats": "nats://u:p@h"}, "user or password"),
    ],
)
def test_spark_sink_with_invalid_options_raises_config_error(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SinkOptions.parse(given)


THREE_FIELDS = pa.struct([("key", pa.string()), ("value", pa.binary()), ("time", pa.int64())])


# ---- columns ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "stream", "text"),
    [
        ([("value", pa.binary()), ("values", pa.binary())], "s", "Unknown column 'values'; did you mean 'value'"),
        ([("key", pa.binary())], "s", "The column value is missing"),
        ([("value", pa.int64())], "s", "Column value must be binary or string, but it is int64. Cast it."),
        ([("value", pa.binary()), ("partition", pa.int64())], "s", "Column partition must be int, but it is int64"),
        ([("value", pa.binary()), ("headers", pa.string())], "s", "Column headers must be array<.*, but it is string"),
        (
            [("value", pa.binary()), ("headers", pa.list_(pa.struct([("key", pa.string())])))],
            "s",
            "Column headers must be array<.*, but it is list<",
        ),
        (
            [("value", pa.binary()), ("headers", pa.list_(THREE_FIELDS))],
            "s",
            "Column headers must be array<.*, but it is list<",
        ),
        ([("value", pa.binary()), ("value", pa.binary())], "s", "Some columns occur twice"),
        ([("value", pa.binary()), ("stream", pa.string()), ("topic", pa.string())], "s", "the same"),
        ([("value", pa.binary())], "", "The target stream is missing"),
    ],
)
def test_spark_sink_rejects_invalid_schemas(fields: list[tuple[str, pa.DataType]], stream: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_schema(pa.schema(fields), stream=stream)


def rows_of(**columns: Any) -> pa.Table:
    kinds = {"headers": HEADERS, "partition": pa.int32(), "stream": pa.string(), "key": pa.binary(), "value": pa.binary()}
    return as_binary(pa.record_batch({name: pa.array(own, kinds[name]) for name, own in columns.items()}))


def test_spark_sink_with_a_null_in_a_required_column_raises_config_error() -> None:
    with pytest.raises(ConfigError, match=r"1 rows have a null value.* is a tombstone.*nullValues = tombstone"):
        check_rows(rows_of(value=[b"a", None]), stream="s", tombstones=False)
    check_rows(rows_of(value=[b"a", None]), stream="s", tombstones=True)
    with pytest.raises(ConfigError, match="1 rows have null in the column stream"):
        check_rows(rows_of(value=[b"a"], stream=[None]), stream="", tombstones=False)
    check_rows(rows_of(value=[b"a"], stream=[None]), stream="s", tombstones=False)
    for pairs in ([None], [{"key": None, "value": b""}], [{"key": "k", "value": None}]):
        with pytest.raises(ConfigError, match="Some headers are null, or"):
            check_rows(rows_of(value=[b"a"], headers=[pairs]), stream="s", tombstones=False)
    check_rows(rows_of(value=[b"a", b"b"], headers=[None, [{"key": "k", "value": b""}]]), stream="s", tombstones=False)


# ---- order ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(5))
def test_spark_sink_sorts_rows_only_by_their_content(seed: int) -> None:
    rng = random.Random(seed)
    pool = [
        (
            rng.choice([None, b"", b"k", b"kk"]),
            rng.choice([None, b"a", b"b", b""]),
            rng.choice([None, [], ["x"], ["y"], ["x", "y"]]),
        )
        for _ in range(60)
    ]

    def ordered(rows: list[tuple[Any, Any, Any]]) -> list[Any]:
        pairs = [None if names is None else [{"key": name, "value": b"1"} for name in names] for _, _, names in rows]
        table = rows_of(key=[key for key, _, _ in rows], value=[value for _, value, _ in rows], headers=pairs)
        return [(row["key"], row["value"], row["headers"] or []) for row in in_order(table).to_pylist()]

    shuffled = rng.sample(pool, len(pool))
    found = ordered(pool)
    assert found == ordered(shuffled)
    assert sorted(map(repr, found)) == sorted(
        repr((k, v, [{"key": n, "value": b"1"} for n in names or []])) for k, v, names in pool
    )
    keys = [key for key, _, _ in found]
    assert keys == sorted(key for key in keys if key is not None) + [None] * keys.count(None)


def test_spark_sink_selects_the_partition_by_column_then_key_then_round_robin() -> None:
    keys = [b"a", b"bb", None, b"", None, b"ccc", None]
    rows = rows_of(key=keys, value=[b"v"] * 7, partition=[2, None, None, None, 1, None, None])
    assert places_of(rows, 3).tolist() == [2, partition_of(b"bb", 3), 0, partition_of(b"", 3), 1, partition_of(b"ccc", 3), 1]
    assert places_of(rows_of(value=[b"v"] * 4), 3, first=2).tolist() == [2, 0, 1, 2]
    for wrong in (3, -1):
        with pytest.raises(ConfigError, match=rf"1 rows name partitions .* such as {wrong}\..* partitions 0 to 2"):
            places_of(rows_of(value=[b"v", b"w"], partition=[wrong, 0]), 3)


def test_spark_sink_encodes_nulls_and_sliced_arrow_columns_without_hidden_bytes() -> None:
    offsets = pa.array([0, 3, 5], pa.int32()).buffers()[1]
    hidden = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), offsets, pa.py_buffer(b"abcde")])
    column = bytes_of(hidden)
    assert column.column(0, 2).to_list() == [None, b"de"]
    assert column.lengths.tolist() == [0, 2]
    assert bytes_of(pa.array([b"a", b"bb", b"ccc"]).slice(1)).column(0, 2).to_list() == [b"bb", b"ccc"]


# ---- tasks ------------------------------------------------------------------------------------------------------------------
OPTIONS = SinkOptions.parse({"stream": "out", "patience": "5"})


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with memory_cluster() as cluster, cluster.client() as made:
        await made.create_stream("out", "data.out", partitions=2)
        yield made


async def write(client: Client, table: pa.Table | None, round: Round, options: SinkOptions = OPTIONS) -> WriteResult:
    return await send_round(client.transport, MetadataRequests(client.transport, Subjects(), 5.0), options, table, round)


async def held(client: Client, stream: str = "out", partitions: int = 2) -> list[tuple[int, Any, Any]]:
    return [
        (place, record.key, record.value)
        for place in range(partitions)
        async for record in client.consume(stream, place, until="end")
    ]


def some(number: int, count: int = 40) -> list[tuple[bytes, bytes]]:
    return [(b"k%d" % (n % 7), b"%d-%d" % (number, n)) for n in range(count)]


def table_of(rows: list[tuple[bytes, bytes]]) -> pa.Table:
    return rows_of(key=[key for key, _ in rows], value=[value for _, value in rows])


async def test_spark_sink_micro_batch_repeated_in_another_order_is_stored_once(client: Client) -> None:
    rng = random.Random(1)
    for number in range(4):
        for attempt in range(3):
            rows = some(number)
            sent = await write(client, table_of(rng.sample(rows, len(rows))), Round("q", 0, number))
            assert (sent.rows, sent.known) == (40, 40 if attempt else 0)
            assert sum(found.record_count for found in sent.ranges) == (0 if attempt else 40)
    found = await held(client)
    assert Counter((key, value) for _, key, value in found) == Counter(row for number in range(4) for row in some(number))
    assert all(place == partition_of(key, 2) for place, key, _ in found)
    first = [(key, value) for place, key, value in found if place == 0 and value.startswith(b"0-")]
    assert first == sorted(first)


@pytest.mark.parametrize("seed", range(4))
async def test_spark_sink_concurrent_attempts_of_a_task_store_each_row_once(client: Client, seed: int) -> None:
    """Spark runs two attempts with speculation, or after it lost an executor that still runs."""
    rng, wanted = random.Random(seed), Counter[tuple[bytes, bytes]]()
    for number in range(4):
        rows = some(number, 400)

        async def attempt(rows: list[tuple[bytes, bytes]] = rows, number: int = number) -> bool:
            await asyncio.sleep(rng.random() * 0.01)
            try:
                await write(client, table_of(rng.sample(rows, len(rows))), Round("q", 0, number))
            except PublishRejectedError as error:
                if error.reason != "PRODUCER_FENCED":
                    raise
                return False
            return True

        assert any(await asyncio.gather(*(attempt() for _ in range(3))))
        wanted.update(rows)
        assert Counter((key, value) for _, key, value in await held(client)) == wanted


async def test_spark_sink_with_order_plan_stores_rows_in_the_order_of_the_query(client: Client) -> None:
    rows = [(b"k", b"%d" % n) for n in (3, 1, 2)]
    await write(client, table_of(rows), Round("q", 0, 0), SinkOptions.parse({"stream": "out", "order": "plan"}))
    assert [value for _, _, value in await held(client)] == [b"3", b"1", b"2"]


async def test_spark_sink_uses_added_partitions_from_the_next_micro_batch(client: Client) -> None:
    await write(client, in_order(table_of(some(0))).slice(0, 15), Round("q", 0, 0))
    await client.admin.add_partitions("out", 5)
    await write(client, table_of(some(0)), Round("q", 0, 0))
    assert len(await held(client, partitions=5)) == 40
    await write(client, table_of(some(1)), Round("q", 0, 1))
    found = await held(client, partitions=5)
    assert all(place == partition_of(key, 5) for place, key, value in found if value.startswith(b"1-"))
    assert len(found) == 80


async def test_spark_sink_with_a_stream_column_writes_each_row_to_its_stream(client: Client) -> None:
    await client.create_stream("more", "data.more")
    rows = rows_of(value=[b"a", b"b", b"c"], stream=["out", "more", "out"])
    options = SinkOptions.parse({})
    for known in (0, 3):
        assert (await write(client, rows, Round("q", 0, 0), options)).known == known
    assert sorted(value for _, _, value in await held(client)) == [b"a", b"c"]
    assert await held(client, "more", 1) == [(0, None, b"b")]
    with pytest.raises(InvalidNameError):
        await write(client, rows_of(value=[b"a"], stream=["a.b"]), Round("q", 0, 1), options)
    with pytest.raises(NotFoundError):
        await write(client, rows_of(value=[b"a"], stream=["other"]), Round("q", 0, 1), options)


async def test_spark_sink_rejects_a_stream_without_acks(client: Client) -> None:
    await client.create_stream("silent", "data.silent", config=StreamConfig(ack_policy=AckPolicy.NONE))
    with pytest.raises(ConfigError, match="ack policy none"):
        await write(client, table_of(some(0)), Round("q", 0, 0), SinkOptions.parse({"stream": "silent"}))


def test_spark_sink_rows_of_a_task_have_64_bit_offsets() -> None:
    """maxTaskBytes may be more than 2 GiB, and Arrow cannot join such columns with 32-bit offsets."""
    row = {"key": "k", "value": b"v", "headers": [{"key": "h", "value": b"1"}], "topic": "out"}
    schema = pa.schema({"key": pa.string(), "value": pa.binary(), "headers": HEADERS, "topic": pa.string()})
    rows = gather_rows([pa.RecordBatch.from_pylist([row, {**row, "headers": None}], schema)] * 2, SinkOptions.parse({}))
    assert rows is not None
    assert rows["headers"].to_pylist() == [row["headers"], None] * 2
    pairs = rows.field("headers").type
    kinds = [*(rows.field(name).type for name in ("key", "value", "stream")), *(one.type for one in pairs.value_type)]
    assert pa.types.is_large_list(pairs)
    assert [pa.types.is_large_binary(one) or pa.types.is_large_string(one) for one in kinds] == [True] * 5


def test_spark_sink_task_buffer_is_bounded_in_bytes() -> None:
    batch = pa.record_batch({"value": pa.array([b"x" * 100] * 10)})
    assert gather_rows([], OPTIONS) is None
    assert gather_rows([batch.slice(0, 0)], OPTIONS) is None
    found = gather_rows([batch, batch], OPTIONS)
    assert found is not None
    assert found.num_rows == 20
    small = SinkOptions.parse({"stream": "out", "maxTaskBytes": str(batch.nbytes + 1)})
    assert gather_rows([batch], small) is not None
    exact = SinkOptions.parse({"stream": "out", "maxTaskBytes": str(batch.nbytes)})
    assert gather_rows([batch], exact) is not None
    with pytest.raises(ConfigError, match="more than maxTaskBytes"):
        gather_rows([batch, batch], small)
