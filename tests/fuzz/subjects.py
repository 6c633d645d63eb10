"""``python -m tests.fuzz.subjects [--minutes 10] [--seed 1]``: odd requests on every subject that a node subscribes to, on real nodes.

Three nodes run, with JetStream's read API, the coordinators of groups and a stream with a publisher. Requests are whole and odd: JSON
with half surrogates, years 1 and 9999, numbers of 400 digits; frames of every class with extreme contents; overheard frames, spoiled.
Half of them name a reply subject that is no inbox.

Frames are forged on the subjects of the metadata group, the feed and the inboxes of nodes, too. With ``--roles`` the NATS server knows
users: requests are sent under each role but the nodes' own, and whole answers are forged into inboxes where a node waits.

What must hold: no node ends or restarts, the publisher goes on, no committed record changes, and no message leaves on a subject on
which nodes have nothing to say. A sniffer on ``>`` knows what was sent from here, and on which subjects nodes publish by themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from liftpy.client import Client, Credentials, connect
from liftpy.core.wire.permissions import AccessRole, Scope, as_nats_conf, rights_of
from liftpy.core.wire.subjects import DEFAULT_INBOX_PREFIXES, SERVER_CONNECTIONS, InboxRule, Subjects, jetstream_api
from liftpy.errors import LiftError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.connection import StrictConnection
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import NatsServer
from tests.fuzz.messages import Maker, Overheard, Said, command
from tests.fuzz.targets import Place, matches, targets

STREAM, DATA, DOMAIN, GROUP = "fuzz", "data.fuzz", "liftpy", "readers"
KEPT, KEPT_RECORDS = "kept", 100
"""A stream to which nothing is published after the start."""
PARTITIONS = 2
NODES = 3
NAMESPACE = "acme"
"""Of a cluster whose NATS server has users."""
SETTINGS = {"LIFTPY_JETSTREAM_API": DOMAIN, "LIFTPY_REPLICATION_GROUPS_PARTITIONS": "1"}
PER_S = 1500
_BLOCK = 25
_KEPT_OWN = 400_000
_DEADLINE_S = 120.0
_MAX_LINE = 3_000
_WHERE_HEARD = ("raft", "inbox", "feed", "notify")
"""Rows whose frames go to the very subject on which one was heard, where a node waits."""
_CHECK_INTERVAL_S = 2.0

JS_REQUESTS = (
    "INFO", "STREAM.NAMES", "STREAM.LIST", f"STREAM.INFO.{STREAM}", f"STREAM.MSG.GET.{STREAM}", f"STREAM.MSG.GET.{STREAM}:1",
    f"DIRECT.GET.{STREAM}", f"DIRECT.GET.{STREAM}.{DATA}", f"CONSUMER.NAMES.{STREAM}", f"CONSUMER.LIST.{STREAM}",
    f"CONSUMER.MSG.NEXT.{STREAM}.c",
    f"STREAM.PURGE.{STREAM}", "STREAM.CREATE.x", "STREAM.INFO.a:b:c", "STREAM.MSG.GET.-rf", "X",
)  # fmt: skip
FIELDS = {
    "jetstream": (
        "seq", "last_by_subj", "next_by_subj", "start_time", "batch", "max_bytes", "multi_last", "up_to_seq", "up_to_time", "offset",
        "subject", "subjects_filter", "deleted_details",
    ),
    "status": ("history", "partitions", "streams", "events", "metrics", "settings", "after", "glance"),
    "control_level": ("level", "for_s"),
    "control_settings": ("reload", "remove_data"),
    "control_events": ("after", "since_ns", "count"),
}  # fmt: skip
"""Fields of the rows whose requests are JSON."""
INNER = ("after", "step", "limit", "stream", "kept", "before", "since_ns", "until_ns", "kind", "count", "node", "principal")
ODD: tuple[Any, ...] = (
    "\ud800", "a.\udfff", "\ud83d\ude00", "", " ", ">",
    "*", f"{DATA}.>", DATA, "a..b", ".", "\x00", "\r\n", "x" * 2000, "é", None, True,
    False, 0, 1, -1, 2, 500, 1 << 31, 1 << 62, 1 << 63, 1 << 64, 10**400, -(10**30), 0.5, -0.0, 1e308, 1e-308,
    "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59.999999999-23:59", "0001-01-01T00:00:00+23:59",
    "1677-09-21T00:12:43Z", "2262-04-11T23:47:17Z", "2026-02-30T00:00:00Z", "2026-01-31T24:00:00Z", "1970-01-01T00:00:00Z", "debug",
    [], {}, [[]], [1, 2], [0, -1], [-1, "", -1], ["", 0], ["\ud800"], {"a": "\udc00"}, [DATA, "\udc00"], [1 << 70, 1], "NaN",
)  # fmt: skip


@dataclass
class Verdict:
    """What came of a run."""

    seed: int
    seconds: float = 0.0
    sent: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    """In the inboxes of the fuzz."""
    ended: list[str] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)
    forged: Counter[str] = field(default_factory=Counter)
    """Messages on subjects where nodes have nothing to say, by subject."""
    untouched: list[str] = field(default_factory=list)
    """Subscriptions of nodes to which nothing was sent."""
    published: int = 0
    denied: dict[str, int] = field(default_factory=dict)
    """Requests that the NATS server did not let through, by role."""
    problems: list[str] = field(default_factory=list)
    failed_requests: dict[str, int] = field(default_factory=dict)
    """Requests whose handler raised what nobody expected: the node rejected them and went on."""
    refused: dict[str, int] = field(default_factory=dict)

    def wrong(self) -> list[str]:
        """What must not be; empty: all is well."""
        checks = {
            f"nodes ended: {self.ended}": self.ended,
            f"nodes restarted: {self.restarted}": self.restarted,
            f"messages left outside the inboxes: {dict(self.forged)}": self.forged,
            f"subscriptions without a request: {self.untouched}": self.untouched,
            f"{self.problems}": self.problems,
            "no request was answered": not self.answers,
            "nothing was published": not self.published,
        }
        return [text for text, is_wrong in checks.items() if is_wrong]

    def text(self) -> str:
        """For people."""
        return (
            f"seed {self.seed}: {self.sent.total()} requests in {self.seconds:.0f} s on {len(self.sent)} kinds of subjects, "
            f"{self.answers} answers, {self.published} records published beside them\n"
            f"  sent: {dict(self.sent)}\n  refused: {self.refused}\n"
            f"  denied by NATS: {self.denied or 'nothing'}\n"
            f"  failed requests (rejected, the node went on): {self.failed_requests or 'none'}"
        )


TEXTS = tuple(value for value in ODD if isinstance(value, str) and "T" not in value)
TIMES = tuple(value for value in ODD if isinstance(value, str) and "T" in value)


def js_request(rng: random.Random) -> dict[str, Any]:
    """A request for records that JetStream's read API looks at to its end: one odd value in the right place."""
    text, at = rng.choice(TEXTS), rng.choice(TIMES)
    return rng.choice(
        (
            {"last_by_subj": text}, {"next_by_subj": text, "seq": 1}, {"start_time": at}, {"start_time": at, "next_by_subj": DATA},
            {"start_time": at, "batch": 3}, {"multi_last": [text]}, {"multi_last": [DATA], "up_to_time": at}, {"subject": text},
            {"multi_last": [f"{DATA}.>", text], "up_to_seq": rng.choice((1, 1 << 40))}, {"seq": rng.choice((1, 1 << 61, 1 << 64))},
        )
    )  # fmt: skip


