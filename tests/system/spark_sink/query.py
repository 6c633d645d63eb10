"""The driver: ``python -m tests.system.spark_sink.query URL SOURCE TARGET FOLDER``; runs until it is killed, or ends with an error.

The plan has a shuffle by a column that is not the key, and takes rows in two steps: their order in a task differs from run to run.
"""

from __future__ import annotations

import sys
from pathlib import Path

from liftpy.spark.session import local_session

TASKS = 4
MASTER = "local-cluster[2,1,768]"
"""Two executors, processes of their own, of one core each."""


def main(url: str, source: str, target: str, folder: Path) -> None:
    """Run the query from its checkpoint."""
    settings = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.shuffle.partitions": str(TASKS),
        "spark.executor.memory": "512m",
        "spark.task.maxFailures": "20",
        "spark.speculation": "true",
        "spark.speculation.multiplier": "1.2",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.minTaskRuntime": "200ms",
        "spark.stage.maxConsecutiveAttempts": "50",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    spark = local_session("liftpy sink", MASTER, settings=settings)
    rows = (
        spark.readStream.format("liftpy")
        .options(nats=url, startingOffsets="earliest", maxOffsetsPerTrigger="20000", minPartitions="4")
        .load(source)
    )
    query = (
        rows.repartition(TASKS + 1, "offset")
        .selectExpr("value as key", "value", "cast(cast(value as string) as long) as number")
        .repartition(TASKS, "number")
        .select("key", "value")
        .writeStream.format("liftpy")
        .options(nats=url, checkpointLocation=str(folder / "checkpoint"), queryName="sink")
        .start(target)
    )
    print("ready", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:4], Path(sys.argv[4]))
