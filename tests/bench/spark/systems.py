"""What Spark reads from: a cluster of ours, Kafka, Parquet, a prepared batch. Each holds the same records under the same columns.

A system says which processes are its own, so that what each query costs is counted where it arises: the CPU of a run is that of the
driver's tree (JVM, Python workers) and of the system's processes, not of the other systems, which idle meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from liftpy.client import connect
from liftpy.core.wire.batch import build_batch
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import NatsServer
from tests.bench.peer.kafka import KafkaCluster
from tests.bench.spark.prepared import KEYS
from tests.clients.build import Program
from tests.fake_node import FakeNode, fake_node_in_thread

CONNECTOR = Program(
    name="Spark's Kafka connector 4.2.0",
    sources="connector",
    folder=Path(__file__).parent / "programs",
    tools=("java", "mvn"),
    build="mvn -q dependency:copy-dependencies",
    run=("java",),
)
BATCH_RECORDS = {100: 4000, 1000: 900}
"""Records sent at once to our producer: a batch of up to a message."""
_SEED = 1


class Shape:
    """``records`` of ``size_bytes`` each, spread over ``partitions``."""

    def __init__(self, size_bytes: int, records: int, partitions: int) -> None:
        self.size_bytes, self.records, self.partitions = size_bytes, records, partitions

    @property
    def name(self) -> str:
        """Of the stream, topic or folder."""
        return f"b{self.size_bytes}p{self.partitions}"


def batches(shape: Shape) -> Iterator[tuple[int, list[bytes], list[bytes]]]:
    """(partition, keys, values) that together make up ``shape``: new noise in each, or Parquet would store a dictionary."""
    source = random.Random(_SEED)
    most = BATCH_RECORDS.get(shape.size_bytes, max(1, 900_000 // shape.size_bytes))
    left = [shape.records // shape.partitions] * shape.partitions
    while any(left):
        for partition in range(shape.partitions):
            count, size_bytes = min(most, left[partition]), shape.size_bytes
            left[partition] -= count
            noise = source.randbytes(count * size_bytes)
            values = [noise[i * size_bytes : (i + 1) * size_bytes] for i in range(count)]
            if values:
                yield partition, [b"%08d" % (i % KEYS) for i in range(count)], values


class System(Protocol):
    """``name`` as it is printed; ``pids``: roots of its own processes."""

    name: str
    streams: bool

    @property
    def pids(self) -> Sequence[int]:
        """Processes that work for it alone."""

    def fill(self, shape: Shape) -> None:
        """Store the records."""

    def frame(self, spark: Any, shape: Shape, **options: str) -> Any:
        """A DataFrame of them."""

    def stream(self, spark: Any, shape: Shape, **options: str) -> Any:
        """A streaming one, from the first record on."""


class Ours:
    """``nodes`` real nodes, as many replicas; 0: one that serves from memory, in the driver's process."""

    name = "liftpy"
    streams = True

    def __init__(self, stack: ExitStack, nodes: int, *, local_file_reads: bool = False) -> None:
        self._cluster: DevCluster | None = None
        self._fake: FakeNode | None = None
        if nodes:
            settings = {"LIFTPY_LOCAL_FILE_READS": "true"} if local_file_reads else {}
            self._cluster = stack.enter_context(DevCluster(nodes, settings=settings))
            self.url = self._cluster.nats_url
        else:
            nats = stack.enter_context(NatsServer())
            self.url, self._fake = nats.url, stack.enter_context(fake_node_in_thread(nats.url))
            self._nats_pids = [nats.pid]

    @property
    def pids(self) -> Sequence[int]:
        """Nodes and nats-server."""
        if self._cluster is None:
            return self._nats_pids
        assert self._cluster.nats is not None
        return [self._cluster.nats.pid, *(node.pid for node in self._cluster.nodes.values())]

    def fill(self, shape: Shape) -> None:
        """By the producer, acknowledged."""
        if self._fake is not None:
            stream = self._fake.add_stream(shape.name, partitions=shape.partitions)
            for partition, keys, values in batches(shape):
                log = stream.partitions[partition]
                log.append(build_batch(values, keys=keys, base_offset=log.log_end_offset, leader_epoch=1, timestamp_ns=1))
            return
        asyncio.run(self._publish(shape))

    async def _publish(self, shape: Shape) -> None:
        async with connect(self.url) as client:
            await client.create_stream(shape.name, shape.name, partitions=shape.partitions)
            async with client.producer(shape.name) as producer:
                for partition, keys, values in batches(shape):
                    await producer.send_many(values, keys=keys, partition=partition)

    def frame(self, spark: Any, shape: Shape, **options: str) -> Any:
        """``format("liftpy")``."""
        return spark.read.format("liftpy").options(nats=self.url, **options).load(shape.name)

    def stream(self, spark: Any, shape: Shape, **options: str) -> Any:
        """``format("liftpy")``."""
        starting = {"startingOffsets": "earliest", **options}
        return spark.readStream.format("liftpy").options(nats=self.url, **starting).load(shape.name)


