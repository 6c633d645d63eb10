"""Scripts about disks: full, slow, failing, and with a flipped bit."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from functools import partial

from liftpy.client import ReadOptions
from liftpy.config import FlushPolicy
from liftpy.core.log.small_files import CHECKPOINT_NAME, decode_checkpoint
from liftpy.core.wire.batch import split_batches
from liftpy.errors import OutcomeUnknownError, PublishRejectedError
from sidecar.disk import files
from tests.simulation.world.machine.scheduler import NS_PER_S
from tests.simulation.world.scripts.stage import Stage, script

_VALUE = b"x" * 200
_CALLS = (
    ("open", ".log"), ("write", ".log"), ("flush", ".log"), ("unlink", ".log"), ("flush", "/0"), ("open", "/high-watermark.tmp"),
    ("write", "/high-watermark.tmp"), ("flush", "/high-watermark.tmp"), ("read", "/high-watermark.tmp"), ("rename", "/high-watermark"),
)  # fmt: skip
"""Calls of a node that works: kind of the call, and text in the path."""


@script()
async def script_disk_is_full_and_has_room_again(s: Stage) -> None:
    """Given a leader, when its disk is full, it rejects a publish with the reason, and another node leads.

    A minute after there is room again, the node restarts to repair its logs, and joins the ISR.
    """
    s.allow("metadata.controller_start_failed")
    await s.create("orders", leader="n2", segment_bytes=4096)
    await s.publish("orders", 40, value=_VALUE)
    s.forget_log()
    node = s["n2"]
    node.disk.is_full = True
    text = await s.fails(s.publish("orders", 1, timeout_s=3), PublishRejectedError)
    s.expect_in("NO_SPACE", text)
    await s.becomes(lambda: s.leader("orders") in ("n1", "n3"), within_s=2, what="another node leads")
    s.expect(await s.publish("orders", 2, first=40), [40, 41], "offsets at the new leader")
    await asyncio.sleep(1)  # the full node begins to retry 5 s after its controller has failed
    s.expect_log(
        "n2",
        """
        ERROR replica.storage_failed: * partition=orders/0 error=Cannot write *: No space left on device.*
        INFO replica.role_changed: * partition=orders/0 role=FAILED *
        WARNING replica.transfer_requested: leadership given up partition=orders/0 reason=Cannot write *
        CRITICAL metadata.controller_failed: controller failed error=Cannot write *: No space left on device.*: stopping it
        ERROR metadata.controller_out_of_service: * node=n2 error=*: following the metadata feed, retrying every 5 s
        """,
    )
    s.expect(await s.metric("n2", "disk_free_bytes"), 0, "free bytes")
    s.expect(await s.metric("n2", "partitions_failed"), 1, "failed partitions")
    s.expect(await s.metric("n2", "incidents_total", "storage_failure"), 1, "storage failures")
    row = await s.row("n2", "orders")
    s.expect((row["role"], row["storage_failed"], row["leader"] != "n2"), ("FAILED", True, True), "row of the failed replica")
    s.expect((await s.status("n2"))["controller"], False, "n2 is a controller")
    health = await s.client.admin.node_health("n2")
    s.expect((health["health"]["live"], health["checks"]["space"] != ""), (True, True), "health of the full node")
    s.forget_log()
    await s.client.admin.alter_stream("orders", retention_bytes=4096)
    await s.becomes(lambda: s.count_log("n2", "log.deleted_on_full_disk"), within_s=70, what="the full node deletes records")
    s.expect((await s.row("n2", "orders"))["log_start_offset"] > 0, True, "first offset of the failed replica")
    node.disk.heal()
    await s.becomes(lambda: bool(node.exits) and node.is_ready, within_s=80, what="the node restarts")
    s.expect(node.exits, [75], "exit code")
    s.expect(s.count_log("n2", "metadata.became_controller"), 1, "log lines about the controller")
    s.expect_in(
        "ERROR node.restart_for_repair: * log=orders/0 and 0 more, which the full disk had stopped", "\n".join(s.log("n2"))
    )
    s.expect(s.count_log("n2", "node.clock_untrusted"), 0, "log lines about the clock")
    await s.shows(lambda: s.isr("orders"), s.names)
    s.expect((await s.client.admin.node_health("n2"))["health"], {"live": True, "ready": True, "synced": True}, "health")


@script()
async def script_disk_of_the_node_that_leads_everything_is_full(s: Stage) -> None:
    """Given a node that leads the metadata group and a partition, when its disk is full, another node leads within 1.5 s.

    The node gives its leadership up by a request to the metadata group. Its own member of the group fails while it has this request.
    """
    s.ends_cleanly = False
    s.allow("metadata.controller_failed", "metadata.controller_out_of_service")
    node = await s.controller()
    await s.create("orders", leader=node)
    s[node].disk.is_full = True
    await s.fails(s.publish("orders", 1, timeout_s=3), PublishRejectedError)
    await s.becomes(lambda: s.leader("orders") not in ("", node), within_s=1.5, what="another node leads")
    s.expect(await s.publish("orders"), [0], "offset at the new leader")
    s[node].disk.heal()


@script()
async def script_disk_without_inodes_stops_only_the_partition_that_needs_one(s: Stage) -> None:
    """Given a leader, when its disk has space but no inodes, the partition stops at its next segment, and another node leads.

    The node does not restart while there is no inode, because it could not start. So its other partitions continue. Then a quota and
    an error hinder it once each.
    """
    await s.create("orders", leader="n2", segment_bytes=4096)
    await s.create("others", leader="n2")
    node = s["n2"]
    node.disk.takes_new_files = False
    s.forget_log()
    text = await s.fails(s.publish("orders", 40, value=_VALUE, timeout_s=3), PublishRejectedError)
    s.expect_in("NO_SPACE", text)
    await s.becomes(lambda: s.leader("orders") in ("n1", "n3"), within_s=2, what="another node leads")
    s.expect_in("No space left on device. *no free inodes (df -i)*", "\n".join(s.log("n2")))
    await asyncio.sleep(130)
    s.expect(node.exits, [], "exit codes without an inode")
    s.expect(s.leader("others"), "n2", "leader of the other stream")
    s.expect(await s.publish("others", 1), [0], "offset in the other stream")
    node.disk.heal()
    node.disk.next_failures += [("open", "/space-probe.tmp", error) for error in (errno.EDQUOT, errno.EIO)]
    await s.becomes(lambda: bool(node.exits) and node.is_ready, within_s=80, what="the node restarts")
    s.expect(node.exits, [75], "exit code")
    s.expect(
        s.count_log("n2", "WARNING *: free space not known directory=* error=*Input/output error*: retrying"), 1, "log lines"
    )
    await s.shows(lambda: s.isr("orders"), s.names)


async def _a_replica_more(s: Stage, *, takes_new_files: bool) -> None:
    """Give a stream one more replica on a node whose disk is full or has no inodes, and expect it on another node."""
    s.allow("copies_cancelled_storage_failed")
    await s.create("orders", replicas=3)
    await s.publish("orders", 20, value=_VALUE)
    former = (await s.client.admin.stream("orders")).partitions[0].replicas
    full, spare = (node for node in s.names if node not in former)
    s[full].disk.is_full, s[full].disk.takes_new_files = takes_new_files, takes_new_files
    s.forget_log()
    await s.client.admin.alter_stream("orders", replication_factor=4)
    await s.shows(lambda: s.isr("orders"), sorted([*former, spare]), within_s=20)
    s.expect(
        s.count_log(full, "WARNING replica.copy_failed: copy failed partition=orders/0 reason=*No space left"), 1, "log lines"
    )
    s.expect(await s.row(full, "orders"), {}, "row of the partition on the full node")
    await asyncio.sleep(0.5)
    s.expect(list((s[full].disk.folder / "streams").glob("orders-*/0")), [], "folders of the partition on the full node")
    s[full].disk.heal()


@script(nodes=5)
async def script_new_replica_meets_a_full_disk(s: Stage) -> None:
    """Given a node with a full disk, when a stream gets one more replica there, another node gets it instead."""
    s.ends_cleanly = False
    await _a_replica_more(s, takes_new_files=True)


@script(nodes=5)
async def script_new_replica_meets_a_disk_without_inodes(s: Stage) -> None:
    """Given a node that cannot create the log of a new replica, another node gets the replica instead."""
    await _a_replica_more(s, takes_new_files=False)


@script()
async def script_slow_flush_is_reported(s: Stage) -> None:
    """Given a leader, when one flush takes 3 s, the node reports it, and publishes are acknowledged after it."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 5)
    s.forget_log()
    s["n2"].disk.delay_ns = 3 * NS_PER_S
    began_s = s.now_s
    s.expect(await s.publish("orders", 1, first=5, timeout_s=9), [5], "offset")
    s.expect(s.now_s - began_s < 4, True, "ack within 4 s")
    await s.shows(lambda: s.metric("n2", "incidents_total", "slow_flush"), 1)
    await asyncio.sleep(2)
    s.expect_log(
        "n2", "WARNING disk.slow_flush: slow flush log=orders/0 seconds=3.0 slow_flushes=1: publishers wait.*", about="flush"
    )
    flushes = (await s.status("n2"))["flush_times"]
    s.expect(2_900 < flushes["max_ms"] < 3_300, True, f"largest flush time {flushes}")
    await s.shows(lambda: s.isr("orders"), s.names)


