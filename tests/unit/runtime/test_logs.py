"""Test logs: event names, rate limits, JSON lines and temporary log levels."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.errors import ConfigError
from sidecar.runtime.logs import (
    BURST_LINES,
    EVENTS,
    KEY_CHARS,
    LEVELS,
    LINES_PER_S,
    MOST_KEYS,
    JsonFormatter,
    NodeLogs,
    Suppression,
)
from sidecar.status.status_api import _change_level

ROOT = Path(__file__).resolve().parents[3]
KEY = PartitionKey("orders", "u1", 3)
ROLE = "replica role changed partition=%s role=%s phase=%s epoch=%d"
NOT_OF_NODES = {"sidecar/cli/service.py"}
_LOGGING = {"debug", "info", "warning", "error", "critical", "exception"}


def constants(function: ast.AST) -> dict[str, object]:
    """Name -> value of each constant that the function assigns."""
    return {
        ast.unparse(node.targets[0]): node.value.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }


def texts(tree: ast.Module) -> set[tuple[str, str]]:
    """(logger, text) of each line that a module logs."""
    names, found = {}, set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func) == "logging.getLogger"
        ):
            names[ast.unparse(node.targets[0])] = ast.literal_eval(node.value.args[0])
    for function in ast.walk(tree) if names else ():
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in _LOGGING:
                continue
            base, given = ast.unparse(node.func.value), node.args
            if base in ("INFO_LOG_LIMIT", "_seldom"):
                base, given = ast.unparse(given[0]), given[1:]
            if base in names and base not in {one.arg for one in function.args.args}:
                text = given[0]
                said = text.value if isinstance(text, ast.Constant) else constants(function)[ast.unparse(text)]
                found.add((names[base], str(said)))
    return found


def test_log_lines_in_the_code_each_have_an_event_name_in_the_table() -> None:
    found: set[tuple[str, str]] = set()
    for path in sorted((ROOT / "sidecar").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name not in NOT_OF_NODES:
            found |= {(logger, text[:KEY_CHARS]) for logger, text in texts(ast.parse(path.read_text()))}
    assert found == set(EVENTS), found ^ set(EVENTS)
    assert len(set(EVENTS.values())) == len(EVENTS), "a name is one line's"
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", name) for name in EVENTS.values())


def test_operating_page_lists_all_event_names() -> None:
    told = (ROOT / "docs" / "operating.md").read_text()
    assert set(re.findall(r"`([a-z]+\.[a-z_]+)`", told.partition("### Events")[2].partition("\n#")[0])) == set(EVENTS.values())


class Said:
    """Collect the lines that pass the rate limit, with a clock of the test."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.lines: list[str] = []
        self.suppression = Suppression(lambda record: self.lines.append(record.getMessage()), lambda: round(self.now * 1e9))

    def log(self, text: str = "a %s", *given: Any, level: int = logging.WARNING, name: str = "liftpy.x") -> None:
        record = logging.LogRecord(name, level, "", 0, text, given, None)
        if self.suppression.filter(record):
            self.lines.append(record.getMessage())


def test_log_rate_limit_suppresses_a_flood_and_reports_the_count() -> None:
    said = Said()
    for _ in range(100_000):
        said.log("a %s", "flood")
    assert said.lines == ["a flood"] * int(BURST_LINES)
    assert said.suppression.suppressed_count == 100_000 - BURST_LINES
    said.now += 1.0
    said.suppression.write_counts()
    assert said.lines[-1] == "suppressed 99,980 lines like this one: a flood"
    said.log("a %s", "flood")
    assert said.lines[-1] == "a flood"
    for _ in range(1000):
        said.now += 0.01
        said.log("a %s", "flood")
    assert sum(line == "a flood" for line in said.lines) - BURST_LINES - 1 == pytest.approx(10 * LINES_PER_S, abs=5)


def test_log_rate_limit_reports_suppressed_lines_before_the_next_line() -> None:
    said = Said()
    for _ in range(25):
        said.log("a %s", "flood")
    said.now += 0.3
    said.log("a %s", "flood")
    assert said.lines[-2:] == ["suppressed 5 lines like this one: a flood", "a flood"]
    for _ in range(25):
        said.log("b %s", "flood", name="liftpy.y")
    said.suppression.write_counts()
    assert not said.lines[-1].startswith("suppressed"), "not yet"
    said.suppression.write_counts(all_of_it=True)
    assert said.lines[-1] == "suppressed 5 lines like this one: b flood"


def test_log_rate_limit_applies_per_partition_and_event_and_to_no_error_line() -> None:
    said = Said()
    for number in range(60):
        said.log(ROLE, PartitionKey("s", "u", number % 3), "LEADER", "READY", 1, name="liftpy.replica")
    assert len(said.lines) == 60
    for _ in range(60):
        said.log("an error", level=logging.ERROR)
    assert said.lines.count("an error") == 60
    assert said.suppression.messages == {"warning": 60, "error": 60}


def test_log_rate_limit_memory_is_bounded() -> None:
    said = Said()
    for number in range(MOST_KEYS + 10):
        said.log(ROLE, PartitionKey("s", "u", number), "LEADER", "READY", 1, name="liftpy.replica")
    assert len(said.suppression._buckets) == MOST_KEYS


def formatted(text: str, *given: Any, name: str = "liftpy.replica", **more: Any) -> dict[str, Any]:
    record = logging.LogRecord(name, logging.INFO, "", 0, text, given, more.pop("exc_info", None))
    record.__dict__.update(more)
    line = JsonFormatter(lambda: {"node": "n1", "incarnation": 7}).format(record)
    assert "\n" not in line
    return dict(json.loads(line))


