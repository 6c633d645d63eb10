"""A pytest plugin for tests of applications: a real cluster, clients, and faults. Opt-in:

    pytest_plugins = ["liftpy.testing.plugin"]      # in the conftest.py at the root, or: pytest -p liftpy.testing.plugin

    def test_an_order_is_kept(liftpy_client):
        liftpy_client.create_stream("orders", "shop.orders")
        liftpy_client.publish("orders", b"one")
        assert [r.value for r in liftpy_client.consume("orders", until="end")] == [b"one"]

The cluster starts with the first test that uses it and lasts for the session (of each pytest-xdist worker). After each
test, stopped nodes start again and the streams of the test are deleted. It needs ``liftpy[dev]``. The fixture
``liftpy_memory`` needs nothing: it is a cluster in the test's process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from liftpy.client import Client, connect, sync
from liftpy.client.awaitable_context import AwaitableContext
from liftpy.errors import LiftError
from sidecar.dev.nats_server import find_nats_server
from sidecar.dev.under_test import ClusterUnderTest

if TYPE_CHECKING:
    from liftpy.testing.memory import MemoryCluster

DEFAULT_NODES = 3
_PREFIX = "LIFTPY_"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the pytest options for the number of nodes and the settings of the test cluster."""
    parser.addini("liftpy_nodes", f"nodes of the cluster that the fixture liftpy_cluster starts (default {DEFAULT_NODES})")
    parser.addini("liftpy_settings", "settings of its nodes, NAME=VALUE, one a line", type="linelist", default=[])
    group = parser.getgroup("liftpy")
    group.addoption("--liftpy-nodes", type=int, default=None, metavar="N", help="nodes of the cluster; wins over liftpy_nodes")
    group.addoption("--liftpy-set", action="append", default=[], metavar="NAME=VALUE", help="a setting of its nodes")


def cluster_options(config: pytest.Config) -> tuple[int, dict[str, str]]:
    """Return (number of nodes, their settings) of the test cluster, from the ini file and the command line of pytest.

    Raise pytest.UsageError if they are not valid.
    """
    option_text = config.getoption("--liftpy-nodes") or config.getini("liftpy_nodes") or DEFAULT_NODES
    try:
        nodes = int(option_text)
    except ValueError:
        raise pytest.UsageError(f"Invalid liftpy_nodes = {option_text!r}. Use a number.") from None
    settings: dict[str, str] = {}
    for line in [*config.getini("liftpy_settings"), *config.getoption("--liftpy-set")]:
        name, equals, value = line.partition("=")
        if not equals or not name.strip().startswith(_PREFIX):
            raise pytest.UsageError(f"Unknown setting {line!r}. Use {_PREFIX}...=VALUE.")
        settings[name.strip()] = value.strip()
    return nodes, settings


def _show(node: str, line: str) -> None:
    print(f"{node} | {line}")  # into pytest's capture: shown with a test that fails


@pytest.fixture(scope="session")
def _liftpy_session(pytestconfig: pytest.Config) -> Iterator[ClusterUnderTest]:
    nodes, settings = cluster_options(pytestconfig)
    try:
        find_nats_server()
        cluster = ClusterUnderTest(nodes, settings=settings, on_line=_show)
        cluster.start_all()
    except LiftError as error:
        pytest.fail(
            f"Cannot start the cluster for the tests: {error}", pytrace=False
        )  # fail instead of skip: a run without tests must not look successful
    yield cluster
    cluster.stop()


@pytest.fixture
def liftpy_memory(pytestconfig: pytest.Config) -> Iterator[MemoryCluster]:
    """A cluster in memory for one test, with ``liftpy_nodes`` nodes. It starts in milliseconds."""
    from liftpy.testing.memory import memory_cluster  # it takes a while, and not every project asks for it

    nodes, _ = cluster_options(pytestconfig)
    with memory_cluster(nodes) as cluster:
        yield cluster


@pytest.fixture
def liftpy_cluster(_liftpy_session: ClusterUnderTest) -> Iterator[ClusterUnderTest]:
    """The cluster, with ``kill``, ``start``, ``pause``, ``resume``, ``kill_leader``, ``restart_nats`` and ``wait_until``.

    After the test, all nodes start again and the streams of the test are deleted.
    """
    there = frozenset(stream.name for stream in _liftpy_session.client.admin.list_streams())
    yield _liftpy_session
    _liftpy_session.heal()
    _liftpy_session.delete_streams(keep=there)


@pytest.fixture
def liftpy_url(liftpy_cluster: ClusterUnderTest) -> str:
    """URL of the cluster's nats-server."""
    return liftpy_cluster.url


@pytest.fixture
def liftpy_client(liftpy_cluster: ClusterUnderTest) -> Iterator[sync.SyncClient]:
    """A connected ``liftpy.client.sync`` client for one test. It is closed after the test."""
    with sync.connect(liftpy_cluster.url, liftpy_cluster.namespace) as client:
        yield client


@pytest.fixture
def liftpy_connect(liftpy_cluster: ClusterUnderTest) -> Callable[..., AwaitableContext[Client]]:
    """A function like ``liftpy.connect`` for this cluster: ``async with liftpy_connect() as client``."""

    def opened(**options: Any) -> AwaitableContext[Client]:
        return connect(liftpy_cluster.url, liftpy_cluster.namespace, **options)

    return opened