@script(nodes=1, controllers=1)
async def script_flush_that_takes_long_delays_no_other_partition(s: Stage) -> None:
    """Given two partitions on a node, when a flush of one takes 0.4 s, the other acknowledges at once. This one does it afterwards.

    The event loop waits for a flush for a few milliseconds only. Then the flush ends in its thread. If it ends with an error, the
    node restarts, because only a new process may continue the log.
    """
    await s.create("orders")
    await s.create("jobs")
    await s.publish("orders", 5)
    for number in range(5, 8):
        s["n1"].disk.log_delay_ns = NS_PER_S * 4 // 10
        began_s = s.now_s
        slow = asyncio.create_task(s.publish("orders", 1, first=number))
        await asyncio.sleep(0.05)
        await s.publish("jobs", 2)
        s.expect(s.now_s - began_s < 0.2, True, f"acks of the other partition, they took {s.now_s - began_s:.2f} s")
        s.expect(slow.done(), False, "ack before the end of the flush")
        s.expect(await slow, [number], "offset")
        s.expect(0.4 <= s.now_s - began_s < 0.5, True, f"ack after the flush, it took {s.now_s - began_s:.2f} s")
        await asyncio.sleep(1)
    s["n1"].disk.log_delay_ns = NS_PER_S * 4 // 10
    s["n1"].disk.fail_next_flushes = 1
    await s.fails(s.publish("orders", 1, first=8, timeout_s=2), OutcomeUnknownError)
    await s.becomes(lambda: s["n1"].exits == [75] and s["n1"].is_ready, what="the node restarts")
    s.expect(await s.read("jobs"), [b"record-0", b"record-1"] * 3, "records of the other partition")
    s.expect((await s.read("orders"))[:8], [b"record-%d" % number for number in range(8)], "acknowledged records")


