"""Scripts about clients of JetStream that read streams."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime
from typing import Any

from tests.simulation.world.machine.scheduler import NS_PER_S
from tests.simulation.world.scripts.stage import Stage, script


@script()
async def script_jetstream_readers_are_counted(s: Stage) -> None:
    """Given the read API of JetStream, when a client asks for records, it gets them, and the node counts the requests."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 5)
    connection = s.client.transport.connection
    before = await s.total_counter("jetstream_requests")
    for number in range(5):
        answer = await connection.request("$JS.hub.API.DIRECT.GET.orders", b'{"seq":%d}' % (number + 1), timeout=3)
        s.expect((answer.data, (answer.headers or {})["Nats-Sequence"]), (b"record-%d" % number, str(number + 1)), "record")
    answer = await connection.request("$JS.hub.API.DIRECT.GET.orders", b'{"seq":6}', timeout=3)
    s.expect((answer.headers or {})["Status"], "404", "status of a record that is not there")
    answer = await connection.request("$JS.hub.API.STREAM.MSG.GET.orders", b"{", timeout=3)
    s.expect(json.loads(answer.data)["error"]["code"], 400, "code of the error for a request that is not JSON")
    answer = await connection.request("$JS.hub.API.STREAM.INFO.orders", b"", timeout=3)
    state = json.loads(answer.data)["state"]
    s.expect((state["messages"], state["first_seq"], state["last_seq"]), (5, 1, 5), "state of the stream")
    s.expect(await s.total_counter("jetstream_requests") - before, 8, "requests that the nodes have counted")
    # More requests at once than a node answers: each gets an answer, some of them a rejection, which is counted.
    many = [connection.request("$JS.hub.API.DIRECT.GET.orders", b'{"seq":1}', timeout=5) for _ in range(400)]
    answers = await asyncio.gather(*many)
    rejected = sum(answer.data != b"record-0" for answer in answers)
    s.expect(await s.total("incidents_total", "jetstream_rejected"), rejected, "rejected requests")
    s.expect(rejected > 0, True, "some requests are rejected")


