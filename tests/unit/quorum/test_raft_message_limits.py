"""Test the limits of terms and indexes in Raft messages."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy.core.wire._pb import raft_pb2 as pb
from liftpy.errors import ProtocolError
from sidecar.quorum.codec import MAX_NUMBER, decode
from tests.each import each

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