@script()
async def script_compaction_meets_a_disk_error(s: Stage) -> None:
    """Given a compaction that cannot write its file, the node says so, keeps all records, and tries again later, ever more seldom."""
    await s.create("keyed", leader="n2", segment_bytes=4096, compaction=True, delete_retention_s=0.0, dedup_window_s=1.0)
    node = s["n2"]
    node.disk.fails_for = ".compacted.tmp"
    for number in range(200):
        await s.client.publish("keyed", b"value-%d" % number, key=b"key-%d" % (number % 5))
    s.forget_log()
    for count, pause_s in enumerate((5, 10), 1):
        await s.becomes(lambda: s.count_log("n2", "log.compaction_failed") == count, what="a compaction fails")  # noqa: B023
        text = "WARNING log.compaction_failed: compaction failed partition=keyed/0 error=Cannot write *.compacted.tmp: *: retrying in"
        s.expect(s.count_log("n2", f"{text} {pause_s} s"), 1, f"log lines about a pause of {pause_s} s")
    failed_s = s.now_s
    node.disk.fails_for = ""
    await s.becomes(lambda: s.count_log("n2", "INFO log.compacted") == 1, within_s=20, what="a compaction succeeds")
    s.expect(9.5 <= s.now_s - failed_s < 16, True, f"the pause is kept, it was {s.now_s - failed_s:.1f} s")
    kept = [(record.key, record.value) async for record in s.client.consume("keyed", until="end")]
    s.expect(dict(kept), {b"key-%d" % key: b"value-%d" % (195 + key) for key in range(5)}, "newest value of each key")
    s.expect((node.exits, (await s.row("n2", "keyed"))["storage_failed"]), ([], False), "(exits, failed)")


@script()
async def script_flush_fails_and_then_the_power_fails(s: Stage) -> None:
    """Given a leader whose flush fails once, when all nodes lose their power, every acknowledged record is still there.

    The kernel treats the pages of a failed flush as written. The node must write them again.
    """
    await s.create("orders", leader="n2")
    await s.publish("orders", 5)
    s.forget_log()
    for name in s.names:
        s[name].disk.fail_next_flushes = 1
        s[name].disk.keeps_unflushed = False
    await s.publish("orders", 1, first=5, timeout_s=20)
    for name in s.names:
        s[name].power_cut(restart_after_ns=NS_PER_S)
    await s.becomes(lambda: all(s[name].is_ready for name in s.names), within_s=30, what="the nodes are ready again")
    await s.becomes(lambda: s.leader("orders") != "", within_s=30, what="a node leads")
    values = await s.read("orders")
    s.expect(values, [b"record-%d" % number for number in range(6)], "records after the power cut")


