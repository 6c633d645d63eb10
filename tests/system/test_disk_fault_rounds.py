"""One round of faults that reach the disks of a real cluster under acknowledged publishes: the power cut of what was not flushed,
flushes and writes that fail or are slow. Nothing lost, nothing changed, all replicas equal.

The long form, with figures, and the faults and variants that are not here: ``python -m tests.system.faults``. Folders that went back in
time are in ``tests/integration/test_copied_folders.py``, and a cut data path is in ``tests/scripts/test_isr_of_two.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.system.faults.catalogue import FAULTS
from tests.system.faults.ground import Ground
from tests.system.faults.load import Load
from tests.system.faults.rounds import Plan, one_round, open_load, verdict_of
from tests.system.powercut.cut import NoShimError, build
from tests.system.test_fault_rounds import PAUSE_S, QUICK

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150), pytest.mark.asyncio(loop_scope="module")]

SEGMENT_BYTES = 16 * 1024
"""Small, so that segments are sealed all the time."""

QUICKLY_SLOW = {
    "LIFTPY_REPLICATION_SLOW_FLUSH_TIME_S": "1",
    "LIFTPY_REPLICATION_SLOW_FLUSH_ISR_BACKOFF_S": "1",
    "LIFTPY_REPLICATION_MIN_LEADERSHIP_S": "0.1",
}

Field = tuple[Ground, Load]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def field() -> AsyncIterator[Field]:
    """One cluster with the shim below its nodes, and one load for all rounds."""
    try:
        build()
    except NoShimError as error:
        pytest.skip(str(error))
    ground = Ground(
        relayed=True,
        powered=True,
        supervised=True,
        segment_bytes=SEGMENT_BYTES,
        settings=QUICK | QUICKLY_SLOW,
        on_line=lambda node, line: print(f"{node} | {line}"),
    )
    try:
        await ground.open()
        load = open_load(ground, Plan("all of them"))
        await load.start()
        yield ground, load
        await load.close()
    finally:
        await ground.close()


@pytest.mark.parametrize(
    ("name", "number"),  # the number chooses between variants, see the catalogue
    [
        pytest.param("kill-then-power-cut", 0, marks=pytest.mark.long),
        pytest.param("flush-fails-all", 1, marks=pytest.mark.long),
        pytest.param("journal-short-write", 1, marks=pytest.mark.long),
        pytest.param("flush-fails-leader", 0, marks=pytest.mark.long),
    ],
)
async def test_disk_fault_loses_and_changes_no_acknowledged_record(field: Field, name: str, number: int) -> None:
    ground, load = field
    await ground.restore()
    figures = await one_round(ground, load, FAULTS[name], number, PAUSE_S)
    verdict = await verdict_of(ground, load)
    load.resume()
    assert verdict.right, verdict
    assert verdict.acknowledged == len(load.acked) >= figures.acked > 0
    assert verdict.log_end_offset >= verdict.acknowledged
    assert verdict.replicas == 3
