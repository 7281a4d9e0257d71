"""Converts between Spark and the data source: tasks for executors, and errors for users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql.datasource import InputPartition

from metadata.errors import TidelogError
from spark.source.scan_plan import Task


class TaskPartition(InputPartition):
    """A task in the form in which Spark sends it to an executor."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)


@contextmanager
def to_spark_error() -> Iterator[None]:
    """Converts errors to Spark's. Spark shows only an exception's message, so that holds the remedy as well."""
    try:
        yield
    except TidelogError as error:
        raise PySparkException(f"{error.message}. {error.hint}".strip()) from None
