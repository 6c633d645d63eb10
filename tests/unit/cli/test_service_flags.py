"""Options of ``liftpy service`` and ``liftpy permissions`` reach the service, the cluster and the output."""

from __future__ import annotations

import asyncio
import importlib
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.services.bad_records import Unit
from liftpy.core.services.outbox import Route
from liftpy.core.services.rules import parameters_digest
from liftpy.core.wire.batch import Record
from liftpy.errors import ConfigError, NotFoundError, UnavailableError
from liftpy.service import Service
from liftpy.service.settings import ServiceSettings
from sidecar.cli import service
from tests.flat_client import FlatClient
from tests.only_in import only_in
from tests.unit.cli.test_cluster_commands import run

service_orders = service_call = service_query = importlib.import_module("sidecar.cli.service")


class Told(Service):
    """Takes a limit."""

    def __init__(self, limit: int = 5, name: str = "x") -> None:
        self.limit = limit

    def on_record(self, record: Record) -> None: ...

    def take_snapshot(self) -> bytes:
        return b""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    given: list[Any] = []

    async def run_service(*what: Any) -> None:
        given.extend(what)
        if len(given) > 4:
            raise given[4]

    root, noisy = logging.getLogger(), logging.getLogger("nats")
    before = root.level, noisy.level, list(root.handlers)
    monkeypatch.setattr(service, "_run", run_service)
    monkeypatch.setattr(service, "load_service", lambda name: Told)
    yield given
    root.setLevel(before[0])
    noisy.setLevel(before[1])
    root.handlers[:] = before[2]


LEAST = ("service", "m:Told", "--stream", "s", "--node", "n1", "--data", "d")


