"""Scripts about nodes with several processes."""

from __future__ import annotations

import asyncio
import base64
import os
import struct
from contextlib import suppress
from functools import partial

from liftpy.config import FlushPolicy
from liftpy.core.log.epoch_promises import PROMISES_NAME, decode_promises
from liftpy.errors import CorruptionError, LiftError, PublishRejectedError, StorageError
from sidecar.disk.data_folder import LOG_ENDS_NAME
from sidecar.disk.files import decode_checked_json
from sidecar.node import worker_node
from sidecar.workers import workers
from tests.simulation.world.machine.scheduler import NS_PER_S
from tests.simulation.world.scripts.stage import Stage, script


@script(workers=2)
async def script_partitions_of_a_node_with_two_processes(s: Stage) -> None:
    """Given nodes with two processes, when records come, status and metrics of a node show the partitions of both."""
    for node in s.names:
        s.expect(
            (await s.client.admin.node_health(node))["health"],
            {"live": True, "ready": True, "synced": True},
            f"health of {node}",
        )
    limits = ("queued_bytes_limit", "dedup_state_limit_bytes")
    for node in s.names:
        found = [await s.metric(node, name) for name in limits]
        s.expect(found, [256 << 20, 512 << 20], f"limits of {node}: both processes have them together")
    await s.create("orders", partitions=6)
    for partition in range(6):
        await s.publish("orders", 5, partition=partition)
    await asyncio.sleep(1)
    leaders: dict[int, str] = {}
    for node in s.names:
        status = await s.status(node)
        rows = status["partitions"]
        s.expect([row["partition"] for row in rows], list(range(6)), f"partitions of {node}")
        s.expect({row["high_watermark"] for row in rows}, {4}, f"high watermarks of {node}")
        led = [row["partition"] for row in rows if row["role"] == "LEADER"]
        leaders |= dict.fromkeys(led, node)
        s.expect(await s.metric(node, "partitions", "leader"), len(led), f"partitions that {node} leads")
        s.expect(await s.metric(node, "partitions"), 6, f"partitions of {node}")
        s.expect(await s.metric(node, "ingest_records_total"), 5 * len(led), f"records that {node} has received")
        s.expect(await s.metric(node, "log_size_bytes"), sum(row["log_bytes"] for row in rows), f"bytes of {node}")
        s.expect(await s.metric(node, "read_records_total"), 0, f"records that {node} has read")
        history = (await s.client.admin.ask_node(node, b'{"history": {"step": 1}}'))["history"]
        series, count = base64.b64decode(history["data"]), history["count"]
        stored = sum(struct.unpack_from(f"<{count}f", series, 4 * count * history["series"].index("records_in")))
        s.expect(round(stored), 5 * len(led), f"records of both processes in the history of {node}")
    s.expect(leaders, {number: s.leader("orders", number) for number in range(6)}, "leaders")
    for partition in range(6):
        s.expect(len(await s.read("orders", partition)), 5, "records")
    await s.shows(lambda: s.total("read_records_total"), 30, what="records that all nodes have read")
    # Both processes take new settings and log levels, and both stop and name the ends of their logs.
    s.change_settings("n2", scrub_bytes_per_s=7_000)
    await asyncio.sleep(1)
    s.expect((await s.status("n2"))["scrub"]["bytes_per_s"], 7_000, "rate of the scrub")
    began_s = s.now_s
    await s.stop("n2")
    s.expect(s.now_s - began_s < 0.5, True, f"both processes stop at once, it took {s.now_s - began_s:.2f} s")
    uid = (await s.client.admin.stream("orders")).uid
    ends = decode_checked_json((s["n2"].disk.folder / LOG_ENDS_NAME).read_bytes())["ends"]
    s.expect(ends, {f"orders-{uid}/{number}": 5 for number in range(6)}, "log ends of n2")
    for path in (s["n2"].disk.folder / "streams").glob("orders-*/*/*.log"):
        os.truncate(path, 0)
    s["n2"].disk.is_damaged = True
    s.forget_log()
    await s.start("n2")
    damaged = {text for name, _, text in s.lines if name.startswith("n2") and text.startswith("log.damaged: ")}
    s.expect(len(damaged), 6, "log lines of both processes")
    for partition in range(6):
        await s.shows(lambda: s.isr("orders", partition), s.names)  # noqa: B023


