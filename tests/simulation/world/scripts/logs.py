"""Scripts about the records of a stream: retention, compaction, deletion, copies, and idle partitions."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter

from liftpy.config import FlushPolicy
from liftpy.core.wire import frames
from liftpy.core.wire._pb import replication_pb2 as pb
from tests.simulation.world.machine.nats_server import Message
from tests.simulation.world.machine.scheduler import NS_PER_S
from tests.simulation.world.scripts.stage import Stage, script

_VALUE = b"x" * 200


@script()
async def script_retention_and_compaction_delete_on_all_replicas(s: Stage) -> None:
    """Given limits of size and age and a compacted stream, when time passes, all replicas delete the same records.

    The newest record of each key stays, and each node logs the compaction once.
    """
    await s.create("sized", leader="n2", segment_bytes=4096, retention_bytes=10_000)
    await s.create("aged", leader="n2", segment_bytes=4096, retention_age_s=12)
    await s.create("keyed", leader="n2", segment_bytes=4096, compaction=True, delete_retention_s=0.0, dedup_window_s=1.0)
    await s.publish("sized", 80, value=_VALUE)
    await s.publish("aged", 30, value=_VALUE)
    for number in range(60):
        await s.client.publish("keyed", b"value-%d" % number, key=b"key-%d" % (number % 5))
    s.forget_log()
    await asyncio.sleep(8)
    s.expect(
        {(await s.row(node, "aged"))["log_start_offset"] for node in s.names}, {0}, "first offsets before the age is reached"
    )
    await s.becomes(lambda: all(s.count_log(node, "log.compacted") for node in s.names), within_s=20, what="the compaction")

    async def aged() -> set[int]:
        return {(await s.row(node, "aged"))["log_start_offset"] for node in s.names}

    await s.shows(aged, {30}, within_s=15, what="first offsets of aged")
    rows = [(await s.row(node, "sized")) for node in s.names]
    starts = {row["log_start_offset"] for row in rows}
    s.expect(len(starts), 1, "number of first offsets of sized")
    sizes = {row["log_bytes"] for row in rows}
    s.expect(all(10_000 <= size < 10_000 + 2 * 4096 for size in sizes), True, f"sizes {sizes} of sized")
    s.expect(len(await s.read("sized")), 80 - starts.pop(), "records of sized")
    rows = [(await s.row(node, "aged")) for node in s.names]
    s.expect({(row["log_start_offset"], row["newest_offset"], row["log_bytes"]) for row in rows}, {(30, 29, 0)}, "aged")
    s.expect(await s.read("aged"), [], "records of aged")
    for node in s.names:
        s.expect_log(node, "INFO log.compacted: log compacted partition=keyed/0 removed_records=*", about="log.")
    kept = [(record.key, record.value) async for record in s.client.consume("keyed", until="end")]
    s.expect(dict(kept), {b"key-%d" % number: b"value-%d" % (55 + number) for number in range(5)}, "newest records")
    s.expect(len(kept) < 30, True, "few records are left")
    folder = s["n1"].disk.folder / "streams"
    s.expect(len(list(folder.glob("aged-*/0/*.log"))), 1, "segment files of aged")


@script(nodes=4)
async def script_stream_is_deleted_while_a_replica_is_away(s: Stage) -> None:
    """Given a node that is away, when its streams are deleted or moved, it removes its copies after its return, and says so."""
    await s.create("orders", partitions=1)
    await s.create("other")
    stream = await s.client.admin.stream("other")
    away = next(node for node in stream.partitions[0].replicas if node != stream.partitions[0].leader)
    await s.publish("other", 3)
    await s.stop(away)
    s.forget_log()
    await s.client.admin.delete_stream("other")
    for node in s.others(away):
        here = node in stream.partitions[0].replicas
        await s.becomes(lambda: s.count_log(node, "partition.deleted") == here, what=f"{node} deletes it")  # noqa: B023
        s.expect(list((s[node].disk.folder / "streams").glob("other-*/0")), [], f"folders of {node}")
    await s.start(away)
    unknown = await s.unknown_streams(away)
    s.expect([name.rpartition("-")[0].rpartition("-")[0] for name in unknown], ["other"], "unknown streams of the node")
    s.expect(
        s.count_log(away, f"WARNING node.unknown_directory: unknown stream directory={unknown[0]}: keeping it.*"),
        1,
        "log lines",
    )
    await s.client.admin.remove_data(away, unknown)
    s.expect(list((s[away].disk.folder / "streams").glob("other-*/0")), [], f"folders of {away}")
    s.expect(s.count_log(away, f"partition.unknown_data_removed: * directory={unknown[0]} bytes=*"), 1, "log lines")
    s.expect(await s.unknown_streams(away), [], "unknown streams after the removal")
    s[away].power_cut(restart_after_ns=NS_PER_S)
    await s.becomes(lambda: s[away].is_ready, within_s=20, what="it is ready after a power cut")
    s.expect(await s.unknown_streams(away), [], "unknown streams after a power cut")
    orders = await s.client.admin.stream("orders")
    await s.client.admin.remove_data(away, [f"orders-{orders.uid}"])
    s.expect(
        len(list((s[away].disk.folder / "streams").glob("orders-*/0"))),
        away in orders.partitions[0].replicas,
        "known streams stay",
    )


@script()
async def script_disk_fails_while_a_log_is_deleted(s: Stage) -> None:
    """Given a deleted stream, when the disk of a node fails, the node reports each failure, and tries again after 5, 10, 20 s.

    A node reports the deletion when its files are deleted.
    """
    await s.create("orders", leader="n2")
    await s.publish("orders", 3)
    s["n1"].disk.next_failures += [("rename", ".deleted", errno.EIO)] * 2
    s.forget_log()
    await s.client.admin.delete_stream("orders")
    for node in ("n2", "n3"):
        await s.becomes(lambda: s.count_log(node, "partition.deleted") == 1, what=f"{node} deletes it")  # noqa: B023
        s.expect(list((s[node].disk.folder / "streams").glob("orders-*/0")), [], f"folders of {node}")
    await asyncio.sleep(1)
    s.expect(s.count_log("n1", "partition.deleted"), 0, "deletions that n1 reports")
    s.expect(len(list((s["n1"].disk.folder / "streams").glob("orders-*/0"))), 1, "folders of n1")
    took_s = await s.becomes(lambda: s.count_log("n1", "partition.deleted"), within_s=20, what="n1 deletes it")
    s.expect(13 < took_s < 15, True, f"n1 waits 5 s and 10 s, in all {took_s:.1f} s")
    s.expect_log(
        "n1",
        """
        ERROR partition.delete_failed: partition not deleted partition=orders/0 error=Cannot remove *: retrying in 5 s
        ERROR partition.delete_failed: partition not deleted partition=orders/0 error=Cannot remove *: retrying in 10 s
        INFO partition.deleted_moved_away: partition deleted partition=orders/0: it has left this node
        """,
        about="deleted partition=",
    )
    s.expect(list((s["n1"].disk.folder / "streams").glob("orders-*")), [], "folders of n1")


@script()
async def script_node_stops_while_a_deletion_fails(s: Stage) -> None:
    """Given files of a deleted stream that a node cannot delete until its stop, the next process reports them as unknown."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 3)
    s["n1"].disk.next_failures.append(("rename", ".deleted", errno.EIO))
    s.forget_log()
    await s.client.admin.delete_stream("orders")
    await s.becomes(lambda: s.count_log("n1", "partition.delete_failed"), what="the deletion fails")
    await s.stop("n1", cleanly=False)
    s.expect_in("node stopped node=n1 clean=no", "\n".join(s.log("n1")))
    await s.start("n1")
    unknown = await s.unknown_streams("n1")
    s.expect([name.partition("-")[0] for name in unknown], ["orders"], "unknown streams after a restart")
    await s.client.admin.remove_data("n1", unknown)
    s.expect(list((s["n1"].disk.folder / "streams").glob("orders-*/0")), [], "folders of n1")


