"""``liftpy consume --group`` with the coordinator of a cluster in memory: committed positions and rejected options."""

from __future__ import annotations

import asyncio
import errno
import importlib
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from liftpy.client import Client, Consumer, GroupOptions
from liftpy.errors import NotFoundError
from liftpy.testing.memory import MemoryCluster, memory_cluster
from sidecar.cli.main import main
from tests.only_in import only_in

MODULE = importlib.import_module("sidecar.cli.consume")
_numbers = count(1)
Look = Callable[[Client], Awaitable[bool]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[MemoryCluster]:
    with memory_cluster() as made:
        made.serve_groups()
        yield made


@pytest.fixture
def name(cluster: MemoryCluster) -> str:
    """A stream of two partitions with ten records each."""
    made = f"orders{next(_numbers)}"
    with cluster.sync_client() as client:
        client.create_stream(made, f"shop.{made}", partitions=2)
        for number in range(10):
            for partition in (0, 1):
                client.publish(made, b"%d" % number, partition=partition, key=b"k%d" % (number % 2))
    return made


def consume(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, until: Look, *words: str) -> int:
    """Run it until that is true, then press Ctrl-C; the exit code."""

    def session(_: Any, work: Callable[[Client], Awaitable[None]], **_named: Any) -> None:
        async def watched() -> None:
            async with cluster.client() as client, asyncio.timeout(60):
                working = asyncio.ensure_future(work(client))
                while not working.done() and not await until(client):
                    await asyncio.sleep(0.01)
                working.cancel()
                await working

        try:
            asyncio.run(watched())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(MODULE, "with_client", session)
    with pytest.raises(SystemExit) as left:
        main(["consume", *words])
    return int(left.value.code or 0)


def printed(capsysbinary: pytest.CaptureFixture[bytes], wanted: int, lines: list[bytes]) -> Look:
    """Whether so many lines have come."""

    async def look(_: Client) -> bool:
        lines.extend(capsysbinary.readouterr().out.splitlines())
        return len(lines) >= wanted

    return look


async def positions(cluster: MemoryCluster, group: str) -> dict[int, int]:
    async with cluster.client() as client:
        return {key.partition: at for key, at in (await client.groups.describe(group)).positions.items()}


def test_consume_with_group_option_commits_the_printed_records_on_ctrl_c(
    cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    lines: list[bytes] = []
    assert consume(cluster, monkeypatch, printed(capsysbinary, 20, lines), name, "--group", name) == 130
    assert sorted(lines) == sorted(b"%d\t%d\t%d" % (p, n, n) for p in (0, 1) for n in range(10))
    assert asyncio.run(positions(cluster, name)) == {0: 10, 1: 10}
    with cluster.sync_client() as client:
        client.publish(name, b"after", partition=1)
    later: list[bytes] = []
    assert consume(cluster, monkeypatch, printed(capsysbinary, 1, later), name, "--group", name, "--json") == 130
    assert [(row["partition"], row["offset"], row["value"]) for row in map(json.loads, later)] == [(1, 10, "after")]


def test_consume_with_group_option_and_filter_commits_positions_after_omitted_records(
    cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The last record of partition 1 fits nobody, nor does one of partition 0: positions go on past them all the same."""
    lines: list[bytes] = []
    monkeypatch.setattr("sidecar.cli.consume.GroupOptions", partial(GroupOptions, auto_commit_s=0.05))

    async def passed(client: Client) -> bool:
        lines.extend(capsysbinary.readouterr().out.splitlines())
        found = await client.groups.describe(name) if len(lines) == 10 else None
        return found is not None and sorted(found.positions.values()) == [10, 10]

    words = (name, "--group", name, "--key", "k0", "--format", "value")
    assert consume(cluster, monkeypatch, passed, *words) == 130
    assert sorted(lines) == sorted([b"0", b"2", b"4", b"6", b"8"] * 2)


@pytest.mark.parametrize(
    ("words", "is_warned"),
    [
        (("--subject", "shop.{0}.*"), True),
        (("--subject", "shop.{0}"), False),
        (("--subject", "*.{0}"), False),
        (("--subject", "shop.>", "--subject", "nowhere.>"), True),
        (("--subject", "shop.{0}", "--partition", "1"), True),
        (("--subject", "shop.{0}.*", "--partition", "1"), False),
        (("--subject", "shop.*.1", "--group", "g"), False),
        (("--subject", "shop.*.2", "--group", "g"), True),
    ],
)
def test_consume_with_a_subject_outside_the_stream_prints_a_warning(
    words: tuple[str, ...], is_warned: bool, cluster: MemoryCluster, name: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    said = ["", ""]

    async def says_something(_: Client) -> bool:
        found = capsys.readouterr()
        said[:] = said[0] + found.out, said[1] + found.err
        return bool(said[0] or said[1])

    until = () if "--group" in words else ("--until", "end")
    consume(cluster, monkeypatch, says_something, name, *(word.format(name) for word in words), *until)
    assert ("Warning: --subject" in said[1] + capsys.readouterr().err) is is_warned


def test_consume_with_group_option_and_subject_prints_only_records_of_the_subject(
    cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    with cluster.sync_client() as client:
        client.create_stream(f"{name}w", f"w.{name}.*")
    asyncio.run(_published(cluster, [f"w.{name}.{word}" for word in ("a", "b", "a")]))
    lines: list[bytes] = []
    words = (f"{name}w", "--group", name, "--subject", f"w.{name}.a")
    assert consume(cluster, monkeypatch, printed(capsysbinary, 2, lines), *words) == 130
    assert lines == [b"0\t0\tx", b"0\t2\tx"]


async def _published(cluster: MemoryCluster, subjects: Sequence[str]) -> None:
    async with cluster.client() as client:
        for subject in subjects:
            await client.transport.connection.request(subject, b"x", timeout=10)


@pytest.mark.parametrize("in_time", [True, False])
def test_consume_with_group_option_on_ctrl_c_waits_for_printing_and_commits_printed_records(
    in_time: bool, cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, threads = threading.Event(), threading.Event(), set()
    if not in_time:
        monkeypatch.setattr("sidecar.cli.consume._OUTPUT_TIMEOUT_S", 0.05)

    def write(lines: Iterator[bytes]) -> None:
        threads.add(threading.get_ident())
        list(lines)
        begun.set()
        may_end.wait(30)

    monkeypatch.setattr("sidecar.cli.consume.write_out", write)

    async def pressed(_: Client) -> bool:
        if begun.is_set() and in_time:
            asyncio.get_running_loop().call_later(0.3, may_end.set)
        elif begun.is_set():
            threading.Timer(1.0, may_end.set).start()  # the thread is not left behind
        return begun.is_set()

    async def committed() -> dict[int, int]:
        try:
            return {partition: at for partition, at in (await positions(cluster, name)).items() if at}
        except NotFoundError:  # it has no member and no position
            return {}

    assert consume(cluster, monkeypatch, pressed, name, "--group", name) == 130
    assert threading.get_ident() not in threads, "heartbeats go on while it is printed"
    assert bool(asyncio.run(committed())) is in_time


def test_consume_with_group_option_from_new_starts_at_the_log_end(
    cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    lines: list[bytes] = []
    seen = printed(capsysbinary, 1, lines)

    async def look(client: Client) -> bool:
        try:
            begun = len((await client.groups.describe(name)).positions) == 2
        except NotFoundError:
            return False
        if begun and not lines:
            await client.publish(name, b"new")
        return await seen(client)

    assert consume(cluster, monkeypatch, look, name, "--group", name, "--from", "new", "--format", "value") == 130
    assert set(lines) == {b"new"}


def test_consume_with_group_and_output_options_writes_committed_records_to_the_file(
    cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "orders.jsonl"
    part = tmp_path / "orders.jsonl.part"

    async def look(_: Client) -> bool:
        return part.exists() and len(part.read_bytes().splitlines()) == 20

    assert consume(cluster, monkeypatch, look, name, "--group", name, "--output", str(file)) == 130
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted((row["partition"], row["offset"]) for row in rows) == [(p, n) for p in (0, 1) for n in range(10)]
    assert os.listdir(tmp_path) == [file.name]
    assert asyncio.run(positions(cluster, name)) == {0: 10, 1: 10}


def test_consume_with_group_option_commits_records_printed_while_the_event_loop_was_blocked(
    cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that is suspended, or out of breath: the time to wait for the last lines is over when they are long out."""
    begun, suspended, written = threading.Event(), threading.Event(), threading.Event()
    lines_out: list[bytes] = []

    def write(lines: Iterator[bytes]) -> None:
        begun.set()
        assert suspended.wait(10)
        lines_out.extend(lines)
        written.set()

    async def wait(waited: Any, *, timeout: float | None = None, **named: Any) -> Any:
        """The loop turns no more until that time is over."""
        if timeout is None:
            return await asyncio.wait(waited, **named)
        suspended.set()
        assert written.wait(10)
        time.sleep(0.05)  # noqa: ASYNC251 - until the thread has said so
        return None

    async def look(_: Client) -> bool:
        return begun.is_set()

    monkeypatch.setattr("sidecar.cli.consume.write_out", write)
    only_in(monkeypatch, importlib.import_module("sidecar.cli.consume"), "asyncio", wait=wait)
    assert consume(cluster, monkeypatch, look, name, "--group", name) == 130
    assert sum(asyncio.run(positions(cluster, name)).values()) == len(lines_out) > 0


@pytest.mark.parametrize("presses", [0, 1])
async def test_consume_with_group_option_finishes_printing_after_ctrl_c_at_any_time(
    monkeypatch: pytest.MonkeyPatch, presses: int
) -> None:
    """``presses``: before it is printed; once more when the last lines are waited for, or at once behind them."""
    took, may_print, finished = asyncio.Event(), threading.Event(), []
    part, parts = SimpleNamespace(slice=SimpleNamespace(records=list)), ["the only one"]

    async def take() -> Any:
        if parts:
            parts.clear()
            return part
        took.set()
        return await asyncio.Event().wait()

    async def wait(writing: Any, timeout: float) -> None:
        may_print.set()
        while not all(task.done() for task in writing):
            await asyncio.sleep(0.001)
        reading.cancel()
        await asyncio.sleep(0)

    class Member:
        async def __aenter__(self) -> Any:
            return SimpleNamespace(take=take, finished=finished.append)

        async def __aexit__(self, *_: object) -> None:
            finished.append("closed")

    def write(lines: Iterator[bytes]) -> None:
        took_up.set()
        assert may_print.wait(10)

    took_up = threading.Event()
    module = importlib.import_module("sidecar.cli.consume")
    monkeypatch.setattr(module, "write_out", write)
    only_in(monkeypatch, module, "asyncio", wait=wait)
    reading = asyncio.create_task(module.consume_as_member(Member, "text", None))
    async with asyncio.timeout(10):
        while not took_up.is_set():
            await asyncio.sleep(0.001)
        if presses:
            reading.cancel()
        else:
            may_print.set()
            await asyncio.wait((reading, asyncio.ensure_future(took.wait())), return_when=asyncio.FIRST_COMPLETED)
            reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert finished == [part, "closed"]


def test_consume_with_group_option_does_not_commit_records_that_failed_to_print(
    cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Iterator[bytes]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sidecar.cli.consume.write_out", fails)

    async def never(_: Client) -> bool:
        return False

    monkeypatch.setattr("sidecar.cli.main.discard_stdout", lambda: None)
    assert consume(cluster, monkeypatch, never, name, "--group", name) == 1
    with pytest.raises(NotFoundError):  # nor is there anything else to remember of the group
        asyncio.run(positions(cluster, name))


def test_consume_with_group_option_commits_no_record_that_is_not_on_the_disk(
    cluster: MemoryCluster, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def never(_: Client) -> bool:
        return False

    monkeypatch.setattr(os, "fsync", _fail_to_flush)
    assert consume(cluster, monkeypatch, never, name, "--group", name, "--output", str(tmp_path / "o.jsonl")) == 1
    assert "Input/output error" in capsys.readouterr().err
    with pytest.raises(NotFoundError):
        asyncio.run(positions(cluster, name))


def _fail_to_flush(descriptor: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_consume_with_group_option_replaces_the_empty_output_of_an_earlier_run(
    cluster: MemoryCluster, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier run could not join the group."""
    part = tmp_path / "o.jsonl.part"
    part.touch()

    async def written(_: Client) -> bool:
        return bool(part.exists() and part.stat().st_size)

    assert consume(cluster, monkeypatch, written, name, "--group", name, "--output", str(tmp_path / "o.jsonl")) == 130
    assert (tmp_path / "o.jsonl").stat().st_size


def test_consume_with_group_option_keeps_the_unfinished_output_of_an_earlier_run(
    cluster: MemoryCluster, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = tmp_path / "o.jsonl.part"
    part.write_text("records that the group has committed\n")

    async def never(_: Client) -> bool:
        return False

    assert consume(cluster, monkeypatch, never, name, "--group", name, "--output", str(tmp_path / "o.jsonl")) == 2
    assert f"{part} already exists" in capsys.readouterr().err
    assert part.read_text() == "records that the group has committed\n"
    with pytest.raises(NotFoundError):
        asyncio.run(positions(cluster, name))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--reverse"], "--reverse cannot be combined with --group"),
        (["--partition", "0"], "The group assigns the partitions"),
        (["--until", "end"], "A group member reads until Ctrl-C"),
        (["--from", "-10m"], "liftpy group reset g --stream orders --to -10m"),
        (["--from", "17"], "earliest or new"),
        (["--output", "o.parquet"], "Invalid value for --output"),
    ],
)
def test_consume_with_group_option_and_an_incompatible_option_is_rejected(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["consume", "orders", "--group", "g", *words])
    assert left.value.code == 2
    assert says in " ".join(capsys.readouterr().err.split())


def _session_of(cluster: MemoryCluster) -> Callable[..., Any]:
    """Return a function in the place of ``with_client``, which connects to ``cluster``."""

    def session(_: Any, work: Callable[[Client], Awaitable[Any]], **_named: Any) -> Any:
        async def done() -> Any:
            async with cluster.client() as client:
                return await work(client)

        return asyncio.run(done())

    return session


def test_queue_show_lists_workers_with_pending_records(
    cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.import_module("sidecar.cli.group"), "with_client", _session_of(cluster))
    with cluster.sync_client() as client, client.queue(name, f"q-{name}") as queue:
        jobs = queue.take(7)
        with pytest.raises(SystemExit, match="0"):
            main(["group", "show", f"q-{name}", "--json"])
        (shown,) = json.loads(capsys.readouterr().out)["queues"]
        (holder,) = shown["holders"]
        worker = holder.pop("worker")
        assert holder == {"records": 7, "first": 0, "deliveries": 1}
        with pytest.raises(SystemExit, match="0"):
            main(["group", "show", f"q-{name}"])
        said = capsys.readouterr().out.split()
        row = said.index(worker[:12])
        assert said[row - 1 : row + 4] == [f"{name}/{jobs[0].key.partition}", worker[:12], "7", "0", "1"]


def test_cursor_show_with_a_position_below_the_log_start_excludes_deleted_records_from_the_lag(
    cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def trimmed(client: Client) -> None:
        await (await client.cursor(f"c-{name}", name)).commit(2)
        await client.admin.truncate_before(name, 0, 6)
        async with asyncio.timeout(60):
            while (await client.bounds(name)).log_start_offset < 6:
                await asyncio.sleep(0.01)

    _session_of(cluster)(None, trimmed)
    monkeypatch.setattr(importlib.import_module("sidecar.cli.group"), "with_client", _session_of(cluster))
    with pytest.raises(SystemExit, match="0"):
        main(["cursor", "show", f"c-{name}", "--json"])
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["position"], shown["lag"]) == (2, 4)


async def _until_its_end(_: Client) -> bool:
    return False


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("suffix", ["parquet", "arrow", "jsonl"])
def test_consume_output_option_writes_all_records_to_the_file(
    suffix: str, reverse: bool, cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = tmp_path / f"orders.{suffix}"
    words = (name, "--partition", "0", "--output", str(file), *(["--reverse"] if reverse else ["--until", "end"]))
    assert consume(cluster, monkeypatch, _until_its_end, *words) == 0
    assert capsys.readouterr().err.endswith(f"10 records in {file}\n")  # a slow export tells its progress before
    if suffix == "jsonl":
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    else:
        rows = (pq.read_table(file) if suffix == "parquet" else pa.ipc.open_file(file).read_all()).to_pylist()
    offsets = list(range(10))
    assert [row["offset"] for row in rows] == (offsets[::-1] if reverse else offsets)
    key = "k1" if reverse else "k0"
    assert rows[0]["key"] == (key if suffix == "jsonl" else key.encode())
    assert os.listdir(tmp_path) == [file.name]
    assert consume(cluster, monkeypatch, _until_its_end, *words) == 2
    assert "already exists" in capsys.readouterr().err


def test_consume_with_output_option_writes_all_records_although_the_reader_of_stdout_has_closed_the_pipe(
    cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    batches, file = Consumer.batches, tmp_path / "o.jsonl"

    async def slow(consumer: Consumer) -> Any:
        async for piece in batches(consumer):
            await asyncio.sleep(0.01)  # a closed pipe is noticed at once
            yield piece

    monkeypatch.setattr(Consumer, "batches", slow)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr("sys.stdout", closed)
        assert consume(cluster, monkeypatch, _until_its_end, name, "--output", str(file)) == 0
    assert [json.loads(line)["offset"] for line in file.read_text().splitlines()] == list(range(10))


def test_consume_output_that_fails_leaves_a_file_with_the_suffix_part(
    cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batches = Consumer.batches

    async def fails(consumer: Consumer) -> Any:
        async for piece in batches(consumer):
            yield piece
            raise NotFoundError("made again")

    monkeypatch.setattr(Consumer, "batches", fails)
    assert consume(cluster, monkeypatch, _until_its_end, name, "--partition", "0", "--output", str(tmp_path / "o.jsonl")) == 1
    assert "Error: made" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["o.jsonl.part"]


@pytest.mark.parametrize("words", [(), ("--until", "8"), ("--reverse",)])
def test_consume_with_output_option_interrupted_before_its_end_leaves_a_file_with_the_suffix_part(
    cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...],
) -> None:  # fmt: skip
    """A reboot ended an export. Its file looked complete, and the next run rejected it as existing."""
    batches, reading = Consumer.batches, threading.Event()

    async def slow(consumer: Consumer) -> Any:
        async for piece in batches(consumer):
            yield piece
            reading.set()
            await asyncio.sleep(60)

    async def look(_: Client) -> bool:
        return reading.is_set()

    command = (name, "--output", str(tmp_path / "o.parquet"), *words)
    with monkeypatch.context() as patch:
        patch.setattr(Consumer, "batches", slow)
        assert consume(cluster, patch, look, *command) == 130
    assert "The export is not complete." in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["o.parquet.part"]
    assert pq.read_table(tmp_path / "o.parquet.part").num_rows > 0
    assert consume(cluster, monkeypatch, _until_its_end, *command) == 0
    assert os.listdir(tmp_path) == ["o.parquet"]


def test_consume_with_output_option_overwrites_no_file_of_another_program(
    cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batches, file = Consumer.batches, tmp_path / "o.jsonl"

    async def created_meanwhile(consumer: Consumer) -> Any:
        async for piece in batches(consumer):
            yield piece
        file.write_text("of another program")

    monkeypatch.setattr(Consumer, "batches", created_meanwhile)
    assert consume(cluster, monkeypatch, _until_its_end, name, "--output", str(file)) == 2
    assert "during the export" in capsys.readouterr().err
    assert file.read_text() == "of another program"
    assert [json.loads(line)["offset"] for line in (tmp_path / "o.jsonl.part").read_text().splitlines()] == list(range(10))


def test_consume_with_the_output_of_a_running_command_is_rejected(
    cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs of a timer can overlap. Both wrote into one file, and the first one reported success."""
    file = tmp_path / "o.jsonl"
    (tmp_path / "o.jsonl.part").write_text("remains of a killed command")
    with MODULE.output_to(file):
        assert consume(cluster, monkeypatch, _until_its_end, name, "--output", str(file)) == 2
        assert f"Another command writes {file}.part now" in capsys.readouterr().err
    assert file.read_text() == ""


def test_consume_with_output_option_on_a_full_disk_exits_with_1(
    cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batches = Consumer.batches

    async def fills_the_disk(consumer: Consumer) -> Any:
        async for piece in batches(consumer):
            yield piece
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Consumer, "batches", fills_the_disk)
    assert consume(cluster, monkeypatch, _until_its_end, name, "--output", str(tmp_path / "o.jsonl")) == 1
    assert "No space left on device. Free space" in capsys.readouterr().err


def test_consume_with_output_option_reports_no_export_that_is_not_on_the_disk(
    cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "fsync", _fail_to_flush)
    assert consume(cluster, monkeypatch, _until_its_end, name, "--output", str(tmp_path / "o.jsonl")) == 1
    assert "Input/output error" in capsys.readouterr().err
    assert not (tmp_path / "o.jsonl").exists()
