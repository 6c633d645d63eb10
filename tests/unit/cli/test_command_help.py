"""``--help`` of every command has sentences and an example that runs. ``liftpy --help`` lists every command."""

from __future__ import annotations

import re
import shlex
from functools import cache

import click
import pytest

from sidecar.cli.help import SHARED_OPTIONS
from sidecar.cli.main import COMMANDS, SECTIONS
from tests.docs.commands_said import wrong_with
from tests.each import each
from tests.freeze.parts import commands
from tests.unit.cli.conftest import Run


@cache
def all_commands() -> dict[str, click.Command]:
    return {" ".join(path): command for path, command in commands()}


@each("name", all_commands())
def test_help_of_each_command_contains_an_example_with_valid_options(name: str) -> None:
    command = all_commands()[name]
    lines = str(getattr(command, "example", "")).splitlines()
    assert lines
    for line in lines:
        words = shlex.split(re.split(" [<>] ", line)[0], comments=True)
        assert words[:1] == ["liftpy"]
        assert wrong_with(words[1:], whole=True) == ""
        assert line.startswith(name) or isinstance(command, click.Group) or name == "liftpy"


@each("name", all_commands())
def test_help_of_each_command_consists_of_sentences(name: str) -> None:
    command = all_commands()[name]
    first = (command.help or "").strip().partition("\n")[0]
    assert first[:1].isupper()
    for param in command.params:
        if isinstance(param, click.Option):
            text = re.split(r"  \[(?:default|env)", param.help or "")[0].removesuffix(" (default)")
            assert text[:1].isupper(), f"{param.opts}: {text}"
            assert text.endswith((".", ".]")), f"{param.opts}: {text}"


def test_main_help_lists_each_command_in_exactly_one_section() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(COMMANDS)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("pubish", "liftpy publish"), ("stram list", "liftpy stream"), ("stream creat", "liftpy stream create"),
        ("spark archve", "liftpy spark archive"), ("service quey", "liftpy service query"), ("stream list --jsn", "--json"),
    ],
)  # fmt: skip
def test_command_line_with_a_typo_suggests_the_nearest_command_or_option(typed: str, meant: str, run: Run) -> None:
    assert f"'{meant}'" in run.joined(*typed.split())[1]


def test_help_command_prints_the_same_text_as_the_help_option(run: Run) -> None:
    assert run("help", "stream", "create") == run("stream", "create", "--help")
    assert run("help") == run("--help")


def test_help_of_a_command_lists_connection_options_in_the_last_section(run: Run) -> None:
    own, _, connection = run("stream", "list", "--help")[1].partition("Connection options:")
    assert "--json" in own
    assert "--nats" not in own
    assert "'liftpy --help' describes them" in " ".join(connection.split())
    own, _, described = run("--help")[1].partition("Connection options (before or after the command):")
    assert "--version" in own
    assert "--nats" not in own
    assert {f"LIFTPY_{name.upper()}" for name in SHARED_OPTIONS} <= set(re.findall(r"env:\s*(\w+)", described))
