"""Scripts about single replicas: deletions, recoveries and compactions that are interrupted, transfers, promises, scrub, services."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import cluster_pb2 as cluster
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.envelope import MessageType
from liftpy.errors import LiftError, NotFoundError
from tests.simulation.world.checks.figures import check_figures
from tests.simulation.world.checks.subscriptions import wrong_subscriptions
from tests.simulation.world.machine.nats_server import Message
from tests.simulation.world.machine.scheduler import NS_PER_S
from tests.simulation.world.scripts.stage import Stage, script

_VALUE = b"x" * 200


def _requests_about(stream: str, node: str) -> Callable[[str, Message], bool]:
    """Return a rule for ``loses``: NATS loses the requests of a node to the metadata group that name a stream."""

    def loses(client: str, message: Message) -> bool:
        is_request = client.startswith(f"liftpy-{node}") and message.subject.startswith("liftpy.control")
        return is_request and stream.encode() in message.content

    return loses


def _loses_nothing(client: str, message: Message) -> bool:
    return False


def _kind(message: Message) -> MessageType | None:
    """Return the type of a message between nodes. None: it is no such message."""
    try:
        return envelope.decode(message.content)[0]
    except LiftError:
        return None


# ---- deletions -----------------------------------------------------------------------------------------------------------
@script(controllers=1)
async def script_node_asks_a_controller_once_before_it_deletes_a_stream(s: Stage) -> None:
    """Given a node whose requests are lost, when a stream is deleted, it keeps all partitions until the controller confirms it once."""
    await s.create("orders", leader="n1", partitions=3)
    await s.publish("orders", 3)
    lost = _requests_about("orders", "n3")
    s.world.nats.loses = lost
    s.forget_log()
    await s.client.admin.delete_stream("orders")
    await asyncio.sleep(5)
    folders = s["n3"].disk.folder / "streams"
    s.expect(len(list(folders.glob("orders-*/*/*.log"))), 3, "logs that n3 keeps")
    s.expect((await s.status("n3"))["partitions"], [], "rows of n3")
    since = len(s.messages)
    s.world.nats.loses = _loses_nothing
    await s.becomes(lambda: s.count_log("n3", "INFO partition.deleted") == 3, within_s=4, what="n3 deletes them")
    requests = [
        frames.decode(one.content, cluster.ControlRequest) for client, one, _ in s.messages[since:] if lost(client, one)
    ]
    asked = [one.describeStream.name for one in requests if one.WhichOneof("request") == "describeStream"]
    s.expect(asked, ["orders"], "streams that n3 asks for")
    s.expect(list(folders.glob("orders-*")), [], "folders of n3")


@script(controllers=1)
async def script_no_controller_confirms_a_deletion(s: Stage) -> None:
    """Given a node whose requests are lost for half a minute, when a stream is deleted, it says that it keeps the data.

    Half a minute later it asks again, and deletes the data.
    """
    await s.create("orders", leader="n1")
    await s.publish("orders", 3)
    s.world.nats.loses = _requests_about("orders", "n3")
    s.forget_log()
    await s.client.admin.delete_stream("orders")
    text = (
        "WARNING *: partition not deleted partition=orders/0: no controller confirms that it left this node, keeping its data"
    )
    took_s = await s.becomes(lambda: s.count_log("n3", text) == 1, within_s=40, what="n3 says that it keeps the data")
    s.expect(29 < took_s < 33, True, f"n3 asks for 30 s, it took {took_s:.1f} s")
    s.world.nats.loses = _loses_nothing
    folders = s["n3"].disk.folder / "streams"
    s.expect(len(list(folders.glob("orders-*/0/*.log"))), 1, "logs that n3 keeps")
    took_s = await s.becomes(lambda: s.count_log("n3", "partition.deleted_moved_away") == 1, within_s=40, what="n3 deletes it")
    s.expect(28 < took_s < 32, True, f"n3 waits 30 s until it asks again, it took {took_s:.1f} s")
    s.expect(list(folders.glob("orders-*")), [], "folders of n3")


@script(controllers=1)
async def script_node_stops_while_it_asks_for_a_deletion(s: Stage) -> None:
    """Given a node that waits for the answer to a deletion, when it stops, it does not wait on. Its next process reports the data.

    An operator removes the data. The node rejects the names of other directories.
    """
    await s.create("orders", leader="n1")
    await s.create("jobs", leader="n1")
    await s.publish("orders", 3)
    s.world.nats.loses = _requests_about("orders", "n3")
    s.forget_log()
    await s.client.admin.delete_stream("orders")
    await asyncio.sleep(1)
    await s.stop("n3")
    s.world.nats.loses = _loses_nothing
    text = (
        "WARNING *: partition not deleted partition=orders/0: no controller confirms that it left this node, keeping its data"
    )
    s.expect_log("n3", text, about="WARNING")
    await s.start("n3")
    (unknown,) = await s.unknown_streams("n3")
    known = f"jobs-{(await s.client.admin.stream('jobs')).uid}"
    answer = await s.client.admin.remove_data("n3", [unknown, known, "jobs"])
    wanted = f"no directory jobs, {known} of a stream that the cluster does not know: it has {unknown}"
    s.expect(answer.get("error"), wanted, "answer about known streams")
    folder = s["n3"].disk.folder / "streams" / unknown
    size_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    s["n3"].disk.next_failures.append(("rename", ".deleted", errno.EIO))
    answer = await s.client.admin.remove_data("n3", [unknown])
    s.expect_in(f"{unknown} can't be removed: Cannot *", str(answer.get("error")), "answer with a failing disk")
    answer = await s.client.admin.remove_data("n3", [unknown, unknown])
    s.expect((answer["removed"], answer["bytes"]), ([unknown], size_bytes), "answer about the unknown stream")
    s.expect((folder.exists(), await s.unknown_streams("n3")), (False, []), "unknown streams")
    answer = await s.client.admin.remove_data("n3", [unknown])
    s.expect_in("it has none", answer["error"], "answer after the removal")


@script()
async def script_reader_waits_in_a_stream_that_is_deleted(s: Stage) -> None:
    """Given a reader that waits for a record, when an operator deletes the stream, the node answers the reader at once."""
    await s.create("orders", leader="n2")
    reading = asyncio.ensure_future(anext(aiter(s.client.consume("orders", start="latest"))))
    await s.shows(lambda: s.total("readers_waiting"), 1, what="waiting readers")
    began_s = s.now_s
    await s.client.admin.delete_stream("orders")
    await s.fails(reading, NotFoundError)
    s.expect(s.now_s - began_s < 0.5, True, f"time until the reader is told, {s.now_s - began_s:.2f} s")


@script()
async def script_stream_is_deleted_while_its_log_is_compacted(s: Stage) -> None:
    """Given a compaction on a slow disk, when the stream is deleted, the node deletes it at once, and the compaction ends silently."""
    await s.create("keyed", leader="n2", segment_bytes=4096, compaction=True, delete_retention_s=0.0, dedup_window_s=1.0)
    s["n1"].disk.read_ns = NS_PER_S // 2  # only a compaction reads the log of a follower
    for number in range(100):
        await s.client.publish("keyed", _VALUE, key=b"key-%d" % (number % 5))
    s.forget_log()
    await s.becomes(lambda: s["n1"].disk.slow_reads > 0, what="n1 begins a compaction")
    await s.client.admin.delete_stream("keyed")
    await s.becomes(lambda: s.count_log("n1", "partition.deleted") == 1, within_s=1, what="n1 deletes it")
    await asyncio.sleep(10)
    s["n1"].disk.read_ns = 0
    s.expect(s.log("n1", least="WARNING"), [], "warnings of n1")
    s.expect(list((s["n1"].disk.folder / "streams").glob("keyed-*")), [], "folders of n1")


# ---- damage and failing disks --------------------------------------------------------------------------------------------
@script()
async def script_compaction_finds_damage(s: Stage) -> None:
    """Given a follower with a flipped bit that nobody reads, when a compaction reads it, the node restarts and repairs its log."""
    name = s.others(await s.controller())[0]
    leader = s.others(name)[0]
    s.change_settings(name, scrub_bytes_per_s=0)
    await s.create("keyed", leader=leader, segment_bytes=4096, compaction=True, delete_retention_s=0.0, dedup_window_s=1.0)
    for number in range(100):
        await s.client.publish("keyed", b"%d" % number + _VALUE, key=b"key-%d" % (number % 5))
    node = s[name]
    node.disk.flip_bit(closed=True)
    await s.becomes(lambda: node.exits == [75] and node.is_ready, within_s=20, what="the node restarts")
    await s.shows(lambda: s.isr("keyed"), s.names, within_s=20)
    await s.client.admin.elect_leader("keyed", 0, name)
    await s.becomes(lambda: s.leader("keyed") == name, what=f"{name} leads")
    kept = [(record.key, record.value) async for record in s.client.consume("keyed", until="end")]
    s.expect(dict(kept), {b"key-%d" % key: b"%d" % (95 + key) + _VALUE for key in range(5)}, "newest value of each key")
    await s.client.admin.delete_stream("keyed")  # the replicas may have compacted different segments


@script()
async def script_log_cannot_be_recovered_for_a_while(s: Stage) -> None:
    """Given a log that a starting node cannot open, it says so, reports a possible loss, and opens the log later."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 10)
    node = s["n1"]
    node.kill()
    node.disk.next_failures += [("open", "/orders-", errno.EIO)] * 4
    s.forget_log()
    node.start()
    await s.becomes(lambda: node.is_ready, within_s=5, what="n1 is ready")
    s.expect_log(
        "n1",
        """
        WARNING log.recovery_retried: log not recovered yet log=*/orders-*/0 error=*: retrying
        WARNING log.recovery_retried: log not recovered yet log=*/orders-*/0 error=*: retrying
        WARNING log.recovery_retried: log not recovered yet log=*/orders-*/0 error=*: retrying
        ERROR log.recovery_failed: log not recovered log=*/orders-*/0 code=STORAGE error=*
        """,
        about="log not recovered",
    )
    text = "WARNING node.registered_with_warning: node registered warning=may have lost acknowledged data: *"
    s.expect(s.count_log("n1", text), 1, "log lines about a possible loss")
    await s.shows(lambda: s.isr("orders"), s.names)
    await s.stop("n1")
    node.start()
    node.disk.next_failures += [("open", "/orders-", errno.EIO)] * 1000
    await s.becomes(lambda: node.is_ready, within_s=5, what="n1 is ready")
    failed = (await s.status("n1"))["failed_partitions"]
    s.expect(list(failed), ["orders/0"], "partitions that n1 cannot open")
    s.expect(await s.metric("n1", "partitions_failed"), 1, "failed partitions of the metrics")
    await s.stop("n1")  # the process before has closed the log
    for end in (None, node.kill):
        if end is not None:
            end()
        node.start()
        await s.becomes(lambda: node.is_ready, within_s=5, what="n1 is ready")
    await s.stop("n1", cleanly=False)
    s.expect(s.count_log("n1", "node.stopped: node stopped node=n1 clean=no *"), 1, "stops that are not clean")
    node.disk.heal()
    await s.start("n1")
    await s.shows(lambda: s.isr("orders"), s.names)


