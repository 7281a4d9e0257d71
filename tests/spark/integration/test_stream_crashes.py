"""A driver that is killed, and an executor that is lost: each row is in the Parquet sink once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.kit.spark.topics_on_disk import Bucket, records

pytestmark = [pytest.mark.slow, pytest.mark.own_spark, pytest.mark.timeout(900)]  # two JVMs, one after the other


@pytest.fixture
def bucket(java: None, tmp_path: Path) -> Bucket:
    made = Bucket(tmp_path / "bucket")
    made.produce(records(0, 60))
    made.compact()
    made.produce(*(records(first, 20) for first in range(60, 120, 20)))
    return made


@contextmanager
def driver(bucket: Bucket, master: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
    folder = bucket.root.with_name("stream")
    folder.mkdir(exist_ok=True)
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    with (folder / "errors").open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.spark.stream_driver", bucket.url, str(folder), master, *flags],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # it, its JVM, and what that started
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def run_to_its_end(bucket: Bucket, master: str, *flags: str) -> None:
    with driver(bucket, master, *flags) as process:
        assert process.stdout is not None
        process.stdout.read()
        assert process.wait() == 0, bucket.root.with_name("stream").joinpath("errors").read_text()[-4000:]


def offsets_in_the_sink(bucket: Bucket) -> list[int]:
    """As Spark reads it: files that a killed batch left are in no list of the sink."""
    folder = bucket.root.with_name("stream") / "rows"
    listed = set()
    for batch in sorted((folder / "_spark_metadata").iterdir()):
        if batch.name.isdigit():
            listed |= {line.split('"path":"')[1].split('"')[0] for line in batch.read_text().splitlines()[1:]}
    return sorted(offset for path in listed for offset in pq.read_table(path.removeprefix("file://"))["offset"].to_pylist())


def test_a_driver_that_is_killed_goes_on_from_its_checkpoint(bucket: Bucket) -> None:
    with driver(bucket, "local[2]", "--until-killed") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("batch 1"):
                break
        bucket.produce(records(120, 200))  # there is always a batch under way
        process.stdout.readline()
        os.killpg(process.pid, signal.SIGKILL)
    bucket.compact()
    bucket.produce(records(320, 10))
    run_to_its_end(bucket, "local[2]")
    assert offsets_in_the_sink(bucket) == list(range(330))


def test_an_executor_that_is_lost_costs_no_row_and_doubles_none(bucket: Bucket) -> None:
    run_to_its_end(bucket, "local-cluster[2,1,1024]", "--lose-an-executor")
    assert bucket.root.with_name("stream").joinpath("lost").exists()
    assert offsets_in_the_sink(bucket) == list(range(120))
