"""What users of Spark import, and what lets it find the data source `tidelog` without registration:

    spark.read.format("tidelog")              Spark imports each module whose name begins with pyspark_
    pyspark_tidelog.read(spark, bucket=…)     the same, with Parquet through Spark's own reader

Where this can't be imported, Spark drops the sources of all such modules, and says only that there is no `tidelog`.
"""

from __future__ import annotations

from spark.data_source import TidelogDataSource as DefaultSource
from spark.parquet.read import read

__all__ = ["DefaultSource", "read"]
