"""A purge over nodes that are killed: nobody serves what was given up, and no file of any node holds it, once it is over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from liftpy.config import StreamConfig
from sidecar.dev.cluster import DevCluster
from tests.integration.conftest import Bench, close_bench, open_bench
from tests.integration.test_partition_cli import liftpy

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

SECRET = b"given up for good "
KEPT = b"this one stays "


def holding(folder: Path, what: bytes) -> set[str]:
    """Ids of the nodes of which a file holds it."""
    return {
        file.relative_to(folder).parts[0]
        for file in folder.rglob("*.log")
        if "streams" in file.parts and what in file.read_bytes()
    }


async def publish(bench: Bench, subject: str, value: bytes, count: int) -> None:
    await asyncio.gather(*(bench.nc.request(subject, value + b"%d" % n, 30) for n in range(count)))


async def partition(bench: Bench) -> Any:
    return (await bench.client.stream("mail")).partitions[0]


async def left(bench: Bench) -> list[bytes]:
    return [record.value or b"" async for record in bench.client.consume("mail", until="end")]


@pytest.mark.long
async def test_purge_completes_on_all_nodes_although_nodes_were_killed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with DevCluster(3, data=data) as cluster:
        bench = await open_bench(cluster)
        try:
            config = StreamConfig(dedup_window_s=0.0, segment_bytes=8192)
            await bench.client.create_stream("mail", "mail.>", config=config)
            await bench.until(lambda: bench.ready("mail"), "mail is led")
            for subject, value in (("mail.ann", SECRET), ("mail.bob", KEPT), ("mail.ann.old", SECRET), ("mail.bob", KEPT)):
                await publish(bench, subject, value, 200)
            leader, away, other = (await partition(bench)).replicas
            cluster.nodes[away].kill()
            what = ("--subject", "mail.ann.>", "--subject", "mail.ann", "--yes")
            asked = await asyncio.to_thread(liftpy, cluster, "stream", "purge", "mail", *what)
            code, answer = asked
            (purged,) = answer["purged"]
            assert (code, purged["end_offset"], purged["records"], purged["of_records"]) == (0, 800, 400, 800), asked

            async def only_one_waits() -> bool:
                return {said.node for said in (await partition(bench)).purged} == {leader, other}

            cluster.nodes[leader].kill()  # in the middle, whatever it has done
            cluster.nodes[leader].start()
            await bench.until(only_one_waits, "two of three are done")
            assert holding(data, SECRET) == {away}
            await publish(bench, "mail.ann", SECRET + b"after ", 3)
            found = await left(bench)
            assert len(found) == 403
            assert not any(value.startswith(SECRET) and b"after" not in value for value in found)
            cluster.nodes[away].start()

            async def over() -> bool:
                return not (await partition(bench)).purges

            await bench.until(over, "the purge is over")
            assert sorted(await left(bench)) == sorted(found)
            assert holding(data, KEPT) == {leader, away, other}
            assert holding(data, SECRET + b"1") == set()
            assert holding(data, SECRET + b"after ") == {leader, away, other}
        finally:
            await close_bench(bench)
