"""Commands about groups and cursors, with a cluster in memory that lacks a leader."""

from __future__ import annotations

import json

import pytest

from liftpy.testing.memory import memory_cluster
from tests.unit.cli.conftest import Run


def test_group_and_cursor_show_with_an_offline_partition_show_all_positions(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands waited for the leader for 30 s and then showed nothing."""
    with memory_cluster(3) as cluster:
        cluster.serve_groups()
        with cluster.sync_client() as client:
            client.create_stream("orders", "shop.orders", partitions=2, replicas=1)
            for partition in (0, 1):
                client.publish("orders", b"x", partition=partition)
            with client.group("billing", ["orders"]) as group:
                for _ in range(2):
                    group.finished(group.take())
            with client.cursor("nightly", "orders") as cursor:
                for partition in (0, 1):
                    cursor.commit(1, partition)
            client.publish("orders", b"y", partition=1)
            cluster.kill_leader("orders", 0)
        monkeypatch.setattr("sidecar.cli.session.connect", lambda *_, **__: cluster.client())
        for words in (("group", "show", "billing"), ("cursor", "show", "nightly")):
            code, out, err = run(*words, "--json")
            shown = json.loads(out)
            positions = shown["positions"] if words[0] == "group" else shown
            assert code == 0
            assert [(row["partition"], row["position"], row["lag"]) for row in positions] == [(0, 1, None), (1, 1, 1)]
            assert "The lag of orders/0 is not known, because no leader answers" in err
