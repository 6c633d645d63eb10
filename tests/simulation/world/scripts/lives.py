"""Scripts about the life of a node: its start, its end, its restart, and what it says about them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from functools import partial

from liftpy.config import FlushPolicy
from liftpy.errors import CorruptionError, FencedError, LiftError, StorageError, WrongDataDirectoryError
from sidecar.node.node import Node
from tests.simulation.world.machine.scheduler import NS_PER_S
from tests.simulation.world.scripts.stage import Stage, script

_HARD_STOP_S = 12.0
"""Maximum duration of a stop: docs/operating.md, "Supervisors"."""


@script(controllers=1)
async def script_follower_stops_starts_and_is_killed(s: Stage) -> None:
    """Given a follower, when an operator stops it, it leaves the ISR at once, and a restart continues where it was.

    After a kill, its session ends first.
    """
    await s.create("orders", leader="n1")
    await s.publish("orders", 5)
    seen = (await s.events())[-1]["index"]
    s.forget_log()
    await s.stop("n2")
    await s.shows(lambda: s.isr("orders"), ["n1", "n3"], within_s=0.5)
    s.expect_log(
        "n2",
        """
        INFO node.transferring_leaderships: transferring leaderships result=0 partitions move, 0 have nobody to move to
        INFO replica.role_changed: * partition=orders/0 role=STOPPED *
        INFO node.stopped: node stopped node=n2 clean=yes seconds=0.0*
        """,
    )
    s.expect_log("n1", "INFO isr.changed: ISR changed partition=orders/0 isr=n1, n3")
    await s.publish("orders", 5, first=5)
    s.forget_log()
    await s.start("n2")
    await s.shows(lambda: s.isr("orders"), ["n1", "n2", "n3"], within_s=1)
    s.expect_log(
        "n2",
        """
        INFO node.up: node started node=n2 incarnation=4
        INFO partition.opened: partition opened partition=orders/0 log_start=0 newest_offset=4 hw=*
        INFO replica.role_changed: * partition=orders/0 role=FOLLOWER *
        INFO jetstream.enabled: JetStream read API started subject=$JS.hub.API.>
        """,
    )
    s.expect((await s.row("n2", "orders"))["high_watermark"], 9, "high watermark of the follower")
    s.forget_log()
    s["n2"].kill()
    await s.shows(lambda: s.isr("orders"), ["n1", "n3"], within_s=3)
    s.expect_log("n1", "INFO isr.changed: ISR changed partition=orders/0 isr=n1, n3")
    await s.start("n2")
    await s.shows(lambda: s.isr("orders"), ["n1", "n2", "n3"], within_s=1)
    changes = [(await s.metric(node, "isr_shrinks_total"), await s.metric(node, "isr_expands_total")) for node in s.names]
    s.expect(changes, [(2, 2), (0, 0), (0, 0)], "changes of the ISR that the nodes have counted")
    s.expect(
        [
            (event["kind"], event.get("node", ""), event.get("now", "").partition(" of")[0])
            for event in await s.events()
            if event["index"] > seen and (event["kind"].startswith("node") or event["kind"] == "isr_changed")
        ],
        [
            ("node_fenced", "n2", ""),
            ("isr_changed", "", "n1 n3"),
            ("node_registered", "n2", "incarnation 4"),
            ("isr_changed", "", "n1 n2 n3"),
            ("node_fenced", "n2", ""),
            ("isr_changed", "", "n1 n3"),
            ("node_registered", "n2", "incarnation 5"),
            ("isr_changed", "", "n1 n2 n3"),
        ],
        "events",
    )


@script(session_s=10.0, lease_s=5.0, heartbeat_interval_s=3.0)
async def script_publishes_do_not_wait_for_the_session_of_a_killed_follower(s: Stage) -> None:
    """Given a publish that waits for a killed follower, its leader asks NATS whether the node is there. Without it, the ack comes.

    The session of the node ends much later, and the metadata leader misses its next heartbeat later, too.
    """
    await s.create("orders", leader="n1")
    await s.publish("orders", 2)
    for number in (2, 4):
        s["n2"].kill()
        began_s = s.now_s
        await s.publish("orders", 2, first=number)
        s.expect(s.now_s - began_s < 1.5, True, f"acks without the follower, they took {s.now_s - began_s:.1f} s")
        s["n2"].start()
        await s.becomes(lambda: s["n2"].is_ready, what="n2 is ready")
        await s.shows(lambda: s.isr("orders"), s.names)


async def _take(s: Stage, count: int) -> list[tuple[int, int]]:
    """Read and commit at least ``count`` records of ``orders`` in a group. Return (partition, offset) of each."""
    found: list[tuple[int, int]] = []
    async with s.client.group("readers", ["orders"]) as group:
        while len(found) < count:
            part = await asyncio.wait_for(group.take(), 10)
            assert part is not None
            found += [(part.key.partition, record.offset) for record in part.slice.records()]
            group.finished(part)
        await group.commit()
    return found


async def _restart_all(s: Stage, partitions: int) -> None:
    """Fill streams of all kinds, stop all nodes, start them again, and expect that nothing has changed."""
    s.allow("entries_known")  # a controller that has just started may get entries twice
    await s.create("many", partitions=partitions)
    await s.create("orders", partitions=3)
    await s.create("keyed", compaction=True, segment_bytes=4096)
    await s.create("lazy", flush=FlushPolicy.parse("interval:5s"))
    await s.create("short", segment_bytes=4096, retention_bytes=8192)
    await s.create("again")
    await s.client.admin.delete_stream("again")
    await s.create("again", partitions=2)
    for partition in range(3):
        await s.publish("orders", 10, partition=partition)
    for number in range(40):
        await s.client.publish("keyed", b"value-%d" % number, key=b"key-%d" % (number % 5))
    await s.publish("lazy", 10)
    await s.publish("short", 80, value=b"x" * 200)
    await s.client.publish("many", b"record", partition=partitions - 1)
    done = await _take(s, 10)
    names = {"many": partitions, "orders": 3, "keyed": 1, "lazy": 1, "short": 1, "again": 2}

    async def ends() -> dict[str, list[tuple[int, int]]]:
        return {
            name: [
                ((one := await s.client.bounds(name, number)).log_start_offset, one.high_watermark) for number in range(count)
            ]
            for name, count in names.items()
        }

    async def in_sync() -> set[tuple[str, ...]]:
        found = set[tuple[str, ...]]()
        for name in names:
            found |= {tuple(sorted(one.isr)) for one in (await s.client.admin.stream(name)).partitions}
        return found

    await s.shows(in_sync, {tuple(s.names)}, what="ISRs before the restart")
    await asyncio.sleep(1)
    before, values = await ends(), {name: await s.read(name) for name in names}
    await s.stop()
    s.forget_log()
    await s.start()
    s.expect(
        [node.opening_at_ready for node in s.world.nodes], [0, 0, 0], "partitions that were not open when a node was ready"
    )
    await s.shows(in_sync, {tuple(s.names)}, within_s=5, what="ISRs after the restart")
    s.expect(await ends(), before, "first and last offsets")
    s.expect({name: await s.read(name) for name in names}, values, "records")
    done += await _take(s, 30 - len(done))
    s.expect(sorted(done), sorted({*done}), "records that the group has read, each once")
    s.expect(len(done), 30, "number of records that the group has read")
    for node in s.names:
        s.expect(s.log(node, least="WARNING"), [], f"warnings of {node} after the restart")
        s.expect(await s.unknown_streams(node), [], f"unknown streams of {node}")
    for name in names:
        await s.publish(name, 1)


@script()
async def script_all_nodes_restart(s: Stage) -> None:
    """Given streams of all kinds, when all nodes stop and start, all replicas are in sync, nothing is lost, and nobody warns.

    A node opens at most 32 partitions at the same time.
    """
    await _restart_all(s, 34)


@script(workers=2)
async def script_all_nodes_with_two_processes_restart(s: Stage) -> None:
    """Given streams of all kinds, when all nodes of two processes stop and start, nothing is lost, and nobody warns."""
    await _restart_all(s, 4)


async def _stop_under_load(s: Stage) -> None:
    """Stop a node while publishers publish to partitions that it leads, and expect that each of them gets acks soon."""
    await s.create("orders", partitions=4)
    for partition in range(4):
        await s.client.admin.elect_leader("orders", partition, "n2")
    await s.becomes(lambda: all(s.leader("orders", number) == "n2" for number in range(4)), what="n2 leads all partitions")
    acked_s, waits_s = [s.now_s] * 4, list[float]()

    async def publish(partition: int) -> None:
        number = 0
        while True:
            await s.publish("orders", 1, first=number, partition=partition)
            waits_s.append(s.now_s - acked_s[partition])
            acked_s[partition], number = s.now_s, number + 1
            await asyncio.sleep(0.005)

    publishing = [asyncio.create_task(publish(partition)) for partition in range(4)]
    await asyncio.sleep(0.2)
    await s.stop("n2")
    await asyncio.sleep(0.3)
    waits_s += [s.now_s - at_s for at_s in acked_s]
    s.expect(max(waits_s) < 0.15, True, f"time between two acks of a publisher, at most {max(waits_s):.3f} s")
    for task in publishing:
        s.expect(task.done(), False, "a publish fails")
        task.cancel()
    await asyncio.gather(*publishing, return_exceptions=True)
    await s.start("n2")
    for partition in range(4):
        await s.shows(partial(s.isr, "orders", partition), s.names)


@script()
async def script_publishers_wait_little_for_a_leader_that_stops(s: Stage) -> None:
    """Given publishers, when their leader stops, another node takes their records soon."""
    await _stop_under_load(s)


@script(workers=2)
async def script_publishers_wait_little_for_a_leader_with_two_processes_that_stops(s: Stage) -> None:
    """Given publishers, when their leader stops, which has two processes, another node takes their records soon."""
    await _stop_under_load(s)


@script()
async def script_node_with_a_hanging_disk_ends_within_the_time_of_a_stop(s: Stage) -> None:
    """Given a disk that hangs, when an operator stops the node, its process ends after 12 s at the latest."""
    s.allow("accused leaders that serve")
    await s.create("orders", leader="n2")
    await s.publish("orders", 5)
    node = s["n2"]
    node.wants_restart = False
    node.disk.hang_ns = 600 * NS_PER_S
    s.forget_log()
    node.terminate()
    took_s = await s.becomes(lambda: not node.is_up, within_s=30, what="the process ends")
    s.expect(took_s <= _HARD_STOP_S + 0.1, True, f"end within {_HARD_STOP_S:g} s instead of {took_s:.1f} s")
    s.expect(node.exits, [1], "exit code")
    s.expect(
        s.count_log("n2", "node.stop_timeout: stop not complete seconds=12: forcing exit"), 1, "log lines about the forced end"
    )


@script()
async def script_node_with_a_hanging_disk_ends_in_time_after_an_error(s: Stage) -> None:
    """Given a disk that hangs, when a node meets an error, its process ends after 12 s. The exit code says whether to restart it."""
    s.allow("accused leaders that serve")
    await s.create("orders", leader="n2")
    node = s["n2"]
    errors: tuple[tuple[Callable[[Node], None], int, str], ...] = (
        (lambda program: program.fatal(CorruptionError("a damaged file")), 78, "node failed node=n2 error=a damaged file: *"),
        (lambda program: program.fatal(LiftError("an error")), 1, "node failed node=n2 error=an error: stopping"),
        (lambda program: program.repair("orders/0"), 1, "log damaged node=n2 log=orders/0: restarting to repair it"),
    )
    for fail, code, text in errors:
        await s.publish("orders", 2)
        s.forget_log()
        node.wants_restart = False
        node.disk.hang_ns = 20 * NS_PER_S
        assert node.process is not None
        assert node.node is not None
        s.world.scheduler.run_as(node.process, partial(fail, node.node))
        took_s = await s.becomes(lambda: not node.is_up, within_s=30, what="the process ends")
        s.expect(_HARD_STOP_S - 1 < took_s <= _HARD_STOP_S + 0.1, True, f"end after {_HARD_STOP_S:g} s, it took {took_s:.1f} s")
        s.expect(node.exits[-1], code, "exit code")
        s.expect((s.count_log("n2", text), s.count_log("n2", "node.stop_timeout")), (1, 1), "log lines")
        node.disk.hang_ns = 0
        await asyncio.sleep(20)  # until the connections of the process are closed
        await s.start("n2")
        await s.shows(lambda: s.isr("orders"), s.names)


@script(nodes=1, controllers=1)
async def script_start_with_a_damaged_file_on_a_slow_disk_fails(s: Stage) -> None:
    """Given a damaged file, the start fails. If the end of the process takes long, the node logs the error before."""
    await s.stop("n1")
    node = s["n1"]
    path = node.disk.folder / "node"
    data = path.read_bytes()
    path.write_bytes(b"")
    node.disk.is_damaged = True
    for hang_s, lines in ((0, 0), (1, 1)):
        s.forget_log()
        node.disk.hang_ns = hang_s * NS_PER_S
        await s.start_fails(node, CorruptionError)
        text = "CRITICAL node.failed: node failed node=n1 error=*/node is damaged *: stopping"
        s.expect(s.count_log("n1", text), lines, f"log lines if each flush takes {hang_s} s")
    node.disk.hang_ns = 0
    path.write_bytes(data)
    await s.start("n1")


@script()
async def script_error_of_a_node_that_stops_does_not_restart_it(s: Stage) -> None:
    """Given an operator who stops a node, when it meets an error before its end, its exit code asks for no restart."""
    await s.create("orders", leader="n1", flush=FlushPolicy.parse("interval:60s"))
    node = s["n2"]
    errors: tuple[tuple[Callable[[Node], None], int], ...] = (
        (lambda program: program.repair("orders/0"), 0),
        (lambda program: program.fatal(StorageError("Cannot write a file.")), 1),
    )
    for fail, code in errors:
        await s.publish("orders", 2)
        node.disk.log_delay_ns = 3 * NS_PER_S
        node.disk.is_damaged = True  # as the script says
        node.wants_restart = False
        s.forget_log()
        node.terminate()
        await asyncio.sleep(1)
        assert node.process is not None
        assert node.node is not None
        s.world.scheduler.run_as(node.process, partial(fail, node.node))
        await s.becomes(lambda: not node.is_up, within_s=5, what="the process ends")
        s.expect(node.exits[-1], code, "exit code")
        s.expect(s.count_log("n2", "node.stopped: node stopped node=n2 clean=no"), 1, "log lines about an unclean stop")
        await s.start("n2")
        await s.shows(lambda: s.isr("orders"), s.names)


@script()
async def script_leader_gets_sigint(s: Stage) -> None:
    """Given a leader, when it gets SIGINT, it stops at once and cleanly, without a transfer. Another node leads afterwards."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 3)
    node = s["n2"]
    s.forget_log()
    node.interrupt()
    await s.becomes(lambda: not node.is_up, within_s=0.5, what="the process ends")
    s.expect((node.exits, s.leader("orders")), ([0], "n2"), "exit code, and leader at the end of the process")
    s.expect_log("n2", "INFO node.stopped: node stopped node=n2 clean=yes seconds=0.*", about="node.")
    await s.becomes(lambda: s.leader("orders") not in ("", "n2"), within_s=5, what="another node leads")
    await s.start("n2")
    await s.shows(lambda: s.isr("orders"), s.names)
    s.expect(await s.read("orders"), [b"record-%d" % number for number in range(3)], "records")


