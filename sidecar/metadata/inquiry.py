"""Puts the metadata leader's questions to accused leaders and their accusers on the bus (``liftpy.cluster.accusations``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import nats.errors
from nats.aio.client import Client

from liftpy.cluster.accusations import ANSWER_NS, Question, Said
from liftpy.config import NS_PER_S
from liftpy.errors import ProtocolError
from liftpy.wire import frames
from liftpy.wire._pb import replication_pb2
from liftpy.wire.subjects import Subjects
from sidecar.ending import end_tasks
from sidecar.tasks import spawn

_AT_ONCE = 256
"""Questions under way at the same time; those beyond are not asked, and the witnesses report again."""


class Inquiry:
    """``testified(question, testimony)`` is called on the loop; for silence it is not."""

    def __init__(self, connection: Client, subjects: Subjects, testified: Callable[[Question, Said], None]) -> None:
        self._connection = connection
        self._subjects = subjects
        self._testified = testified
        self._asking: set[asyncio.Task[None]] = set()

    def ask(self, questions: Iterable[Question]) -> None:
        """Ask them, in the background."""
        for question in questions:
            if len(self._asking) < _AT_ONCE and self._connection.is_connected:
                task = spawn(self._ask(question), f"asking {question.node}")
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)

    async def _ask(self, question: Question) -> None:
        key = question.key
        asked = replication_pb2.LeaderQuestion(
            stream=key.stream, streamUid=key.uid, partition=key.partition, leaderEpoch=question.leader_epoch
        )
        subject, timeout_s = self._subjects.notify(question.node), ANSWER_NS / NS_PER_S
        try:
            answer = await self._connection.request(subject, frames.sealed(asked), timeout=timeout_s)
            said = frames.decode(answer.data, replication_pb2.LeaderTestimony)
        except nats.errors.NoRespondersError:
            self._testified(question, Said.ABSENT)
        except (nats.errors.Error, TimeoutError, OSError, ProtocolError):
            pass  # silence: the case has a deadline of its own
        else:
            self._testified(question, Said.SERVES if said.serves else Said.DOES_NOT)

    async def close(self) -> None:
        """Ask no more."""
        await end_tasks(self._asking)