def odd(rng: random.Random, depth: int = 0) -> Any:
    """A value that JSON has, and few expect."""
    draw = rng.random()
    if depth < 3 and draw < 0.08:
        return [odd(rng, depth + 1) for _ in range(rng.randrange(4))]
    if depth < 3 and draw < 0.16:
        return {rng.choice((*INNER, "\ud800")): odd(rng, depth + 1) for _ in range(rng.randrange(4))}
    return rng.choice(ODD)


def odd_json(rng: random.Random, row: str) -> bytes:
    """A request of a row whose requests are JSON."""
    names = FIELDS[row]
    if row == "jetstream" and rng.random() < 0.6:
        return json.dumps(js_request(rng)).encode()
    if row in ("status", "control_settings") and rng.random() < 0.6:
        name = rng.choice(names)
        said: Any = {name: odd(rng) if rng.random() < 0.3 else {key: odd(rng) for key in rng.sample(INNER, rng.randrange(5))}}
    else:
        said = {name: odd(rng) for name in rng.sample(names, rng.randrange(1, min(4, len(names)) + 1))}
    text = json.dumps(said).encode()
    return text[: rng.randrange(len(text) + 1)] if rng.random() < 0.03 else b"[" * 5000 if rng.random() < 0.002 else text


ALL, NODE_USER = "all", AccessRole.NODE.value
"""Users who may do everything, and who run the nodes."""


