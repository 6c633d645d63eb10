"""``StateCheckpoints``: writes the derived state of one partition to disk in the background, after a checkpoint of its
high watermark.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from typing import NamedTuple

from liftpy.config import ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.log import Log
from liftpy.core.publish.log_state import LogState, derived_state
from liftpy.core.publish.state_file import State, Unwritten, load_state, state_owner
from liftpy.core.publish.state_transfer import StateGiver, StateTaker
from liftpy.core.publish.state_writer import StateWriter, pace_of
from sidecar.partition.flushing import Flusher
from sidecar.runtime import clock

logger = logging.getLogger("liftpy.partition")


class StateCheckpoints:
    """Checkpoints of the derived state of one replica."""

    def __init__(
        self, derived: LogState, log: Log, key: PartitionKey, config: ReplicationConfig, flusher: Flusher, pool: Pool
    ) -> None:
        self._log = log
        self._key = key
        self._flusher = flusher
        self._pool = pool
        self.giver = StateGiver(derived, state_owner(key), clock.now_ns, self._encode)
        self.taker = StateTaker(derived, log, state_owner(key))
        self.writer = StateWriter(derived, log, state_owner(key), pace_of(config), clock.now_ns)
        self._unwritten: Unwritten | None = None
        """States to be written when HW is stored."""
        self._waited = False
        """Records wait for what is being written."""
        self._writing: asyncio.Future[None] | None = None
        self.touched: Callable[[], None] = lambda: None
        """Called when one more was written, or could not be."""
        self.written: Callable[[], None] = lambda: None
        """Called when records waited for what was written."""

    def _encode(self, work: Callable[[], bytes], then: Callable[[bytes], None]) -> None:
        encoding = asyncio.get_running_loop().run_in_executor(self._pool, work)
        encoding.add_done_callback(lambda done: then(b"" if done.cancelled() or done.exception() else done.result()))

    def may_drop(self, log_start_offset: int) -> bool:
        """Return whether the log may start there. If not, the needed state is being written and ``written`` is called."""
        before = self.writer.uncovered
        if self.writer.may_drop(log_start_offset):
            if self.writer.uncovered > before:
                text = "records dropped without a stored state partition=%s below=%d: a restart forgets their producers and ids"
                logger.warning(text, self._key, log_start_offset)
            return True
        asyncio.get_running_loop().call_soon(self.checkpoint)  # not while retention has the files for itself
        return False

    def checkpoint(self) -> None:
        """Store the HW and, from time to time, the derived state."""
        self.giver.forget_unused()
        if self._flusher.checkpoint(self._write) and self._unwritten is None and self._writing is None:
            self._unwritten = self.writer.begin()

    def _write(self) -> None:
        unwritten, self._unwritten = self._unwritten, None
        self._waited = self.writer.is_wanted
        if unwritten is not None and not self._log.closed:
            self._writing = asyncio.get_running_loop().run_in_executor(self._pool, self.writer.write, unwritten)
            self._writing.add_done_callback(self._written)

    def _written(self, _: asyncio.Future[None]) -> None:
        self._writing = None
        self.touched()
        if self._waited:
            self._waited = False
            self.written()

    async def close(self) -> Callable[[], None]:
        """Wait for running operations. Return a function to run in any thread after the log was closed cleanly."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        unwritten = self.writer.begin(closing=True)
        return (lambda: None) if unwritten is None else lambda: self.writer.write(unwritten)


class FoundState(NamedTuple):
    """The file that fits a log, if there is one; and how many did not."""

    state: State | None = None
    left_out: int = 0


def found_state(log: Log, key: PartitionKey) -> FoundState:
    """Return the state file beside ``log`` that fits.

    Others are logged and removed. Runs in any thread. Raises StorageError.
    """
    state, unfit = load_state(log, state_owner(key))
    for name, why in unfit.items():
        logger.warning("%s: ignoring and deleting state file %s: %s", key, name, why)
    return FoundState(state, len(unfit))


def restored(found: FoundState, log: Log, subject: str, stream: StreamConfig, config: ReplicationConfig) -> LogState | None:
    """Return the derived state from the file, None without a usable one.

    Runs in any thread while nothing else uses ``log``: a large file takes a second.
    """
    if found.state is None:
        return None
    made = derived_state(log, subject, stream, config, clock.now_ns)
    return made if made.begin_with(found.state) else None
