"""One run of each case, by whichever system: what it took, in seconds and in CPU of all processes that work for it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from liftpy.client.sync import connect
from tests.bench.spark.processes import tree_cpu_s, trees_cpu_s
from tests.bench.spark.systems import Kafka, Ours, Shape

MICRO_BATCH = 100_000
"""Records of a micro-batch."""
LATENCY = Shape(19, 0, 1)
_QUERY_S = 60.0
_POLL_S = 0.002
_PAUSE_S = (0.15, 0.4)
"""Between two records whose latency is taken, at least and at most: by then the query idles."""


@dataclass(slots=True)
class Run:
    """``records`` in ``took_s``, of which all processes worked ``cpu_s``; ``each_ms``: latencies. ``steps_ms``: what Spark says
    that the steps of a micro-batch took, one by one; all of it is triggerExecution."""

    records: int
    took_s: float = 0.0
    cpu_s: float = 0.0
    each_ms: list[float] = field(default_factory=list)
    steps_ms: dict[str, list[float]] = field(default_factory=dict)

    def note_steps(self, progresses: Iterable[Any]) -> None:
        """Of micro-batches that had records."""
        for one in progresses:
            for step, took_ms in one["durationMs"].items() if one["numInputRows"] else ():
                self.steps_ms.setdefault(step, []).append(float(took_ms))


class Meter:
    """Takes times of the driver's tree and a system's processes. ``others``: roots that are not the driver's."""

    def __init__(self, others: Callable[[], Sequence[int]]) -> None:
        self._others = others

    def cpu_s(self, pids: Sequence[int]) -> float:
        """As of now."""
        return tree_cpu_s(os.getpid(), set(self._others())) + trees_cpu_s(pids)

    @contextmanager
    def over(self, run: Run, pids: Sequence[int]) -> Iterator[None]:
        """Add what passes meanwhile."""
        cpu_s, began = self.cpu_s(pids), time.perf_counter()
        yield
        run.took_s += time.perf_counter() - began
        run.cpu_s += self.cpu_s(pids) - cpu_s


def scan(meter: Meter, spark: Any, system: Any, shape: Shape, what: str, columns: str) -> Run:
    """A batch query: ``what`` is ``sum`` (of the values' lengths), ``group`` (by key), or ``offsets`` (their sum)."""
    run = Run(shape.records)
    options = {"columns": columns} if columns else {}
    with meter.over(run, system.pids):
        frame = system.frame(spark, shape, **options)
        if what == "group":
            found = frame.groupBy("key").count().selectExpr("sum(count)").collect()[0][0]
        elif what == "offsets":
            found = frame.selectExpr("count(offset)").collect()[0][0]
        else:
            found = frame.selectExpr("sum(length(value))").collect()[0][0] // shape.size_bytes
    if found != shape.records:
        raise SystemExit(f"{system.name}: {found} of {shape.records} records")
    return run


def micro_batches(meter: Meter, spark: Any, system: Any, shape: Shape, most: int = MICRO_BATCH) -> Run:
    """A streaming query over the whole, ``most`` records at a time, into nothing; from the end of its first
    micro-batch to that of its last."""
    count = -(-shape.records // most)
    if count < 2:
        raise SystemExit(f"micro-batches of {most} need more than {shape.records} records")
    with tempfile.TemporaryDirectory() as folder:
        frame = system.stream(spark, shape, maxOffsetsPerTrigger=str(most))
        query = (
            frame.writeStream.format("noop").option("checkpointLocation", folder).trigger(processingTime="0 seconds").start()
        )
        try:
            run = Run(0)
            before = _progress(query, 0)
            with meter.over(run, system.pids):
                _progress(query, count - 1)
            after = [one for one in query.recentProgress if one["batchId"] > before]
            run.records = sum(one["numInputRows"] for one in after)
            run.note_steps(after)
        finally:
            query.stop()
    return run


def _progress(query: Any, batch: int) -> int:
    """Wait until the micro-batch ``batch`` has ended; the newest that has."""
    give_up_at = time.monotonic() + _QUERY_S
    while True:
        last = query.lastProgress
        if last is not None and last["batchId"] >= batch:
            return int(last["batchId"])
        if query.exception() is not None or time.monotonic() > give_up_at:
            raise SystemExit(f"a streaming query does not get to micro-batch {batch}: {query.exception()}")
        time.sleep(_POLL_S)


def latency(meter: Meter, spark: Any, system: Any, count: int) -> Run:
    """Records one by one at trigger 0: from before each is published until a ``foreachBatch`` has it."""
    run, seen = Run(count), {}

    def take(rows: Any, _batch: int) -> None:
        for row in rows.select("value").collect():
            seen[bytes(row[0])] = time.time_ns()

    with tempfile.TemporaryDirectory() as folder, _publisher(spark, system) as publish:
        frame = system.stream(spark, LATENCY, startingOffsets="latest")
        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", folder).trigger(processingTime="0 seconds")
        query = writer.start()
        try:
            _first_seen(publish, seen, query)
            for number in range(count + 2):
                time.sleep(_PAUSE_S[0] + (_PAUSE_S[1] - _PAUSE_S[0]) * (number % 7) / 6)
                value = b"%d" % time.time_ns()
                with meter.over(Run(0) if number < 2 else run, system.pids):
                    publish(value)
                    _wait(seen, value, query)
                if number >= 2:
                    run.each_ms.append((seen[value] - int(value)) / 1e6)
            run.note_steps(query.recentProgress[-count:])
        finally:
            query.stop()
    return run


def _first_seen(publish: Callable[[bytes], object], seen: dict[bytes, int], query: Any) -> None:
    """Publish until the query has one: what was stored before it asked for ``latest`` never comes."""
    give_up_at = time.monotonic() + _QUERY_S
    while not seen:
        if time.monotonic() > give_up_at or query.exception() is not None:
            raise SystemExit(f"a query does not begin: {query.exception()}")
        publish(b"%d" % time.time_ns())
        time.sleep(_PAUSE_S[1])


def _wait(seen: dict[bytes, int], value: bytes, query: Any) -> None:
    give_up_at = time.monotonic() + _QUERY_S
    while value not in seen:
        if time.monotonic() > give_up_at or query.exception() is not None:
            raise SystemExit(f"a record does not arrive: {query.exception()}")
        time.sleep(_POLL_S)


@contextmanager
def _publisher(spark: Any, system: Any) -> Iterator[Callable[[bytes], object]]:
    """What publishes one record and waits for its ack."""
    if isinstance(system, Ours):
        with connect(system.url) as client:
            yield lambda value: client.publish(LATENCY.name, value)
        return
    assert isinstance(system, Kafka)
    jvm, settings = spark._jvm, spark._jvm.java.util.HashMap()
    settings.put("bootstrap.servers", system.servers)
    bytes_as_they_are = jvm.org.apache.kafka.common.serialization.ByteArraySerializer
    producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(settings, bytes_as_they_are(), bytes_as_they_are())
    record = jvm.org.apache.kafka.clients.producer.ProducerRecord
    yield lambda value: producer.send(record(LATENCY.name, value)).get()
    producer.close()
