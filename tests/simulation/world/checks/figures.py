"""Known work in a quiet cluster, and what status pages, metrics and events must say about it."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from liftpy.client import Client
from liftpy.config import StreamConfig
from liftpy.errors import LiftError, PublishRejectedError
from tests.simulation.world.world import World

_STREAM = "counted"
_RECORDS, _DUPLICATES, _TOO_LARGE = 20, 4, 3
_MOST_MESSAGE_BYTES = 500
_LEAST_ARRIVED = 0.75
"""Smallest share of the bytes of replication that both sides count.

Followers ignore answers of an earlier leader, and the nodes are asked one after another.
"""
_WITHIN_S = 30.0
_TRIES = 3
_SERIES = re.compile(r"^liftpy_(\w+?)(?:\{(.*)\})? ([^ ]+)$", re.MULTILINE)
_ZERO_WHEN_QUIET = (
    "acks_waiting", "held_bytes", "uncommitted_bytes", "uncommitted_records", "ingest_buffer_bytes", "partitions_under_replicated",
    "partitions_under_min_isr", "partitions_failed", "partitions_paused", "partitions_moving", "replica_lag_records",
    "fragment_reassembly_bytes", "scrape_stale_partitions", "cluster_partitions_offline", "cluster_partitions_electing",
    "cluster_streams_waiting",
)  # fmt: skip
_EXACT = {
    "records_in": _RECORDS,
    "batches_in": _RECORDS,
    "duplicates": _DUPLICATES,
    "rejected": _TOO_LARGE,
    "waiting_acks": 0,
    "held_bytes": 0,
    "uncommitted_bytes": 0,
}
"""Field of the row of a partition -> its sum over the replicas after the work."""
_EVENTS = Counter({"stream_created": 1, "stream_altered": 1, "pause_changed": 2, "partitions_added": 1, "stream_deleted": 1})
_REQUESTS = Counter(
    {"createStream": 1, "alterStream": 1, "electLeader": 1, "pausePartitions": 2, "addPartitions": 1, "deleteStream": 1}
)
Series = dict[tuple[str, str], float]
"""(Name, labels) -> value of each series of a node's metrics."""


@dataclass
class _Figures:
    """Figures that the nodes report."""

    rows: list[dict[str, Any]]
    """Rows of the stream's partition 0, one for each replica."""
    metrics: list[Series]

    def total(self, name: str, labels: str = "") -> float:
        """Return the sum of a metric over the nodes and the series whose labels contain ``labels``."""
        return sum(values(self.metrics, name, labels))

    def most(self, name: str, labels: str = "") -> float:
        """Return the largest value of a metric."""
        return max(values(self.metrics, name, labels), default=0)


def values(metrics: Iterable[Series], name: str, labels: str = "") -> list[float]:
    """Return the values of the metric ``name`` in the series whose labels contain ``labels``."""
    return [value for one in metrics for (known, text), value in one.items() if known == name and labels in text]


async def check_figures(world: World) -> None:
    """Do the work, and compare it with what nodes report. A node that restarts forgets its counters: then the work is repeated."""
    async with world.connect() as client:
        for number in range(_TRIES):
            lives = [node.lives for node in world.nodes]
            try:
                wrong = await _check(world, client, f"{_STREAM}{number}")
            except LiftError as error:
                wrong = repr(error)
            if not wrong:
                return
            if lives == [node.lives for node in world.nodes]:
                world.scheduler.violated(f"figures of known work: {wrong}")
                return


async def _check(world: World, client: Client, stream: str) -> str:
    since_ns = world.nodes[0].process.wall_ns() if world.nodes[0].process is not None else 0
    config = StreamConfig(max_message_bytes=_MOST_MESSAGE_BYTES)
    leader = (await client.create_stream(stream, f"{stream}.x", config=config, ready_s=10)).partitions[0].leader
    before = await _figures(world, client, stream)
    successor = await _work(client, stream, leader)
    loop = asyncio.get_running_loop()
    end_s = loop.time() + _WITHIN_S
    while wrong := _compare(before, await _figures(world, client, stream)) or await _whole(world, client):
        if loop.time() >= end_s:
            return wrong
        await asyncio.sleep(0.5)
    await client.admin.delete_stream(stream)
    return await _wrong_events(client, stream, since_ns, leader, successor)