@script(nodes=1, controllers=1)
async def script_scrub_continues_after_a_restart(s: Stage) -> None:
    """Given a slow scrub, when its node restarts during a pass, the scrub continues at the segment where it was.

    A pass reads all segments, and only the one that it was reading twice. The next pass begins an hour later.
    """
    node = s["n1"]
    s.change_settings("n1", scrub_bytes_per_s=2_000)
    await s.create("orders", segment_bytes=4096)
    await s.create("jobs")
    await s.publish("orders", 60, value=_VALUE)
    await asyncio.sleep(3)
    files = sorted((node.disk.folder / "streams").glob("orders-*/0/*.log"))
    sizes = [file.stat().st_size for file in files]

    async def scrub() -> dict[str, Any]:
        return dict((await s.status("n1"))["scrub"])

    before = await scrub()
    s.expect(before["checked_bytes"], sum(sizes[:-1]), "checked bytes of closed segments")
    s.expect((before["partition"], before["base_offset"], before["position"]), ("", -1, 0), "a pass that has ended")
    node.set_clock(wall_offset_ns=2 * 3600 * NS_PER_S)

    async def partition() -> str:
        return str((await scrub())["partition"])

    await s.shows(partition, "orders/0", within_s=3, what="partition of the next pass")
    await asyncio.sleep(3)
    during = await scrub()
    await s.stop("n1")
    await s.start("n1")
    after = await scrub()
    names = ("partition", "base_offset", "pass_began_s", "last_full_pass_s", "findings")
    s.expect([after[name] for name in names], [during[name] for name in names], "progress after the restart")
    await s.shows(partition, "", within_s=20, what="partition after the pass")
    after = await scrub()
    read = during["checked_bytes"] - before["checked_bytes"], after["checked_bytes"]
    s.expect(0 < read[1] < sum(sizes), True, f"the pass does not begin again {read}")
    s.expect(
        sum(read) - sum(sizes) in (0, sizes[0]), True, f"bytes of {sizes} that are read before and after the restart {read}"
    )
    s.expect(after["last_full_pass_s"] > during["last_full_pass_s"], True, "end of the pass")
    s.expect(0 <= await s.metric("n1", "scrub_age_seconds") < 5, True, "age of the last pass")
    s.expect(after["read_bytes"], after["checked_bytes"], "bytes that are read from files")
    await asyncio.sleep(5)
    s.expect((await scrub())["read_bytes"], after["read_bytes"], "bytes that are read after the pass")


