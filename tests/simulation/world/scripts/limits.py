"""Scripts about what a node rejects and drops, and about the figures of it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from liftpy.core.wire import frames
from liftpy.core.wire._pb import replication_pb2 as pb
from tests.simulation.world.machine.scheduler import NS_PER_S
from tests.simulation.world.scripts.stage import Stage, script


@script(ingest_queue_bytes=40_000, ingest_queue_records=100)
async def script_queue_of_a_partition_is_full(s: Stage) -> None:
    """Given a leader with a slow disk, when more publishes come than may wait, it drops the plain ones and says how many.

    Each dropped or stored message is counted once, and afterwards everything is as before. The counts stay when the stream is deleted.
    """
    await s.create("orders", leader="n2")
    await s.publish("orders", 1)
    connection = s.client.transport.connection
    s.forget_log()
    for name in s.names:
        s[name].disk.delay_ns = NS_PER_S // 2
    for number in range(400):
        await connection.publish("orders.x", b"plain-%d" % number)
    await asyncio.sleep(3)
    values = await s.read("orders")
    stored = sum(value.startswith(b"plain") for value in values)
    row = await s.row("n2", "orders")
    s.expect(
        (row["dropped"], row["overloaded"]), ({"overloaded": 400 - stored}, 400 - stored), "dropped messages of the status"
    )
    s.expect(100 <= stored < 400, True, f"{stored} stored messages")
    said = [int(line.partition("counts=")[2].partition(" of orders/0: overloaded")[0]) for line in s.log("n2", least="WARNING")]
    s.expect((sum(said), len(said) <= 2), (400 - stored, True), "dropped messages of the log lines")
    s.expect(row["held_bytes"], 0, "bytes that wait")
    s.expect(await s.publish("orders", 3, first=1), [stored + 1, stored + 2, stored + 3], "offsets after the overload")
    s.expect(await s.metric("n2", "publish_dropped_total"), 400 - stored, "dropped messages of the metrics")
    await s.client.admin.delete_stream("orders")
    await asyncio.sleep(1)
    s.expect(await s.metric("n2", "publish_dropped_total"), 400 - stored, "dropped messages after the deletion")


@script(ingest_queue_bytes=40_000, ingest_queue_records=100)
async def script_each_request_to_a_full_queue_is_answered(s: Stage) -> None:
    """Given a leader with a slow disk, when more requests come than may wait, each is stored once, or rejected and not stored."""
    await s.create("orders", leader="n2")
    connection = s.client.transport.connection
    for name in s.names:
        s[name].disk.delay_ns = NS_PER_S // 2

    async def ask(number: int) -> dict[str, Any]:
        headers = ({}, {"Nats-Msg-Id": f"id-{number}"}, {"kind": "k" * (number % 50)})[number % 3]
        answer = await connection.request("orders.x", b"asked-%d" % number, headers=headers or None, timeout=9)
        return dict(json.loads(answer.data))

    answers = dict(enumerate(await asyncio.gather(*(ask(number) for number in range(600)))))
    places = {number: answer["seq"] for number, answer in answers.items() if "error" not in answer}
    s.expect(100 <= len(places) < 600, True, f"{len(places)} stored requests")
    values = await s.read("orders")
    found = {number: values.index(b"asked-%d" % number) for number in places}
    s.expect((len(values), found), (len(places), {number: place - 1 for number, place in places.items()}), "records")
    codes = {(answer["error"]["code"], answer["error"]["err_code"]) for answer in answers.values() if "error" in answer}
    s.expect(codes, {(429, 10167)}, "codes of the rejections")
    s.expect((await s.row("n2", "orders"))["overloaded"], 600 - len(places), "rejected requests of the status")
    for number in range(1, 600, 3):  # a retry of a message id
        answer = await ask(number)
        s.expect(answer.get("duplicate", False), number in places, f"whether the retry of {number} is a duplicate {answer}")
        s.expect(answer["seq"], places.get(number, answer["seq"]), f"sequence of the retry of {number}")
    s.expect(len(await s.read("orders")), len(places.keys() | set(range(1, 600, 3))), "number of records")
    rejected = await s.metric("n2", "publish_rejected_total")
    s.expect(rejected >= 600 - len(places), True, f"rejected requests of the metrics, {rejected:g}")
    await s.client.admin.delete_stream("orders")
    await asyncio.sleep(1)
    s.expect(await s.metric("n2", "publish_rejected_total"), rejected, "rejected requests after the deletion")


@script()
async def script_strangers_send_what_no_node_understands(s: Stage) -> None:
    """Given a node, when strangers send invalid frames to its subjects, it counts each of them by name and does nothing else."""
    s.allow("refused: *")
    await s.create("orders", leader="n2")
    await s.publish("orders", 3)
    await asyncio.sleep(1)
    s.forget_log()
    connection = s.client.transport.connection

    async def rejected() -> Counter[str]:
        counts = Counter[str]()
        for kind, count in (await s.status("n2"))["refused"].items():
            counts[kind.removeprefix("metadata: ")] += count  # which connection gets a request depends on the metadata leader
        return counts

    before = await rejected()  # two controllers that begin a session at the same time reject a hello
    subjects = sorted(
        {
            subscription.pattern
            for client in s.world.nats.servers[0].clients.values()
            if client.name.startswith("liftpy-n2")
            for subscription in client.subscriptions.values()
            if not subscription.queue
            and not any(part in subscription.pattern for part in ("*", ">", "inbox", "status", "orders.x"))
        }
    )
    for subject in subjects:
        await connection.publish(subject, b"garbage")
        await connection.publish(subject, frames.seal(pb.StateRequest(partition=7)), reply="_INBOX.a.b")
    await asyncio.sleep(2)
    s.expect(
        dict(await rejected() - before),
        {"no envelope": 4, "contents": 2, "addressee": 1, "message type": 4, "invalid reply subject": 6},
        "rejected messages",
    )
    s.expect(s.log("n2"), [], "log lines")
    await s.publish("orders", 2, first=3)
    s.expect(await s.read("orders"), [b"record-%d" % number for number in range(5)], "records")


@script()
async def script_producers_that_are_open_are_counted(s: Stage) -> None:
    """Given a producer that has sent to one of two partitions, the status and the metrics of each node count the same memory for it."""
    await s.create("orders", partitions=2, replicas=1)
    async with s.client.producer("orders") as producer:
        await (await producer.send(b"one", partition=0))
        await s.check_pages()


@script(state_checkpoint_bytes=500_000)
async def script_message_ids_survive_a_restart(s: Stage) -> None:
    """Given message ids in a state file, when all nodes restart, they read the file instead of the log, and know the ids."""
    await s.create("orders", leader="n2")
    for number in range(20):
        await s.client.publish("orders", (b"record-%d" % number).ljust(100_000), msg_id=f"id-{number}")
    await asyncio.sleep(3)
    s.expect([(await s.row(node, "orders"))["states_written"] > 0 for node in s.names], [True] * 3, "written state files")
    s.expect([(await s.row(node, "orders"))["states_failed"] for node in s.names], [0, 0, 0], "failed writes")
    for node in s.names:
        await s.stop(node)
        await s.start(node)
    await s.shows(lambda: s.isr("orders"), s.names)
    row = await s.row(s.leader("orders"), "orders")
    s.expect((row["message_ids"], row["message_ids_state"]), (20, "whole"), "message ids")
    s.expect(row["replayed_bytes"] < 1_000_000, True, "few bytes of the log are read again")
    s.expect(await s.total("incidents_total", "dedup_state_discarded"), 0, "discarded state files")
    s.expect(await s.total("incidents_total", "dedup_state_restored"), 3, "state files that are read")
    acks = [await s.client.publish("orders", b"again", msg_id=f"id-{number}") for number in range(20)]
    s.expect([ack.offset for ack in acks], list(range(20)), "offsets of repeated messages")
    s.expect(len(await s.read("orders")), 20, "records")


@script(session_s=3.0, lease_s=1.0)
async def script_set_session_times_differ_from_the_cluster(s: Stage) -> None:
    """Given settings with session times, when the cluster gets other times, each node logs a warning, and uses those of the cluster."""
    s.forget_log()
    await s.client.admin.set_session_times(session_s=6.0, lease_s=0.8)
    await s.becomes(lambda: all(s.count_log(name, "node.session_times_differ") for name in s.names), what="warnings")
    for name in s.names:
        text = "WARNING node.session_times_differ: * settings=session 3 s, lease 1 s cluster=session 6 s, lease 0.8 s: using *"
        s.expect(s.count_log(name, text), 1, f"warnings of {name}")
    s["n1"].kill()
    s["n3"].kill()
    for passed_s, is_heard in ((4.5, True), (2.5, False)):
        await asyncio.sleep(passed_s)
        said = (await s.client.admin.node_health("n2"))["checks"]["metadata"]
        s.expect(said == "", is_heard, f"check of the metadata group: {said!r}")
    await s.start("n1", "n3")


@script(controllers=1)
async def script_default_session_times_differ_from_the_cluster(s: Stage) -> None:
    """Given settings without session times, when the cluster has times of another version, a starting node logs no warning."""
    await s.client.admin.set_session_times(session_s=2.0, lease_s=0.9)
    s.forget_log()
    await s.stop("n2")
    await s.start("n2")
    s.expect(s.count_log("n2", "node.session_times_differ"), 0, "warnings")


@script(nodes=1, controllers=1)
async def script_index_of_subjects_leaves_time_for_other_work(s: Stage) -> None:
    """Given a large log on a slow disk, when the first conditional publish needs the index, the node reads the log in slices.

    It pauses after slices, also while a publish waits. So a third of the time is left for other work.
    """
    await s.create("orders", subject="orders.*", segment_bytes=1 << 20)
    connection = s.client.transport.connection
    for number in range(100):
        await connection.request(f"orders.{number}", bytes(60_000), timeout=5)
    await asyncio.sleep(1)
    s["n1"].disk.read_ns = NS_PER_S // 50
    began_s = s.now_s
    answer = await connection.request("orders.new", b"new", headers={"Nats-Expected-Last-Subject-Sequence": "0"}, timeout=9)
    took_s, reading_s = s.now_s - began_s, s["n1"].disk.slow_reads / 50
    s.expect(json.loads(answer.data), {"stream": "orders", "seq": 101}, "answer")
    s.expect(reading_s > 0.5 and 1.2 < took_s / reading_s < 1.5, True, f"{took_s:.2f} s, of which {reading_s:.2f} s are reads")
    s["n1"].disk.read_ns = 0
