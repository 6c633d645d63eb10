"""Scripts about clients of JetStream that read streams."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from liftpy.client.client import Client
from liftpy.client.positions import Bounds
from sidecar.node import jetstream_reads
from tests.simulation.world.machine.nats_server import MAX_PAYLOAD_BYTES
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
    statuses = {
        ((one.headers or {})["Status"], (one.headers or {})["Description"]) for one in answers if one.data != b"record-0"
    }
    s.expect(statuses, {("429", "too many requests")}, "status of rejected requests")


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

    numbers: list[tuple[str, str]] = []
    """(Number of records that follow, sequence of the message before) of each message of batches."""

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
            numbers.append((headers.get("Nats-Num-Pending", ""), headers.get("Nats-Last-Sequence", "")))
            if not (fields.keys() & {"batch", "multi_last"}):
                return list(found)

    await s.create("mail", subject="mail.>", leader="n3")
    for subject in ("mail.a.1", "mail.b.1", "mail.a.2", "mail.b.1"):
        await connection.request(subject, subject.encode(), timeout=3)
    for subjects, wanted in (
        (["mail.b.1", "mail.a.*"], [("1", b"mail.a.1"), ("3", b"mail.a.2"), ("4", b"mail.b.1")]),
        (["mail.b.1", "mail.a.2"], [("3", b"mail.a.2"), ("4", b"mail.b.1")]),
        (["mail.b.1"], [("4", b"mail.b.1")]),
        (["mail.*.1"], [("1", b"mail.a.1"), ("4", b"mail.b.1")]),
    ):
        found = await records("mail", multi_last=subjects)
        s.expect(found[:-1], wanted, f"newest records of {subjects}")
    await s.client.admin.delete_stream("mail")
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
    numbers.clear()
    s.expect(await records(seq=6, batch=9), [("6", b"record-5"), ("204", "0", "6")], "batch up to the end")
    s.expect(await records(seq=3, batch=2), [("3", b"record-2"), ("4", b"record-3"), ("204", "2", "4")], "batch")
    some = [("4", b"record-3"), ("5", b"record-4"), ("204", "1", "5")]
    s.expect(await records(multi_last=["letters.*"], batch=2), some, "newest records of two subjects")
    s.expect(numbers, [("0", "0"), ("3", "0"), ("2", "3"), ("2", "0"), ("1", "4")], "numbers in the headers of each message")
    s.expect(await records(seq=1, batch=9, max_bytes=8), [("1", b"record-0"), ("204", "5", "1")], "exactly as many bytes")
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


class _JetStream:
    """Sends requests as the clients of JetStream do."""

    def __init__(self, s: Stage) -> None:
        self._connection = s.client.transport.connection

    async def answer(self, request: str, body: str = "") -> dict[str, Any]:
        """Return the JSON answer to a request. If the answer is a message or a status line, return its headers and ``data``."""
        found = await self._connection.request(f"$JS.hub.API.{request}", body.encode(), timeout=9)
        headers = {str(getattr(name, "value", name)): value for name, value in (found.headers or {}).items()}
        return {**headers, "data": found.data} if headers else dict(json.loads(found.data))

    async def batch(self, stream: str, body: str, on_record: Callable[[int, int], None] = lambda *_: None) -> list[Any]:
        """Return (sequence, data) of each message of a direct get with several messages, and the status at their end."""
        inbox, found = self._connection.new_inbox(), list[Any]()
        subscription = await self._connection.subscribe(inbox)
        await self._connection.publish(f"$JS.hub.API.DIRECT.GET.{stream}", body.encode(), reply=inbox)
        while True:
            answer = await subscription.next_msg(timeout=9)
            headers = {str(getattr(name, "value", name)): value for name, value in (answer.headers or {}).items()}
            if "Status" in headers:
                await subscription.unsubscribe()
                return [*found, headers["Status"]]
            found.append((int(headers["Nats-Sequence"]), answer.data))
            on_record(found[-1][0], int(headers.get("Nats-Last-Sequence", 0)))

    async def error(self, request: str, body: str = "") -> tuple[int, int, str]:
        """Return (code, code of JetStream, text) of a rejection. 0: none. A status line has no code of JetStream."""
        answer = await self.answer(request, body)
        if "Status" in answer:
            return int(answer["Status"]), 0, answer["Description"]
        error = answer.get("error", {"code": 0, "err_code": 0, "description": ""})
        return error["code"], error["err_code"], error["description"]


@script()
async def script_jetstream_client_sees_settings_and_state_of_streams(s: Stage) -> None:
    """Given streams with settings, when a JetStream client asks for them, it gets them in the form of nats-server."""
    await s.create(
        "orders", leader="n2", partitions=2, retention_records=1_000, retention_bytes=10_000_000, retention_age_s=3_600,
        max_message_bytes=500_000, dedup_window_s=30.5,
    )  # fmt: skip
    js = _JetStream(s)
    s.expect((await js.answer("STREAM.LIST", '{"subject": "nothing"}'))["streams"], [], "list without a stream")
    none = "0001-01-01T00:00:00Z"
    empty = {"messages": 0, "first_seq": 1, "last_seq": 0, "bytes": 0, "consumer_count": 0, "first_ts": none, "last_ts": none}
    s.expect((await js.answer("STREAM.INFO.orders"))["state"], empty, "state of an empty stream")
    uid = (await s.client.admin.stream("orders")).uid
    times = [f"{datetime.fromtimestamp(s.world.driver.wall_ns() / NS_PER_S, UTC):%Y-%m-%dT%H:%M:%S.}"[:-3]]
    await s.publish("orders", 1)
    state = (await js.answer("STREAM.INFO.orders"))["state"]
    s.expect(state["first_ts"] == state["last_ts"] > none, True, f"times of the only record {state}")
    await s.publish("orders", 2, first=1)
    info = await js.answer("STREAM.INFO.orders")
    state = info["state"]
    s.expect((state["messages"], state["first_seq"], state["last_seq"]), (3, 1, 3), "records of the stream")
    stamps = [record.timestamp_ns async for record in s.client.consume("orders", until="end")]
    first, last = (
        f"{datetime.fromtimestamp(at // NS_PER_S, UTC):%Y-%m-%dT%H:%M:%S}.{at % NS_PER_S:09d}".rstrip("0") + "Z"
        for at in (stamps[0], stamps[-1])
    )
    s.expect((state["first_ts"], state["last_ts"]), (first, last), "times of the records")
    s.expect(info["created"] < first < last < info["ts"], True, f"order of the times {info['created']} {first} {last}")
    s.expect(info["ts"].startswith(times[0]), True, f"time of the answer {info['ts']}")
    s.expect((info["type"], info["cluster"]), ("io.nats.jetstream.api.v1.stream_info_response", {"leader": "n2"}), "leader")
    s.expect((info["total"], info["offset"], info["limit"]), (0, 0, 0), "page of subjects")
    partitions = {"liftpy.partition": "0", "liftpy.partitions": "2", "liftpy.read_only": "false", "liftpy.uid": uid}
    settings = {
        "name": "orders", "subjects": ["orders.x"], "retention": "limits", "discard": "old", "storage": "file",
        "num_replicas": 3, "max_msgs": 1_000, "max_bytes": 10_000_000, "max_age": 3_600 * NS_PER_S,
        "max_msgs_per_subject": -1, "max_msg_size": 500_000, "max_consumers": -1, "duplicate_window": 30_500_000_000,
        "no_ack": False, "compression": "none", "allow_direct": True, "mirror_direct": False, "sealed": False,
        "deny_delete": True, "deny_purge": True, "allow_rollup_hdrs": False, "allow_msg_ttl": False, "consumer_limits": {},
        "metadata": partitions,
    }  # fmt: skip
    s.expect(info["config"], settings, "settings of the stream")
    second = (await js.answer("STREAM.INFO.orders:1"))["config"]
    changed = {"name": "orders:1", "subjects": ["orders.x.1"], "metadata": {**partitions, "liftpy.partition": "1"}}
    s.expect(second, {**settings, **changed}, "settings of partition 1")

    limits = dict.fromkeys(("max_memory", "max_storage", "max_streams", "max_consumers", "max_ack_pending"), -1)
    limits |= {"memory_max_stream_bytes": -1, "storage_max_stream_bytes": -1, "max_bytes_required": False}
    account = {
        "type": "io.nats.jetstream.api.v1.account_info_response", "memory": 0, "storage": 0, "reserved_memory": 0,
        "reserved_storage": 0, "streams": 2, "consumers": 0, "limits": limits, "domain": "hub",
        "api": {"level": 1, "total": 0, "errors": 0},
    }  # fmt: skip
    s.expect(await js.answer("INFO"), account, "account")
    names = {"type": "io.nats.jetstream.api.v1.stream_names_response", "total": 2, "limit": 1024}
    s.expect(await js.answer("STREAM.NAMES"), {**names, "offset": 0, "streams": ["orders", "orders:1"]}, "names")
    for offset, shown, found in ((1, 1, ["orders:1"]), (2, 2, []), (9, 2, [])):
        answer = await js.answer("STREAM.NAMES", f'{{"offset": {offset}}}')
        s.expect(answer, {**names, "offset": shown, "streams": found}, f"names from {offset} on")
    page = await js.answer("STREAM.LIST", '{"offset": 1}')
    s.expect((page["total"], page["offset"], page["limit"]), (2, 1, 256), "page of the list")
    s.expect([one["config"] for one in page["streams"]], [second], "streams of the page")
    for kind, limit in (("NAMES", 1024), ("LIST", 256)):
        answer = await js.answer(f"CONSUMER.{kind}.orders:1")
        nothing = {"total": 0, "offset": 0, "limit": limit, "consumers": []}
        s.expect(answer, {"type": f"io.nats.jetstream.api.v1.consumer_{kind.lower()}_response", **nothing}, "consumers")
    # Which streams store a subject: wildcards may be on both sides.
    await s.create("letters", subject="letters.*.new", max_per_subject=5, read_only=True)
    config = (await js.answer("STREAM.INFO.letters"))["config"]
    s.expect([config[name] for name in ("max_msgs", "max_bytes", "max_msg_size")], [-1, -1, -1], "limits that are not set")
    s.expect((config["max_msgs_per_subject"], config["metadata"]["liftpy.read_only"]), (5, "true"), "settings of letters")
    for subject, streams in (
        ("letters.a.new", ["letters"]), ("letters.a.old", []), ("letters.a", []), ("letters.a.new.b", []), ("letters.>", ["letters"]),
        ("letters.a.>", ["letters"]), ("letters.a.new.>", []), ("*.*.new", ["letters"]), ("*.x", ["orders"]), ("*", []),
        ("*.*.*", ["letters", "orders:1"]), (">", ["letters", "orders", "orders:1"]), ("orders.x.1", ["orders:1"]),
    ):  # fmt: skip
        found = (await js.answer("STREAM.NAMES", json.dumps({"subject": subject})))["streams"]
        s.expect(found, streams, f"streams that store {subject}")


@script()
async def script_jetstream_client_sees_the_times_of_a_stream_without_its_newest_record(s: Stage) -> None:
    """Given a stream whose oldest and newest records were purged, its state has the times of the records that remain."""
    await s.create("letters", leader="n1", segment_bytes=4096, dedup_window_s=1.0)
    keys = [b"a", *[b"b"] * 28, b"a"]
    for key in keys:
        await s.client.publish("letters", key.ljust(200), key=key)
    records = [record async for record in s.client.consume("letters", until="end")]
    remaining = [record.timestamp_ns for record in records if record.key == b"b"]
    times = tuple(
        f"{datetime.fromtimestamp(at // NS_PER_S, UTC):%Y-%m-%dT%H:%M:%S}.{at % NS_PER_S:09d}".rstrip("0") + "Z"
        for at in (remaining[0], remaining[-1])
    )
    await s.client.admin.purge("letters", 0, keys=[b"a"])
    js = _JetStream(s)

    async def shown() -> tuple[str, str]:
        state = (await js.answer("STREAM.INFO.letters"))["state"]
        return state["first_ts"], state["last_ts"]

    await s.shows(shown, times, within_s=30, what="times of the oldest and the newest record")
    for number in (1, 30):
        gone = partial(js.error, "STREAM.MSG.GET.letters", f'{{"seq": {number}}}')
        await s.shows(gone, (404, 10037, "no message found"), what=f"answer for the purged record {number}")

    async def purges() -> int:
        return len((await s.client.admin.stream("letters")).partitions[0].state.purges)

    await s.shows(purges, 0, within_s=30, what="purges in progress")


@script()
async def script_jetstream_client_sends_invalid_requests(s: Stage) -> None:
    """Given a JetStream client, when it sends requests that nats-server rejects, it gets the same codes, and a text that helps."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 1)
    js = _JetStream(s)
    unknown = (404, 10059, "stream not found")
    for name in ("nothing", "orders:1", "orders:0", "orders:01", "orders.x", "a*b"):
        s.expect(await js.error(f"STREAM.INFO.{name}"), unknown, f"stream {name!r}")
    for request in ("CONSUMER.NAMES.orders:1", "CONSUMER.LIST.nothing", "STREAM.MSG.GET.orders.x"):
        s.expect(await js.error(request), unknown, request)
    for request in ("STREAM.CREATE.new", "STREAM.NAMES.more", "CONSUMER.CREATE.orders"):
        text = f"bad request: {request} is not supported. liftpy supports only requests that read streams"
        s.expect(await js.error(request), (400, 10003, text), request)
    gone = s.fails(js.answer("DIRECT.GET.nothing", '{"seq": 1}'), Exception)
    s.expect_in("no responders", (await gone).lower(), "error of a direct get of an unknown stream")

    bad, malformed, empty = "Bad Request", "Malformed Request", "Empty Request"
    no_message = (404, 10037, "no message found")
    number = f"must be a number from 0 to {1 << 62}"
    subject, time, field = (
        "the subject is not a valid NATS subject",
        "the time is not valid, use a time such as *",
        "unknown field",
    )
    calendar = "the time does not exist in the calendar"
    now = '"2026-01-01T00:00:00Z"'
    for body, direct, text in (
        ("", empty, "bad request"),
        ("{}", empty, "bad request"),
        ('{"seq": 0}', empty, "bad request"),
        ("{", malformed, "invalid JSON: *"),
        ('"text"', malformed, "invalid JSON: the request must be a JSON object"),
        ('{"seq": 1}' + " " * (65_536 - 9), malformed, "invalid JSON: the request is longer than 65536 bytes"),
        ('{"seq": 1.5}', bad, f"bad request: seq {number}"),
        ('{"seq": -1}', bad, f"bad request: seq {number}"),
        (f'{{"seq": {(1 << 62) + 1}}}', bad, f"bad request: seq {number}"),
        ('{"last_by_subj": 5}', bad, f"bad request: {subject}"),
        ('{"next_by_subj": "a..b"}', bad, f"bad request: {subject}"),
        ('{"seq": 1, "last_by_subj": "orders.x"}', bad, "bad request"),
        ('{"seq": 1, "start_time": ' + now + "}", bad, "bad request"),
        ('{"next_by_subj": "orders.x", "last_by_subj": "orders.x"}', bad, "bad request"),
        ('{"start_time": 7}', bad, f"bad request: {time}"),
        ('{"start_time": "2026-01-01 00:00:00Z"}', bad, f"bad request: {time}"),
        ('{"start_time": "2026-13-01T00:00:00Z"}', bad, f"bad request: {calendar}"),
        ('{"seq": 1, "from": 2}', bad, f"bad request: 'from' is an {field}"),
        ('{"batch": 2}', empty, f"bad request: 'batch' is an {field}"),
        ('{"seq": 1, "batch": -1}', bad, f"bad request: 'batch' is an {field}"),
        ('{"batch": 3, "last_by_subj": "orders.x"}', bad, f"bad request: 'batch' is an {field}"),
        ('{"seq": 1, "max_bytes": 9}', bad, f"bad request: 'max_bytes' is an {field}"),
        ('{"seq": 1, "up_to_seq": 9}', bad, f"bad request: 'up_to_seq' is an {field}"),
        ('{"multi_last": "orders.x"}', bad, f"bad request: 'multi_last' is an {field}"),
        ('{"seq": 1, "multi_last": ["orders.x"]}', bad, f"bad request: 'multi_last' is an {field}"),
        ('{"next_by_subj": "orders.x", "multi_last": ["orders.x"]}', bad, f"bad request: 'multi_last' is an {field}"),
        ('{"multi_last": ["orders.x"], "up_to_seq": 9, "up_to_time": ' + now + "}", bad, "bad request: 'multi_last' is *"),
        ('{"multi_last": ["orders.x"], "up_to_time": "never"}', bad, "bad request: 'multi_last' is *"),
    ):  # fmt: skip
        s.expect(await js.error("DIRECT.GET.orders", body), (408, 0, direct), f"status of a direct get with {body[:60]}")
        code, js_code, found = await js.error("STREAM.MSG.GET.orders", body)
        s.expect((code, js_code), (400, 10025 if direct is malformed else 10003), f"codes of the error for {body[:60]}")
        s.expect_in(f"|{text}|", f"|{found}|", f"error for {body[:60]}")
    for body in (f'{{"seq": {1 << 62}}}', '{"seq": 2}', '{"start_time": "9999-01-01T00:00:00Z"}', '{"next_by_subj": "a"}'):
        s.expect(await js.error("STREAM.MSG.GET.orders", body), no_message, f"error for {body}")
        s.expect(await js.error("DIRECT.GET.orders", body), (404, 0, "Message Not Found"), f"status for {body}")
    for body in ('{"subjects_filter": ">"}', '{"deleted_details": true}'):
        text = "bad request: subjects_filter and deleted_details are not supported"
        s.expect(await js.error("STREAM.INFO.orders", body), (400, 10003, text), body)
    s.expect((await js.error("STREAM.NAMES", '{"subject": "a b"}'))[2], f"bad request: {subject}", "subject with a space")
    s.expect((await js.error("STREAM.LIST", '{"seq": 1}'))[2], f"bad request: 'seq' is an {field}", "field of another request")
    # These requests are valid: values as nats.go sends them when they are not set, and times with an offset or a fraction.
    for body in (
        '{"seq": 1, "last_by_subj": "", "next_by_subj": null, "start_time": null}', '{"seq": 1}' + " " * (65_536 - 10),
        '{"start_time": "0001-01-01T00:00:00Z"}', '{"start_time": "2023-01-01T02:00:00.123456789+02:00"}',
    ):  # fmt: skip
        s.expect((await js.answer("STREAM.MSG.GET.orders", body)).get("error"), None, f"error for {body[:60]}")


