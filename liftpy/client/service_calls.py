"""The part of a Client that speaks to replicated services: queries and commands."""

from __future__ import annotations

from liftpy.client import calling, queries
from liftpy.client.outgoing import Address
from liftpy.client.positions import check_partition
from liftpy.client.transport import Transport
from liftpy.cluster.image import StreamImage
from liftpy.ids import check_name
from liftpy.wire.headers import HeadersLike, pairs_of
from liftpy.wire.keyed import partition_of
from liftpy.wire.subjects import Subjects


class ServiceCalls:
    """What a Client has of it."""

    _transport: Transport
    _subjects: Subjects

    async def stream(self, name: str) -> StreamImage:
        """The stream as the cluster knows it."""
        raise NotImplementedError

    async def _address(self, stream: str, partition: int, *, anew: bool) -> Address:
        """Where a partition is published to; ``anew``: as it is now, not as it was described last."""
        raise NotImplementedError

    async def query_service(
        self,
        service: str,
        query: bytes,
        *,
        partition: int | None = None,
        key: bytes | None = None,
        at_least: int | None = None,
        timeout_s: float = 5.0,
    ) -> queries.QueryAnswer:
        """What the ``on_query`` of a replicated service answers, on whichever node.

        The state holds every record that was committed before this call (linearizable); with ``at_least`` every record below that
        offset, and no leader has to be asked: the offset of a PublishAck + 1 shows what was published, 0 takes any state.
        A service over a stream of several partitions has a state for each: name ``partition``, or the ``key`` whose records the query
        is about. ``at_least`` is an offset in that partition.

        Raises QueryFailedError (what ``on_query`` raised), UnavailableError or QueryRefusedError when nobody answers in time,
        ConfigError when the service has several partitions and none is named.
        """
        return await queries.ask_for(self._transport, self._subjects, service, query, partition, key, at_least, timeout_s)

    async def call_service(
        self,
        service: str,
        stream: str,
        command: bytes,
        *,
        partition: int | None = None,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        message_id: str = "",
        timeout_s: float = 5.0,
    ) -> calling.CommandAnswer:
        """Publish a command to the stream that ``service`` reads, and return what it replies: committed, and its outputs written.

        ``partition`` None: the partition that publishers choose for ``key``, 0 without a key.

        Sent again under one ``message_id`` (a random one by default) until it is answered: a service that replies carries it out
        once, within the bounds of ``liftpy.service.replies``. Raises CommandFailedError (it was passed over), PublishRejectedError
        (not stored), UnavailableError (not stored), OutcomeUnknownError (no answer in time: ask again under the same message id).
        """
        check_name(service, "service")
        check_name(stream, "stream")
        if partition is None:
            partition = 0 if key is None else partition_of(key, len((await self.stream(stream)).partitions))
        check_partition(partition)

        async def find(anew: bool) -> Address:
            return await self._address(stream, partition, anew=anew)

        sent = calling.Command(service, stream, partition, command, key, pairs_of(headers), message_id)
        return await calling.call(self._transport, find, sent, timeout_s)
