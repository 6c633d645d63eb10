"""``liftpy spark``: list of the pipelines that run on Spark. A subcommand imports ``spark_commands`` when it runs."""

from __future__ import annotations

import click

from sidecar.cli.main import LazyGroup

COMMANDS = {
    "archive": ("sidecar.cli.spark_commands", "Archive streams into a Delta or Iceberg table, each record exactly once."),
    "replay": ("sidecar.cli.spark_commands", "Write the records of a stream or an archive to another stream, each once."),
    "compact": ("sidecar.cli.spark_commands", "Write the latest record of each key to a table."),
    "audit": ("sidecar.cli.spark_commands", "Compare the records of all replicas, and print the first difference."),
    "stats": ("sidecar.cli.spark_commands", "Show rates, sizes, gaps, keys and subjects of streams over time."),
}
"""Subcommand -> (module, line in the help), as in ``sidecar.cli.main.COMMANDS``."""


@click.group(cls=LazyGroup, rows=COMMANDS, example="liftpy spark archive orders --table /data/orders --once")
def spark() -> None:
    """Archive, replay, compact, audit and measure streams with Spark, on this machine or on a cluster (--master)."""
