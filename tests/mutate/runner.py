"""Run tests against one mutant at a time, in a copy of the tree. The checkout itself is never changed.

Each run is a fork with its own process group. The libraries of others are imported once, before the forks.
"""

from __future__ import annotations

import ast
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
from typing import Any

from tests.mutate.operators import Mutant

ROOT = Path(__file__).resolve().parent.parent.parent
_LIBRARIES = (
    "pytest", "_pytest.assertion.rewrite", "pytest_asyncio.plugin", "pytest_timeout", "xdist.plugin", "hypothesis.strategies", "numpy",
    "pyarrow", "google.protobuf.message", "crc32c", "lz4.block", "zstandard", "nats.aio.client", "pysyncobj", "nkeys",
)  # fmt: skip
_TEST_FOLDERS = ("tests/unit", "tests/scripts", "tests/conformance", "tests/fuzz", "tests/simulation", "tests/replay")
_WORLD = "tests.simulation.world --profile all --busy 2 --stops-early --seeds 1 --first {}"
_WORLD_SCRIPTS = "tests.simulation.world.scripts --first-failure"
_POLL_S = 0.02
_WALL_PER_CPU = 4
_NO_TESTS = (3, 4, 5)
"""Exit codes of pytest that say nothing about the code: internal error, wrong use, no test collected."""


