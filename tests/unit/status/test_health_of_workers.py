"""Test the synced check of a node with several processes."""

from __future__ import annotations

from liftpy.core.base.ids import PartitionKey
from liftpy.core.observe.node_health import HealthInput
from sidecar.status.health import Health

WELL = HealthInput(registered=True, nats=True, metadata_silence_s=0.1, session_s=3.0, opened=True)


def test_health_check_synced_fails_while_a_worker_process_is_not_in_sync() -> None:
    why = ["worker 2: 1 of 3 have not caught up yet"]
    health = Health(lambda: WELL, lambda: [(PartitionKey("s", "u", 0), True)], lambda: why[0])
    assert not all(check.ok for check in health.ready_checks())
    report = health.report()
    assert (report["health"], report["checks"]["synced"]) == ({"live": True, "ready": True, "synced": False}, why[0])
    why[0] = ""
    assert all(check.ok for check in health.ready_checks())
    assert health.report()["health"]["synced"]