def test_json_log_line_has_event_and_context_fields() -> None:
    line = formatted(ROLE, KEY, "LEADER", "LEADER_READY", 5)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("ts"))
    assert line == {
        "level": "info", "logger": "liftpy.replica", "event": "replica.role_changed",
        "msg": "replica role changed partition=orders/3 role=LEADER phase=LEADER_READY epoch=5",
        "node": "n1", "incarnation": 7, "stream": "orders", "partition": 3, "epoch": 5,
    }  # fmt: skip
    other = formatted('a "quote"\nand a second line', name="nats.aio")
    assert (other["event"], other["msg"]) == ("nats.aio.other", 'a "quote"\nand a second line')
    assert "stream" not in other
    try:
        raise ValueError("why")
    except ValueError as error:
        failed = formatted("x", exc_info=(ValueError, error, error.__traceback__))
    assert "ValueError: why" in failed["exception"]
    assert formatted("x", suppressed=3)["suppressed"] == 3


@pytest.mark.parametrize("form", ["text", "json"])
def test_node_log_line_with_the_text_of_an_error_has_one_punctuation_mark(form: str, root: logging.Logger) -> None:
    stream, logs = io.StringIO(), NodeLogs()
    logs.configure("info", form, "n1", stream)
    error = ConfigError("weight = 2000 is outside 0..1000. Choose a value in this range.")
    logging.getLogger("liftpy.node").error("settings not reloaded error=%s: keeping the current ones", error)
    assert "0..1000. Choose a value in this range: keeping the current ones" in stream.getvalue()


@pytest.fixture
def root() -> Any:
    logger = logging.getLogger()
    before, handlers = logger.level, list(logger.handlers)
    yield logger
    logger.setLevel(before)
    logger.handlers[:] = handlers


@pytest.mark.parametrize("form", ["text", "json"])
def test_node_logs_have_the_configured_format(form: str, root: logging.Logger) -> None:
    stream, logs = io.StringIO(), NodeLogs()
    logs.configure("info", form, "n1", stream)
    logging.getLogger("liftpy.node").info("node started node=%s incarnation=%d", "n1", 7)
    logging.getLogger("liftpy.node").debug("not this")
    assert all(logging.getLogger(noisy).level == logging.WARNING for noisy in ("nats", "pysyncobj", "asyncio"))
    [line] = stream.getvalue().splitlines()
    if form == "json":
        assert json.loads(line)["event"] == "node.up"
    else:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO    liftpy.node: node started node=n1 incarnation=7", line)


def test_log_level_change_reverts_after_its_time(root: logging.Logger) -> None:
    logs, timers = NodeLogs(), []

    class Timer:
        def __init__(self, after_s: float, call: Callable[[], None]) -> None:
            self.after_s, self.call, self.cancelled = after_s, call, False
            timers.append(self)

        def cancel(self) -> None:
            self.cancelled = True

    logs.configure("warning", "text", "n1", io.StringIO())
    logs.change_level("debug", 300, Timer)
    assert (root.level, timers[0].after_s) == (logging.DEBUG, 300)
    logs.change_level("info", 60, Timer)
    assert (root.level, timers[0].cancelled) == (logging.INFO, True)
    timers[1].call()
    assert root.level == logging.WARNING
    logs.change_level("debug", 60, Timer)
    logs.close()
    logs.close()
    assert (root.level, timers[2].cancelled) == (logging.WARNING, True)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b'{"level": "loud", "for_s": 1}',
        b'{"level": "debug", "for_s": 0}',
        b'{"level": "debug", "for_s": 86401}',
        b'{"level": "debug", "for_s": 1' + b"0" * 400 + b"}",
        b'{"level": ["debug"], "for_s": 1}',
        b"[1]",
    ],
)
async def test_log_level_change_to_an_unknown_level_is_rejected(payload: bytes, root: logging.Logger) -> None:
    before = root.level
    assert "error" in _change_level(payload, lambda *_: None)
    assert root.level == before
    assert set(LEVELS) == {"debug", "info", "warning", "error"}


def test_log_handler_without_a_reader_drops_lines_and_reports_their_count(root: logging.Logger) -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream, os.fdopen(read, "rb") as reader:
        NodeLogs().configure("info", "text", "n1", stream)
        log = logging.getLogger("liftpy.x")
        for number in range(100):  # more than the pipe takes
            log.error("line %d %s", number, "." * 5000)
        assert reader.read1(1 << 20).count(b" line ") < 100
        log.error("line after the pause")
        root.handlers[0].close()
        lines = reader.read1(1 << 20).decode().splitlines()
    [dropped] = [index for index, line in enumerate(lines) if re.search(r"log lines dropped count=\d+: nothing read", line)]
    assert lines[dropped + 1].endswith("line after the pause")


def test_log_handler_of_several_threads_without_a_reader_drops_lines_without_an_error(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream, os.fdopen(read, "rb"):
        logs = NodeLogs()
        logs.configure("info", "text", "n1", stream)
        failures: list[object] = []
        monkeypatch.setattr(root.handlers[0], "handleError", failures.append)

        def flood() -> None:
            try:
                for _ in range(2000):
                    logging.getLogger("liftpy.x").warning("a line %s", "." * 500)
                    logs.suppression.write_counts(all_of_it=True)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=flood) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        root.handlers[0].close()
    assert failures == []
