"""One round of each cheap fault on a real cluster under acknowledged publishes: nothing lost, nothing changed, all replicas equal.

The long form, with figures: ``python -m tests.system.faults``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.system.faults.catalogue import FAULTS
from tests.system.faults.ground import Ground
from tests.system.faults.load import Load
from tests.system.faults.rounds import Plan, one_round, open_load, verdict_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150), pytest.mark.asyncio(loop_scope="module")]

QUICK = {
    "LIFTPY_REPLICATION_SESSION_S": "1.2",
    "LIFTPY_REPLICATION_LEASE_S": "0.9",
    "LIFTPY_REPLICATION_MAX_LEADER_TIMEOUT_S": "1.5",
}
PAUSE_S = 4.0
"""Longer than a session: whoever stands still has been replaced when it goes on."""

Field = tuple[Ground, Load]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def field() -> AsyncIterator[Field]:
    """One cluster and one load for all rounds."""
    ground = Ground(relayed=True, settings=QUICK, on_line=lambda node, line: print(f"{node} | {line}"))
    try:
        await ground.open()
        load = open_load(ground, Plan("all of them", workers=16, pace_s=0.03))
        await load.start()
        yield ground, load
        await load.close()
    finally:
        await ground.close()


@pytest.mark.parametrize(
    ("name", "number"),  # the parity of the number chooses between variants, see the catalogue
    [
        pytest.param("follower-kill", 0, marks=pytest.mark.long),
        pytest.param("follower-emptied", 0, marks=pytest.mark.long),
        ("follower-bitflip", 0),
        ("leader-kill", 0),
        pytest.param("leader-pause", 0, marks=pytest.mark.long),
        ("leader-cut", 0),
        ("all-killed", 0),
        ("planned-transfer", 1),
        pytest.param("commanded-transfer", 0, marks=pytest.mark.long),
    ],
)
async def test_process_or_network_fault_loses_and_changes_no_acknowledged_record(field: Field, name: str, number: int) -> None:
    ground, load = field
    await ground.restore()
    figures = await one_round(ground, load, FAULTS[name], number, PAUSE_S)
    unanswered = load.never_answered
    verdict = await verdict_of(ground, load)
    if name == "commanded-transfer":
        assert load.never_answered <= unanswered, "the old leader answers everybody before it goes"
    load.resume()
    assert verdict.right, verdict
    assert verdict.acknowledged == len(load.acked) >= figures.acked > 0
    assert verdict.log_end_offset >= verdict.acknowledged
    assert verdict.replicas == 3