# ---- leaders and followers -----------------------------------------------------------------------------------------------
@script()
async def script_transfer_of_a_leadership_does_not_happen(s: Stage) -> None:
    """Given a leader that prepares a transfer, it answers its publishes first. Without the transfer, it accepts publishes 2 s later."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 1)
    stream = await s.client.admin.stream("orders")
    epoch = stream.partitions[0].leader_epoch
    request = pb.StepAside(stream="orders", partition=0, streamUid=stream.uid, leaderEpoch=epoch)
    reply = "liftpy.inbox.n1.stranger"
    s["n2"].disk.log_delay_ns = 3 * NS_PER_S // 10
    publishing = asyncio.create_task(s.publish("orders", 1, first=1))
    await asyncio.sleep(0.01)
    await s.client.transport.connection.publish("liftpy.notify.n2", frames.seal(request), reply=reply)
    await s.becomes(lambda: s.subjects(reply), within_s=1, what="n2 answers the request")
    s.expect(publishing.done(), True, "the publish is acknowledged before")
    s.expect("n2 lacks orders.x" in wrong_subscriptions(s.world), True, "n2 accepts no publishes")
    since, began_s = len(s.messages), s.now_s
    await s.publish("orders", 1, first=2, timeout_s=9)
    s.expect(1.5 < s.now_s - began_s < 3, True, f"n2 accepts publishes again after 2 s, it took {s.now_s - began_s:.1f} s")
    stream = await s.client.admin.stream("orders")
    s.expect((stream.partitions[0].leader, stream.partitions[0].leader_epoch), ("n2", epoch), "(leader, LeaderEpoch)")
    since = len(s.messages)
    request.leaderEpoch = epoch + 1
    await s.client.transport.connection.publish("liftpy.notify.n2", frames.seal(request), reply=reply)
    await s.becomes(lambda: s.subjects(reply, since), within_s=0.1, what="n2 answers a request about another LeaderEpoch")
    s.expect(wrong_subscriptions(s.world), [], "subscriptions")
    s.expect(await s.publish("orders", 1, first=3), [3], "offset")


@script(controllers=1, session_s=10.0)
async def script_leader_asks_again_after_a_lost_change_of_the_isr(s: Stage) -> None:
    """Given a leader whose request to remove a killed follower from the ISR is lost, it asks again, and then commits."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 2)
    s.world.nats.loses = _requests_about("orders", "n2")
    s.forget_log()
    s["n3"].kill()
    began_s = s.now_s
    publishing = asyncio.create_task(s.publish("orders", 1, first=2, timeout_s=20))
    text = "INFO isr.change_failed: ISR not changed partition=orders/0 reason=no answer"
    await s.becomes(lambda: s.count_log("n2", text) == 1, within_s=8, what="the request has no answer")
    s.expect(publishing.done(), False, "ack without the follower")
    s.world.nats.loses = _loses_nothing
    s.expect(await publishing, [2], "offset")
    s.expect(s.now_s - began_s < 9, True, f"ack before the session of the follower ends, it took {s.now_s - began_s:.1f} s")
    s.expect(s.count_log("n2", "INFO isr.changed: ISR changed partition=orders/0 isr=n1, n2"), 1, "log lines")
    await s.start("n3")
    await s.shows(lambda: s.isr("orders"), s.names)


