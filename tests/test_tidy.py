"""The style of the project, held by a test: layers, banned imports, sizes, docstrings, names, the top level.

An exception is listed here by name with its reason; there is no other way around a rule.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests import tidy_imports, tidy_names, tidy_private
from tests.conftest import ONE_AT_A_TIME, SPARK, group_of, place_of
from tests.sources import parsed

ROOT = Path(__file__).resolve().parent.parent
MAX_FUNCTION_LINES = 70

TOP_LEVEL = {
    "pyproject.toml", "liftpy", "protos", "sidecar", "tests", "compose.yaml",
    "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", ".ci", ".gitignore", "docs",
    "deploy",             # rules for Prometheus, and what else others run beside it
    "Dockerfile",         # compose.yaml builds its one image from it
    ".dockerignore",      # what that image leaves out
    "pyspark_liftpy.py",  # Spark finds data sources only in top-level modules named pyspark_*
}  # fmt: skip

PURE = ("liftpy.core",)
BANNED_IN_PURE = {
    "asyncio", "socket", "threading", "time", "random", "os", "pathlib", "nats", "pysyncobj", "pyspark", "tenacity",
    "secrets", "uuid", "subprocess", "concurrent", "tempfile", "shutil", "signal",
}  # fmt: skip
BANNED_EVERYWHERE = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}

PICKLE_EXCEPTIONS: dict[str, str] = {}
"""Module -> why it may import pickle. The shipped code has none; tests that prove a refusal import it themselves."""

FUNCTION_SIZE_EXCEPTIONS: dict[str, str] = {}

LAYERS = (
    ("sidecar.cli", "sidecar.__main__"),
    ("sidecar", "liftpy.testing.plugin", "liftpy.testing.memory", "protos"),
    ("liftpy.spark", "liftpy.service", "liftpy.testing", "pyspark_liftpy"),
    ("liftpy.client", "liftpy.core.groups", "liftpy.core.backup"),
    ("liftpy.nats", "liftpy.core.services", "liftpy.core.observe", "liftpy.core.partition"),
    ("liftpy.core.publish",),
    ("liftpy.core.replication", "liftpy.core.metadata"),
    ("liftpy.core.log",),
    ("liftpy.core.wire",),
    ("liftpy.core.base",),
    ("liftpy.config",),
    ("liftpy.errors", "liftpy.renamed"),
    ("liftpy.core",),
)
"""Packages and modules, the highest layer first. A module imports its own layer and the layers below."""
NOT_EACH_OTHER = {
    ("liftpy.core.replication", "liftpy.core.metadata"),
    ("liftpy.core.metadata", "liftpy.core.replication"),
}


def _sources() -> list[Path]:
    found = [
        *(ROOT / "liftpy").rglob("*.py"),
        *(ROOT / "sidecar").rglob("*.py"),
        *ROOT.glob("*.py"),
        *(ROOT / "protos").glob("*.py"),
    ]
    return sorted(p for p in found if "_pb" not in p.parts)


def _module(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = _sources()


def every_source(test: Callable[[Path], None]) -> Callable[[], None]:
    """One test that tries all of them, and names each that is wrong: thousands of tests of a millisecond cost seconds to keep apart."""

    def over_all() -> None:
        wrong = []
        for path in SOURCES:
            try:
                test(path)
            except AssertionError as error:
                wrong.append(str(error))
        assert not wrong, "\n".join(wrong)

    return over_all


def test_every_source_marker_reports_all_failing_sources() -> None:
    @every_source
    def test_of_some(path: Path) -> None:
        assert path.name != "effects.py", f"{path.name} is wrong"
        assert path.name != "leader.py", f"{path.name} is wrong, too"

    with pytest.raises(AssertionError, match=r"effects\.py is wrong\n(.*\n)* *leader\.py is wrong, too"):
        test_of_some()


def _imports(tree: ast.AST) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def _layer(module: str) -> int | None:
    for number, packages in enumerate(LAYERS):
        if any(module == p or module.startswith(p + ".") for p in packages):
            return number
    return None


def test_source_modules_belong_to_a_layer() -> None:
    assert [module for module in modules() if _layer(module) is None] == ["liftpy"], "add the package to LAYERS"


def _package(module: str) -> str:
    return next((p for packages in LAYERS for p in packages if module == p or module.startswith(p + ".")), "")


@every_source
def test_source_layers_import_only_downwards(path: Path) -> None:
    own = _layer(_module(path))
    if own is None:
        return
    for name, line in _imports(parsed(path)):
        other = _layer(name)
        if other is None:
            continue
        assert other >= own, f"{path}:{line} imports {name}, which is a layer above"
        assert (_package(_module(path)), _package(name)) not in NOT_EACH_OTHER, f"{path}:{line} imports {name}"


BARE_TASK_EXCEPTIONS = {"sidecar.runtime.tasks": "the one place that begins background tasks"}
_BEGINS_A_TASK = {"create_task", "ensure_future", "run_coroutine_threadsafe"}


@every_source
def test_source_background_tasks_report_their_failure(path: Path) -> None:
    module = _module(path)
    if not module.startswith("sidecar") or module in BARE_TASK_EXCEPTIONS:
        return
    for node in ast.walk(parsed(path)):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        assert name not in _BEGINS_A_TASK, (
            f"{path}:{getattr(node, 'lineno', 0)}: say spawn or attended (sidecar/runtime/tasks.py)"
        )


@every_source
def test_source_child_processes_run_no_python_between_fork_and_exec(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        given = {keyword.arg for keyword in node.keywords} if isinstance(node, ast.Call) else set()
        assert "preexec_fn" not in given, f"{path}:{getattr(node, 'lineno', 0)}: say spawn (sidecar/dev/nats_server.py)"


@every_source
def test_source_core_has_no_side_effects(path: Path) -> None:
    module = _module(path)
    if not module.startswith(PURE):
        return
    for name, line in _imports(parsed(path)):
        assert name.split(".")[0] not in BANNED_IN_PURE, f"{path}:{line}: the pure set may not import {name}"


def test_source_modules_called_pure_have_no_side_effects() -> None:
    calls_itself = [path for path in SOURCES if re.search(r"\bpure\b", ast.get_docstring(parsed(path)) or "", re.I)]
    assert sum(not _module(path).startswith(PURE) for path in calls_itself) > 8
    for path in calls_itself:
        for name, line in _imports(parsed(path)):
            assert name.split(".")[0] not in BANNED_IN_PURE, f"{path}:{line}: says that it is pure, and imports {name}"


@every_source
def test_source_uses_no_pickle(path: Path) -> None:
    for name, line in _imports(parsed(path)):
        if _module(path) not in PICKLE_EXCEPTIONS:
            assert name.split(".")[0] not in BANNED_EVERYWHERE, f"{path}:{line} imports {name}"


@every_source
def test_source_library_does_not_import_spark(path: Path) -> None:
    module = _module(path)
    if not module.startswith(("liftpy", "sidecar")) or module.startswith("liftpy.spark"):
        return
    for node in parsed(path).body:  # at the top of the module only: the demo imports Spark when it gets there
        names = [name for name, _ in _imports(node)] if isinstance(node, ast.Import | ast.ImportFrom) else []
        assert not any(n.split(".")[0] == "pyspark" for n in names), f"{path} imports pyspark when it is imported"


@every_source
def test_source_functions_are_short(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node):  # a long one is no reason to split the code
                size -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
            if f"{_module(path)}.{node.name}" not in FUNCTION_SIZE_EXCEPTIONS:
                assert size <= MAX_FUNCTION_LINES, f"{path}:{node.lineno} {node.name} has {size} lines"


@every_source
def test_source_modules_and_classes_have_docstrings(path: Path) -> None:
    tree = parsed(path)
    assert ast.get_docstring(tree), f"{path} does not say what it is"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{path}:{node.lineno} class {node.name} has no docstring"


def _described_arguments(node: ast.AST) -> list[str]:
    """The names in the ``Args:`` section of a docstring."""
    text = ast.get_docstring(node) or "" if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else ""
    section = re.split(r"^\S", text.partition("Args:\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^ {4}\*{0,2}(\w+):", section, re.MULTILINE)


@every_source
def test_source_docstrings_describe_existing_arguments(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if not (described := _described_arguments(node)):
            continue
        parts = list(ast.iter_child_nodes(node))
        makers = [one for one in [node, *parts] if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        known = {
            arg.arg
            for maker in makers
            if maker is node or maker.name == "__init__"
            for arg in ast.walk(maker.args)
            if isinstance(arg, ast.arg)
        }
        known |= {one.target.id for one in parts if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
        gone = sorted(set(described) - known)
        assert not gone, f"{path}:{node.lineno} {node.name} describes arguments that it has not: {gone}"


@every_source
def test_source_names_are_not_generic(path: Path) -> None:
    assert path.stem not in {"utils", "util", "helpers", "helper", "misc", "common"}, f"{path}: name it for what it holds"
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef):
            assert not re.search(r"(Helper|Utils?)$", node.name), f"{path}:{node.lineno} {node.name}"


def test_source_modules_end_with_their_main_guard() -> None:
    """A statement after ``if __name__ == "__main__"`` runs too late for a module that is started with ``python -m``."""
    for path in SOURCES:
        body = parsed(path).body
        assert not any(ast.unparse(node).startswith("if __name__ ==") for node in body[:-1]), path


@cache
def modules() -> dict[str, ast.Module]:
    return {_module(path): parsed(path) for path in SOURCES}


def simulator() -> list[ast.Module]:
    """The modules of the simulator, which is a shell of the core as ``sidecar`` is."""
    paths = (ROOT / "tests/simulation/replica").glob("*.py")
    return [parsed(path) for path in paths if not path.name.startswith("test_")]


def test_source_has_no_unreferenced_names() -> None:
    dead, listed = tidy_names.unreferenced(modules(), simulator()), set(tidy_names.UNREFERENCED)
    assert not dead - listed, f"nobody refers to {sorted(dead - listed)}: remove it, or list it in tests/tidy_names.py"
    assert not listed - dead, f"listed in tests/tidy_names.py, and not needed there: {sorted(listed - dead)}"


def test_source_has_no_attributes_that_are_never_read() -> None:
    unread, listed = tidy_names.unread_attributes(modules(), simulator()), set(tidy_names.UNREAD)
    assert unread == listed, f"{sorted(unread ^ listed)}: read nowhere, or listed in tests/tidy_names.py and not so"


def test_source_check_finds_planted_dead_names() -> None:
    dead = """
