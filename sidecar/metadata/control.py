"""Control requests: ``ControlHandler`` receives them, ``Forwarder`` sends those of this node to the metadata leader.

Nodes, operators and clients send their requests on subjects of their own. ``liftpy.core.metadata.controller.admission``
has the checks that each request must pass. ``liftpy.core.metadata.idempotency`` decides about the requests that are
sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import nats.errors

from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.core.metadata.controller.admission import (
    ARRIVAL,
    RequestContext,
    RequestLimits,
    RequestSubject,
    first_rejection,
    sender_of,
)
from liftpy.core.metadata.controller.requests import may_be_logged
from liftpy.core.metadata.describe import cut_stream, page_bytes
from liftpy.core.metadata.idempotency import (
    ATTEMPT_NS,
    OPERATION_ID_SIZE_BYTES,
    PAUSE_NS,
    ForwardedRequest,
    RetryPauses,
    error_response,
)
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.decode_errors import REFUSED
from liftpy.core.wire.subjects import Allows, InboxRule, Subjects
from liftpy.errors import LiftError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.request_guard import RequestGuard
from sidecar.metadata.controller import MetadataController
from sidecar.runtime import clock
from sidecar.runtime.tasks import spawn, start_attended
from sidecar.transport.connection import BusConnection, Listener, send_answer

_TIMEOUT_S = 2.0
_TURNS = 4
"""Maximum number of unfinished requests of one sender in the log of the group. Further requests of this sender wait.

