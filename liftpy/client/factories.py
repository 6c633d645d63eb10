"""What a client's publishers, producers, readers and consumers are made by: plainly, or so that they are traced.

Untraced, they are the plain classes, nothing of OpenTelemetry is loaded, and no call is longer than it would be without traces.
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
    """Untraced."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        """Of spans."""
        self.publisher: Callable[..., Publisher] = Publisher
        self.producer: Callable[..., Producer] = Producer
        self.reader: Callable[..., PartitionReader] = PartitionReader
        self.consumer: Callable[..., Consumer] = Consumer

    def handing_on(self, stream: str, partition: int) -> Callable[[BatchSlice], Iterator[BatchSlice]]:
        """What hands on the slices of a range."""
        return whole

    def around(self, stream: str, what: Record | BatchSlice, partition: int) -> AbstractContextManager[Any]:
        """Around what is done with it."""
        return nullcontext()


class Processing:
    """What a Client has of it."""

    _made_by: ClientFactories

    def processing(self, stream: str, what: Record | BatchSlice, *, partition: int = 0) -> AbstractContextManager[Any]:
        """``with client.processing("orders", record): ...``: a span ``process orders`` around what is done with a record, or with a
        slice. What is published meanwhile is of the same trace. It gives the span; None where nothing of it is traced.
        """
        return self._made_by.around(stream, what, partition)
