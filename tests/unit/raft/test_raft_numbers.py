"""The numbers of the Raft library's shell, as they were decided (``decided.py``)."""

from __future__ import annotations

from tests.unit.decided import differences

NUMBERS = """
sidecar.raft.driver: TICK_S 0.05, MAX_INBOX_FRAMES 64Ki, MAX_INBOX_BYTES 64Mi, _FRAMES_PER_TICK 2000, LATE_TICK_S 0.05,
  _TICKS_KEPT 1200, GroupDriver.propose(change) no
sidecar.raft.journal: _ENTRY 1, _CUT 2, _META 3, MAX_FRAME_BYTES 1Gi, _NEW_FRAME_BYTES 8Mi, _APPEND_BYTES 256Mi,
  MAX_SPENT_BYTES 4Mi, GroupJournal.__init__(flush) yes
sidecar.raft.library: MAX_APPEND_BYTES 64Mi, APPLIED_PER_TICK_BYTES 8Ki, ENTRY_BYTES 100, STEP_BYTES 2048, COMPACT_AFTER_BYTES
  512Ki, COMPACT_AT_ONCE_BYTES 8Mi, LULL_S 1.0, LATE_S 0.15, HOLD_S 0.5, RaftCore.propose(change) no, RaftCore._follow(anew)
  no, RaftCore._SyncObj__doChangeCluster(reverse) no, RaftCore.doTick(timeToWait) 0.0
sidecar.raft.lineage: MAX_EARLIER 64, MAX_MISSED 16, _FORMAT 1, FolderLineage.__init__(majority) 2
sidecar.raft.numbers: MAX_NUMBER 4611686018427387904
sidecar.raft.probation: waits_for(went_back) no, Probation.__init__(majority) no, Probation.__init__(joins) no
sidecar.raft.sessions: _HELLO 1, _DATA 2, _MEMBERS 3, _FIRST 1, _LAST 2, _NEW 4, CHUNK_BYTES 256Ki, _SMALLEST_CHUNK_BYTES
  1024, _OVERHEAD_BYTES 256, MAX_MESSAGE_BYTES 256Mi, HELLO_PERIOD_S 0.25, SILENCE_S 1.5, _ANSWER_AGAIN_S 0.02, _MAX_STRANGERS
  64, TERM_REACH 16Mi, _SAY_EVERY_S 1.0, _SAY_LIST_EVERY_S 10.0, _MAX_LIST_BYTES 1024, Peer.up no, Peer.is_new no, Peer.heard
  no, Peer.term 0, Peer.trusted yes, Peer.other_list no, Peer.epoch 0, Peer.sent 0, Peer.received 0, Peer.received_at
  -1000000000.0, Peer.hello_at -1000000000.0, Peer.parts_bytes 0, PeerSessions.online no, PeerSessions.chunk_bytes 256Ki,
  PeerSessions._said_at -1000000000.0, PeerSessions._list_said_at -1000000000.0, PeerSessions._hello(known) 0
sidecar.raft.snapshot_file: _VERSION 1, MAX_SNAPSHOT_BYTES 512Mi
sidecar.raft.transport: VOTE_AGAIN_S 0.4, _GIVE_WAY_S 0.1, _TRANSFER_S 2.0
"""


def test_every_number_is_as_decided() -> None:
    assert differences(NUMBERS) == []
