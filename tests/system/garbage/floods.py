"""Floods of a stranger: frames that are whole, of one kind, and far too many.

Each gives commands of the NATS protocol, made of what any client of a cluster without NATS authorization can know. They are said as
fast as ``Run`` paces them; the cluster goes on under its load, and in the end it has to describe itself.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2, cluster_pb2
from tests.system.garbage.making import command
from tests.system.garbage.targets import Place

QUIET, QUIET_DATA = "quiet", "data.quiet"
"""A stream without records: who reads it waits."""
GHOST_INBOX = "stranger"


@dataclass(frozen=True, slots=True)
class Flood:
    """``count``: of the long form; ``short``: of the one in the suite."""

    name: str
    make: Callable[[Place], Iterator[bytes]]
    count: int
    short: int


def _inbox() -> str:
    return f"_INBOX.flood.{secrets.token_hex(8)}"


def _long_polls(place: Place) -> Iterator[bytes]:
    """Readers that wait 30 s at the end of a stream in which nothing happens, each at a node of its own choice."""
    subjects = place.subjects
    wait = frames.seal(client_pb2.ReadRequest(offset=0, waitMs=30_000, minHighWatermark=-1, maxBytes=1 << 20))
    for node in itertools.cycle(place.nodes):
        yield command(subjects.read_from(QUIET, 0, node), _inbox(), b"", wait)


def _reads(place: Place) -> Iterator[bytes]:
    """As many bytes as one message takes, from the beginning, at whichever replica."""
    read = frames.seal(client_pb2.ReadRequest(offset=0, maxBytes=64 << 20, minHighWatermark=-1))
    for node in itertools.cycle(place.nodes):
        yield command(place.subjects.read_from(place.stream, 0, node), _inbox(), b"", read)


def _admin(place: Place, request: cluster_pb2.ControlRequest) -> bytes:
    request.operationId = secrets.token_bytes(16)
    return command(place.subjects.control_admin(), _inbox(), b"", frames.seal(request))


def _large_requests(place: Place) -> Iterator[bytes]:
    """Orders that can't be carried out, of 0.4 MB each."""
    for number in itertools.count():
        name = f"{number}." + "x" * 400_000
        yield _admin(place, cluster_pb2.ControlRequest(createStream=cluster_pb2.CreateStream(name=name, subject="data.x")))


def _small_requests(place: Place) -> Iterator[bytes]:
    """Orders about what is not there."""
    for number in itertools.count():
        yield _admin(place, cluster_pb2.ControlRequest(deleteStream=cluster_pb2.DeleteStream(name=f"no-such-{number}")))


def _ghosts(place: Place) -> Iterator[bytes]:
    """Nodes that are none, each registered under its own subject."""
    for number in itertools.count():
        node = f"ghost-{number}"
        start = cluster_pb2.RegisterNode(
            nodeId=node,
            folderId=f"f{number}",
            start=1,
            nonce=number + 1,
            version="x" * 60,
            weight=1,
            minLevel=SUPPORTED_LEVELS.least,
            maxLevel=SUPPORTED_LEVELS.most,
        )
        request = cluster_pb2.ControlRequest(operationId=secrets.token_bytes(16), registerNode=start)
        subjects = place.subjects
        yield command(subjects.control_node(node), f"{subjects.inbox(node)}.{GHOST_INBOX}.{number}", b"", frames.seal(request))


def _streams(place: Place) -> Iterator[bytes]:
    """Streams of one replica: orders that are whole, so they are carried out as far as the nodes have room."""
    for number in itertools.count():
        wanted = cluster_pb2.CreateStream(name=f"stranger-{number}", subject=f"stranger.{number}", replicationFactor=1)
        yield _admin(place, cluster_pb2.ControlRequest(createStream=wanted))


def _in_nodes_names(place: Place) -> Iterator[bytes]:
    """What nodes ask, in the names of those that run: for processes that they are not, and barriers, which are good in any name."""
    for number in itertools.count():
        node = place.nodes[number // 4 % len(place.nodes)]
        request = cluster_pb2.ControlRequest(operationId=secrets.token_bytes(16))
        match number % 4:
            case 0:
                request.heartbeat.CopyFrom(cluster_pb2.Heartbeat(nodeId=node, incarnation=1 << 40))
            case 1:
                request.barrier.SetInParent()
            case 2:
                start = cluster_pb2.RegisterNode(
                    nodeId=node,
                    folderId="another",
                    start=1,
                    nonce=number + 1,
                    weight=1,
                    minLevel=SUPPORTED_LEVELS.least,
                    maxLevel=SUPPORTED_LEVELS.most,
                )
                request.registerNode.CopyFrom(start)
            case _:
                report = cluster_pb2.ReportLeader(
                    stream=place.stream, uid="none", witness=node, leader=node, leaderEpoch=number
                )
                request.reportLeader.CopyFrom(report)
        reply = f"{place.subjects.inbox(node)}.{GHOST_INBOX}.{number}"
        yield command(place.subjects.control_node(node), reply, b"", frames.seal(request))


FLOODS = {
    flood.name: flood
    for flood in (
        Flood("streams", _streams, 7_500, 30),
        Flood("large-requests", _large_requests, 300, 40),
        Flood("ghosts", _ghosts, 1_100, 150),
        Flood("long-polls", _long_polls, 20_000, 2_000),
        Flood("reads", _reads, 5_000, 300),
        Flood("small-requests", _small_requests, 100_000, 3_000),
        Flood("in-nodes-names", _in_nodes_names, 100_000, 2_000),
    )
}
