"""Scripts about the connections of a node to NATS."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from tests.simulation.world.checks.logs import workers_of
from tests.simulation.world.machine.ingest_thread import BurstSocket
from tests.simulation.world.machine.nats_server import Message, Rights
from tests.simulation.world.scripts.stage import Stage, script

_LINKS = ("replication", "reads", "ingest")


@script()
async def script_nats_server_restarts(s: Stage) -> None:
    """Given a cluster on one NATS server, when the server restarts, each node reconnects and the cluster continues.

    Each node logs each connection once, counts the reconnects, and says that publishes may be lost.
    """
    s.allow("conflicting_entries_truncated", "entries_known", "not_sent_disconnected")
    await s.create("orders", leader="n2")
    await s.publish("orders", 2)
    await asyncio.sleep(1)
    server = s.world.nats.servers[0]
    for count in (1, 2):
        leader = s.leader("orders")
        s.forget_log()
        server.stop()
        await asyncio.sleep(3)
        for node in s.names:
            s.expect_log(
                node,
                "".join(
                    f"WARNING nats.disconnected: NATS connection lost connection={link} reason=connection reset by peer: *\n"
                    f"WARNING nats.reconnect_failed: cannot reconnect to NATS connection={link} reason=*call failed*: retrying\n"
                    for link in _LINKS
                ),
                about="nats.",
            )
            s.expect(s.count_log(node, "publish.lost_unknown"), 1, f"log lines of {node} about lost publishes")
        s.expect(s.count_log(leader, "role=LEADER phase=LEADER_NO_LEASE"), 1, "log lines about the lease of the leader")
        s.forget_log()
        server.start()
        await s.shows(lambda: s.isr("orders"), s.names, within_s=8)
        for node in s.names:
            s.expect_log(
                node,
                "".join(
                    f"INFO nats.reconnected: NATS connection restored connection={link} server=s1:4222\n" for link in _LINKS
                ),
                about="nats.",
            )
            page = (await s.status(node))["connections"]
            for link in _LINKS:
                s.expect(await s.metric(node, "nats_reconnects_total", link), count, f"reconnects of {node}")
                s.expect(await s.metric(node, "nats_connection_up", link), 1, f"connection {link} of {node}")
                errors = {**page[link]["errors"], "dropped_disconnected": 0}
                refused = errors.pop("ConnectionRefusedError")
                wanted = {"ConnectionResetError": count, "disconnected": count, "dropped_disconnected": 0}
                s.expect(errors, wanted, f"errors of {link} of {node}")
                s.expect(25 * count < refused < 35 * count, True, f"a node connects every 0.1 s, {refused} times")
            s.expect(page["reads"]["errors"]["dropped_disconnected"] > 0, True, f"messages that {node} cannot send")
        unsent = await s.total_counter("metadata: not_sent_disconnected")
        s.expect(unsent > 0, True, f"messages of the metadata group that are not sent without a connection, {unsent}")
    await s.publish("orders", 2, first=2)
    s.expect(await s.read("orders"), [b"record-%d" % number for number in range(4)], "records")
    status = await s.status("n1")
    s.expect(status["connections"]["ingest"]["connections_with_unknown_loss"], 2, "connections with unknown loss")
    s.expect((status["nats"]["reconnects"], status["nats"]["connected"]), (6, True), "reconnects")


@script()
async def script_nats_server_restarts_under_a_stream_with_standbys(s: Stage) -> None:
    """Given a stream with ``failover_standby``, when the only NATS server restarts, no node has received more. So the leader stays."""
    s.allow("conflicting_entries_truncated", "not_sent_disconnected")
    await s.create("orders", leader="n2", failover_standby=True)
    await s.publish("orders", 2)
    await asyncio.sleep(1)
    s.forget_log()
    s.world.nats.servers[0].stop()
    s.world.nats.servers[0].start()
    await s.becomes(lambda: s.count_log("n2", "nats.reconnected: * connection=standby") == 1, what="n2 reconnects")
    await s.publish("orders", 2, first=2)
    s.expect(s.count_log("n2", "leadership given up"), 0, "log lines about the leadership")
    s.expect((s.leader("orders"), await s.isr("orders")), ("n2", s.names), "(leader, ISR)")


@script()
async def script_ack_that_is_lost_with_its_connection_is_sent_again(s: Stage) -> None:
    """Given an ack that NATS loses together with the connection of the leader, the leader sends it again when it has reconnected.

    It sends no ack again that is older than the lost connection.
    """
    await s.create("orders", leader="n2")
    connection = s.client.transport.connection
    await connection.request("orders.x", b"earlier")
    await asyncio.sleep(5)
    lost: list[str] = []

    def loses(client: str, message: Message) -> bool:
        is_ack = client == "liftpy-n2-ingest" and b'"seq":' in message.content
        lost.extend([message.subject] if is_ack else [])
        return is_ack

    s.world.nats.loses = loses
    asking = asyncio.create_task(connection.request("orders.x", b"record", timeout=5))
    await s.becomes(lambda: len(lost) == 1, within_s=1, what="the ack is lost")
    s.world.nats.loses = lambda client, message: False
    since = len(s.messages)
    s.world.nats.refuse("liftpy-n2-ingest")
    await asyncio.sleep(0.3)
    s.expect(asking.done(), False, "an answer without a connection")
    s.world.nats.refuse("")
    s.expect_in('"seq":2', (await asking).data.decode(), "answer")
    sent = [message.subject for name, message, _ in s.messages[since:] if name == "liftpy-n2-ingest"]
    s.expect(sent, lost, "acks after the reconnect")


@script()
async def script_node_stops_while_its_ingest_connection_is_lost(s: Stage) -> None:
    """Given a node that has lost its connection for publishes a moment ago, when an operator stops it, it leaves nothing open."""
    await s.create("orders", leader="n1")
    await s.publish("orders", 2)
    for lost_s in (0.2, 1.0):
        await asyncio.sleep(1)
        s.world.nats.refuse("liftpy-n2-ingest")
        await asyncio.sleep(lost_s)
        if lost_s < 1:
            s.world.nats.refuse("")
    await s.stop("n2")
    s.world.nats.refuse("")


async def _check_answers(s: Stage, end: Callable[[], Awaitable[object]], *, partitions: int = 1, partition: int = 0) -> None:
    """Publish to n2 on a slow network with reply subjects, call ``end``, and expect an ack for each publish that n2 gets."""
    await s.create("orders", partitions=partitions)
    await s.client.admin.elect_leader("orders", partition, "n2")
    await s.becomes(lambda: s.leader("orders", partition) == "n2", what="n2 leads")
    s.world.network.slow("n2", 60_000_000)
    (worker,) = (one for one in workers_of(s.world)["orders", partition] if one.node_id == "n2")
    connection, asked = s.client.transport.connection, []
    for number in range(120):
        if number == 30:
            ending = asyncio.ensure_future(end())
        asked.append(asyncio.create_task(connection.request(worker.ingest.reader.subject, b"record", timeout=4)))
        await asyncio.sleep(0.01)
    found = await asyncio.gather(*asked, return_exceptions=True)
    answers = Counter(type(one).__name__ for one in found)
    s.expect((answers["Msg"] >= 30, answers["TimeoutError"]), (True, 0), f"answers {answers}")
    rejections = [one.data for one in found if not isinstance(one, BaseException) and b'"error"' in one.data]
    s.expect(rejections, [], "rejections")
    await ending


@script()
async def script_leader_on_a_slow_network_answers_what_it_gets_when_it_stops(s: Stage) -> None:
    """Given publishes on their way to a leader that stops, it accepts no others, and answers these."""
    await _check_answers(s, lambda: s.stop("n2"))


@script()
async def script_leader_on_a_slow_network_answers_what_it_gets_before_a_transfer(s: Stage) -> None:
    """Given publishes on their way to a leader, when an operator moves the leadership, it accepts no others, and answers these."""
    await _check_answers(s, lambda: s.client.admin.elect_leader("orders", 0, "n1"))
    s.expect(s.leader("orders"), "n1", "leader")
    s.world.network.slow("n2", 0)


@script(workers=2)
async def script_process_on_a_slow_network_answers_what_it_gets_when_its_node_stops(s: Stage) -> None:
    """Given publishes on their way to a process of a node that stops, it accepts no others, and answers these."""
    await _check_answers(s, lambda: s.stop("n2"), partitions=4, partition=3)


@script()
async def script_leader_without_its_ingest_connection_gives_up_the_leadership(s: Stage) -> None:
    """Given a leader, when its connection for publishes is away, another replica leads, and the first one is in sync."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 2)
    s.forget_log()
    s.world.nats.refuse("liftpy-n2-ingest")
    took_s = await s.becomes(lambda: s.leader("orders") in ("n1", "n3"), within_s=20, what="another node leads")
    s.expect(10 < took_s < 14, True, f"another node leads after the 10 s that docs/protocol.md names, it took {took_s:.1f} s")
    await s.publish("orders", 2, first=2)
    await s.shows(lambda: s.isr("orders"), s.names, within_s=1)
    s.expect_in("WARNING replica.transfer_requested: * partition=orders/0 reason=its data path is down", "\n".join(s.log("n2")))
    s.expect(await s.metric("n2", "nats_connection_up", "ingest"), 0, "metric of the connection")
    s.expect(await s.metric("n2", "nats_connected"), 0, "metric of all connections")
    page = (await s.status("n2"))["connections"]
    s.expect({name: page[name]["connected"] for name in _LINKS}, {"replication": True, "reads": True, "ingest": False})
    s.expect((await s.client.admin.node_health("n2"))["checks"]["nats"] != "", True, "health check of NATS")
    s.world.nats.refuse("")
    await s.shows(lambda: s.metric("n2", "nats_connection_up", "ingest"), 1)
    s.expect(s.count_log("n2", "nats.reconnected: * connection=ingest"), 1, "log lines about the connection")
    await s.client.admin.elect_leader("orders", 0, "n2")
    await s.publish("orders", 2, first=4)
    s.expect(s.leader("orders"), "n2", "leader")