LIMIT = 3
def calls_itself(): calls_itself()
def ping(): pong()
def _nobody_calls(): ...
async def nobody_awaits(): ...
class Unused:
    field: int = 0
    def __init__(self): self.stored_only = self._also_stored = 1
    def nobody_calls(self): self.nobody_calls()
    @property
    def nobody_asks(self): return 1
class Colour(Enum):
    RED = 1
def pong(): return Colour
"""
    planted = {**modules(), "p": ast.parse(dead)}
    assert {name for name in tidy_names.unreferenced(planted) if name.startswith("p.")} == {
        "p.LIMIT", "p.calls_itself", "p.ping", "p._nobody_calls", "p.nobody_awaits",
        "p.Unused", "p.Unused.nobody_calls", "p.Unused.nobody_asks",
    }  # fmt: skip
    found = {name for name in tidy_names.unread_attributes(planted) if name.startswith("p.")}
    assert found == {"p.Unused.stored_only", "p.Unused._also_stored", "p.Colour.RED"}, "'field' is a name that others read"


@every_source
def test_source_names_get_one_value_each(path: Path) -> None:
    found = tidy_names.assigned_twice(parsed(path))
    assert not found, f"{path}: assigned twice: {', '.join(found)}"


def test_source_check_finds_planted_names_with_two_values() -> None:
    planted = ast.parse("_T = 2.0\n_T = 1.5\n_U = 1\n_U = _U + 1\nclass C:\n    a: int\n    a = 1\n    b: int = 1\n    b = 2\n")
    assert tidy_names.assigned_twice(planted) == ["_T", "b"]


def test_source_class_names_are_unique_per_folder() -> None:
    assert not tidy_names.repeated_classes(modules())
    planted = {
        "p": ast.parse(""),
        "p.a": ast.parse("class Lease: ..."),
        "p.b": ast.parse("class Lease: ..."),
        "q": ast.parse("class Lease: ..."),
    }
    assert tidy_names.repeated_classes(planted) == {"p.Lease": ["p.a", "p.b"]}


FACADES = ("liftpy", "liftpy.errors", "liftpy.config", "liftpy.renamed", "liftpy.spark")
"""Loose modules. ``liftpy`` and ``liftpy.spark`` name what is below them. The others import no folder."""
KNOWN_FOLDER_CIRCLES: tuple[frozenset[str], ...] = ()
"""Folders that import each other today. Add none."""


def test_source_folders_have_no_new_import_cycles() -> None:
    new = [
        circle
        for circle in tidy_imports.folder_circles({name: tree for name, tree in modules().items() if name not in FACADES})
        if not any(circle <= known for known in KNOWN_FOLDER_CIRCLES)
    ]
    assert not new, f"these folders import each other: {[sorted(circle) for circle in new]}"


def test_source_check_finds_a_planted_folder_cycle() -> None:
    planted = {
        "p": ast.parse(""), "p.a": ast.parse("from q import b"), "q": ast.parse(""), "q.b": ast.parse("import p.c"),
        "p.c": ast.parse(""), "r": ast.parse(""), "r.a": ast.parse("import p.a"),
    }  # fmt: skip
    assert not tidy_imports.circles(planted)
    assert tidy_imports.folder_circles(planted) == [frozenset({"p", "q"})]


def test_tests_use_no_additional_private_names() -> None:
    """``python -m tests.tidy_private`` writes the lower counts down; it refuses higher ones."""
    assert not tidy_private.differences(tidy_private.count(ROOT / "tests"), tidy_private.recorded())


def test_source_check_counts_private_accesses_of_a_test() -> None:
    text = "a._b\nself._c\nx.__class__\nmonkeypatch.setattr(a, '_d', 1)\npatch.object(a, '_e')\nimport p._pb\np._pb.x\nnt._replace(a=1)"
    assert tidy_private.count_in(text) == 3
    assert tidy_private.differences({"t": 3, "n": 1}, {"t": 2, "u": 1}) == [
        "n: 1 private accesses, at most 0", "t: 3 private accesses, at most 2", "u: 0 private accesses, record 0 instead of 1",
    ]  # fmt: skip


def test_source_imports_have_no_cycles() -> None:
    """Imports for type checkers (``TYPE_CHECKING``) count, too, except those of ``FACADES``."""
    assert not tidy_imports.circles(modules())
    assert not tidy_imports.circles({name: tree for name, tree in modules().items() if name not in FACADES}, types=True)


def test_source_check_finds_a_planted_import_cycle() -> None:
    round_about = {
        "p": ast.parse(""), "p.a": ast.parse("from p import b"), "p.b": ast.parse("def f():\n    import p.c"),
        "p.c": ast.parse("if TYPE_CHECKING:\n    from p.a import A"),
    }  # fmt: skip
    assert not tidy_imports.circles(round_about)
    assert tidy_imports.circles(round_about, types=True) == [frozenset({"p.a", "p.b", "p.c"})]


def test_repository_top_level_contains_only_known_names() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode != 0:
        pytest.skip("not a git checkout")
    names = {line.split("/")[0] for line in tracked.stdout.splitlines() if (ROOT / line).exists()}
    assert names <= TOP_LEVEL, f"unexpected at the top level: {sorted(names - TOP_LEVEL)}"


def test_generated_protobuf_modules_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "protos/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_import_of_the_library_imports_no_spark_nats_or_sidecar() -> None:
    code = "import sys, liftpy; print([m for m in ('pyspark', 'nats', 'sidecar', 'pysyncobj') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_ruff_finds_nothing() -> None:
    for command in (["ruff", "check", "."], ["ruff", "format", "--check", "."]):
        done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-2000:]}"


def test_mypy_accepts_the_code_and_rejects_a_name_that_the_package_lacks(tmp_path: Path) -> None:
    """One run for both: mypy needs half a minute for the code."""
    (tmp_path / "uses.py").write_text(
        "import liftpy\nimport liftpy.client\nliftpy.Foo\nliftpy.client.Foo\nliftpy.QueueOptions\n"
        "from liftpy.client import Client, sync\n"
        "async def work(client: Client, waiting: sync.SyncClient) -> None:\n"
        "    await client.admin.create_stream('a', 'b')\n"
        "    await client.admin.creat_stream('a', 'b')\n"
        "    await client.create_stream('a', 'b', partition=2)\n"
        "    await client.delete_stream('a')\n"
        "    waiting.admin.delete_stream('a')\n"
        "    waiting.admin.delete_strem('a')\n"
        "    waiting.admin.delete_stream(name='a', uuid='b')\n"
        "    waiting.delete_stream('a')\n"
        "    waiting.consume('a', untl='end')\n"
        "    waiting.publish('a', b'x', key=b'k').offset\n"
        "    for record in waiting.group('g', ['a']): record.vlaue\n"
        "    (await client.stream('a')).partitions[0].purges\n"
    )
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    targets = [option for name in config["packages"] for option in ("-p", name)]
    targets += [option for name in [*config["modules"], "uses"] for option in ("-m", name)]
    done = subprocess.run(
        # numpy's types are those of the Python that runs
        [sys.executable, "-m", "mypy", f"--python-version={sys.version_info[0]}.{sys.version_info[1]}", *targets],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    wrong = [line.split("uses.py:")[1].split(":")[0] for line in lines if "uses.py:" in line and " error: " in line]
    assert wrong == ["3", "4", "9", "10", "11", "13", "14", "15", "16", "18", "19"], done.stdout + done.stderr[-2000:]
    assert [line for line in lines if " error: " in line and "uses.py:" not in line] == []


def test_test_files_have_unique_names() -> None:
    """pytest imports them by name: the second one would not run."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    assert sorted(names) == sorted(set(names))


