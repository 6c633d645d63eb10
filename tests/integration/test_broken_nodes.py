"""Nodes that stop, are killed, come back: what was acknowledged stays, and everybody catches up [D1, D3, L2]."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import crc32c
import pytest

from liftpy.config import StreamConfig
from liftpy.core.wire.batch import parse_batch, parse_header
from liftpy.spark.options import Access, Selection
from liftpy.spark.pipelines.audit import audit
from liftpy.spark.pipelines.audit_findings import AuditReport

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

NODES = ("n1", "n2", "n3")


def payloads(word: str, count: int) -> list[bytes]:
    return [f"{word} {number}".encode() for number in range(count)]


async def settle(bench: Any, name: str) -> str:
    """Wait until all three are in sync; return the leader."""

    async def whole() -> bool:
        return await bench.isr(name) == set(NODES) and await bench.ready(name)

    await bench.until(whole, "all nodes are in sync")
    return str(await bench.leader(name))


async def expect_everywhere(bench: Any, name: str, acked: list[bytes]) -> None:
    """Every acknowledged payload is on every node, in the same bytes, in order; one that was sent again may be there twice."""
    total = (await bench.replica(await bench.leader(name), name))["newest_offset"] + 1
    logs = [await bench.values_on(node, name, total) for node in NODES]
    assert logs[0] == logs[1] == logs[2]
    assert list(dict.fromkeys(value for value in logs[0] if value in set(acked))) == acked


async def test_nodes_reconnect_after_a_nats_restart_and_lose_no_acked_record(fragile: Any, stream_name: str) -> None:
    await fragile.create(stream_name)
    subject = f"data.{stream_name}"
    await settle(fragile, stream_name)
    acked = payloads("before", 20)
    await fragile.publish_acked(subject, acked)
    server = fragile.cluster.nats
    server.kill()
    await asyncio.to_thread(server.resume)
    last = payloads("after", 20)
    await fragile.publish_acked(subject, last)
    await settle(fragile, stream_name)
    await expect_everywhere(fragile, stream_name, acked + last)
    for node in NODES:
        status = await fragile.client.admin.node_status(node)
        assert status["nats"]["reconnects"] >= 1
        assert status["nats"]["errors"]["disconnected"] >= 1


def flip_a_bit_of_the_first_segment(bench: Any, node: str, name: str) -> None:
    """In a sealed one: recovery trusts its index, so only a read can find it."""
    folders = list(bench.cluster.data.glob(f"**/{node}/**/streams/{name}-*/0"))
    assert len(folders) == 1, folders
    logs = sorted(folders[0].glob("*.log"))
    assert len(logs) > 2
    data = bytearray(logs[0].read_bytes())
    data[len(data) // 2] ^= 1
    logs[0].write_bytes(data)


def damaged(bench: Any, node: str, name: str) -> list[Path]:
    """What the node has set aside."""
    return list(bench.cluster.data.glob(f"**/{node}/**/streams/{name}-*/0/*.damaged-0"))


async def audited(bench: Any, name: str, patience_s: float = 30.0) -> AuditReport:
    access = Access(servers=bench.cluster.nats_url, namespace=bench.cluster.namespace)
    return await asyncio.to_thread(audit, access, Selection((name,)), patience_s=patience_s)


async def test_audit_finds_a_flipped_bit_and_a_record_changed_together_with_its_crc(fragile: Any, stream_name: str) -> None:
    await fragile.create(stream_name, config=StreamConfig(segment_bytes=4096, dedup_window_s=0))
    leader = await settle(fragile, stream_name)
    await fragile.publish_acked(f"data.{stream_name}", [f"{number} {'x' * 500}".encode() for number in range(40)])
    report = await audited(fragile, stream_name)
    assert (report.first, report.partitions[0].end_offset, len(report.partitions[0].compared)) == (None, 40, 3)

    changed, flipped = (node for node in NODES if node != leader)
    offset = change_a_record_of_the_first_segment(fragile, changed, stream_name)
    first = (await audited(fragile, stream_name)).first
    assert first is not None
    assert (first.node, first.partition, first.offset, first.kind, first.majority) == (changed, 0, offset, "differs", True)

    node = fragile.cluster.nodes[flipped]
    await asyncio.to_thread(node.kill)
    report = await audited(fragile, stream_name, patience_s=0.5)
    assert report.partitions[0].replicas[flipped].state == "away"
    assert [(f.node, f.offset, f.majority) for f in report.findings] in ([(changed, offset, False)], [(leader, offset, False)])
    flip_a_bit_of_the_first_segment(fragile, flipped, stream_name)
    await asyncio.to_thread(node.start)
    await asyncio.to_thread(node.wait_ready)
    await settle(fragile, stream_name)
    found = [f for f in (await audited(fragile, stream_name)).findings if f.node == flipped]
    if found:  # else the node has found its damage itself
        assert [(f.kind, f.offset) for f in found] == [("damaged", 3)]
        assert "it could not serve all of [3, 40): CORRUPTION: Damaged batch" in str(found[0])
    await fragile.until(lambda: asyncio.sleep(0, damaged(fragile, flipped, stream_name)), f"{flipped} has found its damage")


def change_a_record_of_the_first_segment(bench: Any, node: str, name: str) -> int:
    """Another value in the second batch, and a CRC that fits it, so that nothing but a comparison can tell; its offset."""
    (path,) = bench.cluster.data.glob(f"**/{node}/**/streams/{name}-*/0/{0:020d}.log")
    data = bytearray(path.read_bytes())
    begin = parse_header(memoryview(data)).size_bytes
    second = parse_batch(bytes(data), begin)
    end = begin + second.header.size_bytes
    data[data.index(b"x" * 100, begin)] ^= 1
    with path.open("r+b") as file:  # in place: a node that runs has it mapped
        file.seek(begin)
        file.write(struct.pack("<I", crc32c.crc32c(data[begin + 4 : end])) + data[begin + 4 : end])
    return second.base_offset