@script()
async def script_jetstream_client_reads_large_answers(s: Stage) -> None:
    """Given many subjects and large records, when a JetStream client reads them, limits end its answers.

    A record that does not fit into a message is an error. Headers and key of a record are headers of the answer.
    """
    await s.create("letters", subject="letters.*")
    connection = s.client.transport.connection
    js = _JetStream(s)

    async def read(body: str) -> tuple[int, dict[str, Any]]:
        """Return the number of records, and the status line at the end."""
        inbox = connection.new_inbox()
        subscription = await connection.subscribe(inbox)
        await connection.publish("$JS.hub.API.DIRECT.GET.letters", body.encode(), reply=inbox)
        count = 0
        while True:
            answer = await subscription.next_msg(timeout=9)
            headers = {str(getattr(name, "value", name)): value for name, value in (answer.headers or {}).items()}
            if "Status" in headers:
                return count, headers
            count += 1

    for number in range(1_024):
        await connection.publish(f"letters.{number}", b"small")
    await s.becomes(lambda: s.leader("letters") != "", what="a node leads")
    await s.shows(lambda: s.total("ingest_records_total"), 1_024, what="stored records")
    end = {"Status": "204", "Description": "EOB", "Nats-Num-Pending": "0", "Nats-Last-Sequence": "1024"}
    s.expect(await read('{"multi_last": [">"]}'), (1_024, {**end, "Nats-UpTo-Sequence": "1024"}), "newest of 1,024 subjects")
    s.expect(await read('{"seq": 1000, "batch": 5000}'), (25, end), "batch up to the end")
    await connection.publish("letters.1024", b"small")
    await s.shows(lambda: s.total("ingest_records_total"), 1_025, what="stored records")
    s.expect(
        await read('{"multi_last": [">"]}'), (0, {"Status": "413", "Description": "Too Many Results"}), "of 1,025 subjects"
    )
    two = '{"multi_last": ["letters.5", "letters.7"], "batch": 1}'
    rest = {
        "Status": "204",
        "Description": "EOB",
        "Nats-Num-Pending": "1",
        "Nats-Last-Sequence": "6",
        "Nats-UpTo-Sequence": "1025",
    }
    s.expect(await read(two), (1, rest), "newest of two subjects, one at a time")

    for _ in range(10):
        await connection.request("letters.large", b"x" * 1_000_000, timeout=3)
    count, status = await read('{"seq": 1026, "batch": 20}')
    s.expect((count, status["Nats-Num-Pending"], status["Nats-Last-Sequence"]), (9, "1", "1034"), "records above 8 MiB")
    too_large = (400, 10054, "message size exceeds maximum allowed")
    s.expect(await js.error("STREAM.MSG.GET.letters", '{"seq": 1026}'), too_large, "record that is too large as base64")

    await s.create("orders")
    await s.client.publish("orders", b"record", key=b"key-1", headers={"kind": "new"})
    await connection.request("orders.x", b"", timeout=3)
    await s.client.publish("orders", b"y" * (MAX_PAYLOAD_BYTES - 9_000))
    await connection.request("orders.x", b"z" * (MAX_PAYLOAD_BYTES - 80), timeout=3)
    s.expect(len((await js.answer("DIRECT.GET.orders", '{"seq": 3}'))["data"]), MAX_PAYLOAD_BYTES - 9_000, "bytes of a record")
    found = await js.error("DIRECT.GET.orders", '{"seq": 4}')
    s.expect(found, (400, 0, too_large[2]), "record that is too large with its headers")
    answer = await js.answer("DIRECT.GET.orders", '{"seq": 1}')
    s.expect(answer.pop("Nats-Msg-Id", "") != "", True, "message id")
    s.expect(answer.pop("Nats-Time-Stamp").startswith("2023-"), True, "time of the record")
    wanted = {"Nats-Stream": "orders", "Nats-Subject": "orders.x", "Nats-Sequence": "1", "kind": "new", "Lift-Key": "key-1"}
    s.expect(answer, {**wanted, "data": b"record"}, "headers and payload")
    message = (await js.answer("STREAM.MSG.GET.orders", '{"seq": 1}'))["message"]
    lines = base64.b64decode(message["hdrs"]).split(b"\r\n")
    s.expect((lines[0], lines[-2:]), (b"NATS/1.0", [b"", b""]), "begin and end of the headers")
    s.expect({line.partition(b":")[0] for line in lines[1:-2]}, {b"kind", b"Nats-Msg-Id", b"Lift-Key"}, "headers")
    s.expect((message["subject"], message["seq"]), ("orders.x", 1), "subject and sequence")
    s.expect(base64.b64decode(message["data"]), b"record", "data")
    plain = (await js.answer("STREAM.MSG.GET.orders", '{"seq": 2}'))["message"]
    s.expect(sorted(plain), ["seq", "subject", "time"], "fields of a record without value and headers")


