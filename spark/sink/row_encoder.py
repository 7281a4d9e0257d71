"""Rows of Spark to record batches, by partition: whole columns, no loop over rows. Pure.

    columns ─▶ topic of each row ─▶ partition: asked for, else by key, else its share of those without a key ─▶ sorted ─▶ batches

Invariant: the rows of a partition keep their order. A batch has no producer yet: staged_files.py gives it one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gateway.records.partitioning import cut
from metadata.errors import InvalidArgument, InvalidTimestamp, TooLarge, UnknownPartition, UnknownTopic
from metadata.topics.settings import INT64_MAX, TimestampType
from segments.records.batch import parse_header
from segments.records.columns import HEADERS_TYPE, encode_batch
from segments.records.compression import Codec
from segments.records.partitioner import NO_PARTITION, partitions_of
from spark.sink.staged_files import StagedPartition

# Of the rows of a record batch, before they are compressed. A topic that takes less gets less.
BATCH_BYTES: Final = 512 << 10
# About what a record takes beside its columns.
ROW_BYTES_EXTRA: Final = 12
# Of a record that has none; the source gives such rows, and who writes them on keeps them so.
NO_TIMESTAMP_MS: Final = -1
# Rows without a key that stay together: they are spread over partitions in so large pieces at least.
KEYLESS_ROWS_MIN: Final = 1_000

Int64Array = npt.NDArray[np.int64]


class TopicFacts(msgspec.Struct, frozen=True):
    """The properties of a topic that a task needs."""

    name: str
    topic_id: str
    partition_count: int
    # The largest record batch that it accepts, in bytes.
    batch_bytes_max: int
    timestamp_type: TimestampType = "CreateTime"
    # Its message.timestamp.after.max.ms.
    timestamp_after_max_ms: int = INT64_MAX

    @property
    def ahead_ms_max(self) -> int:
        """Returns how far ahead rows may be dated; without limit if brokers stamp them."""
        return INT64_MAX if self.timestamp_type == "LogAppendTime" else self.timestamp_after_max_ms


class RowColumns(NamedTuple):
    """Columns of equal length, without gaps."""

    keys: pa.BinaryArray
    values: pa.BinaryArray
    timestamps_ms: Int64Array
    headers: pa.ListArray | None
    # Null: by key.
    partitions: pa.Int64Array | None
    topics: pa.StringArray | None
    size_bytes: int

    @property
    def row_count(self) -> int:
        return len(self.values)

    def ordered(self, order: Int64Array) -> RowColumns:
        rows = pa.array(order)
        return RowColumns(
            self.keys.take(rows),
            self.values.take(rows),
            self.timestamps_ms[order],
            None if self.headers is None else self.headers.take(rows),
            None if self.partitions is None else self.partitions.take(rows),
            None if self.topics is None else self.topics.take(rows),
            self.size_bytes * len(order) // max(1, self.row_count),
        )


class Encoded(NamedTuple):
    """An encoded record batch and its number of records."""

    batch: bytes
    records: int


def rows_of(batches: Sequence[pa.RecordBatch], *, now_ms: int) -> RowColumns:
    """Converts the columns that options.py admits. Raises InvalidArgument for headers or times that no record can have."""
    table = pa.Table.from_batches(batches).combine_chunks()
    columns = {name.lower(): _array(table, at) for at, name in enumerate(table.column_names)}
    count = table.num_rows
    partitions = columns.get("partition")
    return RowColumns(
        keys=_bytes(columns.get("key"), count),
        values=_bytes(columns["value"], count),
        timestamps_ms=_timestamps(columns.get("timestamp"), count, now_ms),
        headers=_headers(columns.get("headers")),
        partitions=None if partitions is None else partitions.cast(pa.int64()),
        topics=None if "topic" not in columns else columns["topic"].cast(pa.string()),
        size_bytes=table.nbytes + ROW_BYTES_EXTRA * count,
    )


def topics_named(rows: RowColumns) -> list[str]:
    """Returns the names in the column `topic`. Raises UnknownTopic for null."""
    if rows.topics is None:
        return []
    if rows.topics.null_count:
        at = pc.index(rows.topics.is_null(), True).as_py()
        raise UnknownTopic(
            f"the column topic is null in {rows.topics.null_count} of {rows.row_count} rows, in row {at} first",
            hint="Fill it in, or leave such rows out; or give the option topic.",
        )
    names: list[str] = sorted(rows.topics.unique().to_pylist())
    return names


def check_dates(rows: RowColumns, topics: Mapping[str, TopicFacts], *, topic: str | None, now_ms: int) -> None:
    """Raises InvalidTimestamp if a row is dated further ahead than its topic allows. `topic` as in `encode_rows`.

    Brokers refuse such a row, too: it would fail the batch once that is chosen to be sent, and partly written.
    """
    ahead_ms = rows.timestamps_ms - now_ms
    if ahead_ms.max(initial=0) <= 0:
        return
    names = [topic] if topic is not None else topics_named(rows)
    numbers = np.zeros(rows.row_count, np.int64)
    if len(names) > 1:
        numbers = pc.index_in(rows.topics, pa.array(names, pa.string())).to_numpy()
    limits_ms = np.array([topics[name].ahead_ms_max for name in names], np.int64)
    far = np.flatnonzero(ahead_ms > limits_ms[numbers])
    if len(far):
        name = names[numbers[far[0]]]
        at_ms, limit_ms = int(rows.timestamps_ms[far[0]]), topics[name].ahead_ms_max
        raise InvalidTimestamp(
            f"the column timestamp has {len(far)} rows too far ahead: the first, for {name}, is dated {at_ms} ms, "
            f"{at_ms - now_ms} ms ahead of the clock here; {name} takes at most {limit_ms} ms. "
            "Nothing of this batch of rows was written",
            hint="timestamp_millis(n) makes a timestamp of milliseconds; cast(n as timestamp) takes them for seconds. "
            f"If it is meant: tidelog topic alter {name} --set message.timestamp.after.max.ms={INT64_MAX}",
            timestamp_ms=at_ms,
            ahead_ms_max=limit_ms,
        )


def encode_rows(
    rows: RowColumns, topics: Mapping[str, TopicFacts], *, topic: str | None, codec: Codec, first_keyless: int
) -> Iterator[tuple[StagedPartition, list[Encoded]]]:
    """`topic`: of all rows; None: their column says it. `first_keyless`: any number, which partition gets rows without a key first.

    Raises UnknownPartition and TooLarge, which name the topic.
    """
    if topic is not None:
        yield from _encode(rows, topics[topic], codec, first_keyless)
        return
    names = topics_named(rows)
    if len(names) == 1:
        yield from _encode(rows, topics[names[0]], codec, first_keyless)
        return
    numbers = pc.index_in(rows.topics, pa.array(names, pa.string())).to_numpy()
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=len(names)))
    for name, start, end in zip(names, [0, *ends[:-1]], ends, strict=True):
        yield from _encode(rows.ordered(order[start:end]), topics[name], codec, first_keyless)


def pieces(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Slices the batch into pieces of about `bytes_max` bytes; a larger row is a piece of its own."""
    count = min(batch.num_rows, -(-batch.nbytes // bytes_max)) or 1
    for piece in range(count):
        start, end = (batch.num_rows * at // count for at in (piece, piece + 1))
        yield batch.slice(start, end - start)


def _encode(
    rows: RowColumns, topic: TopicFacts, codec: Codec, first_keyless: int
) -> Iterator[tuple[StagedPartition, list[Encoded]]]:
    partitions = _partitions(rows, topic, first_keyless)
    counts = np.bincount(partitions, minlength=topic.partition_count)
    used = np.flatnonzero(counts).tolist()
    if len(used) > 1:
        rows = rows.ordered(np.argsort(partitions, kind="stable"))
    start = 0
    for partition in used:
        end = start + int(counts[partition])
        where = StagedPartition(topic.name, topic.topic_id, partition)
        yield where, list(_batches(rows, start, end, topic, where, codec))
        start = end


def _batches(rows: RowColumns, first: int, end: int, topic: TopicFacts, where: StagedPartition, codec: Codec) -> Iterator[Encoded]:
    wanted_bytes = min(BATCH_BYTES, topic.batch_bytes_max)
    size_bytes = rows.size_bytes * (end - first) // rows.row_count
    parts = min(end - first, 1 + size_bytes // wanted_bytes)
    bounds = [first + (end - first) * at // parts for at in range(parts + 1)]
    for start, stop in pairwise(bounds):

        def encode(of: int, to: int, start: int = start) -> bytes:
            return encode_batch(
                rows.keys.slice(start + of, to - of),
                rows.values.slice(start + of, to - of),
                timestamps_ms=rows.timestamps_ms[start + of : start + to],
                headers=None if rows.headers is None else rows.headers.slice(start + of, to - of),
                codec=codec,
            )

        try:
            for batch in cut(stop - start, encode, batch_bytes_max=topic.batch_bytes_max, expected_bytes=0):
                yield Encoded(batch, parse_header(batch).record_count)
        except TooLarge as error:
            what = f"{where}: {error.message}. Nothing of this batch of rows was written"
            raise TooLarge(what, hint=error.hint, **error.details) from None


def _partitions(rows: RowColumns, topic: TopicFacts, first_keyless: int) -> Int64Array:
    if rows.partitions is not None and rows.partitions.null_count == 0:
        routed: Int64Array = rows.partitions.to_numpy()
    else:
        routed = partitions_of(rows.keys, topic.partition_count).astype(np.int64)
        keyless = np.flatnonzero(routed == NO_PARTITION)
        if len(keyless):
            groups = min(topic.partition_count, -(-len(keyless) // KEYLESS_ROWS_MIN))
            routed[keyless] = (first_keyless + np.arange(len(keyless)) * groups // len(keyless)) % topic.partition_count
        if rows.partitions is not None:
            asked = rows.partitions.is_valid().to_numpy(zero_copy_only=False)
            routed[asked] = rows.partitions.filter(pa.array(asked)).to_numpy()
    wrong = np.flatnonzero((routed < 0) | (routed >= topic.partition_count))
    if len(wrong):
        raise UnknownPartition(
            f"a row asks for partition {routed[wrong[0]]} of {topic.name}, which has 0 to {topic.partition_count - 1}. "
            "Nothing of this batch of rows was written",
            hint=f"Leave the column partition out: the key decides then; or tidelog topic alter {topic.name} --partitions N.",
        )
    return routed


# ── columns ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _array(table: pa.Table, at: int) -> pa.Array:
    column = table.column(at)
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _bytes(column: pa.Array | None, count: int) -> pa.BinaryArray:
    return pa.nulls(count, pa.binary()) if column is None else column.cast(pa.binary())


def _timestamps(column: pa.Array | None, count: int, now_ms: int) -> Int64Array:
    if column is None:
        return np.full(count, now_ms, np.int64)
    micros: Int64Array = pc.fill_null(column.cast(pa.int64()), 1000 * now_ms).to_numpy()
    before = (micros < 0) & (micros != 1000 * NO_TIMESTAMP_MS)
    if before.any():
        raise InvalidArgument(
            f"the column timestamp has {int(before.sum())} rows before 1970; records can't have such times",
            hint="Leave the column out, and keep the time in the value.",
        )
    return micros // 1000


def _headers(column: pa.Array | None) -> pa.ListArray | None:
    if column is None:
        return None
    structs = column.flatten()
    if structs.null_count or structs.field(0).null_count:
        raise InvalidArgument(
            "a header is null, or its key is; only its value may be",
            hint="filter(headers, h -> h.key is not null) leaves them out.",
        )
    return column.cast(HEADERS_TYPE)
