"""``liftpy backup`` as a user runs it: each command a process of its own, on a running cluster. All steps at which one may be killed:
``python -m tests.system.backup kills``."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from liftpy.client import ReadOptions
from liftpy.core.base.ids import PartitionKey
from tests import fork_server
from tests.integration.conftest import Bench

pytestmark = pytest.mark.processes

LIFTPY = [sys.executable, "-c", "from sidecar.cli.main import main; main()", "backup"]
VALUES = [b"%d" % number * 9 for number in range(500)]
DROPPED = 30
LAST = DROPPED + len(VALUES) - 1


class Commands:
    """Of one cluster, with one store."""

    def __init__(self, nats: str, store: Path) -> None:
        self._nats = ("--nats", nats)
        self.store = store

    async def start(self, name: str, *words: str) -> Process:
        """One of them, not waited for."""
        return await asyncio.create_subprocess_exec(*self._line(name, *words), stdout=PIPE, stderr=PIPE)

    def _line(self, name: str, *words: str) -> list[str]:
        asks = self._nats if name in ("create", "restore", "drill", "cursors") else ()
        return [*LIFTPY, name, str(self.store), *words, "--json", *asks]

    async def run(self, name: str, *words: str, ends_with: int = 0) -> Any:
        """The JSON that it prints; on standard error where it fails and prints none."""
        done = await asyncio.to_thread(fork_server.run, self._line(name, *words), timeout=120)
        assert done.returncode == ends_with, (name, done.stdout, done.stderr)
        return json.loads(done.stdout or done.stderr)

    def pieces(self) -> set[Path]:
        """All files of records in the store."""
        return {path for path in (self.store / "pieces").rglob("*") if path.is_file()}


async def test_backup_commands_take_list_verify_prune_restore_and_drill(bench: Bench, stream_name: str, tmp_path: Path) -> None:
    """One ``create`` is killed halfway, a bit of a piece is flipped; all while a restore and a drill run beside what there is [R9]."""
    commands = Commands(bench.cluster.nats_url, tmp_path / "store")
    stream = await bench.create(stream_name)
    async with bench.client.producer(stream_name, id="job") as producer:
        await (await producer.send_many(VALUES[:DROPPED]))
    await bench.client.admin.truncate_before(
        stream_name, 0, DROPPED
    )  # the backup knows the producer, whose records it does not have
    key, cursor = PartitionKey(stream_name, stream.uid, 0), f"c{stream_name}"
    async with bench.client.publisher(stream_name) as publisher:
        await asyncio.gather(*[await publisher.send(value) for value in VALUES])
    await bench.until(lambda: _said(bench.client.cursors.set(cursor, {key: 77})), "a cursor has a position")

    first = await commands.run("create", "--stream", stream_name)
    assert first["streams"] == {stream_name: {"0": [DROPPED, LAST]}}
    of_it, into = ("--backup", first["backup"]), f"{stream_name}-then"
    async with asyncio.TaskGroup() as group:
        restoring = group.create_task(
            commands.run("restore", "--stream", stream_name, "--into", into, "--subject", f"then.{stream_name}", *of_it)
        )
        drilling = group.create_task(commands.run("drill", *of_it))
        await _killed_damaged_and_found(commands, bench, stream_name, first["backup"])
    assert restoring.result()["streams"][into]["offsets"] == [[DROPPED, LAST]]
    async with bench.client.producer(into, id="job") as producer:
        assert producer.next_sequence(0) == DROPPED, "its records are gone, and its place is known"
    on_n2 = ReadOptions(node="n2", patience_s=10)
    found = [record.value async for record in bench.client.consume(into, start="earliest", until="end", options=on_n2)]
    assert found == VALUES
    assert (drilling.result()["streams"], drilling.result()["records"]) == (1, len(VALUES))
    assert not [name for name in (await bench.client.admin.describe_cluster()).image.streams if name.startswith("drill-")]

    await bench.client.cursors.set(cursor, {key: 1})
    pruned, cursors = await asyncio.gather(commands.run("prune", "--keep", "1"), commands.run("cursors"))
    assert cursors == {cursor: ""}
    assert await bench.client.cursors.describe(cursor) == {key: 77}
    assert pruned["backups"] == [first["backup"]]
    assert len(pruned["waits_for"]) == 1, "the one that was killed may still be running, for all that is known here"
    prom = tmp_path / "backup.prom"
    (listed,) = await commands.run("list", "--max-age", "1h", "--metrics-file", str(prom))
    assert f'liftpy_backup_valid{{store="{commands.store}"}} 1.0' in prom.read_text()
    assert (listed["since"], listed["faults"]) == (first["backup"], [])


@pytest.mark.long
async def test_restore_of_a_stream_that_an_operator_changes_ends(bench: Bench, stream_name: str, tmp_path: Path) -> None:
    commands = Commands(bench.cluster.nats_url, tmp_path / "store")
    await bench.create(stream_name)
    async with await bench.client.publisher(stream_name) as publisher:
        await asyncio.gather(*[await publisher.send(value) for value in VALUES])
    await commands.run("create", "--stream", stream_name)

    async def has(name: str) -> bool:
        return name in (await bench.client.admin.describe_cluster()).image.streams

    async def restored(into: str, ends_with: int) -> Any:
        return await commands.run(
            "restore", "--stream", stream_name, "--into", into, "--subject", f"then.{into}", ends_with=ends_with
        )

    more, gone = f"{stream_name}-more", f"{stream_name}-gone"
    async with asyncio.TaskGroup() as group:
        wider, deleted = group.create_task(restored(more, 0)), group.create_task(restored(gone, 1))
        await bench.until(lambda: has(more), "a restore has created its stream")
        await bench.client.admin.add_partitions(more, 3)
        await bench.until(lambda: has(gone), "the other one, too")
        await bench.client.admin.delete_stream(gone)
    assert wider.result()["streams"][more]["offsets"] == [[0, len(VALUES) - 1]]
    whole = await bench.client.stream(more)
    assert {len(partition.replicas) for partition in whole.partitions} == {3}
    assert not [node for partition in whole.partitions for node in partition.replicas if node.startswith("restore-")]
    said = deleted.result()["error"]["detail"]
    assert said == f"Stream {gone} was deleted during the restore. Start the restore again."


async def _killed_damaged_and_found(commands: Commands, bench: Bench, stream_name: str, first: str) -> None:
    """Killed, ``create`` leaves no backup; the next one has a flipped bit for a while, which is named and never restored."""
    whole = commands.pieces()
    dying = await commands.start("create", "--stream", stream_name, "--base", "none", "--bytes-per-s", "100")
    await bench.until(lambda: _is(commands.pieces() - whole), "a second one is in the middle of a piece")
    dying.kill()
    assert await dying.wait() == -9
    verified, second = await asyncio.gather(
        commands.run("verify", "--backup", first), commands.run("create", "--stream", stream_name)
    )
    assert (verified["files"], verified["faults"]) == (3, [])
    assert second["since"] == first, "the one that was killed is none"

    (piece,) = [path for path in commands.pieces() if second["backup"] in path.name]
    good, name = piece.read_bytes(), str(piece.relative_to(commands.store))
    piece.write_bytes(good[:200] + bytes([good[200] ^ 4]) + good[201:])
    found, refused = await asyncio.gather(
        commands.run("verify", ends_with=1),
        commands.run("restore", "--stream", stream_name, "--into", "damaged", "--subject", "damaged", ends_with=1),
    )
    assert [name in fault for fault in found["faults"]] == [True], found
    assert name in refused["error"]["detail"]
    piece.write_bytes(good)


async def _said(command: Awaitable[None]) -> bool:
    await command
    return True


async def _is(found: object) -> bool:
    return bool(found)
