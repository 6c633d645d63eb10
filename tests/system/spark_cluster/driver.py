"""The driver: ``python -m tests.system.spark_cluster.driver JSON``: batch, stream, sink, archive, audit, stats; prints what came of it.

It runs in a folder of its own, knows of liftpy's cluster a URL and of Spark's one, and nothing of where nodes keep their logs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from liftpy.spark.options import Selection, access_of
from liftpy.spark.pipelines.archive import ArchivePlan, archive, whole
from liftpy.spark.pipelines.audit import audit
from liftpy.spark.pipelines.stats import stats
from liftpy.spark.session import local_session

_TOO_SLOW, _TRIES = "Python worker failed to connect back", 5


def _where(_: int) -> tuple[int, int, str, str]:
    """Of a task: its process, the process that started it, its folder, and where it has this package from."""
    import liftpy

    return os.getpid(), os.getppid(), os.getcwd(), str(liftpy.__file__)


def _to_its_end(writing: Any, target: str, patience_s: float) -> tuple[bool, int]:
    """Whether it ended, and its last micro-batch. Spark gives a Python worker ten seconds to start: it is tried again on a machine that
    is too busy for that, and resumes from its checkpoint."""
    from pyspark.errors import StreamingQueryException

    for _ in range(_TRIES):
        query = writing.start(target)
        try:
            return query.awaitTermination(patience_s), (query.lastProgress or {}).get("batchId", -1)
        except StreamingQueryException as error:
            if _TOO_SLOW not in str(error):
                raise
    return False, -1


def main(plan: dict[str, Any]) -> dict[str, Any]:
    """All of it."""
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.cores.max": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(Path("warehouse").absolute()),
        "spark.local.dir": str(Path("local").absolute()),
        **(
            {"spark.archives": f"{plan['archive']}#environment"}
            if plan["archive"]
            else {"spark.submit.pyFiles": plan["package"]}
        ),
    }
    spark = local_session("liftpy cluster", plan["master"], settings=settings)
    found: dict[str, Any] = {"pid": os.getpid()}
    found["tasks"] = spark.sparkContext.parallelize(range(8), 8).map(_where).collect()
    found["executors"] = len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1
    reader, writer, source, target = plan["reader"], plan["writer"], plan["source"], plan["target"]

    batch = spark.read.format("liftpy").options(**reader, columns="value,offset", minPartitions="4").load(source)
    found["read"] = batch.selectExpr("count(*) as n", "sum(cast(cast(value as string) as long)) as total").first().asDict()

    live = (
        spark.readStream.format("liftpy")
        .options(**reader, startingOffsets="earliest", maxOffsetsPerTrigger="4000")
        .load(source)
    )
    writing = (
        live.selectExpr("key", "value")
        .repartition(2, "key")
        .writeStream.format("liftpy")
        .options(**writer, checkpointLocation=str(Path("checkpoint").absolute()))
        .trigger(availableNow=True)
    )
    found["ended"], found["batches"] = _to_its_end(writing, target, plan["patience_s"])

    table = plan["table"]
    found["archived"] = archive(spark, ArchivePlan(streams=(source,), table=table, source=reader, batch_records=8000))
    found["whole"] = (
        whole(spark, table, source, reader).selectExpr("count(distinct value) as n", "count(*) as held").first().asDict()
    )

    report = audit(access_of(reader), Selection((source,)), spark=spark)
    found["audit"] = report.to_json()
    measured = stats(access_of(reader), Selection((source,)), spark=spark)
    found["stats"] = {one.partition: one.measures.records for one in measured.partitions}
    spark.stop()
    return found


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(json.loads(sys.argv[1]))), flush=True)
