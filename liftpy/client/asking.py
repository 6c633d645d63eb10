"""Asking: what is asked of the metadata group and of nodes, without what publishes and reads. For commands that ask once and end: a
Client loads numpy and all that records need, which takes longer than the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from liftpy.client.credentials import Credentials
from liftpy.client.node_views import NodeViews
from liftpy.client.transport import Transport, open_connection
from liftpy.wire.subjects import Subjects

if TYPE_CHECKING:
    from liftpy.client.admin import Admin


class Inquirer(NodeViews):
    """What is asked of the metadata group is loaded when it is asked: a node tells of itself without any of it."""

    def __init__(self, transport: Transport, subjects: Subjects) -> None:
        self._transport, self._subjects = transport, subjects

    @cached_property
    def _admin(self) -> Admin:  # type: ignore[override]  # it is made when it is asked for
        from liftpy.client.admin import Admin

        return Admin(self._transport, self._subjects)

    @property
    def admin(self) -> Admin:
        """What is asked of the metadata group."""
        return self._admin


@asynccontextmanager
async def asking(
    servers: str | Sequence[str], namespace: str, *, credentials: Credentials, name: str, timeout_s: float
) -> AsyncIterator[Inquirer]:
    """Connect as ``connect`` does, and close at the end. Raises UnavailableError, NotAllowedError, ConfigError."""
    connection = await open_connection(servers, credentials=credentials, name=name, timeout_s=timeout_s)
    transport = Transport(connection)
    try:
        yield Inquirer(transport, Subjects(namespace, principal=credentials.principal))
    finally:
        await transport.close()
