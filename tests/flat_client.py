"""The base of a stand-in for a client."""

from __future__ import annotations

from typing import Any


class FlatClient:
    """A stand-in for a client that has the methods of ``client.admin`` and ``client.services`` itself."""

    @property
    def admin(self) -> Any:
        return self

    @property
    def services(self) -> Any:
        return self