def test_tests_that_start_processes_are_in_single_worker_folders() -> None:
    marked = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if re.search(r"pytest\.mark\.(processes|spark)\b", path.read_text(encoding="utf-8")) and path.name != "test_tidy.py"
    ]
    assert marked
    assert not [path for path in marked if not path.startswith(ONE_AT_A_TIME)]
    starts = ("tests/integration/test_a", "tests/integration/test_z", *ONE_AT_A_TIME[1:], *SPARK)
    groups = ["integration", "integration, later"] + ["system"] * 3 + ["spark"] * (1 + len(SPARK))
    assert [group_of(f"{start}x.py::test_y") for start in starts] == groups
    order = ("tests/integration/test_a.py::a", "tests/bench/x.py::a", "tests/integration/test_spark_x.py::a", "tests/a.py::a")
    assert [group_of(nodeid) for nodeid in order] == ["integration", "system", "spark", "tests/a.py"]
    assert sorted(order, key=place_of) == list(order)


def test_package_classifiers_are_the_tested_python_versions() -> None:
    """Who adds one runs it there first, and says so in CONTRIBUTING.md."""
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    said = re.search(r"the whole suite ran: ((?:3\.\d+(?:, )?)+)\.", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert said is not None
    assert said[1].split(", ") == named


def test_ci_runs_the_test_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = next(
        line for line in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines() if "pytest" in line and line[0] != "#"
    )
    assert command.strip() in readme
