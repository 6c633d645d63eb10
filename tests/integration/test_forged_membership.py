"""What whoever can publish may try on the membership of a cluster without authorization: real nodes, frames as nodes send them."""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from sidecar.quorum.codec import seal
from sidecar.quorum.peer_sessions import _FRAME, _HELLO
from tests.integration.conftest import close_bench, open_bench

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@pytest.fixture
async def bench(fragile_cluster: Any) -> AsyncIterator[Any]:
    opened = await open_bench(fragile_cluster)
    yield opened
    await close_bench(opened)


async def ended_sessions(bench: Any) -> int:
    """Of all controllers together."""
    reports = [await bench.client.admin.node_status(node) for node in ("n1", "n2", "n3")]
    return sum(n for report in reports for kind, n in report["counters"].items() if "sessions ended" in kind)


async def test_forged_hello_messages_between_controllers_end_no_session(bench: Any, stream_name: str) -> None:
    await bench.create(stream_name)
    before = await bench.client.admin.describe_cluster()
    ended = await ended_sessions(bench)
    draw = random.Random(1)
    acked = []
    for turn in range(20):
        for to in ("n1", "n2", "n3"):
            for sender in {"n1", "n2", "n3"} - {to}:
                for _ in range(20):
                    frame = _FRAME.pack(_HELLO, draw.choice((0, 4)), draw.getrandbits(63) | 1, draw.choice((0, 7)), 0, 1)
                    await bench.nc.publish(f"liftpy.raft.{to}.{sender}", seal(to, sender, frame))
        acked += await bench.publish_acked(f"data.{stream_name}", [b"%d" % turn])
    await bench.nc.flush()
    assert acked == list(range(1, 21))

    async def heard() -> bool:
        reports = [await bench.client.admin.node_status(node) for node in ("n1", "n2", "n3")]
        return all(r["counters"].get("metadata: refused: hellos that answer nobody", 0) >= 800 for r in reports)

    await bench.until(heard, "all of them have come")
    assert await ended_sessions(bench) == ended
    after = await bench.client.admin.describe_cluster()
    assert (after.metadata_leader, [c.term for c in after.controllers]) == (
        before.metadata_leader,
        [c.term for c in before.controllers],
    )


async def test_impossible_control_requests_add_no_journal_entry(bench: Any, stream_name: str) -> None:
    stream = await bench.create(stream_name)
    journals = [bench.cluster.data / node / "raft" / "journal" for node in bench.cluster.nodes]

    async def answered() -> int:
        reports = [await bench.client.admin.node_status(node) for node in bench.cluster.nodes]
        return sum(report["counters"].get("metadata: control requests that change nothing", 0) for report in reports)

    wrong: list[tuple[str, dict[str, Any], int]] = [
        ("control.admin", {"createStream": pb.CreateStream(name="x" * 900, subject="shop.x")}, pb.ControlResponse.INVALID),
        ("control.admin", {"createStream": pb.CreateStream(name=stream_name, subject="shop.x")}, pb.ControlResponse.EXISTS),
        ("control.admin", {"deleteStream": pb.DeleteStream(name="nobody")}, pb.ControlResponse.NOT_FOUND),
        ("control.admin", {"removeNode": pb.RemoveNode(nodeId="n1")}, pb.ControlResponse.INVALID),
        ("control.node.n1", {"fenceNode": pb.FenceNode(nodeId="n1", incarnation=9999)}, pb.ControlResponse.FENCED),
        (
            "control.node.n1",
            {"changeIsr": pb.ChangeIsr(stream=stream_name, uid=stream.uid, leader="n1", leaderEpoch=9999, isr=["n1"])},
            pb.ControlResponse.STALE,
        ),
    ]
    inboxes = {"control.admin": "_INBOX.stranger", "control.node.n1": "liftpy.inbox.n1.stranger"}
    times = 20  # of those without a name of their own the cluster takes 50 a second, and 250 at once

    def logged(operations: list[bytes]) -> list[bytes]:
        journal = b"".join(path.read_bytes() for path in journals)
        return [operation for operation in operations if operation in journal]

    async def none_is_logged() -> bool:
        """Not so where a controller stood still meanwhile: its leader could not be sure that it leads, and asked the log."""
        before = await answered()
        answers = {door: await bench.nc.subscribe(inbox) for door, inbox in inboxes.items()}
        operations: list[bytes] = []
        for door, request, error in wrong:
            for _ in range(times):
                operations.append(secrets.token_bytes(16))
                asked = pb.ControlRequest(operationId=operations[-1], **request)
                await bench.nc.publish(f"liftpy.{door}", frames.seal(asked), reply=inboxes[door])
            for _ in range(times):
                answer = frames.decode((await answers[door].next_msg(5)).data, pb.ControlResponse)
                assert answer.error == error, answer
        return await answered() == before + len(wrong) * times and not logged(operations)

    await bench.until(none_is_logged, "requests cost nothing")
    assert await bench.publish_acked(f"data.{stream_name}", [b"x"]) == [1]
