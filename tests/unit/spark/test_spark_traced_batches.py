"""Test spans of a micro-batch without a Spark session: what is rejected before a record is read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.errors import ConfigError
from liftpy.spark.tracing import processing


def test_processing_of_a_batch_without_headers_raises_before_it_reads_the_batch() -> None:
    pytest.importorskip("opentelemetry")
    batch: Any = SimpleNamespace(columns=["key", "value"])
    with pytest.raises(ConfigError, match="includeHeaders"), processing(batch, "orders"):
        pass
