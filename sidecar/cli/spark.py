"""``liftpy spark``: pipelines that run on Spark. A command's module is imported only when it is called."""

from __future__ import annotations

import click

from sidecar.cli.main import LazyGroup

COMMANDS = {
    "archive": ("sidecar.cli.spark_archive", "Archive streams into a table of Parquet files, each record once."),
    "replay": ("sidecar.cli.spark_replay", "Write a stream's records, or an archive's, to another stream, each once."),
    "compact": ("sidecar.cli.spark_compact", "Make a table of the latest record of each key."),
    "audit": ("sidecar.cli.spark_audit", "Compare what all replicas of streams hold; say where they first differ."),
    "stats": ("sidecar.cli.spark_stats", "Show rates, sizes, gaps, keys and subjects of streams over time; draw them."),
}
"""As those of ``liftpy``."""


@click.group(cls=LazyGroup, rows=COMMANDS)
def spark() -> None:
    """Pipelines over streams on Spark: here, or on a cluster (--master)."""
