"""Test the blocks of the pages: valid commands, Python that compiles, and blocks that run in memory.

The blocks of quickstart and tutorial run in test_tutorial.py, against real processes.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import importlib
import inspect
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import liftpy
from liftpy.client import (
    BatchSlice,
    Client,
    Consumer,
    Cursor,
    EventKind,
    Group,
    GroupBatch,
    Job,
    ManyConsumer,
    Producer,
    Publisher,
    Queue,
    ReadEvent,
    ReadOptions,
    Source,
)
from liftpy.testing.memory import MemoryCluster, memory_cluster
from sidecar.runtime.settings import SettingsLoader
from tests.docs.commands_said import said, wrong_with
from tests.docs.pages import Block, blocks, pages
from tests.examples.bank import Bank

NOW = [page for page in pages() if page != "CHANGELOG.md"]


def test_docs_commands_are_accepted_by_the_command_line_parser() -> None:
    found = [(page, *one) for page in NOW for one in said(page)]
    assert len(found) > 350
    assert sum(whole for *_, whole in found) > 130
    wrong = [
        f"{page}:{line}: liftpy {' '.join(words)}: {why}"
        for page, line, words, whole in found
        if (why := wrong_with(words, whole))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("words", "whole"),
    [
        ("strem list", True), ("stream lst", False), ("stream create orders", True), ("stream create", True), ("stream", True),
        ("consume orders --form -10m", True), ("consume orders --form", False), ("consume orders --format yaml", True),
        ("status now", True), ("controllers add|swap", False), ("health --nod n1", False), ("events --since", True),
    ],
)  # fmt: skip
def test_docs_command_check_rejects_an_invalid_command(words: str, whole: bool) -> None:
    assert wrong_with(words.split(), whole)


@pytest.mark.parametrize(
    ("words", "whole"),
    [
        ("stream list", True), ("controllers add|remove|replace", False), ("health --synced --node N", False),
        ("sidecar ... --jetstream-api", True), ("service bank:Bank --node n1 --stream s --data d", True), ("log verify DATA", True),
        ("consume --group", False),
    ],
)  # fmt: skip
def test_docs_command_check_accepts_a_valid_command(words: str, whole: bool) -> None:
    assert wrong_with(words.split(), whole) == ""


def test_docs_toml_blocks_load_as_node_settings(tmp_path: Path) -> None:
    found = [block for page in NOW for block in blocks(page) if block.language == "toml"]
    assert found
    for block in found:
        path = tmp_path / "node.toml"
        path.write_text(block.text)
        assert SettingsLoader(path, {}, {}).load().node_id, block.at


# ---- Python: it compiles, and what it names exists ------------------------------------------------------------------------
def compiled(block: Block) -> CodeType:
    """Its code, ``await`` at its top allowed."""
    return compile(block.text, block.at, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


PYTHON = [block for page in NOW for block in blocks(page) if block.language == "python"]
KINDS: dict[str, Any] = {
    "client": Client, "producer": Producer, "publisher": Publisher, "consumer": Consumer, "many": ManyConsumer, "group": Group,
    "part": GroupBatch, "queue": Queue, "job": Job, "cursor": Cursor, "liftpy": liftpy, "slice": BatchSlice, "cluster": MemoryCluster,
}  # fmt: skip
"""What a name means in all pages."""
GIVEN = {
    *KINDS, "spark", "url", "folder", "orders", "live", "values", "keys", "READ", "log", "ReadEvent", "EventKind", "ReadOptions",
    "Source", "connect", "bill",
}  # fmt: skip
"""Names that a block may use, and the text before it explains."""


def wrong_names(tree: ast.AST) -> list[str]:
    """Imports, attributes and arguments that do not exist, and names that nobody gives."""
    wrong, bound, used = [], set(GIVEN) | set(dir(builtins)), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound.add((alias.asname or alias.name).partition(".")[0])
                if alias.name.startswith(("liftpy", "sidecar")):
                    importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            bound |= {alias.asname or alias.name for alias in node.names}
            if str(node.module).startswith(("liftpy", "sidecar")):
                module = importlib.import_module(str(node.module))
                wrong += [f"{node.module} has no {alias.name}" for alias in node.names if not hasattr(module, alias.name)]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                bound.add(node.id)
            else:
                used.append(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in KINDS:
            if not _has(KINDS[node.value.id], node.attr):
                wrong.append(f"{node.value.id} has no {node.attr}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            called = getattr(KINDS.get(node.func.value.id), node.func.attr, None)
            if inspect.isroutine(called):
                taken = inspect.signature(called).parameters
                open_ended = any(one.kind is one.VAR_KEYWORD for one in taken.values())
                wrong += [
                    f"{ast.unparse(node.func)} takes no {word.arg}" for word in node.keywords
                    if word.arg is not None and word.arg not in taken and not open_ended
                ]  # fmt: skip
    return wrong + [f"nobody gives {name}" for name in used if name not in bound]


def _has(kind: Any, name: str) -> bool:
    """Attributes that are set in ``__init__`` are in its source."""
    return hasattr(kind, name) or (
        isinstance(kind, type) and (name in kind.__annotations__ or f"self.{name}" in inspect.getsource(kind))
    )


def test_docs_python_blocks_compile_and_use_existing_names() -> None:
    assert len(PYTHON) > 25
    wrong = []
    for block in PYTHON:
        compiled(block)
        wrong += [f"{block.at}: {why}" for why in wrong_names(ast.parse(block.text))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "from liftpy.client import Gone", "client.konsume('a')", "client.consume('a', begin=5)", "x = undefined", "liftpy.gone",
        "part.gone", "from liftpy import connect\nconnct()", "async def a(): await queue.tke()",
    ],
)  # fmt: skip
def test_docs_python_name_check_reports_an_unknown_name(text: str) -> None:
    assert len(wrong_names(ast.parse(text))) == 1


# ---- and runs ---------------------------------------------------------------------------------------------------------------
class Page:
    """What is around a block that runs: a cluster in memory, a client, what is printed, and names."""

    def __init__(self, cluster: MemoryCluster, client: Client) -> None:
        self.cluster, self.client = cluster, client
        self.printed: list[str] = []
        self._more = asyncio.Event()
        self.names: dict[str, Any] = {
            "client": client, "print": self._print, "connect": lambda *_, **__: cluster.client(), "url": "", "log": self, "READ": self,
            "ReadEvent": ReadEvent, "EventKind": EventKind, "ReadOptions": ReadOptions, "Source": Source, "values": [b"two", b"three"],
            "keys": [b"a", b"b"], "bill": lambda record: [(record.key, b"bill of " + record.value)], "__name__": "page",
        }  # fmt: skip

    def _print(self, *what: object) -> None:
        self.printed.append(" ".join(map(str, what)))
        self._more.set()

    def inc(self, count: int) -> None:
        """Stands for a metric."""
        self._print("records", count)

    def info(self, *what: object) -> None:
        """Stands for a logger."""

    async def stored(self, stream: str) -> list[bytes]:
        return [record.value async for record in self.client.consume(stream, until="end")]

    async def until(self, done: Callable[[], Awaitable[bool]] | Callable[[], bool], running: asyncio.Task[Any]) -> None:
        """Wait for the condition, then end the block. An error of the block is raised."""
        await self.wait_until(done, running)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def wait_until(self, done: Callable[[], Awaitable[bool]] | Callable[[], bool], running: asyncio.Task[Any]) -> None:
        """Wait for the condition while the block runs. An error of the block is raised."""
        while not (found if isinstance(found := done(), bool) else await found):
            if running.done():
                await running
            self._more.clear()
            waits = [asyncio.create_task(self._more.wait()), running]
            await asyncio.wait(waits, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
            waits[0].cancel()


async def run(block: Block, page: Page, **more: Any) -> dict[str, Any]:
    """To its end; its names."""
    names = {**page.names, **more}
    made = eval(compiled(block), names)
    if inspect.isawaitable(made):
        await made
    return names


@asynccontextmanager
async def a_page(monkeypatch: pytest.MonkeyPatch, *streams: str) -> AsyncIterator[Page]:
    async with memory_cluster() as cluster, cluster.client() as client:
        monkeypatch.setattr("liftpy.client.connect", lambda *_, **__: cluster.client())
        for stream in streams:
            await client.create_stream(stream, f"shop.{stream}")
        yield Page(cluster, client)


def block_of(page: str, beginning: str) -> Block:
    (found,) = [block for block in blocks(page) if block.language == "python" and beginning in block.text]
    return found


async def test_readme_blocks_run_and_store_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_page(monkeypatch) as page:
        await run(block_of("README.md", "create_stream"), page)
        assert page.printed == ["0 b'one'"]
        await run(block_of("README.md", "client.producer"), page)
        assert await page.stored("orders") == [b"one", b"one", b"two", b"three"]


async def test_docs_block_that_calls_a_service_runs_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_page(monkeypatch, "commands", "receipts") as page:
        page.cluster.serve(Bank, "bank", "commands", output_stream="receipts")
        await page.client.services.call("bank", "commands", b'{"id": "1", "do": "open", "account": "a"}')
        answer = (await run(block_of("docs/replicated-services.md", "services.call"), page))["answer"]
        assert json.loads(answer.value)["ok"]


async def test_docs_blocks_about_consuming_run_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_page(monkeypatch, "pay-1") as page:
        await page.client.create_stream("orders", "shop.orders.>")
        nats = await page.cluster.nats()
        for place in ("eu", "us"):
            await nats.request(f"shop.orders.{place}.a", place.encode())
        await page.client.publish("pay-1", b"paid")
        await run(block_of("docs/consuming.md", "subjects="), page)
        assert page.printed == ["0 shop.orders.eu.a b'eu'"]
        names = await run(block_of("docs/consuming.md", "on_event"), page)
        options = ReadOptions(on_event=names["count"])
        assert len([record async for record in page.client.consume("orders", until="end", options=options)]) == 2
        assert page.printed[-1] == "records 2"
        block = block_of("docs/consuming.md", "consume_many")
        many = asyncio.create_task(
            run(replace(block, text=block.text.replace("...", "print(record.stream, record.value)")), page)
        )
        await page.until(lambda: {"orders b'eu'", "orders b'us'", "pay-1 b'paid'"} <= set(page.printed), many)
        await nats.close()


async def test_docs_blocks_about_groups_and_queues_run_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_page(monkeypatch, "orders", "pay-1", "jobs") as page:
        await asyncio.to_thread(page.cluster.serve_groups)
        for stream in ("orders", "pay-1", "jobs"):
            await page.client.publish(stream, b"one", key=b"k")
        group = asyncio.create_task(run(block_of("docs/groups.md", 'client.group("billing", ["orders", "pay-*"])'), page))
        await page.until(lambda: len(page.printed) == 2, group)
        assert sorted(page.printed) == ["orders 0 0 b'one'", "pay-1 0 0 b'one'"]
        batches = asyncio.create_task(run(block_of("docs/groups.md", "group.batches()"), page))
        await page.until(lambda: page.printed[-1] == "orders 0 [b'one']", batches)
        await run(block_of("docs/groups.md", "client.cursor"), page)
        assert page.printed[-1] == "0 b'one'"
        queue = asyncio.create_task(run(block_of("docs/queues.md", "client.queue"), page))
        await page.until(lambda: page.printed[-1] == "b'one' 1", queue)


async def test_docs_group_member_program_commits_and_leaves_the_group_on_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_page(monkeypatch, "orders") as page:
        await asyncio.to_thread(page.cluster.serve_groups)
        block = block_of("docs/groups.md", "add_signal_handler")
        program = asyncio.create_task((await run(replace(block, text=block.text.partition("\n\nwith ")[0]), page))["main"]())
        try:
            for value in ("one", "two"):
                await page.client.publish("orders", value.encode())
                await page.wait_until(lambda value=value: value in "".join(page.printed), program)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait([program])
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().remove_signal_handler(number)
        left = await page.client.groups.describe("audit")
        assert (program.cancelled(), left.members, list(left.positions.values())) == (True, (), [2])


async def test_docs_block_with_a_group_that_writes_a_stream_runs_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cluster of its own: what the group above has committed is done."""
    async with a_page(monkeypatch, "orders", "bills") as page:
        await asyncio.to_thread(page.cluster.serve_groups)
        await page.client.publish("orders", b"one", key=b"k")
        into = asyncio.create_task(run(block_of("docs/groups.md", "group.into"), page))

        async def billed() -> bool:
            return await page.stored("bills") == [b"total of one"]

        await page.until(billed, into)