@script(nodes=4)
async def script_replica_moves_to_another_node(s: Stage) -> None:
    """Given a partition on three of four nodes, when an operator moves a replica, one node copies it and one deletes it."""
    await s.create("orders", segment_bytes=4096)
    await s.publish("orders", 100, value=_VALUE)
    stream = await s.client.admin.stream("orders")
    before = stream.partitions[0]
    target = s.others(*before.replicas)[0]
    source = next(node for node in before.replicas if node != before.leader)
    replicas = [target, *(node for node in before.replicas if node != source)]
    s.forget_log()
    await s.client.admin.reassign(stream, 0, replicas)
    await s.shows(lambda: s.isr("orders"), sorted(replicas))
    await s.becomes(lambda: s.count_log(source, "partition.deleted") == 1, what=f"{source} deletes it")
    s.expect((await s.client.admin.stream("orders")).partitions[0].target, (), "target of the move")
    s.expect(list((s[source].disk.folder / "streams").glob("orders-*/0")), [], f"folders of {source}")
    s.expect(await s.row(source, "orders"), {}, f"row of {source}")
    s.expect((await s.row(target, "orders"))["high_watermark"], 99, "high watermark of the new replica")
    s.expect(await s.metric(target, "replica_copy_bytes_total") >= 100 * 200, True, "copied bytes")
    s.expect(s.count_log(target, "partition.opened"), 1, "log lines of the new replica")
    events = Counter(event["kind"] for event in await s.events() if event.get("stream") == "orders")
    s.expect(dict(events), {"request": 2, "isr_changed": 2, "replicas_changed": 2, "stream_created": 1}, "events of the stream")


