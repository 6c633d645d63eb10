"""Users whose rights stand in JWTs, as ``nsc`` makes them, on a real nats-server: a cluster, clients and Spark under their roles.

And Spark with a token, which knows no roles: whoever has it may do everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from liftpy.client import Client, Credentials, connect
from liftpy.core.wire.permissions import AccessRole, Permissions, rights_of
from liftpy.errors import NotAllowedError
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import NatsServer
from tests.integration.operator_mode import find_nsc, made_by_nsc, made_here
from tests.integration.roles import NS, SCOPES, STREAM, SUBJECT

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]
QUERY_TIMEOUT_S = 120
VALUES = [b"%d" % number for number in range(500)]
TOKEN = "a-token-of-all"
MAKERS: dict[str, Callable[[Mapping[str, Permissions], Path], str]] = {"made here": made_here, "made by nsc": made_by_nsc}
RIGHTS = {role.value: rights_of(role, scope) for role, scope in SCOPES.items()}


@dataclass(frozen=True)
class Place:
    """A server, a node, and a stream that holds ``VALUES``. ``options``: how Spark comes in."""

    server: NatsServer
    folder: Path
    options: dict[str, str]

    async def client(self, role: AccessRole) -> Client:
        """With the creds file of that role."""
        scope, creds = SCOPES[role], str(self.folder / f"{role.value}.creds")
        access = Credentials(creds_file=creds, inbox_prefix=scope.inbox_prefix, principal=scope.principal)
        return await connect(self.server.url, NS, credentials=access)


async def fill(operator: Client, publisher: Client) -> None:
    await operator.create_stream(STREAM, SUBJECT)
    async with publisher.publisher(STREAM, subject=SUBJECT) as sender:
        for value in VALUES:
            await sender.send(value)


@pytest.fixture(scope="module", params=list(MAKERS))
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if MAKERS[request.param] is made_by_nsc and find_nsc() is None:
        pytest.skip(
            "there is no nsc on the PATH (https://github.com/nats-io/nsc); what it is told is in tests/unit/wire/test_permissions.py"
        )
    folder = tmp_path_factory.mktemp("creds")
    config = MAKERS[request.param](RIGHTS, folder)
    node = {"LIFTPY_CREDS_FILE": str(folder / "node.creds")}
    options = {"nats.creds": str(folder / "reader.creds"), "nats.inboxPrefix": SCOPES[AccessRole.READER].inbox_prefix}
    with NatsServer(config=config) as server, DevCluster(1, nats_url=server.url, namespace=NS, settings=node):
        found = Place(server, folder, options)

        async def begin() -> None:
            async with (
                await found.client(AccessRole.OPERATOR) as operator,
                await found.client(AccessRole.PUBLISHER) as publisher,
            ):
                await fill(operator, publisher)

        asyncio.run(begin())
        yield found


def read_by_spark(spark: Any, place: Place) -> None:
    """In a batch, and as a stream."""
    options = {"nats": place.server.url, "namespace": NS, "stream": STREAM, "columns": "offset,value", **place.options}
    expected = list(enumerate(VALUES))
    batch = spark.read.format("liftpy").options(**options).load().collect()
    assert sorted((row["offset"], bytes(row["value"])) for row in batch) == expected
    query = (
        spark.readStream.format("liftpy")
        .options(**options, startingOffsets="earliest")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(place.folder / "checkpoint"))
        .option("path", str(place.folder / "out"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    streamed = spark.read.parquet(str(place.folder / "out")).collect()
    assert sorted((row["offset"], bytes(row["value"])) for row in streamed) == expected


async def test_nats_permissions_in_a_role_jwt_allow_only_the_use_of_that_role(place: Place) -> None:
    async with await place.client(AccessRole.READER) as reader, asyncio.timeout(30):
        found = [record.value async for record in reader.consume(STREAM, until="end")]
        assert found == VALUES
        with pytest.raises(NotAllowedError, match=f"publish on {SUBJECT}"):
            await reader.publish(STREAM, b"x")
        with pytest.raises(NotAllowedError, match=r"publish on acme\.control\.admin"):
            await reader.admin.delete_stream(STREAM)
    async with await place.client(AccessRole.PUBLISHER) as publisher, asyncio.timeout(30):
        with pytest.raises(NotAllowedError):
            await publisher.admin.list_streams()
    async with await place.client(AccessRole.STATUS) as watcher, asyncio.timeout(30):
        assert (await watcher.admin.node_status("n1"))["node"] == "n1"


@pytest.mark.long
@pytest.mark.spark
def test_spark_with_reader_jwt_sends_no_denied_request(spark: Any, place: Place) -> None:
    said_before = len(place.server.log)
    read_by_spark(spark, place)
    assert "Violation" not in place.server.log[said_before:]


@pytest.mark.long
@pytest.mark.spark
def test_spark_read_with_a_nats_token_returns_the_records(spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    config = f"authorization: {{ token: {TOKEN} }}\n"
    with (
        NatsServer(config=config) as server,
        DevCluster(1, nats_url=server.url, namespace=NS, settings={"LIFTPY_TOKEN": TOKEN}),
    ):

        async def begin() -> None:
            async with await connect(server.url, NS, credentials=Credentials(token=TOKEN)) as client:
                await fill(client, client)

        asyncio.run(begin())
        read_by_spark(spark, Place(server, tmp_path, {"nats.tokenFile": str(file)}))
        file.write_text("another\n")
        with pytest.raises(Exception, match="rejected the credentials"):
            read_by_spark(spark, Place(server, tmp_path, {"nats.tokenFile": str(file)}))