@script()
async def script_scrub_finds_a_flipped_bit_and_the_node_repairs_it(s: Stage) -> None:
    """Given closed segments, when a bit of one flips, the scrub finds it, and the node gets the records from another replica.

    The node leads neither the partition nor the metadata group.
    """
    leader = await s.controller()
    name = s.others(leader)[0]
    node = s[name]
    s.change_settings(name, scrub_bytes_per_s=0)  # so that the scrub checks no segment before its bit flips
    await s.create("orders", leader=leader, segment_bytes=4096)
    await s.publish("orders", 60, value=_VALUE)
    wanted = await s.read("orders")
    s.forget_log()
    s.change_settings(name, scrub_bytes_per_s=100_000)
    node.disk.flip_bit(closed=True)
    await s.becomes(lambda: bool(node.exits) and node.is_ready, within_s=90, what="the node restarts")
    await s.shows(lambda: s.isr("orders"), s.names)
    await s.becomes(lambda: s.count_log(name, "replica.repaired") == 1, within_s=70, what="the quarantined files are removed")
    s.expect_log(
        name,
        f"""
        INFO node.settings_reloaded: settings reloaded applied=scrub_bytes_per_s waiting_for_restart=none
        ERROR scrub.damage: damage found partition=orders/0 error=Damaged batch *: its CRC-32C does not match.*
        ERROR replica.storage_failed: storage failed partition=orders/0 error=Damaged batch *
        INFO replica.role_changed: * partition=orders/0 role=FAILED *
        WARNING isr.left: replica removed from the ISR partition=orders/0 reason=Damaged batch *
        ERROR node.restart_for_repair: log damaged node={name} log=orders/0: Damaged batch *: restarting to repair it
        INFO node.transferring_leaderships: *
        INFO replica.role_changed: * partition=orders/0 role=STOPPED *
        INFO node.stopped: node stopped node={name} clean=no *
        ERROR log.damaged: log damaged log=*/orders-*/0 report=*
        WARNING node.registered_with_warning: node registered warning=may have lost acknowledged data: out of 0 partitions *
        INFO node.up: node started node={name} incarnation=4
        INFO partition.opened: partition opened partition=orders/0 log_start=0 newest_offset=* hw=*
        WARNING log.recovered: log recovered partition=orders/0 report=*
        INFO replica.role_changed: * partition=orders/0 role=FOLLOWER *
        INFO jetstream.enabled: *
        INFO replica.repaired: replica repaired partition=orders/0: removed quarantined files=*.behind-0
        """,
    )
    s.expect(node.exits, [75], "exit code")
    shown = (await s.status(name))["scrub"]
    s.expect(shown["findings"], 1, "findings in the status")
    s.expect_in("orders/0: *: Damaged batch", shown["last_finding"])
    s.expect(await s.metric(name, "scrub_damage_total"), 1, "findings of the scrub")
    s.expect(await s.metric(name, "damaged_segments_total"), 1, "damaged segments")
    await s.client.admin.elect_leader("orders", 0, name)
    await s.becomes(lambda: s.leader("orders") == name, what=f"{name} leads")
    s.expect(await s.read("orders") == wanted, True, "the records of the repaired replica are those of the others")


@script(long=True)
async def script_scrub_reads_closed_segments_at_its_rate(s: Stage) -> None:
    """Given a scrub that is allowed 300 bytes a second, when segments are closed, it reads each of them, but not all at once."""
    for name in s.names:
        s.change_settings(name, scrub_bytes_per_s=300)
    await s.create("orders", leader="n2", segment_bytes=4096)
    await s.publish("orders", 100, value=_VALUE)
    await asyncio.sleep(2)
    early_bytes = await s.metric("n1", "scrub_bytes_total")
    closed_bytes = (await s.row("n1", "orders"))["log_bytes"] - 4096
    s.expect(early_bytes < closed_bytes / 2, True, f"{early_bytes:g} bytes of {closed_bytes} were read within 2 s")

    async def has_read_all() -> bool:
        return bool(await s.metric("n1", "scrub_bytes_total") >= closed_bytes)

    await s.shows(has_read_all, True, within_s=90, what="all closed segments are read")
    shown = (await s.status("n1"))["scrub"]
    s.expect((shown["findings"], shown["last_finding"], shown["bytes_per_s"]), (0, "", 300), "status of the scrub")
    s.expect(shown["checked_bytes"], shown["read_bytes"], "checked bytes")
    s.change_settings("n1", scrub_bytes_per_s=0)
    await s.publish("orders", 40, value=_VALUE)
    await asyncio.sleep(10)
    s.expect((await s.status("n1"))["scrub"]["read_bytes"], shown["read_bytes"], "bytes that a scrub without rate reads")


@script()
async def script_leader_meets_damage_while_a_follower_fetches(s: Stage) -> None:
    """Given a leader with a flipped bit in an old segment, when a follower needs these records, another replica gives them.

    The leader counts the failed read, gives up the leadership, and repairs its log.
    """
    await s.create("orders", leader="n2", segment_bytes=4096)
    await s.stop("n1")
    await s.publish("orders", 60, value=_VALUE)
    for name in ("n2", "n3"):
        s.change_settings(name, scrub_bytes_per_s=0)
    s.forget_log()
    s["n2"].disk.flip_bit()
    s["n1"].start()
    await s.becomes(lambda: bool(s["n2"].exits), within_s=20, what="n2 restarts to repair its log")
    s.expect(
        s.count_log("n2", "WARNING replica.served_wrong_bytes: replica fetched damaged bytes partition=orders/0 replica=n1 *"),
        1,
        "log lines",
    )
    s.expect(
        s.count_log("n1", "WARNING replication.damaged: batch from the leader damaged partition=orders/0 offset=*"),
        1,
        "log lines",
    )
    await s.shows(lambda: s.isr("orders"), s.names, within_s=30)
    s.expect(await s.read("orders"), [_VALUE + b"-%d" % number for number in range(60)], "records")


