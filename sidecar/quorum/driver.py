"""Runs one controller inside one asyncio event loop, in ticks.

A tick runs these steps: received messages, the library, flush of the journal, sent messages, results of futures.
Nothing is sent, and no future resolves, before the journal is on disk [M2, M4]. A tick runs after received messages,
after ``wake``, and at the next deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from liftpy.errors import IncompatibleVersionError, MetadataDivergedError, StorageError, UnknownFormatError
from sidecar.disk.flush_thread import FlushTimes
from sidecar.quorum.journal import GroupJournal
from sidecar.quorum.library import FAIL_REASON, TICK_S, RaftCore
from sidecar.quorum.transport import SessionTransport

logger = logging.getLogger("liftpy.quorum")

REST_S = 0.3
"""Maximum time between two ticks, in seconds.

It is longer than the interval of a leader's append messages, so that a follower ticks when a frame arrives.
"""
_TIMER_SLACK_S = 0.001
"""Time by which a timer fires after its deadline, in seconds. The event loop rounds times to milliseconds."""
MAX_INBOX_FRAMES = 65_536
MAX_INBOX_BYTES = 64 << 20
"""Maximum size of received frames that wait for the next tick, in bytes. Normal traffic of a controller is much smaller."""
_FRAMES_PER_TICK = 2_000
LATE_TICK_S = 0.05
"""Delay of a tick from which it is counted as late, in seconds."""
_MAX_TICKS = 1200
"""Number of tick delays that are kept, for one to three minutes."""

Answer = tuple[bytes | None, int]
"""Result of a proposal: (answer of the state machine, or None; FAIL_REASON of the library)."""


def tick_once(core: RaftCore, transport: SessionTransport, journal: GroupJournal, frames: Sequence[tuple[str, bytes]]) -> None:
    """Run the first part of a tick: process received frames, run the library, and flush the journal. Nothing is sent yet.

    The simulator also calls it. ``frames``: (sender, frame) pairs.
    """
    core.listens()
    transport.poll()
    for sender, frame in frames:
        transport.receive(sender, frame)
    before = (core.log.last_index, core.raftLastApplied)
    core.doTick(0)
    if core.leads and (core.log.last_index, core.raftLastApplied) != before:
        core.send_at_once()
    if isinstance(core.failure, (IncompatibleVersionError, MetadataDivergedError, UnknownFormatError)):
        raise core.failure
    if core.failure is not None:
        raise StorageError(
            f"The metadata state machine or its snapshot failed: {core.failure!r}. Restart the node. If this "
            "repeats, please report it."
        ) from core.failure
    transport.sync()
    journal.sync()


def time_to_next_tick_s(core: RaftCore, transport: SessionTransport, duty_s: float) -> float:
    """Return the time in seconds until the next tick, if no frame arrives. The simulator also calls it.

    A leader ticks when its next append message is due. A follower that hears no leader counts the silence in short steps. It
    ticks at its own election deadline, so that two followers seldom start an election at the same time. ``duty_s``: time
    until the next duty of the member.
    """
    duty_s = max(duty_s, _TIMER_SLACK_S)
    if core.leads:
        return min(max(core.until_append_s(), 0.0) + _TIMER_SLACK_S, REST_S, duty_s)
    rest_s = REST_S if transport.has_leader_contact(REST_S) else TICK_S
    election_s = core.until_election_s()
    return min(rest_s, election_s + _TIMER_SLACK_S if election_s > 0 else rest_s, duty_s)


class GroupDriver:
    """Runs the Raft node of the library in ticks on an event loop.

    Args:
        send: Function of (receiver, frame) that sends a frame over NATS.
        ticked: Called after each tick.
        rest_s: Returns the time until the next duty of the member, in seconds.
    """

    def __init__(
        self,
        core: RaftCore,
        transport: SessionTransport,
        journal: GroupJournal,
        send: Callable[[str, bytes], None],
        ticked: Callable[[], None],
        fatal: Callable[[Exception], None],
        rest_s: Callable[[], float] = lambda: REST_S,
    ) -> None:
        self._core = core
        self._transport = transport
        self._journal = journal
        self._send = send
        self._ticked = ticked
        self._fatal = fatal
        self._rest_s = rest_s
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[tuple[str, bytes]] = deque(maxlen=MAX_INBOX_FRAMES)
        """Received frames that wait for the next tick. If there are too many, the oldest is dropped, and its session finds a gap."""
        self.inbox_bytes = 0
        self.frames_lost = 0
        self._proposed: set[asyncio.Future[Answer]] = set()
        """Proposals without a result."""
        self._answers: list[tuple[asyncio.Future[Answer], Answer]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        """Latest time of the next tick, by the clock of the event loop."""
        self.lateness = FlushTimes(_MAX_TICKS)
        """Delays of the last ticks, in seconds. A delay shows a busy CPU, a blocked interpreter, or a long tick."""
        self.late_tick_count = 0
        self._scheduled = False
        self.stopped = False

    def start(self) -> None:
        self._due_s = self._loop.time()
        self.tick()

    def stop(self) -> None:
        """End the ticks. Proposals without a result get the reason UNKNOWN_OUTCOME, so that nobody waits for their timeout."""
        self.stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for future in tuple(self._proposed):
            if not future.done():
                future.set_result((None, FAIL_REASON.UNKNOWN_OUTCOME))

    def frame_received(self, sender: str, frame: bytes) -> None:
        """Queue a frame from NATS for the next tick, which runs soon. If the queue is full, drop its oldest frames."""
        while self._inbox and (len(self._inbox) == MAX_INBOX_FRAMES or self.inbox_bytes + len(frame) > MAX_INBOX_BYTES):
            self.inbox_bytes -= len(self._inbox.popleft()[1])
            self.frames_lost += 1
        self._inbox.append((sender, frame))
        self.inbox_bytes += len(frame)
        self.wake()

    def propose(self, command: bytes, *, change: bool = False) -> asyncio.Future[Answer]:
        """Propose ``command`` to the group. Return a future of its result.

        Wait for the future with a timeout, because there may be no result after a lost leadership. ``change``: True if the
        command changes the controllers.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._proposed.add(future)
        future.add_done_callback(self._proposed.discard)
        self._core.propose(command, lambda answer, reason: self._answers.append((future, (answer, reason))), change=change)
        self.wake()
        return future

    def wake(self) -> None:
        if not self._scheduled and not self.stopped:
            self._scheduled = True
            self._loop.call_soon(self.tick)

    def _on_timer(self) -> None:
        self._timer = None
        self.tick()

    def tick(self) -> None:
        """Run one tick of the Raft node. A failure of the disk or the state machine stops this process."""
        self._scheduled = False
        if self.stopped:
            return
        late_s = max(0.0, self._loop.time() - self._due_s) if self._due_s else 0.0
        self.lateness.add(late_s)
        self.late_tick_count += late_s > LATE_TICK_S
        try:
            self._tick()
        except Exception as error:
            self._fail(error)
            return
        self._set_timer()

    def _set_timer(self) -> None:
        """Set the timer for the next tick to the next deadline. Received frames and ``wake`` make a tick run earlier."""
        if self._timer is not None:
            self._timer.cancel()
        self._core.rest_s = time_to_next_tick_s(self._core, self._transport, self._rest_s())
        self._due_s = self._loop.time() + self._core.rest_s
        self._timer = self._loop.call_at(self._due_s, self._on_timer)

    def _tick(self) -> None:
        frames = [self._inbox.popleft() for _ in range(min(len(self._inbox), _FRAMES_PER_TICK))]
        self.inbox_bytes -= sum(len(frame) for _, frame in frames)
        tick_once(self._core, self._transport, self._journal, frames)
        outbox = self._transport.sessions.outbox
        leaving, outbox[:] = outbox[:], []
        for receiver, frame in leaving:
            self._send(receiver, frame)
        answers, self._answers = self._answers, []
        for future, answer in answers:
            if not future.done():
                future.set_result(answer)
        self._ticked()
        if self._inbox or self._core.behind:
            self.wake()

    def _fail(self, error: Exception) -> None:
        logger.critical("controller failed error=%s: stopping it", error, exc_info=error)
        self.stop()
        self._fatal(error)
