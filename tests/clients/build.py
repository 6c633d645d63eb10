"""The clients' programs: what each is built with, and where. Sources are copied to a folder of their own and built there.

The folder is ``~/.cache/liftpy-clients``, or what LIFTPY_CLIENTS names; what is there and as old as its sources is not built again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PROGRAMS = Path(__file__).parent / "programs"
_BUILD_S = 1800.0
_MARK = "built-from"


class MissingError(Exception):
    """The program can't be had here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """``build``: shell commands, in a copy of the sources; ``run``: the command there, without the URL. ``lacks``: ops."""

    name: str
    sources: str = ""
    """Folder below ``folder``; '': a module of Python, which is not built."""
    tools: tuple[str, ...] = ()
    build: str = ""
    run: tuple[str, ...]
    lacks: frozenset[str] = frozenset({"atomic", "fast"})
    folder: Path = _PROGRAMS
    """Where ``sources`` is."""
    only_kills: bool = False
    """Not a JetStream client: only its publishes over fail-overs are looked at."""

    @property
    def is_built(self) -> bool:
        """Whether ``ready`` builds and downloads nothing."""
        mark = _cache() / self.sources / _MARK
        return not self.sources or (mark.exists() and mark.read_text() == _digest(self.folder / self.sources, self.build))

    def ready(self) -> tuple[list[str], Path]:
        """The command, and the folder to run it in; builds it first where that is needed. Raises MissingError."""
        if not self.sources:
            return [sys.executable, *self.run], ROOT
        missing = [tool for tool in self.tools if shutil.which(tool) is None]
        if missing:
            raise MissingError(f"no {', '.join(missing)} here")
        folder = _cache() / self.sources
        if not self.is_built:
            self._build(folder)
            (folder / _MARK).write_text(_digest(self.folder / self.sources, self.build))
        return [str(folder / self.run[0]) if self.run[0].startswith("./") else self.run[0], *self.run[1:]], folder

    def _build(self, folder: Path) -> None:
        shutil.copytree(self.folder / self.sources, folder, dirs_exist_ok=True)
        done = subprocess.run(
            ["sh", "-c", self.build], cwd=folder, capture_output=True, text=True, timeout=_BUILD_S, check=False
        )
        if done.returncode:
            said = (done.stderr + done.stdout).strip().splitlines()
            raise MissingError(f"`{self.build}` fails: {' | '.join(said[-2:])[-300:]}")


def _cache() -> Path:
    return Path(os.environ.get("LIFTPY_CLIENTS") or Path.home() / ".cache" / "liftpy-clients")


def _digest(folder: Path, build: str) -> str:
    found = hashlib.sha256(build.encode())
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return found.hexdigest()


READER = Program(
    name="the reader of docs/read-protocol.md",
    sources="reader_go",
    tools=("go",),
    build="go mod tidy && go build -o reader .",
    run=("./reader",),
)
READS = (
    Program(
        name="nats.js",
        sources="reads_js",
        tools=("node", "npm"),
        build="npm install --no-package-lock --no-audit --no-fund",
        run=("node", "reads.js"),
    ),
    Program(name="nats.go", sources="reads_go", tools=("go",), build="go mod tidy && go build -o reads .", run=("./reads",)),
)
"""Readers through JetStream's API."""
_NATS_CLI = "github.com/nats-io/natscli/nats@latest"
PROGRAMS = {
    program.name: program
    for program in (
        Program(name="nats-py", run=("-m", "tests.clients.programs.nats_py"), lacks=frozenset({"atomic"})),
        Program(
            name="nats.js",
            sources="nats_js",
            tools=("node", "npm"),
            build="npm install --no-package-lock --no-audit --no-fund",
            run=("node", "client.js"),
            lacks=frozenset({"fast"}),
        ),
        Program(
            name="nats.go",
            sources="nats_go",
            tools=("go",),
            build="go mod tidy && go build -o client .",
            run=("./client",),
            lacks=frozenset(),
        ),
        Program(
            name="async-nats",
            sources="async_nats",
            tools=("cargo",),
            build="cargo build --release",
            run=("./target/release/client",),
        ),
        Program(
            name="jnats",
            sources="jnats",
            tools=("java", "mvn"),
            build="mvn -q package dependency:copy-dependencies",
            run=("java", "-cp", "target/classes:target/dependency/*", "Client"),
        ),
        Program(
            name="nats-cli",
            sources="nats_cli",
            tools=("go",),
            build=f"GOBIN=$PWD go install {_NATS_CLI}",
            run=(sys.executable, "client.py"),
            lacks=frozenset({"atomic", "fast", "many"}),
        ),
        Program(name="liftpy", run=("-m", "tests.clients.programs.liftpy_async"), only_kills=True),
        Program(name="liftpy-sync", run=("-m", "tests.clients.programs.liftpy_sync"), only_kills=True),
    )
}
