"""A cluster on a nats-server whose users have the rights of their roles, as ``liftpy permissions`` prints them: what each has to do
works, and each subject that it must not reach is denied."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

from liftpy.client import Client, connect
from liftpy.core.wire.permissions import USES, AccessRole, as_nats_conf, rights_of
from liftpy.core.wire.subjects import JETSTREAM_INBOX
from liftpy.errors import NotAllowedError, UnavailableError
from liftpy.nats.parser import watch_denials
from liftpy.nats.transport import open_connection
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import NatsServer
from tests import fork_server
from tests.examples.echo import TIMES
from tests.examples.processes import start_service
from tests.integration.conftest import show
from tests.integration.roles import ADMINISTRATOR_SCOPE, NS, OUT, SCOPES, STREAM, SUBJECT, configuration, credentials

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with NatsServer(config=configuration()) as server:
        user = {"LIFTPY_USER": "node", "LIFTPY_PASSWORD": "node-secret"}
        with DevCluster(3, nats_url=server.url, namespace=NS, settings=user, on_line=show) as running:
            asyncio.run(make_streams(running))
            yield running


async def make_streams(cluster: DevCluster) -> None:
    async with await as_role(cluster, AccessRole.OPERATOR) as operator:
        await operator.create_stream(STREAM, SUBJECT, ready_s=0)
        await operator.create_stream("out", OUT, ready_s=0)


async def as_role(cluster: DevCluster, role: AccessRole) -> Client:
    return await connect(cluster.nats_url, NS, credentials=credentials(role))


def liftpy(cluster: DevCluster, role: AccessRole | str, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    scope = SCOPES[role] if isinstance(role, AccessRole) else ADMINISTRATOR_SCOPE
    user = role.value if isinstance(role, AccessRole) else role
    flags = ["--nats", cluster.nats_url, "--namespace", NS, "--user", user, "--inbox-prefix", scope.inbox_prefix]
    flags += ["--principal", scope.principal] if scope.principal else []
    return fork_server.run(
        [sys.executable, "-c", _MAIN, *words, *flags],
        input=text,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"LIFTPY_PASSWORD": f"{user}-secret", "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "PATH": "/bin"},
    )


_MAIN = "from sidecar.cli.main import main; main()"


async def test_role_permissions_allow_each_operation_of_the_role(cluster: DevCluster, tmp_path: Path) -> None:
    plain = await nats.connect(
        cluster.nats_url, user="publisher", password="publisher-secret", inbox_prefix=b"_INBOX_publisher"
    )
    async with asyncio.timeout(60):
        while True:
            try:
                answer = json.loads((await plain.request(SUBJECT, b"plain", timeout=2)).data)
                break
            except nats.errors.NoRespondersError:
                await asyncio.sleep(0.05)
        assert (answer["stream"], answer["seq"]) == (STREAM, 1)
        async with await as_role(cluster, AccessRole.PUBLISHER) as client, await client.publisher(STREAM, subject=SUBJECT) as p:
            ack = await p.publish(b"ours")
            assert ack is not None
            assert ack.offset == 1
        async with await as_role(cluster, AccessRole.READER) as reader:
            values = [record.value async for record in reader.consume(STREAM, until="end")]
            assert values == [b"plain", b"ours"]
            assert (await reader.bounds(STREAM)).end_offset == 2
            assert (await reader.stream(STREAM)).subject == SUBJECT
        await _a_service_works(cluster, tmp_path)
        async with await as_role(cluster, AccessRole.STATUS) as status:
            for node in cluster.nodes:
                report = await status.admin.node_status(node)
                assert "permission_denied" not in report["counters"], "a node was denied something"
                assert not [kind for kind in report["nats"]["errors"] if "rights" in kind]
    assert not [
        line for node in cluster.nodes.values() for line in node.log if "does not let" in line or "lets everybody" in line
    ]
    await plain.close()


async def _a_service_works(cluster: DevCluster, folder: Path) -> None:
    """As its users start it."""
    async with await as_role(cluster, AccessRole.OPERATOR) as operator:
        leader = (await operator.stream(STREAM)).partitions[0].leader
    scope = SCOPES[AccessRole.SERVICE]
    process = start_service(
        "tests.examples.echo:Echo",
        stream=STREAM,
        node=leader,
        data=folder,
        output="out",
        snapshot_interval_records=100,
        nats_url=cluster.nats_url,
        more=("--namespace", NS, "--user", "service", "--inbox-prefix", scope.inbox_prefix),
        environment={"LIFTPY_PASSWORD": "service-secret"},
    )
    try:
        async with await connect(cluster.nats_url, NS, credentials=credentials(AccessRole.SERVICE)) as reader:
            said = [record.value async for record in reader.consume("out", until=2 * TIMES - 1)]
        assert said == [b"%d of record %d" % (number, record) for record in range(2) for number in range(TIMES)]
        async with await connect(cluster.nats_url, NS, credentials=credentials(AccessRole.READER)) as reader:
            assert (await reader.services.query("echo", b"", timeout_s=30)).value == b"2"
            with pytest.raises(NotAllowedError):
                await reader.services.query("bank", b"", timeout_s=30)
    finally:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0, (folder / f"{leader}.log").read_text()
    assert "does not let" not in (folder / f"{leader}.log").read_text()


def test_cli_commands_succeed_with_the_permissions_of_their_role(cluster: DevCluster) -> None:
    made = liftpy(cluster, AccessRole.OPERATOR, "stream", "create", "more", "--subject", "shop.more")
    assert made.returncode == 0, made.stderr
    shown = liftpy(cluster, AccessRole.STATUS, "status", "--json")
    assert shown.returncode == 0, shown.stderr
    assert all(node["answers"] for node in json.loads(shown.stdout)["nodes"])
    read = liftpy(cluster, AccessRole.READER, "consume", STREAM, "--until", "end", "--json")
    assert read.returncode == 0, read.stderr
    assert liftpy(cluster, AccessRole.OPERATOR, "stream", "delete", "more", "--yes").returncode == 0


@pytest.mark.parametrize(
    ("role", "words"),
    [
        (AccessRole.READER, ("stream", "create", "mine", "--subject", "shop.mine")),
        (AccessRole.STATUS, ("stream", "delete", STREAM, "--yes")),
        (AccessRole.PUBLISHER, ("status",)),
        (AccessRole.STATUS, ("consume", STREAM, "--until", "end")),
        (AccessRole.READER, ("publish", STREAM)),
        (AccessRole.STATUS, ("partition", "transfer", STREAM)),
        (AccessRole.PUBLISHER, ("controllers",)),
    ],
)
def test_cli_command_without_permission_fails_with_the_denied_subject(
    cluster: DevCluster, role: AccessRole, words: tuple[str, ...]
) -> None:
    done = liftpy(cluster, role, *words, text="a line\n")
    assert done.returncode == 1, (done.stdout, done.stderr)
    subject = SUBJECT if words[0] == "publish" else "acme."
    assert f"The NATS permissions of this user do not allow it to publish on {subject}" in done.stderr
    assert "`liftpy permissions" in done.stderr


async def test_client_without_permission_raises_not_allowed_error_within_a_second(cluster: DevCluster) -> None:
    async with await as_role(cluster, AccessRole.PUBLISHER) as client, asyncio.timeout(1):
        for work in (
            client.admin.list_streams(),
            client.bounds(STREAM),
            client.admin.node_status("n1"),
            client.admin.delete_stream(STREAM),
        ):
            with pytest.raises(NotAllowedError, match="do not allow"):
                await work
        with pytest.raises(NotAllowedError):
            _ = [record async for record in client.consume(STREAM)]
    async with await as_role(cluster, AccessRole.READER) as client, asyncio.timeout(1):
        with pytest.raises(NotAllowedError, match=f"publish on {SUBJECT}"):
            await client.publish(STREAM, b"x")
        with pytest.raises(NotAllowedError, match=r"publish on acme\.control\.admin"):
            await client.create_stream("mine", "shop.mine")


async def test_group_member_role_permissions_allow_commits_and_queue_acks(cluster: DevCluster) -> None:
    """With the coordinator in nodes that have their role and no more; it answers under the member's own inboxes."""
    async with asyncio.timeout(60), await as_role(cluster, AccessRole.MEMBER) as client:
        async with (
            await as_role(cluster, AccessRole.PUBLISHER) as publisher,
            await publisher.publisher(STREAM, subject=SUBJECT) as p,
        ):
            await p.publish(b"for a member")
        async with client.group("crew", [STREAM]) as group:
            async for part in group.batches():
                assert part.key.stream == STREAM
                await group.commit()
                break
        async with client.queue(STREAM, "workers") as queue:
            jobs = await queue.take(1, timeout_s=30)
            await queue.ack(jobs)
        assert len(jobs) == 1