@script(controllers=1)
async def script_two_elections_during_a_slow_flush(s: Stage) -> None:
    """Given a follower whose disk is slow, when it is to lead two partitions, it stores a promise for each, and then leads both."""
    for name in ("orders", "jobs", "more"):
        await s.create(name, leader="n2")

    async def counts() -> tuple[int, int]:
        return await s.counter("n3", "leader_epoch_promises"), await s.counter("n3", "promise_flushes")

    before = await counts()
    s.forget_log()
    s["n3"].disk.delay_ns = NS_PER_S // 2
    began_s = s.now_s
    for name in ("orders", "jobs", "more"):
        await s.client.admin.elect_leader(name, 0, "n3")
    for name in ("orders", "jobs", "more"):
        await s.becomes(
            lambda: s.count_log("n3", f"partition={name}/0 role=LEADER phase=LEADER_READY") == 1,  # noqa: B023
            within_s=2,
            what=f"n3 leads {name}",
        )
    s.expect(s.now_s - began_s > 0.4, True, f"the flush takes long, {s.now_s - began_s:.2f} s")
    after = await counts()
    s.expect((after[0] - before[0], after[1] - before[1]), (3, 2), "promises, and flushes of promises")
    for name in ("orders", "jobs", "more"):
        s.expect(await s.publish(name, 1), [0], f"offset in {name}")


