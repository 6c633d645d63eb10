"""Commands that delete records, with a cluster in memory: deleted records, remaining records, and printed texts."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from liftpy.client import Client
from liftpy.client.admin import Admin
from liftpy.config import StreamConfig
from liftpy.errors import UnavailableError
from liftpy.testing.memory import MemoryCluster, memory_cluster
from tests.unit.cli import conftest as commands

Run = Callable[..., tuple[int, str, str]]
RECORDS = 10
_numbers = count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[MemoryCluster]:
    with memory_cluster() as made:
        yield made


@pytest.fixture
def run(run: commands.Run, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command: its exit code, what it printed, and its errors. ``answer``: to a prompt."""
    monkeypatch.setattr("sidecar.cli.session.connect", lambda *_, **__: cluster.client())

    def command(*words: str, answer: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        return run(*words)

    return command


@pytest.fixture
def name(cluster: MemoryCluster) -> str:
    """A stream of two partitions with ten records each; the key of every other one is ``k``."""
    made = f"orders{next(_numbers)}"
    with cluster.sync_client() as client:
        client.create_stream(made, f"shop.{made}", partitions=2, config=StreamConfig(dedup_window_s=1.0))
        for number in range(RECORDS):
            for partition in (0, 1):
                client.publish(made, b"%d" % number, partition=partition, key=b"k" if number % 2 else b"\xe9")
    return made


def held(cluster: MemoryCluster, name: str) -> list[list[int]]:
    """The offsets that each partition gives a reader."""
    with cluster.sync_client() as client:
        return [[r.offset for r in client.consume(name, number, until="end")] for number in (0, 1)]


ALL = list(range(RECORDS))


@pytest.mark.parametrize(
    ("before", "code", "left"),
    [
        ("-3", 0, ALL[7:]),
        ("-99", 0, ALL),
        ("new", 0, []),
        ("-1h", 0, ALL),
        ("2100-01-01T00:00:00", 0, []),
        ("earliest", 2, ALL),
        ("latest", 2, ALL),
        ("yesterday", 2, ALL),
        ("p1.uid.3.0", 2, ALL),
        ("0001-01-01", 2, ALL),
        ("1677-09-20", 2, ALL),
        ("2263-01-01", 2, ALL),
        ("9999-12-31T23:59:59", 2, ALL),
        ("7", 2, ALL),
    ],
)
def test_delete_records_deletes_only_records_before_the_offset(
    before: str, code: int, left: list[int], run: Run, name: str, cluster: MemoryCluster
) -> None:
    found = run("stream", "delete-records", name, "--before", before, "--yes", "--json")
    assert found[0] == code, found
    if code:
        assert "--before" in found[2] or "--partition" in found[2]
    else:
        gone = len(ALL) - len(left)
        assert [(p["records"], p["of_records"]) for p in json.loads(found[1])["begins"]] == [(gone, len(ALL))] * 2
        _until(lambda: held(cluster, name) == [left, left])
    assert held(cluster, name) == [left, left]


def test_delete_records_before_an_offset_inside_a_batch_keeps_the_batch(run: Run, cluster: MemoryCluster) -> None:
    made = f"orders{next(_numbers)}"
    with cluster.sync_client() as client:
        client.create_stream(made, f"shop.{made}")
        client.publish(made, b"first")

    async def publish(client: Client) -> None:
        async with client.producer(made) as producer:
            await producer.send_many([b"%d" % number for number in range(RECORDS)])

    _with(cluster, publish)
    code, out, _ = run("stream", "delete-records", made, "--before", "-3", "--yes")
    assert (code, "1 of 11 records" in out) == (0, True), out
    _until(lambda: _offsets(cluster, made) == list(range(1, 11)))


@pytest.mark.parametrize("command", [("delete-records", "--before", "new"), ("purge", "--key", "k"), ("delete",)])
def test_delete_command_for_a_stream_that_waits_for_nodes_asks_for_a_confirmation(
    command: tuple[str, ...], run: Run, cluster: MemoryCluster
) -> None:
    made = f"waiting{next(_numbers)}"
    with cluster.sync_client() as client:
        client.create_stream(made, f"shop.{made}", partitions=2, replicas=9, ready_s=0)
    code, _, err = run("stream", command[0], made, *command[1:], answer="n\n")
    assert (code, f"stream {made}" in err, "permanently?" in err) == (130, True, True), err


def test_delete_records_keeps_records_published_during_the_confirmation_prompt(
    run: Run, name: str, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(*_: Any, **__: Any) -> None:
        with cluster.sync_client() as client:
            client.publish(name, b"came meanwhile", partition=0)

    monkeypatch.setattr("click.confirm", confirm)
    assert run("stream", "delete-records", name, "--before", "new")[0] == 0
    _until(lambda: held(cluster, name) == [[RECORDS], []])


@pytest.mark.parametrize("command", [("delete-records", "--before", "new"), ("purge", "--key", "k"), ("delete",)])
def test_delete_command_after_a_stream_was_recreated_during_the_prompt_changes_nothing(
    command: tuple[str, ...], run: Run, name: str, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(*_: Any, **__: Any) -> None:
        with cluster.sync_client() as client:
            client.admin.delete_stream(name)
            client.create_stream(name, f"shop.{name}", partitions=2)
            client.publish(name, b"new", key=b"k")

    monkeypatch.setattr("click.confirm", confirm)
    code, _, err = run("stream", command[0], name, *command[1:])
    assert (code, bool(err), held(cluster, name)) == (1, True, [[0], []])


def test_purge_command_with_a_key_that_is_not_utf_8_deletes_the_records_of_the_key(
    run: Run, name: str, cluster: MemoryCluster
) -> None:
    code, out, _ = run("stream", "purge", name, "--key", "\udce9", "--yes", "--wait", "--json")
    purged = json.loads(out)["purged"]
    assert (code, [(p["records"], p["of_records"], p["at_least"]) for p in purged]) == (0, [(5, 10, False)] * 2)
    assert held(cluster, name) == [ALL[1::2]] * 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--subject or --key"),
        (("--key", "k", "--before", "new"), "--before: new"),
        (("--key", "k", "--before", "-3"), "--before: -3"),
        (("--key", "k", "--before", "9999-01-01"), "--before"),
        (("--key", "k", "--before", "7"), "--partition"),
        (("--subject", "caf\udce9"), "UTF-8"),
    ],
)
def test_purge_command_with_invalid_options_exits_with_2_and_deletes_no_records(
    words: tuple[str, ...], said: str, run: Run, name: str, cluster: MemoryCluster
) -> None:
    code, _, err = run("stream", "purge", name, "--yes", *words)
    assert (code, said in err, held(cluster, name)) == (2, True, [ALL, ALL]), err


def test_purge_command_with_wait_and_a_stopped_replica_exits_with_3_at_its_timeout(
    run: Run, name: str, cluster: MemoryCluster
) -> None:
    with cluster.sync_client() as client:
        away = next(n for n in client.stream(name).partitions[0].replicas if n != client.stream(name).partitions[0].leader)
    cluster.kill(away)
    try:
        code, _, err = run("stream", "purge", name, "--key", "k", "--partition", "0", "--yes", "--wait", "--timeout", "0")
        assert (code, away in err) == (3, True)
        assert "purge of key k below 10 waits for" in run("stream", "show", name)[1]
    finally:
        cluster.start(away)


def _offsets(cluster: MemoryCluster, name: str) -> list[int]:
    with cluster.sync_client() as client:
        return [record.offset for record in client.consume(name, until="end")]


def _with(cluster: MemoryCluster, work: Callable[[Client], Any]) -> None:
    async def session() -> None:
        async with cluster.client() as client:
            await work(client)

    asyncio.run(session())


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "not within 30 s"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--replicas", "3", "--min-isr", "4"), 2, "more than the 3 replicas"),
        (("--min-isr", "4"), 2, "more than the 3 replicas"),
        (("--replicas", "3", "--min-isr", "3"), 0, ""),
    ],
)
def test_stream_create_with_min_isr_above_the_replica_count_prints_the_min_isr_option(
    words: tuple[str, ...], code: int, said: str, run: Run
) -> None:
    made = f"isr{next(_numbers)}"
    found = run("stream", "create", made, "--subject", f"isr.{made}", *words)
    assert found[0] == code, found
    assert ("--min-isr" in found[1] + found[2]) == bool(said)
    assert said in found[1] + found[2]
    if code == 0:
        altered = run("stream", "alter", made, "--replicas", "2", "--no-wait")
        assert (altered[0], "min_isr = 3" in altered[2]) == (2, True), altered