@script(workers=2)
async def script_process_of_a_node_dies(s: Stage) -> None:
    """Given a node with two processes, when one is killed, the other one ends with it, and the supervisor restarts both."""
    await s.create("orders", partitions=4)
    for partition in range(4):
        await s.publish("orders", 5, partition=partition)
    s.forget_log()
    worker = s["n2"].process.children[0]  # type: ignore[union-attr]
    worker.end(-9)
    await s.becomes(lambda: len(s["n2"].exits) == 1 and s["n2"].is_ready, what="the node restarts")
    s.expect(s.count_log("n2", f"CRITICAL node.failed: *Worker 1 (process {worker.pid}) ended unexpectedly."), 1, "log lines")
    s.expect(s["n2"].exits, [1], "exit code")
    for partition in range(4):
        await s.shows(lambda: s.isr("orders", partition), s.names)  # noqa: B023
        await s.publish("orders", 5, first=5, partition=partition)

    async def marks() -> set[int]:
        return {row["high_watermark"] for row in (await s.status("n2"))["partitions"]}

    await s.shows(marks, {9}, within_s=1, what="high watermarks")


@script(workers=2, long=True)
async def script_idle_partitions_of_two_processes(s: Stage) -> None:
    """Given idle partitions in two processes, when time passes, no replica fetches alone, and a record is committed at once."""
    workers.MAX_WAITING_FETCHES = 4  # more than two other nodes need
    await s.create("orders", partitions=8)
    for partition in range(8):
        await s.publish("orders", 1, partition=partition)
    await asyncio.sleep(12)
    since = len(s.messages)
    await asyncio.sleep(10)
    subjects = s.subjects("liftpy.", since)
    s.expect([one for one in subjects if ".replicate" in one], [], "fetches of single partitions")
    s.expect(sum([await s.metric(node, "partitions_quiet") for node in s.names]), 16, "quiet replicas")
    s.expect([await s.metric(node, "incidents_total", "idle_poll_timeout") for node in s.names], [0, 0, 0], "lost polls")
    began_s = s.now_s
    for partition in range(8):
        await s.publish("orders", 1, partition=partition)
    s.expect(
        s.now_s - began_s < 0.2, True, f"records of idle partitions are committed at once, it took {s.now_s - began_s:.3f} s"
    )


@script(workers=2)
async def script_process_of_a_node_hangs(s: Stage) -> None:
    """Given a node with two processes, when one of them hangs, the other one ends the node, and the supervisor restarts both."""
    await s.create("orders", partitions=4)
    for partition in range(4):
        await s.publish("orders", 5, partition=partition)
    s.forget_log()
    s["n2"].process.children[0].pause(60 * NS_PER_S)  # type: ignore[union-attr]
    took_s = await s.becomes(lambda: len(s["n2"].exits) == 1, within_s=4, what="the node ends")
    s.expect(took_s > 1, True, f"a short pause is no reason to end, it took {took_s:.1f} s")
    s.expect(s["n2"].exits, [1], "exit code")
    text = "CRITICAL node.failed: node failed node=n2 error=Worker 1 (process *) is blocked: 8 pings without answer.*"
    s.expect(s.count_log("n2", text), 1, "log lines")
    await s.becomes(lambda: s["n2"].is_ready, what="the node is ready again")
    for partition in range(4):
        await s.shows(lambda: s.isr("orders", partition), s.names)  # noqa: B023
        await s.publish("orders", 5, first=5, partition=partition)


@script(workers=2)
async def script_disk_fails_in_one_process_of_a_node(s: Stage) -> None:
    """Given a node with two processes, when a write of one of them fails, the whole node restarts once and repairs its log."""
    await s.create("orders", partitions=4)
    for partition in range(4):
        await s.publish("orders", 5, partition=partition)
    s.forget_log()
    s["n2"].disk.fails_for = "/3/"
    await s.publish("orders", 1, first=5, partition=3)
    await s.becomes(lambda: len(s["n2"].exits) == 1, within_s=4, what="the node ends")
    s["n2"].disk.heal()
    s.expect(s["n2"].exits, [75], "exit code")
    for name, log in (("n2.w1", "orders/3"), ("n2", "worker 1: orders/3")):
        text = f"ERROR node.restart_for_repair: log damaged node=n2 log={log}: Cannot write *: restarting to repair it"
        s.expect(s.count_log(name, text), 1, f"log lines of {name}")
    await s.becomes(lambda: s["n2"].is_ready, what="the node is ready again")
    for partition in range(4):
        await s.shows(lambda: s.isr("orders", partition), s.names)  # noqa: B023
    s.expect(await s.read("orders", 3), [b"record-%d" % number for number in range(6)], "records")
    s.expect(s["n2"].exits, [75], "exit codes")