@script()
async def script_connection_that_is_silent_is_replaced(s: Stage) -> None:
    """Given a network that swallows all packets of a node, when it heals after the time of a probe, the node reconnects."""
    s.allow("conflicting_entries_truncated")  # the node may lead the metadata group
    await s.create("orders", leader="n1")
    await asyncio.sleep(1)
    s.forget_log()
    s.world.network.partition("n2", "s1")
    s.world.network.partition("s1", "n2")
    took_s = await s.becomes(lambda: s.count_log("n2", "nats.disconnected") >= 3, within_s=40, what="the node notices")
    s.expect(took_s < 20, True, f"a node notices a silent connection soon, it took {took_s:.1f} s")
    s.world.network.heal()
    await s.becomes(lambda: s.count_log("n2", "nats.reconnected") >= 3, within_s=10, what="the node reconnects")
    await s.shows(lambda: s.isr("orders"), s.names, within_s=5)


@script()
async def script_operator_changes_the_password_of_a_node(s: Stage) -> None:
    """Given a changed settings file, when the node reloads it, it connects with the new password.

    A file with a wrong password or a wrong value changes nothing, and the node says so.
    """
    await s.create("orders", leader="n1")
    node = s["n2"]
    async with s.client.group("readers", ["orders"]) as group:
        await group.commit()

    def connections() -> dict[str, int]:
        """Return the numbers of the connections of n2."""
        clients = [client for server in s.world.nats.servers for client in server.clients.values()]
        return {client.name: client.number for client in clients if client.connection.process.host == "n2"}

    await s.becomes(lambda: "liftpy-n2-groups" in connections(), what="the coordinators of n2 have connected")
    await asyncio.sleep(8)  # until the coordinators use their newest version
    before = connections()
    s.forget_log()
    s.change_settings("n2", credentials__password="another secret", scrub_bytes_per_s=5_000)
    await s.becomes(lambda: s.count_log("n2", "nats.reconnected") == 3, what="all connections are replaced")
    await asyncio.sleep(1)
    after = connections()
    s.expect(after.keys(), before.keys(), "connections")
    s.expect([name for name, number in after.items() if before[name] == number], [], "connections with the former password")
    s.expect_log(
        "n2",
        "INFO node.settings_reloaded: settings reloaded applied=scrub_bytes_per_s,credentials.password waiting_for_restart=none\n"
        + "".join(
            f"WARNING nats.disconnected: NATS connection lost connection={link} reason=The NATS credentials were reloaded.*\n"
            f"INFO nats.reconnected: NATS connection restored connection={link} server=s1:4222\n"
            for link in _LINKS
        ),
    )
    s.forget_log()
    s.change_settings("n2", metrics_streams=("orders",))
    await asyncio.sleep(1)
    s.expect_log("n2", "INFO node.settings_reloaded: settings reloaded applied=metrics_streams waiting_for_restart=none")
    s.forget_log()
    s.change_settings("n2", credentials__password="wrong")
    await asyncio.sleep(3)
    s.expect_log(
        "n2", "ERROR node.settings_rejected: settings not reloaded error=The NATS server at * rejected the credentials.*"
    )
    rights = s.world.nats.users["node", "secret"]
    s.world.nats.users["node", "too few rights"] = Rights(rights.publish, ("_INBOX.>", "liftpy.inbox.>"))
    s.world.nats.on_denial = lambda client, text: None
    s.forget_log()
    s.change_settings("n2", credentials__password="too few rights")
    await asyncio.sleep(3)
    s.expect_log(
        "n2",
        "ERROR node.settings_rejected: * error=NATS does not let this user subscribe to liftpy.notify.n2. Give it the permissions *",
        about="settings",
    )
    s.world.nats.refuse("liftpy-n2-credentials")
    s.forget_log()
    s.change_settings("n2", credentials__password="secret")
    await asyncio.sleep(5)
    s.expect_log("n2", "ERROR node.settings_rejected: * error=*The node keeps its current credentials.*")
    s.world.nats.refuse("")
    s.forget_log()
    node.file.error = "scrub_bytes_per_s = 'x' is no number"
    node.reload()
    await asyncio.sleep(1)
    s.expect_log("n2", "ERROR node.settings_rejected: * error=scrub_bytes_per_s = 'x' is no number: keeping the current ones")
    s.forget_log()
    node.file.error = ""
    s.change_settings("n2", credentials__password="another secret", workers=2)
    await asyncio.sleep(1)
    s.expect_log("n2", "INFO node.settings_reloaded: settings reloaded applied=none waiting_for_restart=workers")
    rows = {row["name"]: row["value"] for row in await s.client.admin.node_settings("n2")}
    s.expect((rows["scrub_bytes_per_s"], rows["workers"]), (5_000, 1), "settings that the node uses")
    s.expect(await s.isr("orders"), s.names, "ISR")
    # The other way of a reload: an operator asks for it.
    change_count = s.count_log("n2", "node.settings_reloaded")
    await s.client.admin.reload_settings("n2")
    s.expect(s.count_log("n2", "node.settings_reloaded"), change_count + 1, "log lines about reloads")
    await s.publish("orders", 1)