def test_service_run_flag_of_each_setting_sets_the_service_setting(
    ran: list[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"limit": 7, "name": "from the file"}')
    words = [
        *LEAST, "--name", "bank", "--partition", "3", "--output-stream", "out", "--route", "a=s1", "--route", "b=s2",
        "--dead-letter-stream",
        "dead", "--snapshot-interval-records", "50", "--set", "limit=9", "--settings", str(file),
        "--reply-prefix", "_INBOX.", "--reply-prefix",
        "_INBOX_mine.", "--tick-interval", "1.5",
    ]  # fmt: skip
    assert run(capsys, *words)[0] == 0
    factory, settings, wanted, target = ran
    assert settings == ServiceSettings(
        "bank", "s", "n1", Path("d"), output_stream="out", dead_letter_stream="dead", snapshot_interval_records=50,
        tick_interval_s=1.5,
        routes=(Route("a", "s1"), Route("b", "s2")), reply_prefixes=("_INBOX.", "_INBOX_mine."),
        parameters_digest=parameters_digest(Told, {"limit": 9, "name": "from the file"}),
    )  # fmt: skip
    assert (wanted, factory.func, factory.keywords) == ((3,), Told, {"limit": 9, "name": "from the file"})
    assert target.namespace == "liftpy"


def test_service_run_without_optional_flags_uses_the_default_settings(
    ran: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, *LEAST)[0] == 0
    assert ran[1] == ServiceSettings("told", "s", "n1", Path("d"))
    assert (ran[2], ran[0].keywords) == ((0,), {})
    assert logging.getLogger().level == logging.INFO


@pytest.mark.parametrize(("text", "wanted"), [("all", None), ("3", (3,)), ("2, 0,2 ,11", (0, 2, 11)), ("999999", (999_999,))])
def test_service_run_partition_option_selects_the_partitions_to_run(
    text: str, wanted: Any, ran: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, *LEAST, "--partition", text)[0] == 0
    assert (ran[2], ran[1].partition) == (wanted, 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--partition", "1,x"), "Invalid value for --partition: '1,x'"),
        (("--partition", "1,"), "--partition: '1,'. Use all, or"),
        (("--partition", "1000000"), "Invalid value for --partition"),
        (("--partition", "-1"), "Invalid value for --partition"),
        (("--partition", "٣"), "Invalid value for --partition"),
        (("--route", "a"), "Use NAME=STREAM"),
        (("--route", "a=s1"), "Set an output stream (--output-stream)"),
        (("--set", "limit"), "Invalid --set 'limit'"),
        (("--set", "nobody=1"), "unexpected keyword argument 'nobody'"),
        (("--tick-interval", "3601"), "3601"),
    ],
)
def test_service_run_with_invalid_flags_exits_with_2_and_starts_no_service(
    words: tuple[str, ...], said: str, ran: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, *LEAST, *words)
    assert (code, ran) == (2, [])
    assert said in err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UnavailableError("nobody"), 3, "Error: UNAVAILABLE: nobody (a new start may help)"),
        (ConfigError("wrong"), 2, "Error: CONFIG: wrong (a new start does not help)"),
        (NotFoundError("another stream"), 75, "(a new start may help)"),
    ],
)
def test_service_run_that_raises_exits_with_the_code_of_the_error(
    error: Exception, code: int, said: str, ran: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(service, "_run", fails)
    ended, out, err = run(capsys, *LEAST)
    assert (ended, out) == (code, "")
    assert said in err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "no_such_module:X",
            "Cannot load no_such_module:X: No module named 'no_such_module'. Check MODULE:CLASS, the current directory and PYTHONPATH.",
        ),
        (
            "json:Nobody",
            "Cannot load json:Nobody: module 'json' has no attribute 'Nobody'. Check MODULE:CLASS, the current directory and PYTHONPATH.",  # noqa: E501
        ),
        ("json:dumps", "json:dumps is not a subclass of liftpy.service.Service. Check MODULE:CLASS."),
        ("json:JSONDecoder", "is not a subclass of liftpy.service.Service"),
        (":X", "Cannot load"),
    ],
)
def test_load_service_with_a_name_of_no_service_raises_config_error(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        service.load_service(name)
    assert said in str(raised.value)
    assert service.load_service("tests.unit.cli.test_service_flags:Told").__name__ == "Told"


# ---- one process, several partitions -----------------------------------------------------------------------------------------


async def test_service_run_on_sigint_before_the_partitions_are_known_starts_no_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handlers: dict[int, Any] = {}
    ran: list[str] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", handlers.__setitem__, raising=False)

    async def never(*_: Any) -> Any:
        handlers[signal.SIGINT]()
        await asyncio.Event().wait()

    async def one(*_: Any) -> None:
        ran.append("one")

    monkeypatch.setattr(service, "_find_partitions", never)
    monkeypatch.setattr(service, "_run_one", one)
    nothing: Any = None
    await service._run(nothing, ServiceSettings("s", "in", "n1", Path("d")), None, nothing)
    assert ran == []


# ---- what an operator says -----------------------------------------------------------------------------------------------------
def asked_by(module: Any, monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    monkeypatch.setattr(module, "with_client", lambda target, work, **_: asyncio.run(work(client)))


def test_service_skip_command_writes_a_decision_for_the_given_offset_and_timer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    async def pass_over(*what: Any, **how: Any) -> int:
        given.append((what, how))
        return 44

    asked_by(service_orders, monkeypatch, "client")
    monkeypatch.setattr(service_orders, "pass_over", pass_over)
    words = ("service", "skip", "bank", "--stream", "s", "--partition", "2", "--offset", "17")
    code, out, _ = run(capsys, *words, "--timer", "t", "--dead-letter-stream", "dead", "--force")
    assert (code, out) == (0, "bank skips offset 17, timer 't' of s/2: decided by the record at offset 44\n")
    assert run(capsys, *words)[1] == "bank skips offset 17 of s/2: decided by the record at offset 44\n"
    assert given == [
        (("client", "bank", "s", 2, Unit(17, "t")), {"dead_letter": "dead", "force": True}),
        (("client", "bank", "s", 2, Unit(17)), {"dead_letter": "", "force": False}),
    ]
    assert run(capsys, "service", "skip", "../x", "--stream", "s", "--offset", "1")[0] == 2


def test_service_snapshot_command_requests_snapshots_of_the_given_partition_and_nodes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    async def store_now(*what: Any) -> dict[str, int]:
        given.append(what)
        return {"n1": 40, "n3": 41}

    asked_by(service_orders, monkeypatch, "client")
    monkeypatch.setattr(service_orders, "store_now", store_now)
    words = ("service", "snapshot", "bank", "--stream", "s")
    _, out, _ = run(capsys, *words, "--partition", "2", "--node", "n3", "--node", "n1", "--timeout", "5", "--namespace", "ns")
    assert out == "bank on n1: snapshot at 40\nbank on n3: snapshot at 41\n"
    run(capsys, *words)
    assert given == [("client", "bank", "s", 2, ("n3", "n1"), 5.0, "ns"), ("client", "bank", "s", None, (), 30.0, "liftpy")]
    assert run(capsys, "service", "snapshot", "../x", "--stream", "s")[0] == 2


async def test_service_snapshot_command_checks_the_snapshot_position_five_times_per_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    positions = iter((6, 6, 8, 9))

    class Client(FlatClient):
        transport = SimpleNamespace()

        async def stream(self, name: str) -> Any:
            return SimpleNamespace(uid="u1", partitions=[SimpleNamespace(replicas=("n1",))])

        async def node_status(self, node: str) -> Any:
            found = {"service": "bank", "position": 8, "snapshot": next(positions)}
            return {"partitions": [{"uid": "u1", "partition": 0, "services": [found]}]}

    async def publish(subject: str, payload: bytes) -> None:
        assert subject.startswith("ns.service.n1.session.")

    async def sleep(wait_s: float) -> None:
        slept.append(wait_s)

    client: Any = Client()
    client.transport.publish = publish
    only_in(monkeypatch, service_orders, "asyncio", sleep=sleep)
    assert await service_orders.store_now(client, "bank", "s", 0, (), 30.0, "ns") == {"n1": 8}
    assert slept == [0.2, 0.2]


@pytest.mark.parametrize(
    ("words", "how"),
    [
        ((), {"partition": None, "key": None, "message_id": "", "timeout_s": 5.0}),
        (
            ("--partition", "2", "--key", "é", "--message-id", "m1", "--show-offset", "--timeout", "3"),
            {"partition": 2, "key": "é".encode(), "message_id": "m1", "timeout_s": 3.0},
        ),
    ],
)
def test_service_call_command_sends_the_command_with_its_options_and_prints_the_answer(
    words: tuple[str, ...], how: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    class Client(FlatClient):
        async def call(self, *what: Any, **told: Any) -> Any:
            given.append((what, told))
            return SimpleNamespace(value=b"done\n" if words else b"done", offset=12, node="n2")

    asked_by(service_call, monkeypatch, Client())
    code, out, err = run(capsys, "service", "call", "bank", "open", "--stream", "s", *words)
    assert (code, out) == (0, "done\n")
    assert err == ("offset 12, answered by n2\n" if words else "")
    ((what, told),) = given
    assert what == ("bank", "s", b"open")
    assert {name: told[name] for name in how} == how
    assert run(capsys, "service", "call", "../x", "open", "--stream", "s")[0] == 2


# ---- liftpy permissions -----------------------------------------------------------------------------------------------------------
def test_permissions_command_with_an_inbox_prefix_prints_permissions_for_this_prefix(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ours = run(capsys, "permissions", "--role", "reader", "--stream", "orders", "--inbox-prefix", "_INBOX_me")[1]
    plain = run(capsys, "permissions", "--role", "reader", "--stream", "orders")[1]
    assert "_INBOX_me.>" in ours
    assert "_INBOX.>" not in ours
    assert ours.replace("_INBOX_me", "_INBOX") == plain
    service_rights = run(capsys, "permissions", "--role", "service", "--reply-prefix", "_INBOX_app")[1]
    assert "_INBOX_app.>" in service_rights


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("service", "--reply-prefix", "_INBOX*"),
            "Invalid value for --reply-prefix: _INBOX*. NATS permissions cannot match a part of a token. Name each prefix.",
        ),
        (("service", "--reply-prefix", "a b"), ""),
        (("reader", "--reply-prefix", "_INBOX"), "--reply-prefix is only for the roles service and node. Remove it."),
        (("publisher",), "--stream (for the subjects of"),
        (("publisher", "--subject", "a b"), ""),
    ],
)
def test_permissions_command_for_subjects_that_nats_permissions_cannot_express_is_rejected(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "permissions", "--role", *words)
    assert (code, out) == (2, "")
    assert said in err