@script(nodes=1, controllers=1, starts=False, stops=False)
async def script_node_gets_a_signal_before_it_has_handlers(s: Stage) -> None:
    """Given a signal that arrives before a process has its handlers, the process stops before it is ready."""
    node = s["n1"]
    for number in (signal.SIGTERM, signal.SIGINT):
        node.received = [number]
        node.start()
        node.wants_restart = False
        await s.becomes(lambda: not node.is_up, within_s=2, what="the process ends")
        s.expect((node.exits[-1], node.ready_line), (0, {}), "exit code and ready line")
    node.received = []
    await s.start("n1")


@script()
async def script_node_stops_while_it_opens_a_partition(s: Stage) -> None:
    """Given a slow disk, when an operator stops a node that opens a new partition, the node ends and leaves nothing open."""
    for number in range(6):
        s["n2"].disk.slow_ns = 100_000_000
        await s.create(f"orders{number}")
        await asyncio.sleep(number * 0.05)
        await s.stop("n2")
        s["n2"].disk.slow_ns = 0
        await s.start("n2")


@script()
async def script_second_process_of_a_node_does_not_start(s: Stage) -> None:
    """Given a node that runs, when a second process starts under its id with other data, it ends and names the first one."""
    await s.create("orders", leader="n2")
    twin = s.add_node("n2", folder="twin")
    s.forget_log()
    twin.start()
    began_s = s.now_s
    error = await s.start_fails(twin, FencedError)
    s.expect_in(
        "Another process runs as node 'n2' (it answers on liftpy.status.n2). Two processes must not use the same id", error
    )
    s.expect(
        15 <= s.now_s - began_s < 16, True, f"the process waits 15 s for the end of the other one, {s.now_s - began_s:.1f} s"
    )
    s.expect_log("n2", "WARNING *: another process runs as this node node=n2: waiting for its end", about="another process")
    await s.publish("orders", 3)
    s.expect(s.leader("orders"), "n2", "leader")
    s.expect(s["n2"].exits, [], "ends of the first process")