@script()
async def script_jetstream_client_asks_for_a_stream_without_a_leader(s: Stage) -> None:
    """Given a stream whose only node is down, when a JetStream client asks for it, the answer comes in time and says why not."""
    await s.create("orders", replicas=1)
    await s.create("letters", replicas=3)
    for name in ("orders", "letters"):
        await s.publish(name, 2)
    away = s.leader("orders")
    js = _JetStream(s)
    s.world.nats.loses = lambda client, message: message.subject.startswith("liftpy.orders.0.")
    listed = await js.answer("STREAM.LIST")
    s.expect(([one["config"]["name"] for one in listed["streams"]], listed["missing"]), (["letters"], ["orders"]), "streams")
    since = len(s.messages)
    await asyncio.sleep(1.2)
    s.expect(s.subjects("liftpy.orders.0.", since), [], "requests for the state of a stream after the list")
    s.world.nats.loses = lambda client, message: False
    s[away].kill()
    await s.becomes(lambda: s.leader("letters") not in ("", away), what="another node leads letters")
    await asyncio.sleep(2)

    async def timed(request: str, body: str = "") -> tuple[float, dict[str, Any]]:
        began_s = s.now_s
        answer = await js.answer(request, body)
        return s.now_s - began_s, answer

    took_s, listed = await timed("STREAM.LIST")
    s.expect([one["config"]["name"] for one in listed["streams"]], ["letters"], "streams of the list")
    s.expect((listed["total"], listed["missing"]), (2, ["orders"]), "missing streams")
    s.expect(took_s < 3.5, True, f"the list comes within 3.5 s, it took {took_s:.2f} s")
    s.expect((await js.answer("STREAM.NAMES"))["streams"], ["letters", "orders"], "names")
    for request in ("STREAM.INFO.orders", "STREAM.MSG.GET.orders"):
        took_s, answer = await timed(request, '{"seq": 1}' if "MSG" in request else "")
        s.expect((answer["error"]["code"], answer["error"]["err_code"]), (503, 10008), f"codes of the error of {request}")
        hint = "say where to begin, or read with a consumer" if "MSG" in request else "retry"
        s.expect_in(f"unavailable: no answer within 4 s: {hint}", answer["error"]["description"], "error")
        s.expect(3.9 < took_s < 4.5, True, f"an error after 4 s, it took {took_s:.2f} s")
    took_s, answer = await timed("DIRECT.GET.orders", '{"seq": 1}')
    s.expect((answer["Status"], answer["Description"]), ("408", "Request Timeout"), "status of a direct get")
    s.expect(3.9 < took_s < 4.5, True, f"an answer after 4 s, it took {took_s:.2f} s")
    s.expect((await js.answer("DIRECT.GET.letters", '{"seq": 1}'))["data"], b"record-0", "record of the other stream")


