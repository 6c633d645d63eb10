"""Combined fetches of quiet partitions over NATS: sends one question per leader node and turn, and answers those of other
nodes.

``liftpy/core/replication/combined_fetches.py`` has the rules. Questions go to ``<ns>.notify.<node>``, answers to
``<inbox>.<slot>.<number of the question>``. Malformed messages are counted and dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from liftpy.config import ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.replication import effects as do
from liftpy.core.replication import events
from liftpy.core.replication.combined_fetches import (
    MAX_PER_QUESTION,
    CombinedFetch,
    CombinedFetches,
    CombinedFetchRequest,
    ReleasedFetches,
)
from liftpy.core.wire import frames
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.decode_errors import counter_name
from liftpy.core.wire.frames import MisdirectedError
from liftpy.core.wire.headers import is_status
from liftpy.core.wire.subjects import InboxRule, Subjects, reply_to
from liftpy.errors import ProtocolError
from sidecar.partition.replication import AnswerRouter
from sidecar.runtime import clock
from sidecar.runtime.tasks import CooperativeQueue
from sidecar.runtime.timers import Timer, Timers
from sidecar.transport.connection import send_answer

Feed = Callable[[events.Event], None]
Deliver = Callable[[str, int, str, events.Event], None]
"""Function of (stream, partition, stream uid, event) that feeds the event to this node's replica of the partition."""


@dataclass(frozen=True, slots=True)
class FetchSender:
    """Identity of this node's process in its questions about combined fetches."""

    node_id: str
    incarnation: int