@script()
async def script_leader_cannot_read_for_a_follower(s: Stage) -> None:
    """Given a leader whose disk fails one read, when a follower fetches, the leader counts it. The follower gets all records later."""
    await s.create("orders", leader="n2")
    await s.stop("n1")
    await s.publish("orders", 60, value=_VALUE)
    s.forget_log()
    s["n2"].disk.fail_next_reads = 1
    await s.start("n1")
    await s.shows(lambda: s.isr("orders"), s.names, within_s=20)
    s.expect(s["n2"].disk.fail_next_reads, 0, "reads that are to fail")
    s.expect(await s.metric("n2", "incidents_total", "fetch_read_failed"), 1, "failed reads for followers")
    s.expect_log(
        "n2",
        "WARNING replication.read_failed: batch not read for a follower partition=orders/0 offset=0 error=*",
        about="replication.",
    )
    s.expect((await s.row("n1", "orders"))["high_watermark"], 59, "high watermark of the follower")
    s.expect(s.leader("orders"), "n2", "leader")


@script(hw_checkpoint_interval_s=1.0)
async def script_one_call_of_a_disk_fails(s: Stage) -> None:
    """Given a disk that fails one call, whichever it is, publishes are stored, and soon all replicas have all records again."""
    await s.create("orders", leader="n2", segment_bytes=4096, retention_bytes=40_000)
    for place, (call, part) in enumerate(_CALLS):
        node = s["n1" if place % 2 else "n2"]
        node.disk.next_failures.append((call, part, errno.EIO))
        offsets = await s.publish("orders", 40, value=_VALUE, first=40 * place, timeout_s=20)
        s.expect(offsets, list(range(40 * place, 40 * place + 40)), f"offsets while {call} fails")
        await s.becomes(lambda: not node.disk.next_failures, within_s=5, what=f"{call} of {part} fails")  # noqa: B023
        await s.shows(lambda: s.isr("orders"), s.names, within_s=20, what=f"ISR after {call} of {part} has failed")
        if s.leader("orders") != "n2":
            await s.client.admin.elect_leader("orders", 0, "n2")
    values = await s.read("orders")
    wanted = [_VALUE + b"-%d" % number for number in range(40 * len(_CALLS))]
    s.expect(values, wanted[-len(values) :], "records")
    s.expect([code for node in s.names for code in s[node].exits if code != 75], [], "exit codes of other kinds than a repair")


@script()
async def script_node_has_no_free_file_descriptor(s: Stage) -> None:
    """Given a node without a free file descriptor, it closes files that it does not need now, and continues without an error."""
    await s.create("orders", leader="n2", segment_bytes=4096)
    await s.publish("orders", 60, value=_VALUE)
    s.forget_log()
    for number, error in enumerate((errno.EMFILE, errno.ENFILE)):
        s["n2"].disk.next_failures.append(("open", ".log", error))
        await s.publish("orders", 60, value=_VALUE, first=60 * (number + 1))
        s.expect(s["n2"].disk.next_failures, [], "calls that are to fail")
    s.expect(await s.read("orders"), [_VALUE + b"-%d" % number for number in range(180)], "records")
    s.expect((s.log("n2", least="WARNING"), s["n2"].exits), ([], []), "warnings and ends of the process")


@script(stops=False)
async def script_node_with_an_unclosed_log_does_not_stop_cleanly(s: Stage) -> None:
    """Given a disk that fails while a node stops, the node says that its stop is not clean, and checks its logs at the next start."""
    for number in range(3):
        await s.create(f"orders{number}", leader="n2")
        await s.publish(f"orders{number}", 3)
    s.forget_log()
    node = s["n2"]
    node.wants_restart = False
    node.disk.fails_for = "/orders1-"
    node.terminate()
    await s.becomes(lambda: not node.is_up, within_s=20, what="the process ends")
    s.expect(s.count_log("n2", "node.stopped: node stopped node=n2 clean=no *"), 1, "log lines about an unclean stop")


