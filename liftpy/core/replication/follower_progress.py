"""``FollowerProgress``: the leader's view of one follower. Each fetch sets it, up or down [D18].

A position counts only for one LeaderEpoch and one incarnation of the follower's node. If the node restarts, the
position is forgotten, because the new process may have lost flushed records [D6, C12]. Times are monotonic nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from liftpy.config import NS_PER_S

REACH_NS = 10 * NS_PER_S
"""Request ids follow the follower's clock: one may be as far ahead of the last one as time has gone by, and this much."""
DOUBT_NS = 5 * NS_PER_S
"""When nothing else has been heard of a follower for so long, what was not believed of it is believed after all."""


@dataclass(slots=True)
class FollowerProgress:
    """The leader's knowledge of one follower in this LeaderEpoch."""

    caught_up_ns: int
    """When the follower last was at the leader's log end; at first: when the leader began."""
    copy_epoch: int = 0
    """Of a learner: which copy it makes, as the metadata says; of a replica, the copy that it was."""
    incarnation: int = 0
    """Whose position this is; 0: none yet."""
    live: bool = False
    """Whether its node's session stands."""
    position: int | None = None
    """Inclusive: newest offset that it has flushed, as its last fetch said; None: unknown in this epoch."""
    was_caught_up: bool = False
    """It has been at the log end in this epoch, under this incarnation, and since it last left the ISR."""
    in_isr: bool = False
    """As the image shows."""
    last_fetch_ns: int = 0
    last_asked_ns: int = 0
    """Of its last request of any kind, in any epoch; at first: when the leader began. One that comes back has not been silent yet."""
    absences: int = 0
    """How often in a row nobody listened for it, since its last fetch."""
    probed: bool = False
    """The bus was asked since its last fetch."""
    progressed_ns: int = 0
    """When its position last rose; at first: never."""
    mark_end_offset: int = -1
    """Exclusive: the leader's log end at ``mark_ns``, which it has not reached yet; -1: none."""
    mark_ns: int = 0
    log_end_offset_at_last_fetch: int = 0
    """Exclusive: the leader's log end when it last fetched."""
    last_request_id: int = 0
    """The newest request that counted; one below it was overtaken on its way."""
    last_request_ns: int = 0
    """When it came. Its wait may have been confirmed since: then ``last_fetch_ns`` is later."""
    doubted_ns: int | None = None
    """When the first request came that was not believed, since the last one that was; None: none."""
    told_high_watermark: int = -2
    """HW of the last answer or notice that was sent to it; -2: nothing was."""
    owed_ns: int = 0
    """Since when its fetch waits at the log end for its first answer, or HW is above what it was told there; 0: neither."""

    def live_is(self, incarnation: int, now_ns: int) -> None:
        """The cluster counts this process of the follower's as live; 0: none."""
        if incarnation and not (self.live and incarnation == self.incarnation):
            self.last_asked_ns = now_ns
        self.live = incarnation > 0
        if incarnation:
            self.incarnation_is(incarnation)

    def incarnation_is(self, incarnation: int) -> None:
        """Forget everything if the follower's process is another one."""
        if incarnation != self.incarnation:
            self.incarnation = incarnation
            self.last_request_id, self.doubted_ns = 0, None
            self._forget()

    def membership_is(self, in_isr: bool) -> None:
        """Set whether the image shows it in the ISR.

        After it leaves, it must fetch before it may return, because its disk may have failed.
        """
        if self.in_isr and not in_isr:
            self.was_caught_up = False
        self.in_isr = in_isr

    def copy_is(self, copy_epoch: int) -> None:
        """Set the copy that it makes, 0 for a replica. A new copy forgets the old one."""
        if copy_epoch and copy_epoch != self.copy_epoch:
            self.copy_epoch = copy_epoch
            self._forget()

    def _forget(self) -> None:
        self.position = None
        self.was_caught_up = False
        self.progressed_ns, self.mark_end_offset = 0, -1
        self.told_high_watermark, self.owed_ns = -2, 0

    def told(self, high_watermark: int) -> None:
        """Note that an answer or a notice with this HW was sent to it."""
        self.told_high_watermark, self.owed_ns = high_watermark, 0

    def is_owed(self, now_ns: int) -> None:
        """Note that it is due for a notice, unless it was already."""
        self.owed_ns = self.owed_ns or now_ns

    def believes(self, request_id: int, now_ns: int) -> bool:
        """Return whether ``request_id`` can belong to the follower's next request: not older than the last one, and not too far
        ahead.

        But nobody is doubted for good: the id that was believed first may have been somebody else's.
        """
        reach = self.last_request_id + max(now_ns - self.last_request_ns, 0) + REACH_NS
        if not self.last_request_id or self.last_request_id < request_id <= reach:
            return True
        if self.doubted_ns is None:
            self.doubted_ns = now_ns
        return now_ns - self.doubted_ns > DOUBT_NS

    def fetched(self, offset: int, request_id: int, leader_end_offset: int, now_ns: int) -> None:
        """A valid fetch acknowledges everything up to ``offset`` (inclusive).

        Caught up means: at the log end now, or at what was the log end at some time before, as of that time: so it is known how far
        it is behind a busy leader, in time [L8].
        """
        if offset + 1 >= leader_end_offset:
            self.caught_up_ns, self.was_caught_up = now_ns, True
        elif self.position is not None and offset + 1 >= self.log_end_offset_at_last_fetch:
            self.caught_up_ns, self.was_caught_up = max(self.caught_up_ns, self.last_fetch_ns), True
        elif 0 <= self.mark_end_offset <= offset + 1:
            self.caught_up_ns, self.was_caught_up = max(self.caught_up_ns, self.mark_ns), True
        if self.mark_end_offset <= offset + 1:
            self.mark_end_offset, self.mark_ns = leader_end_offset, now_ns
        if self.position is not None and offset > self.position:
            self.progressed_ns = now_ns
        self.position = offset
        self.last_request_id, self.last_request_ns, self.doubted_ns = request_id, now_ns, None
        self.last_fetch_ns = now_ns
        self.absences, self.probed = 0, False
        self.log_end_offset_at_last_fetch = leader_end_offset

    def still_waits(self, now_ns: int) -> None:
        """Count its waiting fetch at the log end as if it had arrived again, with the same id."""
        self.caught_up_ns, self.was_caught_up = now_ns, True
        self.last_fetch_ns = self.last_asked_ns = now_ns
        self.absences, self.probed = 0, False
