"""Test the limits of terms and indexes in Raft messages, and the confirmation of a leader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from liftpy.core.wire._pb import raft_pb2 as pb
from liftpy.errors import ProtocolError
from sidecar.quorum.codec import MAX_NUMBER, decode
from sidecar.runtime import clock
from tests.each import each
from tests.unit.quorum.raft_network import our_net

TOO_MUCH = [MAX_NUMBER, 2**64 - 1]


@each("number", TOO_MUCH)
@each(
    "message",
    [
        lambda n: pb.RaftMessage(requestVote=pb.RaftRequestVote(term=n)),
        lambda n: pb.RaftMessage(requestVote=pb.RaftRequestVote(term=1, lastLogIndex=n)),
        lambda n: pb.RaftMessage(requestVote=pb.RaftRequestVote(term=1, lastLogTerm=n)),
        lambda n: pb.RaftMessage(responseVote=pb.RaftResponseVote(term=n)),
        lambda n: pb.RaftMessage(timeoutNow=pb.RaftTimeoutNow(term=n)),
        lambda n: pb.RaftMessage(nextIndex=pb.RaftNextIndex(nextIndex=n)),
        lambda n: pb.RaftMessage(nextIndex=pb.RaftNextIndex(nextIndex=1, appliedIndex=n)),
        lambda n: pb.RaftMessage(snapshotChunk=pb.RaftSnapshotChunk(term=n)),
        lambda n: pb.RaftMessage(snapshotChunk=pb.RaftSnapshotChunk(commitIndex=n)),
        lambda n: pb.RaftMessage(appendEntries=pb.RaftAppendEntries(term=n)),
        lambda n: pb.RaftMessage(appendEntries=pb.RaftAppendEntries(previousIndex=n, previousTerm=1)),
        lambda n: pb.RaftMessage(appendEntries=pb.RaftAppendEntries(entries=[pb.RaftEntry(command=b"c", index=n)])),
        lambda n: pb.RaftMessage(appendEntries=pb.RaftAppendEntries(entries=[pb.RaftEntry(command=b"c", index=1, term=n)])),
    ],
)
def test_raft_message_with_a_term_or_index_above_the_limit_is_rejected(message: Any, number: int) -> None:
    with pytest.raises(ProtocolError):
        decode(message(number).SerializeToString())


def test_raft_message_with_entries_out_of_order_is_rejected() -> None:
    entries = [pb.RaftEntry(command=b"c", index=9, term=1)]
    append = pb.RaftAppendEntries(term=1, previousIndex=7, previousTerm=1, entries=entries)
    with pytest.raises(ProtocolError, match="order"):
        decode(pb.RaftMessage(appendEntries=append).SerializeToString())


def test_raft_leader_after_a_suspended_process_is_not_confirmed_by_older_answers(tmp_path: Path) -> None:
    """The clock continues while the process is suspended. Answers from before are old afterwards."""
    with our_net(tmp_path) as net:
        leader, *_ = net.elected()
        transport = net.up[leader].transport
        assert net.run(lambda: transport._stamp() - transport.confirmed_ns() < 0.2e9)
        asleep = 60 * 10**9
        stamp = transport._stamp
        transport._stamp = lambda: stamp() + asleep
        assert transport._stamp() - transport.confirmed_ns() >= asleep
        assert net.run(lambda: transport._stamp() - transport.confirmed_ns() < 0.2e9)


def test_raft_leader_confirmation_begins_at_the_send_time_of_the_append(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        leader, *others = net.elected()
        transport = net.up[leader].transport
        net.run(lambda: False, 0.3)
        net.stalled = {(name, leader) for name in others}
        asked = transport._stamp()
        net.run(lambda: False, 0.9)
        net.stalled = set()
        for name in others:
            net.deliver(name, leader, 1)
        net.tick(leader)
        assert transport.confirmed_ns() < asked + 0.3e9


def test_raft_driver_clock_never_runs_backwards() -> None:
    seen = [clock.now_ns() for _ in range(1000)]
    assert seen == sorted(seen)