@script(nodes=1, controllers=1, starts=False)
async def script_directory_of_another_node_is_refused(s: Stage) -> None:
    """Given the data directory of a node, when a node with another id starts in it, it ends without a restart."""
    await s.start("n1")
    await s.stop("n1")
    other = s.add_node("n9", folder="n1")
    text = await s.start_fails(other, WrongDataDirectoryError)
    s.expect_in("belongs to node 'n1', not to 'n9'", text)
    s.world.nodes.remove(other)


@script(nodes=1, controllers=1, users=False)
async def script_only_node_is_stopped_at_once(s: Stage) -> None:
    """Given a cluster of one node, when it gets SIGINT or SIGTERM, it stops without a transfer and keeps all records."""
    await s.create("orders")
    await s.publish("orders", 3)
    s.forget_log()
    await s.stop()
    s.expect_log("n1", "INFO node.stopped: node stopped node=n1 clean=yes seconds=*", about="node.stop")
    await s.start()
    await s.publish("orders", 2, first=3)
    s.expect(await s.read("orders"), [b"record-%d" % number for number in range(5)], "records")
    s.expect((await s.status("n1"))["controllers"]["voters"], ["n1"], "controllers")
    await asyncio.sleep(1)
    s.expect((await s.client.admin.node_health("n1"))["health"], {"live": True, "ready": True, "synced": True}, "health")


