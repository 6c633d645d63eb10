"""``python -m tests.system.attacks [--rounds 40] [--elections 6]``: what users with a role try against a cluster, on real processes.

Three nodes, a service and NATS users run, each user with what ``liftpy permissions`` prints for its role. One more user, the auditor,
may hear everything: no attack uses it.

- A reader sends requests to JetStream's read API whose contents no handler expects: half surrogates, years 1 and 9999. A node must not
  end or restart, and must answer a whole request.
- A reader and a member send queries, reads and JetStream requests with reply subjects that are no inbox. No node and no service may
  publish there.
- A user with the role ``service`` for one service sends hellos under changing names, for its own stream and for another. Every transfer
  of the other stream's leadership, and a failover after a kill, must end with a leader.

Exit code 1 when one of them succeeds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from liftpy.client import Client, Credentials, connect
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2, service_pb2
from liftpy.core.wire.permissions import AccessRole, Scope, as_nats_conf, rights_of
from liftpy.core.wire.subjects import Subjects, jetstream_api
from liftpy.errors import LiftError
from liftpy.nats.parser import watch_denials
from liftpy.nats.transport import open_connection
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import NatsServer
from tests.examples.echo import TIMES
from tests.examples.processes import start_service

NS, STREAM, SUBJECT, OUT, DOMAIN = "acme", "orders", "shop.orders", "shop.out", "liftpy"
OTHER, OTHER_SUBJECT = "payments", "shop.payments"
"""The stream that the rogue service has no rights for."""
ECHO, ROGUE = "echo", "rogue"
MAX_LEADERLESS_S = 10.0
"""A promotion waits for the candidate's timeout at most once, and for half of it otherwise."""
_DEADLINE_S = 60.0
_HELLOS_PER_S = 400

SCOPES = {
    "node": (AccessRole.NODE, Scope(NS, data_subjects=("shop.>",), replies=("_INBOX_member",), jetstream=DOMAIN)),
    "publisher": (AccessRole.PUBLISHER, Scope(NS, data_subjects=(SUBJECT, OTHER_SUBJECT), inbox_prefix="_INBOX_publisher")),
    "reader": (
        AccessRole.READER,
        Scope(NS, streams=(STREAM,), inbox_prefix="_INBOX_reader", services=(ECHO, "groups"), jetstream=DOMAIN),
    ),
    "member": (AccessRole.MEMBER, Scope(NS, streams=(STREAM,), inbox_prefix="_INBOX_member")),
    "operator": (AccessRole.OPERATOR, Scope(NS, inbox_prefix="_INBOX_operator", principal="bob")),
    "service": (
        AccessRole.SERVICE,
        Scope(NS, streams=(STREAM, "out"), data_subjects=(OUT,), inbox_prefix="_INBOX_service", services=(ECHO,)),
    ),
    ROGUE: (AccessRole.SERVICE, Scope(NS, streams=(STREAM,), inbox_prefix="_INBOX_rogue", services=(ROGUE,))),
}
FOREIGN = (
    SUBJECT, "shop.other", OTHER_SUBJECT, f"{NS}.control.admin", f"{NS}.control.admin.bob", f"{NS}.control.level.n1",
    f"{NS}.raft.ghost.n2", f"{NS}.service.bank.query", f"{NS}-groups", "canary.a", "_INBOXX.a", "_INBOX",
)  # fmt: skip
"""Subjects on which nobody publishes while the attacks run."""
EVIL = (
    (f"STREAM.MSG.GET.{STREAM}", {"last_by_subj": "\ud800"}),
    (f"STREAM.MSG.GET.{STREAM}", {"next_by_subj": "a.\udfff", "seq": 1}),
    (f"STREAM.MSG.GET.{STREAM}", {"start_time": "9999-12-31T23:59:59Z"}),
    (f"STREAM.MSG.GET.{STREAM}", {"start_time": "0001-01-01T00:00:00+23:59"}),
    (f"STREAM.MSG.GET.{STREAM}", {"seq": 10**400}),
    ("STREAM.NAMES", {"subject": "\udfff"}),
    ("STREAM.LIST", {"offset": -(1 << 70)}),
    (f"DIRECT.GET.{STREAM}", {"multi_last": ["shop.>"], "up_to_time": "9999-12-31T23:59:59Z"}),
    (f"DIRECT.GET.{STREAM}", {"multi_last": ["\ud800"], "up_to_seq": 1 << 64}),
    (f"DIRECT.GET.{STREAM}", {"start_time": "0001-01-01T00:00:00Z", "batch": 1 << 40}),
)
"""Requests on JetStream's read API: a kind and its body."""


