"""Test the validation of positions, times, ranges and headers at their limits."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import uuid
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from liftpy.client import (
    Client,
    GroupOptions,
    PlacementOptions,
    ProducerOptions,
    PublishOptions,
    QueueOptions,
    ReadOptions,
    Source,
    connect,
)
from liftpy.client.batch_view import BatchSlice
from liftpy.client.positions import parse_start, parse_until
from liftpy.config import AckPolicy
from liftpy.core.base.ids import PartitionKey
from liftpy.core.wire.batch import parse_batch
from liftpy.errors import (
    ConfigError,
    InvalidNameError,
    NotFoundError,
)
from liftpy.testing.memory import memory_cluster
from tests.batches import build_batch
from tests.each import each

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


# ---- places and times ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "seconds"), [("-500ms", -0.5), ("-10s", -10), ("-10m", -600), ("+2h", 7200), ("-1d", -86_400), ("-1.5h", -5400)]
)
def test_relative_start_or_until_time_is_parsed_to_a_point_in_time(text: str, seconds: float) -> None:
    for parse in (parse_start, parse_until):
        assert parse(text, NOW) == NOW + dt.timedelta(seconds=seconds)


# ---- publishing ----------------------------------------------------------------------------------------------------------------


# ---- the edge ------------------------------------------------------------------------------------------------------------------


# ---- range and encoding: checked at the entry --------------------------------------------------------------------------------
OUT_OF_RANGE = [
    datetime(1, 1, 1, tzinfo=UTC), datetime(1677, 9, 20), datetime(2262, 4, 12), datetime(9999, 12, 31, 23, tzinfo=UTC),
    datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5))), datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))),
]  # fmt: skip


@each("moment", [*OUT_OF_RANGE, 1 << 63, -(1 << 63) - 1, True, 1.5, "2026-01-01", None])
async def test_client_methods_with_a_time_outside_64_bit_nanoseconds_raise_config_error(moment: Any) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client.create_stream("orders", "shop.orders")
        await client.publish("orders", b"v")
        with pytest.raises(ConfigError):
            await client.offset_at("orders", 0, moment)
        if moment is None:
            return
        for work in (
            client.admin.purge("orders", 0, keys=[b"k"], before=moment),
            client.admin.truncate_before("orders", 0, moment),
        ):
            with pytest.raises(ConfigError):
                await work
        if not isinstance(moment, str):
            for given in ({"start": moment}, {"until": moment}):
                with pytest.raises(ConfigError):
                    client.consume("orders", **given)
        assert [record.value async for record in client.consume("orders", until="end")] == [b"v"]


@each("start", [timedelta.max, 1 << 70, True, 1.0, "-150000d", "999999999d", b"earliest", [1]])
async def test_consumer_with_an_invalid_start_raises_config_error(start: Any) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client.create_stream("orders", "shop.orders")
        with pytest.raises(ConfigError):
            client.consume("orders", start=start)
        with pytest.raises(ConfigError):
            client.consume_many("orders", start=start)
        with pytest.raises(ConfigError):
            await client.consume("orders").seek(start)


@pytest.mark.parametrize(
    "wanted", [{"subjects": ["caf\udce9"]}, {"subjects": ["\ud800"]}, {"keys": ["text"]}, {"keys": [1]}, {"subjects": [b"x"]}]
)
async def test_consumer_with_an_invalid_filter_raises_config_error(wanted: Any) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client.create_stream("orders", "shop.orders")
        for work in (client.consume, client.consume_many):
            with pytest.raises((ConfigError, InvalidNameError)):
                work("orders", **wanted)
        with pytest.raises((ConfigError, InvalidNameError)):
            await client.admin.purge("orders", 0, **wanted)


async def test_consumer_with_a_negative_start_begins_that_many_records_before_the_end() -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client.create_stream("orders", "shop.orders")
        for number in range(5):
            await client.publish("orders", b"%d" % number)
        assert [r.offset async for r in client.consume("orders", start=-2, until="end")] == [3, 4]


def test_batch_slice_to_arrow_escapes_subjects_that_are_not_utf_8() -> None:
    subjects = ["shop.tea", "shop.caf\udce9", "shop.th\u00e9", ""]
    names = ["a", "caf\udce9", "th\u00e9", "b"]
    for several in (subjects, subjects[1:2], subjects[:1]):
        values = [b"%d" % number for number in range(len(several))]
        headers = [((name, b"h"),) for name in names[: len(several)]]
        piece = BatchSlice.between(parse_batch(build_batch(values, subjects=several, headers=headers)), 0, None)
        assert piece is not None
        rows = piece.to_arrow().to_pylist()
        assert [row["subject"] for row in rows] == [subject.replace("\udce9", r"\xe9") for subject in several]
        assert [row["headers"][0]["key"] for row in rows] == [n.replace("\udce9", r"\xe9") for n in names[: len(several)]]
        assert [row["value"] for row in rows] == values
        assert len(piece.to_pandas()) == len(several)


async def send(client: Client, **fields: Any) -> None:
    """Send one record with a producer."""
    async with client.producer("orders") as producer:
        await producer.send(b"v", **fields)


TOO_LARGE = 1 << 70
NO_TEXT = "caf\udce9"
ODD_VALUES: dict[str, Callable[[Client, str], Any]] = {
    "level of a node's log": lambda client, uid: client.admin.node_log_level(NO_TEXT, "debug", 60.0),
    "name of a stream with more partitions": lambda client, uid: client.admin.add_partitions(NO_TEXT, 4),
    "first LeaderEpoch": lambda client, uid: client.create_stream("more", "shop.more", first_leader_epoch=-1),
    "partition to elect for": lambda client, uid: client.admin.elect_leader("orders", TOO_LARGE),
    "partition to publish to": lambda client, uid: client.publish("orders", b"v", partition=1 << 31),
    "partition of bounds": lambda client, uid: client.bounds("orders", 1 << 31),
    "feature level to check": lambda client, uid: client.admin.feature_levels(TOO_LARGE),
    "feature level": lambda client, uid: client.admin.set_feature_level(-1),
    "rack": lambda client, uid: client.admin.set_node("n1", rack=NO_TEXT),
    "session": lambda client, uid: client.admin.set_session_times(session_s=float("nan")),
    "endless session": lambda client, uid: client.admin.set_session_times(session_s=float("inf")),
    "endless lease": lambda client, uid: client.admin.set_session_times(lease_s=float("inf")),
    "id of a producer": lambda client, uid: client.producer("orders", id=NO_TEXT),
    "partitioner": lambda client, uid: client.producer("orders", partitioner=b"key"),  # type: ignore[arg-type]
    "message id of a command": lambda client, uid: client.services.call("bank", "orders", b"", message_id=NO_TEXT),
    "message id of a command, too long to recognize": lambda client, uid: client.services.call(
        "bank", "orders", b"", message_id="x" * 257
    ),
    "message id of a command as a header": lambda client, uid: client.services.call(
        "bank", "orders", b"", headers={"Nats-Msg-Id": ""}
    ),
    "header of a message": lambda client, uid: client.publish("orders", b"v", headers={NO_TEXT: b"1"}),
    "header of a record of a producer": lambda client, uid: send(client, headers={NO_TEXT: b"1"}),
    "header of a command": lambda client, uid: client.services.call("bank", "orders", b"", headers={"\ud800": b"1"}),
    "text as a command": lambda client, uid: client.services.call("bank", "orders", "pay"),  # type: ignore[arg-type]
    "text as the key of a command": lambda client, uid: client.services.call("bank", "orders", b"", key="k"),  # type: ignore[arg-type]
    "position of a group": lambda client, uid: client.groups.reset("g", {PartitionKey("orders", uid, 0): TOO_LARGE}),
    "partition of a cursor": lambda client, uid: client.cursors.set("c", {PartitionKey("orders", uid, -1): 0}),
    "text as subjects to read": lambda client, uid: client.consume("orders", subjects="ab"),
    "text as subjects of many": lambda client, uid: client.consume_many("orders", subjects="ab"),
    "text as subjects to purge": lambda client, uid: client.admin.purge("orders", 0, subjects="ab"),
    "text as subjects of a group": lambda client, uid: GroupOptions(subjects="ab"),
    "subject of a group": lambda client, uid: GroupOptions(subjects=["a b"]),
    "uid of a cursor": lambda client, uid: client.cursors.set("c", {PartitionKey("orders", NO_TEXT, 0): 0}),
}


NUMBERS: dict[str, Callable[[Client, Any], Any]] = {
    "publish": lambda client, wrong: client.publish("orders", b"v", timeout_s=wrong),
    "query": lambda client, wrong: client.services.query("bank", b"", timeout_s=wrong),
    "partition of a query": lambda client, wrong: client.services.query("bank", b"", partition=wrong),
    "position of a query": lambda client, wrong: client.services.query("bank", b"", at_least=wrong),
    "command": lambda client, wrong: client.services.call("bank", "orders", b"", timeout_s=wrong),
    "partition of a command": lambda client, wrong: client.services.call("bank", "orders", b"", partition=wrong),
    "partition to publish to": lambda client, wrong: client.publish("orders", b"v", partition=wrong),
    "partition of a publisher": lambda client, wrong: client.publisher("orders", wrong),
    "partition at a subject": lambda client, wrong: client.publisher("orders", wrong, subject="shop.orders"),
    "partition of bounds": lambda client, wrong: client.bounds("orders", wrong),
    "count of records": lambda client, wrong: client.consume("orders").getmany(wrong),
    "leaders": lambda client, wrong: client.create_stream("more", "shop.more", ready_s=wrong),
    "new leaders": lambda client, wrong: client.admin.add_partitions("orders", 2, ready_s=wrong),
    "replicas": lambda client, wrong: client.create_stream("more", "shop.more", replicas=wrong),
    "partitions": lambda client, wrong: client.create_stream("more", "shop.more", partitions=wrong),
    "assignment": lambda client, wrong: client.create_stream(
        "more", "shop.more", placement=PlacementOptions(assignment=((wrong, ("n1",)),))
    ),
    "version of settings": lambda client, wrong: client.admin.alter_stream("orders", read_only=True, config_version=wrong),
    "version to pause": lambda client, wrong: client.admin.pause("orders", config_version=wrong),
    "partition to pause": lambda client, wrong: client.admin.pause("orders", [wrong]),
    "weight": lambda client, wrong: client.admin.set_node("n1", weight=wrong),
    "quota": lambda client, wrong: client.admin.set_default_quota(records_per_s=wrong),
    "lease": lambda client, wrong: client.admin.set_session_times(lease_s=wrong),
    "node": lambda client, wrong: client.admin.node_status("n1", wrong),
    "settings of a node": lambda client, wrong: client.admin.node_settings("n1", wrong),
    "duration of a log level": lambda client, wrong: client.admin.node_log_level("n1", "debug", wrong),
    "connection": lambda client, wrong: connect("nats://127.0.0.1:9", timeout_s=wrong),
}


@each("wrong", [math.nan, -1, True, "1", Decimal(1)])
async def test_client_methods_with_a_number_that_is_nan_negative_or_no_number_raise_config_error(wrong: Any) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client.create_stream("orders", "shop.orders")
        for what, call in NUMBERS.items():
            with pytest.raises(ConfigError):
                async with asyncio.timeout(10):
                    await call(client, wrong)
            assert "more" not in {stream.name for stream in await client.admin.list_streams()}, what
        async with client.publisher("orders") as publisher, client.queue("orders", "q") as queue:
            for work in (publisher.send(b"v", timeout_s=wrong), queue.take(wrong), queue.nack([], wrong)):
                with pytest.raises(ConfigError):
                    await work


@each("wrong", [math.nan, True, "1", Decimal(1)])
async def test_reads_with_a_time_to_wait_that_is_nan_or_no_number_raise_config_error(wrong: Any) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client.create_stream("orders", "shop.orders")
        async with client.queue("orders", "q") as queue:
            consumer = client.consume("orders")
            for work in (consumer.getone(wrong), consumer.getmany(1, wrong), queue.take(1, wrong)):
                with pytest.raises(ConfigError):
                    await work


@each("wait_s", [0, -0.1, -math.inf])
async def test_reads_with_a_time_to_wait_at_or_below_0_return_at_once(wait_s: float) -> None:
    """Applications call ``getone(deadline - now)``."""
    async with memory_cluster(1) as cluster, cluster.client() as client, asyncio.timeout(30):
        await asyncio.to_thread(cluster.serve_groups)
        await client.create_stream("orders", "shop.orders")
        for value in (b"a", b"b", b"c"):
            await client.publish("orders", value)
        consumer = client.consume("orders", start="earliest")
        assert [record.value for record in await consumer.getmany(1, 30)] == [b"a"]
        assert [record.value for record in await consumer.getmany(1, wait_s)] == [b"b"]
        assert (await consumer.getone(wait_s)).value == b"c"  # type: ignore[union-attr]
        assert await consumer.getone(wait_s) is None
        assert await consumer.getmany(1, wait_s) == []
        async with client.queue("orders", "q") as queue:
            await queue.ack(await queue.take(3))
            assert await queue.take(1, wait_s) == []


@each("wrong", [math.nan, math.inf, -1, True, "1", 10**400])
@each("options", [PublishOptions(), ProducerOptions(), ReadOptions(), GroupOptions(), QueueOptions()])
def test_options_with_a_number_that_is_not_finite_or_no_number_raise_config_error(options: Any, wrong: Any) -> None:
    numbers = [field.name for field in fields(options) if type(field.default) in (int, float)]
    assert len(numbers) >= 2
    for name in numbers:
        with pytest.raises(ConfigError, match=name):
            replace(options, **{name: wrong})


@each(
    ("name", "low", "high", "step"),
    [("window", 1, 1 << 20, 1), ("window_bytes", 1, 1 << 30, 1), ("timeout_s", 0.01, 600, 0.001),
     ("patience_s", 0, 3600, 0.001), ("overload_patience_s", 0, 3600, 0.001)],
)  # fmt: skip
def test_publish_options_outside_their_bounds_raise_config_error(name: str, low: float, high: float, step: float) -> None:
    for value in (low, high):
        assert getattr(PublishOptions(**{name: value}), name) == value  # type: ignore[arg-type]
    for value in (low - step, high + step):
        with pytest.raises(ConfigError, match=rf"^{name} = .* is outside {low}\.\.{high}\. Choose"):
            PublishOptions(**{name: value})  # type: ignore[arg-type]


async def test_producer_with_positions_that_are_no_offsets_raises_config_error_and_continues() -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        for name in ("orders", "totals"):
            await client.create_stream(name, f"shop.{name}")
        async with client.producer("totals", id="t", source=Source("orders")) as producer, asyncio.timeout(30):
            for wrong in ([0, 0.5], [math.nan] * 2, [0, 1 << 63], [-1, 0], [True, True], [1, 0], ["0", "1"]):
                with pytest.raises(ConfigError):
                    await producer.send_many([b"a", b"b"], positions=wrong)  # type: ignore[arg-type]
            await producer.send_many([b"a", b"b"], positions=[0, 5])
            await producer.flush()
            assert await producer.send_many([], positions=[])


def test_sync_receipt_result_with_timeout_nan_raises_config_error() -> None:
    with memory_cluster(1) as cluster, cluster.sync_client() as client:
        client.create_stream("orders", "shop.orders")
        with client.publisher("orders") as publisher:
            receipt = publisher.send(b"v")
            with pytest.raises(ConfigError):
                receipt.result(math.nan)
            assert receipt.result().offset == 0


async def test_client_methods_with_values_of_a_wrong_type_or_range_raise_config_error() -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await asyncio.to_thread(cluster.serve_groups)
        uid = (await client.create_stream("orders", "shop.orders")).uid
        for what, call in ODD_VALUES.items():
            try:
                await call(client, uid)
            except (ConfigError, InvalidNameError):
                continue
            pytest.fail(f"{what} is not checked")
        async with client.cursor("c", "orders") as cursor:
            with pytest.raises(ConfigError):
                await cursor.commit(TOO_LARGE)


async def _async_function(*_: object) -> int:
    return 0


WRONG_TYPES: dict[str, Callable[[Any], Any]] = {
    "group on_assigned async": lambda client: client.group("g", ["orders"], on_assigned=_async_function),
    "group on_revoked async": lambda client: client.group("g", ["orders"], on_revoked=partial(_async_function, 1)),
    "group on_revoked": lambda client: client.group("g", ["orders"], on_revoked="revoked"),
    "producer partitioner async": lambda client: client.producer("orders", partitioner=_async_function),
    "publish msg_id": lambda client: client.publish("orders", b"v", msg_id=7),
    "publish msg_id None": lambda client: client.publish("orders", b"v", msg_id=None),
    "post msg_id": lambda client: client.publish("orders", b"v", msg_id=b"id", ack=AckPolicy.NONE),
    "call message_id": lambda client: client.services.call("bank", "orders", b"c", message_id=uuid.uuid4()),
    "publisher options": lambda client: client.publisher("orders", options={"window": 1}),
    "producer options": lambda client: client.producer("orders", options=PublishOptions()),
    "producer id": lambda client: client.producer("orders", id=7),
    "consume options": lambda client: client.consume("orders", options={"max_bytes": 4096}),
    "consume subjects": lambda client: client.consume("orders", subjects=None),
    "consume keys": lambda client: client.consume("orders", keys=b"key"),
    "consume_many names": lambda client: client.consume_many(["orders", "pay-*"]),
    "consume_many options": lambda client: client.consume_many("orders", options=GroupOptions()),
    "group streams": lambda client: client.group("billing", [7]),
    "group options": lambda client: client.group("billing", ["orders"], options=QueueOptions()),
    "group read": lambda client: GroupOptions(read={"max_bytes": 4096}),  # type: ignore[arg-type]
    "queue options": lambda client: client.queue("orders", "workers", options={}),
    "queue read": lambda client: QueueOptions(read=GroupOptions()),  # type: ignore[arg-type]
}


@each("what", list(WRONG_TYPES))
async def test_client_method_with_an_argument_of_a_wrong_type_raises_config_error_with_advice(what: str) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client.create_stream("orders", "shop.orders")

        async def call() -> None:
            result = WRONG_TYPES[what](client)
            if hasattr(result, "__await__"):
                await result

        with pytest.raises(ConfigError, match=r"Use (a|[A-Z]\w+)|Give each name"):
            await call()


async def test_group_with_a_hook_that_returns_an_awaitable_raises_config_error_on_reading() -> None:
    """The member dropped the coroutine, so the hook of the application never ran."""
    async with memory_cluster(1) as cluster, cluster.client() as client, asyncio.timeout(30):
        await client.create_stream("orders", "shop.orders")

        def on_assigned(keys: object) -> Any:
            return _async_function(keys)

        async with client.group("g", ["orders"], on_assigned=on_assigned) as group:
            with pytest.raises(ConfigError, match="Invalid on_assigned: it returned an awaitable"):
                await group.take()


async def test_queue_and_producer_with_arguments_of_a_wrong_type_raise_config_error_and_continue() -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client, asyncio.timeout(30):
        await asyncio.to_thread(cluster.serve_groups)
        await client.create_stream("orders", "shop.orders")
        await client.create_stream("dead", "shop.dead")
        async with client.producer("orders") as producer:
            for wrong in ((b"%d" % number for number in range(2)), None, b"text"):
                with pytest.raises(ConfigError, match="Use a list of bytes or None"):
                    await producer.send_many(wrong)  # type: ignore[arg-type]
            await producer.send_many([b"0"])
        async with client.queue("orders", "workers", options=QueueOptions(dead_letters="dead")) as queue:
            (job,) = await queue.take(1)
            for wrong in (job, [job.record], None):
                with pytest.raises(ConfigError, match="Use a list of jobs"):
                    await queue.ack(wrong)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="Use a text"):
                await job.reject(None)  # type: ignore[arg-type]
            await queue.ack([job])


async def test_admin_request_for_a_missing_node_raises_not_found_with_its_name() -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        for asked in (
            client.admin.node_log_level("n9", "debug", 1.0),
            client.admin.node_settings("n9"),
            client.admin.reload_settings("n9"),
        ):
            with pytest.raises(NotFoundError, match=r"no node 'n9'.* n1"):
                await asked


async def test_cursors_describe_of_a_missing_cursor_raises_not_found_with_the_word_cursor() -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await asyncio.to_thread(cluster.serve_groups)
        await client.create_stream("orders", "shop.orders")
        async with client.cursor("c", "orders"):
            pass
        with pytest.raises(NotFoundError, match="no cursor 'nightly'"):
            await client.cursors.describe("nightly")
        with pytest.raises(NotFoundError, match="no group 'billing'"):
            await client.groups.describe("billing")
