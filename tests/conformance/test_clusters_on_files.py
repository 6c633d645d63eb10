"""Test that a simulated history on files gives the same events as in memory.

The replicas, the log and the checkers can't tell the two storages apart: so what the seeds in memory prove holds for files.
Faults are those that files can have here: a process dies, pauses, is cut off; nobody can cut the power of a real disk in a test.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from liftpy.core.log.storage import Storage
from sidecar.disk.files import DirectoryStorage
from tests.simulation.replica.disk import Disk
from tests.simulation.replica.plan import Plan, draw_plan
from tests.simulation.replica.run import run_plan

FAULTS = {
    "kill", "pause", "cut", "cut-link", "cut-metadata", "metadata-down", "transfer", "hang-promotion", "retention",
    "reconnect", "slow-consumer", "wall-clock", "slow-disk",
}  # fmt: skip


class FileDisk(Disk):
    """A disk whose partition folders are real."""

    def __init__(self, seed: str, root: Path) -> None:
        super().__init__(seed)
        self.root = root / seed.replace("/", "-")
        self.storages: dict[str, Storage] = {}

    def folder(self, name: str) -> Storage:  # type: ignore[override]
        """Opened anew by every process."""
        self.folders.setdefault(name, None)  # type: ignore[arg-type]
        return DirectoryStorage(self.root / name)

    def kill(self) -> None:
        """The files stay as they are."""

    def set_capacity(self, free_bytes: int | None) -> None:
        """Not here."""


def plan_of(seed: int) -> Plan:
    drawn = draw_plan(seed)
    return replace(drawn, faults=tuple(fault for fault in drawn.faults if fault.kind in FAULTS))


@pytest.mark.parametrize("seed", [1, 2])
def test_simulated_history_on_files_gives_the_same_trace_as_in_memory(seed: int, tmp_path: Path) -> None:
    plan = plan_of(seed)
    memory = run_plan(plan, 3000, trace=True)
    files = run_plan(plan, 3000, trace=True, make_disk=lambda name: FileDisk(name, tmp_path))
    assert memory.violation is None, memory.report()
    assert files.violation is None, files.report()
    assert memory.trace is not None
    assert files.trace is not None
    assert list((tmp_path).rglob("*.log"))
    assert files.trace.lines == memory.trace.lines
