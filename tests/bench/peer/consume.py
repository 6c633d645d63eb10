"""Readers beside readers: ``python -m tests.bench.peer.consume [--seconds S] [--rounds N] [--sizes 100,1000] [--records N] [--json]``.

A stream of three replicas in liftpy and one in JetStream, both filled with the same records once; then each reader reads its stream
from the first record on for some seconds, in turn, one round after the other, each in a process of its own: liftpy by batch (the
records counted), by batch with every value as ``bytes``, record by record, and many at once; nats-py's pull consumer without acks and
its ordered consumer; nats.go's pull consumer, a batch at a time and message by message, and its ordered consumer. Medians of the
rounds; CPU is of all processes, clients and servers, in us a record; the ratio is to liftpy of the same kind, by batch or by record.
Without go, nats.go is left out, and said. JetStream as it comes: flushing does not matter to who reads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from liftpy.client import connect
from sidecar.bench.cases import measure_process
from sidecar.bench.systems import JetStreamCluster
from sidecar.dev.cluster import DevCluster
from tests.bench.peer.batches import median
from tests.bench.peer.kafka import PROGRAMS
from tests.clients.build import MissingError, Program

GO = Program(
    name="nats.go's consumers",
    sources="consume",
    folder=PROGRAMS,
    tools=("go",),
    build="go mod tidy && go build -o consume .",
    run=("./consume",),
)
OURS = {
    "liftpy-batch": "liftpy, batches",
    "liftpy-values": "liftpy, batches, values as bytes",
    "liftpy-record": "liftpy, record by record",
    "liftpy-many": "liftpy, getmany(1000)",
}
PY = {"py-pull": "nats-py, pull, 1,000 at a time", "py-ordered": "nats-py, ordered, one by one"}
GO_HOW = {
    "fetch": "nats.go, fetch, 5,000 at a time",
    "pull": "nats.go, pull, one by one",
    "ordered": "nats.go, ordered, one by one",
}
BY_BATCH = frozenset({"liftpy-batch", "liftpy-values", "liftpy-many", "py-pull", "fetch"})
Row = dict[str, Any]


def stream_of(size_bytes: int) -> str:
    """Its name, in both systems."""
    return f"bench{size_bytes}"


async def fill_ours(url: str, records: dict[int, int]) -> None:
    """``records``: bytes of a record -> how many."""
    async with connect(url) as client:
        for size_bytes, count in records.items():
            await client.create_stream(stream_of(size_bytes), stream_of(size_bytes))
            async with client.producer(stream_of(size_bytes)) as producer:
                for done in range(0, count, 1000):
                    await producer.send_many([b"x" * size_bytes] * min(1000, count - done))


async def fill_theirs(cluster: JetStreamCluster, records: dict[int, int]) -> None:
    """The same records, acknowledged."""
    import nats

    for size_bytes in records:
        await cluster.create(stream_of(size_bytes), stream_of(size_bytes))
    connection = await nats.connect(f"nats://127.0.0.1:{cluster.port}")
    jetstream = connection.jetstream(publish_async_max_pending=4000)
    for size_bytes, count in records.items():
        for _ in range(count):
            await jetstream.publish_async(stream_of(size_bytes), b"x" * size_bytes, wait_stall=60.0)
        await jetstream.publish_async_completed()
        stored = (await jetstream.stream_info(stream_of(size_bytes))).state.messages
        if stored != count:
            raise SystemExit(f"JetStream has stored {stored} of {count}")
    await connection.close()


def row(system: str, how: str, size_bytes: int, run: Row) -> Row:
    """Figures of a run."""
    each_us = 1e6 / run["acked"]
    return {
        "system": system,
        "kind": "batch" if how in BY_BATCH else "record",
        "size_bytes": size_bytes,
        "records_per_s": run["acked"] / run["took_s"],
        "client_cpu_us": run["cpu_s"] * each_us,
        "all_cpu_us": run["all_cpu_s"] * each_us,
    }


class Peers:
    """Both clusters, filled. ``say`` is told who is left out, once."""

    def __init__(self, stack: ExitStack, records: dict[int, int], say: Any) -> None:
        self.sizes = list(records)
        self._say = say
        self._ours = stack.enter_context(DevCluster(3))
        assert self._ours.nats is not None
        self._port = self._ours.nats.port
        self._pids = [self._ours.nats.pid, *(node.pid for node in self._ours.nodes.values())]
        asyncio.run(fill_ours(self._ours.nats_url, records))
        self._theirs = stack.enter_context(JetStreamCluster(sync_always=False))
        asyncio.run(fill_theirs(self._theirs, records))
        self._go: tuple[list[str], Path] | None = None
        try:
            self._go = GO.ready()
        except MissingError as error:
            say(f"left out: {error}")

    def round(self, seconds: float) -> Iterator[Row]:
        """One run of each reader at each size."""
        words = [sys.executable, "-m", "sidecar.bench.consumer"]
        for size_bytes in self.sizes:
            given = [stream_of(size_bytes), str(seconds)]
            for how, name in OURS.items():
                yield row(name, how, size_bytes, measure_process([*words, str(self._port), *given, how], None, self._pids))
            for how, name in PY.items():
                run = measure_process([*words, str(self._theirs.port), *given, how], None, self._theirs.pids)
                yield row(name, how, size_bytes, run)
            for how, name in GO_HOW.items() if self._go is not None else ():
                assert self._go is not None
                command, folder = self._go
                asked = [*command, f"nats://127.0.0.1:{self._theirs.port}", *given, how]
                try:
                    run = measure_process(asked, folder, self._theirs.pids)
                except SystemExit as error:  # on a busy machine it may hear no heartbeat of its consumer
                    self._say(f"a run is left out: {name}, {size_bytes} B: {error}")
                    continue
                yield row(name, how, size_bytes, run)


def rows(seconds: float, rounds: int, records: dict[int, int], say: Any) -> list[Row]:
    """The medians, by reader and size."""
    runs: dict[tuple[str, int], list[Row]] = {}
    with ExitStack() as stack:
        peers = Peers(stack, records, say)
        for _ in range(rounds):
            for found in peers.round(seconds):
                runs.setdefault((found["system"], found["size_bytes"]), []).append(found)
    return with_ratios([median(same) for same in runs.values()])


def with_ratios(found: list[Row]) -> list[Row]:
    """Each row with ``ours_to_theirs`` and ``ours_to_theirs_cpu``: liftpy's rate divided by its own, and its CPU by liftpy's, of the
    same kind and size (by batch: with the values as bytes, which is what theirs have)."""
    ours = {
        (one["kind"], one["size_bytes"]): one
        for one in found
        if one["system"] in (OURS["liftpy-values"], OURS["liftpy-record"])
    }
    return [
        {
            **one,
            "ours_to_theirs": ours[one["kind"], one["size_bytes"]]["records_per_s"] / one["records_per_s"],
            "ours_to_theirs_cpu": one["all_cpu_us"] / ours[one["kind"], one["size_bytes"]]["all_cpu_us"],
        }
        for one in found
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peer.consume", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="100,1000", help="bytes of a record, with commas")
    parser.add_argument("--records", type=int, default=500_000, help="of 100 B; of larger ones as many as make the same bytes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    records = {int(text): max(given.records * 100 // int(text), 1000) for text in given.sizes.split(",")}
    found = rows(given.seconds, given.rounds, records, lambda text: print(text, file=sys.stderr))
    if given.json:
        print(json.dumps(found))
        return
    for one in found:
        ratio = "" if one["system"].startswith("liftpy") else f"  liftpy: {one['ours_to_theirs']:.1f} x, "
        ratio += f"{one['ours_to_theirs_cpu']:.1f} x for each us" if ratio else ""
        print(
            f"{one['system']:<34} {one['size_bytes']:>5} B {one['records_per_s']:>10,.0f}/s "
            f"{one['client_cpu_us']:>7.2f} us of the client, {one['all_cpu_us']:>7.2f} us of all{ratio}"
        )


if __name__ == "__main__":
    main()