@script(nodes=1, controllers=1, starts=False)
async def script_node_is_stopped_while_it_waits_for_nats(s: Stage) -> None:
    """Given a NATS server that is down, when an operator stops a node that starts, the node ends and leaves nothing open."""
    s.world.nats.servers[0].stop()
    s["n1"].start()
    await asyncio.sleep(2)
    s.expect_log(
        "n1", "WARNING nats.connect_failed: cannot connect to NATS servers=*s1:4222* reason=*: retrying", about="nats."
    )
    s["n1"].wants_restart = False
    s["n1"].terminate()
    await s.becomes(lambda: not s["n1"].is_up, within_s=5, what="the process ends")
    s.world.nats.servers[0].start()


@script(nodes=1, controllers=1, starts=False)
async def script_node_is_stopped_while_nats_refuses_one_of_its_connections(s: Stage) -> None:
    """Given a node that starts and gets some of its connections, when an operator stops it, it ends and leaves nothing open."""
    s.world.nats.refuse("liftpy-n1-ingest")
    s["n1"].start()
    await s.becomes(lambda: s.count_log("n1", "WARNING nats.connect_failed: cannot connect to NATS") == 1, what="n1 waits")
    s["n1"].wants_restart = False
    s["n1"].terminate()
    await s.becomes(lambda: not s["n1"].is_up, within_s=5, what="the process ends")
    s.world.nats.refuse("")


