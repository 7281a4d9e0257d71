"""Implements batch reads of the data source: `spark.read.format("tidelog")`; streams are in stream_reader.py.

Spark creates it again in each place where it needs it, and sends tasks to executors as they are. A query holds what it was planned
with: what brokers produce and compact meanwhile does not change its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from spark.runtime.bucket_thread import BucketThread
from spark.source.batch_query import plan_batch
from spark.source.filters import rows_wanted
from spark.source.interop import TaskPartition, to_spark_error
from spark.source.options import SourceOptions, parse_source_options
from spark.source.scan_plan import ALL_ROWS
from spark.source.schema import DDL, HEADERS_DDL, arrow_schema
from spark.source.stream_reader import TidelogStreamReader
from spark.source.task_reader import read_task


class TidelogSource(DataSource):
    """Reads topics from their bucket, with every broker stopped: see README.md in this folder."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> str:
        with to_spark_error():  # whether it is a stream is not known here
            return DDL + (HEADERS_DDL if parse_source_options(self.options, stream=True).include_headers else "")

    def reader(self, schema: StructType) -> TidelogReader:
        with to_spark_error():
            return TidelogReader(parse_source_options(self.options), schema)

    def streamReader(self, schema: StructType) -> TidelogStreamReader:
        with to_spark_error():
            return TidelogStreamReader(parse_source_options(self.options, stream=True), schema)


class TidelogReader(DataSourceReader):
    """The batch reader of the data source: plans tasks on the driver, and reads them on executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = arrow_schema(schema.names).names
        self._rows = ALL_ROWS
        self.pushFilters = _Pushed(self)  # type: ignore[method-assign]  # see _Pushed

    def take_filters(self, filters: Iterable[Filter]) -> None:
        self._rows = rows_wanted(filters)

    def partitions(self) -> list[InputPartition]:
        with to_spark_error(), BucketThread(self._options.bucket) as bucket:
            return [TaskPartition(task) for task in plan_batch(bucket, self._options, self._rows)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if partition is None or partition.value is None:  # Spark asks once where there is nothing to read
            return
        with to_spark_error(), BucketThread(self._options.bucket) as bucket:
            yield from read_task(bucket, partition.value, self._columns, fail_on_data_loss=self._options.fail_on_data_loss)


class _Pushed:
    """Stands in for `pushFilters`: Spark 4.3 refuses a reader with its own where spark.sql.python.filterPushdown.enabled is off.

    Spark compares `__func__` with the default; this one looks like the default, and is called only where the switch is on.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: TidelogReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._reader.take_filters(filters)
        return filters
