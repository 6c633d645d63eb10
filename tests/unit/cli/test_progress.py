"""Progress of long commands: a bar on a terminal, lines with a percentage elsewhere."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from liftpy.testing.memory import MemoryCluster, memory_cluster
from sidecar.cli import output
from sidecar.cli.main import main
from sidecar.cli.output import Progress

LINES = 3000


@pytest.fixture(scope="module")
def cluster() -> Iterator[MemoryCluster]:
    with memory_cluster() as made:
        with made.sync_client() as client:
            client.create_stream("orders", "shop.orders", partitions=2)
        yield made


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_shows_a_bar_with_a_percentage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with Progress("orders", 200) as progress:
        progress.at(100, 7)
    assert "orders" in terminal.getvalue()
    assert "50%" in terminal.getvalue()


def test_progress_of_several_steps_prints_one_line_per_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "LINE_EVERY_S", 0.0)
    with Progress("restore", None) as progress:
        progress.step("starting the helper node", "", 0, 0)
        progress.step("copying to the replicas", "partitions", 1, 4)
    assert capsys.readouterr().err.splitlines() == ["starting the helper node", "copying to the replicas: 25 %, 1 partitions"]


def test_progress_of_a_short_command_prints_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("orders", 200) as progress:
        progress.at(200, 7)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["publish", "consume", "backup create", "backup verify"])
def test_progress_without_a_terminal_is_printed_as_lines_with_a_percentage(
    cluster: MemoryCluster, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sidecar.cli.session.connect", lambda *_, **__: cluster.client())
    monkeypatch.setattr(output, "LINE_EVERY_S", 0.0)
    lines = tmp_path / "lines"
    lines.write_text("".join(f"order {number}\n" for number in range(LINES)))
    words = {
        "publish": [["publish", "orders", str(lines)]],
        "consume": [["publish", "orders", str(lines)], ["consume", "orders", "--output", str(tmp_path / "x.jsonl")]],
        "backup create": [["backup", "create", f"file://{tmp_path}/store", "--json"]],
        "backup verify": [["backup", "create", f"file://{tmp_path}/store", "--json"], ["backup", "verify", f"file://{tmp_path}/store"]],
    }[command]  # fmt: skip
    for one in words:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main(one)
        assert not left.value.code
    said = capsys.readouterr()
    assert said.err.splitlines()[-1 if command != "consume" else -2].partition(": ")[2].startswith("100 %, ")
    if command == "backup create":
        assert json.loads(said.out)["backup"]