async def _work(client: Client, stream: str, leader: str) -> str:
    """Publish, publish again, publish too much, read, and change the stream. Return the leader at the end."""
    for number in range(_RECORDS):
        await client.publish(stream, b"record-%d" % number, msg_id=f"id-{number}")
    for number in range(_DUPLICATES):
        await client.publish(stream, b"record-%d" % number, msg_id=f"id-{number}")
    for _ in range(_TOO_LARGE):
        try:
            await client.publish(stream, bytes(2 * _MOST_MESSAGE_BYTES))
        except PublishRejectedError:
            pass
    async for _ in client.consume(stream, 0, start="earliest", until="end"):
        pass
    await client.admin.alter_stream(stream, retention_age_s=3600.0)
    await client.admin.pause(stream, [0])
    await client.admin.resume(stream, [0])
    state = (await client.admin.stream(stream)).partitions[0]
    successor = next(node for node in state.isr if node != leader)
    await client.admin.elect_leader(stream, 0, successor)
    await client.admin.add_partitions(stream, 2, ready_s=10)
    return successor


async def _figures(world: World, client: Client, stream: str) -> _Figures:
    rows, metrics = [], []
    for node in world.nodes:
        status = await client.admin.node_status(node.name)
        rows += [row for row in status["partitions"] if (row["stream"], row["partition"]) == (stream, 0)]
        metrics.append(await metrics_of(client, node.name))
    return _Figures(rows, metrics)


def _compare(before: _Figures, after: _Figures) -> str:
    """Return what is wrong with the figures, '' if they say what has happened."""
    counted = {field: sum(row[field] for row in after.rows) for field in _EXACT}
    if wrong := {field: (counted[field], wanted) for field, wanted in _EXACT.items() if counted[field] != wanted}:
        return f"(counted, happened) {wrong}"
    last = {(row["high_watermark"], row["newest_offset"], row["flushed_offset"], row["log_start_offset"]) for row in after.rows}
    if last != {(_RECORDS - 1, _RECORDS - 1, _RECORDS - 1, 0)}:
        return f"(HW, newest, flushed, first) {last}"
    if idle := [row["leader"] for row in after.rows if not row["flushes"] or not row["log_bytes"]]:
        return f"a replica of {idle} has no flush or an empty log"
    grew = {name: after.total(name, labels) - before.total(name, labels) for name, labels, _ in _LEAST}
    if small := {name: (grew[name], least) for name, _, least in _LEAST if grew[name] < least}:
        return f"(grew by, happened at least) {small}"
    traffic = [
        after.total("replication_bytes_total", way) - before.total("replication_bytes_total", way) for way in ("in", "out")
    ]
    if min(traffic) < _LEAST_ARRIVED * max(traffic):
        return f"bytes of replication (in, out) {traffic}"
    transfers = after.most("cluster_elections_total", "transfer") - before.most("cluster_elections_total", "transfer")
    if not transfers:
        return "a transfer was not counted"
    if busy := {name: value for name in _ZERO_WHEN_QUIET if (value := after.total(name))}:
        return f"not 0 in a quiet cluster: {busy}"
    return ""