def configuration(namespace: str) -> str:
    """Of a nats-server with a user for each role. The password of each is its name."""
    scopes = {
        AccessRole.NODE: Scope(namespace, data_subjects=(DATA, f"{DATA}.>", KEPT), replies=("_INBOX",), jetstream=DOMAIN),
        AccessRole.PUBLISHER: Scope(namespace, data_subjects=(DATA, f"{DATA}.>"), inbox_prefix="_INBOX_publisher"),
        AccessRole.READER: Scope(namespace, streams=(STREAM,), inbox_prefix="_INBOX_reader", jetstream=DOMAIN),
        AccessRole.OPERATOR: Scope(namespace, inbox_prefix="_INBOX_operator", principal="mallory"),
        AccessRole.MEMBER: Scope(namespace, streams=(STREAM,), inbox_prefix="_INBOX_member"),
        AccessRole.STATUS: Scope(namespace, inbox_prefix="_INBOX_status"),
        AccessRole.SERVICE: Scope(namespace, streams=(STREAM,), inbox_prefix="_INBOX_service", services=("bank",)),
    }
    users = [f"{{ user: {r.value}, password: {r.value}, {as_nats_conf(rights_of(r, s))} }}" for r, s in scopes.items()]
    return "authorization: { users: [\n" + "\n".join([f"{{ user: {ALL}, password: {ALL} }}", *users]) + "\n] }\n"


