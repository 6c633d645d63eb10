"""Test that each block of the tutorial and the quickstart prints the output on the page."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.parsers.myst import CodeBlockParser

from liftpy.spark.session import spark_problem
from tests.docs.pages import DOCS, ROOT
from tests.docs.running import Reader, UnexpectedOutputError, commands, compare, fits

INSTALLING = ("python3 -m venv", ". .venv/", "pip install")
"""Done already where tests run; ``python -m tests.system.newcomer`` does it."""
PARTS = {"--data shop-data": "--data shop-data --port 0", "liftpy dashboard": "liftpy dashboard --listen 127.0.0.1:0"}


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LIFTPY_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = str(
        ROOT
    )  # Spark looks for pyspark_* in folders, where those of an editable installation are not
    with Reader(tmp_path, environment, PARTS) as running:
        yield running


class Evaluator:
    """Of each kind of block; what a block ``python`` has printed is compared with the block ``text`` behind it."""

    def __init__(self, reader: Reader, page: str, *, with_spark: bool = False) -> None:
        self._reader = reader
        self._page = page
        self._with_spark = with_spark
        self.said = ""
        self.evaluated: list[str] = []

    def console(self, example: Example) -> None:
        kept = [command for command, _ in commands(example.parsed) if not command.startswith(INSTALLING)]
        lines = example.parsed.splitlines(keepends=True)
        block = "".join(line for line in lines if not line.startswith("$ ") or line[2:].rstrip() in kept)
        self._reader.console(block, f"{self._page}:{example.line}")
        self.evaluated += kept

    def python(self, example: Example) -> None:
        if "local_session" in example.parsed and not self._with_spark:
            self.said = ""
            return
        self.said = self._reader.python(example.parsed, example.line)
        self.evaluated.append("python")

    def text(self, example: Example) -> None:
        if not self.said:
            return
        compare(example.parsed, self.said, f"{self._page}:{example.line}")
        self.evaluated.append("text")

    def run_page(self) -> None:
        names = ("console", "python", "text")
        parsers = [CodeBlockParser(language=name, evaluator=getattr(self, name)) for name in names]
        for example in Sybil(parsers=parsers).parse(DOCS / self._page).examples():
            example.evaluate()


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_docs_quickstart_commands_print_the_output_on_the_page(reader: Reader) -> None:
    evaluator = Evaluator(reader, "quickstart.md")
    evaluator.run_page()
    assert evaluator.evaluated.count("python") == evaluator.evaluated.count("text") == 2


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_docs_tutorial_commands_print_the_output_on_the_page(reader: Reader, request: pytest.FixtureRequest) -> None:
    """With Spark where tests/docs are asked for, not within the whole suite: a JVM of its own costs as much as all before it."""
    asked = any("tests/docs" in str(argument) for argument in request.config.args)
    with_spark = asked and not spark_problem()
    evaluator = Evaluator(reader, "tutorial.md", with_spark=with_spark)
    evaluator.run_page()
    assert evaluator.evaluated.count("python") == evaluator.evaluated.count("text") == 2 + with_spark
    assert any(command.startswith("kill -9") for command in evaluator.evaluated)


def test_docs_output_comparison_ignores_numbers_and_spacing() -> None:
    assert fits("a 1\n...\nz  2.5 s\n", "a 17\nb\nc\nz 0.1 s\n")
    assert fits("...\nz\n", "z\n")
    assert not fits("a 1\nz\n", "a 1\nb\nz\n")
    assert not fits("a 1\n", "a one\n")
    assert not fits("a 1\n", "")
    with pytest.raises(UnexpectedOutputError, match="expected\na\nsaid\nb"):
        compare("a", "b", "x")


def test_docs_console_block_is_split_into_commands_and_outputs() -> None:
    assert commands("$ a | b\n1\n2\n$ c\n$ d\n3\n") == [("a | b", "1\n2\n"), ("c", ""), ("d", "3\n")]


def test_docs_console_block_with_a_failing_command_raises_with_its_line_number(reader: Reader) -> None:
    reader.console("$ echo 5 of 'it'\n7 of it\n$ x=3\n$ echo $x$x | head -1\n11\n", "page:1")
    assert reader.shell("printf 'no line end'") == "no line end"
    with pytest.raises(UnexpectedOutputError, match="page:2: echo no"):
        reader.console("$ echo no\nyes\n", "page:2")
    with pytest.raises(UnexpectedOutputError, match="ends with 7:\nwhy"):
        reader.console("$ (echo why; exit 7)\n", "page:3")
    with pytest.raises(UnexpectedOutputError, match="NameError"):
        reader.python("print(undefined)\n", 1)
