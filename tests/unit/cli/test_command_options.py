"""Options of commands reach the cluster, waiting commands poll at their rate, and JSON has the expected fields."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.wire.batch import Record
from liftpy.errors import ConfigError, UnavailableError
from liftpy.nats.credentials import Credentials
from sidecar.cli import log, session
from sidecar.cli.consume import record_json
from sidecar.cli.main import exit_code
from sidecar.cli.stream_settings import MAX_FILE_BYTES, plan_json
from sidecar.runtime.settings import Target
from tests.flat_client import FlatClient
from tests.unit.cli.test_cluster_commands import Cluster, cluster, run

__all__ = ["cluster"]
node, partition, service_query, controllers = (
    importlib.import_module(f"sidecar.cli.{name}") for name in ("node", "partition", "service", "controllers")
)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What commands sleep, which then takes no time; the clock goes on by it."""
    waits: list[float] = []
    now_s = [1000.0]

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)
        now_s[0] += wait_s

    for module in (node, partition):
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    return waits


# ---- waiting -----------------------------------------------------------------------------------------------------------------
def led_after(cluster: Cluster, looks: int) -> Callable[[], None]:
    """The partition has a leader from so many looks on."""
    cluster.set("orders", status=PartitionStatus.OFFLINE, leader="")

    def look() -> None:
        if len(cluster.turns) <= 20 - looks:
            cluster.set("orders", status=PartitionStatus.ONLINE, leader="n2")

    return look


@pytest.mark.parametrize("looks", [1, 4])
async def test_partition_transfer_wait_checks_the_leader_every_50_milliseconds(
    looks: int, cluster: Cluster, slept: list[float]
) -> None:
    client: Any = cluster
    image = cluster.image.streams["orders"]
    cluster.turns = [led_after(cluster, looks)] * 20
    found, took_s = await partition._move_and_wait(client, image, 0, "n2", timeout_s=15.0)
    assert (found.leader, slept, round(took_s, 6)) == ("n2", [0.05] * (looks - 1), round(0.05 * (looks - 1), 6))
    assert cluster.asked == [("elect", "orders", 0, "n2", False)]


async def test_partition_transfer_wait_without_a_leader_raises_unavailable_at_its_timeout(
    cluster: Cluster, slept: list[float]
) -> None:
    client: Any = cluster
    image = cluster.image.streams["orders"]
    cluster.set("orders", status=PartitionStatus.OFFLINE, leader="")
    with pytest.raises(UnavailableError, match="orders/0 is still OFFLINE after"):
        await partition._move_and_wait(client, image, 0, "", timeout_s=1.0)
    assert len(slept) in (20, 21), "a second of looks, and one more where the sum of them falls short of it"


async def test_node_remove_wait_checks_the_node_ten_times_per_second_until_its_timeout(
    cluster: Cluster, slept: list[float]
) -> None:
    client: Any = cluster
    with pytest.raises(ConfigError):
        await node._remove_node(client, "n1", False, 1.0)
    assert set(slept) == {0.1}
    assert len(slept) in (10, 11)
    slept.clear()
    with pytest.raises(ConfigError):
        await node._remove_node(client, "n1", False, 0.0)
    assert (slept, cluster.asked) == ([], [])


