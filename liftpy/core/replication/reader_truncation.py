"""Checks whether the last record that a reader has read was truncated, or is still on this log [R6] (Kafka's KIP-320).

Only an unclean election, which an operator must command, loses committed records. A reader sends (offset, LeaderEpoch)
of its last record. If this pair is on the log, everything before it is too [D5]. If it is not, only a leader with a
lease whose high watermark has reached the start of its epoch may answer "truncated". Other replicas cannot know: a
later leader may have committed the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from liftpy.core.replication.log_offsets import LogOffsets


class Lineage(Enum):
    """Result of the check of a reader's last record."""

    SAME = "same"
    """It lies on this log, or retention has removed the record that could tell."""
    BEHIND = "behind"
    """This replica can't know yet: ask another one, or later."""
    CUT = "cut"
    """It does not lie on this log: records that were read are gone."""


@dataclass(frozen=True, slots=True)
class EpochVerdict:
    """Verdict about a reader's last record. ``end_offset``: with CUT, the offset (exclusive) up to which both logs may
    agree. Otherwise 0.
    """

    lineage: Lineage
    end_offset: int = 0


def judge(log: LogOffsets, *, last_offset: int, last_epoch: int, is_latest: bool) -> EpochVerdict:
    """Judge a reader whose last record has ``last_offset`` (inclusive) and ``last_epoch``.

    ``is_latest``: this replica leads, with a lease, and HW has reached its epoch's start.
    """
    within = last_offset < log.log_end_offset
    if last_offset < log.log_start_offset or (within and log.epochs.epoch_at(last_offset) == last_epoch):
        return EpochVerdict(Lineage.SAME)
    if not is_latest:
        return EpochVerdict(Lineage.BEHIND)
    _, end_offset = log.epochs.end_offset_for(last_epoch, log.log_end_offset)
    return EpochVerdict(Lineage.CUT, min(end_offset, last_offset))