@script()
async def script_node_checks_a_new_password_while_it_stops(s: Stage) -> None:
    """Given a node that checks a new password over a slow network, when an operator stops it, it ends and leaves nothing open."""
    await s.create("orders", leader="n1")
    s.world.network.slow("n2", 30_000_000)
    s["n2"].terminate()
    for number in range(20):
        await asyncio.sleep(0.05)
        s.change_settings("n2", credentials__password=f"another secret {number}")
    await s.stop("n2", cleanly=False)  # started again, it opens nothing


@script()
async def script_node_stops_while_its_standby_connection_is_refused(s: Stage) -> None:
    """Given a NATS server that refuses the connection of standbys, when an operator stops the node, it leaves nothing open."""
    s.world.nats.refuse("liftpy-n2-standby")
    await s.create("orders", leader="n1", failover_standby=True)
    await s.publish("orders", 2)
    await s.shows(lambda: s.isr("orders"), s.names)
    await s.stop("n2")


@script()
async def script_node_checks_a_new_password_at_a_request_while_it_stops(s: Stage) -> None:
    """Given a node that checks a new password over a slow network at a request, when it stops, it leaves nothing open."""
    await s.create("orders", leader="n1")
    s.world.network.slow("n2", 30_000_000)
    requests = []
    s["n2"].terminate()
    for number in range(20):
        await asyncio.sleep(0.05)
        s.change_file("n2", credentials__password=f"another secret {number}")
        requests.append(asyncio.create_task(s.client.admin.reload_settings("n2")))
    await s.stop("n2", cleanly=False)  # started again, it opens nothing
    await asyncio.gather(*requests, return_exceptions=True)


