"""Serves own snapshots in pieces to services on other nodes [``<ns>.service.<name>.snapshot.<node>``].

A snapshot that was offered stays readable for ``_HELD_S`` although the store drops its file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from liftpy.core.services.snapshot import Identity
from liftpy.core.wire import frames
from liftpy.core.wire._pb import service_pb2 as pb
from liftpy.core.wire.subjects import InboxRule, Subjects, publish_answer, reply_to
from liftpy.errors import LiftError, ProtocolError, UnavailableError
from liftpy.nats.request_guard import RequestGuard
from liftpy.nats.transport import Transport
from liftpy.service.settings import ServiceSettings
from liftpy.service.snapshot_manager import SnapshotKeeper
from liftpy.service.snapshot_store import Kept, OpenSnapshot, SnapshotStore

logger = logging.getLogger("liftpy.service")

_MAX_HELD = 8
"""Snapshots that are open at once: those that were asked for last."""
_HELD_S = 60.0
_LOOK_S = 5.0
_MAX_WAITING = 64
"""Questions; NATS drops those beyond, and who asked asks again."""


@dataclass(slots=True)
class _Held:
    kept: Kept
    file: OpenSnapshot
    used_s: float


class SnapshotGiver:
    """Snapshot server of one service process."""

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        settings: ServiceSettings,
        identity: Identity,
        store: SnapshotStore,
        keeper: SnapshotKeeper,
    ) -> None:
        self._transport = transport
        self._subject = subjects.service_snapshot(identity.service, settings.node)
        self._settings = settings
        self._identity = identity
        self._store = store
        self._keeper = keeper
        self._inboxes = InboxRule(settings.reply_prefixes)
        self.counters: Counter[str] = Counter()
        """Questions that were not answered, by reason."""
        self._guard = RequestGuard("snapshot", self.counters, self._reject)
        self._held: dict[bytes, _Held] = {}
        """Open snapshots by digest, the last used one at the end."""

    async def run(self) -> None:
        """Answer requests until it is canceled."""
        subscription = await self._transport.connection.subscribe(
            self._subject, cb=self._guard.callback(self._arrived), pending_msgs_limit=_MAX_WAITING
        )
        try:
            while True:
                await asyncio.sleep(_LOOK_S)
                now_s = time.monotonic()
                self._let_go([digest for digest, held in self._held.items() if now_s - held.used_s >= _HELD_S])
        finally:
            with contextlib.suppress(Exception):
                await subscription.unsubscribe()
            self._let_go(list(self._held))

    async def _arrived(self, message: Any) -> None:
        if reply_to(message.reply, (self._inboxes,), self.counters) is None:
            return
        try:
            question = frames.decode(message.data, pb.PeerSnapshotRequest)
        except ProtocolError as error:
            logger.debug("a question for a snapshot can't be read: %s", error)
            return
        who = self._identity
        asked = (question.service, question.stream, question.partition)
        if asked != (who.service, who.stream, who.partition):
            return  # another process of this node may be meant
        answer = pb.PeerSnapshotAnswer(node=self._settings.node)
        try:
            if question.streamUid != who.uid:
                answer.problem = f"the stream is {who.uid} here, not {question.streamUid}"
            elif question.digest:
                answer.data = await asyncio.to_thread(self._read, question)
            else:
                await asyncio.to_thread(self._offer, answer)
        except LiftError as error:
            answer.problem = f"{error.code}: {error}"
        with contextlib.suppress(LiftError):  # who asked asks again
            await self._publish(message.reply, answer)
            self._keeper.given_bytes += len(answer.data)

    async def _publish(self, reply: str | bytes, answer: pb.PeerSnapshotAnswer) -> None:
        await publish_answer(self._transport.publish, (self._inboxes,), self.counters, reply, frames.sealed(answer))

    async def _reject(self, reply: bytes, error: Exception) -> None:
        problem = f"the service failed at this question: {type(error).__name__}"
        with contextlib.suppress(LiftError):
            await self._publish(reply, pb.PeerSnapshotAnswer(node=self._settings.node, problem=problem))

    def _offer(self, answer: pb.PeerSnapshotAnswer) -> None:
        for kept in self._keeper.offers():
            if self._hold(kept) is not None:
                answer.offers.add(
                    position=kept.position, digest=kept.digest, sizeBytes=kept.size_bytes, outputCount=kept.output_count
                )

    def _read(self, question: pb.PeerSnapshotRequest) -> bytes:
        held = self._held.get(question.digest)
        if held is None:
            kept = [kept for kept in self._keeper.offers() if kept.digest == question.digest]
            held = self._hold(kept[0]) if kept else None
        if held is None:
            raise UnavailableError(f"The snapshot at offset {question.position} no longer exists. Request a newer one.")
        room = min(question.maxBytes, self._settings.snapshot_chunk_bytes, self._transport.max_payload_bytes // 2)
        if not question.start < held.kept.size_bytes:
            raise UnavailableError(
                f"The snapshot at offset {question.position} has {held.kept.size_bytes} bytes, the request is outside "
                "of it. Start the download again."
            )
        held.used_s = time.monotonic()
        return held.file.read(question.start, room)

    def _hold(self, kept: Kept) -> _Held | None:
        """Keep an offered snapshot readable, if it still exists. Beyond ``_MAX_HELD`` the oldest is released."""
        held = self._held.pop(kept.digest, None)
        if held is None:
            try:
                held = _Held(kept, self._store.open(kept.position), 0.0)
            except LiftError:
                return None
        held.used_s = time.monotonic()
        self._held[kept.digest] = held
        self._let_go(list(self._held)[:-_MAX_HELD])
        return held

    def _let_go(self, digests: list[bytes]) -> None:
        for digest in digests:
            self._held.pop(digest, None)