class Kafka:
    """Spark's own source, of one broker. ``jars`` are on the driver's class path. Raises MissingError where it can't be had."""

    name = "Spark's Kafka source"
    streams = True

    def __init__(self, stack: ExitStack) -> None:
        self._broker = stack.enter_context(KafkaCluster(brokers=1))

    @property
    def servers(self) -> str:
        """``bootstrap.servers``."""
        return self._broker.servers

    @property
    def pids(self) -> Sequence[int]:
        """The broker."""
        return self._broker.pids

    def create(self, spark: Any, shape: Shape) -> None:
        """A topic of so many partitions."""
        jvm = spark._jvm
        settings = jvm.java.util.HashMap()
        settings.put("bootstrap.servers", self.servers)
        replicas, topics = jvm.java.util.HashMap(), jvm.java.util.ArrayList()
        for partition in range(shape.partitions):
            one = jvm.java.util.ArrayList()
            one.add(1)
            replicas.put(partition, one)
        topics.add(jvm.org.apache.kafka.clients.admin.NewTopic(shape.name, replicas))
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(settings)
        admin.createTopics(topics).all().get()
        admin.close()

    def fill_from(self, spark: Any, shape: Shape, rows: Any) -> None:
        """By Spark's sink, from a DataFrame of ours: the same records in the same partitions, in batches of up to 1 MB."""
        self.create(spark, shape)
        settings = {"kafka.bootstrap.servers": self.servers, "topic": shape.name, "kafka.batch.size": "900000"}
        settings |= {"kafka.linger.ms": "50", "kafka.acks": "all"}
        rows.select("key", "value", "partition").write.format("kafka").options(**settings).save()

    def frame(self, spark: Any, shape: Shape, **options: str) -> Any:
        """``format("kafka")``."""
        given = {"kafka.bootstrap.servers": self.servers, "subscribe": shape.name, **options}
        given.pop("columns", None)  # it prunes by itself
        return spark.read.format("kafka").options(**given).load()

    def stream(self, spark: Any, shape: Shape, **options: str) -> Any:
        """``format("kafka")``."""
        given = {"kafka.bootstrap.servers": self.servers, "subscribe": shape.name, "startingOffsets": "earliest", **options}
        return spark.readStream.format("kafka").options(**given).load()


class Parquet:
    """Spark's scan of the same rows, not compressed."""

    name = "Parquet"
    streams = False
    pids: Sequence[int] = ()

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fill_from(self, _spark: Any, shape: Shape, rows: Any) -> None:
        """From a DataFrame of ours."""
        rows.write.parquet(str(self._folder / shape.name), compression="none")

    def frame(self, spark: Any, shape: Shape, **_options: str) -> Any:
        """``read.parquet``."""
        return spark.read.parquet(str(self._folder / shape.name))


class Prepared:
    """See ``tests.bench.spark.prepared``; needs no filling."""

    name = "a prepared Arrow batch"
    streams = False
    pids: Sequence[int] = ()

    def frame(self, spark: Any, shape: Shape, **_options: str) -> Any:
        """The same batch again and again."""
        given = {"records": shape.records, "bytes": shape.size_bytes, "tasks": shape.partitions}
        return spark.read.format("prepared").options(**given).load()
