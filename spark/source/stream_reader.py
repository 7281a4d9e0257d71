"""Implements streaming reads of the data source: `spark.readStream.format("tidelog")`.

Spark keeps one reader in a worker on the driver as long as the query runs, and asks it in turns where the log ends (latestOffset)
and what tasks a batch has (partitions). Another one is made to read tasks, and sent to executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark.runtime.bucket_thread import BucketThread
from spark.source.interop import TaskPartition, to_spark_error
from spark.source.options import SourceOptions
from spark.source.schema import arrow_schema
from spark.source.stream_log import StreamLog
from spark.source.stream_offsets import parse_offsets
from spark.source.task_reader import read_task


class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader of the data source: plans micro-batches on the driver, and reads tasks on executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = arrow_schema(schema.names).names
        self._opened: StreamLog | None = None

    # ── on the driver ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _log(self) -> StreamLog:
        if self._opened is None:
            self._opened = StreamLog(self._options)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:
        with to_spark_error():
            return self._log.initial().as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        offsets_max = self._options.max_offsets_per_trigger
        return ReadMaxRows(offsets_max) if offsets_max else ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with to_spark_error():
            offsets_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
            return self._log.batch_end(parse_offsets(start), offsets_max).as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        newest = self._log.newest_known()
        return newest.as_json() if newest is not None else None

    def prepareForTriggerAvailableNow(self) -> None:
        with to_spark_error():
            self._log.end_here()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        with to_spark_error():
            return [TaskPartition(task) for task in self._log.tasks(parse_offsets(start), parse_offsets(end))]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Does nothing: Spark's checkpoint holds the offsets."""

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    # ── on executors ────────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with to_spark_error(), BucketThread(self._options.bucket) as bucket:
            yield from read_task(bucket, partition.value, self._columns, fail_on_data_loss=self._options.fail_on_data_loss)