@script()
async def script_log_that_lost_its_last_batch_after_a_clean_stop_leaves_the_isr(s: Stage) -> None:
    """Given a follower that stops cleanly, when a log then loses its last batch, the next start notices it, also beside an empty log.

    The high watermark of the follower is below this batch. The leader may have committed it with the ack of this follower, so a
    leader with the shorter log would lose an acknowledged record.
    """
    await s.create("orders", leader="n2")
    await s.create("empty")
    publishing = asyncio.create_task(s.publish("orders", 60, value=_VALUE))
    await asyncio.sleep(0.02)
    await s.stop("n1")
    await publishing
    (path,) = (s["n1"].disk.folder / "streams").glob("orders-*/0/*.log")
    data = path.read_bytes()
    checkpoint = decode_checkpoint((path.parent / CHECKPOINT_NAME).read_bytes())
    batches = split_batches(memoryview(data))
    s.expect(
        checkpoint is not None and checkpoint.high_watermark < batches[-1].base_offset, True, "the last batch is above the HW"
    )
    os.truncate(path, len(data) - batches[-1].header.size_bytes)
    s["n1"].disk.is_damaged = True
    s.forget_log()
    await s.start("n1")
    s.expect(s.count_log("n1", "ERROR log.damaged: log damaged log=*/orders-*/0 report=*lost_flushed=True*"), 1, "log lines")
    s.expect(
        s.count_log("n1", "WARNING node.registered_with_warning: node registered warning=may have lost acknowledged data*"),
        1,
        "log lines",
    )
    await s.shows(lambda: s.isr("orders"), s.names)
    await s.stop("n1")
    s.forget_log()
    await s.start("n1")
    s.expect_log("n1", "", about="log.")
    s.expect(s.count_log("n1", "node.registered_with_warning"), 0, "warnings at the next start")
    marks = [
        path.name for path in (s["n1"].disk.folder / name for name in ("unreported-damage", "lazy-flush")) if path.exists()
    ]
    s.expect(marks, [], "marks of damage that the cluster knows")


@script()
async def script_kill_and_lost_files_of_a_log(s: Stage) -> None:
    """Given a killed node whose log files are lost, when it starts, it says so, leaves the ISR, and copies the records again.

    The directory of one log is lost, and the segments of another one. The node leads neither
    a partition nor the metadata group.
    """
    leader = await s.controller()
    killed = s.others(leader)[0]
    for name in ("orders", "jobs"):
        await s.create(name, leader=leader)
        await s.publish(name, 10)
    s[killed].kill()
    streams = s[killed].disk.folder / "streams"
    shutil.rmtree(next(streams.glob("orders-*/0")))
    for segment in streams.glob("jobs-*/0/*.log"):
        segment.unlink()
    s.forget_log()
    await s.start(killed)
    s.expect_log(
        killed,
        """
        ERROR log.directory_lost: log directory missing log=orders-*/0: records that this node acknowledged are lost here, *
        ERROR log.segments_lost: all segments missing log=*/jobs-*/0: records that this node acknowledged are lost here, *
        WARNING node.registered_with_warning: node registered warning=may have lost acknowledged data: out of 2 partitions *
        INFO partition.opened: partition opened partition=orders/0 log_start=0 newest_offset=-1 hw=-1
        INFO partition.opened: partition opened partition=jobs/0 log_start=0 newest_offset=-1 hw=-1
        INFO replica.role_changed: * partition=orders/0 role=FOLLOWER *
        INFO replica.role_changed: * partition=jobs/0 role=FOLLOWER *
        INFO node.up: *
        INFO jetstream.enabled: *
        """,
    )
    for name in ("orders", "jobs"):
        await s.shows(lambda: s.isr(name), s.names)  # noqa: B023
        s.expect((await s.row(killed, name))["high_watermark"], 9, f"high watermark of {name}")


