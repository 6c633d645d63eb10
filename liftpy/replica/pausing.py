"""Pausing: what a leader does with publishes while its partition takes none [A13].

Goal: once a leader knows of a pause, nothing that comes then is stored before it knows that the pause has ended; what came before is
committed and acknowledged as ever, and reading goes on. Constraint: who was told no is never stored [A2], also by the next leader.

    UNTIL_RESUMED    refused, PAUSED, by every leader; dropped and counted where nobody waits, or nobody may be told
    UNTIL_PUBLISH    held, as while the ISR is short, and the metadata group asked to resume: a publish is one slow ack
    ENDING           taken again; the leader says so, and followers stand by from then on

Why ENDING: followers may hear of a change before the leader does. One that kept what it heard while the leader still refused would
store it when it leads. So they listen no earlier than the leader has said that it takes publishes, and forget what they heard with each
pause. The same holds for the settings by which publishes are refused (``liftpy.config.REFUSED_BY``): one that is altered is a pause
that ends at once.
"""

from __future__ import annotations

from liftpy.partition import Pause
from liftpy.replica.effects import RejectReason, WakePartition
from liftpy.replica.intake import Intake
from liftpy.replica.phases import Leading, Phase
from liftpy.replica.role import Effects, Shared

SAID_BY_EVERY_LEADER = frozenset({RejectReason.READ_ONLY, RejectReason.PAUSED})
_AGAIN_NS = 250_000_000
"""After the metadata group did not do what it was asked for."""


class Pausing:
    """Of one partition, as long as one leadership lasts."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._asked: tuple[Pause, int] = (Pause.NOT_PAUSED, 0)
        self._again_ns = 0

    @property
    def refusal(self) -> RejectReason | None:
        """Why nothing that is published is taken; None: it is, or it is held."""
        held = self._shared.held
        if held.config.read_only:
            return RejectReason.READ_ONLY
        return RejectReason.PAUSED if held.state.pause is Pause.UNTIL_RESUMED else None

    @property
    def sleeps(self) -> bool:
        """Whether the first publish resumes the partition, and is held until then."""
        return self._shared.state.pause.until_publish

    def is_over(self, intake: Intake) -> bool:
        """Whether the metadata group is to be told that it ends: something is held, or it was resumed."""
        return (self.sleeps and intake.holds) or self._shared.state.pause is Pause.ENDING

    def review(self, phase: Phase, intake: Intake, now_ns: int, out: Effects) -> None:
        """Tell it, once in a while, for what is asked may be lost; a leader that may not speak yet later."""
        state = self._shared.state
        known = state.pause, state.pauses
        if phase is Leading.READY and self.is_over(intake) and (known != self._asked or now_ns >= self._again_ns):
            self._asked, self._again_ns = known, now_ns + _AGAIN_NS
            out.append(WakePartition(leader_epoch=state.leader_epoch, pause=state.pause, pauses=state.pauses))