async def test_backup_by_a_reader_that_may_ask_for_the_groups_has_their_positions(cluster: DevCluster, tmp_path: Path) -> None:
    """The reader of the page on backups lacked the service, so backups failed from the first group on."""
    async with asyncio.timeout(60), await as_role(cluster, AccessRole.MEMBER) as client:
        stream = await client.stream(STREAM)
        while True:
            try:
                await client.cursors.set("nightly", {stream.key(0): 0})
                break
            except UnavailableError:  # the coordinator is starting
                await asyncio.sleep(0.1)
    words = ("backup", "create", str(tmp_path), "--stream", STREAM)
    created = await asyncio.to_thread(liftpy, cluster, AccessRole.READER, *words, "--json")
    assert created.returncode == 0, created.stderr
    assert "nightly" in json.loads(created.stdout)["cursors"]
    refused = await asyncio.to_thread(liftpy, cluster, AccessRole.SERVICE, *words)
    assert refused.returncode == 1
    assert "`liftpy permissions --role reader --service groups`" in refused.stderr


@pytest.mark.parametrize(
    ("words", "needs"),
    [
        (("stream", "purge", STREAM, "--key", "k", "--yes"), "--role operator --role reader"),
        (("stream", "delete-records", STREAM, "--before", "0", "--yes"), "--role operator --role reader"),
        (("cursor", "list"), "--role reader --service groups"),
        (
            ("cursor", "set", "weekly", "--stream", STREAM, "--to", "earliest", "--yes"),
            "--role reader --role member --service groups",
        ),
        (("cursor", "show", "nightly"), "--role reader --service groups"),
    ],
    ids=lambda given: " ".join(given[:2]) if isinstance(given, tuple) else "",
)
def test_cli_command_that_needs_several_roles_names_them_and_succeeds_with_them(
    cluster: DevCluster, words: tuple[str, ...], needs: str
) -> None:
    assert (
        liftpy(cluster, "administrator", "cursor", "set", "nightly", "--stream", STREAM, "--to", "new", "--yes").returncode == 0
    )
    refused = liftpy(cluster, AccessRole.OPERATOR, *words)
    assert refused.returncode == 1
    assert f"This command needs those of `liftpy permissions {needs}`." in refused.stderr
    done = liftpy(cluster, "administrator", *words)
    assert (done.returncode, done.stderr.count("NATS permissions")) == (0, 0), done.stderr


