"""Commands in pages: every ``liftpy ...`` line of a block and every ``liftpy ...`` in backticks is one that there is, with such options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click

from sidecar.cli.health_nats import health
from sidecar.cli.main import liftpy
from tests.docs.pages import blocks, spans

SHELL = ("", "sh", "bash", "console")
_ENDS = re.compile(r"\s*(?:\||&&|;|\|\||2?>)\s*")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """(number from 0, command) with continued lines joined."""
    number = 0
    for line in re.sub(r"\\\n", "\x00", text).split("\n"):
        yield number, line.replace("\x00", " ").removeprefix("$ ")
        number += 1 + line.count("\x00")


def said(page: str) -> Iterator[tuple[int, list[str], bool]]:
    """(line, words behind ``liftpy``, whether it stands in a block: whole then) of each command of a page."""
    for block in blocks(page):
        if block.language in SHELL:
            for number, line in _lines(block.text):
                for part in re.split(r"\s(?:\||&&|;)\s|\$\(", line):
                    words = _words(part)
                    if words[:1] == ["liftpy"] and len(words) > 1:
                        yield block.line + number, words[1:], True
    for number, text in spans(page):
        words = _words(text)
        if words[:1] == ["liftpy"] and len(words) > 1:
            yield number, words[1:], False


def _words(text: str) -> list[str]:
    text = text.strip().partition(")")[0] if "$(" not in text and "(" not in text else text.strip()
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def wrong_with(words: list[str], whole: bool) -> str:
    """What is wrong with a command; '' if nothing is. ``whole``: else it may lack what it needs, and name alternatives, ``a|b``."""
    command: click.Command = liftpy
    path, words = ["liftpy"], list(words)
    if any(word in ("...", "ARGS") for word in words):
        whole = False
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        names = words.pop(0).split("|") if not whole else [words.pop(0)]
        context = click.Context(command)
        found = [command.get_command(context, name) for name in names]
        if command.get_command(context, names[0]) is None and not re.fullmatch(r"[a-z-]+", names[0]):
            return ""  # a placeholder
        for name, one in zip(names, found, strict=True):
            if one is None:
                return f"{' '.join(path)} has no command {name}"
        path.append(names[0])
        if found[0] is None or len(names) > 1:
            return ""
        command = health if found[0].name == "health" else found[0]
    if isinstance(command, click.Group) and whole and not words:
        return "" if command.invoke_without_command else f"{' '.join(path)} is no command by itself"
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help", "-h", "--version",
    }  # fmt: skip
    for word in words:
        for option in re.split(r"[|/]", word.strip("[]")) if not whole else [word]:
            name = option.partition("=")[0]
            if re.fullmatch(r"--[a-z][a-z-]*", name) and name not in options:
                return f"{' '.join(path)} has no option {name}"
    if whole and not isinstance(command, click.Group):
        try:
            context = click.Context(command, info_name=" ".join(path))
            left, rest, _ = command.make_parser(context).parse_args(list(words))
        except click.UsageError as error:
            return f"{' '.join(path)}: {error.format_message()}"
        for parameter in command.params:
            if parameter.required and not isinstance(left.get(str(parameter.name)), (str, tuple, list)):
                return f"{' '.join(path)} needs {parameter.opts[0]}"
        if rest:
            return f"{' '.join(path)} takes no {rest[0]}"
    return ""
