"""Public docstrings: a summary, a text for each parameter, an example for each entry point, and examples that compile.

The lists of exceptions may only shrink.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from liftpy.client.sync import without_await
from tests.docs.test_blocks import wrong_names
from tests.each import each

MODULES = (
    "liftpy", "liftpy.client", "liftpy.client.sync", "liftpy.client.admin", "liftpy.client.group_admin", "liftpy.client.services",
    "liftpy.service",
    "liftpy.spark", "liftpy.testing", "liftpy.testing.memory", "liftpy.errors", "liftpy.config",
)  # fmt: skip
OF_THE_FRAMEWORK = {"Outbox"}
"""Classes that ``liftpy.service`` exports for its own processes."""
NOT_FOR_USERS = {"GroupCoordinator", "without_await", "check_min_isr", "control_error", "ServiceMachine"}
BY_FIELD = {"ReplicationConfig"}
"""Settings that are described field by field, for the reference."""
ENTRY_POINTS = (
    "connect", "Client", "Admin", "StreamConfig", "FlushPolicy", "Credentials", "PublishOptions", "ProducerOptions", "ReadOptions",
    "GroupOptions", "QueueOptions", "PlacementOptions", "Publisher", "Producer", "Consumer", "ManyConsumer", "Group", "Queue", "Cursor",
    "BatchSlice", "Position", "Source", "Receipt", "ManyReceipt", "Service", "ServiceTest", "MemoryCluster", "memory_cluster",
    "Client.create_stream", "Admin.alter_stream", "Admin.delete_stream", "Client.publish", "Client.publisher", "Client.producer",
    "Client.consume", "Client.consume_many", "Client.read_range", "Client.bounds", "Client.group", "Client.queue", "Client.cursor",
    "Groups", "Queues", "Cursors", "Services", "Services.call", "Services.query",
    "Admin.purge", "Admin.truncate_before", "Admin.pause", "Admin.reassign",
    "Admin.elect_leader", "Admin.describe_cluster", "Publisher.send", "Publisher.publish", "Producer.send", "Producer.send_many",
    "Consumer.getmany", "Consumer.batches", "Group.take", "Group.into", "Group.commit", "Queue.take", "Job.ack", "Job.nack",
    "Job.extend", "Job.reject", "Cursor.commit", "Cursor.consume", "SyncClient", "local_session", "lag_listener", "processing",
    "archive", "archived", "whole", "replay", "compact", "stats", "audit", "ArchivePlan", "ReplayPlan", "CompactPlan",
)  # fmt: skip
MAX_SUMMARY = 110
"""Length of a summary line. The guide asks for 80; a sentence that is a little longer is no error."""
_MADE_BY_A_CALL = re.compile(r"Create it with ``|`` (is one|returns it|without asyncio)\b")
"""Text of a class that users do not construct. They get an instance from a call or an attribute of a client."""
_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Example):$", re.MULTILINE)
_PARAMETER = re.compile(r"^ {4}\**(\w+): ", re.MULTILINE)
_DEFAULT = re.compile(
    r"Default (''|\(\)|None|True|False|``[\w-]+``|[A-Z]{2,}\b|-?\d[\d,]*(?:\.\d+)?(?: [KMG]iB)?)|(\S+) \(default\)"
)
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def _public() -> dict[str, Any]:
    """Name -> class or function, of everything that users import."""
    found: dict[str, Any] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for shown in getattr(module, "__all__", [one for one in vars(module) if not one.startswith("_")]):
            value = getattr(module, shown)
            of_liftpy = str(getattr(value, "__module__", "")).startswith("liftpy")
            own = hasattr(module, "__all__") or getattr(value, "__module__", "") == name
            if of_liftpy and own and (inspect.isclass(value) or inspect.isfunction(value)) and shown not in NOT_FOR_USERS:
                found[shown] = value
    return found


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    for name, value in inspect.getmembers(cls):
        if name.startswith("_") or not str(getattr(value, "__module__", "")).startswith("liftpy"):
            continue
        if inspect.isfunction(value) or inspect.ismethod(value):
            yield name, value


def callables() -> dict[str, Callable[..., Any]]:
    """Qualified name -> public function, class or method."""
    found: dict[str, Callable[..., Any]] = {}
    for name, value in _public().items():
        found[name] = value
        if inspect.isclass(value) and name not in OF_THE_FRAMEWORK:
            found |= {f"{name}.{method}": one for method, one in _methods(value)}
    return found


ALL = callables()


def _text(value: Any) -> str:
    return inspect.getdoc(value) or ""


def sections(text: str) -> dict[str, str]:
    """Name of a section -> its text."""
    pieces = _SECTION.split(text)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def _parameters(value: Any) -> list[str]:
    if inspect.isclass(value) and (issubclass(value, enum.Enum) or Protocol in value.__bases__):
        return []
    if inspect.isclass(value) and issubclass(value, BaseException) and "__init__" not in vars(value):
        return []
    if inspect.isclass(value) and _MADE_BY_A_CALL.search(_text(value)):
        return []
    return [name for name in inspect.signature(value).parameters if name not in ("self", "cls")]


_ARGUMENTS_ELSEWHERE = re.compile(r"^The arguments and errors are those of ``(\w+)``", re.MULTILINE)


def undocumented(value: Any) -> list[str]:
    """The parameters that neither the docstring explains, nor that of the method to which it refers."""
    found = sections(_text(value))
    texts = found.get("Args", "") + found.get("Attributes", "")
    if elsewhere := _ARGUMENTS_ELSEWHERE.search(_text(value)):
        texts += sections(_text(ALL[value.__qualname__.rpartition(".")[0] + "." + elsewhere[1]]))["Args"]
    return [name for name in _parameters(value) if not re.search(rf"^ +\**{name}: \S", texts, re.MULTILINE)]


def named_defaults(value: Any) -> dict[str, str]:
    """Parameter -> its default as the docstring names it, if it does."""
    pieces = _PARAMETER.split(sections(_text(value)).get("Args", ""))
    texts = {name: " ".join(text.split()) for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}
    return {name: match[1] or match[2] for name, text in texts.items() if (match := _DEFAULT.search(text))}


def is_default(named: str, default: Any) -> bool:
    """Return whether ``named``, a default in a docstring, is the value ``default``."""
    number, _, unit = named.replace(",", "").partition(" ")
    if isinstance(default, enum.Enum):
        return named.strip("`") in (default.name, default.value)
    if isinstance(default, str):
        return named.strip("`'") == default
    if isinstance(default, int | float) and not isinstance(default, bool):
        return re.fullmatch(r"-?[\d.]+", number) is not None and float(number) * _UNITS.get(unit, 1) == default
    return named == repr(default)


def example_of(value: Any) -> str:
    """The code of the example, '' without one."""
    return inspect.cleandoc(sections(_text(value)).get("Example", ""))


def test_docstring_of_each_public_callable_has_a_summary() -> None:
    assert len(ALL) > 250
    wrong = [name for name, value in ALL.items() if not 10 < len(_text(value).partition("\n")[0]) <= MAX_SUMMARY]
    assert not wrong, "write one sentence that says what it does"


def test_function_docstring_begins_with_a_verb_and_ends_with_a_full_stop() -> None:
    lines = {name: _text(value).partition("\n")[0] for name, value in ALL.items() if inspect.isfunction(value)}
    wrong = [f"{name}: {line}" for name, line in lines.items() if not re.match(r"[A-Z][a-z]+,? .*[.:]$", line)]
    wrong += [
        f"{name}: {line}" for name, line in lines.items() if re.match(r"(The|A|An|Of|What|Who|That|As|Whether|See) ", line)
    ]
    assert not wrong, "\n".join(wrong)


def test_docstring_documents_each_parameter() -> None:
    wrong = [
        f"{name}: {', '.join(lacking)}"
        for name, value in ALL.items()
        if name not in BY_FIELD and (lacking := undocumented(value))
    ]
    assert not wrong, "\n".join(wrong)


def test_docstring_default_of_each_parameter_is_the_default_in_the_code() -> None:
    named = {
        f"{name}({parameter}={default})": is_default(default, signature[parameter].default)
        for name, value in ALL.items()
        if (defaults := named_defaults(value))
        for signature in [inspect.signature(value).parameters]
        for parameter, default in defaults.items()
    }
    assert len(named) > 250
    assert [name for name, right in named.items() if not right] == []


@each("name", ENTRY_POINTS)
def test_docstring_of_an_entry_point_has_an_example(name: str) -> None:
    assert example_of(ALL[name])


def test_docstring_examples_compile_and_use_existing_names() -> None:
    given = {
        "cluster",
        "session",
        "transport",
        "subjects",
        "query",
        "frame",
        "text",
        "Counter",
        "jobs",
        "admin",
        "options",
        "value",
        "record",
        "sync",
    }
    wrong, found = [], 0
    for name, value in ALL.items():
        code = example_of(value)
        if not code:
            continue
        found += 1
        tree = compile(code, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        public = {*_public(), *given}
        wrong += [f"{name}: {why}" for why in wrong_names(tree) if why.removeprefix("nobody gives ") not in public]
    assert found > 100
    assert not wrong, "\n".join(wrong)


def test_docstring_example_of_a_sync_method_does_not_await() -> None:
    assert without_await("async with await client.publisher() as p:\n    await p.flush()") == (
        "with client.publisher() as p:\n    p.flush()"
    )
    assert (
        without_await("ack = await receipt\nprint((await future).offset)")
        == "ack = receipt.result()\nprint(future.result().offset)"
    )
    wrong = [name for name, value in ALL.items() if name.startswith("Sync") and re.search(r"\b[Aa](wait|sync)\b", _text(value))]
    assert not wrong


def test_docstring_check_reports_an_undocumented_parameter() -> None:
    def function(known: int, unknown: int) -> None:
        """Do something.

        Args:
            known: The one that has a text.
        """

    assert undocumented(function) == ["unknown"]