# ---- asking --------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("bank", "?"), ("bank", b"?", None, None, None)),
        (("bank", "é", "--partition", "3", "--at-least", "0"), ("bank", "é".encode(), 3, None, 0)),
        (("bank", "?", "--at-least", "17", "--show-offset"), ("bank", b"?", None, None, 17)),
        (("bank", "?", "--key", "ann"), ("bank", b"?", None, b"ann", None)),
    ],
)
def test_service_query_command_sends_the_query_with_partition_key_and_position(
    words: tuple[str, ...], asked: tuple[Any, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    class Client(FlatClient):
        async def query(self, name: str, body: bytes, *, partition: int | None, key: bytes | None, at_least: int | None) -> Any:
            given.append((name, body, partition, key, at_least))
            return SimpleNamespace(value=b"42", position=9, node="n2")

    monkeypatch.setattr(service_query, "with_client", lambda target, work, **_: asyncio.run(work(Client())))
    code, out, err = run(capsys, "service", "query", *words)
    assert (code, out, given) == (0, "42\n", [asked])
    assert err == ("position 9 on n2\n" if "--show-offset" in words else "")
    assert run(capsys, "service", "query", "../x", "?")[0] == 2


def test_connection_flag_of_each_credential_sets_its_field_of_the_connection_target(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Target] = []

    def with_client(target: Target, work: Any, **_: Any) -> Any:
        given.append(target)
        return {"metadata_leader": "n1", "index": 1, "under_way": "", "controllers": []}

    monkeypatch.setattr(controllers, "with_client", with_client)
    monkeypatch.setenv("LIFTPY_PASSWORD", "secret")
    words = (
        "--nats",
        "nats://h:1",
        "--namespace",
        "ns",
        "--user",
        "me",
        "--tls-ca",
        "ca",
        "--tls-cert",
        "cert",
        "--tls-key",
        "key",
    )
    assert run(capsys, "controllers", *words, "--inbox-prefix", "_INBOX_me", "--principal", "p")[0] == 0
    (target,) = given
    assert (target.nats, target.namespace) == (("nats://h:1",), "ns")
    told = target.credentials
    assert (told.user, told.password, told.inbox_prefix, told.principal) == ("me", "secret", "_INBOX_me", "p")
    assert tuple(map(str, (told.tls_ca_file, told.tls_cert_file, told.tls_key_file))) == ("ca", "cert", "key")
    for flag, name in (("--creds", "creds_file"), ("--nkey", "nkey_seed_file")):
        monkeypatch.delenv("LIFTPY_PASSWORD", raising=False)
        assert run(capsys, "controllers", flag, "file")[0] == 0
        assert str(getattr(given[-1].credentials, name)) == "file"
    run(capsys, "controllers")
    assert (given[-1].nats, given[-1].namespace) == (("nats://127.0.0.1:4222",), "liftpy")


def test_command_connects_to_nats_with_its_name_and_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    class Client(FlatClient):
        async def __aenter__(self) -> Client:
            return self

        async def __aexit__(self, *_: object) -> None:
            given.append("closed")

    async def connect(*what: Any, **how: Any) -> Client:
        given.append((what, how))
        return Client()

    async def work(client: Any) -> int:
        return 7

    monkeypatch.setattr(session, "connect", connect)
    target = Target(("nats://h:1",), "ns", Credentials())
    assert session.with_client(target, work) == 7
    how = {"credentials": target.credentials, "name": "liftpy-cli"}
    assert given == [((("nats://h:1",), "ns"), how), "closed"]


# ---- for machines ----------------------------------------------------------------------------------------------------------------
def test_placement_plan_json_contains_the_dry_run_flag_and_the_replicas() -> None:
    told: Any = SimpleNamespace(
        waits="", notes=("a note",), first_partition=4, replicas=(("n1", "n2"), ("n2", "n1")), by_node=dict, by_rack=dict
    )
    assert plan_json(told, "s") == {
        "stream": "s", "dry_run": True, "waits": "", "notes": ["a note"], "nodes": {}, "racks": {},
        "partitions": [{"id": 4, "replicas": ["n1", "n2"]}, {"id": 5, "replicas": ["n2", "n1"]}],
    }  # fmt: skip
    assert MAX_FILE_BYTES == 1024 * 1024


def test_record_json_contains_utf_8_bytes_as_text_and_other_bytes_as_base64() -> None:
    full = Record(7, 99, b"\xff", b"v\xc3\xa9", (("a", b"1"), ("b", b"\xfe")), "ev.1", None, 3)
    assert record_json(full) == {
        "offset": 7, "timestamp_ns": 99, "value": "vé", "key_base64": "/w==", "subject": "ev.1",
        "headers": [{"name": "a", "value": "1"}, {"name": "b", "value_base64": "/g=="}],
    }  # fmt: skip
    assert record_json(Record(8, 99, None, None, (), "", None, 3)) == {"offset": 8, "timestamp_ns": 99, "value": None}
    assert record_json(Record(8, 99, b"", b"", (), "", None, 3))["key"] == ""


def test_exit_codes_equal_the_documented_numbers() -> None:
    assert (exit_code(ConfigError("x")), exit_code(UnavailableError("x")), log.EXIT_DAMAGED) == (2, 3, 1)


@pytest.mark.parametrize(
    ("member", "row"),
    [
        ({"leader": True, "connected": True, "applied_index": 40}, ("n1", "leader", "3", "41", "40", "2")),
        ({"leader": False, "connected": True, "applied_index": 0}, ("n1", "connected", "3", "41", "?", "2")),
        ({"leader": False, "connected": False, "applied_index": 5}, ("n1", "silent", "3", "41", "5", "2")),
        (
            {"leader": False, "connected": True, "applied_index": 5, "learner": True},
            ("n1", "connected, catching up", "3", "41", "5", "2"),
        ),
        (
            {"leader": True, "connected": True, "applied_index": 5, "leaving": True},
            ("n1", "leader, leaving", "3", "41", "5", "2"),
        ),
    ],
)
@pytest.mark.parametrize("leader", ["n1", ""])
def test_controllers_command_prints_state_and_lag_of_a_controller(
    member: dict[str, Any],
    row: tuple[str, ...],
    leader: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(controllers, "table", lambda columns, rows: shown.append((columns, rows)) or "")
    monkeypatch.setattr(controllers, "Console", lambda: SimpleNamespace(print=lambda _: None))
    found = {"node_id": "n1", "term": 3, "commit_index": 41, "lag": 2, "learner": False, "leaving": False, **member}
    controllers._show({"metadata_leader": leader, "under_way": "", "controllers": [found]})
    assert shown == [(("controller", "state", "term", "commit", "applied", "lag"), [row])]
    said = capsys.readouterr().out
    assert said == ("" if leader else "no metadata leader: at least half of the controllers cannot be reached\n")
