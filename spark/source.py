"""The data source `tidelog` for Spark: `spark.read.format("tidelog")`.

Spark makes it anew in each place where it needs it, and sends tasks to executors as they are. A query holds what it was planned
with: what brokers produce and compact meanwhile does not change its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from metadata.errors import TidelogError
from spark.batch_query import plan_batch
from spark.bucket_thread import BucketThread
from spark.pushed_filters import rows_wanted
from spark.scan_plan import ALL_ROWS, Task
from spark.source_options import SourceOptions, parse_source_options
from spark.source_schema import DDL, HEADERS_DDL, arrow_schema
from spark.task_reader import read_task


class TidelogSource(DataSource):
    """Reads topics from their bucket, with every broker stopped: see README.md in this folder."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> str:
        return DDL + (HEADERS_DDL if _options(self).include_headers else "")

    def reader(self, schema: StructType) -> TidelogReader:
        with _told_to_spark():
            return TidelogReader(_options(self), schema)


class TaskPartition(InputPartition):
    def __init__(self, task: Task) -> None:
        super().__init__(task)


class TidelogReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = arrow_schema(schema.names).names
        self._rows = ALL_ROWS
        self.pushFilters = _Pushed(self)  # type: ignore[method-assign]  # see _Pushed

    def take_filters(self, filters: Iterable[Filter]) -> None:
        self._rows = rows_wanted(filters)

    def partitions(self) -> list[InputPartition]:
        with _told_to_spark(), BucketThread(self._options.bucket) as bucket:
            return [TaskPartition(task) for task in plan_batch(bucket, self._options, self._rows)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if partition is None or partition.value is None:  # Spark asks once where there is nothing to read
            return
        with _told_to_spark(), BucketThread(self._options.bucket) as bucket:
            yield from read_task(bucket, partition.value, self._columns, fail_on_data_loss=self._options.fail_on_data_loss)


class _Pushed:
    """In place of `pushFilters`: Spark 4.3 refuses a reader that has its own where spark.sql.python.filterPushdown.enabled is off.

    It tells by `__func__` whether there is one; this one looks like the default, and is called only where the switch is on.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: TidelogReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._reader.take_filters(filters)
        return filters


def _options(source: DataSource) -> SourceOptions:
    with _told_to_spark():
        return parse_source_options(source.options)


@contextmanager
def _told_to_spark() -> Iterator[None]:
    """Spark shows what an exception says, and nothing else of it: so that has to hold the remedy as well."""
    try:
        yield
    except TidelogError as error:
        raise PySparkException(f"{error.message}. {error.hint}".strip()) from None
