"""Checkpoints: what a log stores about itself beside its segments (HW and log start, epochs), written only where it has changed."""

from __future__ import annotations

from liftpy.log.epochs import NO_EPOCH, EpochCache
from liftpy.log.small_files import (
    CHECKPOINT_NAME,
    EPOCHS_NAME,
    Checkpoint,
    decode_epochs,
    encode_checkpoint,
    encode_epochs,
)
from liftpy.log.storage import Storage


class Checkpoints:
    """The two files of one log. ``checkpoint`` and ``epochs`` (the file's bytes, or None) are what an opening has found."""

    def __init__(self, storage: Storage, checkpoint: Checkpoint, epochs: bytes | None) -> None:
        self._storage = storage
        self._checkpoint = checkpoint
        self._epochs = decode_epochs(epochs) or ()

    def store(self, checkpoint: Checkpoint) -> None:
        """Durable when it returns. A promised LeaderEpoch alone is no reason to write: the journal of promises has it."""
        said = self._checkpoint
        if (checkpoint.high_watermark, checkpoint.log_start_offset) != (said.high_watermark, said.log_start_offset):
            self._storage.replace(CHECKPOINT_NAME, encode_checkpoint(checkpoint))
            self._checkpoint = checkpoint

    def store_epochs(self, epochs: EpochCache, log_start_offset: int) -> None:
        """(epoch, first offset), for tools: an opening scans the log. But a log without a record has nothing to scan: of that the
        epoch of the record before its start is stored."""
        entries = epochs.entries
        if not entries and epochs.before_start:
            entries = ((epochs.before_start, log_start_offset - 1),)
        if entries != self._epochs:
            self._storage.replace(EPOCHS_NAME, encode_epochs(entries))
            self._epochs = entries

    def epoch_below(self, log_start_offset: int) -> int:
        """The epoch of the newest record below it, by what was found; 0: not known."""
        return next((epoch for epoch, start in reversed(self._epochs) if start < log_start_offset), NO_EPOCH)
