"""Registers the data source `tidelog` with Spark, and offers the functions that users of Spark import.

    spark.read.format("tidelog")              Spark imports each module whose name begins with pyspark_
    pyspark_tidelog.read(spark, bucket=…)     the same, with Parquet through Spark's own reader

If Spark's look-up of sources cannot import one of these modules, it drops the sources of all of them, and reports only that there
is no `tidelog`. In the look-up, a source that refuses with the reason therefore stands in for one that cannot be imported.
"""

from __future__ import annotations

import sys

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource", "read"]

DefaultSource: type[DataSource]


def _refusing_source(reason: str) -> type[DataSource]:
    from pyspark.errors import PySparkException

    class RefusingSource(DataSource):
        """Tells each query why the data source cannot be imported."""

        def __init__(self, options: dict[str, str]) -> None:
            raise PySparkException(reason)

        @classmethod
        def name(cls) -> str:
            return "tidelog"

    return RefusingSource


try:
    from tidelog.import_check import ALL, check_packages

    check_packages(*ALL)
    from spark.data_source import TidelogDataSource
    from spark.parquet.read import read

    DefaultSource = TidelogDataSource
except ImportError as error:
    if "pyspark.worker_util" not in sys.modules:  # a module of Python workers, which the look-up is one of
        raise
    DefaultSource = _refusing_source(str(error))