@script(nodes=4)
async def script_replica_moves_away_while_its_node_is_down(s: Stage) -> None:
    """Given a node that is down, when an operator moves its replica to another node, it deletes its copy after its start."""
    await s.create("orders")
    await s.publish("orders", 10)
    stream = await s.client.admin.stream("orders")
    before = stream.partitions[0]
    target = s.others(*before.replicas)[0]
    source = next(node for node in before.replicas if node != before.leader)
    await s.stop(source)
    replicas = [target, *(node for node in before.replicas if node != source)]
    await s.client.admin.reassign(stream, 0, replicas)
    await s.shows(lambda: s.isr("orders"), sorted(replicas))
    s.forget_log()
    await s.start(source)
    await s.becomes(lambda: s.count_log(source, "partition.deleted") == 1, what=f"{source} deletes its copy")
    s.expect_log(
        source,
        "INFO partition.deleted_moved_away: partition deleted partition=orders/0: it has left this node*",
        about="partition.",
    )
    s.expect(list((s[source].disk.folder / "streams").glob("orders-*/0")), [], f"folders of {source}")
    s.expect(await s.unknown_streams(source), [], "unknown streams")


@script(nodes=4, copy_bytes_per_s=5_000, copy_min_bytes_per_s=0, copy_fetch_bytes=4096)
async def script_operator_changes_the_number_of_replicas_back_during_a_copy(s: Stage) -> None:
    """Given a stream that gets a fourth replica, when an operator sets three again during the copy, it keeps the former three."""
    s.allow("copies_cancelled_no_reason")
    await s.create("orders", replicas=3)
    await s.publish("orders", 100, value=b"x" * 200)

    async def replicas() -> tuple[str, ...]:
        return tuple((await s.client.admin.stream("orders")).partitions[0].replicas)

    former = await replicas()
    await s.client.admin.alter_stream("orders", replication_factor=4)
    fourth = next(node for node in s.names if node not in former)
    for _ in range(50):
        if await s.row(fourth, "orders"):
            break
        await asyncio.sleep(0.1)
    s.expect(await replicas(), former, "replicas during the copy")
    await s.client.admin.alter_stream("orders", replication_factor=3)
    await asyncio.sleep(20)
    s.expect(await replicas(), former, "replicas")
    s.expect(await s.row(fourth, "orders"), {}, f"replica on {fourth}")


@script(nodes=4)
async def script_drained_node_leads_nothing_and_has_no_replicas(s: Stage) -> None:
    """Given an operator who drains a node, when the drain is done, the node has no replica, and can be removed after its stop."""
    s.allow("leaderships_moved_from_drained_nodes", "targets: drain")
    await s.create("orders", partitions=4)
    for partition in range(4):
        await s.publish("orders", 5, partition=partition)
    await s.client.admin.set_node("n4", leaving=True)

    async def replicas() -> int:
        return sum("n4" in one.replicas for one in (await s.client.admin.stream("orders")).partitions)

    await s.shows(replicas, 0, within_s=40, what="replicas of the drained node")
    await s.shows(lambda: s.metric("n4", "partitions"), 0, what="partitions that the drained node counts")
    await s.stop("n4")
    await asyncio.sleep(1)
    await s.client.admin.remove_node("n4")
    s.expect(sorted((await s.client.admin.describe_cluster()).image.nodes), ["n1", "n2", "n3"], "nodes")
    for partition in range(4):
        s.expect(len(await s.read("orders", partition)), 5, "records")