So a sender with many requests does not delay other senders.
"""
_DESCRIPTIONS = "descriptions"
"""Name of the queue of all descriptions. One at a time is made, because a page takes about 30 ms of the event loop."""
NO_TURN = f"{REFUSED}control request that waited too long"
"""Name of the counter of requests that waited too long and were not logged."""


_Reply = Callable[[pb.ControlResponse | None], None]
"""Function that sends the answer to one request. None: there is no answer."""
NO_RESPONDERS = b" 503"
"""Part of the header block of a message by which NATS reports no responders."""
_MAX_UNANSWERED = 16
"""Maximum number of heartbeats without an answer whose answers are still processed."""
Answered = Callable[[pb.ControlResponse], None]
"""Callback with the answer of the metadata leader."""
DecideAsController = Callable[[pb.ControlRequest, float], Awaitable[pb.ControlResponse | None]]


class AdmissionTimeoutError(Exception):
    """Raised if a request waited too long, because its sender has too many unfinished requests."""


class AdmissionQueue:
    """Limits the unfinished requests of each sender. Further requests wait in the order of their arrival."""

    def __init__(self) -> None:
        self._requests: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    @contextlib.asynccontextmanager
    async def turn(self, asker: str, timeout_s: float, at_once: int = _TURNS) -> AsyncIterator[None]:
        """Wait until the sender ``asker`` may have one more unfinished request. The request ends with the ``async with`` block.

        ``at_once``: maximum number of its unfinished requests. Raises AdmissionTimeoutError after ``timeout_s`` seconds.
        """
        turns, present = self._requests.setdefault(asker, (asyncio.Semaphore(at_once), []))
        present.append(None)
        try:
            try:
                async with asyncio.timeout(timeout_s):
                    await turns.acquire()
            except TimeoutError:
                raise AdmissionTimeoutError from None
            try:
                yield
            finally:
                turns.release()
        finally:
            present.pop()
            if not present:
                del self._requests[asker]


class ControlHandler:
    """Receives the control requests of nodes, operators and clients over NATS, and answers them.

    Args:
        inboxes: Inboxes of applications.
        controller: Decides the requests.
    """

    def __init__(
        self,
        connection: BusConnection,
        subjects: Subjects,
        inboxes: InboxRule,
        controller: MetadataController,
        config: ReplicationConfig,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._connection = connection
        self._subjects = subjects
        self._node_inboxes = InboxRule((subjects.inboxes(),))
        self._inboxes = inboxes
        self._controller = controller
        self._config = config
        self.limits = RequestLimits()
        self._turns = AdmissionQueue()
        self._request_tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[Listener] = []
        self._of_nodes: Listener | None = None
        """Subscription to the requests of nodes. Only the metadata leader has one."""
        self._is_open = False
        self._guard = RequestGuard("control", self.counters, self._reject)

    async def open(self) -> None:
        self._is_open = True
        for subject in (self._subjects.info(), *self._subjects.control_admin_all()):
            subject_kind = RequestSubject.INFO if subject == self._subjects.info() else RequestSubject.ADMIN
            self._listeners.append(self._listen(subject, subject_kind))
        self.follow_leadership()

    def _listen(self, subject: str, subject_kind: RequestSubject) -> Listener:
        return self._connection.listen(subject, self._guard.handler(partial(self._request_arrived, subject_kind)))

    def follow_leadership(self) -> None:
        """Subscribe to the requests of nodes when this controller leads, and unsubscribe when it does not.

        Nodes send heartbeats all the time, and only the leader answers them. Without a leader, NATS reports no responders,
        and nodes retry.
        """
        if self._is_open and self._controller.leads:
            self._of_nodes = self._of_nodes or self._listen(self._subjects.control_node("*"), RequestSubject.NODE)
        elif self._of_nodes is not None:
            self._of_nodes.close()
            self._of_nodes = None

    async def close(self) -> None:
        """Stop receiving requests, and drop unfinished ones. Their senders retry at the next leader."""
        self._is_open = False
        self.follow_leadership()
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        await end_tasks(self._request_tasks)

    def _request_arrived(
        self, subject_kind: RequestSubject, subject: bytes, inbox: bytes, payload: bytes, headers: bytes
    ) -> None:
        arrival = self._arrival(subject_kind, subject.decode("utf-8", "surrogateescape"), inbox, payload)
        reply = partial(self._reply, partial(self._is_answered, subject_kind, arrival.sender), inbox)
        rejection = first_rejection(ARRIVAL, arrival)
        if rejection is not None:
            if rejection.counter:
                self.counters[rejection.counter] += 1
            reply(rejection.response)
            return
        if arrival.request.HasField("heartbeat") and (answer := self._controller.answer_heartbeat(arrival.request)) is not None:
            reply(answer)
            return
        asker = (
            f"node {arrival.sender}" if arrival.is_registered else subject_kind.value
        )  # unknown nodes share the turns of their subject
        answering = self._guard.run(self._answer(asker, reply, arrival.request), inbox)
        task = spawn(answering, "answering a control request")
        self._request_tasks.add(task)
        self.limits.begin(len(arrival.payload))
        task.add_done_callback(partial(self._request_answered, len(arrival.payload)))

    def _arrival(self, subject_kind: RequestSubject, subject: str, inbox: bytes, payload: bytes) -> RequestContext:
        sender = sender_of(subject_kind, subject, self._subjects.namespace)
        return RequestContext(
            subject_kind=subject_kind,
            sender=sender,
            payload=payload,
            is_reply_allowed=self._is_answered(subject_kind, sender, inbox),
            is_registered=subject_kind is RequestSubject.NODE and sender in self._controller.image.nodes,
            leads=self._controller.leads,
            describe_alone=self._controller.answer_without_leader,
            now_ns=clock.now_ns(),
            max_payload_bytes=self._connection.max_payload,
            inbox_prefixes=self._subjects.inbox_prefixes,
            config=self._config,
            limits=self.limits,
        )

    def _request_answered(self, size_bytes: int, task: asyncio.Task[None]) -> None:
        self._request_tasks.discard(task)
        self.limits.end(size_bytes)

    def _is_answered(self, subject_kind: RequestSubject, sender: str, reply: bytes) -> bool:
        """Return whether the sender of a request may get an answer on the subject ``reply``.

        A node may use only its own inbox. Other senders may use any inbox of applications. ``subject_kind``: kind of subject on which
        the request arrived. ``sender``: node or principal in that subject.
        """
        if subject_kind is RequestSubject.NODE:
            return reply.startswith(f"{self._subjects.inbox(sender)}.".encode()) and self._node_inboxes.allows(reply)
        return self._inboxes.allows(reply)

    async def _answer(self, asker: str, reply: _Reply, request: pb.ControlRequest) -> None:
        if request.HasField("heartbeat"):
            reply(await self._controller.decide(request, _TIMEOUT_S))
            return
        is_logged = may_be_logged(request)
        queue, at_once = (asker, _TURNS) if is_logged else (_DESCRIPTIONS, 1)
        try:
            async with self._turns.turn(queue, _TIMEOUT_S, at_once):
                reply(await self._controller.decide(request, _TIMEOUT_S))
                if not is_logged:
                    await asyncio.sleep(0)  # Raft ticks and heartbeats run before the next description
        except AdmissionTimeoutError:
            self.counters[NO_TURN] += 1
            detail = "The request waited too long, because too many others are in progress."
            reply(error_response(request, pb.ControlResponse.UNAVAILABLE, detail))

    def _reply(self, allows: Allows, inbox: bytes, response: pb.ControlResponse | None) -> None:
        """Send ``response`` to the reply subject ``inbox``. None: send nothing. ``allows``: returns whether the subject is allowed."""
        if response is None:
            return
        cut_stream(response, page_bytes(0, self._connection.max_payload))
        seal = frames.seal(response)
        if len(seal) > self._connection.max_payload:
            detail = "the answer is larger than one message may be: ask in pages, or for one stream"
            refusal = pb.ControlResponse(operationId=response.operationId, error=pb.ControlResponse.INVALID, detail=detail)
            seal = frames.seal(refusal)
        send_answer(self._connection, (allows,), self.counters, inbox, (seal,))  # not connected: the asker asks again

    def _reject(self, inbox: bytes, error: Exception) -> None:
        detail = f"the controller failed at this request, its log says why: {type(error).__name__}"
        self._reply(
            lambda subject: self._inboxes.allows(subject) or self._node_inboxes.allows(subject),
            inbox,
            pb.ControlResponse(error=pb.ControlResponse.INVALID, detail=detail),
        )


class Forwarder:
    """Sends requests of this node to the metadata leader, on ``<ns>.control.node.<node_id>``."""

    def __init__(self, connection: BusConnection, subjects: Subjects, node_id: str) -> None:
        self.counters: Counter[str] = Counter()
        self._connection = connection
        self._subject = subjects.control_node(node_id)
        self._inbox = f"{subjects.inbox(node_id)}.{secrets.token_hex(11)}.heartbeats"
        self._listener: Listener | None = None
        self._closed = False
        self._sent: dict[bytes, Answered] = {}
        """Operation id of an unanswered heartbeat -> callback for its answer, oldest first."""
        self._guard = RequestGuard("heartbeat answer", self.counters)
        self._pauses = RetryPauses()
        self._leadership = ("", 0)
        self._changed = asyncio.Event()

    def leader_is(self, node_id: str, term: int) -> None:
        """Set the known metadata leader and its Raft term.

        If one of them has changed, send unanswered requests again at once. A node that leads again in a later term may not have
        received them, for example because NATS was down.
        """
        if node_id and (node_id, term) != self._leadership:
            self._leadership = (node_id, term)
            self._pauses.answered()
            self._changed.set()
            self._changed = asyncio.Event()

    def send_heartbeat(self, request: pb.ControlRequest, answered: Answered) -> None:
        """Send ``request`` once, without waiting. ``answered``: called with the answer. Without responders, it is UNAVAILABLE.

        After ``close``, the request still keeps the session of the node alive, but nobody gets the answer.
        """
        if self._closed:
            self._connection.send(self._subject, (frames.seal(request),), self._inbox)
            return
        if self._listener is None:
            self._listener = self._connection.listen(self._inbox, self._guard.handler(self._answer_arrived))
        if len(self._sent) >= _MAX_UNANSWERED:
            del self._sent[next(iter(self._sent))]
        self._sent[request.operationId] = answered
        self._connection.send(self._subject, (frames.seal(request),), self._inbox)

    def _answer_arrived(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        if not payload and NO_RESPONDERS in headers:
            if self._sent:
                _, answered = self._sent.popitem()
                answered(pb.ControlResponse(error=pb.ControlResponse.UNAVAILABLE, detail="no controller can be reached"))
            return
        try:
            response = frames.decode(payload, pb.ControlResponse)
        except LiftError:
            return
        on_response = self._sent.pop(response.operationId, None)
        if on_response is not None:
            on_response(response)

    def close(self) -> None:
        """Drop the answers to heartbeats that arrive from now on, and end their subscription."""
        self._closed = True
        if self._listener is not None:
            self._listener.close()
        self._sent.clear()

    async def request_until_decided(
        self, request: pb.ControlRequest, timeout_s: float, here: DecideAsController | None = None
    ) -> pb.ControlResponse:
        """Send ``request`` to the metadata leader until it is decided or ``timeout_s`` seconds are over. Return the response.

        ``here``: function that decides the request if this node leads. None: this node is no controller.
        """
        if not request.operationId:
            request.operationId = secrets.token_bytes(16)
        way = ForwardedRequest(request, clock.now_ns() + round(timeout_s * NS_PER_S))
        while not way.decided and (left_ns := way.remaining_ns(clock.now_ns())):
            response = await here(request, left_ns / NS_PER_S) if here is not None else None
            if response is not None:
                way.response_received(response)
            else:
                await self._ask(way, min(left_ns, ATTEMPT_NS) / NS_PER_S)
            if way.decided:
                self._pauses.answered()
            else:
                await self._pause(way)
        return way.response

    async def _pause(self, way: ForwardedRequest) -> None:
        """Wait until the next attempt of a request. The wait ends early if this controller learns of a new leader."""
        now_ns = clock.now_ns()
        pause_ns = min(self._pauses.next_ns(now_ns, random.random), way.remaining_ns(now_ns))
        if pause_ns <= PAUSE_NS:
            await asyncio.sleep(pause_ns / NS_PER_S)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_ns / NS_PER_S):
                await self._changed.wait()

    async def _ask(self, way: ForwardedRequest, timeout_s: float) -> None:
        asking = start_attended(self._connection.request(self._subject, frames.seal(way.request), timeout=timeout_s))
        changing = start_attended(self._changed.wait())
        try:
            await asyncio.wait((asking, changing), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                way.attempt_failed("the metadata leader changed meanwhile", sent=True)
                return
            response = frames.decode(asking.result().data, pb.ControlResponse)
            if response.operationId == way.request.operationId[:OPERATION_ID_SIZE_BYTES]:
                way.response_received(response)
            else:
                way.attempt_failed("an answer to another request came", sent=True)
        except (nats.errors.NoRespondersError, nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError):
            way.attempt_failed("no controller can be reached", sent=False)
        except (nats.errors.Error, TimeoutError, LiftError) as error:
            way.attempt_failed(f"no answer from the metadata leader: {type(error).__name__}", sent=True)
        finally:
            asking.cancel()
            changing.cancel()
