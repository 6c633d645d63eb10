"""Test the dashboard with random answers of a node: a page is built without an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from liftpy.core.observe.history import NAMES
from tests.unit.status.test_dashboard_pages import WALL_S, Clock, Cluster, a_site, body

PAGES = ("/", "/events", "/node/n1")


def places(said: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the paths of all values, nested ones included. Only the first element of a list is used."""
    if at:
        yield at
    for key in said if isinstance(said, dict) else range(min(len(said), 1)) if isinstance(said, list) else ():
        yield from places(said[key], (*at, key))


def replaced(said: Any, at: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with ``value`` at this path."""
    copy = json.loads(json.dumps(said))
    inner = copy
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return copy


class Strange(Cluster):
    """Let n1 answer with another value at one path."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value
        self.turn = -1
        """Which place, of all that are met in one look; -1: none."""
        self.met = 0
        second = int(WALL_S) - 5
        self.events = [{"time_ns": second * 10**9, "index": 1, "number": 0, "kind": "election", "stream": "s"}]
        for history in self.histories.values():
            history.add_values(second, [5.0] * len(NAMES))

    async def ask_node(self, node: str, asked: bytes, timeout_s: float) -> dict[str, Any]:
        answer = await super().ask_node(node, asked, timeout_s)
        if node != "n1":
            return answer
        for place in places(answer):
            self.met += 1
            if self.met - 1 == self.turn:
                return dict(replaced(answer, place, self.value))
        return answer


@pytest.mark.parametrize(
    "value", [10**400, [1], {"x": 1}, -1, None, "\\ud800<"], ids=["large", "list", "dict", "-1", "null", "text"]
)
async def test_dashboard_poll_with_random_values_from_a_node_never_raises(value: Any) -> None:
    cluster = Strange(value)
    turn = 0
    while True:
        cluster.turn, cluster.met = turn, 0
        clock = Clock()
        site, made = a_site(cluster, clock)
        for _ in range(2):
            for path in PAGES:
                await body(site, path)
            clock.go_on(1.0)
        assert made._task is not None
        made._task.cancel()
        if cluster.met <= turn:
            break
        turn += 13
    assert turn > 100
