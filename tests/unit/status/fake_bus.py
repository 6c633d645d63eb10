"""A connection of a node that keeps what is sent over it."""

from __future__ import annotations

from collections.abc import Callable


class Bus:
    max_payload = 1 << 20
    unsent_bytes = 0

    def __init__(self) -> None:
        self.listening: dict[str, Callable[..., None]] = {}
        self.sent: list[tuple[str, bytes]] = []

    def listen(self, subject: str, arrived: Callable[..., None]) -> None:
        self.listening[subject] = arrived

    def send(self, subject: str, parts: tuple[bytes, ...]) -> bool:
        self.sent.append((subject, b"".join(parts)))
        return True