@script()
async def script_idle_partitions_cost_few_messages(s: Stage) -> None:
    """Given partitions without publishes, when time passes, each pair of nodes exchanges a message a second, and none per partition.

    A record that comes then is committed at once.
    """
    await s.create("orders", partitions=12)
    for partition in range(12):
        await s.publish("orders", 1, partition=partition)
    await asyncio.sleep(10)
    since, flushes = len(s.messages), s.world.scheduler.counters["flushes"]
    await asyncio.sleep(10)
    s.expect(s.world.scheduler.counters["flushes"], flushes, "flushes of files")
    subjects = s.subjects("liftpy.", since)
    s.expect([one for one in subjects if one.endswith((".replicate", ".offset"))], [], "fetches of single partitions")
    kinds = Counter(subject.split(".")[1] for subject in subjects)
    s.expect(50 <= kinds["notify"] <= 62, True, f"notifications in 10 s, {kinds['notify']}")
    s.expect(77 <= kinds["control"] <= 82, True, f"heartbeats of two nodes in 10 s, four a second of each, {kinds['control']}")
    s.expect(kinds["raft"] <= 260, True, f"messages of the metadata group in 10 s, {kinds['raft']}")
    s.expect(18 <= kinds["feed"] <= 22, True, f"messages of the feed in 10 s, {kinds['feed']}")
    quiet = [await s.metric(node, "partitions_quiet") for node in s.names]
    s.expect(sum(quiet), 24, "quiet replicas")
    s.expect([await s.metric(node, "incidents_total", "idle_poll_timeout") for node in s.names], [0, 0, 0], "lost polls")
    began_s = s.now_s
    await s.publish("orders", 1, partition=5)
    s.expect(
        s.now_s - began_s < 0.05, True, f"a record of an idle partition is committed at once, it took {s.now_s - began_s:.3f} s"
    )


async def _lower_max_payload(s: Stage) -> None:
    server = s.world.nats.servers[0]
    server.stop()
    s.world.nats.max_payload_bytes = 200_000
    server.start()
    await s.shows(lambda: s.isr("orders"), [node.name for node in s.world.nodes if node.is_up])


@script()
async def script_record_is_larger_than_a_message(s: Stage) -> None:
    """Given large records, when an operator lowers ``max_payload`` of NATS, followers and readers get them in pieces.

    A follower assembles the records of several partitions at the same time.
    """
    big = b"b" * 1_000_000
    for name in ("orders", "jobs"):
        await s.create(name, leader="n2")
    await s.stop("n1")
    for name in ("orders", "jobs"):
        await s.client.publish(name, big)
        await s.publish(name, 3)
        await s.client.publish(name, big)
    await _lower_max_payload(s)
    await s.start("n1")
    for name in ("orders", "jobs"):
        await s.shows(lambda: s.isr(name), s.names, within_s=20)  # noqa: B023
    pieces = await s.counter("n2", "batch_chunks_sent"), await s.counter("n1", "batch_chunks_received")
    s.expect(pieces, (24, 24), "pieces that were sent and received")
    s.expect((await s.row("n1", "orders"))["fragment_reassembly_bytes"], 0, "bytes of incomplete batches")
    for name in ("orders", "jobs"):
        await s.client.admin.elect_leader(name, 0, "n1")
        await s.becomes(lambda: s.leader(name) == "n1", what=f"n1 leads {name}")  # noqa: B023
        s.expect([len(value) for value in await s.read(name)], [1_000_000, 8, 8, 8, 1_000_000], "sizes of the records")