class FetchCombiner:
    """Sends the combined fetches of a node's idle followers to other nodes, and answers those of other nodes.

    Its memory is limited by the number of partitions.
    """

    def __init__(
        self,
        router: AnswerRouter,
        subjects: Subjects,
        asker: FetchSender,
        inboxes: InboxRule,
        config: ReplicationConfig,
        timers: Timers,
        deliver: Deliver,
        counters: Counter[str],
    ) -> None:
        self._bus = router.bus
        self._subjects = subjects
        self._asker = asker
        self._inboxes = inboxes
        self._timers = timers
        self._deliver = deliver
        self._counters = counters
        self._slot = router.add(self._answer_arrived)
        self._combined = CombinedFetches(config)
        self._feeds: dict[PartitionKey, Feed] = {}
        """Partition -> feed function of its replica, for waiting fetches."""
        self._asked: dict[int, CombinedFetchRequest] = {}
        """Number -> question of the last turn."""
        self._timer = Timer(self._turn)
        self._is_ticking = False
        self._ending = CooperativeQueue(self._end_one)
        self._next_token = 0
        self._confirmed: set[int] = set()
        """Tokens of the fetches that were confirmed for the question in progress."""

    def __len__(self) -> int:
        return len(self._combined)

    def close(self) -> None:
        self._timers.cancel(self._timer)
        self._ending.close()

    # ---- the followers' side ------------------------------------------------------------------------------------------
    def wait(self, key: PartitionKey, effect: do.CombineFetch, feed: Feed) -> None:
        """Include the waiting fetch of the partition ``key`` in the questions to its leader's node, until ``stop``.

        If the fetch no longer waits there, ``feed`` gets CombinedFetchEnded.
        """
        now_ns = clock.now_ns()
        if not self._combined.add(CombinedFetch(key, effect.leader_epoch, effect.request_id), effect.leader, now_ns):
            feed(events.CombinedFetchEnded(last_answer_ns=None))
            return
        self._feeds[key] = feed
        if not self._is_ticking:
            self._is_ticking = True
            self._timers.set(self._timer, now_ns + self._combined.interval_ns)

    def stop(self, key: PartitionKey) -> None:
        self._combined.remove(key)
        self._feeds.pop(key, None)

    def _turn(self) -> None:
        now_ns = clock.now_ns()
        questions, ended = self._combined.start_turn(now_ns)
        self._asked = {question.number: question for question in questions}
        for silent in ended:
            self._counters["idle_poll_timeout"] += 1
            self._end(silent)
        for question in questions:
            reply = f"{self._bus.inbox}.{self._slot}.{question.number}"
            if not self._bus.send(self._subjects.notify(question.leader), (self._frame(question),), reply):
                self._end(self._combined.process_no_responders(question))
        self._is_ticking = len(self._combined) > 0
        if self._is_ticking:
            self._timers.set(self._timer, now_ns + self._combined.interval_ns)

    def _frame(self, question: CombinedFetchRequest) -> bytes:
        asker = self._asker
        frame = pb.QuietFetches(replicaID=asker.node_id, incarnation=asker.incarnation, question=question.number)
        for fetch in question.fetches:
            frame.fetches.add(
                stream=fetch.key.stream,
                streamUid=fetch.key.uid,
                partition=fetch.key.partition,
                leaderEpoch=fetch.leader_epoch,
                requestId=fetch.request_id,
            )
        return frames.seal(frame)

    def _answer_arrived(self, number: int, payload: bytes, headers: bytes) -> None:
        question = self._asked.get(number)
        if question is None:
            return
        if headers and is_status(headers, payload):
            del self._asked[number]
            self._end(self._combined.process_no_responders(question))
            return
        try:
            answer = frames.decode(payload, pb.QuietFetchesAnswer)
            if answer.question and answer.question != number:
                raise MisdirectedError(
                    f"Answer for question {answer.question} arrived on the inbox of question {number}. It is dropped."
                )
        except ProtocolError as error:  # the answer itself may still come
            self._counters[counter_name(error)] += 1
            return
        del self._asked[number]
        if answer.count == len(question.fetches):
            self._end(self._combined.process_answer(question, frozenset(answer.over)))

    def _end(self, ended: ReleasedFetches | None) -> None:
        if ended is not None:
            self._ending.add((fetch, ended.last_answer_ns) for fetch in ended.fetches)

    def _end_one(self, ended: tuple[CombinedFetch, int]) -> None:
        feed = self._feeds.pop(ended[0].key, None)
        if feed is not None:
            feed(events.CombinedFetchEnded(last_answer_ns=ended[1]))

    # ---- the leaders' side --------------------------------------------------------------------------------------------
    def answer_question(self, reply: bytes, body: memoryview) -> None:
        """Answer a question of another node about its combined fetches. Raises ProtocolError if it is malformed.

        ``reply``: reply subject. ``body``: payload without envelope.
        """
        question = self.decode_question(reply, body)
        if question is not None:
            self.answer(reply, question, self.over(question))

    def decode_question(self, reply: bytes, body: memoryview) -> pb.QuietFetches | None:
        """Return the decoded question of another node about its combined fetches. Raises ProtocolError.

        None: its reply subject is not an inbox of that node.
        """
        question = frames.parse(body, pb.QuietFetches)
        count = len(question.fetches)
        if count > MAX_PER_QUESTION:
            raise ProtocolError(
                f"A request about idle fetches contains {count} of them, more than allowed. Check the versions of the nodes."
            )
        if reply_to(reply, (self._inboxes,), self._counters, self._inbox_of(question)) is None:
            return None
        return question

    def over(self, question: pb.QuietFetches) -> list[int]:
        """Return the indexes of those fetches in the question that no leader on this node confirms as waiting."""
        count = len(question.fetches)
        self._confirmed.clear()
        first, self._next_token = self._next_token, self._next_token + count
        received = partial(events.CombinedFetchReceived, replica=question.replicaID, incarnation=question.incarnation)
        for token, fetch in enumerate(question.fetches, first):
            event = received(token=token, leader_epoch=fetch.leaderEpoch, request_id=fetch.requestId)
            self._deliver(fetch.stream, fetch.partition, fetch.streamUid, event)
        confirmed = self._confirmed
        return [token - first for token in range(first, first + count) if token not in confirmed]

    def answer(self, reply: bytes, question: pb.QuietFetches, over: list[int]) -> None:
        """Send the answer to a question of another node. ``over``: indexes of the fetches that no longer wait here."""
        answer = pb.QuietFetchesAnswer(over=over, count=len(question.fetches), question=question.question)
        under = self._inbox_of(question)
        send_answer(self._bus, (self._inboxes,), self._counters, reply, (frames.seal(answer),), under=under)

    def _inbox_of(self, question: pb.QuietFetches) -> str:
        return f"{self._subjects.inbox(question.replicaID)}."

    def confirm(self, effect: do.ConfirmCombinedFetch) -> None:
        """Note that a leader on this node has confirmed a fetch of the question that is being answered."""
        self._confirmed.add(effect.token)
