"""EventsDesk: a controller returns cluster events on request (``<ns>.control.events.<node>``).

The metadata leader also publishes them on ``<ns>.events.<kind>``.

What is published is for watching: at most once from one leader, perhaps twice from two, and not older than a minute; an event's
index and number tell. Who must miss nothing asks.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import nats.errors
from nats.aio.client import Client

from liftpy.core.base.strict_json import load_json, whole_number
from liftpy.core.metadata.controller.cluster_events import EventTrail, is_recent
from liftpy.core.wire.subjects import Subjects, publish_answer, reply_to
from liftpy.nats.request_guard import RequestGuard
from sidecar.metadata.publish_queue import Outgoing, unsubscribe

MOST_AT_ONCE = 500
"""Events that are made, and published, after one tick; the others' turn comes with the next."""
MOST_ANSWERED = 500
LOST = "events lost before they were in their stream"
BEYOND = "entries without events, too many at once"


class EventsDesk:
    """Answers requests for cluster events. ``is_inbox``: whether a reply subject is allowed. ``leads``: whether this
    controller leads.
    """

    def __init__(
        self,
        node_id: str,
        connection: Client,
        subjects: Subjects,
        outgoing: Outgoing,
        is_inbox: Callable[[bytes], bool],
        leads: Callable[[], bool],
    ) -> None:
        self.trail = EventTrail()
        self.counters: Counter[str] = Counter()
        self._node_id = node_id
        self._connection = connection
        self._subjects = subjects
        self._outgoing = outgoing
        self._is_inbox = is_inbox
        self._guard = RequestGuard("events", self.counters, self._reject)
        self._leads = leads
        self._subscriptions: list[Any] = []

    async def open(self) -> None:
        """Subscribe."""
        subject = self._subjects.control_events(self._node_id)
        self._subscriptions.append(await self._connection.subscribe(subject, cb=self._guard.callback(self._asked)))

    async def close(self) -> None:
        """Unsubscribe."""
        await unsubscribe(self._subscriptions)

    def look(self) -> None:
        """Make events of the applied entries and publish them, after each tick."""
        fresh = self.trail.look(MOST_AT_ONCE)
        if self.trail.dropped:
            self.counters[BEYOND] = self.trail.dropped
        if self.trail.written is not None and (lost := self.trail.lost + self.trail.dropped):
            self.counters[LOST] = lost
        if not self._leads():
            return
        now_ns = time.time_ns()
        for event in fresh:
            if is_recent(event, now_ns):
                self._outgoing.put(self._subjects.events(event.kind), json.dumps(event.as_object()).encode())

    async def _asked(self, message: Any) -> None:
        if reply_to(message.reply, (self._is_inbox,), self.counters) is not None:
            await self._publish(message.reply, self._answer(message.data))

    async def _publish(self, reply: str | bytes, answer: bytes) -> None:
        with contextlib.suppress(nats.errors.Error, OSError):  # not connected: the asker asks again
            await publish_answer(self._connection.publish, (self._is_inbox,), self.counters, reply, answer)

    async def _reject(self, reply: bytes, error: Exception) -> None:
        await self._publish(reply, b'{"error": "the controller failed at this question, its log says why"}')

    def _answer(self, question: bytes) -> bytes:
        return json.dumps(self.told(question)).encode()

    def told(self, question: bytes) -> dict[str, Any]:
        """Return the answer to ``question``, limited to one message. ``error``: the question is invalid."""
        try:
            place, since_ns, count = asked_of(question)
        except ValueError as error:
            return {"error": f'{error}; asked for as {{"after": [index, number], "since_ns": 0, "count": {MOST_ANSWERED}}}'}
        while True:
            found = self.trail.behind(place, since_ns, count + 1)
            trail = self.trail
            said = {
                "events": [event.as_object() for event in found[:count]],
                "more": len(found) > count,
                "begins": trail.begins,
                "begins_ns": trail.begins_ns,
                "index": trail.index,
            }
            if len(json.dumps(said)) <= self._connection.max_payload or count == 1:
                return said
            count //= 2


def asked_of(question: bytes) -> tuple[tuple[int, int], int, int]:
    """``{"after": [index, number], "since_ns": wall clock, "count": 500}``, each may be left out: (place, since_ns, count). Raises
    ValueError."""
    asked = load_json(question) if question else {}
    if not isinstance(asked, dict) or not isinstance(after := asked.get("after", [0, -1]), list) or len(after) != 2:
        raise ValueError('Invalid request for events. It must be {"after": [INDEX, NUMBER]}.')
    place = whole_number(after[0], 0, 1 << 63), whole_number(after[1], -1, 1 << 31)
    since_ns = whole_number(asked.get("since_ns", 0), 0, 1 << 63)
    return place, since_ns, whole_number(asked.get("count", MOST_ANSWERED), 1, MOST_ANSWERED)
