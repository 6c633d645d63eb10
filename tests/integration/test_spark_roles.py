"""Spark under the role ``reader``, as ``liftpy permissions`` prints it, on a real nats-server: driver and executors need nothing
else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nkeys
import pytest

from tests.integration.roles import NS, SCOPES, STREAM, SUBJECT, credentials

pytest.importorskip("pyspark")

from liftpy.client import connect
from liftpy.core.wire.permissions import AccessRole, Scope, as_nats_conf, rights_of
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import NatsServer

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(300)]
QUERY_TIMEOUT_S = 120
BY_KEY = Scope(NS, streams=(STREAM,), inbox_prefix="_INBOX_jobs")
"""A second reader, that comes with an nkey."""


class Place:
    """The cluster, its server, and the files that hold the secrets of its users."""

    def __init__(self, server: NatsServer, folder: Path, seed: bytes) -> None:
        self.server = server
        self.key = folder / "seed"
        self.key.write_bytes(seed)
        self.passwords = {role: folder / f"{role.value}.password" for role in SCOPES}
        for role, path in self.passwords.items():
            path.write_text(f"{role.value}-secret\n")
        self.folder = folder

    def options(self, role: AccessRole) -> dict[str, str]:
        """What a user of that role gives Spark."""
        return {
            "nats": self.server.url,
            "namespace": NS,
            "stream": STREAM,
            "patience": "20",
            "nats.user": role.value,
            "nats.passwordFile": str(self.passwords[role]),
            "nats.inboxPrefix": SCOPES[role].inbox_prefix,
        }

    def options_by_key(self) -> dict[str, str]:
        kept = {name: self.options(AccessRole.READER)[name] for name in ("nats", "namespace", "stream", "patience")}
        return {**kept, "nats.nkeySeed": str(self.key), "nats.inboxPrefix": BY_KEY.inbox_prefix}

    async def publish(self, values: list[bytes]) -> None:
        async with (
            await connect(self.server.url, NS, credentials=credentials(AccessRole.PUBLISHER)) as client,
            await client.publisher(STREAM, subject=SUBJECT) as publisher,
        ):
            await (await publisher.send(values[0]))  # alone, so that nothing overtakes it while the stream opens
            for value in values[1:]:
                await publisher.send(value)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("secrets")
    seed = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
    key = nkeys.from_seed(bytearray(seed)).public_key.decode()
    given = {role: as_nats_conf(rights_of(role, scope)) for role, scope in SCOPES.items()}
    users = [f"{{ user: {role.value}, password: {role.value}-secret, {rights} }}" for role, rights in given.items()]
    users.append(f"{{ nkey: {key}, {as_nats_conf(rights_of(AccessRole.READER, BY_KEY))} }}")
    config = "authorization: { users: [\n" + "\n".join(users) + "\n] }\n"
    node = {"LIFTPY_USER": "node", "LIFTPY_PASSWORD": "node-secret"}
    with NatsServer(config=config) as server, DevCluster(3, nats_url=server.url, namespace=NS, settings=node):
        found = Place(server, folder, seed)
        asyncio.run(fill(found))
        yield found


async def fill(place: Place) -> None:
    async with await connect(place.server.url, NS, credentials=credentials(AccessRole.OPERATOR)) as operator:
        await operator.create_stream(STREAM, SUBJECT, ready_s=0)
    await place.publish([b"%d" % i for i in range(2000)])


def stream_into(spark: Any, place: Place, name: str) -> list[tuple[int, bytes]]:
    """One run of a streaming query to the end of the stream; what its output holds then."""
    query = (
        spark.readStream.format("liftpy")
        .options(**place.options_by_key(), startingOffsets="earliest", columns="offset,value")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(place.folder / name / "checkpoint"))
        .option("path", str(place.folder / name / "out"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    rows = spark.read.parquet(str(place.folder / name / "out")).collect()
    return sorted((row["offset"], bytes(row["value"])) for row in rows)


@pytest.mark.long
def test_spark_with_the_reader_role_reads_batches_and_streams_without_a_denied_request(spark: Any, place: Place) -> None:
    said_before = len(place.server.log)  # the publisher asks, in vain, where the stream is while it opens
    frame = (
        spark.read.format("liftpy")
        .options(**place.options(AccessRole.READER), columns="offset,value", minPartitions="4")
        .load()
    )
    rows = sorted((row["offset"], bytes(row["value"])) for row in frame.collect())
    assert rows == [(i, b"%d" % i) for i in range(2000)]
    assert stream_into(spark, place, "jobs") == rows
    asyncio.run(place.publish([b"%d" % i for i in range(2000, 2500)]))
    assert stream_into(spark, place, "jobs") == [(i, b"%d" % i) for i in range(2500)]
    assert "Violation" not in place.server.log[said_before:]


@pytest.mark.parametrize(
    ("role", "changed", "text"),
    [
        (AccessRole.PUBLISHER, {}, r"\[NOT_ALLOWED\] .*publish on acme.info"),
        (AccessRole.STATUS, {}, r"\[NOT_ALLOWED\] .*publish on acme.orders.0.read"),
        (
            AccessRole.READER,
            {"nats.inboxPrefix": "_INBOX"},
            r"\[NOT_ALLOWED\] .*(listen on|subscribe to) _INBOX",
        ),
        (
            AccessRole.READER,
            {"nats.user": "nobody"},
            "rejected the credentials",
        ),
        (AccessRole.READER, {"stream": "out"}, r"\[(NOT_FOUND|NOT_ALLOWED)\]"),
    ],
)
def test_spark_read_without_permission_fails_before_its_patience_ends(
    spark: Any, place: Place, role: AccessRole, changed: dict[str, str], text: str
) -> None:
    began = time.monotonic()
    with pytest.raises(Exception, match=text):
        spark.read.format("liftpy").options(**{**place.options(role), "patience": "60", **changed}).load().collect()
    assert time.monotonic() - began < 45, "it was tried again until the patience was over"
