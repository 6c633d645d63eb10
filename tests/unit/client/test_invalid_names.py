"""Test that invalid names are rejected before a request. Such a name could select another subject."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from liftpy.client.client import Client
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError, InvalidNameError
from liftpy.testing.memory import memory_cluster
from tests.each import each

WRONG = ("", "a.b", "a b", "*", ">", "a\r\nPUB x 0")


class Silent:
    """A transport that fails each request."""

    max_payload_bytes = 1 << 20

    def must_be_usable(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        def asked(*_: Any, **more: Any) -> Any:
            raise AssertionError(f"asked: {name}")

        return asked


CALLS: dict[str, Callable[[Client, str], Any]] = {
    "create_stream": lambda client, name: client.create_stream(name, "shop.orders"),
    "plan_stream": lambda client, name: client.admin.plan_stream(name, "shop.orders"),
    "alter_stream": lambda client, name: client.admin.alter_stream(name, 3),
    "delete_stream": lambda client, name: client.admin.delete_stream(name),
    "stream": lambda client, name: client.stream(name),
    "set_node": lambda client, name: client.admin.set_node(name, weight=1.0),
    "reset_node": lambda client, name: client.admin.reset_node(name, weight=True),
    "remove_node": lambda client, name: client.admin.remove_node(name),
    "node_status": lambda client, name: client.admin.node_status(name),
    "publish": lambda client, name: client.publish(name, b"x"),
    "publisher": lambda client, name: client.publisher(name),
    "publisher at a subject": lambda client, name: client.publisher(name, subject="shop.orders"),
    "bounds": lambda client, name: client.bounds(name),
    "query_service": lambda client, name: client.services.query(name, b"?"),
    "call_service": lambda client, name: client.services.call(name, "orders", b"!"),
    "call_service through a stream": lambda client, name: client.services.call("bank", name, b"!"),
}


@each("call", CALLS)
async def test_client_method_with_an_invalid_stream_name_raises_before_a_request(call: str) -> None:
    transport: Any = Silent()
    client = Client(transport, Subjects(), owns_connection=False)
    for name in WRONG:
        with pytest.raises(ConfigError):
            await CALLS[call](client, name)


@pytest.mark.parametrize("given", [{"query": "?"}, {"key": "ann"}, {"query": None, "partition": 1}])
async def test_service_query_with_a_value_other_than_bytes_raises_before_a_request(given: dict[str, Any]) -> None:
    transport: Any = Silent()
    client = Client(transport, Subjects(), owns_connection=False)
    with pytest.raises(ConfigError, match="It must be bytes"):
        await client.services.query("bank", **{"query": b"?", **given})


async def test_consume_and_read_range_with_an_invalid_name_or_range_raise_config_error() -> None:
    transport: Any = Silent()
    client = Client(transport, Subjects(), owns_connection=False)
    for name in WRONG:
        for made in (lambda: client.consume(name), lambda: client.read_range(name, 0, 0, 4)):  # noqa: B023
            with pytest.raises(ConfigError):
                made()
    for start, end in ((-1, 4), (5, 4)):
        with pytest.raises(ConfigError):
            client.read_range("orders", 0, start, end)
    client.read_range("orders", 0, 4, 4)


@pytest.mark.parametrize("name", ["-rf", "-", "--yes"])
async def test_create_stream_with_a_name_like_a_command_line_option_raises_invalid_name_error(name: str) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        with pytest.raises(InvalidNameError, match="option"):
            await client.create_stream(name, "shop.orders")
        with pytest.raises(InvalidNameError, match="option"):
            await client.admin.plan_stream(name, "shop.orders")
        assert await client.admin.list_streams() == []
