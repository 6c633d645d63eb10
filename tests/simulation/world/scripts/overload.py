"""Scripts about publishes that come faster than a node can store them, and about what is lost with a connection."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from typing import Any

from tests.simulation.world.machine.scheduler import NS_PER_S
from tests.simulation.world.scripts.stage import Stage, script

_MS = NS_PER_S // 1000


async def _send_plain(s: Stage, count: int, *, size_bytes: int = 10_000, first: int = 0, pause_s: float = 0.0) -> None:
    """Publish ``plain-0``, ``plain-1``, ... without reply subject."""
    connection = s.client.transport.connection
    for number in range(first, first + count):
        await connection.publish("orders.x", (b"plain-%d-" % number).ljust(size_bytes, b"x"))
        await connection.flush()
        await asyncio.sleep(pause_s)


async def _ingest(s: Stage) -> dict[str, Any]:
    """Return what n2 says about its connection for publishes."""
    return dict((await s.status("n2"))["connections"]["ingest"])


def _slow_flush(s: Stage, for_ms: int) -> None:
    for name in s.names:
        s[name].disk.log_delay_ns = for_ms * _MS


@script(ingest_buffer_bytes=8_000_000, ingest_queue_bytes=3_000_000, unreplicated_bytes=500_000)
async def script_node_stops_reading_while_its_disk_is_slow(s: Stage) -> None:
    """Given publishes that fill half of the buffer of a leader, it stops reading. NATS keeps the rest, and nothing is lost."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 1)
    s.forget_log()
    _slow_flush(s, 300)
    await _send_plain(s, 200, size_bytes=40_000)
    ingest, row = await _ingest(s), await s.row("n2", "orders")
    waiting_bytes = ingest["waiting_bytes"] + row["held_bytes"]
    s.expect(4_000_000 <= waiting_bytes < 4_600_000, True, f"half of the buffer is full: {waiting_bytes} bytes")
    s.expect(ingest["server_holds_bytes"] > 2_000_000, True, f"the server keeps the rest: {ingest['server_holds_bytes']} bytes")
    s.expect((await s.metric("n2", "ingest_buffer_bytes")), ingest["waiting_bytes"], "metric of the bytes that wait")
    await s.shows(lambda: s.metric("n2", "ingest_records_total"), 201, within_s=2, what="received records")
    ingest, row = await _ingest(s), await s.row("n2", "orders")
    s.expect((ingest["waiting_bytes"], row["held_bytes"], row["dropped"]), (0, 0, {}), "bytes that wait, and drops")
    s.expect(ingest["most_waiting_bytes"] < 4_600_000, True, f"most bytes that waited: {ingest['most_waiting_bytes']}")
    values = [value.partition(b"-x")[0] for value in await s.read("orders")]
    s.expect(values[1:], [b"plain-%d" % number for number in range(200)], "records")
    s.expect(s.log("n2", least="WARNING"), [], "warnings")


@script()
async def script_server_closes_the_connection_of_a_node_that_does_not_read(s: Stage) -> None:
    """Given a leader that is stopped for a moment, when its server closes its connection, it says how many publishes it has lost.

    A connection that ends without loss is not counted.
    """
    await s.create("orders", leader="n2")
    await _send_plain(s, 20)
    await s.shows(lambda: s.metric("n2", "ingest_records_total"), 20, what="received records")
    s.forget_log()
    s.world.nats.max_pending = 500_000
    s["n2"].pause(500 * _MS)
    await _send_plain(s, 50, first=20)  # the server closes the connection at the last one
    await s.becomes(lambda: s.count_log("n2", "publish.lost"), within_s=3, what="the node reports the loss")
    s.expect_log(
        "n2",
        """
        WARNING nats.disconnected: NATS connection lost connection=ingest reason=*: reconnecting
        INFO nats.reconnected: NATS connection restored connection=ingest server=s1:4222
        WARNING publish.lost: publishes lost with a connection that the server closed reason=Slow Consumer (Pending Bytes) count=50
        """,
    )
    s.expect(await s.metric("n2", "publish_lost_on_disconnect_total"), 50, "lost publishes")
    s.expect(await s.metric("n2", "publish_lost_unknown_total"), 0, "connections with unknown loss")
    s.expect(await s.publish("orders", 2), [20, 21], "offsets after the loss")
    s.world.nats.refuse("liftpy-n2-ingest")
    s.world.nats.refuse("")
    await s.becomes(lambda: s.count_log("n2", "nats.reconnected") == 2, what="the node reconnects")
    await asyncio.sleep(3)
    s.expect(s.count_log("n2", "publish.lost"), 1, "log lines about lost publishes")
    s.expect(await s.metric("n2", "publish_lost_on_disconnect_total"), 50, "lost publishes")
    s.expect(await s.metric("n2", "publish_lost_unknown_total"), 0, "connections with unknown loss")