@script()
async def script_jetstream_client_reads_a_stream_whose_oldest_records_are_deleted(s: Stage) -> None:
    """Given a stream without its oldest records, a JetStream client sees where it begins, and reads from there."""
    await s.create("letters", subject="letters.*", leader="n2")
    connection = s.client.transport.connection
    for number in range(6):
        await connection.request(f"letters.{number % 2}", b"record-%d" % number, timeout=3)
    await s.client.admin.truncate_before("letters", 0, 3)
    js = _JetStream(s)

    async def state() -> tuple[int, ...]:
        found = (await js.answer("STREAM.INFO.letters"))["state"]
        return found["messages"], found["first_seq"], found["last_seq"]

    await s.shows(state, (3, 4, 6), what="number of records, first and last sequence")

    async def first(body: str) -> tuple[int, bytes] | int:
        answer = await js.answer("STREAM.MSG.GET.letters", body)
        if "error" in answer:
            return int(answer["error"]["code"])
        return answer["message"]["seq"], base64.b64decode(answer["message"]["data"])

    for body, wanted in (
        ('{"seq": 1}', 404), ('{"seq": 3}', 404), ('{"seq": 4}', (4, b"record-3")), ('{"seq": 6}', (6, b"record-5")),
        ('{"seq": 1, "next_by_subj": "letters.0"}', (5, b"record-4")), ('{"last_by_subj": "letters.1"}', (6, b"record-5")),
        ('{"next_by_subj": "letters.1"}', (4, b"record-3")), ('{"start_time": "2001-01-01T00:00:00Z"}', (4, b"record-3")),
        ('{"last_by_subj": "letters.2"}', 404),
    ):  # fmt: skip
        s.expect(await first(body), wanted, f"record of {body}")
    for subjects, newest in (
        ('"letters.0", "letters.1"', [(5, b"record-4"), (6, b"record-5"), "204"]),
        ('"letters.1", "letters.2"', [(6, b"record-5"), "204"]),
        ('"letters.2"', ["404"]),
    ):
        s.expect(await js.batch("letters", f'{{"multi_last": [{subjects}]}}'), newest, f"newest records of {subjects}")
    s.expect(await js.batch("letters", '{"seq": 1, "batch": 2}'), [(4, b"record-3"), (5, b"record-4"), "204"], "batch")
    s.expect(await js.batch("letters", '{"multi_last": ["letters.*"], "up_to_seq": 2}'), ["404"], "deleted records")