@script(nodes=1, controllers=1, starts=False)
async def script_node_starts_while_nats_rejects_its_password(s: Stage) -> None:
    """Given a NATS server that does not know the password of a node, the node tries again ever more seldom, and starts later."""
    users = dict(s.world.nats.users)
    del s.world.nats.users["node", "secret"]
    s["n1"].start()
    await asyncio.sleep(20)
    attempts = s.world.scheduler.counters["-ERR Authorization Violation"]
    s.expect(5 <= attempts <= 25, True, f"attempts to connect within 20 s {attempts}")
    s.expect_log(
        "n1",
        "WARNING nats.connect_failed: cannot connect to NATS servers=*s1:4222* reason=*uthorization*: retrying",
        about="nats.",
    )
    s.world.nats.refuse("liftpy-n1-ingest")
    s.world.nats.users.update(users)
    await asyncio.sleep(10)
    s.expect(s["n1"].is_ready, False, "n1 is ready without one of its connections")
    s.world.nats.refuse("")
    await s.becomes(lambda: s["n1"].is_ready, within_s=15, what="n1 is ready")


@script()
async def script_bug_in_a_partition_ends_the_node(s: Stage) -> None:
    """Given a bug in a partition, when a step fails, the node logs the last steps and ends. Its supervisor restarts it."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 2)
    s.forget_log()

    def fail() -> None:
        raise _BugError("a bug")

    s.world.scheduler.expects = lambda process, error: isinstance(error, _BugError)
    node = s["n2"].node
    assert node is not None
    assert node.partitions is not None
    for worker in node.partitions:
        worker.mark_changed = fail  # type: ignore[method-assign]
    await s.client.transport.connection.publish("orders.x", b"plain")
    await s.becomes(lambda: s["n2"].exits == [1], within_s=5, what="n2 ends")
    s.expect(s.count_log("n2", "CRITICAL *: replica stopped partition=orders/0 error=a bug * -> *"), 1, "log lines with steps")
    s.expect(s.count_log("n2", "CRITICAL node.failed: node failed node=n2 error=a bug: stopping"), 1, "log lines of the node")
    await s.becomes(lambda: s["n2"].is_ready, within_s=10, what="n2 is ready again")
    await s.shows(lambda: s.isr("orders"), s.names)
    await s.publish("orders", 2, first=2)


class _BugError(Exception):
    """Takes the place of a bug."""
