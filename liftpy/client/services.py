"""``Services``: call replicated services. ``client.services`` is one."""

from __future__ import annotations

from liftpy.client import service_commands, service_queries
from liftpy.client.encode_publish import Address
from liftpy.client.positions import check_partition
from liftpy.client.stream_directory import StreamDirectory
from liftpy.core.base.ids import check_name
from liftpy.core.metadata.image import StreamImage
from liftpy.core.wire.headers import HeadersLike, pairs_of
from liftpy.core.wire.partitioner import partition_of
from liftpy.errors import ConfigError


class Services:
    """Commands and queries to replicated services. ``client.services`` is one.

    Example:
        answer = await client.services.query("bank", b'{"account": "a"}')
        print(answer.value, answer.position)
    """

    def __init__(self, streams: StreamDirectory) -> None:
        self._streams = streams

    async def query(
        self,
        service: str,
        query: bytes,
        *,
        partition: int | None = None,
        key: bytes | None = None,
        at_least: int | None = None,
        timeout_s: float = 5.0,
    ) -> service_queries.QueryAnswer:
        """Send a query about the state of a replicated service.

        Any node of the service may answer. By default the state contains every record that was committed before this
        call (linearizable).

        Args:
            service: Name of the service.
            query: Bytes for ``Service.on_query``.
            partition: Partition whose instance answers. Default None: the only partition, or the one of ``key``.
            key: Query the partition that holds the records of this key. Default None.
            at_least: The state must contain all records below this offset. The service then does not ask the leader.
                Use ``ack.offset + 1`` to see your own publish, 0 for any state. Default None: linearizable.
            timeout_s: Total time to wait, in seconds. Default 5.

        Returns:
            The answer, with the offset that the state had reached and the node that answered.

        Raises:
            QueryFailedError: ``on_query`` raised an error.
            QueryRejectedError: The service cannot answer now. Retry.
            UnavailableError: No service answered in time.
            ConfigError: The service has several partitions and you named none, or you named both.

        Example:
            answer = await client.services.query("bank", b'{"account": "a"}')
            print(answer.value, answer.position)
        """
        return await service_queries.ask_for(
            self._streams.requests.transport,
            self._streams.requests.subjects,
            service,
            query,
            partition,
            key,
            at_least,
            timeout_s,
        )

    async def call(
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
    ) -> service_commands.CommandAnswer:
        """Send a command to a replicated service and wait for its reply.

        The command is a record of the stream that the service reads. When this call returns, the command is committed
        and its outputs are written. The client sends the command again with the same message id until it is answered. A
        service that replies runs it once (limits: ``liftpy.core.services.replies``).

        Args:
            service: Name of the service.
            stream: Name of the stream that the service reads.
            command: Value of the record.
            partition: Partition to publish to. Default None: the partition of ``key``, or the only partition.
            key: Key of the record. Default None.
            headers: Headers of the record. Default None.
            message_id: Id for deduplication. Default '': a random one.
            timeout_s: Total time to wait, in seconds. Default 5.

        Returns:
            The reply, with the offset of the command and the node that answered.

        Raises:
            ConfigError: The stream has several partitions. Set ``partition`` or ``key``.
            CommandFailedError: The service skipped the command.
            PublishRejectedError: The command was not stored.
            UnavailableError: The command was not stored. No node accepted it in time.
            OutcomeUnknownError: No reply in time. The command may be stored. Call again with the same ``message_id``.

        Example:
            answer = await client.services.call("bank", "commands", b'{"do": "deposit", "amount": 5}')
            print(answer.value)
        """
        check_name(service, "service")
        check_name(stream, "stream")
        if partition is not None:
            place = partition
        elif key is not None:
            place = partition_of(key, len((await self._streams.stream(stream)).partitions))
        else:
            place = _only_partition(await self._streams.cached_stream(stream, 0))
        check_partition(place)

        async def find(refresh: bool) -> Address:
            return await self._streams.address(stream, place, refresh=refresh)

        sent = service_commands.Command(service, stream, place, command, key, pairs_of(headers), message_id)
        return await service_commands.call(self._streams.requests.transport, find, sent, timeout_s)


def _only_partition(stream: StreamImage) -> int:
    if len(stream.partitions) > 1:
        raise ConfigError(
            f"Stream {stream.name} has {len(stream.partitions)} partitions, and a service has its own state in each. Name the "
            "partition (partition=, --partition) or the key of the record (key=, --key)."
        )
    return 0
