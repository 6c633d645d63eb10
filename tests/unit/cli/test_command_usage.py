"""Values of options without a cluster: accepted values, rejected values, and texts for people and programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from liftpy.errors import ConfigError
from liftpy.service import Service
from sidecar.cli import service, sidecar
from sidecar.cli.main import main
from sidecar.cli.options import OutputFile
from tests.each import each
from tests.unit.cli.conftest import Run


# ---- files that a command writes late ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "words", [["bench", "--output"], ["bench", "--plot"], ["spark", "stats", "orders", "--plot"]], ids=" ".join
)
def test_command_with_an_output_file_that_cannot_be_written_is_rejected(words: list[str], tmp_path: Path, run: Run) -> None:
    for path, reason in ((tmp_path / "no" / "file", "No such file or directory"), (tmp_path, "Is a directory")):
        code, said = run.joined(*words, str(path))
        assert code == 2
        assert f"Invalid value for '{words[-1]}': Cannot write '{path}': {reason}. Use another path." in said


def test_output_file_check_creates_and_changes_no_file(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("before")
    for path in (kept, tmp_path / "new"):
        assert OutputFile().convert(str(path), None, None) == path
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("kept", "before")]


def test_option_for_an_output_file_keeps_a_link_to_a_file_that_does_not_exist(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "results")
    assert OutputFile().convert(str(link), None, None) == link
    assert (link.is_symlink(), link.exists()) == (True, False)


def test_option_for_an_output_file_accepts_a_pipe() -> None:
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write):
        path = f"/proc/self/fd/{write}"  # as /dev/stdout
        assert OutputFile().convert(path, None, None) == Path(path)


@pytest.mark.parametrize("command", [["list"], ["create"], ["prune", "--keep", "1"]], ids=str)
@pytest.mark.parametrize(("url", "reason"), [("", "is empty"), ("~nobody-has-this-name/b", "no such user")])
def test_backup_command_with_an_impossible_directory_is_rejected(command: list[str], url: str, reason: str, run: Run) -> None:
    """An unset variable of a script selected the working directory."""
    code, said = run.joined("backup", *command, url)
    assert (code, reason in said) == (2, True)


# ---- variables of the environment ---------------------------------------------------------------------------------------
def test_dev_command_logs_a_warning_about_an_unknown_environment_variable(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("LIFTPY_REPLICATION_LEASE", "2")
    monkeypatch.setenv("LIFTPY_XYZ", "2")
    code, said = run.joined("dev", "--nats", "nats://127.0.0.1:1", "--max-payload", "2MiB")
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


# ---- liftpy controllers, liftpy service ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("stream", "create", "s", "--subject", "s", "--segment-bytes", "1"), "--segment-bytes = 1 "),
        (("stream", "create", "s", "--subject", "s", "--quota-records", "-1"), "--quota-records = -1 "),
        (("log-level", "n1", "debug", "--duration", "25h"), "'--duration': 25h is outside 1ms to 1d"),
        (("log-level", "n1", "debug", "--duration", "0s"), "'--duration': 0s is outside 1ms to 1d"),
        (("backup", "create", "x", "--bytes-per-s", "0.4"), "'--bytes-per-s': 0.4 is less than 1 byte"),
        (("stream", "create", "x", "--subject", "x", "--retention-bytes", "0.0001kB"), "0.0001kB is less than 1 byte"),
        (("publish", "s", "--header", "Lift-Key=1"), "--header: "),
        (("publish", "s", "--header", "Nats-Msg-Id=1"), "--header: "),
    ],
)
def test_command_with_a_value_out_of_range_exits_with_2_and_prints_the_option(
    words: tuple[str, ...], named: str, run: Run
) -> None:
    code, said = run.joined(*words)
    assert code == 2
    assert named in said


@each(
    ("words", "named"),
    [
        ("backup restore store --all --stream s", "--all, or --into NAME"),
        ("backup restore store --all --subject s", "--all, or --into NAME"),
        ("backup restore store --all --into s", "--all, or --into NAME"),
        ("partition move s 0 --node n1 --cancel", "--node NODE,NODE,... or --cancel"),
        ("partition move s 0", "--node NODE,NODE,... or --cancel"),
        ("stream create s --subject s --allow-offline", "--allow-offline needs --assignment"),
    ],
)
def test_command_with_options_that_exclude_each_other_exits_with_2(words: str, named: str, run: Run) -> None:
    code, said = run.joined(*words.split())
    assert code == 2
    assert named in " ".join(said.split())


def test_dev_command_with_an_unusable_data_directory_exits_with_2(tmp_path: Path, run: Run) -> None:
    (tmp_path / "file").write_bytes(b"")
    code, said = run.joined("dev", "--data", str(tmp_path / "file" / "data"), "--port", "0")
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