@script()
async def script_answers_about_idle_partitions_are_lost(s: Stage) -> None:
    """Given idle followers, when the answers of their leader's node are lost, they fetch by themselves, and their node counts it.

    They stay in the ISR. A minute later they ask that node again.
    """
    await s.create("orders", leader="n2")
    await s.publish("orders", 2)
    await s.shows(lambda: s.metric("n1", "partitions_quiet"), 1, what="quiet replicas of n1")

    def is_answer(message: Message) -> bool:
        return message.subject.startswith("liftpy.inbox.n1.") and _kind(message) is MessageType.QUIET_FETCHES_ANSWER

    s.world.nats.loses = lambda client, message: is_answer(message)
    await s.shows(lambda: s.metric("n1", "partitions_quiet"), 0, within_s=6, what="quiet replicas of n1 without answers")
    lost_s, since = s.now_s, len(s.messages)
    s.expect(await s.metric("n1", "incidents_total", '"idle_poll_timeout"'), 1, "lost answers")
    await asyncio.sleep(10)
    fetches = [message for message in s.messages_to("liftpy.orders.0.replicate", since) if ".n1." in message.reply]
    s.expect(len(fetches) > 2, True, f"fetches of n1, {len(fetches)}")
    s.expect(await s.isr("orders"), s.names, "ISR")
    s.world.nats.loses = _loses_nothing
    await s.shows(lambda: s.metric("n1", "partitions_quiet"), 1, within_s=60, what="quiet replicas of n1 with answers")
    s.expect(55 < s.now_s - lost_s < 65, True, f"n1 asks again after a minute, it took {s.now_s - lost_s:.1f} s")
    s.expect(await s.metric("n1", "incidents_total", '"idle_poll_timeout"'), 1, "lost answers")


