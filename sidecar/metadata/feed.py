"""The feed over NATS: the metadata leader publishes applied entries, and other nodes follow (``liftpy.core.metadata.feed``)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import nats.errors
from nats.aio.client import Client

from liftpy.core.metadata.codec import encode_snapshot
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.feed import FeedProducer, FeedSubscription
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.decode_errors import counter_name
from liftpy.core.wire.subjects import InboxRule, Subjects, publish_answer, reply_to
from liftpy.errors import IncompatibleVersionError, LiftError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.request_guard import RequestGuard
from sidecar.metadata.control import Forwarder
from sidecar.metadata.group import MetadataGroup
from sidecar.runtime import clock
from sidecar.runtime.tasks import report_failure, spawn
from sidecar.transport.connection import BusConnection, PublishQueue, unsubscribe

_REQUEST_TIMEOUT_S = 1.0
_POLL_S = 0.05


class FeedPublisher:
    """Publishes the applied entries of the metadata log to the feed, and answers requests for missed entries.

    ``producer``: has the newest entries. ``fsm``: state machine that applies them.
    """

    def __init__(
        self,
        connection: Client,
        subjects: Subjects,
        outgoing: PublishQueue,
        producer: FeedProducer,
        fsm: ClusterFsm,
    ) -> None:
        self.producer = producer
        self.counters: Counter[str] = Counter()
        self._connection = connection
        self._subjects = subjects
        self._outgoing = outgoing
        self._inboxes = InboxRule((subjects.inboxes(),))
        self._guard = RequestGuard("feed snapshot", self.counters)
        self._fsm = fsm
        self._subscriptions: list[Any] = []

    async def start(self) -> None:
        subject = self._subjects.feed_snapshot()
        self._subscriptions.append(
            await self._connection.subscribe(subject, queue=subject, cb=self._guard.callback(self._request_arrived))
        )

    async def close(self) -> None:
        await unsubscribe(self._subscriptions)

    def publish_entry(self, entry: pb.FeedEntry) -> None:
        """Publish an entry on the feed. The order of the calls is the order of the entries."""
        self._outgoing.put(self._subjects.feed(), frames.seal(entry))

    async def _request_arrived(self, message: Any) -> None:
        if reply_to(message.reply, (self._inboxes,), self.counters) is None:
            return
        try:
            request = frames.decode(message.data, pb.FeedSnapshotRequest)
        except LiftError as error:
            self.counters[counter_name(error)] += 1
            return
        response = self.producer.answer(request)
        if response is None:
            image = self._fsm.image
            data = await asyncio.get_running_loop().run_in_executor(None, lambda: encode_snapshot(image, operations=False))
            self.producer.snapshot_is_ready(image.index, data)
            response = self.producer.answer(request)
        if response is not None:
            with contextlib.suppress(nats.errors.Error, OSError):  # not connected: the asker asks again
                publish, sealed = self._connection.publish, frames.seal(response)
                await publish_answer(publish, (self._inboxes,), self.counters, message.reply, sealed)


class FeedSubscriber(MetadataGroup):
    """Metadata group on a node that is not a controller: it follows the feed, and sends requests to the controllers."""

    def __init__(self, node_id: str, connection: BusConnection, subjects: Subjects) -> None:
        super().__init__()
        self._subscription = FeedSubscription(node_id)
        self._connection = connection
        self._subjects = subjects
        self._forwarder = Forwarder(connection, subjects, node_id)
        self._leader = ""
        self._refused: Counter[str] = Counter()
        self._lacks_entries = asyncio.Event()
        """Set when the image lacks entries, so that the node requests them."""
        self._task: asyncio.Task[None] | None = None
        self._subscriptions: list[Any] = []

    @property
    def image(self) -> ClusterImage:
        return self._subscription.image

    @property
    def leader(self) -> str:
        """Node id of the metadata leader that answered last."""
        return self._leader

    @property
    def counters(self) -> dict[str, int]:
        totals = {**self._refused, **self._forwarder.counters, "images_fetched_again": self._subscription.resync_count}
        return {what: count for what, count in totals.items() if count}

    def distrust(self) -> None:
        self._subscription.resynchronize()
        self._lacks_entries.set()

    async def start(self) -> None:
        self._subscriptions.append(await self._connection.subscribe(self._subjects.feed(), cb=self._entry_arrived))
        self._task = spawn(self._ask_for_what_is_missing(), "following the feed", endless=True)
        while not self._subscription.synced:
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """End the subscription to the feed."""
        self._forwarder.close()
        await unsubscribe(self._subscriptions)
        await end_tasks([self._task])

    def send_heartbeat(self, request: pb.ControlRequest, answered: Callable[[pb.ControlResponse], None]) -> None:
        """Send a heartbeat to the metadata leader once. ``answered``: called with the answer."""

        def arrived(response: pb.ControlResponse) -> None:
            self._leader = response.metadataLeader or self._leader
            answered(response)

        self._forwarder.send_heartbeat(request, arrived)

    async def propose(self, request: pb.ControlRequest, timeout_s: float = 5.0) -> pb.ControlResponse:
        response = await self._forwarder.request_until_decided(request, timeout_s)
        self._leader = response.metadataLeader or self._leader
        return response

    async def _entry_arrived(self, message: Any) -> None:
        try:
            entry = frames.decode(message.data, pb.FeedEntry)
        except LiftError as error:
            self._refused[counter_name(error)] += 1
            return
        before = self.image
        if self._subscription.entry_received(entry):
            self._show(before)
        if self._subscription.behind:
            self._lacks_entries.set()

    def _show(self, before: ClusterImage) -> None:
        try:
            self._notify(before, self.image)
        except Exception as error:  # nats-py, which calls this, would note it and go on
            report_failure("following the feed", error)

    async def _ask_for_what_is_missing(self) -> None:
        while True:
            request = self._subscription.request(clock.now_ns())
            if request is None:
                await self._wait_until_due()
                continue
            try:
                subject = self._subjects.feed_snapshot()
                answer = await self._connection.request(subject, frames.seal(request), timeout=_REQUEST_TIMEOUT_S)
                response = frames.decode(answer.data, pb.FeedSnapshotResponse)
                before = self.image
                changed = self._subscription.response_received(response)
            except IncompatibleVersionError:
                raise
            except LiftError as error:
                self._refused[counter_name(error)] += 1
                await asyncio.sleep(_POLL_S)
                continue
            except (nats.errors.Error, TimeoutError, OSError):
                await asyncio.sleep(_POLL_S)
                continue
            if changed:
                self._show(before)

    async def _wait_until_due(self) -> None:
        """Wait while nothing is missing, or for a part of the time until the next request may be sent."""
        if self._subscription.behind:
            await asyncio.sleep(_POLL_S)
        else:
            self._lacks_entries.clear()
            await self._lacks_entries.wait()
