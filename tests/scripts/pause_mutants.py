"""Mutants for scripts: bugs of pauses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from unittest.mock import patch

from liftpy.core.base.partition import PartitionState, Pause
from liftpy.core.metadata.controller import streams
from liftpy.core.publish.standby import Standby
from liftpy.core.replication.leader import PauseEnforcer
from tests.simulation.mutants.bug import Mutant, Patches, method


def pause_is_not_heeded() -> Patches:
    return [patch.object(PauseEnforcer, "refusal", property(lambda self: None))]


def woken_before_it_is_resumed() -> Patches:
    return [patch.object(PauseEnforcer, "sleeps", property(lambda self: False))]


def nobody_is_woken() -> Patches:
    return [method(PauseEnforcer, "is_over", lambda self, intake: False)]


def heard_before_a_pause_is_kept() -> Patches:
    real = Standby.review

    def review(self: Standby) -> None:
        if self._settings is not None and self.replica.state.pause is Pause.NOT_PAUSED:
            self._settings = (*self._settings[:3], self.replica.state.pauses)
        real(self)

    return [method(Standby, "review", review)]


def heard_while_settings_change() -> Patches:
    return [patch.object(streams, "_rejection_rules_differ", lambda old, new: False)]


def altered_twice_is_not_seen() -> Patches:
    def heard_anew(partition: PartitionState) -> PartitionState:
        return partition if partition.pause.takes_nothing else dataclasses.replace(partition, pause=Pause.ENDING)

    return [patch.object(streams, "_with_reset_standby_buffers", heard_anew)]


MUTANTS: Sequence[Mutant] = (
    Mutant("a leader heeds no pause", "none: a script asks for the refusal", pause_is_not_heeded),
    Mutant("a leader that is woken stores at once", "A13", woken_before_it_is_resumed),
    Mutant("nobody is woken", "a pause that a publish should end", nobody_is_woken),
    Mutant("what was heard before a pause that was missed is kept", "A2", heard_before_a_pause_is_kept),
    Mutant("what is refused is altered at once for followers", "A2", heard_while_settings_change),
    Mutant("a setting that was altered twice is none", "A2", altered_twice_is_not_seen),
)
"""Those of ``more_mutants`` besides."""
