"""Test the golden output of every command (``python -m tests.unit.cli.golden --rewrite`` writes it again)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from sidecar.cli.main import liftpy
from tests.each import each
from tests.unit.cli.golden.script import FOLDER, CommandLine, commands_of, normalize, run_script

ROOT = Path(__file__).resolve().parents[3]
NOUNS = sorted(path.stem for path in FOLDER.glob("*.txt"))
NO_SUCCESS = {
    "dev": "starts nats-server and node processes",
    "demo": "starts node processes and Spark",
    "sidecar": "is a node, and runs until a signal",
    "dashboard": "listens on a real port until a signal",
    "bench": "measures real processes",
    "backup restore": "starts a helper node as a process",
    "backup drill": "starts a cluster of processes",
    "spark archive": "starts Spark",
    "spark replay": "starts Spark",
    "spark compact": "starts Spark",
    "spark audit": "starts Spark",
    "spark stats": "starts Spark",
}
"""Command whose success the scripts do not show -> the reason. They show its errors."""
NO_ERROR = {"controllers", "stream list", "group list", "cursor list", "context list", "top", "upgrade report"}
"""Commands that fail only where every command does: without a cluster, or with wrong usage."""


def _leaves(command: click.Command = liftpy, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield every command that does something, with its path."""
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield " ".join(path), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _leaves(below, (*path, name))


LEAVES = dict(_leaves())


@dataclass(frozen=True)
class _Run:
    """A command line of a script, and whether it succeeds."""

    line: CommandLine
    succeeds: bool

    def is_of(self, command: str) -> bool:
        words = command.split()
        return self.line.program == "liftpy" and self.line.words[: len(words)] == words


def _runs() -> Iterator[_Run]:
    for noun in NOUNS:
        script = (FOLDER / f"{noun}.txt").read_text(encoding="utf-8")
        outputs = f"\n{script}".split("\n$ ")[1:]
        for line, output in zip(commands_of(script), outputs, strict=True):
            yield _Run(line, "\n= " not in output)


RUNS = list(_runs())


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all scripts. The process is another one, because virtual time changes the standard library."""
    folder = tmp_path_factory.mktemp("golden")
    command = [sys.executable, "-m", "tests.unit.cli.golden", "--into", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.parametrize("noun", NOUNS)
def test_command_line_prints_its_golden_output(noun: str, transcripts: Path) -> None:
    now, golden = (folder / f"{noun}.txt" for folder in (transcripts, FOLDER))
    assert now.read_text(encoding="utf-8").splitlines() == golden.read_text(encoding="utf-8").splitlines()


@each("command", LEAVES)
def test_each_command_has_golden_output_of_success_json_and_an_error(command: str) -> None:
    runs = [run for run in RUNS if run.is_of(command)]
    assert command in NO_ERROR or not all(run.succeeds for run in runs), f"{command}: no golden output of an error"
    succeeded = [run.line.words for run in runs if run.succeeds]
    if command in NO_SUCCESS:
        assert not succeeded, f"{command} succeeds: remove it from NO_SUCCESS"
        return
    assert any("--json" not in words for words in succeeded), f"{command}: no golden output"
    if any("--json" in param.opts for param in LEAVES[command].params):
        assert any("--json" in words for words in succeeded), f"{command}: no golden output of --json"


class _EchoRunner:
    folder = Path()

    def run(self, words: list[str], stdin: bytes = b"") -> tuple[list[tuple[str, str]], int]:
        return [("", " ".join(words)), ("", ""), ("!", stdin.decode())], len(words)

    def event(self, text: str) -> None:
        """Do nothing."""


def test_golden_script_run_again_replaces_the_output_and_keeps_everything_else() -> None:
    before, now = (
        f"A comment.\n$ printf 'a\\n' | liftpy publish orders\n{first}\n@ kill n1\n$ liftpy status | head -n 1\n{second}"
        for first, second in (("  old\n! old\n= 3\n", ""), ("  publish orders\n! a\n= 2\n", "  status\n= 1\n"))
    )
    assert run_script(before, _EchoRunner()) == run_script(now, _EchoRunner()) == now


def test_golden_output_of_json_has_a_line_for_each_part_and_no_measured_values() -> None:
    assert normalize('{"a": 1, "took_s": 0.25, "age_s": null}') == ['{"a": 1, "took_s": "<measured>", "age_s": null}']
    long = "x" * 70
    assert normalize(f'[{{"name": "{long}"}}, {{"name": "{long}"}}]') == [
        "[", f'  {{"name": "{long}"}},', f'  {{"name": "{long}"}}', "]",
    ]  # fmt: skip
