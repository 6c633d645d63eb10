"""What a mutant is, which packages there are, and which tests each of them has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SIMULATION = "simulation"
"""As one of a mutant's ``tests``: some seeds of the simulator instead."""

PACKAGES: dict[str, tuple[str, ...]] = {
    "wire": ("tests/unit/wire", "tests/unit/core"),
    "log": ("tests/unit/log", "tests/conformance/test_storage.py"),
    "replica": ("tests/unit/replica", "tests/scripts", "tests/conformance"),
    "cluster": ("tests/unit/cluster",),
    "ingest": ("tests/unit/ingest", "tests/unit/bus", "tests/unit/partition"),
    "client": ("tests/unit/client",),
    "spark": ("tests/unit/spark",),
    "service": ("tests/unit/service",),
    "group": ("tests/unit/group",),
    "testing": ("tests/conformance/test_memory_bus.py", "tests/conformance/test_memory_client.py"),
    "bus": ("tests/unit/bus",),
    "cli": ("tests/unit/cli",),
    "dev": ("tests/unit/cli", "tests/unit/node"),
    "disk": ("tests/unit/disk", "tests/conformance/test_storage.py"),
    "partition": ("tests/unit/partition", "tests/unit/service", "tests/conformance"),
    "metadata": ("tests/unit/metadata", "tests/unit/raft"),
    "raft": ("tests/unit/raft",),
    "status": ("tests/unit/node",),
    "node": ("tests/unit/node",),
    "workers": ("tests/unit/node",),
    "trace": ("tests/unit/trace",),
    "tracing": ("tests/unit/node/test_tracing.py", "tests/unit/partition/test_worker_wired.py"),
    "backup": ("tests/unit/backup",),
}
"""Tests of each package that start no processes: what is tried after a mutant's own tests."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug: in ``file``, ``old`` (which is there exactly once) becomes ``new``. ``why``: what users meet. ``tests``: paths or node ids
    that are tried first, or ``SIMULATION``. ``fresh``: written after the tests that should notice it, so its first run is a measure."""

    name: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...] = ()
    fresh: bool = False

    @property
    def package(self) -> str:
        """The folder that it is in; ``wire`` and ``node`` also for what is beside the folders."""
        above, _, folder = self.file.rpartition("/")[0].partition("/")
        return folder.partition("/")[0] or {"liftpy": "wire", "sidecar": "node"}[above]

    @property
    def id(self) -> str:
        """Its name among all."""
        return f"{self.package}: {self.name}"

    def changed(self, text: str) -> str:
        """The file's ``text`` with the bug in it. Raises ValueError where it does not apply exactly once."""
        if self.old == self.new:
            raise ValueError(f"{self.id}: changes nothing")
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.id}: {self.old!r} is {found} times in {self.file}")
        return text.replace(self.old, self.new)


def rows(file: str, *bugs: tuple[str, str, str, str], tests: tuple[str, ...] = (), fresh: bool = False) -> list[Mutant]:
    """Mutants of one file: (name, old text, new text, why)."""
    return [Mutant(name, file, old, new, why, tests, fresh) for name, old, new, why in bugs]
