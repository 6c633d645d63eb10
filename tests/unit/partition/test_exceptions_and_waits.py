"""Test what a bug in a part of the shell stops, and what waits for a thread."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import FlushPolicy, StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.services.snapshot import DIGEST_SIZE_BYTES, StateComparison
from sidecar.partition import flushing
from sidecar.partition.flushing import Flusher
from sidecar.partition.services import PartitionServices
from tests.unit.log.small_logs import add
from tests.unit.partition.shell_parts import KEY, Clocked, until
from tests.unit.partition.test_close_and_failures import Journal, Pool, a_promises
from tests.unit.partition.test_replica_manager import partitions


async def test_log_flusher_truncation_waits_for_the_flush_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    monkeypatch.setattr(flushing.concurrent.futures, "wait", lambda futures: waited.extend(futures))
    pool: Any = Pool()
    log, _ = Log.open(MemoryStorage(), StreamConfig())
    flusher = Flusher(log, FlushPolicy.parse("always"), pool, Clocked(), lambda _: None, lambda _: None)
    add(log, 3)
    flusher.appended()
    ((future, _),) = pool.work
    log.truncate_to(0)
    assert waited == [future]


async def test_leader_epoch_store_close_drops_a_store_requested_in_the_same_turn() -> None:
    journal, pool = Journal(), Pool()
    promises, _ = a_promises(journal, pool)
    promises.store("a/0", 3, lambda _: None)
    await promises.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (pool.work, journal.calls) == ([], ["closed"])


@pytest.mark.parametrize("ends", ["well", "cancelled", "with a bug"])
async def test_replica_manager_exception_while_it_opens_a_partition_stops_the_node(ends: str) -> None:
    node = partitions()
    fatal: list[BaseException] = []
    node._node.fatal = fatal.append

    async def opens() -> None:
        if ends == "cancelled":
            await asyncio.sleep(60)
        elif ends == "with a bug":
            raise ZeroDivisionError

    task = asyncio.ensure_future(opens())
    node._busy[KEY] = task
    task.add_done_callback(lambda done: node._opening_ended(KEY, done))
    await asyncio.sleep(0)
    if ends == "cancelled":
        task.cancel()
    await until(lambda: not node._busy)
    assert [type(error) for error in fatal] == ([ZeroDivisionError] if ends == "with a bug" else [])


RIGHT, WRONG = (letter * DIGEST_SIZE_BYTES for letter in (b"r", b"w"))


# ---- services whose states differ ----------------------------------------------------------------------------------------------
def services() -> tuple[Any, list[Any]]:
    """What ``_compare`` needs, and what the sessions are told."""
    told: list[Any] = []
    sessions = SimpleNamespace(differs=lambda name, difference: told.append((name, difference)) or [])
    return (
        SimpleNamespace(
            key=KEY, _node_id="n1", _agreements={}, _differences={}, _sessions=sessions, _carry_out=lambda effects: None
        ),
        told,
    )


def test_service_divergence_is_logged_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    made, told = services()
    others = made._agreements["counts"] = StateComparison()
    for node in ("n2", "n3"):
        others.set_digests(node, 1, {10: RIGHT, 20: RIGHT})
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            PartitionServices._compare(made, {"counts": (1, {10: WRONG})})
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("service problem partition=orders/3 service=counts ")
    assert [name for name, _ in told] == ["counts"] * 3
    assert len({difference for _, difference in told}) == 1
    assert told[0][1] is not None
    with caplog.at_level(logging.ERROR):
        PartitionServices._compare(made, {"counts": (2, {})})
        assert made._differences == {"counts": None}, "another life of it"
        PartitionServices._compare(made, {"counts": (2, {20: WRONG})})
    assert len(caplog.messages) == 2
    PartitionServices._compare(made, {"other": (1, {})})
    assert set(made._agreements) == {"other"}, "what is not here any more is compared with nothing"
