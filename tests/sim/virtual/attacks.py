"""Strangers on the bus: garbage on subjects that nodes listen to, and requests whose reply subject is no inbox."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import liftpy
from tests.sim.virtual.checks import CANARY, NODES, MessageRules
from tests.sim.virtual.world import World


def _concrete(pattern: str, draw: random.Random) -> str:
    tokens = [draw.choice(("n1", "0", "x")) if token in ("*", ">") else token for token in pattern.split(".")]
    return ".".join(tokens)


def _listened(world: World, draw: random.Random) -> str:
    """A subject that some node hears."""
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
    """Until ``stopping``."""
    draw = random.Random(f"attacks {world.seed}")
    subjects = {subject for _, subject, _ in streams}
    async with liftpy.connect(list(world.nats.urls)) as client:
        connection = client.transport.connection
        replies = (f"{CANARY}.x", f"shop.{CANARY}", f"liftpy.control.{CANARY}", f"_INBOXES.{CANARY}", f"liftpy.feed.{CANARY}")
        while not stopping():
            await asyncio.sleep(draw.random() * 0.4)
            if not connection.is_connected:
                continue
            world.scheduler.counters["messages of strangers"] += 1
            known = [message for message in rules.of_clients if not any(message.subject.startswith(s) for s in subjects)]
            if known and draw.random() < 0.6:
                message = draw.choice(known)
                body = message.content[message.header_bytes :]
                await connection.publish(message.subject, body, reply=draw.choice(replies))
                continue
            subject = _listened(world, draw)
            if subject and not any(subject.startswith(s) for s in subjects):
                await connection.publish(subject, draw.randbytes(draw.choice((0, 1, 20, 300))), reply=draw.choice(replies))
