"""Factories of a Client for publishers, producers, readers and consumers, with or without traces.

Without traces, the plain classes are used, and OpenTelemetry is not imported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from liftpy.client.batch_view import BatchSlice
from liftpy.client.consumer import Consumer, PartitionReader
from liftpy.client.iteration import whole
from liftpy.client.producer import Producer
from liftpy.client.publisher import Publisher
from liftpy.core.wire.batch import Record


class ClientFactories:
    """Creates the plain classes, without traces."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        """Counters of spans, by kind."""
        self.publisher: Callable[..., Publisher] = Publisher
        self.producer: Callable[..., Producer] = Producer
        self.reader: Callable[..., PartitionReader] = PartitionReader
        self.consumer: Callable[..., Consumer] = Consumer

    def handing_on(self, stream: str, partition: int) -> Callable[[BatchSlice], Iterator[BatchSlice]]:
        """Return the function that unfolds the slices of a range."""
        return whole

    def around(self, stream: str, what: Record | BatchSlice, partition: int) -> AbstractContextManager[Any]:
        """Return a context manager for processing a record or a slice."""
        return nullcontext()


class Processing:
    """Method of Client that traces processing."""

    _made_by: ClientFactories

    def processing(self, stream: str, what: Record | BatchSlice, *, partition: int = 0) -> AbstractContextManager[Any]:
        """Create a span ``process STREAM`` around the processing of a record or slice.

        Messages that you publish inside the block belong to the same trace.

        Args:
            stream: Name of the stream.
            what: The record or the slice.
            partition: Number of the partition. Default 0.

        Returns:
            A context manager. It yields the span, or None if this record is not traced.

        Example:
            async for record in client.consume("orders"):
                with client.processing("orders", record):
                    print(record.value)
        """
        return self._made_by.around(stream, what, partition)
