"""The short form of ``python -m tests.system.health``: a disk that hangs, below real processes."""

from __future__ import annotations

import pytest

from tests.system.health.__main__ import table
from tests.system.powercut.cut import NoShimError

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
LIMIT_S = 1.5


@pytest.mark.long
def test_node_with_a_hanging_disk_answers_health_requests_and_reports_the_disk() -> None:
    try:
        with table({"LIFTPY_REPLICATION_HUNG_FLUSH_S": str(LIMIT_S)}) as struck:
            struck.begin()
            struck.hung(LIMIT_S, 1.5)
    except NoShimError as error:
        pytest.skip(str(error))
    assert {seen.fault: seen.wrong for seen in struck.seen if seen.wrong} == {}