@pytest.mark.parametrize("letters", [251, 256, 300])
@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl"])
def test_consume_output_option_with_a_too_long_file_name_exits_with_2(
    letters: int, suffix: str, run: Run, name: str, tmp_path: Path
) -> None:
    file = tmp_path / ("x" * (letters - len(suffix)) + suffix)
    code, _, err = run("consume", name, "--output", str(file))
    assert (code, "too long" in err, "Traceback" in err) == (2, True, False), err


@pytest.mark.parametrize("words", [("purge", "--key", "k"), ("delete-records", "--before", "new")])
def test_delete_command_that_fails_at_a_later_partition_names_the_partitions_with_deleted_records(
    run: Run, cluster: MemoryCluster, name: str, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    for method in ("purge", "truncate_before"):
        request = getattr(Admin, method)

        async def fails_later(
            admin: Admin, stream: str, partition: int, *more: Any, request: Any = request, dry_run: bool = False, **named: Any
        ) -> int:
            if partition == 1 and not dry_run:
                raise UnavailableError("No controller answered.")
            return int(await request(admin, stream, partition, *more, dry_run=dry_run, **named))

        monkeypatch.setattr(Admin, method, fails_later)
    code, out, err = run("stream", words[0], name, *words[1:], "--yes", "--json")
    error = json.loads(err)["error"]
    assert (code, out, error["code"]) == (3, "", "UNAVAILABLE")
    assert error["detail"].endswith("The records of partition 0 are deleted. Run the command again for the others.")
