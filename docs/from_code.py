"""Tables of the reference, made from the code at each build: settings, errors, events, commands, formats.

``{from-code} settings`` in a page is replaced by the table that ``TABLES["settings"]`` makes. ``missing`` lists settings, errors and
exit codes without a text. They fail the build and ``tests/docs``. Write the text in the code, below the name.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

import liftpy
import sidecar
from liftpy import renamed
from liftpy.config import ALTERABLE, REPLICATION_BOUNDS, STREAM_BOUNDS, ReplicationConfig, StreamConfig
from liftpy.core.metadata.controller.cluster_events import TEXTS, ClusterEvent
from liftpy.core.metadata.features import FEATURES
from liftpy.core.observe import node_events
from liftpy.core.observe.cluster_health import VERDICTS
from liftpy.core.publish.acks import JETSTREAM_ERRORS
from liftpy.core.wire.envelope import MessageType
from liftpy.core.wire.rejections import RejectReason
from liftpy.errors import LiftError
from liftpy.nats.credentials import Credentials
from liftpy.spark.options import READS, TABLE, WRITES, Option, options_of
from sidecar.cli.main import COMMANDS
from sidecar.cli.main import liftpy as command_line
from sidecar.cli.stream_settings import SETTINGS as STREAM_SETTINGS
from sidecar.cli.upgrade import DISK_FORMATS
from sidecar.node.reload import LIVE
from sidecar.runtime.logs import EVENTS
from sidecar.runtime.settings import NodeSettings, defaults

ROOT = Path(__file__).resolve().parent.parent
FLAT = "credentials."
"""Their environment variables have no name of the section."""


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"


def _said(text: object) -> str:
    """A docstring's text as Markdown."""
    return re.sub(r"``(.+?)``", r"`\1`", _cell(text))


def _behind(module: Any, name: str) -> dict[str, str]:
    """Of a class (``name``) or a module (''): field or constant -> the string behind it; of several at once: behind the last."""
    tree = ast.parse(inspect.getsource(module))
    body = tree.body if not name else next(n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    found = {}
    for node, behind in zip(body, [*body[1:], None], strict=True):
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name):
            said = behind.value if isinstance(behind, ast.Expr) else None
            found[target.id] = str(said.value) if isinstance(said, ast.Constant) else ""
    return found


def environment_name(setting: str) -> str:
    """The variable that sets it."""
    return "LIFTPY_" + setting.removeprefix(FLAT).replace(".", "_").upper()


def setting_texts() -> dict[str, str]:
    """Dotted name of each setting of a node -> what it means; '' where the code does not say."""
    texts = {}
    for section, cls in (("", NodeSettings), ("credentials.", Credentials), ("replication.", ReplicationConfig)):
        said = _behind(inspect.getmodule(cls), cls.__name__)
        texts |= {f"{section}{name}": text for name, text in said.items()}
    return {name: _said(texts.get(name, "")) for name in defaults()}


def _range(bounds: tuple[float, float] | None) -> str:
    """Lowest and highest value as a reader writes them; '' for a setting that is no number."""
    return "" if bounds is None else " to ".join(_number(value) for value in bounds)


def _number(value: float) -> str:
    exponent = int(value).bit_length() - 1
    if exponent > 20 and value == 1 << exponent:
        return f"2^{exponent}"
    return f"{value:,.10g}" if value == int(value) else f"{value:g}"


def settings() -> str:
    """Settings of a node: name and environment variable, default, range, whether it is live, meaning."""
    texts, given = setting_texts(), defaults()
    rows = []
    for name, value in given.items():
        shown = "" if value in ("", ()) else f"`{', '.join(value) if isinstance(value, tuple) else value}`"
        bounds = _range(REPLICATION_BOUNDS.get(name.removeprefix("replication.")) if name.startswith("replication.") else None)
        rows.append((f"`{name}` `{environment_name(name)}`", shown, bounds, "live" if name in LIVE else "", texts[name]))
    return _table(("setting, environment", "default", "range", "live", "meaning"), rows)


def stream_settings() -> str:
    """Settings of a stream: option, key in JSON, default, range, whether it can be changed, meaning."""
    default = StreamConfig()
    rows = []
    for one in STREAM_SETTINGS:
        value = getattr(default, one.field)
        shown = getattr(value, "value", value) if one.field != "codec" else value.name.lower()
        bounds = _range(STREAM_BOUNDS.get(one.field))
        rows.append((f"`{one.flag}`", f"`{one.key}`", f"`{shown}`", bounds, "yes" if one.field in ALTERABLE else "", one.help))
    return _table(("option", "key in JSON", "default", "range", "can be changed", "meaning"), rows)


