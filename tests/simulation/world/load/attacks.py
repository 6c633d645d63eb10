"""Strangers on the bus: garbage on subjects that nodes listen to, and requests whose reply subject is no inbox."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from tests.simulation.world.checks.messages import CANARY, MessageRules
from tests.simulation.world.world import NODES, World

_API = "$JS.hub.API"
_ODD = (
    (f"{_API}.INFO", b""),
    (f"{_API}.STREAM.INFO.orders", b'{"subjects_filter":"\\ud800"}'),
    (f"{_API}.STREAM.NAMES", b'{"subject":"\\ud800"}'),
    (f"{_API}.STREAM.MSG.GET.orders", b'{"seq":18446744073709551616}'),
    (f"{_API}.STREAM.MSG.GET.orders", b'{"last_by_subj":"\\ud800"}'),
    (f"{_API}.DIRECT.GET.orders", b'{"seq":1,"next_by_subj":"\\ud800"}'),
    (f"{_API}.DIRECT.GET.orders", b'{"start_time":"0001-01-01T00:00:00Z","batch":3}'),
    (f"{_API}.DIRECT.GET.orders", b'{"start_time":"9999-12-31T23:59:59Z"}'),
    (f"{_API}.DIRECT.GET.orders", b'{"multi_last":["\\ud800"],"up_to_time":"9999-12-31T23:59:59Z"}'),
)
"""Requests to JetStream's read API that no client of it sends: each gets an answer, if only an error."""
_MANY = 400
"""Number of requests at once. It is larger than the limits of all nodes together."""


def _concrete(pattern: str, draw: random.Random) -> str:
    tokens = [draw.choice(("n1", "0", "x")) if token in ("*", ">") else token for token in pattern.split(".")]
    return ".".join(tokens)


def _listened(world: World, draw: random.Random) -> str:
    """Return a subject that a node subscribes to."""
    patterns = sorted(
        {
            subscription.pattern
            for server in world.nats.servers
            for client in server.clients.values()
            if client.name.startswith(NODES)
            for subscription in client.subscriptions.values()
            if ".raft." not in subscription.pattern and ".inbox." not in subscription.pattern
        }
    )
    return _concrete(draw.choice(patterns), draw) if patterns else ""


async def attack(world: World, rules: MessageRules, streams: list[tuple[str, str, int]], stopping: Callable[[], bool]) -> None:
    """Send random requests until ``stopping``."""
    draw = random.Random(f"attacks {world.seed}")
    subjects = {subject for _, subject, _ in streams}
    async with world.connect() as client:
        connection = client.transport.connection
        replies = (f"{CANARY}.x", f"shop.{CANARY}", f"liftpy.control.{CANARY}", f"_INBOXES.{CANARY}", f"liftpy.feed.{CANARY}")
        while not stopping():
            await asyncio.sleep(draw.random() * 0.4)
            if not connection.is_connected:
                continue
            world.scheduler.counters["messages of strangers"] += 1
            if draw.random() < 0.3:
                await connection.publish(*draw.choice(_ODD), reply=draw.choice((*replies, "_INBOX.nobody.x")))
                continue
            known = [message for message in rules.of_clients if not any(message.subject.startswith(s) for s in subjects)]
            if known and draw.random() < 0.6:
                message = draw.choice(known)
                body = message.content[message.header_bytes :]
                await connection.publish(message.subject, body, reply=draw.choice(replies))
                continue
            subject = _listened(world, draw)
            if subject and not any(subject.startswith(s) for s in subjects):
                await connection.publish(subject, draw.randbytes(draw.choice((0, 1, 20, 300))), reply=draw.choice(replies))


async def probe(world: World) -> None:
    """Check on a quiet cluster that each odd request gets an answer and ends no node.

    A read may meet a flipped bit. Its node then restarts to repair the log, and the request is sent again.
    """
    async with world.connect() as client:
        connection = client.transport.connection
        for subject, body in (*_ODD, *((f"liftpy.status.{node.name}", b"") for node in world.nodes)):
            for is_last in (False, True):
                try:
                    await connection.request(subject, body, timeout=5)
                    break
                except Exception as error:
                    if is_last or not await _are_repaired(world):
                        world.scheduler.violated(f"{subject} {body!r}: {type(error).__name__} in a quiet cluster")
                        break
    await _are_repaired(world)
    for node in world.nodes:
        if not node.is_ready:
            world.scheduler.violated(f"{node.name} did not survive the probes")


async def flood(world: World) -> None:
    """Check on a quiet cluster that each of many equal requests at once gets an answer, if only a rejection."""
    subjects = Subjects("liftpy")
    describe = frames.seal(pb.ControlRequest(describeCluster=pb.DescribeCluster(maxBytes=1), linearizable=True))
    async with world.connect() as client:
        connection = client.transport.connection
        for subject, body, many in (
            (f"{_API}.STREAM.INFO.orders", b"", _MANY),
            (subjects.info(), describe, _MANY),
            (subjects.status(world.nodes[0].name), b"", 50),
        ):
            for count in (many, 1):
                requests = [connection.request(subject, body, timeout=10) for _ in range(count)]
                answers = await asyncio.gather(*requests, return_exceptions=True)
                lost = [repr(one) for one in answers if isinstance(one, BaseException)]
                if lost and not await _are_repaired(world):  # a node that meets a flipped bit restarts
                    world.scheduler.violated(f"{len(lost)} of {count} requests to {subject} {body!r} fail: {lost[0]}")


async def _are_repaired(world: World) -> bool:
    """Wait until the nodes with damaged disks are ready. Return whether there is one."""
    damaged = [node for node in world.nodes if node.disk.is_damaged]
    return bool(damaged) and await world.until("damaged nodes are ready", lambda: all(node.is_ready for node in damaged), 60)