@script(ingest_buffer_bytes=4_000_000)
async def script_burst_of_publishes_is_stored(s: Stage) -> None:
    """Given a small buffer for publishes, when a larger burst arrives, the node reads it piece by piece and stores all of it."""
    for node in s.names:
        s.change_settings(node, scrub_bytes_per_s=0)  # the scrub would check the segments after the burst
    await s.create("orders", leader="n2", segment_bytes=1 << 20)
    connection = s.client.transport.connection
    s.forget_log()
    plain = 0
    while plain < 300 or (not s.world.scheduler.counters["bursts read in a thread"] and plain < 3_000):
        await connection.publish("orders.x", (b"plain-%d-" % plain).ljust(40_000, b"x"))
        plain += 1
        if not plain % 2:
            await asyncio.sleep(0.000_3)
    sent = [s.client.publish("orders", (b"acked-%d-" % number).ljust(4_000, b"x"), timeout_s=20) for number in range(100)]
    offsets = {ack.offset for ack in await asyncio.gather(*sent)}
    values = await s.read("orders")
    s.expect(
        [value.partition(b"-x")[0] for value in values[:plain]],
        [b"plain-%d" % number for number in range(plain)],
        "plain publishes",
    )
    s.expect(offsets, set(range(plain, plain + 100)), "offsets of the acknowledged ones")
    ingest = (await s.status("n2"))["connections"]["ingest"]
    found = ingest["in_msgs"], ingest["waiting_bytes"], ingest["left_out"]
    s.expect(found, (plain + 100, 0, 0), "messages of the connection")
    s.expect(ingest["most_waiting_bytes"] <= 4_000_000, True, f"bytes that waited at once {ingest}")
    s.expect(ingest["bursts"], 1, "bursts that a thread has read")
    s.expect(s.log("n2"), [], "log lines")
    await asyncio.sleep(1)  # the thread has ended
    began_s = s.now_s
    s.expect(await s.publish("orders", 2), [plain + 100, plain + 101], "offsets of publishes after the burst")
    s.expect(s.now_s - began_s < 0.5, True, "publishes after the burst are acknowledged at once")


