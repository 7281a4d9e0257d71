"""A driver of its own: streams `orders` of a bucket into Parquet, and tells each batch that is done on its standard output.

python -m tests.kit.spark.stream_driver BUCKET FOLDER MASTER [--until-killed] [--lose-an-executor]
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's users write it
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark.replay.replay import SLOW_WORKER


class Reported(StreamingQueryListener):
    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        print("batch", event.progress.batchId, flush=True)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


def losing_an_executor(marker: Path, offset: int) -> int:
    """The first one that reads offset 70 is killed, with whatever else it has to do."""
    if offset == 70:
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return offset
        daemon = os.getppid()
        (executor,) = (line for line in Path(f"/proc/{daemon}/status").read_text().splitlines() if line.startswith("PPid:"))
        os.kill(int(executor.split()[1]), signal.SIGKILL)
    return offset


def main() -> None:
    bucket, folder, master, *flags = sys.argv[1:]
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.executor.memory", "600m")
        .config("spark.python.authenticate.socketTimeout", "300s")  # of a worker to start, on a busy machine
        .config("spark.local.dir", f"{folder}/local")
        .getOrCreate()
    )
    spark.streams.addListener(Reported())
    options = {"bucket": bucket, "subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
    frame = spark.readStream.format("tidelog").options(**options, minPartitions="2").load()
    if "--lose-an-executor" in flags:
        marker = Path(folder) / "lost"
        frame = frame.withColumn("offset", F.udf(lambda offset: losing_an_executor(marker, offset), "bigint")("offset"))
    write = frame.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    write = write.trigger(processingTime="0 seconds") if "--until-killed" in flags else write.trigger(availableNow=True)
    while True:
        try:
            write.start(f"{folder}/rows").awaitTermination()
        except StreamingQueryException as error:
            if SLOW_WORKER not in str(error):
                raise
        else:
            break
    spark.stop()


if __name__ == "__main__":
    main()