@script(workers=2)
async def script_disk_is_full_for_a_node_with_two_processes(s: Stage) -> None:
    """Given streams that acknowledge before the flush, when a full disk stops a node, all its records are on the disk.

    So its next start keeps it in the ISRs of both processes.
    """
    s.allow("metadata.controller_failed", "metadata.controller_out_of_service")
    await s.create("orders", partitions=4, flush=FlushPolicy.parse("interval:5s"))
    for partition in range(4):
        await s.publish("orders", 5, partition=partition)
    node = s["n2"]
    node.disk.is_full = True
    for partition in range(4):
        with suppress(PublishRejectedError):  # by n2, if it leads
            await s.publish("orders", 1, first=5, partition=partition, timeout_s=20)

    async def space() -> str:
        return str((await s.client.admin.node_health("n2"))["checks"]["space"])

    await s.shows(space, "a full disk has stopped 4", what="check of the space of both processes")
    s.forget_log()
    node.disk.is_full = False
    await s.becomes(lambda: bool(node.exits) and node.is_ready, within_s=80, what="the node restarts")
    s.expect(node.exits, [75], "exit code")
    s.expect(s.count_log("n2", "node.registered_with_warning"), 0, "warnings about lost records")
    for partition in range(4):
        await s.shows(lambda: s.isr("orders", partition), s.names)  # noqa: B023


@script(workers=2)
async def script_process_of_a_node_is_busy(s: Stage) -> None:
    """Given a node with two processes, when the event loop of one is busy for 2.5 s, the node continues."""
    await s.create("orders", partitions=4)
    for partition in range(4):
        await s.publish("orders", 5, partition=partition)
    log_bytes = await s.metric("n2", "log_size_bytes")
    loop = s["n2"].process.children[0].loops[0]  # type: ignore[union-attr]
    loop.busy_until_ns = s.world.scheduler.now_ns + 2_500 * NS_PER_S // 1000
    began_s = s.now_s
    s.expect(await s.metric("n2", "log_size_bytes"), log_bytes, "bytes of both processes while one does not answer")
    s.expect(1 <= s.now_s - began_s < 1.5, True, f"a node waits 1 s for its processes, it took {s.now_s - began_s:.1f} s")
    await asyncio.sleep(5)
    s.expect(s["n2"].exits, [], "ends of the node")
    for partition in range(4):
        await s.shows(lambda: s.isr("orders", partition), s.names)  # noqa: B023
        await s.publish("orders", 5, first=5, partition=partition)


@script(workers=2)
async def script_node_waits_for_a_process_with_a_slow_disk(s: Stage) -> None:
    """Given a process that flushes its log for 7 s when the node stops, the node waits for it and stops cleanly."""
    await s.create("orders", partitions=4, flush=FlushPolicy.parse("interval:60s"))
    await s.publish("orders", 5, partition=3)
    s.forget_log()
    node = s["n2"]
    node.disk.log_delay_ns = 7 * NS_PER_S
    node.wants_restart = False
    node.terminate()
    took_s = await s.becomes(lambda: not node.is_up, within_s=12, what="the node stops")
    s.expect(took_s > 7, True, f"the flush of worker 1 takes 7 s, the stop took {took_s:.1f} s")
    s.expect(node.exits, [0], "exit code")
    for name, who in (("n2", "n2"), ("n2.w1", "n2, worker 1,")):
        s.expect(s.count_log(name, f"INFO node.stopped: node stopped node={who} clean=yes"), 1, f"log lines of {name}")
    node.disk.heal()
    await s.start("n2")


