"""Spark and liftpy: read and write streams as DataFrames, archive them, replay, compact, audit.

    spark = liftpy.spark.local_session("orders")
    orders = spark.read.format("liftpy").option("nats", "nats://127.0.0.1:4222").load("orders")
    orders.select("offset", "key", "value").show()

The format ``liftpy`` needs no registration. ``OPTIONS`` lists the options for reading, ``SINK_OPTIONS`` those for writing.
``import liftpy.spark`` does not import pyspark: a name is loaded when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liftpy.spark.lag import Lag, lag, lag_listener
    from liftpy.spark.options import OPTIONS, SINK_OPTIONS, Access, Selection
    from liftpy.spark.pipelines.archive import Archived, ArchivePlan, archive, archived, start_archive, whole
    from liftpy.spark.pipelines.audit import audit
    from liftpy.spark.pipelines.audit_findings import AuditReport
    from liftpy.spark.pipelines.compact import Compacted, CompactPlan, compact
    from liftpy.spark.pipelines.replay import ReplayPlan, ShareDone, replay
    from liftpy.spark.pipelines.stats import PartitionStats, StatsReport, stats
    from liftpy.spark.session import local_session, spark_problem
    from liftpy.spark.tracing import processing

__all__ = [
    "OPTIONS",
    "SINK_OPTIONS",
    "Access",
    "ArchivePlan",
    "Archived",
    "AuditReport",
    "CompactPlan",
    "Compacted",
    "Lag",
    "PartitionStats",
    "ReplayPlan",
    "Selection",
    "ShareDone",
    "StatsReport",
    "archive",
    "archived",
    "audit",
    "compact",
    "lag",
    "lag_listener",
    "local_session",
    "processing",
    "replay",
    "spark_problem",
    "start_archive",
    "stats",
    "whole",
]
_NAMES = {
    "liftpy.spark.lag": ("Lag", "lag_listener"),
    "liftpy.spark.options": ("OPTIONS", "SINK_OPTIONS", "Access", "Selection"),
    "liftpy.spark.pipelines.archive": ("Archived", "ArchivePlan", "archive", "archived", "start_archive", "whole"),
    "liftpy.spark.pipelines.audit": ("audit",),
    "liftpy.spark.pipelines.audit_findings": ("AuditReport",),
    "liftpy.spark.pipelines.compact": ("Compacted", "CompactPlan", "compact"),
    "liftpy.spark.pipelines.replay": ("ReplayPlan", "ShareDone", "replay"),
    "liftpy.spark.pipelines.stats": ("PartitionStats", "StatsReport", "stats"),
    "liftpy.spark.session": ("local_session", "spark_problem"),
    "liftpy.spark.tracing": ("processing",),
}
"""Module -> names that it defines. ``lag`` is missing, because it is the module ``liftpy.spark.lag``, which can be called."""
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


if not TYPE_CHECKING:  # or mypy takes every name for one that is there

    def __getattr__(name: str) -> Any:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        attribute = globals()[name] = getattr(importlib.import_module(module), name)
        return attribute


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
