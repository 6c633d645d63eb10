"""Runs tests on a copy of the tree with one mutant in it. The checkout itself is never changed.

Libraries of others are imported once; each run is a fork, in which pytest imports the copy's modules. A process group for each run, so
that what it leaves behind ends with it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import PACKAGES, ROOT, SIMULATION, Mutant

_LIBRARIES = (
    "pytest", "_pytest.assertion.rewrite", "pytest_asyncio.plugin", "pytest_timeout", "xdist.plugin", "hypothesis.strategies", "numpy",
    "pyarrow", "google.protobuf.message", "crc32c", "lz4.block", "zstandard", "nats.aio.client", "pysyncobj", "nkeys",
)  # fmt: skip
_SIMULATED = ("-m", "tests.simulation.replica", "--seeds", "25", "--events", "6000")
_POLL_S = 0.02
_PATIENCE = 4
_NO_TESTS = (3, 4, 5)
"""pytest's exit codes that say nothing of the code: internal error, wrong use, nothing collected."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``verdict``: killed, survived, or error (the runner's own). ``by``: what has noticed it, or what went wrong."""

    verdict: str
    by: str
    seconds: float


def preload() -> None:
    """Import what every run needs and no mutant changes."""
    for name in _LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def copy_tree(folder: Path) -> None:
    """The sources as git knows them (new ones included) into ``folder``, which is made."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_file() or source.is_symlink():  # the page's runbooks are those of docs/, by a link to a folder
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


class Place:
    """A copy of the tree, in which one mutant at a time is tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        copy_tree(folder)

    def green(self, package: str, limit_s: float) -> Outcome:
        """How the package's tests end without a mutant: 'survived' is what it has to be."""
        return self._run(PACKAGES[package], limit_s)

    def attempt(self, mutant: Mutant, limit_s: float, *, near_only: bool = False) -> Outcome:
        """Its own tests, then the package's; the first failure decides. Not done in ``limit_s`` counts as killed. ``near_only``: of the
        package's first folder of tests only those that name the module."""
        path = self.folder / mutant.file
        began = time.monotonic()
        try:
            text = path.read_text(encoding="utf-8")
            changed = mutant.changed(text)
            compile(changed, mutant.file, "exec")
        except (OSError, ValueError, SyntaxError) as error:
            return Outcome("error", str(error), 0.0)
        try:
            _put(path, changed)
            for tests in filter(None, (mutant.tests, tuple(self._by_nearness(mutant, near_only)))):
                outcome = self._run(tests, limit_s)
                if outcome.verdict != "survived":  # else the package's, which take longer even to collect
                    break
            return Outcome(outcome.verdict, outcome.by, time.monotonic() - began)
        finally:
            _put(path, text)
            shutil.rmtree(self.folder / ".hypothesis", ignore_errors=True)  # a failing example is no help for the next mutant

    def _by_nearness(self, mutant: Mutant, near_only: bool) -> list[str]:
        """The package's test files, those first that name the module which the mutant is in."""
        files: list[Path] = []
        for path in PACKAGES[mutant.package][: 1 if near_only else None]:
            place = self.folder / path
            files += sorted(place.rglob("test_*.py")) if place.is_dir() else [place]
        module = mutant.file.removesuffix(".py").replace("/", ".")
        names = (
            module,
            f"from {module.rpartition('.')[0]} import {module.rpartition('.')[2]}",
            f"import {module.rpartition('.')[2]}",
        )
        near = [file for file in files if any(name in file.read_text(encoding="utf-8") for name in names)]
        ordered = [*near, *([] if near_only and near else [file for file in files if file not in near])]
        return [str(file.relative_to(self.folder)) for file in ordered]

    def _run(self, tests: tuple[str, ...], limit_s: float) -> Outcome:
        began = time.monotonic()
        said = self.folder / "said"
        code = None
        paths = [test for test in tests if test != SIMULATION]
        if paths:
            code = self._forked(paths, said, limit_s)
        if code in (None, 0) and SIMULATION in tests:
            code = self._simulated(said, limit_s)
        seconds = time.monotonic() - began
        if code == 0:
            return Outcome("survived", "", seconds)
        lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
        if code is None:
            return Outcome("killed", f"not done in {limit_s:.0f} s", seconds)
        if code in _NO_TESTS:
            return Outcome("error", f"pytest ends with {code}: {' '.join(lines[-3:])[:200]}", seconds)
        noticed = [line for line in lines if line.startswith(("FAILED", "ERROR", "VIOLATION"))]
        return Outcome("killed", (noticed or lines or [f"exit code {code}"])[-1][:160], seconds)

    def _forked(self, paths: list[str], said: Path, limit_s: float) -> int | None:
        """pytest's exit code; None: it was not done in time."""
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                self._become_pytest(paths, said)
            finally:
                os._exit(3)
        return _wait(child, limit_s)

    def _become_pytest(self, paths: list[str], said: Path) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with said.open("w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(self.folder)
        for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "liftpy", "sidecar", "pyspark_liftpy")]:
            del sys.modules[name]
        sys.path[:] = [str(self.folder), *(p for p in sys.path if p not in ("", str(ROOT)))]
        os.environ |= {"PYTHONPATH": str(self.folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}
        import pytest

        options = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:faulthandler",
            "--tb=line",
            "-m",
            "not processes and not spark",
        ]
        code = int(pytest.main([*options, "--rootdir", str(self.folder), *paths]))
        sys.stdout.flush()
        os._exit(code)

    def _simulated(self, said: Path, limit_s: float) -> int | None:
        with said.open("w", encoding="utf-8") as file:
            child = subprocess.Popen(
                [sys.executable, *_SIMULATED],
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": str(self.folder)},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        return _wait(child.pid, limit_s)


def _cpu_s(child: int) -> float:
    """What ``child`` has used of a processor: a loaded machine makes no test a killer."""
    fields = Path(f"/proc/{child}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _wait(child: int, limit_s: float) -> int | None:
    """The exit code; None where it has used more than ``limit_s`` of a processor, or ``_PATIENCE`` times as long has passed."""
    end = time.monotonic() + _PATIENCE * limit_s
    code = None
    while time.monotonic() < end and _cpu_s(child) < limit_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            code = code if code >= 0 else 1
            break
        time.sleep(_POLL_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if code is None:
        os.waitpid(child, 0)
    return code


def _put(path: Path, text: str) -> None:
    """The new text; what Python has compiled of the old one goes (it compares times in seconds)."""
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
