"""The table: all features, and which of them cannot be combined."""

from __future__ import annotations

from itertools import combinations

from tests.pairs import operations, producers, readers, services, storage
from tests.pairs.feature import Feature

FEATURES: dict[str, type[Feature]] = {
    feature.name: feature for module in (storage, readers, producers, services, operations) for feature in module.FEATURES
}

INCOMPATIBLE: dict[frozenset[str], str] = {
    frozenset(("conditional", other)): f"a stream of conditional publishes takes none without a condition: {why}"
    for other, why in {
        "plain-nats": "a message without a reply subject has none",
        "producer": "batches of a producer have none",
        "repeat": "batches of a producer have none",
    }.items()
}
"""Pair -> why it makes no scenario."""


def fits(names: tuple[str, ...]) -> bool:
    """Whether these features may be combined."""
    return not any(frozenset(pair) in INCOMPATIBLE for pair in combinations(names, 2))


def combined(count: int) -> list[tuple[str, ...]]:
    """All combinations of ``count`` features that may be combined."""
    return [names for names in combinations(FEATURES, count) if fits(names)]