def scripts_that_run(mutant: Mutant, text: str, rows: list[dict[str, Any]]) -> list[str] | None:
    """Return the names of the scripts that run the lines of a mutant, those first that run the fewest lines of its module.

    Args:
        mutant: The mistake.
        text: Text of its module.
        rows: What ``python -m tests.simulation.world.scripts --reached FOLDERS --json`` has printed, a row for each script.

    Returns:
        The names. None: all scripts run the lines when they import the module.
    """
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    if not any(node.body[0].lineno <= mutant.line <= (node.end_lineno or 0) for node in functions):
        return None
    lines = range(mutant.line, mutant.line + text.count("\n", mutant.start, mutant.end) + 1)
    chosen = []
    for row in rows:
        ran = set(row["reached"].get(mutant.file, ()))
        if not ran.isdisjoint(lines):
            chosen.append((len(ran), row["script"]))
    return [name for _, name in sorted(chosen)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has found.

    Attributes:
        verdict: ``killed``, ``survived``, ``no tests`` or ``error`` (of the runner).
        by: The test that failed, or what went wrong.
        seconds: Duration of the run.
        failed: Ids of the tests that failed. Only the first one, unless all tests were asked for.
    """

    verdict: str
    by: str
    seconds: float
    failed: tuple[str, ...] = ()


def preload() -> None:
    """Import the libraries that every run needs and no mutant changes."""
    for name in _LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def copy_tree(root: Path, folder: Path) -> None:
    """Copy the tracked and the new files of the checkout ``root`` into ``folder``."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        source, target = root / name, folder / name
        if source.is_file() or source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def find_tests(root: Path, file: str, *, wide: bool) -> list[str]:
    """Return the test files that import the module ``file``, also through a helper in ``tests/unit``.

    Args:
        root: Root of the tree.
        file: Path of the module, relative to ``root``.
        wide: Add the tests that import another module of the same folder, and the folder of unit tests with the name of the package.
    """
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package = module.rpartition(".")[0]
    helpers = [
        str(path.relative_to(root)).removesuffix(".py").replace("/", ".")
        for path in sorted((root / "tests/unit").rglob("*.py"))
        if not path.name.startswith("test_") and _imports(path.read_text(encoding="utf-8"), module)
    ]
    near, others = [], []
    for folder in _TEST_FOLDERS:
        for path in sorted((root / folder).rglob("test_*.py")):
            text = path.read_text(encoding="utf-8")
            relative = str(path.relative_to(root))
            if any(_imports(text, name) for name in (module, *helpers)):
                near.append(relative)
            elif package in text or f"tests/unit/{package.split('.')[-1]}/" in relative:
                others.append(relative)
    return [*near, *others] if wide else near


def _imports(text: str, module: str) -> bool:
    package, _, name = module.rpartition(".")
    return module in text or any(
        line.startswith(f"from {package} import ") and name in line.replace(",", " ").split() for line in text.splitlines()
    )


class Tree:
    """A copy of the repository in which mutants are tried, one at a time."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.folder = folder
        copy_tree(root, folder)

    def run_unchanged(self, files: list[str], limit_s: float, *, wide: bool) -> Outcome:
        """Run the tests of these modules without a mutant. ``survived`` is the result of a healthy tree."""
        tests = list(dict.fromkeys(test for file in files for test in find_tests(self.folder, file, wide=wide)))
        return self._run(tests, limit_s) if tests else Outcome("no tests", "", 0.0)

    def attempt(
        self,
        mutant: Mutant,
        limit_s: float,
        *,
        wide: bool,
        tests: list[str] | None = None,
        seeds: int = 0,
        only_world: bool = False,
        scripts: list[str] | None = None,
    ) -> Outcome:
        """Run the tests of the mutated module. The first failure ends the run, unless ``tests`` is given.

        Args:
            mutant: The mistake to make.
            limit_s: CPU seconds that the tests may use. A mutant whose tests use more counts as killed.
            wide: As in ``find_tests``.
            tests: Files and folders of tests to run instead. All of them run, also after a failure.
            seeds: Seeds of shipped nodes in virtual time to run after their scripts, if no test notices the mutant. 0: neither.
            only_world: Run no tests.
            scripts: Names of the scripts to run before the seeds. None: all.
        """
        path = self.folder / mutant.file
        text = path.read_text(encoding="utf-8")
        changed = mutant.apply(text)
        try:
            compile(changed, mutant.file, "exec")
        except SyntaxError as error:
            return Outcome("error", str(error), 0.0)
        chosen = tests or ([] if only_world else find_tests(self.folder, mutant.file, wide=wide))
        try:
            _write(path, changed)
            outcome = self._run(chosen, limit_s, all_tests=bool(tests)) if chosen else Outcome("no tests", "", 0.0)
            if outcome.verdict != "killed":
                some_scripts = [" ".join([_WORLD_SCRIPTS, *(scripts or ())])] if scripts is None or scripts else []
                for command in [*some_scripts, *map(_WORLD.format, range(1, seeds + 1))] if seeds else ():
                    found = self._run_world(command, limit_s)
                    outcome = Outcome(found.verdict, found.by, outcome.seconds + found.seconds)
                    if found.verdict == "killed":
                        break
            return outcome
        finally:
            _write(path, text)
            shutil.rmtree(self.folder / ".hypothesis", ignore_errors=True)

    def _run(self, tests: list[str], limit_s: float, *, all_tests: bool = False) -> Outcome:
        began = time.monotonic()
        output = self.folder / "output"
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                self._become_pytest(tests, output, [] if all_tests else ["-x"])
            finally:
                os._exit(3)
        code = _wait(child, limit_s)
        seconds = time.monotonic() - began
        if code == 0:
            return Outcome("survived", "", seconds)
        if code is None:
            return Outcome("killed", f"not done after {limit_s:.0f} s of CPU", seconds)
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
        if code in _NO_TESTS and not any(line.startswith("ERROR") for line in lines):
            return Outcome("error", f"pytest ends with {code}: {' '.join(lines[-3:])[:200]}", seconds)
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        ids = tuple(line.partition(" ")[2].partition(" - ")[0] for line in failed)
        return Outcome("killed", (failed or lines or [f"exit code {code}"])[-1][:160], seconds, ids)

    def _run_world(self, module: str, limit_s: float) -> Outcome:
        """Run the scripts or one seed of shipped nodes in virtual time. ``module``: name of the module, and its options."""
        began = time.monotonic()
        output = self.folder / "output"
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                with output.open("w", encoding="utf-8") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                os.chdir(self.folder)
                command = [sys.executable, "-m", *module.split()]
                os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONHASHSEED": "0"})
            finally:
                os._exit(3)
        code = _wait(child, limit_s)
        seconds = time.monotonic() - began
        if code == 0:
            return Outcome("survived", "", seconds)
        if code is None:
            return Outcome("killed", f"{module[:80]} is not done after {seconds:.0f} s", seconds)
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
        found = next((number for number, line in enumerate(lines) if line.startswith("    ")), None)
        what = lines[-1:] or [f"exit code {code}"] if found is None else lines[max(found - 1, 0) : found + 1]
        return Outcome("killed", " ".join(line.strip()[:160] for line in what), seconds)

    def _become_pytest(self, tests: list[str], output: Path, options: list[str]) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with output.open("w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(self.folder)
        for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "liftpy", "sidecar", "pyspark_liftpy")]:
            del sys.modules[name]
        sys.path[:] = [str(self.folder), *(p for p in sys.path if p not in ("", str(ROOT)))]
        os.environ |= {"PYTHONPATH": str(self.folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}
        import pytest

        options = [*options, "-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--tb=line", "-m"]
        code = int(pytest.main([*options, "not processes and not spark", "--rootdir", str(self.folder), *tests]))
        sys.stdout.flush()
        os._exit(code)


def _cpu_s(child: int) -> float:
    fields = Path(f"/proc/{child}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _wait(child: int, limit_s: float) -> int | None:
    """Return the exit code, or None after ``limit_s`` CPU seconds or ``_WALL_PER_CPU`` times as many seconds."""
    end = time.monotonic() + _WALL_PER_CPU * limit_s
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


def _write(path: Path, text: str) -> None:
    """Write the text and remove the compiled file: Python compares modification times in seconds."""
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
