"""The base of a stand-in for a client."""

from __future__ import annotations

from typing import Any

from liftpy.errors import UnavailableError


class FlatClient:
    """A stand-in for a client that has the methods of ``client.admin`` and ``client.services`` itself."""

    @property
    def admin(self) -> Any:
        return self

    @property
    def services(self) -> Any:
        return self

    @property
    def is_connected(self) -> bool:
        return True

    async def node_ids(self) -> list[str]:
        return []

    async def node_glance(self, node_id: str, timeout_s: float = 2.0) -> Any:
        raise UnavailableError(f"{node_id} is a stand-in")

    async def ask_node(self, node_id: str, question: bytes, timeout_s: float = 2.0) -> dict[str, Any]:
        raise UnavailableError(f"{node_id} is a stand-in")

    async def note_records_read(self, node_id: str, stream: str, partition: int, query: str) -> None:
        raise UnavailableError(f"{node_id} is a stand-in")