@script()
async def script_retention_is_faster_than_a_jetstream_client(s: Stage) -> None:
    """Given records that are deleted after a node has asked where the log begins, it asks again, and the client gets the others.

    The script lets each request begin with an older answer. If records are deleted during a batch, it continues after them.
    """
    await s.create("letters", leader="n2")
    await s.publish("letters", 80, value=b"x" * 90_000)
    await s.client.admin.truncate_before("letters", 0, 3)
    bounds_now = Client.bounds
    older: list[int] = []

    async def bounds(self: Client, *args: Any, **options: Any) -> Bounds:
        found = await bounds_now(self, *args, **options)
        if self is s.client or not older:
            return found
        return replace(found, log_start_offset=older.pop())

    Client.bounds = bounds  # type: ignore[method-assign]
    js = _JetStream(s)
    older.append(0)
    state = (await js.answer("STREAM.INFO.letters"))["state"]
    s.expect((state["messages"], state["first_seq"], older), (77, 4, []), "number of records, and first sequence")
    older.append(0)
    message = (await js.answer("STREAM.MSG.GET.letters", '{"seq": 1, "next_by_subj": "letters.x"}'))["message"]
    s.expect((message["seq"], older), (4, []), "first record of a subject")
    older.append(0)
    found = await js.batch("letters", '{"seq": 2, "batch": 1}')
    s.expect(([one[0] for one in found[:-1]], found[-1], older), ([4], "204", []), "batch")
    deleting: list[asyncio.Task[Any]] = []

    befores: list[int] = []

    def delete(_: int, before: int) -> None:
        befores.append(before)
        if not deleting:
            deleting.append(asyncio.ensure_future(s.client.admin.truncate_before("letters", 0, 70)))

    found = await js.batch("letters", '{"seq": 4, "batch": 1000}', delete)
    sequences = [one[0] for one in found[:-1]]
    first = next((number for number in range(len(sequences)) if sequences[number] != number + 4), len(sequences))
    s.expect(sequences, [*range(4, first + 4), *range(71, 81)], "records of a batch during a deletion")
    s.expect(befores, [0, *sequences[:-1]], "sequence of the record before each record")
    s.expect((found[-1], 0 < first < 66), ("204", True), f"end of the batch, and {first} records before the deleted ones")
    s.expect(len(await s.read("letters")), 10, "records that remain")


