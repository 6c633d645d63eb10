"""How fast Spark reads a stream: ``python -m tests.bench.spark [--nodes 3] [--sizes 100,1000] [--cases sum,group] [--rounds N]``.

Side by side in one run: our source over a real cluster (three nodes, as many replicas), Spark's Kafka source over a real broker,
Spark's scan of the same rows in Parquet, a prepared Arrow batch that a Python source sends again and again, and a pull consumer of
JetStream's (nats-py, without Spark). The systems take turns within each round, in changing order; figures are the medians of the
rounds, and the CPU is that of all processes: driver JVM, Python workers, nodes, broker, nats-server. A peer that can't be had is left
out, with the reason.

Cases: ``sum`` (of the values' lengths, all columns there), ``value`` (the same of ``columns=value``), ``group`` (by key, 1000 of
them), ``offsets`` (``columns=offset,timestamp``), ``micro`` (micro-batches of 100,000), ``latency`` (one record at a time at trigger
0), ``pull`` (JetStream). ``--partitions 1,2,8`` is by input partitions, ``--micro 10000,100000`` by micro-batch size. ``--nodes 0``: a
node that serves from memory, no cluster.
``--files``: tasks read segment files of a node on their host instead of over NATS.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from liftpy.spark.session import local_session
from sidecar.bench.cases import measure_process
from sidecar.bench.systems import JetStreamCluster
from tests.bench.peer import consume
from tests.bench.spark import runs
from tests.bench.spark.prepared import PreparedSource
from tests.bench.spark.runs import Meter, Run
from tests.bench.spark.systems import CONNECTOR, Kafka, Ours, Parquet, Prepared, Shape
from tests.clients.build import ROOT, MissingError

SCANS = {"sum": ("sum", ""), "value": ("sum", "value"), "group": ("group", ""), "offsets": ("offsets", "offset,timestamp")}
"""Case -> (query, option ``columns``)."""
CASES = (*SCANS, "micro", "latency", "pull")
_PULL = "JetStream pull consumer (nats-py, no Spark)"
_PULLED = 100_000
_PULL_S = 3.0
Row = dict[str, Any]


class Bench:
    """All systems, filled. ``say`` is told who is left out."""

    def __init__(self, stack: ExitStack, given: argparse.Namespace, say: Callable[[str], None]) -> None:
        self._given, self._say = given, say
        self._cases = given.cases.split(",")
        counts = [int(text) for text in given.partitions.split(",")]
        sizes = [int(text) for text in given.sizes.split(",")]
        self._shapes = [Shape(size, _records(given.records, size, count), count) for size in sizes for count in counts]
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        wanted = [] if given.alone else given.peers.split(",")
        jars = self._jars() if "kafka" in wanted else []
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._spark = local_session(
            "bench", fast_start=given.quick, settings={"spark.driver.extraClassPath": ":".join(jars)} if jars else None
        )
        stack.callback(self._spark.stop)
        self._spark.dataSource.register(PreparedSource)
        self._ours = Ours(stack, given.nodes, local_file_reads=given.files)
        self._kafka = Kafka(stack) if jars else None
        self._peers = [
            self._kafka,
            Parquet(folder) if "parquet" in wanted else None,
            Prepared() if "prepared" in wanted else None,
        ]
        self._systems = [one for one in (self._ours, *self._peers) if one is not None]
        self._order = list(self._systems)
        self._meter = Meter(lambda: [pid for one in self._systems for pid in one.pids])
        self._jetstream: JetStreamCluster | None = None
        if "pull" in self._cases:
            self._jetstream = stack.enter_context(JetStreamCluster(sync_always=False))
        self._fill()

    def _jars(self) -> list[str]:
        """Of the connector; empty where Kafka is left out."""
        try:
            _, folder = CONNECTOR.ready()
        except MissingError as error:
            self._say(f"Spark's Kafka source is left out: {error}")
            return []
        return [str(jar) for jar in sorted((folder / "target" / "dependency").glob("*.jar"))]

    def _fill(self) -> None:
        for shape in self._shapes:
            self._ours.fill(shape)
            for system in self._systems:
                if isinstance(system, Kafka | Parquet):
                    system.fill_from(self._spark, shape, self._ours.frame(self._spark, shape))
        if "latency" in self._cases:
            self._ours.fill(runs.LATENCY)
            if self._kafka is not None:
                self._kafka.create(self._spark, runs.LATENCY)
        if self._jetstream is not None:
            sizes = {shape.size_bytes: _PULLED for shape in self._shapes}
            asyncio.run(consume.fill_theirs(self._jetstream, sizes))

    def round(self, number: int) -> Iterator[tuple[str, str, Run]]:
        """(case, system, run): each case by each system once, every second round in the opposite order: who is first pays for what the
        JVM still compiles."""
        self._systems.sort(key=self._order.index, reverse=bool(number % 2))
        for shape in self._shapes:
            label = f"{shape.size_bytes} B, {shape.partitions} partitions"
            for case in self._cases:
                if case in SCANS:
                    for system in self._systems:
                        yield f"{case}, {label}", system.name, self._scan(system, shape, case)
                elif case == "micro":
                    yield from self._micro(shape, label)
        if "latency" in self._cases:
            for system in (one for one in self._systems if one.streams):
                if system is self._ours and not self._given.nodes:
                    self._say("latency is left out: a node that serves from memory takes no records")
                    continue
                yield "latency", system.name, runs.latency(self._meter, self._spark, system, self._given.latencies)
        if self._jetstream is not None:
            for size in {shape.size_bytes for shape in self._shapes}:
                yield f"pull, {size} B", _PULL, self._pull(size)

    def _micro(self, shape: Shape, label: str) -> Iterator[tuple[str, str, Run]]:
        """By each size of a micro-batch that the shape has two of."""
        sizes = [int(text) for text in self._given.micro.split(",")]
        for size in (one for one in sizes if one < shape.records):
            case = f"micro, {label}" if len(sizes) == 1 else f"micro {size:,}, {label}"
            for system in (one for one in self._systems if one.streams):
                yield case, system.name, runs.micro_batches(self._meter, self._spark, system, shape, size)

    def _scan(self, system: Any, shape: Shape, case: str) -> Run:
        return runs.scan(self._meter, self._spark, system, shape, *SCANS[case])

    def _pull(self, size_bytes: int) -> Run:
        assert self._jetstream is not None
        words = [sys.executable, "-m", "sidecar.bench.consumer", str(self._jetstream.port)]
        found = measure_process([*words, consume.stream_of(size_bytes), str(_PULL_S), "py-pull"], None, self._jetstream.pids)
        return Run(found["acked"], found["took_s"], found["all_cpu_s"])

    def warm(self, times: int) -> None:
        """Let the JVM compile what the scans need."""
        for _ in range(times):
            for shape in self._shapes:
                for case in SCANS.keys() & set(self._cases):
                    for system in self._systems:
                        self._scan(system, shape, case)


def _records(wanted: int, size_bytes: int, partitions: int) -> int:
    """So many of 100 B, of larger ones a quarter; the same in each partition."""
    count = wanted if size_bytes <= 100 else wanted // 4
    return max(count - count % partitions, partitions)


def rows(given: argparse.Namespace, say: Callable[[str], None]) -> list[Row]:
    """The medians, by case and system."""
    found: dict[tuple[str, str], list[Run]] = {}
    with ExitStack() as stack:
        bench = Bench(stack, given, say)
        bench.warm(given.warm)
        for number in range(given.rounds):
            say(f"round {number + 1} of {given.rounds}, load {os.getloadavg()[0]:.1f}")
            for case, system, run in bench.round(number):
                found.setdefault((case, system), []).append(run)
    return with_ratios([_row(case, system, same) for (case, system), same in found.items()])


def _row(case: str, system: str, same: list[Run]) -> Row:
    row: Row = {
        "case": case,
        "system": system,
        "records_per_s": statistics.median(run.records / run.took_s for run in same),
        "cpu_us": statistics.median(run.cpu_s / run.records * 1e6 for run in same),
    }
    if each := [one for run in same for one in run.each_ms]:
        row["p50_ms"] = statistics.median(each)
    steps = {step: [one for run in same for one in run.steps_ms.get(step, ())] for run in same for step in run.steps_ms}
    if steps:
        row["steps_ms"] = {step: statistics.median(took) for step, took in sorted(steps.items())}
    return row


def with_ratios(found: list[Row]) -> list[Row]:
    """Each row of a peer with ``ours_to_theirs`` (rate; of latencies: how often theirs fits into ours) and ``cpu_ours_to_theirs``."""
    ours = {row["case"]: row for row in found if row["system"] == Ours.name}
    for size in {row["case"].split(",")[1] for row in found if row["case"].startswith("sum,")}:
        ours[f"pull,{size}"] = next(row for case, row in ours.items() if case.startswith(f"sum,{size},"))
    for row in found:
        mine = ours.get(row["case"])
        if mine is None or mine is row:
            continue
        by = "p50_ms" if "p50_ms" in row else "records_per_s"
        row["ours_to_theirs"] = mine[by] / row[by]
        row["cpu_ours_to_theirs"] = mine["cpu_us"] / row["cpu_us"]
    return found


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spark", description=__doc__)
    parser.add_argument("--nodes", type=int, default=3, help="of our cluster; 0: from memory, no cluster")
    parser.add_argument("--sizes", default="100,1000", help="bytes of a value, with commas")
    parser.add_argument("--records", type=int, default=1_000_000, help="of 100 B; of larger ones a quarter")
    parser.add_argument("--partitions", default="2", help="input partitions, with commas")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--micro", default=str(runs.MICRO_BATCH), help="records of a micro-batch, with commas")
    parser.add_argument("--latencies", type=int, default=15, help="records of a round whose latency is taken")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=3, help="scans before the first round")
    parser.add_argument("--quick", action="store_true", help="a JVM that starts soon and computes slowly: figures say little")
    parser.add_argument("--peers", default="kafka,parquet,prepared", help="beside ours, with commas")
    parser.add_argument("--alone", action="store_true", help="our source and nothing beside it")
    parser.add_argument("--files", action="store_true", help="our nodes offer their segment files, and tasks read those")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(words)
    if unknown := set(given.cases.split(",")) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    return given


def main() -> None:
    """Measure and print."""
    given = parsed()
    found = rows(given, lambda text: print(text, file=sys.stderr, flush=True))
    if given.json:
        print(json.dumps(found))
        return
    for row in found:
        rate = f"p50 {row['p50_ms']:,.0f} ms" if "p50_ms" in row else f"{row['records_per_s']:,.0f} records/s"
        line = f"{row['case']:<28} {row['system']:<24.24} {rate:>20} {row['cpu_us']:>9.2f} us of CPU each"
        if "ours_to_theirs" in row:
            line += f"  liftpy: {row['ours_to_theirs']:.2f} x, CPU {row['cpu_ours_to_theirs']:.2f} x"
        print(line)
        if "steps_ms" in row:
            print("    of a micro-batch: " + ", ".join(f"{step} {ms:,.0f} ms" for step, ms in row["steps_ms"].items()))


if __name__ == "__main__":
    main()
