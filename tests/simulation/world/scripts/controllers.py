"""Scripts about the metadata group: its leader, its majority, its data, and changes of its members."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial

from liftpy.core.metadata.controller import admission
from liftpy.core.metadata.features import SUPPORTED_LEVELS, LevelRange
from liftpy.core.metadata.feed import FeedSubscription
from liftpy.core.metadata.image import RESCUE_LEAP
from liftpy.errors import ConfigError, CorruptionError, IncompatibleVersionError, NoMajorityError, OutcomeUnknownError
from sidecar.metadata import feed
from sidecar.quorum.codec import unseal
from sidecar.quorum.rescue import lock_directories, newest, read_survivor, rescue
from sidecar.runtime.settings import with_values
from tests.simulation.world.checks.controllers import wrong_lists
from tests.simulation.world.checks.raft_files import read_journal
from tests.simulation.world.machine.nats_server import Message
from tests.simulation.world.machine.scheduler import NS_PER_S
from tests.simulation.world.scripts.stage import Stage, script

_DATA = 2
"""First byte of a frame between controllers that is no hello."""
_REQUESTS = 10
_DECISION_S = 0.03
"""Maximum mean time of a request to the metadata group without other load, in seconds."""


@script()
async def script_metadata_leader_is_killed(s: Stage) -> None:
    """Given three controllers, when their leader is killed, another one leads within 3 s, and no partition waits for it."""
    await s.create("orders", leader="n2")
    old = await s.controller()
    s.expect([await s.metric(node, "metadata_is_leader") for node in s.names], [float(node == old) for node in s.names])
    await asyncio.sleep(1)
    s.forget_log()
    s[old].kill()
    others = s.others(old)
    await s.becomes(
        lambda: any(s.count_log(node, "metadata.leadership_gained") for node in others), within_s=3, what="a new leader"
    )
    new = next(node for node in others if s.count_log(node, "metadata.leadership_gained"))
    s.expect_in(f"INFO metadata.leadership_gained: metadata leader elected node={new} term=2", "\n".join(s.log(new)))
    await asyncio.sleep(2)
    for node in others:
        s.expect((await s.status(node))["metadata_leader"], new, f"metadata leader that {node} knows")
        s.expect((await s.client.admin.node_health(node))["health"], {"live": True, "ready": True, "synced": True}, "health")
    s.expect(sum(s.count_log(node, "metadata.leadership_gained") for node in others), 1, "elections of a metadata leader")
    await s.create("more")
    await s.publish("orders", 3)
    s.expect(await s.metric(new, "metadata_leader_changes_total"), 1, "changes of the metadata leader")
    kinds = [(event["kind"], event.get("node", "")) for event in await s.events(new)]
    s.expect(kinds.count(("node_fenced", old)), 1, "events of the session that ended")
    await s.start(old)
    await s.shows(lambda: s.isr("orders"), s.names)


@script()
async def script_metadata_leader_is_stopped(s: Stage) -> None:
    """Given three controllers, when an operator stops their leader, another one leads before the process ends."""
    await s.create("orders")
    for number in range(2):
        old = await s.controller()
        s.forget_log()
        await s.stop(old)
        events = [line.split()[1] for line in s.log(old)]
        s.expect(
            events.index("metadata.leadership_lost:") < events.index("node.transferring_leaderships:"),
            True,
            f"it does not lead the group any more when it transfers the leaderships of partitions: {events}",
        )
        leaders = {node.node.group.leader for node in s.world.nodes if node.node is not None and node.node.group is not None}
        s.expect((len(leaders), leaders & {"", old}), (1, set()), f"metadata leaders that the others know {leaders}")
        began_s = s.now_s
        await s.create(f"more{number}")
        s.expect(s.now_s - began_s < 0.5, True, "a request after the stop is decided at once")
        await s.start(old)


@script()
async def script_majority_of_the_controllers_is_away(s: Stage) -> None:
    """Given two of three controllers away, when an operator asks for a change, the error says who is missing. A start waits.

    As soon as one of them is back, the cluster decides again.
    """
    await s.create("orders", leader="n2")
    await s.publish("orders", 5)
    s["n1"].kill()
    s["n3"].kill()
    text = await s.fails(s.client.admin.create_stream("more", "more.x"), NoMajorityError)
    s.expect_in("2 of 3 controllers do not answer (n1, n3).", text)
    text = await s.fails(s.publish("orders", 1, first=5, timeout_s=5), OutcomeUnknownError)
    s.expect_in("No ack from orders/0 on orders.x within 5.* s. The message may be stored.", text)
    await asyncio.sleep(5)
    s.expect((await s.status("n2"))["metadata_leader"], "", "metadata leader that n2 knows")
    s.expect(await s.metric("n2", "metadata_has_leader"), 0, "metric of the metadata leader")
    health = await s.client.admin.node_health("n2")
    s.expect(health["health"], {"live": True, "ready": False, "synced": False}, "health")
    s.expect_in("nothing heard for * s", health["checks"]["metadata"])
    s.forget_log()
    await s.stop("n2")
    s.expect_log(
        "n2",
        """
        INFO node.leaderships_not_transferred: * reason=no controller can be reached: stopping without a transfer
        INFO node.stop_not_reported: * reason=no controller can be reached: stopping
        INFO node.stopped: node stopped node=n2 clean=yes *
        """,
        about="node.",
    )
    s.forget_log()
    journal = s["n2"].disk.folder / "raft" / "journal"
    before = read_journal(journal.read_bytes())
    s["n2"].start()
    await asyncio.sleep(10)
    s.expect(s["n2"].is_ready, False, "n2 is ready")
    after = read_journal(journal.read_bytes())
    s.expect((after.term, after.vote), (before.term, before.vote), "term and vote of n2 after a restart")
    s.expect_log(
        "n2",
        "WARNING metadata.waiting: controller waits node=n2 reason=waits for a leader of the metadata group; not connected: n1, n3",
    )
    await s.start("n3")
    await s.becomes(lambda: s["n2"].is_ready, within_s=5, what="n2 is ready")
    await s.shows(lambda: s.isr("orders"), ["n2", "n3"])
    await s.publish("orders", 2, first=6)
    s.expect(await s.read("orders"), [b"record-%d" % number for number in range(8)], "records")


@script(starts=False)
async def script_first_start_waits_for_all_controllers(s: Stage) -> None:
    """Given a new cluster, when only two of three controllers start, they wait and say for whom. The third one completes the group."""
    s["n1"].start()
    s["n2"].start()
    await asyncio.sleep(15)
    for node in ("n1", "n2"):
        s.expect(s[node].is_ready, False, f"{node} is ready")
        s.expect_in(
            "WARNING metadata.waiting: controller waits node=* reason=waits for n3: the first start *", "\n".join(s.log(node))
        )
        s.expect(s.count_log(node, "metadata.waiting") <= 3, True, "few log lines about the wait")
    await s.start("n3")
    await s.becomes(lambda: all(s[node].is_ready for node in s.names), within_s=5, what="all nodes are ready")
    await s.create("orders")
    await s.publish("orders", 1)


@script(long=True)
async def script_controller_loses_its_data_or_gets_an_older_copy(s: Stage) -> None:
    """Given a controller whose raft directory is emptied or older, when it starts, it has no vote until it has caught up.

    It and its peers say so, and afterwards the group has three voters again.
    """
    s.allow(
        "entries_known", "metadata.directory_went_back", "peer_directory_current", "peer_directory_older", "snapshots_installed"
    )
    await s.create("orders", leader="n2")
    await s.publish("orders", 5)
    folder = s["n1"].disk.folder / "raft"
    older = s.world.folder / "older"
    await s.stop("n1")
    shutil.copytree(folder, older)
    await s.start("n1")
    for number in range(5):
        await s.create(f"more{number}")
    for is_older in (False, True):
        await s.stop("n1")
        shutil.rmtree(folder)
        if is_older:
            shutil.copytree(older, folder)
        s.forget_log()
        await s.start("n1")
        await asyncio.sleep(3)
        s.expect_log(
            "n1",
            ("ERROR metadata.directory_went_back: older raft directory found known_by=n*\n" if is_older else "")
            + "INFO metadata.voter_added: controller votes node=n1\n",
            about="metadata.",
        )
        for node in ("n2", "n3"):
            s.expect_log(
                node,
                """
                WARNING metadata.peer_directory: raft directory of a peer peer=n1 state=older: *
                WARNING metadata.peer_directory: raft directory of a peer peer=n1 state=current: *
                """,
                about="metadata.",
            )
        s.expect((await s.status("n1"))["metadata_index"], (await s.status("n2"))["metadata_index"], "index of the metadata")
    old = await s.controller()
    for node in s.others("n1", old):
        await s.stop(node)
    await s.create("decided-with-n1")  # n1 is one of the two that vote
    for is_older, wanted in (
        (True, "went back in time, as with an older copy put back"),
        (False, "is new or emptied, the group is not"),
    ):
        await s.stop("n1")
        shutil.rmtree(folder)
        if is_older:
            shutil.copytree(older, folder)
        if s[old].is_up:
            await s.stop(old)
        s["n2" if old != "n2" else "n3"].start()  # one of two others runs: it is no majority without n1
        s.forget_log()
        s["n1"].start()
        await asyncio.sleep(8)
        s.expect(s["n1"].is_ready, False, "n1 is ready")
        s.expect_in(
            f"WARNING metadata.waiting: controller waits node=n1 reason=waits for a leader *: its raft directory {wanted} (*",
            "\n".join(s.log("n1")),
        )
    await s.start(old)
    await s.becomes(lambda: s["n1"].is_ready, what="n1 is ready")


@script()
async def script_journal_of_a_controller_is_damaged(s: Stage) -> None:
    """Given a controller whose journal has a flipped bit, when it starts, it ends and says what to do. Following it helps."""
    s.allow("metadata.peer_directory", "peer_directory_current", "peer_directory_older", "snapshots_installed")
    await s.create("orders", leader="n2")
    await s.stop("n1")
    journal = s["n1"].disk.folder / "raft" / "journal"
    data = bytearray(journal.read_bytes())
    data[30] ^= 1
    journal.write_bytes(bytes(data))
    text = await s.start_fails(s["n1"], CorruptionError)
    s.expect_in("journal is damaged at position 8.", text)
    s.expect_in("If a majority of the controllers runs without this node, delete */n1/data/raft and start the node", text)
    shutil.rmtree(journal.parent)
    await s.start("n1")
    await s.shows(lambda: s.isr("orders"), s.names)
    s.expect((await s.status("n1"))["controller"], True, "n1 is a controller")


@script()
async def script_raised_feature_level_is_in_the_snapshot_at_once(s: Stage) -> None:
    """Given a new cluster, when its controllers raise the feature level, each of them writes a snapshot with it.

    A controller of an earlier version rejects this snapshot, and cannot read what follows.
    """
    for node in s.names:
        snapshot = s[node].disk.folder / "raft" / "snapshot"
        await s.becomes(snapshot.exists, within_s=2, what=f"{node} has a snapshot")


@script(nodes=1, controllers=1, starts=False, stops=False)
async def script_only_controller_loses_its_snapshot(s: Stage) -> None:
    """Given a cluster with one controller, when its snapshot is lost, its start fails. The error names a backup, not other nodes."""
    await s.start("n1")
    snapshot = s["n1"].disk.folder / "raft" / "snapshot"
    await s.becomes(snapshot.exists, within_s=2, what="n1 has a snapshot")
    await s.stop("n1")
    snapshot.unlink()
    text = await s.start_fails(s["n1"], CorruptionError)
    s.expect_in("has lost its snapshot. This cluster has only one controller, so no other node has a copy.", text)


@script()
async def script_operator_rescues_the_metadata_from_one_controller(s: Stage) -> None:
    """Given the loss of a majority of the controllers, when an operator rescues the metadata, one disk is enough for all records.

    This is the runbook ``controllers-lost``. One node starts with a new disk and the files of a controller. Another one is no
    controller any more.
    """
    s.allow("metadata.force_recovered")
    await s.create("orders", leader="n1")
    await s.publish("orders", 3)
    for node in s.names:
        await s.stop(node)
    with lock_directories([s[node].disk.folder for node in s.names]) as directories:
        survivors = [read_survivor(directory) for directory in directories]
    best = newest(survivors)
    s.expect(sorted(one.node_id for one in survivors), s.names, "nodes of the logs")
    s.expect((best.term, best.index), max((one.term, one.index) for one in survivors), "term and index of the newest log")
    s.expect([best.parts_from(one) for one in survivors], [0, 0, 0], "first index at which the logs differ")
    s.expect(list(best.image.streams), ["orders"], "streams of the newest log")
    shutil.rmtree(s["n2"].disk.folder)
    folder, output = s["n1"].disk.folder, s.world.folder / "output"
    former = s["n3"].disk.folder
    with lock_directories([folder, former]) as directories:
        survivor = read_survivor(directories[0])
        for voters, text in (
            ((), "Name the new controllers, each once (--new-controllers)."),
            (("n1", "n1"), "Name the new controllers, each once (--new-controllers)."),
            (
                tuple(f"c{number}" for number in range(10)),
                "10 new controllers are too many, the maximum is * (--new-controllers).",
            ),
            (("n1", "n2"), "The data directories of n2 are not on this machine. Set --output, then copy the files from there"),
        ):
            s.expect_in(text, _config_error(lambda: rescue(survivor, directories, voters, None, NS_PER_S)), "error")  # noqa: B023
        s.expect((folder / "raft-before-rescue").exists(), False, "a rejected rescue changes the directory")
        written = rescue(survivor, directories, ("n2", "n1"), output, NS_PER_S)
        s.expect(written, {"n1": folder / "raft", "n2": output / "n2" / "raft"}, "new directories")
        s.expect(((former / "raft").exists(), (former / "raft-before-rescue").is_dir()), (False, True), "raft directory of n3")
        again = _config_error(lambda: rescue(survivor, directories, ("n1",), None, NS_PER_S))
        s.expect_in("raft-before-rescue exists from an earlier rescue. Inspect it and move it away.", again, "error")
    for path in written.values():
        s.expect(sorted(file.name for file in path.iterdir()), ["journal", "member", "rescued", "snapshot"], "files")
        journal, last = read_journal((path / "journal").read_bytes()), survivor.index + RESCUE_LEAP
        found = sorted(journal.entries), journal.term, journal.vote, journal.commit_index
        s.expect(found, ([last - 1, last], survivor.term + RESCUE_LEAP, "", last), "entries, term, vote and commit index")
    empty = s.world.folder / "empty"
    empty.mkdir()
    with_lock = _config_error(lambda: lock_directories([empty]).__enter__())
    s.expect_in("/empty is not the data directory of a node. Check --data.", with_lock, "error")
    shutil.copytree(written["n2"], s["n2"].disk.folder / "raft")
    for node in s.names:
        s[node].file.settings = with_values(s[node].file.settings, {"controllers": ("n1", "n2")})
    s.forget_log()
    await s.start("n1", "n2")
    s.expect(await s.read("orders"), [b"record-0", b"record-1", b"record-2"], "records")
    s.expect((await s.status("n2"))["controllers"]["voters"], ["n1", "n2"], "controllers")
    lost = [event for event in await s.events() if event["kind"] == "data_loss"]
    text = f"rescued from n1's log: what was decided behind entry {survivor.index} of term {survivor.term} is lost"
    s.expect([event["detail"] for event in lost], [text], "events")
    s.expect(s.count_log("n1", f"WARNING *: metadata group recovered by force action={text}"), 1, "log lines")
    image = (await s.client.admin.describe_cluster()).image
    s.expect(image.index > survivor.index + 1_000_000, True, f"index after the rescue {image.index}")
    counters, before = image.counters, survivor.image.counters
    for name in ("next_incarnation", "next_stream_uid", "next_leader_epoch", "next_epoch"):
        s.expect(getattr(counters, name) > getattr(before, name) + 1_000_000, True, f"{name} after the rescue")
    await s.start("n3")
    await s.create("more")


def _config_error(work: Callable[[], object]) -> str:
    """Return the text of the ConfigError that ``work`` raises, '' if it raises none."""
    try:
        work()
    except ConfigError as error:
        return str(error)
    return ""


async def _move(s: Stage, name: str, node: str) -> None:
    stream = await s.client.admin.stream(name)
    await s.client.admin.reassign(stream, 0, [node])
    await s.shows(lambda: s.isr(name), [node])


async def _rescue_from_n1(s: Stage) -> None:
    """Lose the disks of two of three controllers, and rescue the metadata from the older log of the third one, which is down."""
    for node in ("n2", "n3"):
        await s.stop(node)
        shutil.rmtree(s[node].disk.folder)
    folder = s["n1"].disk.folder
    with lock_directories([folder]) as directories:
        rescue(read_survivor(directories[0]), directories, ("n1",), None, NS_PER_S)
    for node in s.names:
        s[node].file.settings = with_values(s[node].file.settings, {"controllers": ("n1",)})


def _logs(s: Stage, node: str) -> list[str]:
    """Return the names of the log directories of a node, without uids."""
    return sorted(f"{path.parent.name.split('-')[0]}/{path.name}" for path in (s[node].disk.folder / "streams").glob("*/*"))


@script(nodes=4)
async def script_rescue_from_an_older_log_deletes_no_data_of_a_node_that_runs(s: Stage) -> None:
    """Given a node with the only copies, when a rescue does not know a stream and a move, it keeps both, also after a restart."""
    s.allow("metadata.force_recovered")
    s.may_lose_records = True
    await s.create("moved", replicas=1)
    await _move(s, "moved", "n2")
    await s.stop("n1")
    await s.create("late", replicas=1)
    for name in ("moved", "late"):
        await _move(s, name, "n4")
        await s.publish(name, 3)
    await asyncio.sleep(1)
    await _rescue_from_n1(s)
    s.forget_log()
    await s.start("n1", "n2")
    await asyncio.sleep(5)
    s.expect_log(
        "n4",
        """
        ERROR partition.kept: metadata went back or was rescued partitions=2: keeping the data of partitions that it took *
        INFO replica.role_changed: replica role changed partition=moved/0 role=STOPPED *
        INFO replica.role_changed: replica role changed partition=late/0 role=STOPPED *
        """,
        about="partition",
    )
    await asyncio.sleep(40)
    s.expect(_logs(s, "n4"), ["late/0", "moved/0"], "logs")
    await s.stop("n4")
    s.forget_log()
    await s.start("n4")
    await asyncio.sleep(40)
    s.expect(s.count_log("n4", "WARNING partition.deletion_waits: partition not deleted partition=moved/0: *"), 1, "log lines")
    s.expect(s.count_log("n4", "WARNING node.unknown_directory: unknown stream directory=late-*"), 1, "log lines")
    s.expect(_logs(s, "n4"), ["late/0", "moved/0"], "logs after a restart")


@script(nodes=5)
async def script_nodes_that_follow_the_feed_leave_an_old_controller_after_a_rescue(s: Stage) -> None:
    """Given a controller of the group before a rescue, which returns first, nodes without a controller follow the new group.

    One of these nodes runs all the time. The other one starts while only the old controller answers.
    """
    s.allow("metadata.controller_removed", "metadata.force_recovered", "refused: unknown sender")
    await s.create("orders", replicas=1)
    await _move(s, "orders", "n4")
    await s.publish("orders", 3)
    await s.stop("n1", "n5")
    await s.create("late", replicas=1)
    await _move(s, "late", "n4")
    await s.stop("n2")
    await s.stop("n3")
    folder = s["n1"].disk.folder
    with lock_directories([folder]) as directories:
        rescue(read_survivor(directories[0]), directories, ("n1",), None, NS_PER_S)
    for node in s.names:
        if node != "n2":
            s[node].file.settings = with_values(s[node].file.settings, {"controllers": ("n1",)})
    s["n2"].start()
    await asyncio.sleep(2)
    s["n5"].start()
    await asyncio.sleep(3)
    await s.start("n1", "n2", "n5")

    async def indexes() -> int:
        return len({(await s.status(node))["metadata_index"] for node in ("n1", "n2", "n4", "n5")})

    await s.shows(indexes, 1, within_s=20, what="all nodes have the image of the new group")
    s.expect((await s.status("n2"))["controller"], False, "n2 is a controller")
    await s.becomes(lambda: s.leader("orders") == "n4", within_s=20, what="n4 leads")
    s.expect(await s.publish("orders", 1, first=3), [3], "offset after the rescue")
    s.expect(_logs(s, "n4"), ["late/0", "orders/0"], "logs")
    await s.create("after", replicas=1)
    await _move(s, "after", "n5")
    await s.shows(indexes, 1, within_s=2, what="all nodes know a change at once")


@script(nodes=4)
async def script_partition_that_has_moved_away_is_deleted_when_it_has_a_leader(s: Stage) -> None:
    """Given a log that has left its node, when its partition has a leader again, the node deletes the log."""
    s.allow("metadata.force_recovered")
    await s.create("moved", replicas=1)
    await _move(s, "moved", "n2")
    await s.stop("n1")
    await _move(s, "moved", "n4")
    await _rescue_from_n1(s)
    await s.start("n1", "n2")
    await asyncio.sleep(2)
    await s.stop("n4")
    s.forget_log()
    await s.start("n4")
    await s.becomes(lambda: s.count_log("n4", "partition.deletion_waits") == 1, what="n4 keeps the log")
    s.expect(_logs(s, "n4"), ["moved/0"], "logs")
    await s.client.admin.elect_leader("moved", 0, unclean=True)
    await s.becomes(lambda: not _logs(s, "n4"), within_s=40, what="n4 deletes the log")


@script(nodes=4)
async def script_controllers_with_new_disks_delete_no_data_of_a_node_that_runs(s: Stage) -> None:
    """Given a node with the only copy, when all controllers start with new disks, it ends and keeps all logs."""
    await s.create("orders", replicas=4, partitions=2)
    for node in ("n1", "n2", "n3"):
        await s.stop(node)
        shutil.rmtree(s[node].disk.folder)
    s["n4"].wants_restart = False
    s.forget_log()
    await s.start("n1", "n2", "n3")
    await s.becomes(lambda: s["n4"].exits == [1], what="n4 ends, and its supervisor may start it again")
    s.expect_in("CRITICAL node.failed: * error=The metadata group does not know node 'n4' any more, *", "\n".join(s.log("n4")))
    s.expect_in("ERROR partition.kept: metadata went back or was rescued partitions=2: keeping", "\n".join(s.log("n4")))
    s.expect(_logs(s, "n4"), ["orders/0", "orders/1"], "logs")
    await s.start("n4")
    await asyncio.sleep(40)
    s.expect(_logs(s, "n4"), ["orders/0", "orders/1"], "logs after a restart")
    s.expect([name.partition("-")[0] for name in await s.unknown_streams("n4")], ["orders"], "unknown streams")


@script(nodes=4)
async def script_operator_replaces_a_controller(s: Stage) -> None:
    """Given three controllers and one more node, when an operator adds it and removes another one, all nodes know the new list."""
    s.allow("refused: unknown sender", "sessions ended: no member any more", "snapshots_installed")
    await s.create("orders")

    async def voters() -> list[list[str]]:
        return [(await s.status(node))["controllers"]["voters"] for node in s.names]

    async def roles() -> dict[str, bool]:
        return {node: (await s.status(node))["controller"] for node in s.names}

    s.expect(await roles(), {"n1": True, "n2": True, "n3": True, "n4": False}, "controllers")
    s.forget_log()
    await s.client.admin.change_controllers(add="n4")
    await s.shows(voters, [["n1", "n2", "n3", "n4"]] * 4)
    await s.shows(roles, dict.fromkeys(s.names, True))
    await asyncio.sleep(1)
    s.expect_log(
        "n4",
        """
        INFO metadata.controller_starting: controller starting node=n4 reason=the controllers are n1, n2, n3; n4 becomes one *
        INFO metadata.voter_added: controller votes node=n4
        INFO metadata.became_controller: controller started node=n4
        WARNING metadata.settings_differ: * settings=n1, n2, n3 log=n1, n2, n3, n4: using the log.*
        """,
        about="metadata.",
    )
    s.forget_log()
    leader = await s.controller()
    gone = next(node for node in s.names if node not in (leader, "n4"))
    counted = (await s.status(gone))["counters"]
    await s.client.admin.change_controllers(remove=gone)
    left = [node for node in s.names if node != gone]
    await s.shows(voters, [left] * 4, within_s=20)
    await s.shows(roles, {node: node != gone for node in s.names}, within_s=20)
    await asyncio.sleep(1)
    s.expect_log(
        gone,
        f"""
        WARNING metadata.controller_removed: controller removed node={gone} index=*
        WARNING metadata.became_follower: controller stopped node={gone}: following the metadata feed
        WARNING metadata.settings_differ: * settings=n1, n2, n3 log={", ".join(left)}: using the log.*
        """,
        about="metadata.",
    )
    now = (await s.status(gone))["counters"]
    s.expect({name: count for name, count in counted.items() if now.get(name, 0) < count}, {}, "counters that have fallen")
    changes = [event for event in await s.events() if event["kind"] == "controllers_changed"]
    s.expect(changes[-1]["now"], " ".join(left), "newest list in the events")
    await s.stop("n4")  # the new list is in its journal, and in no snapshot
    await s.start("n4")
    s.expect((await s.status("n4"))["controller"], True, "n4 is a controller after a restart")
    await s.stop(leader)  # a majority of the new list is enough
    await s.create("more")


@script()
async def script_controller_catches_up_by_a_snapshot(s: Stage) -> None:
    """Given a controller that was away, when the others have written a snapshot, it gets the snapshot and knows everything."""
    s.allow("snapshots_installed")
    s.world.compact_after(1_000)
    await s.create("orders", leader="n2")
    s["n1"].kill()
    for number in range(12):
        await s.create(f"more{number}")
    await asyncio.sleep(2)
    s.expect([await s.metric(node, "metadata_compactions_total") >= 2 for node in ("n2", "n3")], [True, True], "snapshots")
    s.expect([await s.metric(node, "metadata_journal_entries") < 12 for node in ("n2", "n3")], [True, True], "short journals")
    await s.start("n1")
    status = await s.status("n1")
    s.expect(status["metadata_index"], (await s.status("n2"))["metadata_index"], "index of the metadata")
    await s.shows(lambda: s.isr("orders"), s.names)
    for name in s.others("n1"):
        s[name].kill()
    for name in s.others("n1"):
        await s.start(name)
    s.expect(len(await s.client.admin.list_streams()), 13, "streams")


@script(nodes=4)
async def script_node_that_is_no_controller_misses_changes(s: Stage) -> None:
    """Given a node that follows the feed, when it was cut off during changes, it knows them soon after it is back."""
    await s.create("orders")
    s.world.network.partition("n4", "s1")
    s.world.network.partition("s1", "n4")
    for number in range(3):
        await s.create(f"more{number}")
    s.world.network.heal()

    async def index() -> bool:
        return bool((await s.status("n4"))["metadata_index"] == (await s.status("n1"))["metadata_index"])

    await s.shows(index, True, within_s=20, what="n4 knows all changes")
    s.expect((await s.status("n4"))["metadata_leader"], await s.controller(), "metadata leader that n4 knows")
    counted = {node: await s.metric(node, "cluster_streams") for node in s.names}
    s.expect(counted, {"n1": 4, "n2": 4, "n3": 4, "n4": 0}, "streams that controllers count")


@script()
async def script_node_of_an_earlier_version_meets_a_newer_feature_level(s: Stage) -> None:
    """Given a newer feature level, when a node of an earlier version follows the feed, its process ends with exit code 78."""
    earlier = LevelRange(SUPPORTED_LEVELS.least, SUPPORTED_LEVELS.most - 1)
    setattr(feed, "FeedSubscription", partial(FeedSubscription, spoken=earlier))  # noqa: B010  # the levels of that version
    node = s.add_node("n4", folder="n4")
    text = await s.start_fails(node, IncompatibleVersionError)
    s.expect_in(f"the cluster is at feature level {SUPPORTED_LEVELS.most}, this version speaks {earlier}", text)
    s.expect(node.exits, [78], "exit code")
    s.expect(s.count_log("n4", "node.task_failed"), 0, "log lines about a bug")
    s.world.nodes.remove(node)


@script()
async def script_clock_of_a_node_is_an_hour_ahead(s: Stage) -> None:
    """Given a node with a wrong clock, when it has compared its clock, it deletes nothing by age, and says so. Then it heals."""
    await s.create("orders", leader="n1", segment_bytes=4096, retention_age_s=1_800)
    await s.publish("orders", 40, value=b"x" * 200)
    await asyncio.sleep(5)
    s.forget_log()
    s["n2"].set_clock(wall_offset_ns=3_600 * NS_PER_S)
    await s.becomes(lambda: s.count_log("n2", "node.clock_untrusted") == 1, within_s=40, what="the node notices its clock")
    await asyncio.sleep(12)
    s.expect_log(
        "n2",
        "WARNING node.clock_untrusted: wall clock not trusted reason=* of 2 other clocks differ by more than 60 s: pausing *",
        about="clock",
    )
    s.expect([(await s.status(node))["clock"]["skew_s"] for node in s.names], [-0.0, 3600.0, 0.0], "differences of the clocks")
    s.expect([await s.metric(node, "clock_untrusted") for node in s.names], [0, 1, 0], "untrusted clocks")
    s.expect((await s.row("n2", "orders"))["log_start_offset"], 0, "first offset")
    await s.client.admin.elect_leader("orders", 0, "n2")
    await s.becomes(lambda: s.leader("orders") == "n2", what="n2 leads")
    await s.publish("orders", 1)
    newest = [record async for record in s.client.consume("orders", start=40, until="end")][-1]
    true_ns = s.world.driver.wall_ns()
    s.expect(abs(newest.timestamp_ns - true_ns) < 5 * NS_PER_S, True, "time of the record is that of the other clocks")
    s["n2"].set_clock(wall_offset_ns=0)
    await s.becomes(
        lambda: s.count_log("n2", "INFO node.clock_trusted: wall clock trusted: *") == 1, within_s=40, what="it trusts it"
    )
    s.expect(await s.metric("n2", "clock_untrusted"), 0, "untrusted clock")


@script()
async def script_metadata_leader_that_the_others_do_not_hear(s: Stage) -> None:
    """Given a metadata leader whose messages to the other controllers are lost, another one decides, and the first one follows it."""
    await s.create("orders", leader="n2")
    old = await s.controller()
    s.forget_log()
    s.world.nats.loses = lambda client, message: (
        client.startswith(f"liftpy-{old}") and message.subject.startswith("liftpy.raft.")
    )
    for number in range(3):
        await s.create(f"more{number}")
    s.expect(await s.controller() in s.others(old), True, "another node leads")
    await asyncio.sleep(1)
    s.expect(
        s.count_log(old, "INFO metadata.leadership_lost: metadata leadership lost node=*"), 1, "log lines of the old leader"
    )
    s.world.nats.loses = lambda client, message: False
    await s.create("last")
    await asyncio.sleep(1)
    s.expect(len({(await s.status(node))["metadata_index"] for node in s.names}), 1, "number of different metadata")
    s.expect(len(await s.client.admin.list_streams()), 5, "streams")
    changes = sum(s.count_log(node, "metadata.leadership_gained") for node in s.names)
    s.expect(changes, 1, "elections of a metadata leader")


@script()
async def script_message_between_controllers_is_lost(s: Stage) -> None:
    """Given two controllers, when a message between them is lost, they begin one new session, and no request waits for it."""
    s.allow("sessions ended: gap")
    leader = await s.controller()
    other = s.others(leader)[0]
    await s.create("orders")

    async def sessions(node: str) -> dict[str, int]:
        counters = (await s.status(node))["counters"]
        return {kind.removeprefix("metadata: "): count for kind, count in counters.items() if "sessions" in kind}

    s.expect([await sessions(node) for node in s.names], [{"sessions_started": 2}] * 3, "sessions")
    lost: list[Message] = []
    gap, began_anew = "sessions ended: gap", "sessions ended: peer began anew"
    at_leader, at_other = {"sessions_started": 2}, {"sessions_started": 2}
    for number, (to, sender) in enumerate(((leader, other), (other, leader))):
        lost.clear()

        def loses(client: str, message: Message) -> bool:
            if lost or message.subject != f"liftpy.raft.{to}.{sender}":  # noqa: B023
                return False
            if unseal(to, sender, message.content)[0] != _DATA:  # noqa: B023
                return False
            lost.append(message)
            return True

        s.world.nats.loses = loses
        began_s = s.now_s
        for stream in range(3):
            await s.create(f"more{number}{stream}")
        s.expect(s.now_s - began_s < 1, True, "requests are decided at once")
        await asyncio.sleep(1)
        s.expect(len(lost), 1, "lost messages")
        at_leader["sessions_started"] += 1
        at_other["sessions_started"] += 1
        (at_leader if number == 0 else at_other)[gap] = 1
        (at_other if number == 0 else at_leader)[began_anew] = 1
        s.expect(await sessions(leader), at_leader, "sessions of the leader")
        s.expect(await sessions(other), at_other, "sessions of the other side")
        s.expect(len({(await s.status(node))["metadata_index"] for node in s.names}), 1, "number of different metadata")


@script(max_payload_bytes=3_000)
async def script_metadata_is_larger_than_a_message(s: Stage) -> None:
    """Given a NATS server with small messages, when a controller returns, it gets what it missed in pieces, within one session."""
    await s.create("orders", leader="n2")
    leader = await s.controller()
    away = s.others(leader, "n2")[0]
    s[away].kill()
    await asyncio.sleep(3)
    for number in range(9):
        await s.create(f"more{number}", subject=f"more{number}.{'x' * 200}")
    await s.start(away)
    await s.shows(lambda: s.isr("orders"), s.names)
    s.expect(len({(await s.status(node))["metadata_index"] for node in s.names}), 1, "number of different metadata")
    counters = (await s.status(away))["counters"]
    s.expect(
        {kind: count for kind, count in counters.items() if "sessions" in kind}, {"metadata: sessions_started": 2}, "sessions"
    )


@script(starts=False)
async def script_controllers_have_different_lists(s: Stage) -> None:
    """Given a new cluster whose nodes name different controllers, they say so. A corrected setting lets the node join."""
    s.allow("refused: other lists of controllers", "refused: unknown sender")
    for node, named in (("n1", ("n1", "n2")), ("n2", ("n1", "n2")), ("n3", ("n1", "n2", "n3"))):
        s.change_file(node, controllers=named)
        s[node].start()
    await s.becomes(lambda: s["n1"].is_ready and s["n2"].is_ready, what="the nodes with the same list are ready")
    await asyncio.sleep(5)
    s.expect(s["n3"].is_ready, False, "n3 is ready")
    s.expect(s.count_log("n3", "metadata.waiting: controller waits node=n3 reason=waits for n1, n2: the first start *"), 1)
    for node in ("n1", "n2"):
        text = "ERROR metadata.lists_differ: controllers differ here=n1, n2 there=n1, n2, n3 node=n3: the two nodes reject *"
        s.expect(s.count_log(node, text), 1, f"log lines of {node}")
    s["n3"].kill()
    s.change_file("n3", controllers=("n1", "n2"))
    await s.start("n3")
    s.expect([(await s.status(node))["controller"] for node in s.names], [True, True, False], "controllers")
    await s.create("orders", replicas=3)


@script(nodes=4, starts=False)
async def script_new_node_names_only_itself_as_controller(s: Stage) -> None:
    """Given a cluster, when a new node starts whose settings name only itself, it joins the cluster, and says so."""
    await s.start("n1", "n2", "n3")
    s.change_file("n4", controllers=("n4",))
    await s.start("n4")
    s.expect_log(
        "n4",
        "WARNING metadata.settings_ignored: settings name only this node as controller node=n4, but a metadata group runs: *",
        about="metadata.",
    )
    s.expect(sorted((await s.client.admin.describe_cluster()).image.nodes), s.names, "nodes of the cluster")
    s.expect((await s.status("n4"))["controller"], False, "n4 is a controller")
    await s.create("orders", replicas=4)


@script()
async def script_controller_is_missing_in_its_own_settings(s: Stage) -> None:
    """Given a controller, when an operator removes it from its own settings, its start fails, and the error says what to do."""
    await s.create("orders")
    await s.stop("n3")
    s.change_file("n3", controllers=("n1", "n2"))
    text = await s.start_fails(s["n3"], ConfigError)
    s.expect_in("controllers = n1, n2 does not contain this node, but n3 is a member of the metadata group", text)
    s.expect_in("liftpy controllers remove n3", text)
    s.change_file("n3", controllers=("n1", "n2", "n3"))
    await s.start("n3")
    await s.shows(lambda: s.isr("orders"), s.names)


@script(nodes=4)
async def script_new_controller_has_a_full_disk(s: Stage) -> None:
    """Given a node with a full disk, when an operator makes it a controller, it says why it cannot, and continues to follow.

    As soon as there is room, it becomes a controller without another request.
    """
    s.allow("snapshots_installed")
    s["n4"].disk.is_full = True
    s.forget_log()
    await s.client.admin.change_controllers(add="n4")
    await asyncio.sleep(3)
    s.expect_log(
        "n4",
        """
        INFO metadata.controller_starting: controller starting node=n4 reason=the controllers are n1, n2, n3; n4 becomes one *
        ERROR metadata.controller_start_failed: controller not started node=n4 error=Cannot write *: No space left on device.*
        """,
    )
    await s.create("orders", replicas=3)
    status = await s.status("n4")
    s.expect((status["controller"], status["controllers"]["learner"]), (False, "n4"), "role of n4")
    s.expect(status["metadata_index"], (await s.status("n1"))["metadata_index"], "index of the metadata")
    s["n4"].disk.heal()
    await s.becomes(lambda: s.count_log("n4", "metadata.became_controller") == 1, within_s=8, what="n4 becomes a controller")

    async def voters() -> list[str]:
        return list((await s.status("n4"))["controllers"]["voters"])

    await s.shows(voters, s.names, what="controllers")


@script(nodes=4)
async def script_disk_of_a_new_controller_becomes_full_while_it_starts(s: Stage) -> None:
    """Given a node that becomes a controller, when its disk is full meanwhile, it stops its member, and follows the feed as before.

    It retries every 5 s. With room it becomes a controller, and nothing of the earlier attempts is left.
    """
    s.allow("metadata.controller_failed", "snapshots_installed")
    s.forget_log()
    await s.client.admin.change_controllers(add="n4")
    await s.becomes(lambda: s.count_log("n4", "metadata.controller_starting") == 1, what="n4 begins to become a controller")
    s["n4"].disk.is_full = True
    await s.becomes(lambda: s.count_log("n4", "metadata.controller_start_failed") >= 2, within_s=15, what="n4 has tried twice")
    text = "ERROR metadata.controller_start_failed: * error=Cannot write *: No space left on device.*: trying again in 5 s, *"
    s.expect_in(text, "\n".join(s.log("n4")))
    await s.create("orders", replicas=3)
    status = await s.status("n4")
    s.expect((status["controller"], status["metadata_index"]), (False, (await s.status("n1"))["metadata_index"]), "role of n4")
    s.expect(s["n4"].exits, [], "exits of n4")
    s["n4"].disk.heal()
    await s.becomes(lambda: s.count_log("n4", "metadata.became_controller") == 1, within_s=8, what="n4 becomes a controller")


@script(nodes=5, controllers=3)
async def script_journal_of_the_metadata_leader_cannot_be_written(s: Stage) -> None:
    """Given a metadata leader, when a write of its journal fails, it follows the feed of the next leader, and later leads or follows.

    Its heartbeats continue all the time. Its former role leaves no subscription.
    """
    s.allow("metadata.controller_failed", "metadata.controller_out_of_service")
    await s.create("orders")
    leader = await s.controller()
    s.forget_log()
    s[leader].disk.next_failures.append(("write", "raft/journal", errno.ENOSPC))
    await s.create("more")
    await s.becomes(lambda: s.count_log(leader, "metadata.controller_out_of_service") == 1, what=f"{leader} follows the feed")
    await s.becomes(
        lambda: s.count_log(leader, "metadata.became_controller") == 1, within_s=15, what=f"{leader} is a controller"
    )
    fenced = [event for event in await s.events() if event["kind"] == "node_fenced"]
    s.expect((fenced, s[leader].exits), ([], []), "events of lost sessions, and exits")


@script(nodes=4)
async def script_operator_takes_back_the_addition_of_a_controller(s: Stage) -> None:
    """Given a node that joins the controllers, when an operator removes it before it votes, its member ends. It can be added later."""
    s.allow(
        "refused: unknown sender", "sessions ended: no member any more", "snapshots_installed", "metadata.controller_removed"
    )
    # no controller hears the new one, so that it cannot catch up
    s.world.nats.loses = lambda client, message: message.subject.startswith("liftpy.raft.n4.")
    await s.client.admin.change_controllers(add="n4")
    await s.becomes(lambda: s.count_log("n4", "metadata.controller_starting") == 1, what="n4 begins to become a controller")
    described = (await s.client.admin.describe_cluster()).controllers
    waiting = {one.node_id: (one.learner, bool(one.waits_for)) for one in described if one.learner or one.waits_for}
    s.expect(waiting, {"n4": (True, True)}, "(learner, waits) of the controllers")
    await s.client.admin.change_controllers(remove="n4")
    await asyncio.sleep(5)
    s.world.nats.loses = lambda client, message: False
    await s.create("orders")
    status = {node: await s.status(node) for node in s.names}
    s.expect([status[node]["controllers"]["voters"] for node in s.names], [["n1", "n2", "n3"]] * 4, "controllers")
    s.expect(len({page["metadata_index"] for page in status.values()}), 1, "number of different metadata")
    await s.client.admin.change_controllers(add="n4")
    await s.becomes(lambda: s.count_log("n4", "metadata.became_controller") == 1, within_s=10, what="n4 becomes a controller")


@script(nodes=4)
async def script_node_that_is_no_controller_misses_one_message(s: Stage) -> None:
    """Given a node that follows the feed, when a message of the feed is lost, the node asks for it, and knows the change at once."""
    await s.create("orders")
    lost: list[Message] = []

    def loses(_: str, message: Message) -> bool:
        if lost or message.subject != "liftpy.feed":
            return False
        lost.append(message)
        return True

    async def index() -> bool:
        return bool((await s.status("n4"))["metadata_index"] == (await s.status("n1"))["metadata_index"])

    since = len(s.messages)
    await asyncio.sleep(5)
    heartbeats = [one for one in s.messages_to("liftpy.control.node.n4", since) if one.reply.endswith(".heartbeats")]
    s.expect(19 <= len(heartbeats) <= 21, True, f"heartbeats of n4 within 5 s {len(heartbeats)}")
    for number in range(3):
        lost.clear()
        s.world.nats.loses = loses
        since, began_s = len(s.messages), s.now_s
        await s.create(f"more{number}")
        await s.shows(index, True, within_s=2, what="n4 knows the change")
        s.expect(len(lost), 1, "lost messages")
        s.expect(len(s.subjects("liftpy.feed.snapshot", since)), 1, "requests for the change")
        s.expect(s.now_s - began_s < 1.5, True, f"n4 knows the change after {s.now_s - began_s:.1f} s")


@script(nodes=5)
async def script_nodes_without_a_majority_of_controllers_send_few_requests(s: Stage) -> None:
    """Given no majority of controllers, nodes send few control requests. When there is a leader again, they work within 1 s."""
    names = ["n3", "n4"]  # a controller, and a node that follows the feed
    for name in names:
        await s.create(f"orders-{name}", leader=name)
    s["n1"].kill()
    s["n2"].kill()
    await asyncio.sleep(20)
    since, duration_s = len(s.messages), 20
    await asyncio.sleep(duration_s)
    sent = Counter(s.subjects("liftpy.control.node.", since))
    s.expect(len(sent), 3, f"nodes that send requests {sent}")
    s.expect(max(sent.values()) <= 10 * duration_s, True, f"at most 10 requests per second and node, {sent}")
    s.forget_log()
    s["n1"].start()
    leads = lambda: any(s.count_log(node, "metadata.leadership_gained") for node in s.names)  # noqa: E731
    await s.becomes(leads, within_s=5, what="a metadata leader")
    began_s = s.now_s
    for name in names:
        await s.publish(f"orders-{name}", 1)
    s.expect(s.now_s - began_s < 1, True, f"acks after {s.now_s - began_s:.2f} s")
    await s.becomes(lambda: s["n1"].is_ready, within_s=5, what="n1 is ready")
    fenced = {event["node"] for event in await s.events() if event["kind"] == "node_fenced"}
    s.expect(fenced <= {"n1", "n2"}, True, f"only stopped nodes lose their session: {fenced}")
    await s.start("n2")


@script(nodes=5)
async def script_controllers_are_replaced_while_one_is_away(s: Stage) -> None:
    """Given a controller that was away while the others were replaced, it does not know the new ones. It asks for the list, and joins.

    Only members of its former list are in its log and in its settings, and none of them is a controller any more.
    """
    s.allow(
        "entries_known", "metadata.became_follower", "metadata.controller_removed", "refused: unknown sender",
        "sessions ended: no member any more", "snapshots_installed",
    )  # fmt: skip
    await s.create("orders")
    away = s.others(await s.controller())[0]
    former = [node for node in ("n1", "n2", "n3") if node != away]
    await s.stop(away)

    async def voters() -> list[str]:
        return list((await s.status("n5"))["controllers"]["voters"])

    now = ["n1", "n2", "n3"]
    for added, removed in (("n4", ""), ("n5", ""), ("", former[0]), ("", former[1])):
        await s.client.admin.change_controllers(add=added, remove=removed)
        now = sorted({*now, *filter(None, [added])} - {removed})
        await s.shows(voters, now, within_s=20, what="controllers")
    for node in former:
        await s.becomes(lambda: s.count_log(node, "metadata.became_follower") == 1, what=f"{node} is no controller")  # noqa: B023
    s.forget_log()
    s[away].start()
    await s.becomes(lambda: s[away].is_ready, within_s=10, what=f"{away} is ready")
    s.expect(await voters(), sorted(["n4", "n5", away]), "controllers")
    s.expect((await s.status(away))["controller"], True, f"{away} is a controller")
    leader = await s.controller()
    other = next(node for node in ("n4", "n5") if node != leader)
    await s.stop(other)
    await s.create("more")  # the one that was away votes again
    s.expect(s.count_log(away, "metadata.became_follower"), 0, f"log lines of {away}")
    await s.start(other)
    await asyncio.sleep(2)


@script(nodes=4)
async def script_change_of_the_controllers_by_a_lost_leader_is_taken_back(s: Stage) -> None:
    """Given a metadata leader that nobody hears, when it appends a change of the controllers, the next leader takes it back.

    Neither a restart nor the next change finds a trace of it.
    """
    s.allow("conflicting_entries_truncated", "entries_known", "snapshots_installed", "refused: unknown sender")
    s.allow("sessions ended: gap", "sessions ended: no member any more")
    await s.create("orders")
    old = await s.controller()
    s.world.nats.loses = lambda client, message: (
        client.startswith(f"liftpy-{old}") and message.subject.startswith("liftpy.raft.")
    )
    changing = asyncio.create_task(s.client.admin.change_controllers(add="n4"))
    journal = s[old].disk.folder / "raft" / "journal"
    before = len(read_journal(journal.read_bytes()).entries)
    await s.becomes(lambda: len(read_journal(journal.read_bytes()).entries) > before, within_s=2, what="the change is appended")
    changing.cancel()
    await s.becomes(lambda: s.count_log(old, "metadata.leadership_lost") == 1, within_s=5, what="another node leads")
    await s.create("more")
    s.world.nats.loses = lambda client, message: False
    await asyncio.sleep(3)
    image = (await s.client.admin.describe_cluster()).image
    s.expect((image.controllers.index, await s.controller() != old), (0, True), "changes of the controllers")
    s.expect(wrong_lists(s.world.nodes), [], "controllers by the log of each controller")
    await s.stop(old)
    await s.start(old)
    s.expect(wrong_lists(s.world.nodes), [], "controllers by the log of each controller after a restart")
    await s.client.admin.change_controllers(add="n4")
    await s.becomes(lambda: s.count_log("n4", "metadata.became_controller") == 1, within_s=10, what="n4 becomes a controller")


@script()
async def script_snapshot_of_a_controller_cannot_be_written(s: Stage) -> None:
    """Given a controller with a disk error in a snapshot, its member ends, and the node follows the others until it has room again."""
    s.allow("metadata.controller_failed", "metadata.controller_out_of_service", "snapshots_installed", "entries_known")
    leader = await s.controller()
    node = s.others(leader)[0]
    s.world.compact_after(1_000)
    s[node].disk.next_failures.append(("write", "raft/snapshot", errno.ENOSPC))
    for number in range(12):
        await s.create(f"orders{number}")
    await s.becomes(lambda: s.count_log(node, "metadata.controller_out_of_service") == 1, what=f"{node} follows the feed")
    text = "CRITICAL metadata.controller_failed: * error=The metadata state machine or its snapshot failed: OSError(28, *: stopping it"
    s.expect(s.count_log(node, text), 1, "log lines")
    await s.becomes(lambda: s.count_log(node, "metadata.became_controller") == 1, within_s=15, what=f"{node} is a controller")
    s.expect((s[node].exits, len(await s.client.admin.list_streams())), ([], 12), "exits and streams")


@script()
async def script_controller_with_a_failed_disk_gets_no_feed(s: Stage) -> None:
    """Given a controller whose journal cannot be written, when no controller sends it the feed, its process ends and starts again."""
    s.allow("metadata.controller_failed", "metadata.controller_out_of_service", "images_fetched_again", "entries_known")
    await s.create("orders")
    leader = await s.controller()
    s.world.nats.loses = lambda client, message: message.subject.startswith("liftpy.feed")
    s[leader].disk.next_failures.append(("write", "raft/journal", errno.ENOSPC))
    failed_s = s.now_s
    await s.create("more")
    await s.becomes(lambda: bool(s[leader].exits), within_s=30, what=f"{leader} ends")
    s.expect(15 <= s.now_s - failed_s <= 22, True, f"{leader} ends after {s.now_s - failed_s:.0f} s")
    s.world.nats.loses = lambda client, message: False
    await s.becomes(lambda: s[leader].is_ready, what=f"{leader} is ready again")
    s.expect((s.count_log(leader, "metadata.controller_out_of_service"), len(s[leader].exits)), (1, 1), "log lines, and exits")
    s.expect((await s.status(leader))["controller"], True, f"{leader} is a controller")
    await s.shows(lambda: s.isr("orders"), s.names)


async def _expect_decisions_at_once(s: Stage) -> None:
    """Expect that a request takes a few flushes and messages, and waits for no timer."""
    await s.create("orders")
    await asyncio.sleep(2)
    began_s = s.now_s
    for _ in range(_REQUESTS):
        await s.client.admin.pause("orders", [0])
        await s.client.admin.resume("orders", [0])
    took_s = (s.now_s - began_s) / (2 * _REQUESTS)
    s.expect(took_s <= _DECISION_S, True, f"a request takes {took_s * 1000:.0f} ms")


@script(nodes=4)
async def script_requests_to_the_metadata_group_wait_for_no_timer(s: Stage) -> None:
    """Given a quiet group, each request is decided within milliseconds, and all nodes know the result at once.

    Requests that have ended leave room for others.
    """
    admission.MAX_IN_PROGRESS = _REQUESTS
    await _expect_decisions_at_once(s)
    await s.client.admin.pause("orders", [0])
    groups = [node.node.group for node in s.world.nodes if node.node is not None and node.node.group is not None]
    await s.becomes(lambda: len({group.image.index for group in groups}) == 1, within_s=0.1, what="all nodes know the result")


@script(nodes=1, controllers=1)
async def script_requests_to_the_only_controller_wait_for_no_timer(s: Stage) -> None:
    """Given a single controller, each request is decided within milliseconds."""
    await _expect_decisions_at_once(s)
