"""Command line without a cluster: help, wrong usage and missing answers. tests/integration/test_client_cli.py has a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import io
import json
import os
import socket
import sys
from pathlib import Path

import pytest

import pyspark_liftpy
from sidecar.cli import publish
from sidecar.dev import demo_steps
from sidecar.dev.demo_flights import FLIGHT_COUNT, mean_delays, read_flights
from sidecar.dev.demo_steps import Failover
from tests.unit.cli.conftest import Run

demo = importlib.import_module("sidecar.cli.demo")


NOBODY = ["--nats", "nats://127.0.0.1:1"]


@pytest.mark.parametrize(
    "words",
    [
        ["stream", "list"],
        ["stream", "show", "orders"],
        ["stream", "create", "orders", "--subject", "shop.orders"],
        ["stream", "delete", "orders", "--yes"],
        ["partition", "transfer", "orders"],
        ["partition", "elect", "orders", "--unclean", "--confirm", "orders/0"],
        ["partition", "elect-preferred"],
        ["publish", "orders", "/dev/null"],
        ["consume", "orders"],
        ["status"],
    ],
)
def test_command_without_a_nats_server_exits_with_3_and_prints_the_url(words: list[str], run: Run) -> None:
    code, out, err = run(*words, *NOBODY)
    assert (code, out) == (3, "")
    assert "nats://127.0.0.1:1" in err
    assert "try again" in err
    assert "nats-lost: docs/runbooks/nats-lost.md" in err
    code, out, err = run(*words, *NOBODY, "--json")
    assert (code, out) == (3, "")
    assert json.loads(err)["error"] == {
        "code": "UNAVAILABLE", "detail": json.loads(err)["error"]["detail"], "retryable": True, "verdict": "nats-lost",
        "runbook": "docs/runbooks/nats-lost.md",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "detail"),
    [
        (["stream", "alter", "orders"], "Nothing to change. Give --replicas or at least one setting."),
        (["stream", "nonsense"], "No such command 'nonsense'."),
        (["status", "--nonsense"], "No such option '--nonsense'."),
        (["publish", "orders", "/nonexistent"], "'/nonexistent': No such file or directory"),
        (["backup", "prune", "/tmp"], "Missing option '--keep'."),
        (["node", "remove-data", "n1", "orders-1"], "The standard input ended before the confirmation."),
    ],
)
def test_command_with_wrong_usage_prints_the_error_as_json(
    words: list[str], detail: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, out, err = run(*words, "--json")
    assert (code, out) == (2, "")
    error = json.loads(err.splitlines()[-1])["error"]
    assert (error["code"], error["retryable"]) == ("CONFIG", False)
    assert detail in error["detail"]


def test_publish_input_received_in_any_chunks_is_split_into_lines() -> None:
    async def lines(file: io.RawIOBase | io.BufferedIOBase) -> list[bytes]:
        return [line async for some in publish._lines(file) for line in some]  # type: ignore[arg-type]

    long = b"x" * 200_000
    text = b"one\n\nthree\r\n" + long + b"\nlast without an end"
    wanted = [b"one", b"", b"three\r", long, b"last without an end"]
    assert asyncio.run(lines(io.BytesIO(text))) == wanted
    assert asyncio.run(lines(io.BytesIO(b""))) == []
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("rb") as slow:
        theirs.sendall(b"first\nsec")
        got = publish._lines(slow)  # type: ignore[arg-type]

        async def first_before_the_second_is_whole() -> list[bytes]:
            found = [*await anext(got)]
            theirs.sendall(b"ond\n")
            theirs.shutdown(socket.SHUT_WR)
            return [*found, *[line async for some in got for line in some]]

        assert asyncio.run(first_before_the_second_is_whole()) == [b"first", b"second"]


def test_demo_flights_file_has_all_flights_with_the_published_mean_delays() -> None:
    lines = read_flights(FLIGHT_COUNT)
    assert len(lines) == FLIGHT_COUNT
    assert lines[0] == b"2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z"
    assert read_flights(3) == lines[:3]
    delays = mean_delays(lines)
    assert len(delays) == 16
    assert sum(flights for flights, _ in delays.values()) == 327_346  # the published number of flights with a known delay
    assert round(delays["HA"][1] / delays["HA"][0], 2) == -6.92


@pytest.mark.parametrize(("agrees", "code"), [(True, 0), (False, 1)])
def test_demo_command_exits_with_0_only_if_all_steps_return_the_sent_records(
    agrees: bool, code: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoCluster(contextlib.nullcontext[object]):
        nats_url = "nats://nowhere"

        def __init__(self, count: int, *, data: Path) -> None:
            super().__init__(self)
            made.append((count, data.name, data.parent.name.startswith("liftpy-demo-"), data.parent.exists()))

    made: list[tuple[int, str, bool, bool]] = []

    async def run_nothing(*_: object, **__: object) -> tuple[list[demo_steps.Step], dict[str, tuple[int, int]], Failover]:
        steps = [demo_steps.Step("first", 2, 10, 1.0), demo_steps.Step("second", 2, 10, 1.0, agrees, "offset 1: b'x'")]
        return steps, {"UA": (2, 7)}, Failover("n1", "n2", 2, 1.0, 2.0)

    monkeypatch.setattr(demo, "DevCluster", NoCluster)
    monkeypatch.setattr(demo, "_run", run_nothing)
    got, out, _ = run("demo", "--records", "8", "--no-spark")
    assert got == code
    assert ("everything agrees, record by record" in out, "NO: offset 1" in out) == (agrees, not agrees)
    got, out, _ = run("demo", "--records", "8", "--no-spark", "--json")
    assert (got, json.loads(out)["agrees"]) == (code, agrees)
    assert 0 <= json.loads(out)["seconds"] < 600
    assert made == [(3, "nodes", True, True)] * 2


def test_demo_import_path_contains_the_directory_of_the_spark_data_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark looks for it in folders, and an installation may find its modules in another way."""
    folder = str(Path(pyspark_liftpy.__file__).parent)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", ".", folder)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: pyspark_liftpy.__spec__)
    assert folder in demo_steps._import_path().split(os.pathsep)
