"""The numbers of the metadata member, as they were decided (``decided.py``)."""

from __future__ import annotations

from tests.unit.decided import differences

NUMBERS = """
sidecar.metadata.control: _PER_S 400, _AT_ONCE 1000, _TIMEOUT_S 2.0, _MAX_WAITING 4Ki, _MAX_WAITING_BYTES 16Mi, _TURNS 4
sidecar.metadata.feed: _REQUEST_TIMEOUT_S 1.0, _POLL_S 0.05, FeedSubscriber.propose(timeout_s) 5.0,
  FeedSubscriber.barrier(timeout_s) 5.0
sidecar.metadata.group: MetadataGroup.propose(timeout_s) 5.0, MetadataGroup.barrier(timeout_s) 5.0
sidecar.metadata.joining: _CONNECT_TIMEOUT_S 5, _RECONNECT_WAIT_S 0.1, _PING_INTERVAL_S 1
sidecar.metadata.member: _TRANSFER_TIMEOUT_S 2.0, _HAND_OVER_TIMEOUT_S 1.5, _JOIN_ATTEMPT_S 1.0, _SAY_AFTER_S 2.0,
  _SAY_EVERY_S 10.0, RaftMember.__init__(elections) no, RaftMember.propose(timeout_s) 5.0, RaftMember.barrier(timeout_s) 5.0
sidecar.metadata.membership: _REGISTER_TIMEOUT_S 5.0, _REGISTER_RETRY_S 0.2, _TAKEN_RETRY_S 0.05, _ANNOUNCE_EVERY 25,
  _IMAGE_WAIT_S 0.02
sidecar.metadata.opening: COMPACT_AFTER_ENTRIES 10000, UNLED_S 2.0, MemberFolder.bootstrap_majority no,
  MemberFolder.compact_after_entries 10000, MemberFolder.flush yes
sidecar.metadata.outgoing: MAX_WAITING_BYTES 64Mi
sidecar.metadata.predecessor: _ASK_EVERY_S 0.1
sidecar.metadata.questions: STEP_ASIDE_TIMEOUT_S 0.8, _MOST_QUESTIONS 3
sidecar.metadata.roles: _LOOK_S 0.1, _ASK_TIMEOUT_S 0.3, _ASK_TIMES 3, _SAY_EVERY_S 60.0, GroupRole.propose(timeout_s) 5.0,
  GroupRole.barrier(timeout_s) 5.0
sidecar.metadata.thread: _JOIN_TIMEOUT_S 5.0, _SWITCH_S 0.0005, _READS 5, GroupThread.propose(timeout_s) 5.0,
  GroupThread.barrier(timeout_s) 5.0
"""


def test_every_number_is_as_decided() -> None:
    assert differences(NUMBERS) == []
