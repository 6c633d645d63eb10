"""A Spark job that reads while partitions move: ``python -m tests.system.moving.spark_reader URL STREAM FOLDER``.

A streaming query copies the stream to Parquet, from the beginning to the end. For each line ``batch`` on its standard input it reads
the whole stream once in a batch and says how many records there were, and how many different ones; for ``end`` it finishes the query
and says, as JSON, what that has written: [partition, offset, text]. An error ends it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from liftpy.spark.session import local_session

_COLUMNS = ("`partition`", "offset", "cast(value as string) as text")


def main(url: str, stream: str, folder: Path) -> None:
    """Run until ``end``."""
    settings = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    spark = local_session("liftpy moving", settings=settings)
    options = {"nats": url, "stream": stream, "startingOffsets": "earliest"}
    query = (
        spark.readStream.format("liftpy")
        .options(**options)
        .load()
        .selectExpr(*_COLUMNS)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / "out"))
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "batch":
            rows = spark.read.format("liftpy").options(**options).load().selectExpr(*_COLUMNS).collect()
            print(json.dumps([len(rows), len({(row["partition"], row["offset"]) for row in rows})]), flush=True)
        elif line.strip() == "end":
            break
        if (error := query.exception()) is not None:
            raise error
    query.processAllAvailable()
    query.stop()
    rows = spark.read.parquet(str(folder / "out")).collect()
    print(json.dumps([[row["partition"], row["offset"], row["text"]] for row in rows]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
