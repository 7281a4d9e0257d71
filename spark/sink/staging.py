"""Writes the rows of a task, as they come, to files of record batches on the bucket.

    Arrow batches ─▶ some MiB of them ─▶ record batches by partition ─▶ a file ─▶ PUT, while the next is made

Invariants: each attempt of a task writes files of its own, and nothing else: which attempt counts is chosen on the driver. A task
holds STAGE_BYTES of rows, and what is made of them, twice at most.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from metadata.errors import AlreadyExists, InvalidTimestamp, NotFound
from metadata.retry import retry_unavailable
from segments.bucket.layout import chosen_key, staged_rows_key
from segments.object_store.interface import ObjectStore
from spark.runtime.bucket_thread import BucketThread
from spark.sink.options import SinkOptions
from spark.sink.row_encoder import RowColumns, TopicFacts, check_dates, encode_rows, pieces, rows_of, topics_named
from spark.sink.staged_files import StagedFile, decode_chosen, encode_file, only_topic

# Of rows, to a file.
STAGE_BYTES = 32 << 20
# For the bucket.
PATIENCE_S = 120.0


class StagedByTask(WriterCommitMessage):
    """The message of a task to the driver: the files that it staged."""

    def __init__(self, task: int, write: str, label: str, batch: int, files: tuple[StagedFile, ...]) -> None:
        """`label`: the name of the query for people."""
        self.task = task
        self.write = write
        self.label = label
        self.batch = batch
        self.files = files


@dataclass(slots=True)
class Staging:
    """Stages the rows of one attempt of a task."""

    bucket: BucketThread
    options: SinkOptions
    topics: dict[str, TopicFacts]
    write: str
    batch: int
    files: list[StagedFile] = field(default_factory=list)
    _nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    _keyless: int = field(default_factory=lambda: secrets.randbelow(1 << 30))
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _waiting_bytes: int = 0
    _upload: Future[None] | None = None
    # Whether it is known that the rows of an earlier attempt are the batch: then nothing that is staged here is sent.
    _is_chosen: bool = False

    def stage(self, batches: Iterator[pa.RecordBatch]) -> tuple[StagedFile, ...]:
        """Raises InvalidArgument, InvalidTimestamp, UnknownTopic, UnknownPartition, TooLarge for rows; what the store raises."""
        try:
            for batch in batches:
                for piece in pieces(batch, STAGE_BYTES) if batch.num_rows else ():
                    if self._waiting_bytes and self._waiting_bytes + piece.nbytes > STAGE_BYTES:
                        self._put()
                    self._waiting.append(piece)
                    self._waiting_bytes += piece.nbytes
            if self._waiting:
                self._put()
            self._until_uploaded()
        except BaseException:
            self._take_back()
            raise
        return tuple(self.files)

    def _put(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        rows = rows_of(self._waiting, now_ms=now_ms)
        self._waiting, self._waiting_bytes = [], 0
        if self.options.topic is None:
            self._learn([name for name in topics_named(rows) if name not in self.topics])
        self._check_dates(rows, now_ms)
        self._keyless += 1
        encoded = encode_rows(rows, self.topics, topic=self.options.topic, codec=self.options.codec, first_keyless=self._keyless)
        key = staged_rows_key(self.write, self.batch, now_ms, self._nonce, len(self.files))
        file, body = encode_file(key, list(encoded))
        self._until_uploaded()
        self.files.append(file)
        self._upload = self.bucket.start(lambda store: upload(store, key, body))

    def _check_dates(self, rows: RowColumns, now_ms: int) -> None:
        """Checks timestamps as long as no attempt was chosen. A later refusal would keep a chosen batch from completion."""
        if self._is_chosen:
            return
        try:
            check_dates(rows, self.topics, topic=self.options.topic, now_ms=now_ms)
        except InvalidTimestamp:
            self._is_chosen = self.bucket.run(self._was_chosen)
            if not self._is_chosen:
                raise

    async def _was_chosen(self, store: ObjectStore) -> bool:
        """Returns whether the files of an earlier attempt are the batch, as sink/commit.py decides: for the present topic."""
        key = chosen_key(self.write, self.batch)
        if self.options.fail_on_data_loss:
            return await is_there(store, key)
        try:
            chosen = decode_chosen(await retry_unavailable(lambda: store.get(key), for_s=PATIENCE_S), key)
        except NotFound:
            return False
        former = only_topic(chosen.files)
        present = self.topics.get(former.topic) if former is not None else None
        if former is None or present is None or present.topic_id == former.topic_id:
            return True
        return await is_there(store, chosen_key(self.write, self.batch, present.topic_id))

    def _learn(self, names: list[str]) -> None:
        if not names:
            return
        from spark.sink.brokers import connected  # most tasks need no brokers: what they need, the driver has asked

        async def ask(_: ObjectStore) -> dict[str, TopicFacts]:
            async with connected(self.options.brokers, self.options.credentials) as brokers:
                return await brokers.topic_facts(names)

        self.topics |= self.bucket.run(ask)

    def _until_uploaded(self) -> None:
        if self._upload is not None:
            upload, self._upload = self._upload, None
            upload.result()

    def _take_back(self) -> None:
        """Deletes the attempt's files as far as possible. The batch's clean-up or the collector deletes the rest."""
        with contextlib.suppress(Exception):
            self._until_uploaded()
        with contextlib.suppress(Exception):
            self.bucket.run(lambda store: delete_files(store, [file.key for file in self.files]))


async def upload(store: ObjectStore, key: str, body: list[bytes]) -> None:
    async def create() -> None:
        with contextlib.suppress(AlreadyExists):  # our own file, from a create whose answer was lost: the nonce is unique
            await store.create(key, body)

    await retry_unavailable(create, for_s=PATIENCE_S)


async def is_there(store: ObjectStore, key: str) -> bool:
    try:
        await retry_unavailable(lambda: store.get(key), for_s=PATIENCE_S)
    except NotFound:
        return False
    return True


async def delete_files(store: ObjectStore, keys: list[str]) -> None:
    for key in keys:
        await store.delete(key)
