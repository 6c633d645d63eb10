"""How large and how fast the control plane is: ``python tests/bench/cluster/bench_image.py [--nodes N] [--partitions P]``.

Builds a cluster through its own state machine (1,000 nodes and 100,000 partitions unless told otherwise), then measures
the image's memory and bytes, snapshot and restore, each kind of request, a difference, and what a new node is fed.
Prints one line per figure, or ``--json``.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from liftpy.core.metadata.codec import decode_snapshot, encode_snapshot, image_to_bytes
from liftpy.core.metadata.feed import CHUNK_SIZE_BYTES, FeedProducer, FeedSubscription
from liftpy.core.metadata.image_delta import diff
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import born_fsm, registration


class Bench:
    def __init__(self, nodes: int, partitions: int, streams: int) -> None:
        self.fsm = born_fsm(elections=True)
        self.index = 0
        self.nodes = [f"node-{number:04}" for number in range(nodes)]
        self.streams = [f"stream-{number:04}" for number in range(streams)]
        self.per_stream = partitions // streams
        self.figures: dict[str, float] = {}

    def entry(self, **request: Any) -> bytes:
        self.index += 1
        message = pb.ControlRequest(operationId=self.index.to_bytes(16, "big"), timeNs=10**18 + self.index * 10**6, **request)
        return message.SerializeToString()

    def ask(self, **request: Any) -> pb.ControlResponse:
        response = pb.ControlResponse.FromString(self.fsm.apply(self.entry(**request), self.index))
        assert response.error == pb.ControlResponse.OK, response
        return response

    def timed(self, name: str, call: Callable[[], Any], scale: float = 1e3) -> Any:
        gc.collect()
        start = time.perf_counter()
        result = call()
        self.figures[name] = round((time.perf_counter() - start) * scale, 3)
        return result

    def build(self) -> None:
        for node in self.nodes:
            self.ask(registerNode=registration(nodeId=node, rack=f"rack-{node[-1]}", statusAddress="10.0.0.1:9000"))
        for name in self.streams:
            create = pb.CreateStream(name=name, subject=f"data.{name}", partitions=self.per_stream, replicationFactor=3)
            self.ask(createStream=create)

    def isr_entries(self, count: int) -> list[bytes]:
        """One change of the ISR for each of ``count`` partitions, or of all there are."""
        entries = []
        for number in range(min(count, self.per_stream * len(self.streams))):
            stream = self.fsm.image.streams[self.streams[number % len(self.streams)]]
            partition = stream.partitions[number // len(self.streams)]
            change = pb.ChangeIsr(
                stream=stream.name, uid=stream.uid, partition=partition.partition, leader=partition.leader,
                leaderEpoch=partition.leader_epoch, epoch=partition.epoch,
                isr=partition.isr[:2] if len(partition.isr) > 2 else (partition.leader,),
            )  # fmt: skip
            entries.append(self.entry(changeIsr=change))
        return entries

    def applies(self, name: str, entries: list[bytes]) -> None:
        first = self.index - len(entries) + 1
        gc.collect()
        times = []
        for number, entry in enumerate(entries):
            start = time.perf_counter()
            self.fsm.apply(entry, first + number)
            times.append((time.perf_counter() - start) * 1e6)
        self.figures[f"apply {name}: p50 us"] = round(statistics.median(times), 1)
        self.figures[f"apply {name}: p99 us"] = round(sorted(times)[int(len(times) * 0.99)], 1)

    def run(self) -> None:
        tracemalloc.start()
        self.build()
        gc.collect()
        self.figures["image memory MB"] = round(tracemalloc.get_traced_memory()[0] / 1e6, 1)
        tracemalloc.stop()
        self.figures["image bytes MB"] = round(len(image_to_bytes(self.fsm.image)) / 1e6, 2)
        data = self.timed("snapshot ms", self.fsm.snapshot)
        self.figures["snapshot MB"] = round(len(data) / 1e6, 2)
        self.timed("restore ms", lambda: decode_snapshot(data))
        old = self.fsm.image
        self.applies("ChangeIsr", self.isr_entries(2000))
        self.timed("diff over 2000 changes ms", lambda: diff(old, self.fsm.image))
        before = self.fsm.image
        self.applies("ChangeIsr again", self.isr_entries(1))
        self.timed("diff over 1 change ms", lambda: diff(before, self.fsm.image))
        self.applies("Barrier", [self.entry(barrier=pb.Barrier()) for _ in range(2000)])
        self.applies("RegisterNode (restart)", self.restarts(100))
        self.feed()
        fencing = [
            self.entry(fenceNode=pb.FenceNode(nodeId=node, incarnation=self.fsm.image.nodes[node].incarnation))
            for node in self.nodes[: max(len(self.nodes) // 10, 1)]
        ]
        self.applies("FenceNode, all that it leads elected anew", fencing)
        small = [self.entry(createStream=pb.CreateStream(name=f"new-{n}", subject=f"x.{n}", partitions=1)) for n in range(500)]
        self.applies("CreateStream of 1 partition", small)
        self.figures["peak RSS MB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)

    def restarts(self, count: int) -> list[bytes]:
        return [
            self.entry(
                registerNode=registration(
                    nodeId=node, previousIncarnation=self.fsm.image.nodes[node].incarnation, flushedAlways=True
                )
            )
            for node in self.nodes[:count]
        ]

    def feed(self) -> None:
        producer, subscription = FeedProducer(self.fsm.image.index), FeedSubscription("new")
        image = self.fsm.image
        data = self.timed("feed: encode snapshot ms", lambda: encode_snapshot(image, operations=False))
        producer.snapshot_is_ready(image.index, data)
        self.figures["feed: snapshot MB"] = round(len(data) / 1e6, 2)
        self.figures["feed: chunks"] = -(-len(data) // CHUNK_SIZE_BYTES)

        def fetch() -> None:
            while (request := subscription.request(0)) is not None:
                response = producer.answer(request)
                assert response is not None
                subscription.response_received(response)

        self.timed("feed: a new node takes it ms", fetch)
        assert subscription.synced
        assert subscription.image.streams == image.streams
        self.feed_entries(producer, subscription)

    def feed_entries(self, producer: FeedProducer, subscription: FeedSubscription) -> None:
        entries = self.isr_entries(1000)
        first = self.index - len(entries) + 1
        for number, entry in enumerate(entries):
            self.fsm.apply(entry, first + number)
            producer.entry_applied(first + number, self.fsm.last_records)
        per_change = 1e6 / len(entries)
        published = self.timed("feed: make entries, us per change", producer.take_entries, per_change)
        self.timed("feed: take entries, us per change", lambda: [subscription.entry_received(e) for e in published], per_change)
        assert subscription.image.streams == self.fsm.image.streams
        self.figures["feed: bytes per change"] = round(sum(e.ByteSize() for e in published) / len(entries), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    bench = Bench(arguments.nodes, arguments.partitions, arguments.streams)
    bench.run()
    if arguments.json:
        print(json.dumps(bench.figures))
        return
    for name, figure in bench.figures.items():
        print(f"{name:55} {figure:12,}")


if __name__ == "__main__":
    main()
