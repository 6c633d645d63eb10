"""Test components: they start in order and close in reverse order, also after errors."""

from __future__ import annotations

import pytest

from sidecar.runtime.components import Component, close_all, start_all


class Parts:
    """Three components. ``fails`` names the steps that raise."""

    def __init__(self, *fails: str) -> None:
        self.ran: list[str] = []
        self.failed: list[str] = []
        self._fails = fails
        self.all = [Component(name, self._step(f"start {name}"), self._async_step(f"close {name}")) for name in "abc"]

    def _step(self, name: str):
        def step() -> None:
            self.ran.append(name)
            if name in self._fails:
                raise OSError(name)

        return step

    def _async_step(self, name: str):
        async def step() -> None:
            self._step(name)()

        return step

    async def close(self) -> None:
        await close_all(self.all, lambda error: self.failed.append(str(error)))


async def test_node_components_start_in_order_and_close_in_reverse() -> None:
    parts = Parts()
    await start_all(parts.all)
    await parts.close()
    assert parts.ran == ["start a", "start b", "start c", "close c", "close b", "close a"]
    assert parts.failed == []


async def test_failed_start_of_a_component_closes_all_components_and_starts_no_other() -> None:
    parts = Parts("start b")
    with pytest.raises(OSError, match="start b"):
        await start_all(parts.all)
    await parts.close()
    assert parts.ran == ["start a", "start b", "close c", "close b", "close a"]


async def test_node_components_after_a_failed_close_close_the_others_and_report_the_error_at_once() -> None:
    parts = Parts("close c", "close a")
    await parts.close()
    assert parts.ran == ["close c", "close b", "close a"]
    assert parts.failed == ["close c", "close a"]