@script(ingest_buffer_bytes=4_000_000)
async def script_burst_is_read_without_a_thread_if_there_is_no_file_descriptor(s: Stage) -> None:
    """Given a process without a free file descriptor, its event loop reads a burst instead of a thread. Nothing is lost."""
    await s.create("orders", leader="n2", segment_bytes=1 << 20)
    BurstSocket.failures = 1
    count = 0
    while BurstSocket.failures and count < 2_000:
        await s.client.transport.connection.publish("orders.x", (b"plain-%d-" % count).ljust(40_000, b"x"))
        count += 1
        if not count % 2:
            await asyncio.sleep(0.000_3)
    await asyncio.sleep(1)
    s.expect(BurstSocket.failures, 0, "file descriptors that the node still cannot get")
    values = [value.partition(b"-x")[0] for value in await s.read("orders")]
    s.expect(values, [b"plain-%d" % number for number in range(count)], "plain publishes")
    ingest = (await s.status("n2"))["connections"]["ingest"]
    s.expect((ingest["in_msgs"], ingest["waiting_bytes"], ingest["left_out"]), (count, 0, 0), "messages of the connection")
    s.expect(ingest["errors"]["no thread to read a burst"], 1, "bursts without a thread")
    s.expect(s.log("n2", least="WARNING"), [], "warnings")
    await s.publish("orders", 2)
    await s.shows(lambda: s.isr("orders"), s.names)
    await asyncio.sleep(3)


@script()
async def script_nats_server_sends_bytes_that_are_no_protocol(s: Stage) -> None:
    """Given a connection whose bytes the parser cannot separate, the node reconnects, and keeps the publishes before them."""
    await s.create("orders", leader="n2", segment_bytes=1 << 20)
    plain = s.client.transport.connection
    for count in (0, 20):
        s.forget_log()
        for number in range(count):
            await plain.publish("orders.x", (b"plain-%d-" % number).ljust(20_000, b"x"))
        await plain.flush()
        for client in [one for one in s.world.nats.servers[0].clients.values() if one.name == "liftpy-n2-ingest"]:
            client.send(b"MSG orders.x 1 many\r\n")
        await s.becomes(lambda: s.count_log("n2", "nats.reconnected: * connection=ingest") == 1, what="the node reconnects")
        text = "WARNING nats.disconnected: * connection=ingest reason=The NATS server sent an unknown protocol line: *"
        s.expect(s.count_log("n2", text), 1, "log lines about the lost connection")
        await s.publish("orders", 2)
    s.expect(len(await s.read("orders")), 24, "number of records")


@script()
async def script_standby_stores_what_comes_during_a_failover(s: Stage) -> None:
    """Given a stream with ``failover_standby``, when its leader dies, the new one stores the plain publishes that nobody led.

    Each message is stored once.
    """
    await s.create("orders", leader="n2", failover_standby=True)
    connection = s.client.transport.connection
    await asyncio.sleep(1)
    s.forget_log()
    for number in range(60):
        if number == 20:
            s["n2"].kill()
        await connection.publish("orders.x", b"plain-%d" % number)
        await asyncio.sleep(0.05)
    await s.becomes(lambda: s.leader("orders") in ("n1", "n3"), what="another node leads")
    await asyncio.sleep(1)
    leader = s.leader("orders")
    s.expect(await s.read("orders"), [b"plain-%d" % number for number in range(60)], "records")
    s.expect_log(
        leader,
        "INFO replica.standby_takeover: standby buffer replayed partition=orders/0 to_append=* already_in_log=*",
        about="standby",
    )
    row = (await s.row(leader, "orders"))["standby"]
    s.expect((row["lost"], row["ambiguous"], row["held_bytes"]), (0, 0, 0), "figures of the standby buffer")
    s.expect(row["appended"] > 10, True, f"records that the standby buffer has stored {row}")
    s.expect(await s.total("publish_lost_on_disconnect_total"), 0, "lost publishes")


