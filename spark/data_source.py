"""Combines the readers (source/reader.py) and writers (sink/writer.py) into the data source `tidelog`.

It is apart from both since what reads knows of no broker, and a task that reads shall not load what writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from spark.source.interop import to_spark_error
from spark.source.reader import TidelogSource

if TYPE_CHECKING:
    from spark.sink.writer import TidelogStreamWriter, TidelogWriter


class TidelogDataSource(TidelogSource):
    """Reads topics from their bucket, and writes rows into topics through their brokers: see README.md in this folder."""

    def writer(self, schema: StructType, overwrite: bool) -> TidelogWriter:
        from spark.sink.writer import TidelogWriter

        with to_spark_error():
            return TidelogWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TidelogStreamWriter:
        from spark.sink.writer import TidelogStreamWriter

        with to_spark_error():
            return TidelogStreamWriter(self.options, schema, overwrite=overwrite)
