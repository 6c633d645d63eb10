"""What a controller asks nodes over the bus, beside the group's own traffic; ``liftpy.cluster`` decides when, and what it means."""

from __future__ import annotations

import contextlib
import time

import nats.errors
from nats.aio.client import Client

from liftpy.cluster.accusations import ANSWER_NS, LeaderQuestion, Said
from liftpy.config import NS_PER_S
from liftpy.errors import ProtocolError
from liftpy.wire import frames
from liftpy.wire._pb import replication_pb2
from liftpy.wire.subjects import Subjects

STEP_ASIDE_TIMEOUT_S = 0.8
_MOST_QUESTIONS = 3
"""To one node, where what comes back can't be read as an answer."""


async def ask_accused(connection: Client, subjects: Subjects, question: LeaderQuestion) -> Said | None:
    """Put the question to the node; None: nothing can be made of what comes back, and silence has a deadline of its own."""
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
        return Said.ABSENT
    except (nats.errors.Error, TimeoutError, OSError, ProtocolError):
        return None
    return Said.SERVES if said.serves else Said.DOES_NOT


async def ask_to_step_aside(connection: Client, subjects: Subjects, node_id: str, request: replication_pb2.StepAside) -> None:
    """Ask the node to take no more publishes, and wait for its answer, a bounded time. What is said of another leadership, or is no
    answer, ends no waiting: the question goes out again."""
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
