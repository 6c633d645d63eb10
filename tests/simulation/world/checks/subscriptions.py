"""Rules of subscriptions and traffic: what nodes subscribe to, and how many messages their NATS servers have counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from liftpy.core.wire.subjects import Subjects
from tests.simulation.world.checks.logs import workers_of
from tests.simulation.world.machine.nats_server import Client
from tests.simulation.world.world import World

_SUBJECTS = Subjects("liftpy")
_REQUESTS = re.compile(r"liftpy\.[^.]+\.\d+\.(read|replicate|offset)")
"""Subjects on which replicas answer requests."""
_PUBLISHES = ("ingest", "standby")
"""Connections that receive publishes of applications only."""
_COUNTED = ("ingest", "reads", "replication")
"""Connections whose messages a node counts in its status."""
_UNCOUNTED = {"in_msgs": 5, "in_bytes": 2_000, "out_msgs": 0}
"""Maximum difference: the last messages of a subscription that a node has ended, and headers in answers for nats-py itself."""


def wrong_subscriptions(world: World) -> list[str]:
    """Return the missing and the needless subscriptions of nodes to subjects of partitions, at their NATS servers.

    docs/protocol.md, "Subjects": each replica answers reads on its own subject, and the members of the ISR share another one. The
    leader also answers fetches and receives publishes. With ``failover_standby``, the other members of the ISR receive them, too.
    """
    wanted: Counter[tuple[str, str]] = Counter()
    for (stream, partition), workers in workers_of(world).items():
        for worker in workers:
            node, state = worker.node_id, worker.state
            leads, in_isr = state is not None and state.leader == node, state is not None and node in state.isr
            wanted[node, _SUBJECTS.read_from(stream, partition, node)] += 1
            wanted[node, _SUBJECTS.read(stream, partition)] += in_isr
            wanted[node, _SUBJECTS.replicate(stream, partition)] += leads
            wanted[node, _SUBJECTS.offset(stream, partition)] += leads
            wanted[node, worker.ingest.reader.subject] += leads or (in_isr and worker.config.failover_standby)
    found: Counter[tuple[str, str]] = Counter()
    for node, purpose, client in _connections(world):
        patterns = [one.pattern for one in client.subscriptions.values()]
        found.update((node, one) for one in patterns if purpose in _PUBLISHES or _REQUESTS.match(one))
    wrong = [f"{node} lacks {subject}" for node, subject in sorted((wanted - found).elements())]
    return wrong + [f"{node} needs no {subject}" for node, subject in sorted((found - wanted).elements())]


class Traffic:
    """Counts of the NATS servers for the connections of the main process of a node."""

    def __init__(self, world: World, node: str) -> None:
        self.totals: dict[str, dict[str, int]] = {}
        """Purpose of a connection -> its messages and bytes, named as in the status of the node."""
        for _, purpose, client in _connections(world):
            if client.connection.process.name == node and purpose in _COUNTED:
                totals = self.totals.setdefault(purpose, dict.fromkeys(("in_msgs", "in_bytes", "out_msgs"), 0))
                totals["in_msgs"] += client.delivered
                totals["in_bytes"] += client.delivered_bytes
                totals["out_msgs"] += client.published


def wrong_traffic(status: dict[str, Any], before: Traffic, after: Traffic) -> list[str]:
    """Return which figures of a node's connections differ from those of its NATS servers.

    ``before`` and ``after``: what the servers had counted before and after the node was asked for its status. A connection that was
    lost had more messages, so it is not checked.
    """
    wrong = []
    for purpose in _COUNTED:
        link = status["connections"][purpose]
        if link["reconnects"] or not link["connected"] or purpose not in before.totals:
            continue
        for field, least in before.totals[purpose].items():
            most = after.totals[purpose][field]
            if not least - _UNCOUNTED[field] <= link[field] <= most:
                wrong.append(f"{field} of {purpose} is {link[field]}, and NATS has counted {least}")
    return wrong


def _connections(world: World) -> Iterator[tuple[str, str, Client]]:
    """Yield (node, purpose, connection) of each connection of a node, as its NATS server knows it."""
    for server in world.nats.servers:
        for client in server.clients.values():
            node = client.connection.process.host
            if client.name.startswith(begin := f"liftpy-{node}-"):
                yield node, client.name.removeprefix(begin), client