async def test_docs_blocks_about_stream_to_stream_publishing_run_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_page(monkeypatch, "orders", "totals") as page:
        await page.client.publish("orders", b"one", key=b"k")
        running = asyncio.create_task(run(block_of("docs/publishing.md", "Source("), page))

        async def made() -> bool:
            return await page.stored("totals") == [b"bill of one"]

        await page.until(made, running)


async def test_docs_blocks_about_testing_run_without_an_error() -> None:
    names: dict[str, Any] = {}
    exec(compiled(block_of("docs/testing.md", "memory_cluster")), names)
    await names["test_an_order_is_kept"]()
    await asyncio.to_thread(names["test_the_same_without_asyncio"])
    exec(compiled(block_of("docs/testing.md", "pytest_plugins")), names)

    def with_fixtures() -> None:
        with memory_cluster() as cluster, cluster.sync_client() as client:
            names["test_an_order_survives_its_leader"](client, cluster)

    await asyncio.to_thread(with_fixtures)


ELSEWHERE = {
    "tests/README.md": "a simulated history; tests/simulation",
    "docs/pipelines.md": "Spark; tests/integration/test_spark_*",
    "docs/spark.md": "Spark; tests/integration/test_spark_*",
    "docs/quickstart.md": "test_tutorial.py",
    "docs/tutorial.md": "test_tutorial.py",
}
"""Pages whose blocks do not run here, and what does what they say."""


def test_docs_pages_with_python_blocks_are_all_run_by_a_test() -> None:
    here = {
        "README.md", "docs/consuming.md", "docs/groups.md", "docs/queues.md", "docs/publishing.md", "docs/replicated-services.md",
        "docs/testing.md",
    }  # fmt: skip
    assert {block.page for block in PYTHON} == here | set(ELSEWHERE)
