"""The walk through Spark of ``tests/examples/shop.py``, on the shared cluster and session, and the audit in executors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")
pytest.importorskip("matplotlib")

from liftpy.spark.options import Access, Selection
from liftpy.spark.pipelines.audit import audit
from liftpy.spark.pipelines.stats import stats
from sidecar.dev.cluster import DevCluster
from tests.examples.shop import LARGE, orders_of, walk

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(300)]


def test_orders_are_copied_archived_added_up_audited_and_drawn(
    spark: Any, shared_cluster: DevCluster, stream_name: str, tmp_path: Path
) -> None:
    access = Access(servers=shared_cluster.nats_url, namespace=shared_cluster.namespace)
    found = walk(spark, access, stream_name, tmp_path, tmp_path / "shop.png")
    assert found.totals == found.sold
    assert found.archived == 600
    assert found.large == [order["id"] for order in orders_of(1, 900) if order["cents"] >= LARGE]
    assert found.audited.first is None
    assert [len(one.compared) for one in found.audited.partitions] == [3, 3, 3]
    assert sum(one.measures.records for one in found.measured.partitions) == 900
    assert found.measured.streams()[0].summary()["keys"] == 4
    assert (tmp_path / "shop.png").read_bytes().startswith(b"\x89PNG")

    wanted = Selection((stream_name,))
    assert audit(access, wanted, spark=spark).to_json() == audit(access, wanted).to_json(), "executors see the same"
    assert stats(access, wanted, spark=spark).to_json() == stats(access, wanted).to_json()
