"""``ClientMethods``: the methods of ``Client`` that consumers of several partitions, groups, queues and cursors call."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from liftpy.client.admin import Admin
from liftpy.client.awaitable_context import AwaitableContext
from liftpy.client.consumer import Consumer
from liftpy.client.group_admin import Groups
from liftpy.client.producer import Producer
from liftpy.client.services import Services
from liftpy.client.stream_directory import StreamDirectory
from liftpy.client.stream_info import StreamInfo


class ClientMethods(Protocol):
    """Methods of ``Client`` that a ManyConsumer, a group member, a queue worker and a cursor use."""

    admin: Admin
    groups: Groups
    services: Services
    _streams: StreamDirectory

    async def stream(self, name: str) -> StreamInfo: ...

    @property
    def consume(self) -> Callable[..., Consumer]: ...

    @property
    def publish(self) -> Callable[..., Coroutine[Any, Any, Any]]: ...

    @property
    def producer(self) -> Callable[..., AwaitableContext[Producer]]: ...
