"""OwnNodeReader: reads what this node holds without the way over NATS: the question goes to the partition's ``Reads``, and the answer
comes back in the event loop's next turn.

For services that run in the node's own process: beside each command, the way to the NATS server and back, twice on every replica,
was a third of what it cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from liftpy.client.consumer import PartitionReader, ReadOptions
from liftpy.client.transport import NoAnswerError, NobodyListensError, Transport
from liftpy.ids import PartitionKey
from liftpy.wire import frames
from liftpy.wire._pb import client_pb2
from liftpy.wire.subjects import Subjects
from sidecar.partition.reads import ReadSubjects

ReadsOf = Callable[[PartitionKey], ReadSubjects | None]


class OwnNodeReader(PartitionReader):
    """``reads_of``: the reads of a partition that is here."""

    def __init__(
        self, transport: Transport, subjects: Subjects, key: PartitionKey, options: ReadOptions, reads_of: ReadsOf
    ) -> None:
        super().__init__(transport, subjects, key.stream, key.partition, options)
        self._key = key
        self._reads_of = reads_of

    async def _ask(self, node: str, request: client_pb2.ReadRequest, wait_s: float) -> bytes:
        reads = self._reads_of(self._key)
        if reads is None:
            raise NobodyListensError(f"{self._key} is not here")
        timeout_s = wait_s + self.options.answer_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await reads.asked_here(frames.sealed(request))
        except TimeoutError:
            raise NoAnswerError(f"{self._key}: no answer from this node within {timeout_s:g} s") from None
