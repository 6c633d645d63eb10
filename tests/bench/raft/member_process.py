"""One member of a benchmarked group, as a process: ``python -m tests.bench.raft.member_process KIND ID MEMBERS FOLDER NATS``.

KIND ``ours``: RaftMember's driver over NATS, flushed. ``library``: PySyncObj as shipped over its own TCP transport (in memory,
without any flush: its best case). Reads JSON lines ``{"window": W, "operations": N}`` and answers with figures.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import sys
import threading
import time
from pathlib import Path
from typing import Any

SIZE_BYTES = 100


def percentiles(latencies: list[float]) -> dict[str, float]:
    """p50 and p99 in ms."""
    ordered = sorted(latencies)
    return {f"p{p}_ms": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] * 1000 for p in (50, 99)}


class Counting:
    """A state machine that does nothing: only the group is measured."""

    def apply(self, entry: bytes, index: int) -> bytes:
        """Answer with the index."""
        return b"%d" % index

    def precompute(self, entry: bytes, index: int) -> bool:
        """There is none."""
        return True


def say(**fields: Any) -> None:
    """One line of JSON to the parent."""
    print(json.dumps(fields), flush=True)


async def ours(node_id: str, members: tuple[str, ...], folder: Path, url: str) -> None:
    """A member with our driver; submits when told to."""
    from liftpy.core.wire.subjects import Subjects
    from sidecar.quorum.driver import GroupDriver
    from sidecar.quorum.journal import GroupJournal
    from sidecar.quorum.library import RaftCore, check_library, settings
    from sidecar.quorum.transport import SessionTransport
    from sidecar.transport.connection import BusConnection, PublishQueue

    check_library()
    subjects = Subjects("bench")
    connection = BusConnection("raft")
    await connection.connect(url)
    journal = GroupJournal(folder / "journal")
    transport = SessionTransport(node_id, members)
    conf = settings(journal, str(folder / "snapshot"), lambda *_: None, lambda *_: None, lambda *_: None, 10_000_000)
    core = RaftCore(node_id, members, conf, transport, Counting())
    transport.attach(core)
    outgoing = PublishQueue(connection)

    def send(receiver: str, frame: bytes) -> None:
        outgoing.put(subjects.raft(receiver, node_id), frame)

    driver = GroupDriver(core, transport, journal, send, lambda: None, lambda e: sys.exit(str(e)))

    async def received(message: Any) -> None:
        driver.frame_received(message.subject.rsplit(".", 1)[1], message.data)

    await connection.subscribe(subjects.raft_inbox(node_id), cb=received)
    transport.sessions.set_online(True)
    driver.start()
    while not (core.leader_id and core.isReady()):
        await asyncio.sleep(0.01)
    say(ready=node_id, leader=core.leads)

    async def submit(operations: int, latencies: list[float]) -> None:
        for _ in range(operations):
            began = time.perf_counter()
            _, reason = await driver.propose(secrets.token_bytes(SIZE_BYTES))
            if reason == 0:
                latencies.append(time.perf_counter() - began)

    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        wanted = json.loads(line)
        window, latencies = wanted["window"], []
        began = time.perf_counter()
        await asyncio.gather(*(submit(max(wanted["operations"] // window, 1), latencies) for _ in range(window)))
        took = time.perf_counter() - began
        say(operations_per_s=len(latencies) / took, **percentiles(latencies))
    await connection.close()


def library(node_id: str, members: tuple[str, ...]) -> None:
    """PySyncObj as shipped; ``members`` are host:port."""
    from pysyncobj import SyncObj, SyncObjConf

    class Node(SyncObj):
        def _SyncObj__doApplyCommand(self, command: bytes) -> bytes | None:
            return command[1:2] if command[:1] == b"\0" else None

    conf = SyncObjConf(bindAddress=node_id, appendEntriesUseBatch=False, connectionRetryTime=0.3, commandsQueueSize=0)
    node = Node(node_id, [m for m in members if m != node_id], conf)
    while not node.isReady():
        time.sleep(0.01)
    say(ready=node_id, leader=node._isLeader())
    for line in sys.stdin:
        wanted = json.loads(line)
        gate, done, latencies = threading.Semaphore(wanted["window"]), threading.Event(), []
        left = [wanted["operations"]]
        began = time.perf_counter()

        def finished(
            _: Any, reason: int, at: float, gate: Any = gate, lat: Any = latencies, left: Any = left, end: Any = done
        ) -> None:
            if reason == 0:
                lat.append(time.perf_counter() - at)
            left[0] -= 1
            gate.release()
            if not left[0]:
                end.set()

        for _ in range(wanted["operations"]):
            gate.acquire()
            at = time.perf_counter()
            node._applyCommand(secrets.token_bytes(SIZE_BYTES), lambda r, e, at=at: finished(r, e, at), 0)
        done.wait(60)
        took = time.perf_counter() - began
        say(operations_per_s=len(latencies) / took, **percentiles(latencies))


def main() -> None:
    """Run one member until the standard input ends."""
    kind, node_id, members, folder, url = sys.argv[1:6]
    ids = tuple(members.split(","))
    logging.basicConfig(format=f"{kind} {node_id}: %(message)s", level=logging.CRITICAL)
    if kind == "ours":
        Path(folder).mkdir(parents=True, exist_ok=True)
        asyncio.run(ours(node_id, ids, Path(folder), url))
    else:
        library(node_id, ids)


if __name__ == "__main__":
    main()
