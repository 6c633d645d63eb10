"""Carries out the decisions of a metadata group member (``liftpy.core.metadata.controller.quorum_member``), and waits for
the
results.

It also sends a controller's requests to nodes, apart from the group's own traffic.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any

import nats.errors
from nats.aio.client import Client

from liftpy.config import NS_PER_S
from liftpy.core.metadata.controller.quorum_member import (
    CatchUp,
    Decision,
    EntryOutcome,
    HandOver,
    LookFor,
    Order,
    PublishEntry,
    QuorumMember,
    who_steps_aside,
)
from liftpy.core.metadata.failure_reports import ANSWER_NS, LeaderQuestion, ProbeResult
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire._pb import replication_pb2
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ProtocolError
from liftpy.nats.cancellation import end_tasks
from sidecar.metadata.feed import FeedPublisher
from sidecar.metadata.member_log import MemberLog
from sidecar.quorum.driver import GroupDriver
from sidecar.quorum.library import MAX_APPEND_BYTES, outcome_of
from sidecar.runtime import clock
from sidecar.runtime.tasks import spawn
from sidecar.transport.liveness import is_absent

STEP_ASIDE_TIMEOUT_S = 0.8
_MOST_QUESTIONS = 3
"""Maximum number of requests to a node whose answers cannot be decoded."""


async def ask_accused(connection: Client, subjects: Subjects, question: LeaderQuestion) -> ProbeResult | None:
    """Send the question to the node and return the answer, None if it is unusable. Silence has its own deadline."""
    key = question.key
    asked = replication_pb2.LeaderQuestion(
        stream=key.stream, streamUid=key.uid, partition=key.partition, leaderEpoch=question.leader_epoch
    )
    subject, timeout_s = subjects.notify(question.node), ANSWER_NS / NS_PER_S
    try:
        answer = await connection.request(subject, frames.sealed(asked), timeout=timeout_s)
        said = frames.decode(answer.data, replication_pb2.LeaderTestimony)
        if said.HasField("question") and said.question != asked:
            return None  # about another leadership; of an older version it does not say
    except nats.errors.NoRespondersError:
        return ProbeResult.ABSENT
    except (nats.errors.Error, TimeoutError, OSError, ProtocolError):
        return None
    return ProbeResult.SERVES if said.serves else ProbeResult.DOES_NOT


async def ask_to_step_aside(connection: Client, subjects: Subjects, node_id: str, request: replication_pb2.StepAside) -> None:
    """Ask the node to stop accepting publishes, and wait for its answer for a limited time.

    Answers about another leadership are ignored and the question is repeated.
    """
    deadline = time.monotonic() + STEP_ASIDE_TIMEOUT_S
    try:
        for _ in range(_MOST_QUESTIONS):
            left_s = deadline - time.monotonic()
            answer = await connection.request(subjects.notify(node_id), frames.sealed(request), timeout=max(0.0, left_s))
            with contextlib.suppress(ProtocolError):
                if frames.decode(answer.data, replication_pb2.StepAside) == request:
                    return
    except (nats.errors.Error, TimeoutError, OSError):
        pass  # it stands still, or is gone: then nobody waits for its answers


class Orders:
    """Executes decisions of one controller. ``catch_up``: starts a catch-up. ``hand_over``: starts a leadership transfer."""

    def __init__(
        self,
        connection: Client,
        subjects: Subjects,
        member: QuorumMember,
        log: MemberLog,
        driver: GroupDriver,
        feed: FeedPublisher,
        catch_up: Callable[[], Coroutine[Any, Any, None]],
        hand_over: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._subjects = subjects
        self._member = member
        self._log = log
        self._driver = driver
        self._feed = feed
        self._catch_up = catch_up
        self._hand_over = hand_over
        self._tasks: set[asyncio.Task[Any]] = set()

    def look(self) -> None:
        """Carry out the current decisions, after each flushed tick."""
        online = self._connection.is_connected
        for decision in self._member.tick(clock.now_ns(), votes=self._log.probation.over, online=online):
            self._do(decision)

    def _do(self, decision: Decision) -> None:
        match decision:
            case PublishEntry():
                self._feed.put(decision.entry)
            case Order():
                self._spawn(self.order(decision), "an order to the metadata group")
            case LookFor():
                self._spawn(self._look_for(decision.node_id), f"looking for {decision.node_id}")
            case LeaderQuestion():
                self._spawn(self._ask(decision), f"asking {decision.node}")
            case HandOver():
                self._hand_over()
            case CatchUp():
                self._spawn(self._catch_up(), "catching up with the metadata group")

    def _spawn(self, work: Coroutine[Any, Any, Any], what: str) -> None:
        task = spawn(work, what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop."""
        await end_tasks(self._tasks)

    async def _look_for(self, node_id: str) -> None:
        self._member.looked_for(node_id, absent=await is_absent(self._connection, self._subjects, node_id))

    async def _ask(self, question: LeaderQuestion) -> None:
        self._member.answered(question, await ask_accused(self._connection, self._subjects, question))

    async def decide(self, request: pb.ControlRequest, timeout_s: float) -> pb.ControlResponse | None:
        """The leader's answer; None on another member."""
        if self._driver.stopped:
            return None
        decided = self._member.request(request, round(timeout_s * NS_PER_S), clock.now_ns())
        return await self.order(decided) if isinstance(decided, Order) else decided

    async def order(self, order: Order) -> pb.ControlResponse:
        """Put the request into the log and wait until it is applied here."""
        asked = who_steps_aside(self._log.image, order.request)
        if asked is not None:
            await ask_to_step_aside(self._connection, self._subjects, *asked)
        entry = self._member.entry(order, time.time_ns(), MAX_APPEND_BYTES - 1)  # the library puts a byte in front
        if not isinstance(entry, bytes):
            return entry
        outcome, answer = EntryOutcome.UNKNOWN, None
        try:
            answer, reason = await asyncio.wait_for(
                self._driver.propose(entry, change=order.changes_controllers), order.timeout_ns / NS_PER_S
            )
            outcome = outcome_of(answer, reason)
        except TimeoutError:
            pass
        return self._member.ended(order, outcome, answer, clock.now_ns())