def _modules() -> Iterator[Any]:
    """All of both packages that need no extra."""
    for package in (liftpy, sidecar):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not re.search(r"\.__main__$|\.spark|liftpy\.testing|\._pb|\.bench|tracing\.exporting", found.name):
                yield importlib.import_module(found.name)


def errors_of_the_code() -> list[type[LiftError]]:
    """Every public error, the base first, then by code."""
    for _ in _modules():
        pass
    found, below = [], [LiftError]
    while below:
        one = below.pop()
        found.append(one)
        below += one.__subclasses__()
    return sorted({one for one in found if not one.__name__.startswith("_") and one.__module__.startswith(("liftpy", "sidecar"))},
                  key=lambda one: (one is not LiftError, one.code, one.__mro__.__len__(), one.__name__))  # fmt: skip


def errors() -> str:
    """Code, class, retry, meaning."""
    rows = []
    for one in errors_of_the_code():
        base = one.__mro__[1].__name__
        rows.append((f"`{one.code}`", f"`{one.__name__}`", f"`{base}`" if base != "Exception" else "",
                     "yes" if one.retryable else "", _said((one.__doc__ or "").partition("\n\n")[0])))  # fmt: skip
    return _table(("code", "class", "base class", "retry", "meaning"), rows)


def refusals() -> str:
    """Why a publish is refused: the ack's error, and what a JetStream client is answered."""
    rows = []
    for reason in RejectReason:
        code, err_code, text = JETSTREAM_ERRORS[reason]
        rows.append((f"`{reason.name}`", reason.value, f"{code}/{err_code}", text))
    return _table(("reason", "in an Ack", "code/err_code", "description"), rows)


def log_events() -> str:
    """Event, logger, how the line begins."""
    rows = [
        (f"`{event}`", f"`{logger}`", f"`{text}`") for (logger, text), event in sorted(EVENTS.items(), key=lambda row: row[1])
    ]
    return _table(("event", "logger", "the line begins with"), rows)


def cluster_events() -> str:
    """Their kinds, then their fields."""
    said = _behind(inspect.getmodule(ClusterEvent), "ClusterEvent")
    kinds = _table(("kind", "event"), ((f"`{kind}`", text) for kind, text in {**TEXTS, **node_events.TEXTS}.items()))
    return f"{kinds}\n" + _table(("field", "meaning"), [(f"`{n}`", _said(t)) for n, t in said.items()])


def verdicts() -> str:
    """One row for each word of a verdict."""
    rows = (
        (
            f"`{word}`",
            "unavailable" if row.stops else "degraded",
            f"[{row.runbook}](runbooks/{row.runbook}.md)",
            ", ".join(f"`{kind}`" for kind in row.events),
            f"`{row.alert}`",
        )
        for word, row in VERDICTS.items()
    )
    return _table(("word", "cluster", "runbook", "events", "alert"), rows)


def _exit_codes() -> Iterator[tuple[int, str, str, str]]:
    """(code, constant, module, what the code says of it) of each constant ``EXIT_...`` of the shell."""
    for path in sorted((ROOT / "sidecar").rglob("*.py")):
        if "\nEXIT_" in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            module = importlib.import_module(name)
            for constant, text in _behind(module, "").items():
                if constant.startswith("EXIT_"):
                    yield getattr(module, constant), constant, name, _said(text)


def exit_codes() -> str:
    """Code, where, meaning."""
    rows = [(code, f"`{constant}`", f"`{name}`", text) for code, constant, name, text in _exit_codes()]
    return _table(("code", "constant", "module", "meaning"), sorted(rows, key=lambda row: (row[0], row[2])))


def formats() -> str:
    """Of the disk: versions that are read, and written at each feature level."""
    rows = []
    for name, one in DISK_FORMATS.items():
        written = ", ".join(f"{version} from level {level}" for level, version in one.writes.items())
        rows.append((name, one.where, ", ".join(map(str, one.reads)), written, "yes" if one.is_cache else ""))
    return _table(("format", "where", "read", "written", "can be made again"), rows)


def levels() -> str:
    """Feature levels."""
    return _table(("level", "since", "what it brings"), [(one.level, one.version, one.description) for one in FEATURES])