@script()
async def script_record_is_too_large_for_a_follower_of_an_earlier_version(s: Stage) -> None:
    """Given a follower that accepts no pieces, when it fetches a record that is larger than a message, the leader says so."""
    await s.create("orders", leader="n2")
    await s.client.publish("orders", b"b" * 1_000_000)
    await _lower_max_payload(s)
    fetches = [one for _, one, _ in s.messages if one.subject == "liftpy.orders.0.replicate" and ".n1." in one.reply]
    request = frames.decode(fetches[-1].content, pb.ReplicationRequest)
    for field in ("position", "batchCrc", "streamUid", "partition", "awaitsMore"):
        request.ClearField(field)
    request.offset, request.offsetEpoch, request.requestId = -1, 0, request.requestId + 1
    reply = f"{fetches[-1].reply.rpartition('.')[0]}.{request.requestId}"
    s.forget_log()
    await s.client.transport.connection.publish(fetches[-1].subject, frames.seal(request), reply=reply)
    text = "ERROR replication.too_large: batch too large for the follower partition=orders/0 offset=0 bytes=1000* max_payload=200000: *"
    await s.becomes(lambda: s.count_log("n2", text) == 1, within_s=1, what="the leader says so")
    s.expect(await s.metric("n2", "incidents_total", "batch_too_large_for_follower"), 1, "batches that are too large")
    await s.shows(lambda: s.isr("orders"), s.names)


@script()
async def script_kill_after_lazy_flushes_loses_nothing_that_two_replicas_have(s: Stage) -> None:
    """Given a stream that acknowledges before the flush, when a follower loses its power, it fetches the lost records again."""
    await s.create("orders", leader="n2", flush=FlushPolicy.parse("interval:5s"))
    await s.publish("orders", 20)
    s.forget_log()
    s["n1"].power_cut(restart_after_ns=NS_PER_S)
    await s.becomes(lambda: s["n1"].is_ready, within_s=20, what="n1 is ready")
    await s.shows(lambda: s.isr("orders"), s.names, within_s=20)
    s.expect({(await s.row(node, "orders"))["high_watermark"] for node in s.names}, {19}, "high watermarks")
    s.expect(s.count_log("n1", "log.suspect"), 0, "log lines about a suspect log")
    s.expect(s.count_log("n1", "node.registered_with_warning: *may have lost acknowledged data"), 1, "log lines about a loss")
    await asyncio.sleep(6)
    s.expect({(await s.row(node, "orders"))["flushed_offset"] for node in s.names}, {19}, "flushed offsets")


@script()
async def script_leader_that_its_only_follower_does_not_hear_continues_to_lead(s: Stage) -> None:
    """Given a follower that hears nothing of its leader, when it reports this, the leader answers the controllers and leads on.

    The metadata leader has no replica, so it hears both of them.
    """
    s.allow("accused leaders that serve")
    await s.create("orders", replicas=2)
    leader, follower = s.others(await s.controller())
    await s.client.admin.reassign(await s.client.admin.stream("orders"), 0, [leader, follower])
    await s.shows(lambda: s.isr("orders"), sorted((leader, follower)))
    if s.leader("orders") != leader:
        await s.client.admin.elect_leader("orders", 0, leader)
        await s.becomes(lambda: s.leader("orders") == leader, what=f"{leader} leads")
    await s.publish("orders", 2)
    before = (await s.client.admin.stream("orders")).partitions[0]
    lost = []

    def loses(client: str, message: Message) -> bool:
        begins = (f"liftpy.notify.{follower}", f"liftpy.inbox.{follower}.")
        to_follower = client.startswith(f"liftpy-{leader}") and message.subject.startswith(begins)
        begins = (f"liftpy.notify.{leader}", "liftpy.orders.0.")
        from_follower = client.startswith(f"liftpy-{follower}") and message.subject.startswith(begins)
        lost.extend([message] if to_follower or from_follower else [])
        return to_follower or from_follower

    s.world.nats.loses = loses
    await asyncio.sleep(4)
    s.expect(len(lost) > 2, True, "messages between the replicas are lost")
    s.world.nats.loses = lambda client, message: False
    await s.shows(lambda: s.isr("orders"), sorted(before.replicas), within_s=10)
    await s.publish("orders", 2, first=2)
    after = (await s.client.admin.stream("orders")).partitions[0]
    s.expect((after.leader, after.leader_epoch), (before.leader, before.leader_epoch), "(leader, LeaderEpoch)")


