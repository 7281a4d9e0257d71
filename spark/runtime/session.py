"""Starts the Spark session of commands, pipelines and the last step of the demo.

A check reports a missing part first, in one sentence with its remedy; Spark alone would print a traceback of two languages. Inside
spark-submit, or where a session is there already, that one is used.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metadata.errors import NotFound
from spark.runtime.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# On one machine; Spark's own default of 200 is for clusters, and makes each batch of a stream 200 tasks.
SHUFFLE_PARTITIONS: Final = 4
_NO_CONFIG: Final[Mapping[str, str]] = {}


def check_spark() -> None:
    """Returns where Spark can be started, with the environment prepared for it. Raises NotFound (JavaMissing)."""
    if importlib.util.find_spec("pyspark") is None:
        raise NotFound("PySpark is not installed", hint="Install it: pip install 'tidelog[spark]'")
    if _has_jvm():
        return
    java = find_java()
    if java.home is not None:
        os.environ["JAVA_HOME"] = str(java.home)


def spark_session(app_name: str, *, master: str | None = None, config: Mapping[str, str] = _NO_CONFIG) -> SparkSession:
    """Raises NotFound where there is no PySpark or no Java. `master` counts where neither spark-submit nor a session has one."""
    check_spark()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name).config("spark.sql.session.timeZone", "UTC")
    if not _has_jvm():
        _quieten()
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        if master is not None:
            builder = builder.master(master)
            if master.startswith("local"):
                os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers', else the first `python3` on the PATH
                os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else the machine's own name has to lead somewhere
                builder = builder.config("spark.sql.shuffle.partitions", str(SHUFFLE_PARTITIONS))
    for name, value in config.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _quieten() -> None:
    """Logs errors only, unless there is a configuration, which may say otherwise. PySpark as pip installs it has none."""
    if not {"SPARK_CONF_DIR", "SPARK_HOME"} & os.environ.keys():
        os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent.parent / "conf")


def _has_jvm() -> bool:
    """Returns whether a JVM is there: spark-submit starts Python with one, and a session has one."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return True
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None