def forged(role: AccessRole) -> list[str]:
    """A subject of every row where the role has no place, under names that are there."""
    names = {"ns": NS, "stream": STREAM, "data": "shop.other", "inbox": "_INBOX_somebody"}
    names |= {"jetstream": "liftpy", "jetstream_inbox": JETSTREAM_INBOX}
    found = []
    for use in USES:
        for principal in ("", ".bob"):
            subject = use.pattern.format(**names, principal=principal, queried="bank")
            for name in ("n1", "0"):
                found.append(subject.replace("*", name).replace(">", "x.1"))
    others = [
        f"{NS}.{STREAM}.0.replicate",
        f"{NS}.other.0.read",
        f"{NS}.other.0.read.n1",
        f"{NS}.raft.n1.n2",
        "$SYS.REQ.SERVER.PING",
    ]
    own = rights_of(role, SCOPES[role]).publish
    return sorted({s for s in (*found, *others) if not any(_matches(pattern, s) for pattern in own)})


def _matches(pattern: str, subject: str) -> bool:
    tokens, given = pattern.split("."), subject.split(".")
    if tokens[-1] == ">":
        tokens, given = tokens[:-1], given[: len(tokens) - 1] if len(given) >= len(tokens) else []
    return len(tokens) == len(given) and all(t in ("*", g) for t, g in zip(tokens, given, strict=True))


@pytest.mark.parametrize("role", sorted(set(AccessRole) - {AccessRole.NODE}, key=lambda role: role.value))
async def test_role_permissions_deny_the_subjects_of_other_roles(cluster: DevCluster, role: AccessRole) -> None:
    subjects = forged(role)
    assert len(subjects) >= 15
    listened = [
        f"{NS}.>",
        ">",
        SUBJECT,
        f"{NS}.inbox.>",
        f"{NS}.raft.n1.*",
        "_INBOX.>",
        "_INBOX_somebody.>",
        f"{NS}.feed",
        "$SYS.>",
    ]
    denied: set[tuple[bool, str]] = set()
    connection = await open_connection(cluster.nats_url, credentials=credentials(role))
    watch_denials(connection, lambda is_publish, subject: denied.add((is_publish, subject)))
    for subject in subjects:
        await connection.publish(subject, b"forged", reply=f"{SCOPES[role].inbox_prefix}.1")
    for subject in listened:
        await connection.subscribe(subject)
    await connection.flush()
    await connection.flush()
    await connection.close()
    assert {subject for is_publish, subject in denied if is_publish} == set(subjects)
    assert {subject for is_publish, subject in denied if not is_publish} == set(listened)