@dataclass
class Verdict:
    """What came of the attacks."""

    figures: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def check(self, *, holds: bool, what: str) -> None:
        """Note ``what`` as a figure, and as wrong where it does not hold."""
        (self.figures if holds else self.wrong).append(what)


def credentials(user: str) -> Credentials:
    """Of one of the users."""
    scope = SCOPES[user][1]
    return Credentials(user=user, password=f"{user}-secret", inbox_prefix=scope.inbox_prefix, principal=scope.principal)


def configuration() -> str:
    """Return the users of the nats-server, with the permissions of their roles."""
    users = [
        f"{{ user: {user}, password: {user}-secret, {as_nats_conf(rights_of(role, scope))} }}"
        for user, (role, scope) in SCOPES.items()
    ]
    users.append("{ user: auditor, password: auditor-secret }")
    return "authorization: { users: [\n" + "\n".join(users) + "\n] }\n"


class Attacks:
    """All of them, on a cluster with an echo service that run."""

    def __init__(self, cluster: DevCluster, rounds: int, elections: int) -> None:
        self._cluster, self._rounds, self._elections = cluster, rounds, elections
        self._subjects = Subjects(NS)
        self._pids = {name: node.pid for name, node in cluster.nodes.items()}
        self.verdict = Verdict()

    async def run(self) -> Verdict:
        """Return what came of them."""
        for attack in (self._odd_requests, self._foreign_replies, self._changing_names):
            try:
                await attack()
            except TimeoutError:
                self.verdict.check(holds=False, what=f"{attack.__name__}: no leader, or no answer, within {_DEADLINE_S:g} s")
            ended = self._cluster.ended_nodes()
            pids = {name: node.pid for name, node in self._cluster.nodes.items()}
            self.verdict.check(holds=not ended and pids == self._pids, what=f"after {attack.__name__}: nodes ended: {ended}")
        return self.verdict

    # ---- one request that ends a node --------------------------------------------------------------------------------
    async def _odd_requests(self) -> None:
        connection = await open_connection(self._cluster.nats_url, credentials=credentials("reader"))
        answers: Counter[str] = Counter()

        async def answered(message: object) -> None:
            answers[str(getattr(message, "subject", "")).rpartition(".")[2]] += 1

        await connection.subscribe("_INBOX_reader.evil.*", cb=answered)
        for number in range(self._rounds * len(EVIL)):
            kind, body = EVIL[number % len(EVIL)]
            await connection.publish(
                jetstream_api(DOMAIN, kind), json.dumps(body).encode(), reply=f"_INBOX_reader.evil.{number % len(EVIL)}"
            )
            if number % 10 == 9:
                await connection.flush()
        whole = b""
        async with asyncio.timeout(_DEADLINE_S):
            while b"shop.orders" not in whole:
                with contextlib.suppress(LiftError, TimeoutError):
                    question = jetstream_api(DOMAIN, f"STREAM.MSG.GET.{STREAM}")
                    whole = (await connection.request(question, b'{"seq":1}', timeout=5)).data
            while len(answers) < len(EVIL):
                await asyncio.sleep(0.05)
        await connection.close()
        self.verdict.check(
            holds=True, what=f"{self._rounds * len(EVIL)} odd JetStream requests, {answers.total()} answers, then a whole one"
        )

    # ---- a node that publishes for somebody ----------------------------------------------------------------------------
    async def _foreign_replies(self) -> None:
        auditor = await open_connection(
            self._cluster.nats_url, credentials=Credentials(user="auditor", password="auditor-secret")
        )
        forged: Counter[str] = Counter()

        async def heard(message: object) -> None:
            forged[str(getattr(message, "subject", ""))] += 1

        for subject in FOREIGN:
            await auditor.subscribe(subject, cb=heard)
        await auditor.flush()
        read = frames.seal(client_pb2.ReadRequest(offset=0, maxBytes=100, minHighWatermark=-1))
        requests = [
            ("reader", f"{NS}.service.{ECHO}.query", b"x" * 40),
            ("reader", f"{NS}.service.groups.query", b""),
            ("reader", f"{NS}.{STREAM}.0.read", read),
            ("reader", jetstream_api(DOMAIN, f"STREAM.MSG.GET.{STREAM}"), b'{"seq":1}'),
            ("reader", jetstream_api(DOMAIN, "INFO"), b""),
            ("reader", f"{NS}.info", b""),
            ("member", f"{NS}.service.groups.query", b""),
            ("member", f"{NS}-groups", b"\xff\xff"),
            ("service", f"{NS}.service.{ECHO}.snapshot.n1", b""),
        ] + [("reader", f"{NS}.{STREAM}.0.read.{node}", read) for node in self._cluster.nodes]
        users = sorted({user for user, _, _ in requests})
        connections = {user: await open_connection(self._cluster.nats_url, credentials=credentials(user)) for user in users}
        sent = 0
        for _ in range(self._rounds):
            for user, subject, payload in requests:
                for reply in FOREIGN:
                    await connections[user].publish(subject, payload, reply=reply)
                    sent += 1
            await asyncio.gather(*(connection.flush() for connection in connections.values()))
        async with (
            asyncio.timeout(_DEADLINE_S),
            await connect(self._cluster.nats_url, NS, credentials=credentials("reader")) as reader,
        ):
            echoed = (await reader.services.query(ECHO, b"", timeout_s=30)).value  # behind all forged ones, to an inbox
            assert [record.value async for record in reader.consume(STREAM, until="end")]
        await auditor.flush()
        await asyncio.gather(*(connection.close() for connection in (*connections.values(), auditor)))
        own = {f"{NS}-groups": sum(user == "member" and subject == f"{NS}-groups" for user, subject, _ in requests)}
        own = {subject: count * self._rounds * len(FOREIGN) for subject, count in own.items()}  # the attacker's own requests
        found = {subject: count - own.get(subject, 0) for subject, count in forged.items() if count > own.get(subject, 0)}
        self.verdict.check(
            holds=not found, what=f"{sent} requests with foreign reply subjects: {found or 'none'} was published"
        )
        self.verdict.check(holds=bool(echoed), what=f"a query with an inbox is answered: {echoed!r}")

    # ---- a service under changing names ------------------------------------------------------------------------------
    async def _changing_names(self) -> None:
        denied: Counter[str] = Counter()
        connection = await open_connection(self._cluster.nats_url, credentials=credentials(ROGUE))
        watch_denials(connection, lambda is_publish, subject: denied.update([subject]))
        ended = asyncio.Event()
        flood = asyncio.create_task(self._greet(connection, ended))
        slowest = {OTHER: 0.0, STREAM: 0.0}
        try:
            async with await connect(self._cluster.nats_url, NS, credentials=credentials("operator")) as operator:
                for number in range(self._elections):
                    for stream in slowest:
                        slowest[stream] = max(slowest[stream], await self._transfer(operator, stream, number))
                leader = (await operator.stream(OTHER)).partitions[0].leader
                node = self._cluster.nodes[leader]
                began = time.monotonic()
                await asyncio.to_thread(node.kill)
                lacking = [await self._led(operator, stream, leader) - began for stream in slowest]
                await asyncio.to_thread(node.start)
                await asyncio.to_thread(node.wait_ready)
                self._pids[leader] = node.pid
        finally:
            ended.set()
            greeted = await flood
            await connection.close()
        self.verdict.check(
            holds=greeted > 0, what=f"{greeted} hellos under changing names, {denied.total()} publishes denied by NATS"
        )
        for stream, took in slowest.items():
            self.verdict.check(
                holds=took < MAX_LEADERLESS_S, what=f"{self._elections} transfers of {stream}: the slowest took {took:.1f} s"
            )
        self.verdict.check(
            holds=max(lacking) < 2 * MAX_LEADERLESS_S, what=f"after a kill of {leader}: leaders after {max(lacking):.1f} s"
        )

    async def _greet(self, connection: object, ended: asyncio.Event) -> int:
        """Hellos that name what the rogue is not, each way that NATS and the nodes could take; how many."""
        publish = connection.publish  # type: ignore[attr-defined]
        sent, began = 0, time.monotonic()
        while not ended.is_set():
            name, instance = f"x{sent % 997}", secrets.randbits(60)
            node = f"n{sent % 3 + 1}"
            for stream, service in ((OTHER, name), (STREAM, name), (OTHER, ROGUE), (STREAM, ROGUE)):
                hello = service_pb2.ServiceHello(service=service, stream=stream, partition=0, instance=instance, first=True)
                payload = frames.seal(hello)
                for subject in (
                    self._subjects.service_session(node, STREAM, ROGUE),
                    self._subjects.service_session(node, stream, service),
                    self._subjects.service(node),
                ):
                    await publish(subject, payload, reply="_INBOX_rogue.1")
                    sent += 1
            await asyncio.sleep(max(0.0, began + sent / _HELLOS_PER_S - time.monotonic()))
        return sent

    async def _transfer(self, operator: Client, stream: str, number: int) -> float:
        """Move the leadership to another replica; how long nobody led, in seconds."""
        partition = (await operator.stream(stream)).partitions[0]
        others = sorted(set(partition.isr) - {partition.leader})
        if not others:
            return 0.0
        began = time.monotonic()
        await operator.admin.elect_leader(stream, 0, others[number % len(others)])
        return await self._led(operator, stream, partition.leader) - began

    async def _led(self, operator: Client, stream: str, before: str) -> float:
        """When another node than ``before`` takes publishes."""
        subject = SUBJECT if stream == STREAM else OTHER_SUBJECT
        async with (
            asyncio.timeout(_DEADLINE_S),
            await connect(self._cluster.nats_url, NS, credentials=credentials("publisher")) as client,
        ):
            while (await operator.stream(stream)).partitions[0].leader in ("", before):
                await asyncio.sleep(0.05)
            async with client.publisher(stream, subject=subject) as publisher:
                await publisher.publish(b"there is a leader")
        return time.monotonic()


