"""Test spans of a micro-batch without a Spark session: what is rejected before a record is read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.errors import ConfigError
from liftpy.spark.tracing import processing


@pytest.mark.parametrize(
    ("columns", "text"),
    [(["key", "value"], "includeHeaders"), (["headers", "value", "partition"], "no column offset"), (["headers"], "partition")],
)
def test_processing_of_a_batch_without_a_column_raises_before_it_reads_the_batch(columns: list[str], text: str) -> None:
    pytest.importorskip("opentelemetry")
    batch: Any = SimpleNamespace(columns=columns)
    with pytest.raises(ConfigError, match=text), processing(batch, "orders"):
        pass