@script()
async def script_jetstream_client_asks_for_streams_and_records(s: Stage) -> None:
    """Given the read API of JetStream, when a client asks as nats.js and nats.go do, it gets the answers of nats-server."""
    await s.create("orders", leader="n2", partitions=2)
    await s.create("letters", subject="letters.*", leader="n3")
    connection = s.client.transport.connection
    moments = []
    for number in range(6):
        await connection.request(f"letters.{number % 3}", b"record-%d" % number, timeout=3)
        await asyncio.sleep(0.5)
        moments.append(f"{datetime.fromtimestamp(s.world.driver.wall_ns() / NS_PER_S, UTC):%Y-%m-%dT%H:%M:%S.%f}Z")

    async def ask(request: str, **fields: object) -> dict[str, Any]:
        answer = await connection.request(f"$JS.hub.API.{request}", json.dumps(fields).encode() if fields else b"", timeout=3)
        return dict(json.loads(answer.data))

    async def record(**fields: object) -> tuple[int, bytes] | int:
        found = await ask("STREAM.MSG.GET.letters", **fields)
        if "error" in found:
            return int(found["error"]["code"])
        return found["message"]["seq"], base64.b64decode(found["message"]["data"])

    async def records(name: str = "letters", **fields: object) -> list[tuple[Any, ...]]:
        """Return (sequence, value) of each record, and (status, number of records that follow, last sequence)."""
        inbox = connection.new_inbox()
        found: list[tuple[Any, ...]] = []
        subscription = await connection.subscribe(inbox)
        await connection.publish(f"$JS.hub.API.DIRECT.GET.{name}", json.dumps(fields).encode(), reply=inbox)
        while True:
            answer = await subscription.next_msg(timeout=3)
            headers = answer.headers or {}
            if "Status" in headers:
                return [*found, (headers["Status"], headers.get("Nats-Num-Pending", ""), headers.get("Nats-Last-Sequence", ""))]
            found.append((headers["Nats-Sequence"], answer.data))
            if not (fields.keys() & {"batch", "multi_last"}):
                return list(found)

    s.expect((await ask("INFO"))["streams"], 3, "number of streams")
    s.expect((await ask("STREAM.NAMES"))["streams"], ["letters", "orders", "orders:1"], "names of the streams")
    page = await ask("STREAM.NAMES", offset=1)
    s.expect((page["streams"], page["total"], page["offset"]), (["orders", "orders:1"], 3, 1), "second page of the names")
    s.expect((await ask("STREAM.NAMES", subject="orders.>"))["streams"], ["orders", "orders:1"], "streams of a subject")
    listed = (await ask("STREAM.LIST"))["streams"]
    s.expect(
        [(one["config"]["name"], one["state"]["messages"]) for one in listed], [("letters", 6), ("orders", 0), ("orders:1", 0)]
    )
    s.expect(listed[0]["state"], (await ask("STREAM.INFO.letters"))["state"], "state of a stream")
    s.expect((await ask("STREAM.INFO.orders:1"))["config"]["subjects"], ["orders.x.1"], "subjects of a partition")
    for name in ("STREAM.INFO.orders:2", "STREAM.INFO.nothing", "CONSUMER.LIST.nothing"):
        s.expect((await ask(name))["error"]["err_code"], 10059, f"code of the error of {name}")
    s.expect((await ask("CONSUMER.LIST.orders"))["consumers"], [], "consumers of a stream")
    s.expect((await ask("STREAM.CREATE.new", name="new"))["error"]["code"], 400, "code of the error of a request that writes")

    s.expect(await record(seq=3), (3, b"record-2"), "record at a sequence")
    s.expect(await record(last_by_subj="letters.1"), (5, b"record-4"), "newest record of a subject")
    s.expect(await record(next_by_subj="letters.1", seq=3), (5, b"record-4"), "next record of a subject")
    s.expect(await record(start_time=moments[2]), (4, b"record-3"), "first record after a time")
    s.expect(await record(seq=7), 404, "record after the newest one")
    s.expect(await record(start_time=moments[5]), 404, "record after a time without records")
    for wrong in ({"seq": -1}, {"seq": 1, "last_by_subj": "letters.1"}, {"start_time": "today"}, {"seq": 1, "unknown": 2}):
        s.expect(await record(**wrong), 400, f"code of the error for {wrong}")

    s.expect(await records("letters.letters.2"), [("6", b"record-5")], "newest record of a subject")
    s.expect(await records(seq=2, batch=2), [("2", b"record-1"), ("3", b"record-2"), ("204", "3", "3")], "batch")
    s.expect(await records(seq=6, batch=9), [("6", b"record-5"), ("204", "0", "6")], "batch up to the end")
    s.expect(
        await records(seq=1, batch=9, max_bytes=10), [("1", b"record-0"), ("2", b"record-1"), ("204", "4", "2")], "few bytes"
    )
    s.expect(
        await records(seq=1, batch=9, next_by_subj="letters.1"), [("2", b"record-1"), ("5", b"record-4"), ("204", "0", "5")]
    )
    s.expect(await records(seq=7, batch=9), [("404", "", "")], "batch after the newest record")
    newest = [("4", b"record-3"), ("5", b"record-4"), ("6", b"record-5")]
    s.expect(await records(multi_last=["letters.*"]), [*newest, ("204", "0", "6")], "newest record of each subject")
    s.expect(
        await records(multi_last=["letters.0", "letters.1"], batch=1), [newest[0], ("204", "1", "4")], "newest of two subjects"
    )
    older = [("2", b"record-1"), ("3", b"record-2"), ("4", b"record-3"), ("204", "0", "4")]
    s.expect(await records(multi_last=["letters.*"], up_to_seq=4), older, "newest record of each subject up to a sequence")
    s.expect(
        await records(multi_last=["letters.*"], up_to_time=moments[3]), older, "newest record of each subject up to a time"
    )
    s.expect(await records(seq=1, last_by_subj="letters.1"), [("408", "", "")], "two selections")
