"""Checks of compacted logs: the newest record of each key or subject exists [D5], and purged records are gone once the metadata
has dropped the purge."""

from __future__ import annotations

from bisect import bisect_right

from liftpy.config import StreamConfig
from liftpy.core.base.invariants import check
from liftpy.core.base.partition import PartitionState
from liftpy.core.log.log import Log
from liftpy.core.wire.batch import split_batches
from liftpy.errors import DamagedBatchError
from tests.simulation.replica.ghost import PartitionGhost
from tests.simulation.replica.messages import ids_in, is_delete, key_of


def held_ids(log: Log) -> dict[int, int]:
    """Return offset -> message id, of all records of a log."""
    data = b"".join(log.read(log.log_start_offset, 1 << 40, end_offset=log.log_end_offset).chunks)
    batches = [batch for batch in split_batches(data) if not batch.header.control and batch.record_count]
    return {
        offset: message_id
        for batch in batches
        for offset, message_id in zip(batch.offsets().tolist(), ids_in(batch), strict=True)
    }


def committed_ids(ghost: PartitionGhost) -> dict[int, int]:
    """Return offset -> message id, of all that is committed."""
    found: dict[int, int] = {}
    for last_offset in ghost.lasts:
        base, ids = ghost.spans[ghost.committed[last_offset]]
        found |= {base + place: message_id for place, message_id in enumerate(ids)}
    return found


def kept_the_newest(where: str, log: Log, ghost: PartitionGhost) -> None:
    """Check that the newest committed record of each key, and ``max_per_subject`` of each subject, exist unless purged."""
    committed = committed_ids(ghost)
    held = set(held_ids(log).values())
    for offset, message_id in _newest(log.config, committed, deletes=ghost.deletes):
        if ghost.deletes and is_delete(message_id):
            continue  # it goes when it is old
        kept = message_id in held or offset < log.log_start_offset or ghost.is_purged(offset, message_id)
        check(kept, "D5", where, "compaction has dropped the newest", message_id, "at", offset)


def _newest(config: StreamConfig, committed: dict[int, int], *, deletes: bool) -> list[tuple[int, int]]:
    """Return (offset, message id) of the records that must stay. With both rules: those that both keep."""
    newest = sorted(committed.items())
    if config.max_per_subject:  # an id of a delete that was published without an ack is a record of the subject, too
        newest = newest[-config.max_per_subject :]
        newest = [(offset, message_id) for offset, message_id in newest if not (deletes and is_delete(message_id))]
    if config.compaction:
        of_key = {key_of(message_id, deletes=deletes): offset for offset, message_id in sorted(committed.items())}
        newest = [pair for pair in newest if of_key[key_of(pair[1], deletes=deletes)] == pair[0]]
    return newest


def newest_of_each_key(where: str, log: Log, ghost: PartitionGhost) -> None:
    """Check the newest committed record of each key against the true log, including deletes."""
    if log.horizon.end_offset > log.high_watermark + 1:
        return
    try:
        held = {offset: message_id for offset, message_id in held_ids(log).items() if offset <= log.high_watermark}
    except DamagedBatchError:
        return  # a bit that has flipped and that nobody has read yet
    here = {key_of(message_id, deletes=True): (offset, message_id) for offset, message_id in sorted(held.items())}
    most = log.config.max_per_subject
    for key, records in ghost.records_of_keys().items():
        place = bisect_right(records, (log.high_watermark, 1 << 62)) - 1
        if place < 0 or records[place][0] < log.log_start_offset:
            continue
        newest = records[place]
        if here.get(key) == newest:
            continue
        check(key not in here, "D29", where, "of key", key, "the newest is", here.get(key), "and was to be", newest)
        may_delete = is_delete(newest[1]) or bool(most) or ghost.is_purged(*newest)
        check(may_delete, "D29", where, "of key", key, "nothing is left, and was to be", newest)


def read_all_keys(
    where: str, read: dict[int, tuple[int, int]], ghost: PartitionGhost, end_offset: int, max_per_subject: int
) -> None:
    """A reader has read from the log start to ``end_offset`` (exclusive): of each key it has the newest record below that, ``read``
    (key -> offset, message id), or none where that one may be gone [R11]. With ``max_per_subject`` also an older one: the reader met it
    before later records of the subject pushed out both."""
    for key, records in ghost.records_of_keys().items():
        place = bisect_right(records, (end_offset - 1, 1 << 62)) - 1
        if place < 0 or records[place][0] < ghost.log_start_offset or ghost.is_purged(*records[place]):
            continue
        newest, found = records[place], read.get(key)
        older = bool(max_per_subject) and found in records[:place]
        may_delete = older or (found is None and (is_delete(newest[1]) or bool(max_per_subject)))
        check(found == newest or may_delete, "R11", where, "has read", found, "of key", key, "not", newest)


def gone_for_good(where: str, log: Log, ghost: PartitionGhost, state: PartitionState) -> None:
    """Check that no record of a dropped purge remains."""
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
