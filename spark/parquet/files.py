"""Wraps a list of Parquet files in a DataFrame of Spark's own reader, without a request to the bucket until it is read.

Given as paths, Spark would ask for each file whether it is there, and start a job to list them: a quarter of an hour for 10,000
on S3. But it takes the files that a streaming query wrote from the log that this left beside them, with their sizes, and asks
nothing. So what is to be read is written as such a log, which is needed for as long as the DataFrame is being made:

    {temporary folder}/_spark_metadata/0        v1
                                                {"path":"s3a://lake/log/topics/orders/…parquet","size":1234,…}

Invariant: all of the files are read, or none: a file that is missing or damaged fails the query, whatever the session says.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from metadata.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.parquet.plan import StoredFile

READER_OPTIONS: Final = {
    "recursiveFileLookup": "true",  # the folders' names are no columns: the files have them
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "parquet.page.verify-checksum.enabled": "true",
}


class _Logged(msgspec.Struct, rename="camel"):
    """A file of Spark's file log, with the field names that Spark uses."""

    path: str
    size: int
    is_dir: bool = False
    modification_time: int = 0
    block_replication: int = 1
    block_size: int = 128 << 20
    action: str = "add"


def read_files(spark: SparkSession, files: Sequence[StoredFile], *, root: str, ddl: str, options: Mapping[str, str]) -> DataFrame:
    """`root`: the URL of the bucket's prefix as Hadoop spells it. Raises Unavailable where Spark doesn't take the list."""
    with tempfile.TemporaryDirectory(prefix="tidelog-files-") as folder:
        log = Path(folder, "_spark_metadata", "0")
        log.parent.mkdir()
        log.write_bytes(b"\n".join([b"v1", *(msgspec.json.encode(_Logged(f"{root}/{key}", size)) for key, size in files)]))
        frame = spark.read.schema(ddl).options(**READER_OPTIONS, **options).parquet(f"file://{folder}")
        taken = len(frame._jdf.inputFiles())
    if taken != len(files):
        raise Unavailable(
            f"Spark {spark.version} took {taken} of {len(files)} Parquet files from the list in {folder}",
            hint="Does its Java process see this folder, and is spark.sql.streaming.fileStreamSink.ignoreMetadata off? "
            'spark.read.format("tidelog") reads the same without it.',
        )
    return frame