async def _prepare(cluster: DevCluster) -> str:
    """Make the streams; return who leads the one that the echo service reads."""
    async with await connect(cluster.nats_url, NS, credentials=credentials("operator")) as operator:
        for name, subject in ((STREAM, SUBJECT), ("out", OUT), (OTHER, OTHER_SUBJECT)):
            await operator.create_stream(name, subject, ready_s=0)
        async with asyncio.timeout(_DEADLINE_S):
            for name in (STREAM, "out", OTHER):
                while not (await operator.stream(name)).partitions[0].leader:
                    await asyncio.sleep(0.1)
        async with (
            await connect(cluster.nats_url, NS, credentials=credentials("publisher")) as client,
            await client.publisher(STREAM, subject=SUBJECT) as publisher,
        ):
            await publisher.publish(b"one")
        return (await operator.stream(STREAM)).partitions[0].leader


async def _echoes(cluster: DevCluster) -> None:
    """Wait until the echo service has answered the first record."""
    async with asyncio.timeout(_DEADLINE_S), await connect(cluster.nats_url, NS, credentials=credentials("service")) as client:
        assert len([record async for record in client.consume("out", until=TIMES - 1)]) == TIMES


@contextlib.contextmanager
def _cluster() -> Iterator[DevCluster]:
    """Nodes under the role of nodes, and the echo service under that of services."""
    settings = {
        "LIFTPY_USER": "node",
        "LIFTPY_PASSWORD": "node-secret",
        "LIFTPY_JETSTREAM_API": DOMAIN,
        "LIFTPY_REPLICATION_GROUPS_PARTITIONS": "1",
    }
    with (
        NatsServer(config=configuration()) as server,
        DevCluster(3, nats_url=server.url, namespace=NS, settings=settings) as cluster,
        tempfile.TemporaryDirectory(prefix="liftpy-attacks-") as folder,
    ):
        leader = asyncio.run(_prepare(cluster))
        process = start_service(
            "tests.examples.echo:Echo",
            stream=STREAM,
            node=leader,
            data=Path(folder),
            output="out",
            snapshot_interval_records=100,
            nats_url=server.url,
            more=("--namespace", NS, "--user", "service", "--inbox-prefix", "_INBOX_service"),
            environment={"LIFTPY_PASSWORD": "service-secret"},
        )
        try:
            asyncio.run(_echoes(cluster))
            yield cluster
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def main() -> None:
    """Parse, attack, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="how often each request is sent")
    parser.add_argument("--elections", type=int, default=6, help="transfers of each stream's leadership while hellos arrive")
    given = parser.parse_args()
    logging.disable(logging.ERROR)  # each publish that NATS denies is one
    with _cluster() as cluster:
        verdict = asyncio.run(Attacks(cluster, given.rounds, given.elections).run())
    print("\n".join(verdict.figures))
    print("\n".join(f"WRONG: {text}" for text in verdict.wrong) or "VERDICT: PASSED: no attack succeeded")
    sys.exit(1 if verdict.wrong else 0)


if __name__ == "__main__":
    main()
