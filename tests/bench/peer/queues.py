"""Work queues side by side: ``python -m tests.bench.peer.queues [--seconds S] [--rounds N] [--batches 1,10,100,1000] [--json]``.

A stream of three replicas in liftpy and one in JetStream with ``sync_interval: always``, both filled with the same records once. Then
one worker of each takes so many at a time, acknowledges them, waits until all of these acknowledgements are confirmed, and so on, in
turn, one round after the other, each in a process of its own: ``client.queue``, and nats-py's durable pull consumer with ``ack_sync``.
Medians of the rounds; CPU is of all processes, client and servers, in us a record; the times are those of acknowledging a batch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any

from sidecar.bench.cases import measure_process
from sidecar.bench.systems import JetStreamCluster
from sidecar.dev.cluster import DevCluster
from tests.bench.peer.batches import median
from tests.bench.peer.consume import fill_ours, fill_theirs, stream_of

SIZE_BYTES = 100
SYSTEMS = {"liftpy": "liftpy, client.queue", "py-pull": "JetStream, sync always, nats-py's pull consumer"}
Row = dict[str, Any]


def row(how: str, batch: int, run: Row) -> Row:
    """Figures of a run."""
    return {
        "system": SYSTEMS[how],
        "batch": batch,
        "records_per_s": run["acked"] / run["took_s"],
        "all_cpu_us": run["all_cpu_s"] * 1e6 / run["acked"],
        "p50_s": run["p50_s"],
        "p99_s": run["p99_s"],
    }


def runs(seconds: float, rounds: int, batches: list[int], records: int) -> Iterator[Row]:
    """Each system with each batch, once a round."""
    words = [sys.executable, "-m", "tests.bench.peer.queue_worker"]
    with DevCluster(3) as ours, JetStreamCluster(sync_always=True) as theirs:
        assert ours.nats is not None
        asyncio.run(fill_ours(ours.nats_url, {SIZE_BYTES: records}))
        asyncio.run(fill_theirs(theirs, {SIZE_BYTES: records}))
        where = {
            "liftpy": (ours.nats.port, [ours.nats.pid, *(node.pid for node in ours.nodes.values())]),
            "py-pull": (theirs.port, theirs.pids),
        }
        for _ in range(rounds):
            for batch in batches:
                for how, (port, pids) in where.items():
                    given = [str(port), stream_of(SIZE_BYTES), str(seconds), how, str(batch)]
                    yield row(how, batch, measure_process([*words, *given], None, pids))


def with_ratios(found: list[Row]) -> list[Row]:
    """Each row with ``ours_to_theirs``: liftpy's rate with the same batch, divided by its own."""
    ours = {one["batch"]: one["records_per_s"] for one in found if one["system"] == SYSTEMS["liftpy"]}
    return [{**one, "ours_to_theirs": ours[one["batch"]] / one["records_per_s"]} for one in found]


def rows(seconds: float, rounds: int, batches: list[int], records: int) -> list[Row]:
    """The medians."""
    same: dict[tuple[str, int], list[Row]] = {}
    for found in runs(seconds, rounds, batches, records):
        same.setdefault((found["system"], found["batch"]), []).append(found)
    return with_ratios([median(each) for each in same.values()])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peer.queues", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", default="1,10,100,1000", help="records taken at a time, with commas")
    parser.add_argument("--records", type=int, default=1_000_000, help="of 100 B in each stream")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    found = rows(given.seconds, given.rounds, [int(text) for text in given.batches.split(",")], given.records)
    if given.json:
        print(json.dumps(found))
        return
    for one in found:
        ratio = "" if one["system"].startswith("liftpy") else f"  liftpy: {one['ours_to_theirs']:.2f} x"
        times = f"acks p50 {one['p50_s'] * 1e3:.1f} ms, p99 {one['p99_s'] * 1e3:.1f} ms"
        rates = f"{one['records_per_s']:>9,.0f}/s {one['all_cpu_us']:>8.1f} us of all"
        print(f"{one['system']:<48} {one['batch']:>5} at a time {rates}, {times}{ratio}")


if __name__ == "__main__":
    main()
