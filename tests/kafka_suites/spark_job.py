"""A job for any PySpark: copies a source of records into Parquet files, or into another topic. It imports nothing of Tidelog.

python spark_job.py '{"source": "", "options": {}, "stream": BOOL, "sink": "", "sink_options": {}, "jars": "", "scratch": ""}'
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def main() -> None:
    job = json.loads(sys.argv[1])
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.jars", job["jars"])
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", job["scratch"])
        .config("spark.sql.warehouse.dir", f"{job['scratch']}/warehouse")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.python.authenticate.socketTimeout", "300s")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    reader = spark.readStream if job["stream"] else spark.read
    rows = reader.format(job["source"]).options(**job["options"]).load()
    rows = rows.select("key", "value") if job["sink"] == "kafka" else rows.select(*COLUMNS)
    if job["stream"]:
        query = rows.writeStream.format(job["sink"]).options(**job["sink_options"]).trigger(availableNow=True).start()
        query.awaitTermination()
    else:
        rows.write.format(job["sink"]).options(**job["sink_options"]).mode("append").save()
    spark.stop()


if __name__ == "__main__":
    main()
