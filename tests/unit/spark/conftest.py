"""Fixtures: a nats-server for the whole run, and per test a node that serves streams from memory in its own namespace."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from liftpy.spark.options import Access
from liftpy.spark.process_connection import ProcessConnection, link_to
from sidecar.cli.main import main
from sidecar.dev.nats_server import NatsServer
from tests.fake_node import FakeNode, fake_node_in_thread

_numbers = itertools.count()


@pytest.fixture(scope="session")
def spark_nats() -> Iterator[str]:
    with NatsServer() as server:
        yield server.url


@pytest.fixture
def access(spark_nats: str) -> Access:
    return Access(servers=spark_nats, namespace=f"unit{next(_numbers)}")


@pytest.fixture
def node(access: Access) -> Iterator[FakeNode]:
    with fake_node_in_thread(access.servers, access.namespace) as fake:
        yield fake


@pytest.fixture
def link(access: Access) -> ProcessConnection:
    return link_to(access)


@pytest.fixture
def source(access: Access) -> Callable[..., Any]:
    """Return a function that creates a LiftDataSource for the node of the test."""
    from liftpy.spark.source import LiftDataSource

    def opened(stream: str = "orders", **options: str) -> LiftDataSource:
        given = {"nats": access.servers, "namespace": access.namespace, "stream": stream, "patience": "3", **options}
        return LiftDataSource({name.lower(): value for name, value in given.items()})

    return opened


@pytest.fixture
def liftpy_spark(access: Access, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs ``liftpy spark`` on the node of the test. It returns exit code, output and errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["spark", *arguments, "--nats", access.servers, "--namespace", access.namespace])
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return run
