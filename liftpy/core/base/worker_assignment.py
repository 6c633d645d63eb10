"""Decides which worker process of a node hosts a partition. Pure.

Goal: the partitions of one stream are spread over all processes, and so are small streams. Constraint: every process
computes the result alone, also after a start with another number of processes.

Algorithm: the share of a partition is a function of its name: a checksum of the stream's name plus the partition's number,
modulo the number of processes. Nothing is stored.

Worked example: stream ``orders`` has checksum 7 and 4 partitions, and there are 2 processes. Process 1 hosts 0 and 2,
process 0 hosts 1 and 3.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from liftpy.core.base.ids import split_folder

MOST_WORKERS = 64


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """The partitions of one worker process: process ``number`` (from 0) of ``process_count`` processes. 0 of 1 hosts all partitions."""

    number: int = 0
    process_count: int = 1

    def __post_init__(self) -> None:
        if not (1 <= self.process_count <= MOST_WORKERS and 0 <= self.number < self.process_count):
            raise ValueError(f"invalid share {self.number} of {self.process_count} processes")

    def holds(self, stream: str, partition: int) -> bool:
        return self.process_count == 1 or share_of(stream, partition, self.process_count) == self.number

    def holds_folder(self, name: str) -> bool:
        """Return whether the log directory ``<stream>-<uid>/<partition>`` belongs to this process.

        Directories with other names belong to process 0.
        """
        if self.process_count == 1:
            return True
        folder, _, number = name.rpartition("/")
        split = split_folder(folder)
        if split is None or not (number.isascii() and number.isdigit()):
            return self.number == 0
        return self.holds(split[0], int(number))


WHOLE = WorkerShare()


def share_of(stream: str, partition: int, workers: int) -> int:
    """Return the number of the worker process that hosts the partition, 0 to ``workers`` - 1."""
    return (zlib.crc32(stream.encode()) + partition) % workers
