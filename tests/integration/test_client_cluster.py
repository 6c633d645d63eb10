"""The client library against a real cluster of three sidecar processes and a nats-server.

The test cases that the cluster in memory passes as well are in ``tests/conformance/client_cases.py``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import pytest

from liftpy.client import Client, connect
from liftpy.config import AckPolicy
from liftpy.errors import NotFoundError
from sidecar.dev.cluster import DevCluster
from tests.clients import reader
from tests.clients.__main__ import checked
from tests.clients.build import PROGRAMS, READER
from tests.clients.checks import CHECKS
from tests.clients.targets import Ours

pytestmark = pytest.mark.processes
_numbers = count()


@pytest.fixture(scope="module")
def dev() -> Iterator[DevCluster]:
    with DevCluster(3) as cluster:
        yield cluster


@pytest.fixture
async def client(dev: DevCluster) -> AsyncIterator[Client]:
    async with await connect(dev.nats_url, dev.namespace) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"stream{next(_numbers)}"


async def read(client: Client, stream: str, **how: Any) -> list[Any]:
    return [record async for record in client.consume(stream, **{"until": "end", **how})]


async def test_client_uses_a_cached_subject_only_while_its_stream_exists(client: Client, dev: DevCluster, name: str) -> None:
    subject = f"data.{name}"
    async with await connect(dev.nats_url, dev.namespace) as other, asyncio.timeout(60):
        await client.create_stream(name, subject)
        await client.publish(name, b"first")
        await other.admin.delete_stream(name)
        await other.create_stream(f"{name}b", subject)
        for ack in (AckPolicy.ALL, AckPolicy.LEADER):
            with pytest.raises(NotFoundError):
                await client.publish(name, b"of a stream that is gone", ack=ack)
        assert await read(other, f"{name}b") == []
        await other.create_stream(name, f"{subject}.again")
        acked = await client.publish(name, b"second", headers=[("h", "1"), ("g", b"2"), ("h", b"\xff")])
        assert acked is not None
        assert acked.offset == 0
    (record,) = await read(client, name)
    given, (id_name, message_id) = record.headers[:-1], record.headers[-1]
    assert (record.value, given) == (b"second", (("h", b"1"), ("g", b"2"), ("h", b"\xff")))
    assert (id_name, bool(message_id)) == ("Nats-Msg-Id", True), "so that it could be sent again"
    assert (record.header("h"), record.header_values("h"), record.header("x")) == (b"1", [b"1", b"\xff"], None)


async def test_jetstream_publisher_gets_the_acks_that_its_client_library_expects(client: Client, dev: DevCluster) -> None:
    """nats-py, with its own JetStream calls; the others: ``python -m tests.clients``."""
    found = await checked(Ours(dev.nats_url, client), PROGRAMS["nats-py"], many=2000)
    assert len(found) > len(CHECKS) - 3
    assert {check: wrong for check, wrong in found.items() if wrong} == {}


_SCRIPT = """
import sys
import liftpy
from liftpy.client import sync

client = sync.connect(sys.argv[1])
config = liftpy.StreamConfig(retention_age_s=86400.5, min_isr=2)
for _ in range(2):
    client.create_stream("script", "data.script", config=config, exist_ok=True)
try:
    client.create_stream("script", "data.script", config=liftpy.StreamConfig(), exist_ok=True)
except liftpy.AlreadyExistsError as error:
    print(error)
print([client.publish("script", b"%d" % n, expected_last=n - 1, msg_id=f"m{n}").offset for n in range(3)])
try:
    client.publish("script", b"late", expected_last=1)
except liftpy.PublishRejectedError as error:
    print(error.reason)
with client.publisher("script") as publisher:
    for number in range(3, 200):
        publisher.send(b"%d" % number)
consumer = client.consume("script", until="end")
some = [record.offset for _, record in zip(range(50), consumer)]
rest = [record.offset for record in consumer]
print(some + rest == list(range(200)), client.bounds("script").high_watermark)
"""


async def test_script_that_does_not_close_its_client_exits_with_code_zero(dev: DevCluster) -> None:
    script = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SCRIPT, dev.nats_url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    said, errors = await asyncio.wait_for(script.communicate(), 60)
    assert (errors.decode(), script.returncode) == ("", 0)
    assert said.decode().splitlines() == [
        "Stream script already exists with other settings: its min_isr is 2, not 0; its retention_age_s is 86400.5, not 0.0. Choose another name, or change the stream with `liftpy stream alter`.",  # noqa: E501
        "[0, 1, 2]",
        "INCORRECT_OFFSET",
        "True 199",
    ]


@pytest.mark.skipif(
    not READER.is_built, reason="it is not built: `python -m tests.clients.reader` does, and downloads what that needs"
)
async def test_go_reader_from_the_protocol_page_reads_the_same_records_as_the_client(dev: DevCluster, name: str) -> None:
    await reader.check(dev, name)
