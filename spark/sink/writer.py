"""The sink `tidelog` for Spark: `df.write.format("tidelog")` and `df.writeStream.format("tidelog")`, each row once.

    driver     options, columns, topic: refused here, before a task starts
    executor   each attempt of a task: rows ─▶ staged files (staging.py)
    driver     commit: the files of one attempt of each task ─▶ brokers (commit.py)

A batch of a stream is known by the query's id, which its checkpoint keeps, and its number. A batch write has an id of its own, by
chance, or the option writeId.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from metadata.errors import InvalidArgument
from segments.object_store.open import open_store
from spark.runtime.bucket_thread import BucketThread
from spark.sink.options import SinkOptions, check_columns, hashed_write_id, parse_sink_options
from spark.sink.row_encoder import TopicFacts
from spark.sink.staged_files import Done, StagedFile
from spark.sink.staging import StagedByTask, Staging
from spark.source.interop import to_spark_error

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


class TidelogWriter(DataSourceArrowWriter):
    """The batch writer of the data source. The driver creates it, and tasks stage rows with it."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        """Raises what is wrong with the request, and Unavailable where no broker answers."""
        self._options = _checked(options, schema, overwrite=overwrite)
        self._write = self._options.write_id or secrets.token_hex(16)
        self._topics = asyncio.run(ask_brokers(self._options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedByTask:
        with to_spark_error():
            return staged(self._options, self._topics, iterator, self._write, f"write {self._write}", 0)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with to_spark_error():
            tasks = _of_tasks(messages)
            if tasks:
                go_on = f'Run the write again with .option("writeId", "{self._write}")'
                asyncio.run(commit(self._options, tasks, go_on=go_on, forgets=self._options.write_id is None))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with to_spark_error():
            asyncio.run(abort(self._options, messages))


class TidelogStreamWriter(DataSourceStreamArrowWriter):
    """The stream writer of the data source. It commits each micro-batch exactly once."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = _checked(options, schema, overwrite=overwrite, is_stream=True)
        self._topics: dict[str, TopicFacts] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Returns what tasks need. Spark makes a writer for each batch, and sends it to the tasks: what they need of the brokers is
        asked now, on the driver.

        It makes two more, for commit and abort, which need nothing of this.
        """
        if self._topics is None:
            with to_spark_error():
                self._topics = asyncio.run(ask_brokers(self._options))
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedByTask:
        assert self._topics is not None, "it was sent by the driver"
        with to_spark_error():
            query, batch = _property(QUERY_ID), int(_property(BATCH_ID))
            return staged(self._options, self._topics, iterator, write_of_query(query), f"query {query}", batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        with to_spark_error():
            tasks = _of_tasks(messages)
            if tasks:
                asyncio.run(commit(self._options, tasks, go_on="Run the query again from its checkpoint"))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        with to_spark_error():
            asyncio.run(abort(self._options, messages))


def write_of_query(query_id: str) -> str:
    """Returns the name of a streaming query on the bucket, from Spark's id of it: see sink/commit.py."""
    return hashed_write_id(query_id)


def staged(
    options: SinkOptions, topics: dict[str, TopicFacts], rows: Iterator[pa.RecordBatch], write: str, label: str, batch: int
) -> StagedByTask:
    """Stages the rows of a task. Opens the bucket with the first rows: many tasks of a small batch have none."""
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    files: tuple[StagedFile, ...] = ()
    first = next(rows, None)
    if first is not None:
        with BucketThread(options.bucket) as bucket:
            files = Staging(bucket, options, topics, write, batch).stage(_again(first, rows))
    return StagedByTask(task, write, label, batch, files)


async def ask_brokers(options: SinkOptions) -> dict[str, TopicFacts]:
    """Checks on the driver, before tasks start, that the brokers answer, that the topic exists, and that the bucket is theirs."""
    from spark.sink.brokers import connected  # here and below: tasks load this module, and talk to no broker

    store = await open_store(options.bucket)
    try:
        async with connected(options.brokers, options.credentials) as brokers:
            await brokers.check_bucket(store)
            return await brokers.topic_facts([] if options.topic is None else [options.topic])
    finally:
        await store.close()


async def commit(options: SinkOptions, tasks: Sequence[StagedByTask], *, go_on: str, forgets: bool = False) -> Done | None:
    """`tasks`: in their order."""
    from spark.sink.brokers import connected
    from spark.sink.commit import BatchCommit
    from spark.sink.delivery import PATIENCE_S

    first = tasks[0]
    store = await open_store(options.bucket)
    try:
        attempt = BatchCommit(
            store,
            partial(connected, options.brokers, options.credentials, patience_s=PATIENCE_S),
            first.write,
            first.batch,
            f"batch {first.batch} of {first.label}" if first.label.startswith("query") else first.label,
            go_on,
            now_ms,
            forgets=forgets,
            producer_expiry_ms=options.producer_expiry_ms,
            fails_on_loss=options.fail_on_data_loss,
        )
        return await attempt.commit([file for task in tasks for file in task.files])
    finally:
        await store.close()


async def abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Deletes the staged files if a task has delivered none: then no commit has begun.

    Spark also aborts after a failed commit. The create of its marker may still land, and the next attempt then needs the rows.
    If none comes, the collector deletes them.
    """
    tasks = _of_tasks(messages)
    if not tasks or None not in messages:
        return
    from spark.sink.commit import discard

    store = await open_store(options.bucket)
    try:
        await discard(store, tasks[0].write, tasks[0].batch, [file for task in tasks for file in task.files], now_ms=now_ms)
    finally:
        await store.close()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _checked(given: Mapping[str, str], schema: StructType, *, overwrite: bool, is_stream: bool = False) -> SinkOptions:
    options = parse_sink_options(given)
    if overwrite:
        raise InvalidArgument(
            "a topic can't be overwritten: records that others have read stay as they are. Nothing was written",
            hint='outputMode("append"), or "update".' if is_stream else 'mode("append"); `tidelog topic trim` deletes old records.',
        )
    if is_stream and options.write_id is not None:
        raise InvalidArgument("option writeId is of batch writes; a stream is known by its checkpoint", hint="Leave it out.")
    check_columns(
        [(field.name, field.dataType.simpleString()) for field in schema.fields], topic_is_given=options.topic is not None
    )
    return options


def _of_tasks(messages: Sequence[WriterCommitMessage | None]) -> list[StagedByTask]:
    return sorted((found for found in messages if isinstance(found, StagedByTask)), key=lambda found: found.task)


def _again(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _property(name: str) -> str:
    context = TaskContext.get()
    value = context.getLocalProperty(name) if context is not None else None
    if value is None:
        raise InvalidArgument(f"Spark does not tell {name} to its tasks", hint="Use PySpark 4.3, whose tasks have this property.")
    return value