_LEAST = (
    ("ingest_records_total", "", _RECORDS),
    ("ingest_bytes_total", "", 8 * _RECORDS),
    ("ingest_batch_records_count", "", _RECORDS),
    ("ingest_queue_seconds_count", "", _RECORDS),
    ("ack_duration_seconds_count", "all", _RECORDS),
    ("commit_duration_seconds_count", "", 1),
    ("fetch_duration_seconds_count", "", 2),
    ("log_flush_duration_seconds_count", "", 3),
    ("log_flushes_total", "", 3),
    ("publish_duplicates_total", "", _DUPLICATES),
    ("publish_rejected_total", "", _TOO_LARGE),
    ("read_records_total", "", _RECORDS),
    ("read_bytes_total", "", 8 * _RECORDS),
    ("read_duration_seconds_count", "", 1),
    ("metadata_proposal_duration_seconds_count", "", 1),
    ("metadata_fsync_duration_seconds_count", "", 3),
    ("nats_messages_total", "in", 5 * _RECORDS),
    ("nats_messages_total", "out", 5 * _RECORDS),
    ("nats_bytes_total", "in", 40 * _RECORDS),
    ("nats_bytes_total", "out", 40 * _RECORDS),
)
"""Metric, text in its labels, and the least number by which the work makes its sum over the nodes grow."""


async def _whole(world: World, client: Client) -> str:
    """Return what is wrong with the figures of the whole cluster."""
    names = [node.name for node in world.nodes]
    status = {name: await client.admin.node_status(name) for name in names}
    metrics = {name: (await metrics_of(client, name)) for name in names}
    streams = await client.admin.list_streams(internal=True)
    controllers = await client.admin.controller_ids()
    leaders = {one["metadata_leader"] for one in status.values()}
    if len(leaders) != 1 or "" in leaders:
        return f"metadata leaders {leaders}"
    for name in names:
        found, page = metrics[name], status[name]
        one = {
            "nats_connected": 1,
            "metadata_has_leader": 1,
            "metadata_is_leader": int(leaders == {name}),
            "partitions": len(page["partitions"]),
        }
        if name in controllers:
            one |= {"cluster_nodes": len(names), "cluster_streams": len(streams)}
        counted = {metric: sum(values([found], metric)) for metric in one}
        if counted != one:
            return f"{name}: counted {counted}, and there are {one}"
        places = [(row["stream"], row["partition"]) for row in page["partitions"]]
        if places != sorted(set(places)):
            return f"{name}: the rows of its partitions are {places}"
        if down := [key for key, value in found.items() if key[0] == "nats_connection_up" and value != 1]:
            return f"{name}: connections {down}"
    led = sum(sum(values([found], "partitions", "leader")) for found in metrics.values())
    if led != (count := sum(len(stream.partitions) for stream in streams)):
        return f"{led} partitions are led, and there are {count}"
    return ""


async def metrics_of(client: Client, node: str) -> Series:
    """Return the metrics of a node.

    A busy node repeats an answer for some seconds. So no two questions are equal: each ends with the time, written in spaces and tabs.
    """
    now_us = int(asyncio.get_running_loop().time() * 1e6)
    question = b'{"metrics": {}}' + f"{now_us:b}".translate({48: " ", 49: "\t"}).encode()
    text = (await client.admin.ask_node(node, question))["metrics"]
    return {(name, labels or ""): float(value) for name, labels, value in _SERIES.findall(text)}


async def _wrong_events(client: Client, stream: str, since_ns: int, leader: str, successor: str) -> str:
    """Return what is wrong with the events of the work, as the metadata leader reports them."""
    status = await client.admin.node_status(leader)
    events, after, more = [], (0, 0), True
    while more:
        answer = await client.admin.cluster_events(status["metadata_leader"], after)
        events += answer["events"]
        more = answer["more"] and bool(answer["events"])
        if more:
            after = events[-1]["index"], events[-1]["number"]
    of_stream = [event for event in events if event.get("stream") == stream]
    kinds = Counter(event["kind"] for event in of_stream)
    if wrong := {kind: kinds[kind] for kind, count in _EVENTS.items() if kinds[kind] < count}:
        return f"events {wrong}, of {dict(kinds)}"
    requests = Counter(event["request"] for event in of_stream if event["kind"] == "request" and event["outcome"] == "done")
    if requests != _REQUESTS:
        return f"events of requests {requests}"
    moves = [(event["was"], event["now"]) for event in of_stream if event["kind"] == "leadership_transfer"]
    if (leader, successor) not in moves:
        return f"leaders changed {moves}, and {leader} was replaced with {successor}"
    return ""
