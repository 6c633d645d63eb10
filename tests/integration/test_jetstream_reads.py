"""JetStream's stateless read API as nats-py asks it, against nodes that answer it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import nats
import pytest
from nats.js.errors import BadRequestError, NotFoundError

from sidecar.dev.cluster import DevCluster
from tests.fuzz import subjects
from tests.integration.conftest import close_bench, open_bench, show

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

FUZZ_REQUESTS = 4_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(3, settings=subjects.SETTINGS, on_line=show) as running:
        yield running


async def test_jetstream_read_requests_return_streams_and_messages(cluster: DevCluster) -> None:
    bench = await open_bench(cluster)
    nc: Any = await nats.connect(cluster.nats_url)
    js = nc.jetstream(domain="liftpy")
    try:
        await bench.client.create_stream("orders", "orders.*", partitions=2)
        await bench.until(lambda: bench.ready("orders"), "orders are led")

        async def answers() -> bool:
            return bool(await js.account_info())

        await bench.until(answers, "the API answers")
        for number in range(6):
            headers = {"Nats-Msg-Id": f"id-{number}", "A": "b"} if number == 1 else None
            await nc.request(f"orders.{'ab'[number % 2]}", b"v%d" % number, timeout=20, headers=headers)
        await check(js, nc)
    finally:
        await nc.close()
        await close_bench(bench)


async def check(js: Any, nc: Any) -> None:
    assert [info.config.name for info in await js.streams_info()] == ["orders", "orders:1"]
    info = await js.stream_info("orders")
    assert (info.state.messages, info.state.first_seq, info.state.last_seq) == (6, 1, 6)
    assert info.config.subjects == ["orders.*"]
    assert await js.find_stream_name_by_subject("orders.b") == "orders"
    for direct in (False, True):
        got = await js.get_msg("orders", 2, direct=direct)
        assert (got.subject, got.seq, got.data, got.headers["A"]) == ("orders.b", 2, b"v1", "b")
        last = await js.get_last_msg("orders", "orders.a", direct=direct)
        assert (last.seq, last.data) == (5, b"v4")
        following = await js.get_msg("orders", 3, direct=direct, next=True, subject="orders.b")
        assert (following.seq, following.data) == (4, b"v3")
        with pytest.raises(NotFoundError):
            await js.get_msg("orders", 7, direct=direct)
        with pytest.raises(NotFoundError):
            await js.get_last_msg("orders", "orders.c", direct=direct)
    with pytest.raises(NotFoundError):
        await js.stream_info("nobody")
    with pytest.raises(BadRequestError):
        await js.add_stream(name="more", subjects=["more"])
    got: list[Any] = []
    inbox = nc.new_inbox()

    async def take(message: Any) -> None:
        got.append(message)

    await nc.subscribe(inbox, cb=take)
    await nc.publish("$JS.liftpy.API.DIRECT.GET.orders", b'{"batch":2,"seq":1,"next_by_subj":"orders.a"}', reply=inbox)
    async with asyncio.timeout(20):
        while not got or "Status" not in (got[-1].headers or {}):
            await asyncio.sleep(0.01)
    assert [message.data for message in got] == [b"v0", b"v2", b""]
    assert got[-1].headers["Status"] == "204"


async def test_requests_with_random_bytes_on_every_subject_make_no_request_handler_fail(cluster: DevCluster) -> None:
    """The short form of ``python -m tests.fuzz.subjects`` [A5, A15]. It is the last test of the module: a node may end."""
    bench = await open_bench(cluster)
    try:
        for stream in (await bench.client.admin.describe_cluster()).image.streams:
            await bench.client.admin.delete_stream(stream)
    finally:
        await close_bench(bench)
    verdict = await subjects.Fuzz(cluster, seed=3, requests=FUZZ_REQUESTS, per_s=2_000).run()
    assert verdict.wrong() == [], verdict.text()
    assert verdict.failed_requests == {}, "each is a defect of its handler, though the node goes on"
    assert {"jetstream", "control_admin", "service_query", "groups", "status"} <= verdict.sent.keys()