@script(workers=2)
async def script_promises_of_a_process_outlive_it(s: Stage) -> None:
    """Given a process that has promised epochs, when its node starts with one process, this one keeps the promises."""
    await s.create("orders", partitions=4)
    for leader in ("n1", "n2"):
        await s.client.admin.elect_leader("orders", 3, leader)
        await s.becomes(lambda: s.leader("orders", 3) == leader, what=f"{leader} leads")  # noqa: B023
    await s.publish("orders", 1, partition=3)
    await s.stop("n2")
    folder = s["n2"].disk.folder
    journals = [folder / "workers" / "1" / "promises" / PROMISES_NAME, folder / "promises" / PROMISES_NAME]
    promised = decode_promises(journals[0].read_bytes())
    s.expect(sorted(promised.values()) > [0], True, f"promises of worker 1 {promised}")
    s.change_file("n2", workers=1)
    await s.start("n2")
    s.expect(journals[0].exists(), False, "the journal of worker 1 exists")
    merged = decode_promises(journals[1].read_bytes())
    s.expect({key: merged.get(key) for key in promised}, promised, "promises of the node")
    for partition in range(4):
        await s.shows(partial(s.isr, "orders", partition), s.names)


@script(workers=2)
async def script_process_hangs_while_its_node_stops(s: Stage) -> None:
    """Given a process that hangs while the node stops, the node kills it after 6 s and says that the stop is not clean."""
    await s.create("orders", partitions=4, flush=FlushPolicy.parse("interval:60s"))
    await s.publish("orders", 5, partition=3)
    s.forget_log()
    node = s["n2"]
    node.disk.log_delay_ns, node.disk.was_slow = 3 * NS_PER_S, True
    node.wants_restart = False
    node.terminate()
    await asyncio.sleep(2)
    worker = node.process.children[0]  # type: ignore[union-attr]
    s.expect(worker.is_alive, True, "the process flushes its log")
    worker.pause(60 * NS_PER_S)
    took_s = await s.becomes(lambda: not node.is_up, within_s=9, what="the node stops")
    s.expect(5.5 < took_s < 7, True, f"a process without an answer for 6 s is killed, the stop took {took_s:.1f} s")
    s.expect(node.exits, [0], "exit code")
    s.expect(
        s.count_log("n2", "WARNING *: worker not stopped worker=1 seconds=*: killing it"), 1, "log lines about the process"
    )
    s.expect(s.count_log("n2", "INFO node.stopped: node stopped node=n2 clean=no"), 1, "log lines about the stop")
    node.disk.heal()
    await s.start("n2")
    for partition in range(4):
        await s.shows(partial(s.isr, "orders", partition), s.names)


@script(workers=2)
async def script_process_of_a_node_has_no_connection(s: Stage) -> None:
    """Given a node with two processes, when one loses its connections to NATS, the health checks of the node say so.

    Other nodes lead its partitions soon. The other process works on.
    """
    await s.create("orders", partitions=4)
    for partition in range(4):
        await s.client.admin.elect_leader("orders", partition, "n2")
        await s.publish("orders", 5, partition=partition)
    s.world.nats.refuse("n2.w1")

    async def failed() -> list[str]:
        return [name for name, why in (await s.client.admin.node_health("n2"))["checks"].items() if why]

    await s.shows(failed, ["nats"], within_s=2, what="failed health checks")
    await s.becomes(lambda: s.leader("orders", 3) in ("n1", "n3"), within_s=15, what="another node leads partition 3")
    await s.publish("orders", 5, first=5, partition=3)
    s.expect(s.leader("orders", 0), "n2", "leader of partition 0")
    s.world.nats.refuse("")
    await s.shows(failed, [], within_s=5, what="failed health checks")
    for partition in range(4):
        await s.shows(partial(s.isr, "orders", partition), s.names)


@script(workers=2, stops=False)
async def script_process_of_a_node_meets_a_fatal_error(s: Stage) -> None:
    """Given a node with two processes, when one reports a fatal error, the exit code of the node says whether a restart may help."""
    await s.create("orders", partitions=4)
    node = s["n2"]
    for error, code in (
        (CorruptionError("The journal is damaged."), 78),
        (StorageError("Cannot write the journal."), 75),
        (LiftError("The event loop has failed."), 1),
    ):
        if not node.is_up:
            await s.start("n2")
        s.forget_log()
        ended = len(node.exits)
        node.wants_restart = False
        worker = node.process.children[0]  # type: ignore[union-attr]
        s.world.scheduler.run_as(worker, partial(node.programs[1].fatal, error))
        await s.becomes(lambda: len(node.exits) > ended, within_s=5, what=f"n2 ends after {error!r}")  # noqa: B023
        s.expect(node.exits[-1], code, f"exit code after {error!r}")
        text = f"CRITICAL node.failed: node failed node=n2 error=worker 1: {error}: stopping"
        s.expect(s.count_log("n2", text), 1, f"log lines about {error!r}")
    await s.start("n2")
    for partition in range(4):
        await s.shows(lambda: s.isr("orders", partition), s.names)  # noqa: B023


