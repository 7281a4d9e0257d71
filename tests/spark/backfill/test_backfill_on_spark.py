"""Backfill compaction in a Spark of its own: executors make the files, and failures there are reported."""

from __future__ import annotations

import shutil

import pytest
from pyspark.sql import SparkSession

from metadata.errors import Unavailable
from spark.backfill.backfill import backfill, on_executors
from tests.kit.spark.made_log import MadeLog
from tests.spark.backfill.test_backfill import ALL, SMALL, log, offsets_read, offsets_written

__all__ = ["log"]

pytestmark = pytest.mark.slow


def test_executors_make_the_files_and_what_fails_there_leaves_all_as_it_was(spark: SparkSession, log: MadeLog) -> None:
    def disk_goes_away(tasks: object) -> object:
        shutil.move(log.root, log.root.with_name("away"))
        try:
            return on_executors(spark)(tasks)  # type: ignore[arg-type]  # the test's own
        finally:
            shutil.move(log.root.with_name("away"), log.root)

    with pytest.raises(Unavailable, match="a task failed on the executors: can't open file://"):
        backfill(log.url, ALL, disk_goes_away, units=2, settings=SMALL)  # type: ignore[arg-type]  # the test's own
    assert offsets_read(log) == (offsets_written(log), False)
    report = backfill(log.url, ALL, on_executors(spark), units=2, settings=SMALL)
    assert (report.manifests, report.records, report.damaged) == (3, 560, {})
    assert offsets_read(log) == (offsets_written(log), True)