@script()
async def script_operator_purges_a_key_while_a_replica_is_away(s: Stage) -> None:
    """Given records of several keys, when an operator purges one, all replicas remove its records, one that is away after its return.

    The purge is in progress until the last replica has done it.
    """
    await s.create("orders", leader="n2", segment_bytes=4096, dedup_window_s=1.0)
    for number in range(45):
        await s.client.publish("orders", (b"value-%d" % number).ljust(200), key=b"key-%d" % (number % 3))
    await s.stop("n3")
    s.forget_log()
    s.expect(await s.client.admin.purge("orders", 0, keys=[b"key-1"]), 45, "end of the purge")

    async def keys() -> dict[bytes, int]:
        return dict(Counter([record.key or b"" async for record in s.client.consume("orders", until="end")]))

    async def purges() -> int:
        return len((await s.client.admin.stream("orders")).partitions[0].state.purges)

    await s.shows(keys, {b"key-0": 15, b"key-2": 15}, within_s=30, what="records of each key")
    await asyncio.sleep(6)
    s.expect(await purges(), 1, "purges in progress while a replica is away")
    await s.start("n3")
    await s.shows(purges, 0, within_s=30, what="purges in progress after its return")
    for node in s.names:
        s.expect(
            s.count_log(node, "INFO log.compacted: log compacted partition=orders/0 removed_records=15"),
            1,
            f"log lines of {node}",
        )
    await s.client.admin.elect_leader("orders", 0, "n3")
    await s.becomes(lambda: s.leader("orders") == "n3", what="n3 leads")
    s.expect(await keys(), {b"key-0": 15, b"key-2": 15}, "records of each key at n3")


@script(state_checkpoint_bytes=4096)
async def script_follower_returns_after_its_records_were_deleted(s: Stage) -> None:
    """Given a follower that was away, when the records for it are deleted, it resets its log and knows all message ids."""
    await s.create("orders", leader="n2", segment_bytes=4096)
    await s.stop("n1")
    for number in range(60):
        await s.client.publish("orders", (b"record-%d" % number).ljust(200), msg_id=f"id-{number}")
    s.expect(await s.client.admin.truncate_before("orders", 0, 40), 40, "first offset")
    await s.shows(lambda: s.first_offsets("orders", "n2", "n3"), {40}, what="first offsets")
    s.forget_log()
    await s.start("n1")
    await s.shows(lambda: s.isr("orders"), s.names)
    refused = {kind: count for kind, count in (await s.status("n2"))["refused"].items() if kind.startswith("fetch")}
    s.expect(refused, {"fetch, before log start": 1}, "fetches that the leader has rejected")
    s.expect(await s.counter("n2", "state_chunks_sent"), 1, "pieces of the state of message ids")
    s.expect(s.count_log("n1", "WARNING replica.log_reset: log discarded partition=orders/0: fetching it again from=40"), 1)
    row = await s.row("n1", "orders")
    s.expect((row["log_start_offset"], row["high_watermark"]), (40, 59), "first offset and high watermark")
    s.expect((row["message_ids"], row["message_ids_state"]), (60, "whole"), "message ids")
    await s.client.admin.elect_leader("orders", 0, "n1")
    await s.becomes(lambda: s.leader("orders") == "n1", what="n1 leads")
    acks = [await s.client.publish("orders", b"again", msg_id=f"id-{number}") for number in (0, 39, 40, 59)]
    s.expect([ack.offset for ack in acks], [0, 39, 40, 59], "offsets of repeated messages")


