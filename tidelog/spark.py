"""Exports the functions for programs on Spark, beside `pyspark_tidelog`. Names load at first use: the SDK needs no PySpark.

from tidelog.spark import spark_session

spark = spark_session("a look", master="local[*]")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tidelog.import_check import ALL, check_packages

if TYPE_CHECKING:
    from spark.runtime.session import check_spark, spark_session

__all__ = ["check_spark", "spark_session"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tidelog.spark' has no attribute {name!r}")
    check_packages(*ALL)
    return getattr(importlib.import_module("spark.runtime.session"), name)


def __dir__() -> list[str]:
    return __all__
