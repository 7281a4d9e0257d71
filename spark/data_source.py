"""The data source `tidelog`, whole: what reads (source.py) and what writes (sink.py).

It is apart from both since what reads knows of no broker, and a task that reads shall not load what writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from spark.source import TidelogSource
from spark.spark_boundary import told_to_spark

if TYPE_CHECKING:
    from spark.sink import TidelogStreamWriter, TidelogWriter


class TidelogDataSource(TidelogSource):
    """Reads topics from their bucket, and writes rows into topics through their brokers: see README.md in this folder."""

    def writer(self, schema: StructType, overwrite: bool) -> TidelogWriter:
        from spark.sink import TidelogWriter

        with told_to_spark():
            return TidelogWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TidelogStreamWriter:
        from spark.sink import TidelogStreamWriter

        with told_to_spark():
            return TidelogStreamWriter(self.options, schema, overwrite=overwrite)
