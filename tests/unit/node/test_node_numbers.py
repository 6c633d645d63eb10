"""The numbers of the node, as they were decided (``decided.py``)."""

from __future__ import annotations

from tests.unit.decided import differences

NUMBERS = """
sidecar.clock_watch: _LOOK_EVERY_NS 1000000000, _UNSURE_EVERY_S 1.0, _PATIENCE_S 60.0
sidecar.group_lags: EVERY_S 2.0, SLICE_S 0.002, PAUSE_S 0.05, ASKS 20, ASKED_AT_ONCE 8, PATIENCE_S 1.0, _LOOKED_AT_ONCE 64
sidecar.node: FLUSH_THREADS 4, HARD_STOP_S 12.0, _CLOSE_SUBJECTS_TIMEOUT_S 0.5, _DRAIN_TIMEOUT_S 3.0, _LEAVE_TIMEOUT_S 1.0,
  _LIVE_TIMEOUT_S 5.0
sidecar.restarting: EXIT_TO_REPAIR 75, _FIRST_PAUSE_S 0.5, _LONGEST_PAUSE_S 30.0, _CALM_S 60.0
sidecar.settings: STATUS_OFF -1, _MAX_RESTARTS 1000, NodeSettings.weight 1.0, NodeSettings.status_port -1,
  NodeSettings.elections yes, NodeSettings.bootstrap_majority no, NodeSettings.scrub_bytes_per_s 1Mi, _MAX_SHOWN 80
sidecar.tasks: spawn(endless) no, spawn_in(endless) no
"""


def test_every_number_is_as_decided() -> None:
    assert differences(NUMBERS) == []
