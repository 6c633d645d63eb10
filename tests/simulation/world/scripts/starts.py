"""Scripts about starts: with damaged files, with a quarantined directory, without permissions, and next to another process."""

from __future__ import annotations

import asyncio
import json
import stat
from dataclasses import replace
from functools import partial
from pathlib import Path

from liftpy.core.log.small_files import seal_small_file
from liftpy.errors import CorruptionError, DataDirectoryLockedError, UnknownFormatError, UnusableDataDirectoryError
from tests.simulation.world.machine.nats_server import Rights
from tests.simulation.world.machine.scheduler import NS_PER_S
from tests.simulation.world.scripts.stage import Stage, script


def _flip(data: bytes, position: int) -> bytes:
    """Return the bytes of a file with one flipped bit."""
    return data[:position] + bytes((data[position] ^ 1,)) + data[position + 1 :]


def _replace(path: Path, data: bytes) -> bytes:
    """Write a file. Return its former content."""
    former = path.read_bytes()
    path.write_bytes(data)
    return former


_MOST_REQUESTS_PER_S = 25


@script()
async def script_file_of_a_node_is_damaged(s: Stage) -> None:
    """Given a damaged file in the data directory, when the node starts, its start fails. The error names the file and what to do.

    With the correct file the node starts.
    """
    await s.create("orders", leader="n2")
    await s.becomes((s["n1"].disk.folder / "raft" / "snapshot").exists, what="n1 has a snapshot")
    await s.stop("n1")
    folder = s["n1"].disk.folder
    delete = "If a majority of the controllers runs without this node, delete */raft"
    newer = "Start the newer version of liftpy."

    async def fails_with(path: Path, data: bytes, error: type[Exception], *texts: str) -> None:
        correct = _replace(path, data)
        s.forget_log()
        found = await s.start_fails(s["n1"], error)
        for text in texts:
            s.expect_in(text, found, f"error about {path.name}")
        _replace(path, correct)

    node = (folder / "node").read_bytes()
    await fails_with(folder / "node", _flip(node, 20), CorruptionError, "/node is damaged (", "Delete the data directory *")
    await fails_with(folder / "node", b"", CorruptionError, "/node is damaged (")
    journal = folder / "raft" / "journal"
    data = journal.read_bytes()
    await fails_with(journal, _flip(data, 0), CorruptionError, "journal is not a journal of the metadata group. Check --data.")
    await fails_with(journal, _flip(data, 4), UnknownFormatError, "journal has another format version than this version")
    await fails_with(journal, _flip(data, 12), CorruptionError, "journal is damaged at position 8.", delete)
    await fails_with(journal, b"", CorruptionError, "/raft has lost its journal.", delete)
    snapshot = folder / "raft" / "snapshot"
    data = snapshot.read_bytes()
    begin, runbook = "The metadata snapshot is damaged: it", "Follow docs/runbooks/controllers-lost.md."
    await fails_with(snapshot, data[:11], CorruptionError, f"{begin} is shorter than its header.", runbook)
    await fails_with(snapshot, _flip(data, 30), CorruptionError, f"{begin}s checksum does not match.", runbook)
    await fails_with(snapshot, _flip(data, 4), UnknownFormatError, "The metadata snapshot has version 0, but *reads 1.", newer)
    lineage = folder / "raft" / "lineage"
    data = lineage.read_bytes()
    await fails_with(
        lineage, _flip(data, 20), CorruptionError, "/lineage is damaged (", "delete */raft", "delete only this file"
    )
    await s.start("n1")
    await s.shows(lambda: s.isr("orders"), s.names)
    s.expect((await s.status("n1"))["controller"], True, "n1 is a controller")