async def test_node_permissions_deny_application_subjects_and_other_clusters(cluster: DevCluster) -> None:
    published = [SUBJECT, "shop.other", "other.info", "other.raft.n1.n2", "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING.SUBSZ"]
    listened = [">", "other.>", "_INBOX.>", "_INBOX_reader.>", "$SYS.>"]
    denied: set[tuple[bool, str]] = set()
    connection = await open_connection(cluster.nats_url, credentials=credentials(AccessRole.NODE))
    watch_denials(connection, lambda is_publish, subject: denied.add((is_publish, subject)))
    for subject in published:
        await connection.publish(subject, b"forged")
    for subject in listened:
        await connection.subscribe(subject)
    await connection.flush()
    await connection.flush()
    await connection.close()
    assert denied == {(True, subject) for subject in published} | {(False, subject) for subject in listened}


def test_dev_command_with_credentials_starts_nodes_on_a_protected_nats_server(tmp_path: Path) -> None:
    with NatsServer(config=configuration()) as server:
        flags = [
            "dev",
            "--nats",
            server.url,
            "--namespace",
            NS,
            "--nodes",
            "1",
            "--data",
            str(tmp_path),
            "--json",
            "--user",
            "node",
        ]
        said, _ = _dev(flags, "node-secret")
        assert json.loads(said)["event"] == "ready"
        began = time.monotonic()
        said, error = _dev(flags, "wrong-secret")
        assert said == ""
        assert json.loads(error)["error"]["code"] == "NOT_ALLOWED"
        assert "rejected the credentials" in error
        assert "wrong-secret" not in error
        assert time.monotonic() - began < 15, "it waited for nodes that are let in by nobody"


def _dev(flags: list[str], password: str) -> tuple[str, str]:
    """The first line that ``liftpy dev`` prints, and what it says until it has ended: it is stopped then."""
    env = {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "PATH": "/bin", "LIFTPY_PASSWORD": password}
    command = [sys.executable, "-c", _MAIN, *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
    finally:
        process.terminate()
        _, error = process.communicate(timeout=30)
    return line, error


@pytest.mark.parametrize("lacking", ["publish", "subscribe"])
def test_node_without_a_needed_nats_permission_stops_with_the_denied_subject(lacking: str, tmp_path: Path) -> None:
    what, instead = ("publish: { allow: [", "info") if lacking == "publish" else ("subscribe: { allow: [", "inbox.>")
    rights = as_nats_conf(rights_of(AccessRole.NODE, SCOPES[AccessRole.NODE])).replace(
        f'{what}"acme.>"', f'{what}"acme.{instead}"'
    )
    with NatsServer(config=f"authorization: {{ users: [ {{ user: node, password: secret, {rights} }} ] }}") as server:
        done = _node(server.url, tmp_path, LIFTPY_USER="node", LIFTPY_PASSWORD="secret")
    assert done.returncode == 1, done.stderr
    assert f"NATS does not let this node {lacking} on acme." in done.stderr
    assert "liftpy permissions --role node --namespace acme" in done.stderr


def _node(url: str, folder: Path, until: Callable[[str], bool] | None = None, **environment: str) -> Any:
    flags = ["--node-id", "n1", "--controllers", "n1", "--data", str(folder / "n1"), "--nats", url, "--namespace", NS, "--json"]
    env = {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "PATH": "/bin", **environment}
    command = [sys.executable, "-m", "sidecar", *flags]
    if until is None:
        return fork_server.run(command, capture_output=True, text=True, timeout=30, check=False, env=env)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        assert until(process.stdout.readline())
    finally:
        process.terminate()
        out, err = process.communicate(timeout=30)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def test_node_start_on_nats_without_authorization_logs_one_warning(tmp_path: Path) -> None:
    with NatsServer() as server:
        done = _node(server.url, tmp_path, until=lambda line: '"ready"' in line)
    warnings = [
        line for line in done.stderr.splitlines() if "WARNING" in line and "accepts clients without credentials" in line
    ]
    assert len(warnings) == 1, done.stderr
    assert done.stderr.count("liftpy permissions") == 1
