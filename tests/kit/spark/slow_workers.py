"""Spark gives each Python worker ten seconds to start, without a setting for it: short on a machine that tests keep busy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from pyspark.errors import PySparkException

TRIES: Final = 5
T = TypeVar("T")


def despite_slow_workers(run: Callable[[], T]) -> T:
    """Runs it again where a worker was too late. It has to be a query that may be run twice, or that goes on from a checkpoint."""
    for _ in range(TRIES - 1):
        try:
            return run()
        except PySparkException as error:
            if "failed to connect back" not in str(error):
                raise
    return run()
