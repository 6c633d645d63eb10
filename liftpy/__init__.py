"""liftpy: durable, replicated, replayable streams on top of plain NATS.

``liftpy`` decides (pure logic and the client library), ``sidecar`` does (the daemon). Applications import
``liftpy.client``; Spark jobs use the format ``liftpy`` (``liftpy.spark``); nothing here imports pyspark on its own.
"""

from __future__ import annotations

__version__ = "0.1.0"