@script()
async def script_controller_quarantines_the_directory_of_a_wrong_image(s: Stage) -> None:
    """Given a controller that has marked its image as wrong, when it starts, it moves the directory away and copies the image."""
    s.allow("metadata.directory_quarantined", "metadata.peer_directory", "peer_directory_current", "peer_directory_older")
    await s.create("orders", leader="n2")
    await s.stop("n1")
    raft = s["n1"].disk.folder / "raft"
    old = s["n1"].disk.folder / "raft-diverged"
    for number in range(2):
        (raft / "diverged").write_text("12\n")
        (raft / "diverged").chmod(0o640)
        wrong = (raft / "journal").read_bytes()
        s.forget_log()
        await s.start("n1")
        text = "ERROR metadata.directory_quarantined: image differs from the majority quarantined_directory=*/raft-diverged: fetching *"
        s.expect_in(text, "\n".join(s.log("n1")), "log")
        s.expect((old / "journal").read_bytes() == wrong, True, "journal in the quarantined directory")
        s.expect((raft / "diverged").exists(), False, "mark of the new directory")
        s.expect(await s.metric("n1", "metadata_divergence_total"), 1, "wrong images")
        s.expect((await s.status("n1"))["metadata_index"], (await s.status("n2"))["metadata_index"], "index of the metadata")
        s.expect((await s.status("n1"))["controller"], True, "n1 is a controller")
        await s.create(f"more{number}")
        await s.stop("n1")
    await s.start("n1")
    s.expect(await s.metric("n1", "metadata_divergence_total"), 0, "wrong images of a correct directory")


@script(nodes=1, controllers=1, starts=False)
async def script_two_processes_with_one_data_directory(s: Stage) -> None:
    """Given a node that runs, when another process starts in its data directory, it ends at once. The first one is not disturbed."""
    await s.start("n1")
    await s.create("orders")
    other = s.add_node("n1", folder="n1")
    began_s = s.now_s
    text = await s.start_fails(other, DataDirectoryLockedError)
    s.expect_in("Data directory */n1/data is in use by another process. Stop it, or choose another one (--data).", text)
    s.expect(s.now_s - began_s < 1, True, f"the process ends at once, it took {s.now_s - began_s:.1f} s")
    s.world.nodes.remove(other)
    await s.publish("orders", 2)


@script(nodes=1, controllers=1, starts=False)
async def script_directory_that_other_users_can_write(s: Stage) -> None:
    """Given a data directory that other users can write, when the node starts, it takes this permission away, and says so."""
    folder = s["n1"].disk.folder
    folder.chmod(0o777)
    await s.start("n1")
    s.expect(stat.S_IMODE(folder.stat().st_mode), 0o755, "permissions of the directory")
    text = "WARNING node.directory_permissions: data directory was writable for other users directory=*: permissions corrected"
    s.expect_in(
        "data directory was writable for other users directory=*/n1/data: permissions corrected", "\n".join(s.log("n1")), text
    )


@script(nodes=4)
async def script_node_is_removed_while_it_is_paused(s: Stage) -> None:
    """Given a node that is paused, when an operator removes it from the cluster, it ends after the pause.

    Its supervisor does not start it again. If the operator starts it, it joins as a new member without replicas.
    """
    await s.create("orders", replicas=3)
    stream = await s.client.admin.stream("orders")
    if "n4" in stream.partitions[0].replicas:
        await s.client.admin.reassign(stream, 0, ["n1", "n2", "n3"])
        await s.shows(lambda: s.isr("orders"), ["n1", "n2", "n3"], within_s=20)
    s["n4"].pause(10 * NS_PER_S)
    await asyncio.sleep(4)
    await s.client.admin.remove_node("n4")
    s.forget_log()
    await s.becomes(lambda: s["n4"].exits == [78], within_s=20, what="n4 ends")
    text = "CRITICAL node.failed: node failed node=n4 error=Node 'n4' was removed from the cluster (liftpy node remove) while *"
    s.expect(s.count_log("n4", text), 1, "log lines about the end")
    await asyncio.sleep(5)
    s.expect((s["n4"].is_up, "n4" in (await s.client.admin.describe_cluster()).image.nodes), (False, False), "n4 is back")
    await s.start("n4")
    s.expect((await s.status("n4"))["partitions"], [], "partitions of n4")
    s.expect(sorted((await s.client.admin.describe_cluster()).image.nodes), s.names, "nodes of the cluster")