@script()
async def script_disk_fails_once_while_a_node_starts(s: Stage) -> None:
    """Given a disk that fails one read, when a node starts, it tries again, and its log is complete."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 10)
    s["n1"].kill()
    s["n1"].disk.fail_next_reads = 1
    s.forget_log()
    await s.start("n1")
    s.expect(s.count_log("n1", "WARNING log.recovery_retried: *orders-*/0 error=Cannot read *Input/output error*: retrying"), 1)
    s.expect(s.count_log("n1", "INFO partition.opened: partition opened partition=orders/0 log_start=0 newest_offset=9 *"), 1)
    await s.shows(lambda: s.isr("orders"), s.names)


@script()
async def script_scrub_cannot_read_a_segment(s: Stage) -> None:
    """Given a disk that fails one read of the scrub, the node counts it, and a second later the scrub continues."""
    s.change_settings("n1", scrub_bytes_per_s=0)
    await s.create("orders", leader="n2", segment_bytes=4096)
    await s.publish("orders", 60, value=_VALUE)
    s["n1"].disk.fail_next_reads = 1
    s.change_settings("n1", scrub_bytes_per_s=100_000)
    await s.shows(lambda: s.counter("n1", "scrub_interrupted"), 1, what="interrupted scrubs")
    await asyncio.sleep(5)
    status = await s.status("n1")
    s.expect((status["counters"]["scrub_interrupted"], status["scrub"]["findings"]), (1, 0), "interrupted scrubs, findings")
    s.expect(status["scrub"]["checked_bytes"] > 10_000, True, f"checked bytes {status['scrub']}")
    s.expect(s["n1"].exits, [], "ends of the process")


@script()
async def script_candidate_with_a_slow_disk_reads_its_log(s: Stage) -> None:
    """Given a node that has just started, when it is to lead, it reads its log first. Nobody takes its place, although it takes 4 s."""
    await s.create("orders", leader="n2")
    for number in range(32):
        await s.client.publish("orders", b"x" * 60_000, msg_id=f"id-{number}")
    s["n1"].kill()
    s["n1"].disk.read_ns = NS_PER_S // 25
    await s.start("n1")
    await s.shows(lambda: s.isr("orders"), s.names)
    s.forget_log()
    await s.client.admin.elect_leader("orders", 0, "n1")
    ready = "role=LEADER phase=LEADER_READY epoch=3"
    took_s = await s.becomes(lambda: s.count_log("n1", ready) == 1, within_s=8, what="n1 leads in the epoch of the election")
    s.expect(took_s > 2, True, f"reading takes longer than a candidate without progress may take, it took {took_s:.1f} s")
    s.expect(s.count_log("n2", "role=CANDIDATE") + s.count_log("n3", "role=CANDIDATE"), 0, "other candidates")
    s.expect((await s.row("n1", "orders"))["message_ids"], 32, "message ids")
    s.expect((await s.client.publish("orders", b"again", msg_id="id-3")).offset, 3, "offset of a repeated message")


@script(hw_checkpoint_interval_s=1.0)
async def script_disk_fails_for_small_files(s: Stage) -> None:
    """Given a disk that fails for one kind of small file, the node says what it could not write, continues, and writes it later."""
    await s.create("orders", leader="n2", segment_bytes=4096)
    await s.publish("orders", 40, value=_VALUE)
    node = s["n1"]
    s.forget_log()
    node.disk.fails_for = "/high-watermark"
    await s.publish("orders", 1)
    text = (
        "WARNING *: HW checkpoint failed partition=orders/0 error=Cannot write *: Input/output error*: retrying at the next *"
    )
    await s.becomes(lambda: s.count_log("n1", text) >= 1, within_s=5, what="n1 reports the checkpoint")
    node.disk.heal()
    await s.publish("orders", 1)
    await asyncio.sleep(3)
    s.expect(s.count_log("n1", text), 1, "log lines about checkpoints")
    checkpoint = decode_checkpoint(next((node.disk.folder / "streams").glob("orders-*/0/high-watermark")).read_bytes())
    s.expect(checkpoint is not None and checkpoint.high_watermark, 41, "stored high watermark")

    s.forget_log()
    node.disk.fails_for = "/jobs-"
    await s.create("jobs", leader="n2")
    text = "ERROR *: log not opened partition=jobs/0 code=STORAGE error=*"
    await s.becomes(lambda: s.count_log("n1", text) == 1, within_s=5, what="n1 reports the log that it cannot open")
    reason = (await s.status("n1"))["failed_partitions"]
    s.expect(list(reason), ["jobs/0"], "partitions that n1 cannot open")
    s.expect_in("Input/output error", str(reason), "reason")
    await s.publish("jobs", 2)
    node.disk.heal()
    await s.shows(lambda: s.isr("jobs"), s.names, within_s=8, what="ISR after the next attempt")
    s.expect((await s.status("n1"))["failed_partitions"], {}, "partitions that n1 cannot open")
    s.expect(s.count_log("n1", text), 1, "log lines about the log")
    s.expect(node.exits, [], "ends of the process")


@script(slow_flush_time_s=2.0, slow_flush_isr_backoff_s=5.0, min_leadership_s=1.0)
async def script_disk_of_one_node_is_much_slower_than_the_others(s: Stage) -> None:
    """Given a follower with slow flushes, commits no longer wait for it. Given a leader with them, another node leads."""
    await s.create("orders", leader="n2")
    for name in ("n1", "n3"):
        s.expect(await s.metric(name, "replicas_with_slow_disks"), 0, "slow disks")

    async def publish_slowly(slow: str, until: str) -> None:
        for number in range(40):
            s[slow].disk.log_delay_ns = NS_PER_S * 6 // 10
            await s.publish("orders", 1, first=number, timeout_s=9)
            if any(until in line for node in s.names for line in s.log(node)):
                return

    s.forget_log()
    await publish_slowly("n3", "slow replica removed")
    s.expect(
        s.count_log("n2", "WARNING *: slow replica removed from the ISR partition=orders/0 replica=n3 flush_seconds=0.*"), 1
    )
    await s.shows(lambda: s.isr("orders"), ["n1", "n2"], within_s=2)
    s.expect(await s.metric("n2", "incidents_total", "slow_replica_evicted"), 1, "removed replicas")
    s.expect(await s.metric("n2", "replicas_with_slow_disks"), 1, "slow disks")
    began_s = s.now_s
    await s.publish("orders", 5)
    s.expect(s.now_s - began_s < 0.2, True, "commits without the slow replica")
    await s.shows(lambda: s.isr("orders"), s.names, within_s=30)
    s.expect(await s.metric("n2", "replicas_with_slow_disks"), 0, "slow disks after a time without slow flushes")
    s.forget_log()
    await publish_slowly("n2", "role=CANDIDATE")
    await s.becomes(lambda: s.leader("orders") not in ("", "n2"), what="another node leads")
    s.expect(await s.metric("n2", "incidents_total", "transfer_slow_disk"), 1, "leaderships transferred from a slow disk")


@script(nodes=4, hw_checkpoint_interval_s=1.0)
async def script_node_with_a_full_disk_stops_after_it_has_flushed_everything(s: Stage) -> None:
    """Given streams with a flush interval, when a node with a full disk stops, it flushes all records, and its next start knows this.

    The disk has no room for checkpoints and for the clean-stop marker.
    """
    s.allow("metadata.controller_failed", "metadata.controller_out_of_service")
    streams = ["orders0", "orders1"]
    for stream in streams:
        await s.create(stream, leader="n2", replicas=4, flush=FlushPolicy.parse("interval:1s"))
        await s.publish(stream, 3)
    # a follower with nothing to store but the marker, a follower with new records, and a leader that is a controller
    for name, restarts in (("n4", True), ("n4", False), ("n2", False)):
        if restarts:
            await s.stop(name)
            await s.start(name)
            await asyncio.sleep(5)
        else:
            for stream in streams:
                await s.publish(stream, 1)
        s.forget_log()
        node = s[name]
        node.wants_restart = False
        node.disk.is_full = True
        node.terminate()
        await s.becomes(lambda: not node.is_up, within_s=30, what="the process ends")  # noqa: B023
        s.expect(s.count_log(name, f"node.stopped: node stopped node={name} clean=no"), 1, "log lines about the stop")
        if restarts:
            s.expect(s.count_log(name, "partition.close_failed"), 0, f"logs of {name} that could not be closed")
        node.disk.heal()
        await s.start(name)
        s.expect(
            s.count_log(name, "may have lost acknowledged data"), 0, f"warnings of a loss on {name}, restarted: {restarts}"
        )
        for stream in streams:
            await s.shows(partial(s.isr, stream), s.names)


@script(nodes=1, controllers=1, starts=False)
async def script_node_maps_the_segments_that_were_read_last(s: Stage) -> None:
    """Given more closed segments than a node may map, it keeps the maps of those that readers have used last."""
    files.MOST_MAPS = 16
    await s.start("n1")
    s.change_settings("n1", scrub_bytes_per_s=0)
    await s.create("orders", segment_bytes=4096)
    await s.publish("orders", 400, value=_VALUE)
    segments = sorted(int(path.stem) for path in (s["n1"].disk.folder / "streams").glob("orders-*/0/*.log"))
    closed = segments[:-1]
    s.expect(len(closed) > 18, True, f"closed segments {closed}")

    options = ReadOptions(max_bytes=4096, read_ahead=1)

    async def maps() -> tuple[int, int]:
        found = (await s.status("n1"))["descriptors"]
        return found["maps"], found["maps_opened"]

    async def read(first: int, last: int) -> None:
        wanted = [_VALUE + b"-%d" % number for number in range(first, last + 1)]
        consumer = s.client.consume("orders", start=first, until=last, options=options)
        s.expect([record.value async for record in consumer], wanted, f"records {first} to {last}")

    for segment in closed:
        await read(segment, segment)
    s.expect(await maps(), (16, len(closed)), "(maps, maps that were created) after all segments were read")
    for segment in closed[-16:]:
        await read(segment, segment)
    await read(closed[-16], closed[-16])
    s.expect(await maps(), (16, len(closed)), "(maps, maps that were created) after the newest were read again")
    await read(closed[0], closed[0])
    again = await maps()
    s.expect(
        again[0] == 16 and again[1] > len(closed), True, f"(maps, maps that were created) after an older one was read {again}"
    )
    await read(closed[-16], closed[-16])  # others make room for the older one, because this one was read after them
    s.expect(await maps(), again, "(maps, maps that were created) after a newer one was read again")
    s.expect(await s.metric("n1", "open_maps"), 16, "metric of the maps")
    await s.client.admin.alter_stream("orders", retention_bytes=3 * 4096)
    left = await s.becomes(lambda: len(list((s["n1"].disk.folder / "streams").glob("orders-*/0/*.log"))) < 6, within_s=70)
    s.expect((await maps())[0] <= 5, True, f"maps of segments that exist, after {left:.0f} s: {await maps()}")
