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