@script(ingest_buffer_bytes=400_000, ingest_queue_bytes=40_000, unreplicated_bytes=20_000, max_queue_delay_s=0.2)
async def script_node_drops_publishes_so_that_its_server_keeps_the_connection(s: Stage) -> None:
    """Given a leader that has lost a connection to a burst, when its disk is slow, it drops publishes before the server closes it.

    Each publish is stored, dropped and counted, or answered with a rejection.
    """
    await s.create("orders", leader="n2")
    await s.publish("orders", 1)
    s.world.nats.max_pending = 600_000
    s["n2"].pause(500 * _MS)
    await _send_plain(s, 60)
    await s.becomes(lambda: s.count_log("n2", "publish.lost"), within_s=3, what="the node reports the loss")
    s.forget_log()
    before = await _ingest(s)
    _slow_flush(s, 450)
    await _send_plain(s, 86, pause_s=0.002)  # more than half of the buffer and what the server keeps
    await asyncio.sleep(1)
    s.expect(s.count_log("n2", "nats.disconnected"), 0, "lost connections")
    s.expect((await _ingest(s))["left_out"], 0, "publishes that were dropped unread although the buffer was not full")
    _slow_flush(s, 1_000)
    connection = s.client.transport.connection
    asked = []
    for number in range(30):
        await _send_plain(s, 10, first=10 * number, pause_s=0.002)
        asked += [asyncio.create_task(connection.request("orders.x", b"asked", timeout=3)) for _ in range(10)]
    answers = Counter(json.loads(answer.data).get("error", {}).get("code", 0) for answer in await asyncio.gather(*asked))
    await asyncio.sleep(1)
    stored = Counter(value.partition(b"-")[0] for value in await s.read("orders"))
    ingest, row = await _ingest(s), await s.row("n2", "orders")
    dropped = Counter(row["dropped"])
    s.expect((answers[0], answers[429]), (stored[b"asked"], 300 - stored[b"asked"]), "answers with and without an offset")
    s.expect(await s.metric("n2", "publish_rejected_total"), answers[429], "rejected publishes")
    s.expect(stored[b"plain"] + dropped.total(), 386, f"stored and dropped publishes {row['dropped']}")
    read = (
        ingest["in_msgs"] - before["in_msgs"]
    )  # a message in two pieces that comes while the node drops others is not counted
    s.expect(650 <= read <= 86 + 600, True, f"messages that the node has read, whatever it did with them, are {read}")
    read_bytes = ingest["in_bytes"] - before["in_bytes"]
    s.expect(350 * 10_000 <= read_bytes < 387 * 10_000, True, f"bytes that the node has read are {read_bytes}")
    s.expect(ingest["left_out"], dropped["ingest_overflow"], "publishes that were dropped unread")
    s.expect(answers[429] > 0 and ingest["left_out"] > 100, True, f"the node rejects and drops publishes {answers} {ingest}")
    said = re.findall(r"(\d+) of orders/0", "\n".join(s.log("n2", least="WARNING")))
    s.expect(sum(map(int, said)), dropped.total(), "dropped publishes of the log lines")
    s.expect(s.count_log("n2", "nats.disconnected"), 0, "lost connections")
    s.expect((await s.publish("orders", 1))[0] > 0, True, "an ack after the overload")


@script(nodes=1, controllers=1, ingest_buffer_bytes=8_000_000, ingest_queue_bytes=3_000_000, unreplicated_bytes=500_000)
async def script_server_ends_while_it_holds_publishes(s: Stage) -> None:
    """Given a NATS server that holds publishes for a node, when it ends, the node says how many are lost at least.

    The server has told the node how many messages it has for it. It cannot tell the end of the connection any more.
    """
    s.allow("not_sent_disconnected")
    await s.create("orders")
    await s.publish("orders", 1)
    s.forget_log()
    _slow_flush(s, 300)
    await _send_plain(s, 200, size_bytes=40_000)
    await asyncio.sleep(0.03)
    server = s.world.nats.servers[0]
    server.stop()
    server.start()
    await s.becomes(lambda: s.count_log("n1", "publish.lost_unknown") == 1, within_s=5, what="the node reports the loss")
    lost = 201 - (await s.status("n1"))["connections"]["ingest"]["in_msgs"]
    s.expect(lost > 20, True, f"the server holds publishes: {lost}")
    s.expect(s.count_log("n1", f"number not known at_least={lost}"), 1, f"log lines about {lost} publishes")
    s.expect(await s.metric("n1", "publish_lost_on_disconnect_total"), lost, "lost publishes")
    s.expect(await s.metric("n1", "publish_lost_unknown_total"), 1, "connections with unknown loss")
