"""What is derived from a log (message ids, producers), on disk: a node that is killed begins with a file that fits its log, and with
nothing else; whatever was done to the files, nothing is stored twice [A3, A4, S11]."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from liftpy.client import Client, ProducerOptions
from sidecar.dev.cluster import DevCluster
from tests.integration.conftest import Bench, close_bench, open_bench

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

QUICK = {"LIFTPY_REPLICATION_STATE_CHECKPOINT_BYTES": "4096", "LIFTPY_REPLICATION_CHECKPOINT_INTERVAL_S": "0.05"}
PADDING = b"x" * 1000


def flip(file: Path, _: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def truncate(file: Path, _: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def empty(file: Path, _: Path) -> None:
    file.write_bytes(b"")


def rename(file: Path, _: Path) -> None:
    """As if it covered a longer log."""
    file.rename(file.with_name(f"state-{int(file.name[6:]) + 1000:020d}"))


def go_back(file: Path, older: Path) -> None:
    """It fits, and says less."""
    file.unlink()
    shutil.copy(older, file.parent)


def go_back_beside(file: Path, older: Path) -> None:
    """A damaged one, and an older one that fits."""
    flip(file, older)
    shutil.copy(older, file.parent)


def take_anothers(file: Path, older: Path) -> None:
    shutil.copy(next(other for other in state_files(older.parent.parent) if other.parent != older.parent), file)


HARMS: dict[str, tuple[Callable[[Path, Path], None] | None, int, int]] = {
    "whole": (None, 0, 1),
    "flipped": (flip, 1, 0),
    "truncated": (truncate, 1, 0),
    "empty": (empty, 1, 0),
    "renamed": (rename, 1, 0),
    "older": (go_back, 0, 1),
    "damaged-beside-older": (go_back_beside, 1, 1),
    "anothers": (take_anothers, 1, 0),
}
"""Name of a stream -> what is done to its file; how many files are left out then; whether a start begins with one."""


def state_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("state-*") if file.suffix != ".tmp")


async def publish(bench: Bench, stream: str, first: int, end: int) -> list[tuple[int, bool]]:
    """(sequence, whether it is a duplicate) of each message."""

    async def one(number: int) -> tuple[int, bool]:
        said = {"Nats-Msg-Id": f"id-{number}"}
        answer = json.loads((await bench.nc.request(f"data.{stream}", b"%d" % number + PADDING, 20, headers=said)).data)
        return answer["seq"], answer.get("duplicate", False)

    return await asyncio.gather(*map(one, range(first, end)))


async def produce(client: Client, stream: str, count: int) -> None:
    """The whole run of a producer again, from its beginning: what is stored is left out."""
    async with client.producer(stream, id=f"producer of {stream}", options=ProducerOptions(begin="repeat")) as producer:
        for number in range(count):
            await producer.send(b"produced %d" % number + PADDING)
        await producer.flush()


async def fill(bench: Bench, first: int, end: int) -> None:
    for stream in HARMS:
        await publish(bench, stream, first, end)
        await produce(bench.client, stream, end)


async def written(bench: Bench, stream: str, folder: Path, above: int, copies: Path) -> Path:
    """A copy of the file that covers more than the log below ``above``. A file that goes while it is copied has a successor."""

    async def look() -> Path | None:
        files = [file for file in state_files(folder) if f"/{stream}-" in str(file) and int(file.name[6:]) > above]
        return Path(shutil.copy(files[-1], copies)) if files else None

    await asyncio.to_thread(copies.mkdir, parents=True)
    return await bench.until(look, f"a state of {stream}")


async def counter(bench: Bench, name: str) -> int:
    return int((await bench.client.admin.node_status("n1"))["counters"].get(name, 0))


async def test_duplicates_are_detected_after_a_restart_with_any_damaged_state_file(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with DevCluster(1, data=data, settings=QUICK) as cluster:
        bench, node, older = await open_bench(cluster), cluster.nodes["n1"], dict[str, Path]()
        try:
            for stream in HARMS:
                await bench.create(stream)
                await publish(bench, stream, 0, 10)
                await produce(bench.client, stream, 10)
            for stream in HARMS:
                older[stream] = await written(bench, stream, data, 0, tmp_path / "older" / stream)
            await fill(bench, 10, 20)
            for stream in HARMS:
                await written(bench, stream, data, int(older[stream].name[6:]), tmp_path / "newer" / stream)
            node.kill()
            for stream, (harm, _, _) in HARMS.items():
                newest = next(file for file in reversed(state_files(data)) if f"/{stream}-" in str(file))
                if harm is not None:
                    harm(newest, older[stream])
            node.start()
            node.wait_ready()
            await asyncio.gather(*(bench.until(lambda one=stream: bench.ready(one), f"{stream} is led") for stream in HARMS))
            await check(bench, node.log)
        finally:
            await close_bench(bench)


async def check(bench: Bench, log: Any) -> None:
    assert await counter(bench, "dedup_state_discarded") == sum(left_out for _, left_out, _ in HARMS.values())
    assert await counter(bench, "dedup_state_restored") == sum(restored for _, _, restored in HARMS.values())
    for stream, (_, left_out, _) in HARMS.items():
        said = [line for line in log if f"state file discarded partition={stream}/0 " in line]
        assert len(said) == left_out, said
        assert [duplicate for _, duplicate in await publish(bench, stream, 0, 25)] == [True] * 20 + [False] * 5, stream
        await produce(bench.client, stream, 25)
        values = [record.value[: -len(PADDING)] async for record in bench.client.consume(stream, until="end")]
        expected = [b"%d" % n for n in range(25)], [b"produced %d" % n for n in range(25)]
        assert [[v for v in values if v in some] for some in expected] == list(expected), stream
        assert len(values) == 50
