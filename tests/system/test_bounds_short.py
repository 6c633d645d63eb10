"""The short form of ``python -m tests.system.bounds``: who would be remembered beyond a bound is refused by its name [A3, A4]."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sidecar.dev.cluster import DevCluster
from tests.system.bounds.__main__ import KINDS, default_count, reach, settings

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

BOUND_BYTES = 128 * 1024


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(3, settings=settings(BOUND_BYTES), on_line=lambda node, line: print(f"{node} | {line}")) as running:
        yield running


@pytest.mark.parametrize("kind", list(KINDS))
async def test_publish_beyond_a_memory_bound_is_rejected_with_the_name_of_the_bound(cluster: DevCluster, kind: str) -> None:
    out = await reach(cluster, kind, default_count(kind, BOUND_BYTES), BOUND_BYTES)
    assert not out.wrong, out
