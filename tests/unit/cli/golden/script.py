"""Golden scripts: read one, run it, and write its transcript."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

FOLDER = Path(__file__).resolve().parent
_JSON_WIDTH = 118
_MEASURED = {
    "acks", "age_s", "bytes_out", "glance", "loop_lag", "loop_p99_s", "ack_p50_s", "ack_p99_s", "records_out", "seconds", "took_s",
    "uptime_s", "operation_id", "applied_index", "commit_index", "index", "changed_at", "digest",
    "size_bytes", "written_bytes",
}  # fmt: skip
"""JSON keys of values that differ between two runs."""
_LEFT_OUT = re.compile(r"\s*|.* being copied, .* left")
"""Lines that a transcript leaves out: empty ones, and the progress of moves, which depends on time."""
_REPLACED = (
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?", "<time>"),
    (r"\b\d\d:\d\d:\d\d UTC\b", "<time>"),
    (r"\b1[0-9]{18}\b", "<ns>"),
    (r"\b[0-9a-f]{12}(?= )", "<shortened id>"),
    (r"\b[0-9]{6}-[0-9a-f]{11}\b", "<uid>"),
    (r"\b2\d{7}T\d{6}Z-[0-9a-f]{8}\b", "<backup>"),
    (r"\b[0-9a-f]{32}\b", "<id>"),
    (r"\b[\w-]{16}(?=\.\d+\b)", "<message>"),
    (r"((?:leader|connected|silent|leaving|catching up)\s+)\d+\s+\d+\s+(?:\d+|\?)\s+\d+", r"\1<measured>"),
    (r"(<time>  )\d+\.", r"\1<index>."),
    (r"\b\d+(\s+)\d+(\s+)[0-9a-f]{16}\b", r"<term>\1<index>\2<digest>"),
    (r"\b\d+\.\d+ (ms|s)\b", r"<measured> \1"),
    (r"\b0 h 0\d min\b", "<measured>"),
    (r"( to purge, waiting for) .*", r"\1 <nodes>"),
    (r"/proc/self/fd/500|/tmp/liftpy-world-\w+", "<nodes>"),
    (r"/tmp/liftpy-golden-\w+", "<home>"),
)
"""Regular expression of a text that differs between two runs -> what is shown in its place."""


@dataclass(frozen=True)
class Step:
    """One part of a script: a comment, a command (``$``) or an event (``@``)."""

    kind: str
    text: str


def steps(script: str) -> Iterator[Step]:
    """Yield the parts of a script without the output of its commands."""
    for line in script.splitlines():
        if line[:2] in ("$ ", "@ "):
            yield Step(line[0], line[2:])
        elif line[:1] not in (" ", "!", "="):
            yield Step("", line)


@dataclass(frozen=True)
class CommandLine:
    """A command of a script. ``words``: without the program's name. ``head``: maximum number of lines that are shown, 0: all."""

    program: str
    words: list[str]
    stdin: bytes
    head: int

    @classmethod
    def of(cls, text: str) -> CommandLine:
        """Return the command of a line such as ``printf 'a\\nb\\n' | liftpy publish orders``."""
        stdin, head = b"", 0
        if found := re.fullmatch(r"printf '(.*?)' \| (.*)", text):
            stdin, text = found[1].replace("\\n", "\n").encode(), found[2]
        if found := re.fullmatch(r"(.*) \| head -n (\d+)", text):
            text, head = found[1], int(found[2])
        program, *words = shlex.split(text)
        return cls(program, words, stdin, head)


class Runner(Protocol):
    """A cluster that runs commands, and lets events happen to itself."""

    folder: Path

    def run(self, words: list[str], stdin: bytes = b"") -> tuple[list[tuple[str, str]], int]:
        """Run a command line. Return its lines, each with "" for standard output and "!" for standard error, and the exit code."""

    def event(self, text: str) -> None:
        """Let something happen to the cluster."""


def run_script(script: str, runner: Runner) -> str:
    """Run a script, and return it with the present output of its commands."""
    lines: list[str] = []
    for step in steps(script):
        if not step.kind:
            lines.append(step.text)
            continue
        lines.append(f"{step.kind} {step.text}")
        if step.kind == "@":
            runner.event(step.text)
            continue
        command = CommandLine.of(step.text)
        if command.program == "cat":
            output, code = [("", line) for line in (runner.folder / command.words[0]).read_text().splitlines()], 0
        else:
            output, code = runner.run(command.words, command.stdin)
        for mark, line in output[: command.head or None]:
            texts = [f"{mark or ' '} {shown}".rstrip() for shown in normalize(line) if not _LEFT_OUT.fullmatch(shown)]
            if mark != "!" or texts != lines[-1:]:
                lines += texts
        if code:
            lines.append(f"= {code}")
    return "\n".join(lines) + "\n"


def normalize(line: str) -> list[str]:
    """Return the lines that a transcript shows for one line of output."""
    if line[:1] in "[{" and line[-1:] in "]}":
        try:
            shown = list(_json_lines(_without_measured(json.loads(line))))
        except ValueError:
            shown = [line]
    else:
        shown = [line]
    for expression, text in _REPLACED:
        shown = [re.sub(expression, text, one) for one in shown]
    return shown


def _without_measured(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: "<measured>" if name in _MEASURED and found is not None else _without_measured(found)
            for name, found in value.items()
        }
    return [_without_measured(found) for found in value] if isinstance(value, list) else value


def _json_lines(value: Any, indent: str = "", key: str = "", end: str = "") -> Iterator[str]:
    """Yield a JSON value in one line, or if it is too long, in a line for each part."""
    whole = indent + key + json.dumps(value, ensure_ascii=False) + end
    if len(whole) <= _JSON_WIDTH or not isinstance(value, dict | list) or not value:
        yield whole
        return
    is_object = isinstance(value, dict)
    yield indent + key + ("{" if is_object else "[")
    parts = list(value.items()) if isinstance(value, dict) else [("", found) for found in value]
    for number, (name, found) in enumerate(parts, 1):
        comma = "," if number < len(parts) else ""
        yield from _json_lines(found, indent + "  ", f"{json.dumps(name)}: " if is_object else "", comma)
    yield indent + ("}" if is_object else "]") + end


def commands_of(script: str) -> list[CommandLine]:
    """Return the command lines of a script."""
    return [CommandLine.of(step.text) for step in steps(script) if step.kind == "$"]
