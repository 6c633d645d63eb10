"""Factories for the publishers, producers, readers and consumers of a Client.

A client with ``trace=...`` uses the subclass in ``liftpy.client.traced``. Other clients do not import OpenTelemetry.
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
    """Creates publishers, producers, readers and consumers without traces."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        """Counters of dropped trace spans, by kind. Always empty without traces."""
        self.publisher: Callable[..., Publisher] = Publisher
        self.producer: Callable[..., Producer] = Producer
        self.reader: Callable[..., PartitionReader] = PartitionReader
        self.consumer: Callable[..., Consumer] = Consumer

    def handing_on(self, stream: str, partition: int) -> Callable[[BatchSlice], Iterator[BatchSlice]]:
        """Return a function that yields the slices for the application from a fetched slice.

        Without traces, it yields the fetched slice itself.
        """
        return whole

    def around(self, stream: str, what: Record | BatchSlice, partition: int) -> AbstractContextManager[Any]:
        """Return the context manager of ``Client.processing``, which without traces does nothing. ``what``: record or slice."""
        return nullcontext()