@script()
async def script_truncation_waits_for_a_flush_that_runs(s: Stage) -> None:
    """Given a leader that lost its leadership while a flush takes long, it truncates its log after the flush. Others work on.

    Its event loop does not wait for the flush: it answers for its other partition at once.
    """
    node = s.others(await s.controller())[0]  # the metadata leader would hear its own heartbeats
    others = s.others(node)
    await s.create("orders", leader=node)
    await s.create("jobs", leader=node)
    await s.publish("orders", 3)

    def loses(client: str, message: Message) -> bool:
        is_of_orders = message.subject.startswith((*(f"liftpy.inbox.{one}." for one in others), "liftpy.control"))
        return client.startswith(f"liftpy-{node}") and is_of_orders

    s.world.nats.loses = loses
    for number in range(5):
        await s.client.transport.connection.publish("orders.x", b"unreplicated-%d" % number)
    await asyncio.sleep(0.2)
    s[node].disk.log_delay_ns = 5 * NS_PER_S
    await s.client.transport.connection.publish("orders.x", b"unflushed")
    s.forget_log()
    await s.becomes(lambda: s.leader("orders") in others, what="another node leads")
    s.world.nats.loses = lambda client, message: False
    text = "WARNING replica.truncation_waiting: truncation delayed partition=orders/0: waiting for the running flush"
    await s.becomes(lambda: s.count_log(node, text) == 1, within_s=3, what="it delays the truncation")
    began_s = s.now_s
    s.expect((await s.row(node, "orders"))["role"], "FOLLOWER", "role of the former leader")
    s.expect(s.now_s - began_s < 0.1, True, "the node answers at once")
    s.expect(await s.publish("orders", 2, first=3), [3, 4], "offsets at the new leader")
    await s.shows(lambda: s.isr("orders"), s.names, within_s=60)  # a replica with a slow disk returns late
    s.expect(s.count_log(node, "log truncated partition=orders/0 log_end=3"), 1, "log lines about the truncation")
    await s.client.admin.elect_leader("orders", 0, node)
    await s.becomes(lambda: s.leader("orders") == node, what="it leads again")
    s.expect(await s.read("orders"), [b"record-%d" % number for number in range(5)], "records")


@script()
async def script_lag_of_a_follower_is_a_figure_of_its_leader(s: Stage) -> None:
    """Given a follower that lacks records, its leader reports the lag. After a transfer, the former leader does not."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 2)
    await s.stop("n1")
    await s.publish("orders", 20, first=2)

    async def lags() -> list[tuple[float, bool]]:
        return [
            (await s.metric(node, "replica_lag_records"), await s.metric(node, "replica_lag_seconds") > 0)
            for node in ("n2", "n3")
        ]

    await s.shows(lags, [(20, True), (0, False)], what="lags while n2 leads")
    await s.client.admin.elect_leader("orders", 0, "n3")
    await s.becomes(lambda: s.leader("orders") == "n3", what="n3 leads")
    await s.publish("orders", 5, first=22)
    await s.shows(lags, [(0, False), (0, False)], within_s=1, what="lags after the transfer")
    await s.start("n1")
    await s.shows(lambda: s.isr("orders"), s.names)


@script()
async def script_leader_dies_with_records_that_no_follower_has(s: Stage) -> None:
    """Given a killed leader with records without ack, when it returns, it removes them, and has the records of the new leader.

    They do not return when its power fails.
    """
    await s.create("orders", leader="n2", segment_bytes=4096)
    await s.publish("orders", 3)
    s.world.nats.loses = lambda client, message: (
        client.startswith("liftpy-n2") and message.subject.startswith(("liftpy.inbox.n1.", "liftpy.inbox.n3."))
    )
    for number in range(60):
        await s.client.transport.connection.publish("orders.x", (b"unreplicated-%d" % number).ljust(200))
        await asyncio.sleep(0.002)
    row = await s.row("n2", "orders")
    s.expect((row["newest_offset"], row["high_watermark"], row["isr"]), (62, 2, s.names), "offsets and ISR of the leader")
    s.expect(await s.read("orders"), [b"record-0", b"record-1", b"record-2"], "records that readers see")
    s["n2"].kill()
    s.world.nats.loses = lambda client, message: False
    await s.becomes(lambda: s.leader("orders") in ("n1", "n3"), what="another node leads")
    s.expect(await s.publish("orders", 2, first=3), [3, 4], "offsets at the new leader")
    s.forget_log()
    s["n2"].start()
    text = "INFO replica.log_truncated: log truncated partition=orders/0 log_end=3"
    await s.becomes(lambda: s.count_log("n2", text) == 1, what="n2 removes the records")
    s.forget_log()
    s["n2"].power_cut(restart_after_ns=NS_PER_S)
    await s.becomes(lambda: s["n2"].is_ready, within_s=20, what="n2 is ready after a power cut")
    await s.shows(lambda: s.isr("orders"), s.names)
    s.expect_log("n2", "", about="log=")
    await s.client.admin.elect_leader("orders", 0, "n2")
    await s.becomes(lambda: s.leader("orders") == "n2", what="n2 leads")
    s.expect(await s.read("orders"), [b"record-%d" % number for number in range(5)], "records")
