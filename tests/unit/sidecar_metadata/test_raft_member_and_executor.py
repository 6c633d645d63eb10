"""Test the status of the log of each member that a metadata leader reports."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from sidecar.metadata.member import RaftMember
from sidecar.metadata.member_log import MemberDirectory
from sidecar.quorum.library import Node


class Made:
    """Provide one of three members with a new directory. No task of the member runs."""

    def __init__(self, folder: Path) -> None:
        self.connection: Any = SimpleNamespace(is_connected=True, max_payload=4096, hold=lambda: None, release=lambda: None)
        opened = MemberDirectory("a", ("a", "b", "c"), folder)
        self.fatal: list[Exception] = []
        self.member = RaftMember(
            opened, self.connection, Subjects("space"), ReplicationConfig(), self.fatal.append, lambda _: True
        )
        self.log = self.member._log


@pytest.fixture
async def made(tmp_path: Path) -> Any:
    one = Made(tmp_path / "raft")
    yield one
    one.log.journal.abandon()


def test_raft_member_log_status_of_the_leader_has_the_log_position_of_each_member(made: Made) -> None:
    core, log = made.log.core, made.log
    core._SyncObj__raftState, core._SyncObj__raftLeader = 2, Node("a")
    core._SyncObj__raftCurrentTerm, core._SyncObj__raftCommitIndex, core._SyncObj__raftLastApplied = 7, 5, 4
    for index in range(log.journal[-1][1] + 1, 9):  # type: ignore[index]
        log.journal.add(b"\0x", index, 7)
    core._SyncObj__raftMatchIndex = {Node("b"): 8, Node("c"): 3}
    log.transport.applied.update({"b": 5, "c": 2})
    log.peers["b"].up = True
    assert log.status() == [
        pb.ControllerStatus(nodeId="a", leader=True, term=7, commitIndex=5, appliedIndex=4, lag=0, connected=True),
        pb.ControllerStatus(nodeId="b", leader=False, term=7, commitIndex=5, appliedIndex=5, lag=0, connected=True),
        pb.ControllerStatus(nodeId="c", leader=False, term=7, commitIndex=3, appliedIndex=2, lag=5, connected=False),
    ]