class Fuzz:
    """One run on a cluster that is up. The run ends after ``seconds`` or after ``requests``, whichever is not 0.

    ``port``: of a NATS server with the users of ``configuration``; 0: the cluster has one that lets everybody do everything.
    """

    def __init__(
        self, cluster: DevCluster, seed: int, *, seconds: float = 0.0, requests: int = 0, per_s: int = PER_S, port: int = 0
    ) -> None:
        self._cluster, self._seconds, self._requests, self._per_s = cluster, seconds, requests, per_s
        self._port = port
        self._login = {"user": ALL, "password": ALL} if port else {}
        self._acked: list[tuple[int, int, bytes]] = []
        """Partition, offset and value of each record that the publisher here got an ack for."""
        self._rng = random.Random(seed)
        self._subjects = Subjects(cluster.namespace)
        self._place = Place(self._subjects, tuple(cluster.nodes), STREAM, DATA, PARTITIONS)
        self._heard = Overheard()
        self._own: dict[int, None] = {}
        """Hashes of what was sent from here, the newest last."""
        self._inboxes = InboxRule((*DEFAULT_INBOX_PREFIXES, self._subjects.inboxes()))
        self._ended = asyncio.Event()
        self.out = Verdict(seed)
        ns = cluster.namespace
        self._spoken = (
            f"{ns}.*.*.replicate", f"{ns}.*.*.offset", f"{ns}.*.*.read", f"{ns}.*.*.read.*", f"{ns}.notify.*", f"{ns}.info",
            f"{ns}.control.node.*", f"{ns}.events.*", f"{ns}.feed", f"{ns}.feed.snapshot", f"{ns}.raft.*.*", f"{ns}.service.*",
            f"{ns}.status.*", f"{ns}.inbox.*.>", f"{ns}-groups", f"{ns}-groups.*", f"{ns}-events", f"{ns}.service.groups.snapshot.*",
            SERVER_CONNECTIONS,
        )  # fmt: skip
        """On which nodes, and our own client, publish by themselves."""
        self._forged = (
            "canary", "canary.a.b", "_INBOXX.a", "_INBOX", f"{DATA}", f"{DATA}.1", f"{ns}.control.admin", f"{ns}.control.admin.bob",
            f"{ns}.control.level.n1", f"{ns}.control.settings.n1", f"{ns}.control.events.n1", f"{ns}.inboxes.n1.x", "orders",
            f"$JS.{DOMAIN}.API.INFO", "_INBOX_", f"{ns}.service.bank.query", "$KV.x.y", "_inbox.a",
        )  # fmt: skip

    async def run(self) -> Verdict:
        """Send the requests, then check the cluster."""
        out = self.out
        who = Credentials(**self._login) if self._login else None
        async with await connect(self._cluster.nats_url, self._cluster.namespace, credentials=who) as client:
            await client.create_stream(STREAM, DATA, partitions=PARTITIONS)
            await client.create_stream(KEPT, KEPT)
            for number in range(KEPT_RECORDS):
                await client.publish(KEPT, b"kept %d" % number)
            sniffer = StrictConnection(Counter())  # nats-py's own would not stand what is said here
            await sniffer.connect(self._cluster.nats_url, **self._login)
            await self._led(client)
            await sniffer.subscribe(">", cb=self._overhear)
            tasks = [asyncio.create_task(self._publish(client)), asyncio.create_task(self._consume(client))]
            try:
                async with asyncio.timeout(_DEADLINE_S):
                    while out.published < 50 or not self._heard.of("groups"):
                        await asyncio.sleep(0.05)
                before = await self._starts(client)
                began = time.monotonic()
                rows = self._rows()
                await self._send(rows, sniffer)
                out.seconds = time.monotonic() - began
                out.untouched = await self._untouched(sniffer, rows)
                if not self._cluster.ended_nodes():
                    await self._works(client)
                    after = await self._starts(client)
                    out.restarted = [name for name in before if before[name] != after.get(name)]
                out.ended = self._cluster.ended_nodes()
            except TimeoutError:
                heard = {row: len(self._heard.of(row)) for row in self._heard.by_row}
                out.problems.append(f"too slow: {out.published} published, heard {heard}")
                out.ended = self._cluster.ended_nodes()
            finally:
                self._ended.set()
                await end_tasks(tasks)
                await sniffer.close()
        return out

    # ---- requests ----------------------------------------------------------------------------------------------------
    def _rows(self) -> list[tuple[str, str]]:
        found = [(row, subject) for row, subjects in targets(self._place).items() for subject in subjects]
        ns, nodes = self._cluster.namespace, self._place.nodes
        found += [
            ("groups", f"{ns}-groups"),
            ("service_query", f"{ns}.service.groups.query"),
            ("events_stream", f"{ns}-events"),
        ]
        found += [("service_snapshot", f"{ns}.service.groups.snapshot.{node}") for node in nodes]
        found += [("jetstream", jetstream_api(DOMAIN, rest)) for rest in JS_REQUESTS]
        for stream in ("_groups", "_events", KEPT):
            found += [
                (row, f"{ns}.{stream}.0.{end}")
                for row, end in (("read", "read"), ("offset", "offset"), ("replicate", "replicate"))
            ]
            found += [("read_from", f"{ns}.{stream}.0.read.{node}") for node in nodes]
        return list(dict.fromkeys(found))

    async def _send(self, rows: list[tuple[str, str]], sniffer: Any) -> None:
        maker = Maker(self._rng, self._place, self._heard, sniffer.max_payload)
        maker.forges_answers = bool(self._port)
        roles = [role.value for role in AccessRole if role is not AccessRole.NODE] if self._port else []
        links = {role: Link(self._port, user=role, **{"pass": role}) for role in roles} or {"": Link(self._nats_port())}
        began = time.monotonic()
        number, look_at = 0, began

        def has_more() -> bool:
            return number < self._requests if self._requests else time.monotonic() < began + self._seconds

        while has_more() and not self._cluster.ended_nodes():
            if time.monotonic() >= look_at:  # inboxes of coordinators come and go
                look_at = time.monotonic() + _CHECK_INTERVAL_S
                inboxes = [subject for subject in await self._listened(sniffer) if subject.startswith("_INBOX_")]
                found = [("inbox of coordinators", subject.replace("*", "17")) for subject in sorted(inboxes)]
                rows += [row for row in found if row not in rows]
            block = []
            for _ in range(_BLOCK):
                block.append(self._request(maker, *rows[number % len(rows)], number))
                number += 1
            await asyncio.wait_for(self._rng.choice(list(links.values())).send(block), _DEADLINE_S)
            await asyncio.sleep(max(0.0, began + number / self._per_s - time.monotonic()))
        for role, link in links.items():
            self.out.denied |= {role: link.denied} if link.denied else {}
            await link.close()

    def _nats_port(self) -> int:
        assert self._cluster.nats is not None
        return self._cluster.nats.port

    def _request(self, maker: Maker, row: str, subject: str, number: int) -> bytes:
        rng = self._rng
        self.out.sent[row] += 1
        reply = rng.choice(self._forged) if rng.random() < 0.5 else f"_INBOX.fuzz.{number}"
        if row in FIELDS and rng.random() < 0.8:
            payload = odd_json(rng, row)
            self._sent(subject, payload)
            return command(subject, reply, b"", payload)
        made = maker.frame(row, subject)
        line, _, rest = made.partition(b"\r\n")
        words = line.split()
        if words[0] == b"PUB":
            payload, where = rest[:-2], words[1].decode("utf-8", "surrogateescape")
            self._sent(where, payload)
            if rng.random() < 0.7 and len(where) < _MAX_LINE:
                subject = where if row in _WHERE_HEARD else subject
                self._sent(subject, payload)
                return command(subject, reply, b"", payload)
        else:
            size = int(words[-2])
            self._sent(words[1].decode("utf-8", "surrogateescape"), rest[size:-2])
        return made

    def _sent(self, subject: str, payload: bytes) -> None:
        key = hash((subject, payload))
        self._own.pop(key, None)  # what is sent again is young again: its echo is still to come
        self._own[key] = None
        if len(self._own) > _KEPT_OWN:
            del self._own[next(iter(self._own))]

    # ---- the sniffer -------------------------------------------------------------------------------------------------
    async def _overhear(self, message: Any) -> None:
        subject = message.subject
        if subject.startswith("_INBOX.fuzz."):
            self.out.answers += 1
            return
        row = self._row(subject)
        if hash((subject, message.data)) in self._own:
            return
        if row:
            self._heard.hear(row, Said(subject, message.reply, message.data))
        if subject.startswith(DATA):
            if not message.reply:  # the publisher here asks for an ack, and no answer of a node has a reply subject
                self.out.forged[subject] += 1
        elif not (any(matches(pattern, subject) for pattern in self._spoken) or self._inboxes.allows(subject.encode())):
            self.out.forged[subject] += 1

    def _row(self, subject: str) -> str:
        ns = self._cluster.namespace
        if subject == f"{ns}-groups":
            return "groups"
        if subject.startswith(DATA):
            return "data_subject"
        match subject.split(".")[1:]:
            case [_, _, ("replicate" | "offset" | "read") as kind]:
                return str(kind)
            case [_, _, "read", _]:
                return "read_from"
            case ["feed", "snapshot"]:
                return "feed_snapshot"
            case ["control", door, *_]:
                return f"control_{door}"
            case [("info" | "notify" | "raft" | "feed" | "inbox" | "status" | "service") as first, *_] if subject.startswith(
                f"{ns}."
            ):
                return str(first)
        return ""

    async def _listened(self, connection: Any) -> set[str]:
        """What nodes listen to, as nats-server says."""
        question = json.dumps({"subscriptions": True, "limit": 1024}).encode()
        answer = json.loads((await connection.request(SERVER_CONNECTIONS, question, timeout=10)).data)["data"]
        return {
            subject
            for each in answer["connections"]
            if str(each.get("name", "")).startswith(("liftpy-n", "liftpy n"))
            for subject in each.get("subscriptions_list", ())
        }

    async def _untouched(self, connection: Any, rows: list[tuple[str, str]]) -> list[str]:
        """What nodes listen to, and nothing was sent to."""
        listened = await self._listened(connection)
        known = [subject for _, subject in rows]
        inbox = (
            *(f"{subject}." for row, subject in rows if row == "inbox"),
            "_INBOX_liftpy-jetstream.",
            "_INBOX_liftpy-groups.",
        )  # they come and go
        known.append(KEPT)  # what is published there is stored: its records are to stay as they are
        return sorted(p for p in listened if not p.startswith(inbox) and not any(matches(p, subject) for subject in known))

    # ---- the load, and the look at the end ---------------------------------------------------------------------------
    async def _publish(self, client: Client) -> None:
        while not self._ended.is_set():
            try:
                value = b"own %d" % self.out.published
                ack = await client.publish(STREAM, value)
                self._acked.append((ack.partition, ack.offset, value))
                self.out.published += 1
            except (LiftError, TimeoutError):
                await asyncio.sleep(0.1)

    async def _consume(self, client: Client) -> None:
        """A member of a group, so that its coordinator has something to do."""
        while not self._ended.is_set():
            try:
                async with client.group(GROUP, [STREAM]) as group:
                    async for _ in group.batches():
                        pass
            except (LiftError, TimeoutError):
                await asyncio.sleep(0.2)

    async def _led(self, client: Client) -> None:
        async with asyncio.timeout(_DEADLINE_S):
            while True:
                stream = await client.stream(STREAM)
                if all(part.leader and len(part.isr) == NODES for part in stream.partitions):
                    return
                await asyncio.sleep(0.1)

    async def _reports(self, client: Client) -> list[dict[str, Any]]:
        found = await asyncio.gather(
            *(client.admin.node_status(node, 10.0) for node in self._cluster.nodes), return_exceptions=True
        )
        return [report for report in found if isinstance(report, dict)]

    async def _starts(self, client: Client) -> dict[str, int]:
        async with asyncio.timeout(_DEADLINE_S):
            while len(found := {report["node"]: report["incarnation"] for report in await self._reports(client)}) < NODES:
                await asyncio.sleep(0.2)
        return found

    async def _unchanged(self, client: Client) -> None:
        """Each record that was acknowledged is where it was."""
        kept = [record.value async for record in client.consume(KEPT, start="earliest", until="end")]
        assert kept == [b"kept %d" % number for number in range(KEPT_RECORDS)], (
            "records of the stream that nothing was sent to changed"
        )
        acked = list(self._acked)
        for partition in range(PARTITIONS):
            found = {r.offset: r.value async for r in client.consume(STREAM, partition, start="earliest", until="end")}
            changed = [(at, value) for part, at, value in acked if part == partition and found.get(at) != value]
            assert not changed, f"acknowledged records changed in partition {partition}: {changed[:5]}"

    async def _works(self, client: Client) -> None:
        """Everybody answers as before."""
        try:
            async with asyncio.timeout(_DEADLINE_S):
                before = self.out.published
                while self.out.published < before + 20:
                    await asyncio.sleep(0.05)
                question = jetstream_api(DOMAIN, "INFO")
                self._sent(question, b"")  # or the sniffer takes it for a forged message
                answer = await client.transport.request(question, b"", 10.0)
                assert json.loads(answer)["streams"] >= PARTITIONS
                await client.admin.describe_cluster()
            async with asyncio.timeout(_DEADLINE_S):
                await self._unchanged(client)
        except (LiftError, TimeoutError, AssertionError) as error:
            self.out.problems.append(f"the cluster does not answer as before: {error!r}")
        failed, refused = Counter[str](), Counter[str]()
        for report in await self._reports(client):
            for reason, count in report["refused"].items():
                (failed if "failed request" in reason else refused)[reason] += count
        self.out.failed_requests, self.out.refused = dict(failed), dict(refused)


