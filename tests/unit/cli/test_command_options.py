"""Test that connection flags set the credentials, and the JSON of a record."""

from __future__ import annotations

import asyncio
import importlib
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.wire.batch import Record
from sidecar.cli.consume import record_json
from sidecar.runtime.settings import Target
from tests.unit.cli.conftest import Run

controllers = importlib.import_module("sidecar.cli.controllers")


# ---- asking --------------------------------------------------------------------------------------------------------------------


def test_connection_flag_of_each_credential_sets_its_field_of_the_connection_target(
    run: Run, monkeypatch: pytest.MonkeyPatch
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
    assert run("controllers", *words, "--inbox-prefix", "_INBOX_me", "--principal", "p")[0] == 0
    (target,) = given
    assert (target.nats, target.namespace) == (("nats://h:1",), "ns")
    told = target.credentials
    assert (told.user, told.password, told.inbox_prefix, told.principal) == ("me", "secret", "_INBOX_me", "p")
    assert tuple(map(str, (told.tls_ca_file, told.tls_cert_file, told.tls_key_file))) == ("ca", "cert", "key")
    for flag, name in (("--creds", "creds_file"), ("--nkey", "nkey_seed_file")):
        monkeypatch.delenv("LIFTPY_PASSWORD", raising=False)
        assert run("controllers", flag, "file")[0] == 0
        assert str(getattr(given[-1].credentials, name)) == "file"
    run("controllers")
    assert (given[-1].nats, given[-1].namespace) == (("nats://127.0.0.1:4222",), "liftpy")


@pytest.mark.parametrize(
    ("words", "voters", "code"),
    [
        (("add", "n4"), ("n1", "n4"), 0), (("add", "n4"), ("n1",), 1), (("remove", "n1"), ("n4",), 0),
        (("remove", "n1"), ("n1", "n4"), 1), (("replace", "n1", "n4"), ("n1", "n4"), 1), (("add", "n4", "--no-wait"), ("n1",), 0),
        (("add", "n1"), (), 0),
    ],
)  # fmt: skip
def test_controllers_change_that_another_request_has_undone_fails(
    words: tuple[str, ...],
    voters: tuple[str, ...],
    code: int,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = SimpleNamespace(controllers=ControllerList(voters), index=7)
    admin = SimpleNamespace(
        change_controllers=AsyncMock(return_value="the controllers are n1"),
        describe_cluster=AsyncMock(return_value=SimpleNamespace(image=image, controllers=(), metadata_leader="n1")),
    )
    monkeypatch.setattr(controllers, "with_client", lambda _, work: asyncio.run(work(SimpleNamespace(admin=admin))))
    found, _, said = run("controllers", *words)
    assert (found, "has undone this change" in said) == (code, bool(code)), said


# ---- for machines ----------------------------------------------------------------------------------------------------------------


def test_record_json_contains_utf_8_bytes_as_text_and_other_bytes_as_base64() -> None:
    full = Record(7, 99, b"\xff", b"v\xc3\xa9", (("a", b"1"), ("b", b"\xfe")), "ev.1", None, 3)
    assert record_json(full) == {
        "offset": 7, "timestamp_ns": 99, "value": "vé", "key_base64": "/w==", "subject": "ev.1",
        "headers": [{"name": "a", "value": "1"}, {"name": "b", "value_base64": "/g=="}],
    }  # fmt: skip
    assert record_json(Record(8, 99, None, None, (), "", None, 3)) == {"offset": 8, "timestamp_ns": 99, "value": None}
    assert record_json(Record(8, 99, b"", b"", (), "", None, 3))["key"] == ""
