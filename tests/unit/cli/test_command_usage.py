"""Values of options without a cluster: accepted values, rejected values, and texts for people and programs."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from liftpy.core.log.log import Log
from liftpy.errors import ConfigError, UnavailableError
from liftpy.service import Service
from sidecar.cli import controllers, publish, service, sidecar
from sidecar.cli.main import main
from sidecar.cli.options import OutputFile
from sidecar.disk.files import DirectoryStorage
from sidecar.runtime.settings import Target
from tests.unit.log.log_model import SMALL, fill


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out + said.err


# ---- files that a command writes late ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "words", [["bench", "--output"], ["bench", "--plot"], ["spark", "stats", "orders", "--plot"]], ids=" ".join
)
def test_command_with_an_output_file_that_cannot_be_written_is_rejected(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, reason in ((tmp_path / "no" / "file", "No such file or directory"), (tmp_path, "Is a directory")):
        code, said = run(capsys, *words, str(path))
        assert code == 2
        assert f"Invalid value for '{words[-1]}': Cannot write '{path}': {reason}. Use another path." in said


def test_output_file_check_creates_and_changes_no_file(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("before")
    for path in (kept, tmp_path / "new"):
        assert OutputFile().convert(str(path), None, None) == path
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("kept", "before")]


# ---- variables of the environment ---------------------------------------------------------------------------------------
def test_dev_command_logs_a_warning_about_an_unknown_environment_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LIFTPY_REPLICATION_LEASE", "2")
    monkeypatch.setenv("LIFTPY_XYZ", "2")
    code, said = run(capsys, "dev", "--nats", "nats://127.0.0.1:1", "--max-payload", "2MiB")
    assert code == 2, "these two options exclude each other"
    assert "Unknown environment variable LIFTPY_REPLICATION_LEASE is ignored. Did you mean LIFTPY_REPLICATION_LEASE_S?" in said
    assert "Unknown environment variable LIFTPY_XYZ is ignored. See `liftpy sidecar --help` for the settings." in said


def test_sidecar_command_logs_a_warning_about_an_unknown_environment_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run_node(*_: object) -> int:
        return 0

    monkeypatch.setattr("sidecar.node.node.run_node", run_node)
    monkeypatch.setenv("LIFTPY_LOG_LEVLE", "debug")
    monkeypatch.setattr(sidecar.LOGS, "configure", lambda *_: None)
    with pytest.raises(SystemExit) as left:
        main(["sidecar", "--node-id", "n1", "--data", str(tmp_path)])
    assert not left.value.code
    assert "unknown environment variable, ignoring variable=LIFTPY_LOG_LEVLE nearest=LIFTPY_LOG_LEVEL" in caplog.messages


# ---- liftpy publish -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wrong", ["", "=1", "h", "="])
def test_publish_header_without_name_or_value_is_rejected(wrong: str) -> None:
    with pytest.raises(click.BadParameter):
        publish._headers(("a=1", wrong))


def test_publish_header_is_split_at_the_first_equals_sign() -> None:
    assert publish._headers(("a=1", "b=", "c=x=y", "a=2")) == (("a", b"1"), ("b", b""), ("c", b"x=y"), ("a", b"2"))


def test_publish_report_of_answers_out_of_order_contains_the_first_and_last_offset() -> None:
    async def reported() -> dict[str, object]:
        report = publish._Report()
        for line, offset in ((2, 8), (1, 7), (4, 12), (3, 9)):
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            answer.set_result(SimpleNamespace(offset=offset))
            report.count_answer(line, answer)
        for line in (9, 5, 7):
            answer = asyncio.get_running_loop().create_future()
            answer.set_exception(UnavailableError(f"line {line}"))
            report.count_answer(line, answer)
        answer = asyncio.get_running_loop().create_future()
        answer.cancel()
        report.count_answer(1, answer)
        return report.as_json

    found = asyncio.run(reported())
    assert [found[name] for name in ("published", "first_offset", "last_offset")] == [4, 7, 12]
    assert [found[name] for name in ("refused", "first_refused_line", "detail")] == [3, 5, "line 5"]


# ---- liftpy log ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "streams" / "s-1" / "0"
    log, _ = Log.open(DirectoryStorage(path), SMALL)
    fill(log, 40)
    log.raise_high_watermark(50)
    log.close()
    return path


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)


def test_log_dump_shows_each_damaged_segment_with_the_damage_position(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    files = sorted(folder.glob("*.log"))
    shown = json.loads(run(capsys, "log", "dump", "--json", str(folder))[1])["segments"]
    code, text = run(capsys, "log", "dump", str(folder))
    assert code == 0
    for segment in shown:
        offsets = f"{segment['base_offset']}..{segment['next_offset'] - 1}" if segment["records"] else "empty"
        row = next(line for line in text.splitlines() if segment["name"] in line)
        assert {offsets, str(segment["records"]), str(segment["file_size_bytes"])} <= set(row.split()), row
    for path in files[:3]:
        damage(path)
    code, text = run(capsys, "log", "verify", str(folder))
    assert code == 1
    assert all(path.name in text for path in files[:3])
    code, text = run(capsys, "log", "dump", str(folder))
    assert text.count("damaged at 0") == 3


def test_log_dump_shows_a_torn_tail_as_torn_and_not_as_damaged(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    last = sorted(folder.glob("*.log"))[-1]
    last.write_bytes(last.read_bytes()[:-5])
    _, text = run(capsys, "log", "dump", str(folder))
    row = next(line for line in text.splitlines() if last.name in line)
    assert "torn tail at" in row
    assert "damaged" not in row


# ---- liftpy controllers, liftpy service ---------------------------------------------------------------------------------
def test_controllers_command_prints_a_table_or_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    member = {"node_id": "n1", "leader": True, "term": 3, "commit_index": 9, "applied_index": 0, "lag": 2, "connected": True}
    member |= {"learner": False, "leaving": False}
    others = [{**member, "node_id": name, "leader": False, "connected": name == "n2"} for name in ("n2", "n3")]
    found = {"metadata_leader": "n1", "index": 9, "under_way": "", "controllers": [member, *others]}
    monkeypatch.setattr(controllers, "with_client", lambda *_: found)
    assert json.loads(run(capsys, "controllers", "--json")[1]) == found
    code, text = run(capsys, "controllers")
    assert code == 0
    rows = [line.split() for line in text.splitlines() if line.strip().startswith("n")]
    states = [("n1", "leader"), ("n2", "connected"), ("n3", "silent")]
    assert [row for row in rows if row[0] in ("n1", "n2", "n3")] == [[*state, "3", "9", "?", "2"] for state in states]
    assert "no metadata leader" not in text
    found["metadata_leader"], found["under_way"] = "", "n4 is being added"
    others[0]["learner"], others[1]["leaving"] = True, True
    text = run(capsys, "controllers")[1]
    for what in ("no metadata leader", "n4 is being added", "connected, catching up", "silent, leaving"):
        assert what in text


async def test_service_run_command_without_a_nats_server_logs_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def open_connection(nats: object, *, credentials: object, name: str) -> str:
        asked.append(name)
        if len(asked) < 5:
            raise UnavailableError("nobody there")
        return "connection"

    monkeypatch.setattr(service, "open_connection", open_connection)
    monkeypatch.setattr(service, "_CONNECT_AGAIN_S", 0.0)
    with caplog.at_level(logging.WARNING):
        settings: Any = SimpleNamespace(service="prices")
        assert await service._connect(settings, Target()) == "connection"  # type: ignore[comparison-overlap]
    assert asked == ["liftpy-service-prices"] * 5
    assert [record.getMessage() for record in caplog.records] == ["NATS connection failed error=nobody there: retrying"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("stream", "create", "s", "--subject", "s", "--segment-bytes", "1"), "--segment-bytes = 1 "),
        (("stream", "create", "s", "--subject", "s", "--quota-records", "-1"), "--quota-records = -1 "),
        (("log-level", "n1", "debug", "--duration", "25h"), "'--duration': 25h is outside 1ms to 1d"),
        (("log-level", "n1", "debug", "--duration", "0s"), "'--duration': 0s is outside 1ms to 1d"),
        (("publish", "s", "--header", "Lift-Key=1"), "--header: "),
        (("publish", "s", "--header", "Nats-Msg-Id=1"), "--header: "),
    ],
)
def test_command_with_a_value_out_of_range_exits_with_2_and_prints_the_option(
    words: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run(capsys, *words)
    assert code == 2
    assert named in said


def test_dev_command_with_an_unusable_data_directory_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    code, said = run(capsys, "dev", "--data", str(tmp_path / "file" / "data"), "--port", "0")
    assert (code, "Cannot use file" in said) == (2, True)


@pytest.mark.parametrize("twice", ["--set", "--settings"])
def test_service_parameter_given_twice_is_rejected(twice: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"limit": 1, "limit": 2}')
    given, settings = ((), file) if twice == "--settings" else (("limit=1", "limit=2"), None)
    with pytest.raises(ConfigError, match="twice"):
        service.read_parameters(Limited, given, settings)


class Limited(Service):
    """Has a parameter."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
