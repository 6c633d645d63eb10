"""Commands in pages: every line ``liftpy ...`` of a block and every ``liftpy ...`` in backticks is one that there is."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator

import click

from sidecar.cli.main import liftpy
from tests.docs.pages import blocks, spans

SHELL = ("", "sh", "bash", "console")
_ENDS = re.compile(r"\s*(?:\||&&|;|\|\||2?>)\s*")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """(number from 0, command) with continued lines joined."""
    number = 0
    for line in re.sub(r"\\\n", "\x00", text).split("\n"):
        yield number, line.replace("\x00", " ")
        number += 1 + line.count("\x00")


def said(page: str) -> Iterator[tuple[int, list[str], bool]]:
    """(line, words behind ``liftpy``, whether it stands in a block: whole then) of each command of a page."""
    for block in blocks(page):
        if block.language in SHELL:
            for number, line in _lines(block.text):
                if block.language == "console" and not line.startswith("$ "):
                    continue
                for part in re.split(r"\s(?:\||&&|;|>)\s|\$\(", line.removeprefix("$ ")):
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


def understood(words: list[str]) -> None:
    """Whether the command line is one; raises click's error where it is not. Nothing is carried out."""
    command: click.Command = liftpy
    context = command.make_context("liftpy", words)
    while isinstance(command, click.Group) and (rest := [*context._protected_args, *context.args]):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        assert name is not None
        command = found
        context = command.make_context(name, rest, parent=context)


def wrong_with(words: list[str], whole: bool) -> str:
    """What is wrong with a command; '' if nothing is. ``whole``: it is to run as it stands, on a machine that has its files; else
    it may lack what it needs, and name alternatives, ``a|b``."""
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if whole and "..." not in words:
        try:
            with contextlib.redirect_stdout(None):
                understood(words)
        except click.exceptions.Exit:  # of --help and --version
            return ""
        except click.UsageError as error:
            return "" if "does not exist" in error.format_message() else error.format_message()
        return ""
    command: click.Command = liftpy
    path, left = ["liftpy"], list(words)
    while isinstance(command, click.Group) and left and not left[0].startswith("-"):
        names = left.pop(0).split("|")
        if not all(re.fullmatch(r"[a-z-]+", name) for name in names):
            break  # what is asked of the group itself, or a placeholder
        found = [command.get_command(click.Context(command), name) for name in names]
        if None in found:
            return f"{' '.join(path)} has no command {names[found.index(None)]}"
        path.append("|".join(names))
        if len(names) > 1:
            return ""
        assert found[0] is not None
        command = found[0]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    for word in left:
        for option in re.split(r"[|/]", word.strip("[]")):
            name = option.partition("=")[0]
            if re.fullmatch(r"--[a-z][a-z-]*", name) and name not in options:
                return f"{' '.join(path)} has no option {name}"
    return ""
