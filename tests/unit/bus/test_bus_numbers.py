"""The numbers of the connections, as they were decided (``decided.py``)."""

from __future__ import annotations

from tests.unit.decided import differences

NUMBERS = """
sidecar.bus.absence: _ANSWER_TIMEOUT_S 0.5
sidecar.bus.backlog: _OPEN_OR_CLOSED 2, _OUTSTANDING 16, _ASK_EVERY_NS 20e6, _SILENT_EVERY_NS 10e9, _SILENT_AFTER_NS 2e9,
  Backlog.ask(at_once) no
sidecar.bus.connection: SEND_BUFFER_BYTES 64Mi, _KEPT_BYTES 2Mi, _LEFT_BYTES 256Ki, _CONNECT_TIMEOUT_S 5, _RECONNECT_WAIT_S
  0.1, _RETIRE_TIMEOUT_S 1.0, _LONGEST_HEARING_S 16.0, _PING_INTERVAL_S 2, _SAY_EVERY_S 1.0, _SHOWN_BYTES 200, _MOST_TOLD 8,
  BusConnection.__init__(send_buffer_bytes) 0, BusConnection.send(keep) no
sidecar.bus.cuts: _TRIES 5, _TRY_S 0.2
sidecar.bus.drops: _SAY_EVERY_S 1.0
sidecar.bus.inflow: _PIECE_BYTES 64Ki, _TURN_BYTES 256Ki, _REFUSING_BYTES 1Mi, _TURN_NS 4e6, _GIVING_UP_NS 8e6, _FULL_PARTS 16,
  _LOOK_AGAIN_S 0.005, _STILL_THERE_S 0.5, _LARGE_BYTES 32Ki, _BURST_NS 30e6, _CALM_NS 0.2e9, Inflow.__init__(send_buffer_bytes) 0,
  Inflow._close(do_cbs) yes
sidecar.bus.links: _READS_BYTES 32Mi
sidecar.bus.outlet: TOGETHER_BYTES 16Ki, AT_ONCE 8
sidecar.bus.rights: _MAX_SAID 64
sidecar.bus.socket_thread: READ_BYTES 4Mi, _LOOK_AGAIN_S 0.05, _LITTLE_BYTES 64Ki, _GATHER_S 0.001
"""


def test_every_number_is_as_decided() -> None:
    assert differences(NUMBERS) == []