@script()
async def script_figures_of_known_work(s: Stage) -> None:
    """Given a quiet cluster, when known work is done, status, metrics and events of all nodes say exactly this."""
    await check_figures(s.world)


@script()
async def script_records_that_an_operator_deletes_go_at_once(s: Stage) -> None:
    """Given a stream, when an operator deletes records, all replicas store their message ids first, and delete the records at once."""
    await s.create("orders", leader="n2", segment_bytes=4096)
    for number in range(60):
        await s.client.publish("orders", _VALUE, msg_id=f"id-{number}")
    s.expect(await s.client.admin.truncate_before("orders", 0, 40), 40, "first offset")
    await s.shows(lambda: s.first_offsets("orders"), {40}, within_s=1, what="first offsets")
    s.expect([(await s.row(node, "orders"))["states_written"] for node in s.names], [1, 1, 1], "state files")
    for node in s.names:
        await s.stop(node)
        await s.start(node)
        await s.shows(lambda: s.isr("orders"), s.names)
    s.expect((await s.client.publish("orders", b"again", msg_id="id-3")).offset, 3, "offset of a repeated message")


@script()
async def script_metrics_of_an_idle_partition_change(s: Stage) -> None:
    """Given idle partitions, when a reader waits or a node drops a publish, the metrics of the node show it."""
    await s.create("orders", leader="n2")
    await s.create("jobs", leader="n2")
    await s.publish("orders", 1)
    await s.client.admin.pause("jobs", [0])
    await s.shows(lambda: s.total("partitions_quiet"), 4, what="quiet replicas")
    await s.metrics("n2")  # the node reads the metrics of all partitions that have changed until now
    await s.client.transport.connection.publish("jobs.x", b"plain")
    await s.shows(lambda: s.metric("n2", "publish_dropped_total", '"paused"'), 1, within_s=0.3, what="dropped publishes")
    s.expect(await s.read("orders"), [b"record-0"], "records")
    s.expect(await s.total("read_records_total"), 1, "records that readers have read")
    reading = asyncio.ensure_future(anext(aiter(s.client.consume("orders", start="latest"))))
    await s.shows(lambda: s.total("readers_waiting"), 1, within_s=0.3, what="waiting readers")
    reading.cancel()
    await s.client.admin.resume("jobs")


# ---- services ------------------------------------------------------------------------------------------------------------
@script()
async def script_leadership_leaves_a_node_without_its_service(s: Stage) -> None:
    """Given a leader whose service has ended, a node on which the service runs leads after some seconds, and the service continues."""
    from tests.simulation.world.load.services import OUTPUT

    services = await s.start_services()
    await s.publish("orders", 20)
    instances = {instance.node.name: instance for instance in services.instances}
    s.forget_log()
    instances["n2"].end()
    took_s = await s.becomes(lambda: s.leader("orders") in ("n1", "n3"), within_s=15, what="another node leads")
    s.expect(took_s > 5, True, f"the leadership stays for service_grace_s, it took {took_s:.1f} s")
    leader = s.leader("orders")
    text = (
        f"WARNING *: leadership transferred for a service partition=orders/0 from=n2 to={leader} reason=the service sums is *"
    )
    s.expect(s.count_log("n2", text), 1, "log lines")
    s.expect(await s.metric("n2", "incidents_total", '"transfer_service"'), 1, "leaderships transferred for a service")
    await s.publish("orders", 10, first=20)
    instances["n2"].start()

    async def positions() -> list[int]:
        rows = [(await s.row(node, "orders"))["services"] for node in s.names]
        return [one["position"] for services in rows for one in services]

    await s.shows(positions, [30, 30, 30], within_s=20, what="positions of the services")
    s.expect(len(await s.read(OUTPUT[0])), 30, "outputs")
    for instance in services.instances:
        instance.end()
