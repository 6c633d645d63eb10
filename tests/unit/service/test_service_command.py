"""``liftpy service``: what it loads, and what it refuses before it connects."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from liftpy.errors import ConfigError, InvalidNameError
from liftpy.service.settings import ServiceSettings
from sidecar.cli import main
from sidecar.cli.service import load_service
from tests.examples.bank import Bank


def test_a_class_is_found_by_its_module_and_name() -> None:
    before = list(sys.path)
    assert load_service("tests.examples.bank:Bank") is Bank
    sys.path[:] = before


@pytest.mark.parametrize(
    "name", ["nowhere:Bank", "tests.examples.bank:Nobody", "tests.examples.bank:Refused", "tests.examples.bank", ""]
)
def test_what_is_no_service_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        load_service(name)


class Later(Bank):
    """Its records would never be applied."""

    async def on_record(self, record: object) -> None:  # type: ignore[override]
        raise NotImplementedError


def test_an_asynchronous_callback_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="on_record is asynchronous"):
        load_service(f"{__name__}:Later")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"service": "a b"}, InvalidNameError),
        ({"stream": "../x"}, InvalidNameError),
        ({"node": ""}, InvalidNameError),
        ({"output_stream": "x.y"}, InvalidNameError),
        ({"output_stream": "in"}, ConfigError),
        ({"snapshot_every": 0}, ConfigError),
        ({"heartbeat_s": 0}, ConfigError),
        ({"outbox_records": 0}, ConfigError),
        ({"snapshots_kept": 1}, ConfigError),
        ({"partition": -1}, ConfigError),
    ],
)
def test_settings_are_checked_as_a_whole(wrong: dict[str, Any], error: type[Exception]) -> None:
    right: dict[str, Any] = {"service": "bank", "stream": "in", "node": "n1", "data": Path("x")}
    ServiceSettings(**right)
    with pytest.raises(error):
        ServiceSettings(**{**right, **wrong})


def test_the_command_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main.main(["service", "tests.examples.bank:Bank", "--stream", "in", "--node", "n1"])
    assert left.value.code == 2
    assert "--data" in capsys.readouterr().err