@script()
async def script_node_leads_before_its_standby_connection_is_open(s: Stage) -> None:
    """Given a node that cannot open its connection for standbys, it leads for a moment and hands over to a standby.

    When the connection opens at last, the node subscribes there for what it is then, and for nothing that it was.
    """
    s.world.nats.refuse("liftpy-n1-standby")
    await s.create("orders", leader="n2", failover_standby=True)
    await s.publish("orders", 2)
    for leader in ("n1", "n2", "n1", "n3"):
        await s.client.admin.elect_leader("orders", 0, leader)
        await asyncio.sleep(0.5)
        s.expect(s.leader("orders") in ({"n2", "n3"} if leader == "n1" else {leader}), True, f"{s.leader('orders')} leads")
    await s.publish("orders", 2)
    await s.client.admin.delete_stream("orders")
    await s.create("jobs", failover_standby=True)
    s.world.nats.refuse("")
    await asyncio.sleep(3)


@script()
async def script_standby_without_its_connection_is_promoted(s: Stage) -> None:
    """Given a standby without its connection to NATS, when it is promoted, publishes are stored within a second all the same.

    The connection never opened, or it is lost. Another standby has received the publishes, so the new leader hands over to it.
    """
    s.world.nats.refuse("liftpy-n1-standby")
    await s.create("orders", leader="n2", failover_standby=True)
    await s.publish("orders", 1)
    await s.client.admin.elect_leader("orders", 0, "n1")
    await s.publish("orders", 1, first=1, timeout_s=2)
    s.world.nats.refuse("")
    await s.becomes(lambda: s.leader("orders") in ("n2", "n3"), what="a standby with all publishes leads")
    await s.publish("orders", 1, first=2)


@script()
async def script_standby_on_a_slow_network_takes_over(s: Stage) -> None:
    """Given standbys that get publishes 60 ms late, when one takes over, it first stores all that were sent before."""
    await s.create("orders", leader="n2", failover_standby=True)
    connection = s.client.transport.connection
    await asyncio.sleep(1)
    for name in ("n1", "n3"):
        s.world.network.slow(name, 60_000_000)
    for number in range(200):
        if number == 20:
            s["n2"].terminate()
            s["n2"].wants_restart = False
        await connection.publish("orders.x", b"plain-%d" % number)
        await asyncio.sleep(0.01)
    await s.becomes(lambda: s.leader("orders") in ("n1", "n3"), what="another node leads")
    s.world.network.slow("n1", 0)
    s.world.network.slow("n3", 0)
    await asyncio.sleep(2)
    s.expect(await s.read("orders"), [b"plain-%d" % number for number in range(200)], "records")


async def _lose(s: Stage, *links: str) -> None:
    """Cut connections of a leader with standbys for a moment, and expect that another node stores all plain publishes."""
    first = await s.create("orders", failover_standby=True)
    await asyncio.sleep(1)
    s.forget_log()
    for number in range(40):
        if number == 20:
            for link in links:
                s.world.nats.refuse(f"liftpy-{first}-{link}")
        if number == 24:
            s.world.nats.refuse("")
        await s.client.transport.connection.publish("orders.x", b"plain-%d" % number)
        await asyncio.sleep(0.05)
    await s.becomes(lambda: s.leader("orders") not in ("", first), within_s=3, what="a standby leads")
    text = "WARNING replica.transfer_requested: leadership given up partition=orders/0 reason=publishes may have gone past it"
    s.expect(s.count_log(first, text), 1, "log lines of the first leader")
    await s.shows(lambda: s.read("orders"), [b"plain-%d" % number for number in range(40)], what="records")
    row = await s.row(s.leader("orders"), "orders")
    s.expect((row["standby"]["appended"] >= 4, row["standby"]["lost"]), (True, 0), f"standby buffer {row['standby']}")
    s.expect(await s.publish("orders", 1), [40], "offset of a record after it")


@script()
async def script_leader_with_standbys_loses_its_connections_for_a_moment(s: Stage) -> None:
    """Given a stream with ``failover_standby``, when its leader misses plain publishes, a follower stores them and leads."""
    await _lose(s, "standby", "ingest")


@script()
async def script_leader_with_standbys_loses_its_ingest_connection_for_a_moment(s: Stage) -> None:
    """Given a leader that was no standby before, when it misses plain publishes, a follower stores them and leads."""
    await _lose(s, "ingest")


