"""Draws: a generator of its own for each kind of fault and each party, so that one more kind changes none of the others' draws."""

from __future__ import annotations

import random


class Draws:
    """``draws["cut"]`` draws for the fault "cut" alone; the same ones for the same seed, in every process."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._kinds: dict[str, random.Random] = {}

    def __getitem__(self, kind: str) -> random.Random:
        if kind not in self._kinds:
            self._kinds[kind] = random.Random(f"{self._seed}/{kind}")
        return self._kinds[kind]


class Secrets:
    """Stands in for the module ``secrets``."""

    def __init__(self, draws: Draws) -> None:
        self._draw = draws["secrets"]

    def token_hex(self, size_bytes: int) -> str:
        return self._draw.randbytes(size_bytes).hex()

    def token_bytes(self, size_bytes: int) -> bytes:
        return self._draw.randbytes(size_bytes)

    def randbelow(self, end: int) -> int:
        return self._draw.randrange(end)
