"""What a Spark that a command starts says by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark.runtime.hadoop_files import CONFIGURED_BY

FAILS = """
import sys
from pyspark.errors import StreamingQueryException
from spark.runtime.session import spark_session

def fail(rows, number):
    raise ValueError("raised once")

spark = spark_session("fails", master="local[1]", config={"spark.ui.enabled": "false"})
rows = spark.readStream.format("rate").load()
query = rows.writeStream.foreachBatch(fail).trigger(once=True).option("checkpointLocation", sys.argv[1]).start()
try:
    query.awaitTermination()
except StreamingQueryException as error:
    print("raised once" in str(error))
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_failed_query_raises_its_error_and_spark_does_not_log_it_as_well(java: None, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in CONFIGURED_BY}
    done = subprocess.run(
        [sys.executable, "-c", FAILS, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.stdout == "True\n", done.stderr
    assert "ERROR" not in done.stderr
    assert "raised once" not in done.stderr
