"""One Spark for all tests of a process: a JVM takes ten seconds of a core to start.

Nothing of Spark is imported before a test asks for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def java() -> None:
    """Skips what starts a Spark of its own where there is no Java for it."""
    from metadata.errors import NotFound
    from spark.runtime.session import check_spark
    from tidelog.demo.spark import COMPILED_QUICKLY

    try:
        check_spark()
    except NotFound as missing:
        pytest.skip(f"{missing.message}. {missing.hint}")
    os.environ.setdefault("SPARK_SUBMIT_OPTS", COMPILED_QUICKLY)  # no JVM of the tests runs long enough for more


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Tests leave its settings as they found them, and stop the streams that they start."""
    from pyspark.sql import SparkSession

    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": os.pathsep.join(sys.path)}
    here: Path = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(here / "warehouse"))
        .config("spark.local.dir", str(here / "local"))
        .config("spark.driver.memory", "1g")
        .config("spark.python.authenticate.socketTimeout", "300s")  # of a worker to start, on a busy machine
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