@script(session_s=6.0, lease_s=1.0)
async def script_leader_hears_no_controller_for_a_moment(s: Stage) -> None:
    """Given a leader whose heartbeats are lost, when its lease ends, it sends no acks. It leads on as soon as it has a lease again.

    It does not lead the metadata group, because then its heartbeats need no messages.
    """
    leader = s.others(await s.controller())[0]
    await s.create("orders", leader=leader)
    await s.publish("orders", 2)
    s.forget_log()
    s.world.nats.loses = lambda client, message: (
        client.startswith(f"liftpy-{leader}") and message.subject.startswith("liftpy.control")
    )
    await s.becomes(lambda: s.count_log(leader, "role=LEADER phase=LEADER_NO_LEASE") == 1, within_s=3, what="the lease ends")
    publishing = asyncio.create_task(s.publish("orders", 1, first=2, timeout_s=9))
    await asyncio.sleep(1)
    s.expect(publishing.done(), False, "ack without a lease")
    s.world.nats.loses = lambda client, message: False
    await s.becomes(
        lambda: s.count_log(leader, "role=LEADER phase=LEADER_READY") == 1, within_s=1, what="the leader has a lease"
    )
    s.expect(await publishing, [2], "offset")
    s.expect((s.leader("orders"), await s.isr("orders")), (leader, s.names), "leader and ISR")


