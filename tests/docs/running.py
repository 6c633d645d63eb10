"""Runs the blocks of a page as a reader would, in order, and compares what comes out.

A block ``console`` has commands behind ``$``, and below each command its output. ``...`` stands for any lines, and at the end of a line
for its rest. A block ``text`` behind a block ``python`` is what that prints. Numbers and the space between words are masked, because
times, ports and widths of tables differ. What runs until Ctrl-C (``ENDLESS``) stays in the background until the reader leaves.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

ENDLESS = ("liftpy dev", "liftpy dashboard")
LONGEST_S = 90.0
"""A command that takes longer is given up."""
_POLL_S = 0.05


class UnexpectedOutputError(AssertionError):
    """A block says something else than its page."""


def masked(text: str) -> list[str]:
    """Lines that say something, as they are compared."""
    lines = (re.sub(r"\d+(?:\.\d+)*", "0", " ".join(line.split())) for line in text.splitlines())
    return [line for line in lines if line]


def _line_pattern(line: str) -> str:
    return (re.escape(line.removesuffix("...")) + ".*" if line.endswith(" ...") else re.escape(line)) + "\n"


def fits(expected: str, said: str) -> bool:
    """Whether ``said`` is what a page promises."""
    wanted = "".join(r"(?:.*\n)*" if line == "..." else _line_pattern(line) for line in masked(expected))
    return re.fullmatch(wanted, "".join(line + "\n" for line in masked(said))) is not None


def compare(expected: str, said: str, what: str) -> None:
    """Raise UnexpectedOutputError where they differ."""
    if not fits(expected, said):
        raise UnexpectedOutputError(f"{what}: expected\n{expected}\nsaid\n{said}")


def commands(console: str) -> list[tuple[str, str]]:
    """(command, what it is to say) of a block ``console``."""
    found: list[tuple[str, str]] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), ""))
        else:
            command, said = found[-1]
            found[-1] = (command, f"{said}{line}\n")
    return found


class Reader:
    """Somebody who does what a page says, in ``folder``, in one shell; use it as a context manager. ``environment``: the shell's.
    ``instead``: text of a page -> what is run in its place, such as a port that is free; endless commands fill in theirs.
    ``in_each``: what is done first in each further terminal. ``longest_s``: a command that takes longer is given up."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        instead: Mapping[str, str] | None = None,
        *,
        in_each: str = "",
        longest_s: float = LONGEST_S,
    ) -> None:
        self._folder, self._in_each, self._longest_s = folder, in_each, longest_s
        self._instead = dict(instead or {})
        self._environment = dict(environment)
        self._endless: list[subprocess.Popen[bytes]] = []
        self._shell = subprocess.Popen(
            ["bash"], cwd=folder, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, bufsize=0, process_group=0,
        )  # fmt: skip

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in reversed(self._endless):
            process.terminate()  # as Ctrl-C; that is ignored below a shell's background
            try:
                process.wait(LONGEST_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        self._end_shell()

    def _end_shell(self) -> None:
        for pipe in (self._shell.stdin, self._shell.stdout):
            assert pipe is not None
            pipe.close()
        if self._shell.poll() is None:
            os.killpg(self._shell.pid, signal.SIGTERM)
        self._shell.wait(LONGEST_S)

    def adapted(self, text: str) -> str:
        """As it is run here."""
        for old, new in self._instead.items():
            text = text.replace(old, new)
        return text

    def console(self, block: str, at: str) -> None:
        """Run its commands; raise UnexpectedOutputError for what they say, and for one that fails."""
        for command, expected in commands(block):
            if command.startswith(ENDLESS):
                self._begin(self.adapted(command), self.adapted(expected), f"{at}: {command}")
            else:
                compare(expected, self.shell(self.adapted(command)), f"{at}: {command}")

    def shell(self, command: str) -> str:
        """What a command says in the shell that is there; raise UnexpectedOutputError where it fails, or takes too long."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f'{command}\necho "<<done $?>>"\n'.encode())
        said, until = b"", time.monotonic() + self._longest_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._shell.stdout, selectors.EVENT_READ)
            while (ended := re.search(rb"<<done (\d+)>>\n$", said)) is None:
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise UnexpectedOutputError(f"{command} takes longer than {self._longest_s:g} s:\n{said.decode()}")
                if not (more := os.read(self._shell.stdout.fileno(), 65536)):
                    raise UnexpectedOutputError(f"{command}: the shell has ended:\n{said.decode()}")
                said += more
        text = said[: ended.start()].decode()
        if ended[1] != b"0":
            raise UnexpectedOutputError(f"{command} ends with {ended[1].decode()}:\n{text}")
        return text

    def _begin(self, command: str, expected: str, what: str) -> None:
        """Start it, and wait until it has said all that the page shows."""
        log = self._folder / f"endless-{len(self._endless)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"{self._in_each}exec {command}"], cwd=self._folder, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, process_group=0,
            )  # fmt: skip
        self._endless.append(process)
        until = time.monotonic() + self._longest_s
        while not fits(expected, text := log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() > until:
                raise UnexpectedOutputError(f"{what}: expected\n{expected}\nsaid\n{text}")
            time.sleep(_POLL_S)
        for address in re.findall(
            r"^(?:ready: \d+ nodes on nats|The page is at http)://127\.0\.0\.1:(\d+)", text, re.MULTILINE
        ):
            page = "4222" if command.startswith("liftpy dev") else "8223"
            self._instead[f"127.0.0.1:{page}"] = f"127.0.0.1:{address}"
            if page == "4222":
                self.shell(f"export LIFTPY_NATS=nats://127.0.0.1:{address}")
                self._environment["LIFTPY_NATS"] = f"nats://127.0.0.1:{address}"

    def python(self, block: str, number: int) -> str:
        """Run it as a program of its own, by the shell's python; what it prints."""
        path = self._folder / f"block{number}.py"
        path.write_text(self.adapted(block), encoding="utf-8")
        return self.shell(f"python {path.name} 2>errors.log || (cat errors.log; exit 1)")
