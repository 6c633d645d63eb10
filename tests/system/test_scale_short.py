"""The short form of ``python -m tests.system.scale``: the same phases and gates with few partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.scale.run import Run, Sizes

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@pytest.mark.long
async def test_scale_run_with_killed_nodes_elects_leaders_of_all_partitions_within_its_limits(tmp_path: Path) -> None:
    run = Run(Sizes(partitions=60, nodes=3, per_stream=10, at_once=8, idle_s=0), tmp_path)
    missed = await run.all(("kill-one", "kill-all"))
    assert [
        gate for gate in missed if "metadata terms" not in gate
    ] == []  # votes split on a busy machine: the long form judges that