@script(workers=2)
async def script_process_of_a_node_hangs_while_the_node_stops(s: Stage) -> None:
    """Given a process that does not end within 10 s after the request of an operator, the node kills it. Its stop is not clean."""
    await s.create("orders", partitions=4, flush=FlushPolicy.parse("interval:60s"))
    await s.publish("orders", 5, partition=3)
    node = s["n2"]
    node.disk.log_delay_ns = 30 * NS_PER_S
    node.disk.is_damaged = True
    node.wants_restart = False
    s.forget_log()
    node.terminate()
    took_s = await s.becomes(lambda: not node.is_up, within_s=12, what="the node stops")
    s.expect(9.9 < took_s < 11, True, f"the node waits 10 s for the process, the stop took {took_s:.1f} s")
    s.expect(node.exits, [0], "exit code")
    s.expect(s.count_log("n2", "INFO node.stopped: node stopped node=n2 clean=no"), 1, "log lines about an unclean stop")
    s.expect(s.count_log("n2", "node.stop_timeout"), 0, "log lines about a forced end")
    node.disk.heal()
    await s.start("n2")
    await s.shows(lambda: s.isr("orders", 3), s.names)


@script(workers=2)
async def script_replicas_in_both_processes_have_to_catch_up(s: Stage) -> None:
    """Given a node with two processes that starts, it is synced when the replicas of both were in the ISR, and not before."""
    await s.create("orders", partitions=4)
    await s.stop("n2")
    for partition in range(4):
        await s.client.admin.elect_leader("orders", partition, "n1")
        await s.publish("orders", 5, partition=partition)
    for partition in range(4):
        subject = f"liftpy.orders.{partition}.replicate"
        s.world.nats.loses = lambda client, message: client.startswith("liftpy-n2-") and message.subject == subject  # noqa: B023
        await s.start("n2")
        await asyncio.sleep(2)
        found = await s.client.admin.node_health("n2")
        s.expect(found["health"], {"live": True, "ready": True, "synced": False}, f"health without partition {partition}")
        s.expect_in(f"have not caught up yet, orders/{partition} among them", found["checks"]["synced"], "reason")
        s.world.nats.loses = lambda client, message: False

        async def synced() -> bool:
            return bool((await s.client.admin.node_health("n2"))["health"]["synced"])

        await s.shows(synced, True, what="n2 is synced")
        await s.stop("n2")
        await s.publish("orders", 1, first=5, partition=(partition + 1) % 4)
    await s.start("n2")


@script(workers=2)
async def script_operator_changes_the_log_level_for_a_while(s: Stage) -> None:
    """Given a node with two processes, when an operator asks for another log level for 5 s, both have it, and then the former one."""
    await s.create("orders", partitions=4)
    await s.client.admin.node_log_level("n2", "warning", 5.0)
    await asyncio.sleep(0.2)
    s.forget_log("n2", "n2.w1")
    await s.create("quiet", partitions=4)
    await asyncio.sleep(1)
    s.expect((s.log("n2"), s.log("n2.w1")), ([], []), "log lines of both processes")
    await asyncio.sleep(5)
    await s.create("loud", partitions=4)
    await asyncio.sleep(1)
    opened = [s.count_log(name, "INFO partition.opened: partition opened partition=loud/*") for name in ("n2", "n2.w1")]
    s.expect((sum(opened), min(opened) > 0), (4, True), f"log lines of both processes {opened}")


@script(workers=2)
async def script_processes_of_a_node_exchange_many_messages(s: Stage) -> None:
    """Given a lower limit of what a process has not sent to the other one, many small messages do not reach it."""
    worker_node.MOST_UNSENT_BYTES = 60_000
    await s.create("orders", partitions=4)
    for partition in range(4):
        await s.publish("orders", 5, partition=partition)
    for _ in range(30):
        await s.status("n2")
    await asyncio.sleep(5)
    s.expect([s[node].exits for node in s.names], [[], [], []], "ends of the nodes")