@script(nodes=1, controllers=1)
async def script_jetstream_answers_have_a_limit_of_memory(s: Stage) -> None:
    """Given lower limits of memory, an answer ends at its limit. All answers together have another one."""
    jetstream_reads.MAX_BYTES, jetstream_reads.MAX_HELD_BYTES = 1_000, 2_000
    await s.create("letters", subject="letters.*")
    await s.create("orders")
    for number in range(9):
        connection = s.client.transport.connection
        await connection.request(f"letters.{number}", b"v" * 100, headers={"h": "x" * 90}, timeout=3)
        await s.client.publish("orders", b"v" * 100, key=b"k" * 90)
    js = _JetStream(s)
    (record,) = [one async for one in s.client.consume("letters", start=8, until="end")]
    s.expect((record.subject, record.headers), ("letters.8", (("h", b"x" * 90),)), "subject and headers of a record")
    size_bytes, most = 100 + 9 + 91, 5
    found = await js.batch("letters", '{"seq": 1, "batch": 9}')
    s.expect((len(found) - 1, found[-1]), (most, "204"), "records of a batch")
    (record,) = [one async for one in s.client.consume("orders", start=8, until="end")]
    headers_bytes = sum(len(name) + len(value) for name, value in record.headers)
    found = await js.batch("orders", '{"seq": 1, "batch": 9}')
    s.expect((len(found) - 1, found[-1]), (-(-1_000 // (190 + headers_bytes)), "204"), "records with keys of a batch")
    subjects = [f"letters.{number}" for number in range(most + 1)]
    s.expect(
        (await js.batch("letters", json.dumps({"multi_last": subjects})))[-1], "413", "status of an answer that is too large"
    )
    few = json.dumps({"multi_last": subjects[:-1]})
    for _ in range(8):
        found = await js.batch("letters", few)
        s.expect((len(found) - 1, found[-1]), (most, "204"), "newest records of some subjects")
    jetstream_reads.MAX_HELD_BYTES = size_bytes * most
    for _ in range(3):
        s.expect((await js.batch("letters", few))[-1], "204", "status of an answer at the limit of all answers")
    jetstream_reads.MAX_HELD_BYTES -= 1
    for _ in range(3):
        s.expect(await js.batch("letters", few), ["429"], "answer above the limit of all answers")
    jetstream_reads.MAX_HELD_BYTES += 1
    s.expect((await js.batch("letters", few))[-1], "204", "status of an answer at the limit of all answers")


@script()
async def script_node_stops_while_jetstream_clients_read(s: Stage) -> None:
    """Given a node that stops, it answers the requests of JetStream clients that it has. The other nodes answer all later ones."""
    await s.create("letters")
    await s.publish("letters", 1)
    js = _JetStream(s)
    answers: list[bytes] = []

    answered_s: dict[int, float] = {}
    """Number of a client -> time of its newest answer."""

    async def read(client: int) -> None:
        while True:
            answers.append((await js.answer("DIRECT.GET.letters", '{"seq": 1}'))["data"])
            answered_s[client] = s.now_s
            await asyncio.sleep(0.01 if s["n1"].wants_restart else 0.2)

    def subscribed() -> bool:
        clients = [client for server in s.world.nats.servers for client in server.clients.values()]
        return any(
            one.pattern == "$JS.hub.API.>" for client in clients if client.name.startswith("liftpy-n1-")
            for one in client.subscriptions.values()
        )  # fmt: skip

    reading = [asyncio.create_task(read(client)) for client in range(16)]
    await asyncio.sleep(0.3)
    node = s["n1"]
    s.expect(subscribed(), True, "n1 gets requests")
    node.wants_restart = False
    node.terminate()
    unsubscribed_s = 0.0
    while node.is_up:
        if not unsubscribed_s and not subscribed():
            unsubscribed_s = s.now_s
        await asyncio.sleep(0.001)
    took_s = s.now_s - unsubscribed_s
    s.expect(took_s > 0.008, True, f"n1 gets no requests during its last {took_s:.4f} s")
    s.expect(node.exits[-1], 0, "exit code")
    await asyncio.sleep(2.5)  # the other nodes repeat a read that was under way to the stopped node after 2 s
    late = [client for client, at_s in answered_s.items() if s.now_s - at_s > 1]
    s.expect(late, [], "clients without an answer since the stop of n1")
    await s.start("n1")
    for task in reading:
        s.expect(task.done(), False, "a request fails")
        task.cancel()
    wrong = [answer for answer in answers if answer != b"record-0"]
    s.expect((wrong, len(answers) > 100), ([], True), f"wrong answers, {len(answers)} answers")