def message_types() -> str:
    """Types of envelopes: number and name."""
    return _table(("type", "name"), [(one.value, f"`{one.name}`") for one in MessageType])


def _option_table(options: Iterable[Option]) -> str:
    """Options of Spark: name, valid values, default and meaning."""
    rows = []
    for option in options:
        default = f"`{option.default}`" if option.shown_default == option.default else option.shown_default
        value = re.sub(r"({.*})", r"`\1`", option.expected)
        rows.append((f"`{option.name}`", value, default, option.meaning))
    return _table(("option", "value", "default", "meaning"), rows)


def spark_options() -> str:
    """Options of the format ``liftpy`` for reading."""
    return _option_table(options_of(READS).values())


def spark_sink_options() -> str:
    """Options of the format ``liftpy`` for writing."""
    return _option_table(options_of(WRITES).values())


SPARK_PAGE = ROOT / "docs" / "spark.md"
_OPTION_BLOCK = re.compile(r"(<!-- options: (\w+) -->\n\n).*?(\n<!-- end -->)", re.DOTALL)


def with_option_tables(page: str) -> str:
    """Return the page about Spark with the tables of its blocks ``<!-- options: NAME -->`` as the code has them now."""
    return _OPTION_BLOCK.sub(
        lambda block: block[1] + _option_table(one for one in TABLE if one.table == block[2]) + block[3], page
    )


def renamed_settings() -> str:
    """Settings by their old and new names."""
    return _table(("until now", "from now on"), ((f"`{old}`", f"`{new}`") for old, new in sorted(renamed.SETTINGS.items())))


def renamed_commands() -> str:
    """Commands by their old and new names."""
    return _table(
        ("until now", "from now on"), ((f"`liftpy {old}`", f"`liftpy {new}`") for old, new in sorted(renamed.COMMANDS.items()))
    )


def renamed_client() -> str:
    """Methods of the client and functions for groups by their old and new names."""
    rows = [(f"`client.{old}`", f"`client.{new}`") for old, new in sorted(renamed.CLIENT_METHODS.items())]
    rows += [
        (f"`group_admin.{old}(client, ...)`", f"`client.{new}(...)`") for old, new in sorted(renamed.GROUP_FUNCTIONS.items())
    ]
    return _table(("until now", "from now on"), rows)


def renamed_options() -> str:
    """Options by their old and new names."""
    rows = (
        (f"`liftpy {old.rpartition(' ')[0]}`", f"`{old.rpartition(' ')[2]}`", f"`{new}`")
        for old, new in sorted(renamed.OPTIONS.items())
    )
    return _table(("command", "until now", "from now on"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "settings": settings, "stream-settings": stream_settings, "errors": errors, "refusals": refusals, "log-events": log_events,
    "cluster-events": cluster_events, "verdicts": verdicts,
    "exit-codes": exit_codes, "formats": formats, "levels": levels, "message-types": message_types,
    "renamed-settings": renamed_settings, "renamed-commands": renamed_commands, "renamed-options": renamed_options,
    "renamed-client": renamed_client,
    "spark-options": spark_options, "spark-sink-options": spark_sink_options,
}  # fmt: skip


def missing() -> list[str]:
    """What has a name and no text."""
    unsaid = [f"setting {name}" for name, text in setting_texts().items() if len(text) < 4]
    unsaid += [f"exit code {constant} of {name}" for _, constant, name, text in _exit_codes() if not text]
    unsaid += [f"error {one.__name__}" for one in errors_of_the_code() if len(one.__doc__ or "") < 4]
    return unsaid + [f"stream setting {one.field}" for one in STREAM_SETTINGS if not one.help]


def commands(
    group: click.Group = command_line, path: tuple[str, ...] = ("liftpy",)
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command of the command line: its words, and itself; groups too."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def command_pages() -> dict[str, str]:
    """File -> its reStructuredText: a page for each command of ``liftpy``."""
    pages = {}
    for name, (module, _) in COMMANDS.items():
        where = f"{module}:{name.replace('-', '_')}"
        pages[f"{name}.rst"] = f".. click:: {where}\n   :prog: liftpy {name}\n   :nested: full\n"
    return pages


if __name__ == "__main__":  # python docs/from_code.py: write the tables of docs/spark.md again
    SPARK_PAGE.write_text(with_option_tables(SPARK_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
