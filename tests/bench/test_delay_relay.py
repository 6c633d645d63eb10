"""Test the relay that stands for the network between the hosts of a benchmark."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from sidecar.bench.systems import DelayRelay, HostNetwork, NatsCluster

pytestmark = pytest.mark.processes

DELAY_S = 0.05
WITHIN_S = 30.0


@pytest.fixture
def echo() -> Iterator[int]:
    """Port of a server that sends back all bytes, and closes its connection when its client does."""

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(WITHIN_S)
        assert not thread.is_alive(), "the relay passes on the end of a connection"


def received(connection: socket.socket, size_bytes: int) -> bytes:
    found = b""
    while len(found) < size_bytes and (data := connection.recv(65536)):
        found += data
    return found


def test_delay_relay_delays_both_directions_and_passes_all_bytes_in_order(echo: int) -> None:
    sent = b"".join(b"%07d\n" % number for number in range(100_000))
    relay = DelayRelay(HostNetwork(DELAY_S))
    try:
        (port,) = relay.ports([echo])
        with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as connection:
            began = time.monotonic()
            connection.sendall(b"ping")
            assert received(connection, 4) == b"ping"
            assert time.monotonic() - began >= 2 * DELAY_S
            threading.Thread(target=connection.sendall, args=(sent,), daemon=True).start()
            assert received(connection, len(sent)) == sent
    finally:
        relay.stop()


def test_delay_relay_with_a_bandwidth_passes_no_more_bytes_per_second(echo: int) -> None:
    """The echo sends back while more bytes arrive, so both directions are busy at the same time."""
    bytes_per_s, sent = 2e6, bytes(1_000_000)
    relay = DelayRelay(HostNetwork(bytes_per_s=bytes_per_s))
    try:
        (port,) = relay.ports([echo])
        with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as connection:
            began = time.monotonic()
            threading.Thread(target=connection.sendall, args=(sent,), daemon=True).start()
            assert received(connection, len(sent)) == sent
            assert time.monotonic() - began >= len(sent) / bytes_per_s
    finally:
        relay.stop()


def test_delay_relay_closes_the_connection_if_nobody_listens_on_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    relay = DelayRelay(HostNetwork(DELAY_S))
    try:
        (port,) = relay.ports([closed])
        with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as connection:
            connection.settimeout(WITHIN_S)
            try:
                assert connection.recv(1) == b""
            except ConnectionResetError:
                pass
    finally:
        relay.stop()


def seen_after_s(publisher: int, subscriber: int) -> float:
    """Return the time from a publish on one NATS port until a subscriber on another one gets the message."""
    with ExitStack() as stack:
        ends = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), WITHIN_S)) for port in (subscriber, publisher)
        ]
        for end in ends:
            end.sendall(b'CONNECT {"verbose":false}\r\nSUB found 1\r\nPING\r\n')
            said = b""
            while b"PONG" not in said:
                said += end.recv(65536)
        listening, publishing = ends
        listening.settimeout(10 * DELAY_S)
        give_up_s = time.monotonic() + WITHIN_S
        while time.monotonic() < give_up_s:  # the servers may not know each other's subscriptions yet
            began = time.monotonic()
            publishing.sendall(b"PUB found 1\r\nx\r\n")
            try:
                if b"MSG found" in listening.recv(65536):
                    return time.monotonic() - began
            except TimeoutError:
                continue
    raise AssertionError("the message did not arrive")


def test_nats_cluster_with_a_delay_delays_clients_and_the_links_between_servers() -> None:
    with NatsCluster(3, network=HostNetwork(DELAY_S)) as cluster:
        beside = [server.port for server in cluster.servers]
        assert [f"nats://127.0.0.1:{port}" for port in beside] == cluster.node_urls, "a node is on the host of its server"
        assert seen_after_s(beside[0], beside[1]) >= DELAY_S
        assert seen_after_s(cluster.ports[0], beside[0]) >= DELAY_S
        assert seen_after_s(cluster.ports[0], cluster.ports[1]) >= 3 * DELAY_S


def test_nats_cluster_of_one_server_with_a_delay_delays_the_nodes() -> None:
    with NatsCluster(1, network=HostNetwork(DELAY_S)) as cluster:
        assert cluster.node_urls == [f"nats://127.0.0.1:{cluster.ports[0]}"]
        assert cluster.ports[0] != cluster.servers[0].port
