"""Whoever publishes many records at once: ``python -m tests.bench.peer.batches [--seconds S] [--rounds N] [--sizes 100,1000]``.

One publishing process each, three replicas, everything on this machine, the systems in turn and the rounds alternating. liftpy's
producer (flushed by the in-sync replicas before the ack). JetStream by single messages over a bare socket and by nats.go's
asynchronous publishes, 4,000 in flight, and by orbit's fast-ingest and atomic batches, with ``sync_interval: always`` (the same
promise) and as it comes. Kafka's producer with acks=all, idempotent, flushed with each append (``flush.messages=1``: the same
promise) and as it comes. Who is missing here (go, or java and mvn, or what they download) is left out, and said. Medians; the ratio
is liftpy's rate to theirs, CPU is of all processes, in us a record. ``--json`` prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from liftpy.client import connect
from sidecar.bench.cases import measure_process
from sidecar.bench.systems import JetStreamCluster
from sidecar.dev.cluster import DevCluster
from tests.bench.peer.kafka import PROGRAMS, KafkaCluster
from tests.clients.build import MissingError, Program

GO = Program(
    name="nats.go and orbit",
    sources="orbit",
    folder=PROGRAMS,
    tools=("go",),
    build="go mod tidy && go build -o peer .",
    run=("./peer",),
)
OURS = "liftpy"
_SINGLE_WINDOW = 4000
_KAFKA_WARM_S = 3.0
Row = dict[str, Any]


def row(system: str, size_bytes: int, run: Row) -> Row:
    """Figures of a run."""
    each_us = 1e6 / run["acked"]
    figures = {"records_per_s": run["acked"] / run["took_s"], "all_cpu_us": run["all_cpu_s"] * each_us}
    return {"system": system, "size_bytes": size_bytes, **figures}


def ours(seconds: float, sizes: Iterable[int]) -> Iterator[Row]:
    """The producer, a thousand records at a time."""

    async def create(url: str) -> None:
        async with connect(url) as client:
            await client.create_stream("bench", "bench")

    with DevCluster(3) as cluster:
        assert cluster.nats is not None
        asyncio.run(create(cluster.nats_url))
        pids = [cluster.nats.pid, *(node.pid for node in cluster.nodes.values())]
        words = [sys.executable, "-m", "sidecar.bench.producer", str(cluster.nats.port), "bench"]
        measure_process([*words, "1", "100", "many"], None, pids)  # warm
        for size_bytes in sizes:
            yield row(OURS, size_bytes, measure_process([*words, str(seconds), str(size_bytes), "many"], None, pids))


def jetstream(sync_always: bool, seconds: float, sizes: Iterable[int]) -> Iterator[Row]:
    """A bare socket and, where they can be had, nats.go and orbit."""
    name = "JetStream, sync always" if sync_always else "JetStream as it comes"
    with JetStreamCluster(sync_always=sync_always) as cluster:
        asyncio.run(cluster.create("bench", "bench", batches=True))
        words = [sys.executable, "-m", "sidecar.bench.publisher", str(cluster.port), "bench"]
        measure_process([*words, "1", "100", str(_SINGLE_WINDOW)], None, cluster.pids)  # warm
        for size_bytes in sizes:
            run = measure_process([*words, str(seconds), str(size_bytes), str(_SINGLE_WINDOW)], None, cluster.pids)
            yield row(f"{name}, bare socket", size_bytes, run)
        command, folder = GO.ready()
        for how, called in (("async", "nats.go async"), ("fast", "orbit fast"), ("atomic", "orbit atomic")):
            for size_bytes in sizes:
                asked = [*command, f"nats://127.0.0.1:{cluster.port}", "bench", str(seconds), str(size_bytes), how]
                yield row(f"{name}, {called}", size_bytes, measure_process(asked, folder, cluster.pids))


def kafka(seconds: float, sizes: Iterable[int]) -> Iterator[Row]:
    """Its producer, on a topic that is flushed and one that is not."""
    with KafkaCluster() as cluster:
        for flushed in (True, False):
            name = "Kafka, flushed" if flushed else "Kafka as it comes"
            topic = f"bench-{flushed}"
            cluster.create(topic, flushed=flushed)
            for size_bytes in sizes:
                words = [
                    *cluster.client(),
                    "produce",
                    cluster.servers,
                    topic,
                    str(seconds),
                    str(size_bytes),
                    str(_KAFKA_WARM_S),
                ]
                yield row(name, size_bytes, measure_process(words, None, cluster.pids))


def systems(seconds: float, sizes: list[int]) -> list[Callable[[], Iterator[Row]]]:
    """In the order of a round."""
    return [
        lambda: ours(seconds, sizes),
        lambda: jetstream(True, seconds, sizes),
        lambda: jetstream(False, seconds, sizes),
        lambda: kafka(seconds, sizes),
    ]


def rows(seconds: float, rounds: int, sizes: list[int], say: Callable[[str], object]) -> list[Row]:
    """The medians, by system and size; ``say`` is told who is left out, once."""
    runs: dict[tuple[str, int], list[Row]] = {}
    missing: set[str] = set()
    for _ in range(rounds):
        for system in systems(seconds, sizes):
            try:
                for found in system():
                    runs.setdefault((found["system"], found["size_bytes"]), []).append(found)
            except MissingError as error:
                if str(error) not in missing:
                    say(f"left out: {error}")
                missing.add(str(error))
    return [median(same) for same in runs.values()]


def median(same: list[Row]) -> Row:
    """Of each figure of runs of one system and size."""
    return {k: statistics.median(row[k] for row in same) if k.endswith(("_s", "_us")) else v for k, v in same[0].items()}


def with_ratios(found: list[Row]) -> list[Row]:
    """Each row with ``ours_to_theirs``: liftpy's rate at the same size, divided by its own."""
    rates = {row["size_bytes"]: row["records_per_s"] for row in found if row["system"] == OURS}
    return [{**row, "ours_to_theirs": rates[row["size_bytes"]] / row["records_per_s"]} for row in found]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peer.batches", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="100,1000", help="bytes of a record, with commas")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    sizes = [int(text) for text in given.sizes.split(",")]
    found = with_ratios(rows(given.seconds, given.rounds, sizes, lambda text: print(text, file=sys.stderr)))
    if given.json:
        print(json.dumps(found))
        return
    for one in found:
        ratio = f"liftpy does {one['ours_to_theirs']:.2f} x that" if one["system"] != OURS else ""
        rate, cpu_us = one["records_per_s"], one["all_cpu_us"]
        print(
            f"{one['system']:<38} {one['size_bytes']:>5} B {rate:>9,.0f} records/s {cpu_us:>7.2f} us of all processes  {ratio}"
        )


if __name__ == "__main__":
    main()