@script()
async def script_status_counts_what_the_connections_carry(s: Stage) -> None:
    """Given a cluster with some work, the status of each node counts the messages and bytes that the NATS server has counted."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 20)
    await s.read("orders")
    await asyncio.sleep(3)
    for node in s.names:
        began = len(s.messages)
        status = await s.status(node)
        sent = s.messages[: len(s.messages)]
        totals = dict.fromkeys(("in_msgs", "out_msgs", "in_bytes", "out_bytes"), 0)
        for link in _LINKS:
            found, name = status["connections"][link], f"liftpy-{node}-{link}"
            (client,) = (one for one in s.world.nats.servers[0].clients.values() if one.name == name)
            own = [message for sender, message, _ in sent[:began] if sender == name]
            s.expect(0 <= client.delivered - found["in_msgs"] <= 3, True, f"messages to {name}, status {found}")
            s.expect(0 <= found["out_msgs"] - len(own) <= 3, True, f"messages of {name}, {len(own)}, status {found}")
            size_bytes = sum(len(message.content) for message in own)
            s.expect(0 <= found["out_bytes"] - size_bytes <= 2_000, True, f"bytes of {name}, {size_bytes}, status {found}")
            s.expect((found["connected"], found["reconnects"], found["errors"], found["send_buffer_bytes"]), (True, 0, {}, 0))
            for field in totals:
                totals[field] += found[field]
        shown = {field: status["nats"][field] for field in totals}
        s.expect(shown, totals, f"sums of all connections of {node}")
        sums = [await s.metric(node, "nats_messages_total", way) for way in ('"in"', '"out"')]
        s.expect(all(0 <= one - status["nats"][f"{way}_msgs"] < 20 for one, way in zip(sums, ("in", "out"), strict=True)), True)
        journal = s[node].disk.folder / "raft" / "journal"
        held = (await s.status(node))["metadata_held"]
        s.expect(held["journal_file_bytes"], journal.stat().st_size, f"bytes of the journal of {node}")
        s.expect(0 < held["journal_bytes"] < held["journal_file_bytes"], True, f"bytes of entries {held}")
        s.expect(await s.metric(node, "metadata_journal_bytes"), held["journal_file_bytes"], "metric of the journal")
        s.expect((held["inbox_bytes"], held["compactions"]), (0, 1), f"held by the controller {held}")
        disk = s[node].disk.folder / "streams"
        row = await s.row(node, "orders")
        leads = node == "n2"
        nothing = (
            "waiting_acks", "waiting_readers", "waiting_readers_bytes", "overloaded", "rejected", "duplicates", "replayed_bytes",
            "message_ids_forgotten", "producers", "producers_forgotten", "subjects", "subjects_bytes", "state_bytes",
            "states_written", "states_failed", "held_bytes", "uncommitted_bytes", "fragment_reassembly_bytes",
            "poison_envelopes", "refused_replies", "protocol_frames", "log_start_offset",
        )  # fmt: skip
        wanted: dict[str, Any] = dict.fromkeys(nothing, 0) | {
            "role": "LEADER" if leads else "FOLLOWER", "leader": "n2", "target": [], "joining": "", "paused": "",
            "copy_lag": None, "newest_offset": 19, "flushed_offset": 19, "high_watermark": 19, "lease": True,
            "has_slow_disk": False, "records_in": 20 * leads, "batches_in": 20 * leads, "message_ids_state": "whole",
            "dropped": {}, "storage_failed": False, "services": [], "gone_services": [],
        }  # fmt: skip
        s.expect({name: row[name] for name in wanted}, wanted, f"row of the partition on {node}")
        followers = {name: (one["position"], one["lag"], one["in_isr"]) for name, one in row["followers"].items()}
        s.expect(followers, dict.fromkeys(s.others("n2"), (19, 0, True)) if leads else {}, f"followers that {node} knows")
        s.expect((row["flushes"], row["message_ids"]), (20 if leads else row["flushes"], 20), "flushes and message ids")
        s.expect(row["log_bytes"], sum(path.stat().st_size for path in disk.glob("orders-*/0/*.log")), "bytes of the log")


@script()
async def script_bytes_of_a_node_arrive_in_small_pieces(s: Stage) -> None:
    """Given a network that delivers some bytes at a time, a node reads each message as if it had arrived at once."""
    await s.create("orders", leader="n2")
    await s.create("letters", subject="letters.*", leader="n2")
    connection = s.client.transport.connection
    for piece_bytes in (1, 2, 7, 40):
        s.world.network.piece_bytes["n2"] = piece_bytes
        letters: list[tuple[str, bytes, dict[str, bytes]]] = [
            (f"letters.{number % 3}", b"y" * (number * 7 % 120), {"kind": b"k" * number} if number % 4 == 1 else {})
            for number in range(24)
        ]
        begin, first = (await s.row("n2", "letters"))["newest_offset"] + 1, (await s.row("n2", "orders"))["newest_offset"] + 1
        for subject, value, headers in letters:
            texts = {name: text.decode() for name, text in headers.items()}
            await connection.publish(subject, value, headers=texts or None)
        for number in range(12):  # equal messages, one after another
            await connection.publish("orders.x", b"equal-%d" % (number // 6))
        asked = [s.client.publish("orders", b"acked-%d" % number, key=b"key", headers={"a": "b"}) for number in range(8)]
        offsets = [ack.offset for ack in await asyncio.gather(*asked)]
        s.expect(sorted(offsets), list(range(first + 12, first + 20)), f"offsets in pieces of {piece_bytes}")
        await s.shows(lambda: _newest(s, "n2", "letters"), begin + 23, what="letters")
        found = [
            (record.subject, record.value or b"", {name: text for name, text in record.headers if name == "kind"})
            async for record in s.client.consume("letters", start=begin, until="end")
        ]
        s.expect(found, letters, f"letters in pieces of {piece_bytes}")
        s.expect((await s.read("orders"))[first : first + 12], [b"equal-0"] * 6 + [b"equal-1"] * 6, "equal messages")
    for link in _LINKS:
        s.expect((await s.status("n2"))["connections"][link]["errors"], {}, f"errors of {link}")
    s.expect(await s.metric("n2", "nats_reconnects_total"), 0, "reconnects")


async def _newest(s: Stage, node: str, name: str) -> int:
    return int((await s.row(node, name))["newest_offset"])


@script()
async def script_nats_server_sends_what_a_node_has_not_subscribed_to(s: Stage) -> None:
    """Given a NATS server with a fault, a node drops messages of foreign subjects and counts them. Nonsense ends the connection."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 2)
    await asyncio.sleep(1)
    (client,) = (one for one in s.world.nats.servers[0].clients.values() if one.name == "liftpy-n2-ingest")
    (sid,) = (sid for sid, one in client.subscriptions.items() if one.pattern == "orders.x")
    s.forget_log()
    for line in (f"MSG orders.y {sid} 7", f"MSG liftpy.notify.n2 {sid} 7", f"MSG orders.x.y {sid} _INBOX.a.b 7"):
        client.send(f"{line}\r\nforeign\r\n".encode())
    client.send(b"MSG orders.x 9999 7\r\nunknown\r\n")
    await s.publish("orders", 2, first=2)
    errors = (await s.status("n2"))["connections"]["ingest"]["errors"]
    s.expect(errors, {"foreign_subject": 3}, "errors of the connection")
    s.expect(await s.read("orders"), [b"record-%d" % number for number in range(4)], "records")
    s.expect(s.log("n2"), [], "log lines")
    client.send(b"NONSENSE 1 2 3\r\nMSG orders.x\r\n")
    await s.becomes(lambda: s.count_log("n2", "nats.reconnected: *connection=ingest") == 1, within_s=5, what="n2 reconnects")
    s.expect(s.count_log("n2", "WARNING nats.disconnected: NATS connection lost connection=ingest reason=*"), 1, "log lines")
    await s.publish("orders", 2, first=4)
    s.expect(len(await s.read("orders")), 6, "number of records")
