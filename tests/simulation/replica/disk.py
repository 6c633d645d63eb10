"""Simulated disks: ``MemoryStorage`` with latency, errors, a capacity, and crashes.

A kill keeps everything that was written (the page cache survives); a power cut keeps what was synced and any part of what came
after it; an emptied disk keeps nothing. A flush error is once and final: what it should have made durable may be gone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from liftpy.core.log.small_files import CHECKPOINT_NAME, decode_checkpoint
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.metadata.node_identity import DirectoryIdentity
from liftpy.core.wire.batch import HEADER_SIZE_BYTES, SIGNATURE, SIGNATURE_POSITION, parse_header
from liftpy.errors import StorageError
from tests.simulation.replica.clock import MS

Keep = Callable[[str, int, int], int]
"""(file name, bytes that are synced, bytes that are written) -> bytes that a power cut leaves."""


@dataclass(frozen=True, slots=True)
class DiskCopy:
    """Earlier content of a disk, see ``Disk``."""

    folders: dict[str, MemoryStorage]
    promises: MemoryStorage
    starts: DirectoryIdentity
    incarnation: int
    clean_stop: bool
    doubtful: bool


class Disk:
    """Disk of one node: partition directories by name, and the node's own file."""

    def __init__(self, seed: str) -> None:
        self.folders: dict[str, MemoryStorage] = {}
        self.promises = MemoryStorage()
        """Folder of the journal of promises."""
        self.folder_number = 0
        """Number of the disk. An emptied disk gets another one."""
        self.starts = DirectoryIdentity("disk-0")
        """Durable: the processes that have started on it."""
        self.incarnation = 0
        """Durable: of the process that ran last on this disk, 0 for an empty one."""
        self.clean_stop = False
        self.doubtful = False
        """True if a log was found damaged and the metadata group may not know it. Durable."""
        self.flush_ns = MS
        """Latency of one flush."""
        self.fail_syncs = 0
        """Number of next syncs that fail."""
        self.capacity_bytes = 1 << 40
        self._rng = random.Random(seed)

    def folder(self, name: str) -> MemoryStorage:
        """Return the storage of one partition."""
        if name not in self.folders:
            self.folders[name] = self._attach(MemoryStorage())
        return self.folders[name]

    def flush_latency_ns(self) -> int:
        """Return the duration of the next flush."""
        return self.flush_ns // 2 + int(self._rng.random() * self.flush_ns)

    def kill(self) -> None:
        """Kill the process. Its writes stay in the page cache."""
        self._after(power=False)

    def cut_power(self, keep: Keep | None = None) -> None:
        """Cut the power. Unsynced bytes survive in part, as ``keep`` decides."""
        self._after(power=True, keep=keep)

    def empty(self) -> None:
        """Replaced by a new one."""
        self.folders.clear()
        self.promises = MemoryStorage()
        self.folder_number += 1
        self.starts = DirectoryIdentity(f"disk-{self.folder_number}")
        self.incarnation = 0
        self.clean_stop = self.doubtful = False

    def copy(self) -> DiskCopy:
        """Everything that is written on it, as of now."""
        folders = {name: storage.crash(power=False) for name, storage in self.folders.items()}
        return DiskCopy(
            folders, self.promises.crash(power=False), self.starts, self.incarnation, self.clean_stop, self.doubtful
        )

    def put_back(self, copy: DiskCopy) -> None:
        """Replace the content with an older copy, while no process runs."""
        self.folders = {name: self._attach(storage.crash(power=False)) for name, storage in copy.folders.items()}
        self.promises = copy.promises.crash(power=False)
        self.starts, self.incarnation = copy.starts, copy.incarnation
        self.clean_stop, self.doubtful = copy.clean_stop, copy.doubtful

    def flip_bit(self, name: str) -> bool:
        """Flip one bit of a partition's log at rest. Return False if there is none to flip.

        The last complete batch is never changed here (``flip_newest``): if its size changes, it looks like a torn write.
        """
        storage = self.folders.get(name)
        logs = [n for n in storage.names() if n.endswith(".log") and storage.files[n].data] if storage else []
        if storage is None or not logs:
            return False
        chosen = self._rng.choice(logs)
        data = storage.files[chosen].data
        torn_or_last = max(data.rfind(SIGNATURE), 0)
        end = len(data) if chosen != logs[-1] else max(data.rfind(SIGNATURE, 0, torn_or_last) - SIGNATURE_POSITION, 0)
        if end == 0:
            return False
        data[self._rng.randrange(end)] ^= 1 << self._rng.randrange(8)
        return True

    def flip_newest(self, name: str) -> bool:
        """Flip one bit of the last batch behind its signature, if the stored HW proves that it was complete."""
        storage = self.folders.get(name)
        logs = [n for n in storage.names() if n.endswith(".log") and storage.files[n].data] if storage else []
        checkpoint = decode_checkpoint(storage.load(CHECKPOINT_NAME)) if storage else None
        if storage is None or not logs or checkpoint is None:
            return False
        data = storage.files[logs[-1]].data
        position = data.rfind(SIGNATURE) - SIGNATURE_POSITION
        if position < 0 or len(data) - position < HEADER_SIZE_BYTES:
            return False
        header = parse_header(memoryview(bytes(data)), position)
        if position + header.size_bytes > len(data) or header.last_offset > checkpoint.high_watermark:
            return False
        data[position + self._rng.randrange(SIGNATURE_POSITION + len(SIGNATURE), header.size_bytes)] ^= (
            1 << self._rng.randrange(8)
        )
        return True

    def set_capacity(self, free_bytes: int | None) -> None:
        """Limit the free space of each directory to ``free_bytes``, None: no limit."""
        for storage in self.folders.values():
            storage.capacity_bytes = 1 << 40 if free_bytes is None else storage.used_bytes() + free_bytes

    def _after(self, power: bool, keep: Keep | None = None) -> None:
        def some(name: str, synced: int, written: int) -> int:
            return synced + self._rng.randrange(written - synced + 1) if written > synced else synced

        kept = keep or some
        self.folders = {name: self._attach(storage.crash(power=power, keep=kept)) for name, storage in self.folders.items()}
        self.promises = self.promises.crash(power=power, keep=kept)
        self.fail_syncs = 0

    def _attach(self, storage: MemoryStorage) -> MemoryStorage:
        def fault(what: str) -> None:
            if what == "sync" and self.fail_syncs > 0:
                self.fail_syncs -= 1
                raise StorageError("simulated flush error")

        storage.fault = fault
        return storage
