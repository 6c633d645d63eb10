"""What NATS's rights cost: ``python -m tests.bench.rights [--seconds S] [--rounds N] [--responses MAX,SECONDS]...``.

A cluster of three nodes under a nats-server without authorization, under one where nodes have the rights of their role without
``allow_responses``, as shipped, and with the values that are given. A publisher sends one message after the other, then many at once,
each with a reply subject of its own: that is what a server with ``allow_responses`` remembers. Figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from dataclasses import replace

from liftpy.client import PublishOptions, connect
from liftpy.wire.rights import Rights, Role, Scope, as_nats_conf, rights_of
from sidecar.devcluster import DevCluster
from sidecar.embedded import NatsServer

WINDOW = 1000
SUBJECT = "bench.x"
SHIPPED = rights_of(Role.NODE, Scope(data_subjects=("bench.>",)))


def configuration(rights: Rights | None) -> str:
    if rights is None:
        return ""
    return f"authorization: {{ users: [ {{ user: all, password: all }}, {{ user: node, password: node, {as_nats_conf(rights)} }} ] }}"


async def measure(url: str, seconds: float) -> tuple[float, float, float]:
    """(p50 of one after the other in ms, acks/s of many at once, p50 of one after the other afterwards in ms)"""
    async with await connect(url) as client:
        await client.create_stream("bench", SUBJECT)
        first = await _one_by_one(client, seconds)
        async with await client.publisher("bench", options=PublishOptions(window=WINDOW)) as publisher:
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


def run(rights: Rights | None, seconds: float) -> tuple[float, float, float]:
    """One cluster, from start to stop."""
    user = {} if rights is None else {"LIFTPY_USER": "node", "LIFTPY_PASSWORD": "node"}
    with NatsServer(config=configuration(rights)) as server, DevCluster(3, nats_url=server.url, settings=user):
        url = server.url if rights is None else server.url.replace("nats://", "nats://all:all@")
        return asyncio.run(measure(url, seconds))


def main() -> None:
    """Print a line for each kind of rights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--responses", action="append", default=[], metavar="MAX,SECONDS")
    given = parser.parse_args()
    kinds: dict[str, Rights | None] = {
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
