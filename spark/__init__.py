"""Runs the data pipeline on Spark: reads topics from the bucket alone and writes rows through the brokers, each once.

    data_source.py ─▶ source/ (read) | sink/ (write)      parquet/: Spark's own Parquet reader
    replay/, backfill/, pipelines/: commands on top       runtime/: sessions, Java, Hadoop's file systems

Entry: `TidelogDataSource` in data_source.py, which users reach as `format("tidelog")`.

Invariants:
- A query sees a committed prefix as of its start, with no broker running.
- A row of a streaming write appears once, however often a task or a batch is repeated.

The readers must not import tidelog, gateway or compaction.
"""

from tidelog.import_check import ALL, check_packages

# Executors import modules of this package by their names alone, beside files that were shipped to them.
check_packages(*ALL)
