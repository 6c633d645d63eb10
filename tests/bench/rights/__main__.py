"""What NATS's rights cost: ``python -m tests.bench.rights [--seconds S] [--rounds N] [--responses MAX,SECONDS]... [--in-turn]``.

A cluster of three nodes under a nats-server without authorization, under one where nodes have the rights of their role without
``allow_responses``, as shipped, and with the values that are given. A publisher sends one message after the other, then many at once,
each with a reply subject of its own: that is what a server with ``allow_responses`` remembers. Figures are medians of the rounds.

With ``--in-turn`` a cluster with ``allow_responses`` as shipped and one without run at once, and are published to in turn, some
messages each: what else the machine does meets both alike. One by one, many at once, and one by one again, when the server remembers
the replies to the many.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from dataclasses import replace

from liftpy.client import Client, Publisher, PublishOptions, connect
from liftpy.core.wire.permissions import AccessRole, Permissions, Scope, as_nats_conf, rights_of
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import NatsServer

WINDOW = 1000
TURN = 20
MANY = 5000
SUBJECT = "bench.x"
SHIPPED = rights_of(AccessRole.NODE, Scope(data_subjects=("bench.>",)))


def configuration(rights: Permissions | None) -> str:
    if rights is None:
        return ""
    return f"authorization: {{ users: [ {{ user: all, password: all }}, {{ user: node, password: node, {as_nats_conf(rights)} }} ] }}"


async def measure(url: str, seconds: float) -> tuple[float, float, float]:
    """(p50 of one after the other in ms, acks/s of many at once, p50 of one after the other afterwards in ms)"""
    async with await connect(url) as client:
        await client.create_stream("bench", SUBJECT)
        first = await _one_by_one(client, seconds)
        async with client.publisher("bench", options=PublishOptions(window=WINDOW)) as publisher:
            count, end = 0, time.perf_counter() + seconds
            while time.perf_counter() < end:
                await publisher.send(b"x" * 100)
                count += 1
            await publisher.flush()
        return first, count / (time.perf_counter() - end + seconds), await _one_by_one(client, seconds)


async def _one_by_one(client: object, seconds: float) -> float:
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        await client.publish("bench", b"x" * 100)  # type: ignore[attr-defined]
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3


def run(rights: Permissions | None, seconds: float) -> tuple[float, float, float]:
    """One cluster, from start to stop."""
    user = {} if rights is None else {"LIFTPY_USER": "node", "LIFTPY_PASSWORD": "node"}
    with NatsServer(config=configuration(rights)) as server, DevCluster(3, nats_url=server.url, settings=user):
        url = server.url if rights is None else server.url.replace("nats://", "nats://all:all@")
        return asyncio.run(measure(url, seconds))


async def in_turn(urls: list[str], seconds: float) -> tuple[list[float], list[float], list[float]]:
    """Of each turn the ratio of the second cluster to the first: of p50 one by one, of the rate of many at once, of p50 again."""
    clients = [await connect(url) for url in urls]
    for client in clients:
        await client.create_stream("bench", SUBJECT)

    async def alone() -> list[float]:
        ratios, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end:
            first, second = [await _p50_of(client, TURN) for client in clients]
            ratios.append(second / first)
        return ratios

    before, many = await alone(), []
    publishers = [await client.publisher("bench", options=PublishOptions(window=WINDOW)) for client in clients]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        first, second = [await _rate_of(publisher, MANY) for publisher in publishers]
        many.append(second / first)
    for publisher in publishers:
        await publisher.close()
    after = await alone()
    for client in clients:
        await client.close()
    return before, many, after


async def _p50_of(client: Client, count: int) -> float:
    took = []
    for _ in range(count):
        began = time.perf_counter()
        await client.publish("bench", b"x" * 100)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


async def _rate_of(publisher: Publisher, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        await publisher.send(b"x" * 100)
    await publisher.flush()
    return count / (time.perf_counter() - began)


def compare(seconds: float) -> None:
    """Print the medians of the ratios."""
    user = {"LIFTPY_USER": "node", "LIFTPY_PASSWORD": "node"}
    without, shipped = configuration(replace(SHIPPED, responses=None)), configuration(SHIPPED)
    with (
        NatsServer(config=without) as one,
        NatsServer(config=shipped) as other,
        DevCluster(3, nats_url=one.url, settings=user),
        DevCluster(3, nats_url=other.url, settings=user),
    ):
        urls = [server.url.replace("nats://", "nats://all:all@") for server in (one, other)]
        found = asyncio.run(in_turn(urls, seconds))
    print(f"allow_responses {SHIPPED.responses} beside none, medians of the ratios of turns")
    for what, ratios in zip(("p50 one by one", f"rate, {WINDOW} at once", "p50 one by one again"), found, strict=True):
        print(f"{what:24} {statistics.median(ratios):.3f} of {len(ratios)}")


def main() -> None:
    """Print a line for each kind of rights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--responses", action="append", default=[], metavar="MAX,SECONDS")
    parser.add_argument("--in-turn", action="store_true")
    given = parser.parse_args()
    if given.in_turn:
        compare(given.seconds)
        return
    kinds: dict[str, Permissions | None] = {
        "no authorization": None,
        "no allow_responses": replace(SHIPPED, responses=None),
        f"as shipped, {SHIPPED.responses}": SHIPPED,
    }
    for text in given.responses:
        most, _, expires = text.partition(",")
        kinds[f"({text})"] = replace(SHIPPED, responses=(int(most), int(expires)))
    found: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
    for _ in range(given.rounds):
        for kind, rights in kinds.items():
            found[kind].append(run(rights, given.seconds))
    for kind, rounds in found.items():
        alone, many, after = (statistics.median(values) for values in zip(*rounds, strict=True))
        print(f"{kind:28} one by one {alone:7.2f} ms   {WINDOW} at once {many:9.0f}/s   one by one again {after:7.2f} ms")


if __name__ == "__main__":
    main()
