"""``python -m tests.system.spark_source.starts [--starts 30] [--rate 2000]``: new queries begin at ``latest`` on a stream that grows.

There is one Spark session, and a producer that feeds a stream all the time. Each start is of a new query, with a new checkpoint. Every
third one ends with an error within its micro-batch 0, twice, and is restarted. Right is: no query dies by itself, and all
have read every record of each partition from its first offset on, once. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from liftpy.client import connect
from liftpy.spark.session import local_session
from sidecar.dev.cluster import DevCluster

STREAM, PARTITIONS = "starts", 2
_BATCHES, _PATIENCE_S = 3, 240.0
_TOO_SLOW, _TRIES = "Python worker failed to connect back", 8
"""Spark gives a Python worker ten seconds to start; a query that ends so on a busy machine is started again."""
_FORMS = ("latest", "-1s", "-500", '{"starts": {"0": -1, "1": -1}}')


class Feeder(threading.Thread):
    """Publishes ``rate`` records a second until ``stop`` is set."""

    def __init__(self, cluster: DevCluster, rate: int) -> None:
        super().__init__(daemon=True)
        self._cluster, self._rate = cluster, rate
        self.stop, self.ready, self.fed = threading.Event(), threading.Event(), 0

    def run(self) -> None:
        asyncio.run(self._feed())

    async def _feed(self) -> None:
        async with connect(self._cluster.nats_url, self._cluster.namespace) as client:
            await client.create_stream(STREAM, "data.starts", partitions=PARTITIONS)
            async with client.producer(STREAM, partitioner="round-robin") as producer:
                began = time.monotonic()
                while not self.stop.is_set():
                    due = int((time.monotonic() - began) * self._rate) - self.fed
                    if due > 0:
                        await producer.send_many([b"%d" % n for n in range(self.fed, self.fed + due)])
                        self.fed += due
                    self.ready.set()
                    await asyncio.sleep(0.02)


class Start:
    """One new query. ``offsets``: of each partition, as it has read them."""

    def __init__(self, spark: Any, url: str, checkpoint: Path, form: str, fails: int) -> None:
        options = {"nats": url, "maxOffsetsPerTrigger": "4000"}
        self._frame = spark.readStream.format("liftpy").options(**options, startingOffsets=form).load(STREAM)
        self._checkpoint, self._fails = checkpoint, fails
        self._batches: dict[int, list[tuple[int, int]]] = {}
        self.failures: list[str] = []

    def _take(self, frame: Any, number: int) -> None:
        if self._fails:
            self._fails -= 1
            raise RuntimeError("as if killed in micro-batch 0")
        self._batches[number] = [(row[0], row[1]) for row in frame.select("partition", "offset").collect()]

    def go(self) -> None:
        """Run it until it has some micro-batches; it is started again after each failure that is meant."""
        for _ in range(self._fails + _TRIES):
            writer = self._frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self._checkpoint))
            query = writer.trigger(processingTime="0 seconds").start()
            give_up_at = time.monotonic() + _PATIENCE_S
            while query.isActive and len(self._batches) < _BATCHES and time.monotonic() < give_up_at:
                time.sleep(0.05)
            error = query.exception()
            query.stop()
            if error is None:
                return
            if "as if killed" not in str(error) and _TOO_SLOW not in str(error):
                self.failures.append(str(error)[:600])
                return

    def complaints(self) -> list[str]:
        """What is wrong."""
        found = list(self.failures)
        if len(self._batches) < _BATCHES and not found:
            found.append(f"only {len(self._batches)} micro-batches")
        first = json.loads((self._checkpoint / "offsets" / "0").read_text().splitlines()[-1]) if not found else {}
        for partition in range(PARTITIONS if not found else 0):
            offsets = [
                offset for number in sorted(self._batches) for place, offset in self._batches[number] if place == partition
            ]
            began = first[STREAM]["began"][str(partition)]
            if offsets and sorted(offsets) != list(range(began, began + len(offsets))):
                found.append(f"partition {partition} from {began}: {offsets[:3]}... {len(offsets)} records")
        return found


def main() -> int:
    """See the docstring above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=30)
    parser.add_argument("--rate", type=int, default=2000)
    given, began = parser.parse_args(), time.monotonic()
    wrong: list[str] = []
    with DevCluster(3) as cluster, tempfile.TemporaryDirectory(prefix="liftpy-starts-", ignore_cleanup_errors=True) as name:
        feeder = Feeder(cluster, given.rate)
        feeder.start()
        feeder.ready.wait(_PATIENCE_S)
        settings = {"spark.sql.warehouse.dir": f"{name}/warehouse", "spark.local.dir": f"{name}/local"}
        spark = local_session("liftpy starts", settings=settings)
        again = 0
        for number in range(given.starts):
            fails = 2 if number % 3 == 2 else 0
            form = "latest" if number % 5 else _FORMS[number // 5 % len(_FORMS)]
            one = Start(spark, cluster.nats_url, Path(name) / f"checkpoint-{number}", form, fails)
            one.go()
            again += fails
            complaints = one.complaints()
            wrong += [f"start {number} at {form}: {text}" for text in complaints]
            print(f"start {number} at {form}, {fails} failures in micro-batch 0: {complaints or 'right'}", flush=True)
        feeder.stop.set()
        feeder.join(_PATIENCE_S)
        spark.stop()
        took_s = time.monotonic() - began
    print(f"{given.starts} starts, {again} restarts within micro-batch 0, {feeder.fed} records fed, {took_s:.0f} s")
    print("\n".join(wrong) or "all is right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
