"""The short form of ``python -m tests.fuzz.subjects``: odd requests on every subject end no node and forge nothing [A5, A15]."""

from __future__ import annotations

import pytest

from tests.fuzz.subjects import fuzz_subjects

SHORT_S = 6.0


@pytest.mark.processes
@pytest.mark.timeout(150)
def test_odd_requests_on_every_subject_end_no_node_and_forge_no_message() -> None:
    verdict = fuzz_subjects(SHORT_S, seed=3)
    assert verdict.wrong() == [], verdict.text()
    assert verdict.failed_requests == {}, "each is a defect of its handler, though the node goes on"
    assert {"jetstream", "control_admin", "service_query", "groups", "status"} <= verdict.sent.keys()
