"""What must hold of logs that are cleaned: the newest of each key or subject are there [D5], and what a purge gave up is nowhere once
the metadata has forgotten the purge."""

from __future__ import annotations

from liftpy.config import StreamConfig
from liftpy.errors import DamagedBatchError
from liftpy.invariants import check
from liftpy.log.log import Log
from liftpy.partition import PartitionState
from liftpy.testing.ghost import PartitionGhost
from liftpy.testing.messages import KEYS
from liftpy.wire.batch import split_batches


def held_ids(log: Log) -> dict[int, int]:
    """Offset -> message id, of all records of a log."""
    data = b"".join(log.read(log.log_start_offset, 1 << 40, end_offset=log.log_end_offset).chunks)
    batches = [batch for batch in split_batches(data) if not batch.header.control and batch.record_count]
    return {
        offset: int(value or b"")
        for batch in batches
        for offset, value in zip(batch.offsets().tolist(), batch.values(), strict=True)
    }


def committed_ids(ghost: PartitionGhost) -> dict[int, int]:
    """Offset -> message id, of all that is committed."""
    found: dict[int, int] = {}
    for last_offset in ghost.lasts:
        base, ids = ghost.spans[ghost.committed[last_offset]]
        found |= {base + place: message_id for place, message_id in enumerate(ids)}
    return found


def kept_the_newest(where: str, log: Log, ghost: PartitionGhost) -> None:
    """Of every key the newest committed record is there, and of the subject the newest ``max_per_subject``; but what is purged."""
    committed = committed_ids(ghost)
    held = set(held_ids(log).values())
    for offset, message_id in _newest(log.config, committed):
        kept = message_id in held or offset < log.log_start_offset or ghost.is_purged(offset, message_id)
        check(kept, "D5", where, "compaction has dropped the newest", message_id, "at", offset)


def _newest(config: StreamConfig, committed: dict[int, int]) -> list[tuple[int, int]]:
    """(offset, message id) of those that have to stay: with both rules, those that both leave."""
    newest = sorted(committed.items())
    if config.max_per_subject:
        newest = newest[-config.max_per_subject :]
    if config.compaction:
        of_key = {message_id % KEYS: offset for offset, message_id in sorted(committed.items())}
        newest = [(offset, message_id) for offset, message_id in newest if of_key[message_id % KEYS] == offset]
    return newest


def gone_for_good(where: str, log: Log, ghost: PartitionGhost, state: PartitionState) -> None:
    """Of purges that the metadata has forgotten nothing is held."""
    forgotten = [purge for purge in ghost.purges if purge.number not in {p.number for p in state.purges}]
    if not forgotten:
        return
    try:
        held = held_ids(log)
    except DamagedBatchError:
        return  # a bit that has flipped and that nobody has read yet
    for offset, message_id in held.items():
        for purge in forgotten:
            check(not purge.gives_up(offset, message_id), "D5", where, "purge", purge, "left", message_id, "at", offset)
