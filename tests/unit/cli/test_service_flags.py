"""Options of ``liftpy service`` and ``liftpy permissions`` reach the service, the cluster and the output."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from liftpy.core.services.outbox import Route
from liftpy.core.services.rules import parameters_digest
from liftpy.core.wire.batch import Record
from liftpy.errors import ConfigError, NotFoundError, UnavailableError
from liftpy.service import DivergedError, Service
from liftpy.service.settings import ServiceSettings
from sidecar.cli import service
from tests.unit.cli.conftest import Run


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


def test_service_run_flag_of_each_setting_sets_the_service_setting(ran: list[Any], run: Run, tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"limit": 7, "name": "from the file"}')
    words = [
        *LEAST, "--name", "bank", "--partition", "3", "--output-stream", "out", "--route", "a=s1", "--route", "b=s2",
        "--dead-letter-stream",
        "dead", "--snapshot-interval-records", "50", "--set", "limit=9", "--settings", str(file),
        "--reply-prefix", "_INBOX.", "--reply-prefix",
        "_INBOX_mine.", "--tick-interval", "1.5",
    ]  # fmt: skip
    assert run(*words)[0] == 0
    factory, settings, wanted, target = ran
    assert settings == ServiceSettings(
        "bank", "s", "n1", Path("d"), output_stream="out", dead_letter_stream="dead", snapshot_interval_records=50,
        tick_interval_s=1.5,
        routes=(Route("a", "s1"), Route("b", "s2")), reply_prefixes=("_INBOX.", "_INBOX_mine."),
        parameters_digest=parameters_digest(Told, {"limit": 9, "name": "from the file"}),
    )  # fmt: skip
    assert (wanted, factory.func, factory.keywords) == ((3,), Told, {"limit": 9, "name": "from the file"})
    assert target.namespace == "liftpy"


@pytest.mark.parametrize(("text", "wanted"), [("all", None), ("3", (3,)), ("2, 0,2 ,11", (0, 2, 11)), ("999999", (999_999,))])
def test_service_run_partition_option_selects_the_partitions_to_run(text: str, wanted: Any, ran: list[Any], run: Run) -> None:
    assert run(*LEAST, "--partition", text)[0] == 0
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
    words: tuple[str, ...], said: str, ran: list[Any], run: Run
) -> None:
    code, _, err = run(*LEAST, *words)
    assert (code, ran) == (2, [])
    assert said in err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UnavailableError("nobody"), 3, "Error: UNAVAILABLE: nobody (a new start may help)"),
        (ConfigError("wrong"), 2, "Error: CONFIG: wrong (a new start does not help)"),
        (DivergedError("alone"), 70, "(a new start does not help)"),
        (NotFoundError("another stream"), 75, "(a new start may help)"),
    ],
)
def test_service_run_that_raises_exits_with_the_code_of_the_error(
    error: Exception, code: int, said: str, ran: list[Any], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(service, "_run", fails)
    ended, out, err = run(*LEAST)
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


# ---- liftpy permissions -----------------------------------------------------------------------------------------------------------
def test_permissions_command_with_an_inbox_prefix_prints_permissions_for_this_prefix(
    run: Run,
) -> None:
    ours = run("permissions", "--role", "reader", "--stream", "orders", "--inbox-prefix", "_INBOX_me")[1]
    plain = run("permissions", "--role", "reader", "--stream", "orders")[1]
    assert "_INBOX_me.>" in ours
    assert "_INBOX.>" not in ours
    assert ours.replace("_INBOX_me", "_INBOX") == plain
    service_rights = run("permissions", "--role", "service", "--reply-prefix", "_INBOX_app")[1]
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
    words: tuple[str, ...], said: str, run: Run
) -> None:
    code, out, err = run("permissions", "--role", *words)
    assert (code, out) == (2, "")
    assert said in err
