"""Sends the replies of a LEADER. ``ReplyBuffer`` has the rules."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress

from liftpy.client.services import OFFSET_HEADER, SERVICE_HEADER, ReplyTooLargeError
from liftpy.core.services.queries import ERROR_HEADER, NODE_HEADER
from liftpy.core.services.replies import Reply, ReplyBuffer
from liftpy.core.wire.subjects import InboxRule, publish_answer
from liftpy.errors import ProtocolError, UnavailableError
from liftpy.nats.transport import Transport
from liftpy.service.instance import ServiceInstance
from liftpy.service.settings import ServiceSettings

logger = logging.getLogger("liftpy.service")

_CHECK_INTERVAL_S = 0.002
_IDLE_CHECK_S = 30.0
"""Interval of checks in seconds when no event wakes the sender."""
_SHORT_BYTES = 1000
"""Maximum size of the text of an error that is sent instead of a reply that is too large, in bytes."""
_MAX_TURN = 256
"""Maximum number of replies in one turn of the event loop."""


class Replier:
    """Sends the replies of a LEADER to the senders of the commands."""

    def __init__(self, transport: Transport, settings: ServiceSettings, buffer: ReplyBuffer, instance: ServiceInstance) -> None:
        self._transport = transport
        self._settings = settings
        self._buffer = buffer
        self._instance = instance
        self._inboxes = InboxRule(settings.reply_prefixes)
        self._wake_event = asyncio.Event()
        self.counters: Counter[str] = Counter()
        self.refused_count = 0
        """Number of replies that were not sent, because the subject is no inbox or the reply is too large."""

    def wake(self) -> None:
        """Let ``run`` check for replies to send now, because there is a new one or the role has changed."""
        if self._instance.leads:
            self._wake_event.set()

    async def run(self) -> None:
        """Send the stored replies while this service is LEADER, forever."""
        self._buffer.on_answer_added = self.wake
        while True:
            self._wake_event.clear()
            sent = 0
            while (
                self._instance.leads
                and sent < _MAX_TURN
                and (reply := self._buffer.next(self._instance.emitted_end)) is not None
            ):
                try:
                    await self._send(reply)
                except UnavailableError:
                    break
                self._buffer.record_sent(reply)
                sent += 1
            if sent:
                await asyncio.sleep(0)
            elif self._instance.leads and len(self._buffer):  # the outputs of its record are not written yet
                await asyncio.sleep(_CHECK_INTERVAL_S)
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake_event.wait(), _IDLE_CHECK_S)

    async def _send(self, reply: Reply) -> None:
        """Send one reply to the inbox of the command's sender. Raises UnavailableError if it must be sent again later."""
        headers = {SERVICE_HEADER: self._settings.service, OFFSET_HEADER: str(reply.offset), NODE_HEADER: self._settings.node}
        if reply.error:
            headers[ERROR_HEADER] = reply.error
        try:
            publish, rules = self._transport.publish, (self._inboxes,)
            is_sent = await publish_answer(publish, rules, self.counters, reply.to or "", reply.value, headers)
        except ProtocolError:
            why = f"the reply of {len(reply.value)} bytes is larger than this NATS server accepts"
            headers.setdefault(ERROR_HEADER, ReplyTooLargeError.code)
            text = reply.value[:_SHORT_BYTES] if reply.error else why.encode()
            with suppress(ProtocolError):
                await publish_answer(publish, rules, self.counters, reply.to or "", text, headers)
            self._refuse(reply, why)
        else:
            if not is_sent:
                self._refuse(reply, "the reply subject is not an inbox")

    def _refuse(self, reply: Reply, why: str) -> None:
        self.refused_count += 1
        if self.refused_count == 1:
            logger.warning(
                "reply not sent service=%s offset=%d to=%r reason=%s", self._settings.service, reply.offset, reply.to, why
            )