class Link:
    """A raw connection to a NATS server. It reconnects when the server closes it. ``login``: more fields of its CONNECT."""

    def __init__(self, port: int, **login: str) -> None:
        self._port = port
        self._hello = json.dumps({"verbose": False, "headers": True, "no_responders": True, "name": "fuzz", **login}).encode()
        self.denied = 0
        """Publishes that its user has no permission for."""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.cut_off: Counter[str] = Counter()

    async def send(self, commands: list[bytes]) -> None:
        """Return when the server has taken the commands, or has closed the connection."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
            self._streams[1].write(b"CONNECT %b\r\n" % self._hello)
        reader, writer = self._streams
        why = "reset"
        try:
            for each in commands:
                writer.write(each)
            writer.write(b"PING\r\n")
            await writer.drain()
            while (line := await reader.readline()) != b"PONG\r\n":
                if not line:
                    raise ConnectionError
                if line.startswith(b"-ERR 'Permissions Violation"):
                    self.denied += 1
                elif line.startswith(b"-ERR"):
                    why = line.decode().strip()
        except ConnectionError:
            self.cut_off[why] += 1
            await self.close()

    async def close(self) -> None:
        """Close it."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def fuzz_subjects(seconds: float, seed: int, per_s: int = PER_S, *, verbose: bool = False, roles: bool = False) -> Verdict:
    """Run on a cluster of its own. ``roles``: on a NATS server with a user for each role."""

    def show(node: str, line: str) -> None:
        if verbose or "CRITICAL" in line or "request failed" in line or "Error" in line:
            print(f"{node} | {line}"[:400], file=sys.stderr, flush=True)

    with ExitStack() as stack:
        more: dict[str, Any] = {"settings": SETTINGS}
        port = 0
        if roles:
            server = stack.enter_context(NatsServer(config=configuration(NAMESPACE)))
            port = server.port
            login = {"LIFTPY_USER": NODE_USER, "LIFTPY_PASSWORD": NODE_USER}
            more = {"settings": SETTINGS | login, "nats_url": server.url, "namespace": NAMESPACE}
        cluster = stack.enter_context(DevCluster(NODES, on_line=show, **more))
        run = Fuzz(cluster, seed, seconds=seconds, per_s=per_s, port=port)
        try:
            return asyncio.run(run.run())
        except (TimeoutError, LiftError) as error:
            run.out.problems.append(repr(error))
            run.out.ended = cluster.ended_nodes()
            return run.out


def main() -> None:
    """Parse, run, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-s", type=int, default=PER_S, help="requests in a second at most")
    parser.add_argument("--roles", action="store_true", help="send under each role, on a NATS server with users")
    parser.add_argument("--verbose", action="store_true", help="print what the nodes log")
    given = parser.parse_args()
    verdict = fuzz_subjects(given.minutes * 60, given.seed, given.per_s, verbose=given.verbose, roles=given.roles)
    print(verdict.text())
    wrong = verdict.wrong()
    print(
        "\n".join(f"WRONG: {text}" for text in wrong)
        or "VERDICT: PASSED: no node ended, no committed record changed, and nothing left outside the inbox rule"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