@script()
async def script_node_stands_still_for_longer_than_its_session(s: Stage) -> None:
    """Given a leader whose event loop stands still for 5 s, another node leads. The first one then follows, in the same process."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 2)
    s.forget_log()
    loop = s["n2"].process.loops[0]  # type: ignore[union-attr]
    loop.busy_until_ns = s.world.scheduler.now_ns + 5 * NS_PER_S
    took_s = await s.becomes(lambda: s.leader("orders") in ("n1", "n3"), within_s=8, what="another node leads")
    s.expect(1 < took_s < 6, True, f"another node leads after the session, it took {took_s:.1f} s")
    await s.publish("orders", 2, first=2)
    await s.shows(lambda: s.isr("orders"), s.names, within_s=10)
    s.expect(s["n2"].exits, [], "ends of n2")
    s.expect((await s.status("n2"))["incarnation"] > 0, True, "incarnation")
    s.expect(await s.read("orders"), [b"record-%d" % number for number in range(4)], "records")


@script()
async def script_operator_revokes_permissions_of_the_nodes(s: Stage) -> None:
    """Given running nodes, when NATS denies a subscription, the node says which permission is missing, and subscribes again later."""
    await s.create("orders", leader="n2")
    denials: list[str] = []
    s.world.nats.on_denial = lambda client, text: denials.append(f"{client}: {text}")
    users = s.world.nats.users
    before = dict(users)
    s.forget_log()
    for user, rights in before.items():
        if user[0] == "node":
            patterns = tuple(pattern for pattern in rights.publish if pattern not in (">", "liftpy.>"))
            users[user] = Rights(("liftpy.>", *patterns), ("liftpy.>", "_INBOX.>", "$JS.>"), reply=True)
    s.change_settings("n2", credentials__password="another secret")
    await s.becomes(lambda: s.count_log("n2", "nats.reconnected") >= 3, what="n2 connects with the new permissions")
    await asyncio.sleep(2)
    text = "ERROR *: NATS permission denied error=NATS does not let this node subscribe on orders.x. Give its user *"
    s.expect(s.count_log("n2", text), 1, f"log lines, of {denials}")
    s.expect(await s.metric("n2", "incidents_total", "permission_denied") >= 1, True, "denied operations")
    users.update(before)
    s.change_settings("n2", credentials__password="secret")
    await s.becomes(lambda: s.count_log("n2", "nats.reconnected") >= 6, within_s=20, what="n2 connects again")
    await s.client.admin.elect_leader("orders", 0, "n2")
    await s.publish("orders", 2)
    s.expect(s.leader("orders"), "n2", "leader")


@script(workers=2)
async def script_operator_revokes_permissions_of_nodes_with_two_processes(s: Stage) -> None:
    """Given running nodes, when NATS denies a subscription in their namespace, both processes of a node say so and continue."""
    await s.create("orders", partitions=6)
    for partition in range(6):
        await s.client.admin.elect_leader("orders", partition, "n2")
    s.world.nats.on_denial = lambda client, text: None
    users = s.world.nats.users
    before = dict(users)
    for user, rights in before.items():
        if user[0] == "node":
            users[user] = replace(rights, denied=("liftpy.orders.*.replicate",))
    s.change_settings("n2", credentials__password="another secret")

    async def denied() -> bool:
        return await s.metric("n2", "incidents_total", "permission_denied") >= 6

    await s.shows(denied, True, what="denied operations in both processes")
    text = "ERROR *: NATS permission denied error=NATS does not let this node subscribe on liftpy.orders.*.replicate. *"
    await s.becomes(lambda: s.count_log("n2", text) > 0, what="a log line names a denied subscription")
    users.update(before)
    s.change_settings("n2", credentials__password="secret")
    for partition in range(6):
        await s.shows(partial(s.isr, "orders", partition), s.names, within_s=30, what=f"ISR of partition {partition}")
    await s.publish("orders", 12)


@script(nodes=1, controllers=1, users=False, starts=False)
async def script_only_controller_starts_while_another_program_hears_everything(s: Stage) -> None:
    """Given a program that subscribes to all subjects, no answer proves that no group runs. So the only controller waits."""
    await s.client.transport.connection.subscribe(">")
    s["n1"].start()
    began_s = s.now_s
    await s.becomes(lambda: s["n1"].is_ready, within_s=20, what="n1 is ready")
    s.expect(18 <= s.now_s - began_s < 19, True, f"time of a silent bus until n1 is ready, {s.now_s - began_s:.1f} s")
    s.expect_log(
        "n1",
        """
        WARNING metadata.group_unknown: metadata group not ruled out node=n1 reason=a controller may run, but does not answer: *
        WARNING metadata.group_assumed_absent: no controller answers node=n1 seconds=15: starting a metadata group
        """,
        about="WARNING metadata.",
    )
    await s.create("orders")
    await s.publish("orders", 1)


@script(nodes=1, controllers=1, starts=False)
async def script_read_api_of_jetstream_connects_later(s: Stage) -> None:
    """Given a NATS server that refuses the connection for the JetStream API, the node works without it, and connects every second."""
    s.world.nats.refuse("liftpy n1 jetstream")
    await s.start("n1")
    await s.create("orders")
    await s.publish("orders", 1)
    await s.becomes(lambda: s.count_log("n1", "WARNING jetstream.") >= 2, within_s=20, what="two attempts")
    s.expect_in("JetStream read API cannot connect to NATS error=*: retrying", "\n".join(s.log("n1", least="WARNING")))
    s.world.nats.refuse("")
    await s.becomes(lambda: s.count_log("n1", "INFO jetstream.enabled") == 1, within_s=4, what="the node has connected")
    answer = await s.client.transport.connection.request("$JS.hub.API.DIRECT.GET.orders", b'{"seq": 1}', timeout=3)
    s.expect(answer.data, b"record-0", "record")


@script(nodes=1, controllers=1, starts=False)
async def script_progress_of_the_scrub_is_invalid(s: Stage) -> None:
    """Given a file with impossible progress of the scrub, when the node starts, it ignores the file and checks all closed segments."""
    folder = s["n1"].disk.folder
    await s.start("n1")
    for stream in ("bills", "orders"):
        await s.create(stream, segment_bytes=4096)
        await s.publish(stream, 60, value=b"x" * 200)
    await asyncio.sleep(2)

    def closed_bytes() -> int:
        logs = [sorted(path.glob("*.log")) for path in (folder / "streams").glob("*/0")]
        s.expect([len(files) > 2 for files in logs], [True, True], "several closed segments of both streams")
        return sum(file.stat().st_size for files in logs for file in files[:-1])

    progress = (await s.status("n1"))["scrub"]
    await s.stop("n1")
    names = ("partition", "base_offset", "position", "pass_began_s", "last_full_pass_s", "findings", "last_finding")
    stored = {name: progress[name] for name in names}
    for wrong in (
        {"position": -2},
        {"base_offset": 1 << 63},
        {"findings": 1.5},
        {"partition": 7},
        {"pass_began_s": "now"},
        {"more": 1},
    ):
        (folder / "scrub").write_bytes(seal_small_file(b"LFSC", json.dumps({**stored, **wrong}).encode()))
        await s.start("n1")
        await asyncio.sleep(2)
        found = (await s.status("n1"))["scrub"]
        s.expect((found["base_offset"], found["position"], found["findings"]), (-1, 0, 0), f"progress after {wrong}")
        s.expect(found["last_full_pass_s"] > stored["last_full_pass_s"], True, f"a new pass after {wrong}")
        s.expect(
            found["checked_bytes"] >= closed_bytes(), True, f"{found['checked_bytes']} of {closed_bytes()} bytes are checked"
        )
        await s.stop("n1")
    (folder / "scrub").write_bytes(seal_small_file(b"LFSC", json.dumps({**stored, "findings": 3}).encode()))
    await s.start("n1")
    s.expect((await s.status("n1"))["scrub"]["findings"], 3, "findings of a valid file")


@script(nodes=1, controllers=1, starts=False)
async def script_lock_of_a_data_directory_is_no_file(s: Stage) -> None:
    """Given a lock that is a link or a directory, the start fails and says what to do. With a file of an ended process it succeeds."""
    folder = s["n1"].disk.folder
    lock = folder / "lock"
    for is_link in (True, False):
        if is_link:
            lock.symlink_to(folder / "elsewhere")
        else:
            lock.mkdir()
        text = await s.start_fails(s["n1"], UnusableDataDirectoryError)
        s.expect_in("/lock is a link, or not a file. Remove it, then start the node again.", text)
        if is_link:
            lock.unlink()
        else:
            lock.rmdir()
    lock.write_text("a process that has ended, with a long text\n")
    lock.chmod(0o640)
    await s.start("n1")
    s.expect(lock.read_text().strip().isdigit(), True, f"id of the process in the lock {lock.read_text()!r}")


@script()
async def script_files_of_interrupted_work_are_removed_at_the_next_start(s: Stage) -> None:
    """Given files that a killed process has left, when the node starts, it removes them, and keeps all others."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 5)
    s["n1"].kill()
    folder = s["n1"].disk.folder
    deleted = folder / "streams" / "old-000007-1" / "0.deleted"
    deleted.mkdir(parents=True)
    (deleted / "00000000000000000000.log").write_bytes(b"records")
    (folder / "flush-probe.tmp").write_bytes(b"probe")
    names = sorted(path.name for path in folder.iterdir() if path.name != "flush-probe.tmp")
    s.forget_log()
    await s.start("n1")
    s.expect(deleted.parent.exists(), False, "directory of a stream whose deletion was interrupted")
    s.expect(sorted(path.name for path in folder.iterdir()), names, "names in the data directory")
    s.expect(await s.unknown_streams("n1"), [], "unknown streams")
    s.expect(s.count_log("n1", "node.unknown_directory"), 0, "log lines about unknown streams")
    await s.shows(lambda: s.isr("orders"), s.names)


@script(nodes=4)
async def script_node_registers_while_nobody_decides(s: Stage) -> None:
    """Given a starting node whose requests are lost or cannot be decided, it retries at a bounded rate, and says what it waits for."""
    await s.create("orders")
    for away, reason in (((), "no answer from the metadata leader: *"), (("n1", "n2"), "no controller can be reached")):
        await s.stop("n4")
        for node in away:
            s[node].kill()
        if not away:
            s.world.nats.loses = lambda client, message: message.subject.startswith("liftpy.control.node.n4")
        s.forget_log()
        since = len(s.messages)
        s["n4"].start()
        await asyncio.sleep(20)
        s.expect(s["n4"].is_ready, False, "n4 is ready")
        s.expect_log("n4", f"WARNING node.registration_failed: node not registered reason={reason}: retrying", about="node.")
        s.expect(0 < len(s.subjects("liftpy.control.node.n4", since)) <= 20 * _MOST_REQUESTS_PER_S, True, "requests of n4")
        s.world.nats.loses = lambda client, message: False
        if away:
            await s.start(*away)
        await s.becomes(lambda: s["n4"].is_ready, within_s=8, what="n4 is ready")
