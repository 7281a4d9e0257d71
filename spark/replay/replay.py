"""Replays history: topics over a range of offsets or time, into another topic, Parquet or a table; each record once.

    first run     range ─▶ offsets, pinned ─▶ replay.json in the checkpoint
    each run      readStream of exactly these offsets ─▶ filter ─▶ writeStream from the checkpoint, batch after batch
    the end       rows that a batch query counts in the range   =   rows in the target

A replay is a bounded stream, so whatever ends it, the same command line goes on where it was, and nothing is written twice. Records
keep their keys, values, headers and timestamps. Those of a source partition are written in their order: batches follow each other,
and within one the sink keeps the order of tasks.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metadata.errors import InvalidArgument, InvalidTimestamp, OutOfRange, Rejected, TidelogError, Unavailable
from metadata.model import TopicPartition
from metadata.topics.settings import INT64_MAX
from segments.object_store.interface import ObjectStore
from segments.object_store.open import open_store
from spark.replay.plan import (
    NEW_REPLAY,
    PLAN_FILE,
    ReplayPlan,
    ReplayRequest,
    ReplayTarget,
    Verdict,
    behind,
    check_end_is_left,
    check_order,
    check_same,
    check_target_id,
    decode_plan,
    encode_plan,
    plan_of,
)
from spark.runtime.bucket_thread import BucketThread
from spark.runtime.hadoop_files import HadoopFolder, is_empty_here
from spark.sink.row_encoder import TopicFacts
from spark.sink.staged_files import Done
from spark.source import options as source_options
from spark.source import time_lookup
from spark.source.log_snapshot import PartitionSnapshot, take_snapshot
from spark.source.offset_ranges import end_offsets, offset_ranges, start_offsets, times_asked
from spark.source.options import ByPartition, Position, SourceOptions, Subscribed, Unmatched
from spark.source.scan_plan import OffsetRange
from spark.source.stream_offsets import parse_offsets
from spark.source.topic_catalog import find_partitions
from tidelog.positions import AtOffset, Earliest, Latest, SinceTimestamp, parse_start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# Of a batch: what is done again after a crash.
BATCH_OFFSETS: Final = 2_000_000
STARTS_MAX: Final = 5
# Spark gives the worker that plans a stream ten seconds to start, which is not to be set: too little on a busy machine.
SLOW_WORKER: Final = "Python worker failed to connect back"
# Kinds of tables that a stream of Spark writes as it writes folders.
FILE_TABLES: Final = frozenset({"parquet", "orc", "csv", "json", "text", "avro"})
POLL_S: Final = 1
RUN_AGAIN: Final = "Run the same command line again: it goes on from its checkpoint, and writes nothing twice."
LOST: Final = (
    "Where that is restored, the same command line goes on from its checkpoint. Else begin a new replay of what is still there:"
    " another --checkpoint and target, and a later --from."
)
# In the folder of the Parquet files, where no other is given: readers pass over names that begin so.
CHECKPOINT: Final = "_checkpoint"

log = logging.getLogger(__name__)

_OURS: Final = re.compile(r"PySparkException: (.+)")
# The remedies of the sink where its topic was made again after it had written to it, or had chosen what it writes.
_NEW_CHECKPOINT: Final = re.compile(r"Begin a new checkpoint(?: to write all rows again)?\.")
# The remedy of queries; a replay has no such option, since it would count less than it was asked for.
_PASS_OVER: Final = re.compile(r" (?:Or set|Set) failOnDataLoss to false[^.]*\.")


@dataclass(frozen=True, slots=True)
class Running:
    """The settings of one run of a replay. They may change when the replay resumes."""

    checkpoint: str
    brokers: str = ""
    # Client settings for the brokers, by name. The API key is not among them: the environment holds it.
    credentials: Mapping[str, str] = field(default_factory=dict)
    # The brokers' bucket, where it is another than the one that is read.
    staging: str = ""
    batch_offsets: int = BATCH_OFFSETS


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """The progress of a running replay."""

    # Offsets of the range that are done.
    offsets: int
    # Records read by this run.
    records: int


def target_topic(asked: ReplayRequest, running: Running) -> TopicFacts | None:
    """Returns the facts of the target topic; None for other targets. Raises Unavailable, UnknownTopic, Rejected."""
    if asked.target is not ReplayTarget.TOPIC:
        return None
    if asked.into in asked.topics and running.staging in {"", asked.bucket}:
        raise InvalidArgument(
            f"{asked.into} would be replayed into itself: each record of it would be there twice", hint="Name another."
        )
    return _ask_for_target(asked, running)


def _ask_for_target(asked: ReplayRequest, running: Running) -> TopicFacts:
    from spark.sink.options import parse_sink_options
    from spark.sink.writer import ask_brokers

    return asyncio.run(ask_brokers(parse_sink_options(_sink_options(asked, running))))[asked.into]


def check_source(asked: ReplayRequest, *, begins: bool = False) -> None:
    """Checks that the topics and the named positions exist, before the slow start of Spark.

    Does not check what may have changed since a replay began (reach of positions, new partitions): a resumed replay has its offsets
    already. `begins`: whether this replay is known to be new. Raises UnknownTopic, InvalidArgument, and what the bucket raises.
    """
    with BucketThread(asked.bucket) as bucket:
        partitions = bucket.run(lambda store: find_partitions(store, Subscribed(asked.topics)))
    options = _options(asked, partitions, now_ms=time.time_ns() // 1_000_000)
    there = {(topic, int(partition.partition)) for partition, topic in partitions.items()}
    for flag, position in (("--from", options.start), ("--to", options.end)):
        named = position.offsets if isinstance(position, source_options.AtOffsets) else {}
        unknown = {(topic, number) for topic, numbers in named.items() for number in numbers} - there
        if unknown:
            topic, number = min(unknown)
            raise InvalidArgument(
                f"{flag} names {topic}/{number}, which is no partition of {', '.join(asked.topics)}. Nothing was written",
                hint="Name each partition that is read, and no other.",
            )
    if begins:
        check_order(asked, options.start, options.end)


def check_target_here(asked: ReplayRequest, checkpoint: Path, target: Path | None) -> None:
    """Raises InvalidArgument if a new replay would write into existing files. Both paths are local."""
    inside = target is not None and checkpoint == target / CHECKPOINT
    if asked.target is ReplayTarget.PARQUET and target is not None and not is_empty_here(target, but=CHECKPOINT if inside else ""):
        raise _not_empty(asked.into)


def replay(
    spark: SparkSession,
    asked: ReplayRequest,
    running: Running,
    *,
    into: TopicFacts | None,
    began: Callable[[ReplayPlan, int], None] = lambda plan, done: None,
    report: Callable[[ReplayProgress], None] = lambda progress: None,
) -> Verdict:
    """Runs or resumes a replay to its end. `into`: from `target_topic`. `began` receives the plan and the offsets done.

    Raises InvalidArgument, Rejected and what the bucket and the brokers raise; what was refused has written nothing.
    """
    checkpoint = HadoopFolder(spark, running.checkpoint)
    plan = _planned(spark, asked, running, checkpoint, into)
    frame = _rows(spark.readStream.options(maxOffsetsPerTrigger=running.batch_offsets), plan)
    if plan.offset_count:
        began(plan, _done_before(plan, checkpoint))
        run_query(_writer(frame, plan, running), plan, report)
    return Verdict(_expected(spark, plan), _written(spark, plan, running, checkpoint))


# ── what is read ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _planned(
    spark: SparkSession, asked: ReplayRequest, running: Running, checkpoint: HadoopFolder, into: TopicFacts | None
) -> ReplayPlan:
    where = f"{checkpoint.uri}/{PLAN_FILE}"
    stored = checkpoint.read(PLAN_FILE)
    if stored is not None:
        plan = decode_plan(stored, where)
        check_same(plan, asked, checkpoint.uri)
        if into is not None:
            written_id = asyncio.run(written_topic_id(_staging(asked, running), _query_id(checkpoint), asked.into))
            check_target(plan, written_id, into, lambda: _ask_for_target(asked, running))
        return plan
    if not checkpoint.is_empty():
        raise InvalidArgument(
            f"{checkpoint.uri} is no checkpoint of a replay, and not empty. Nothing was written", hint="Give another --checkpoint."
        )
    with BucketThread(asked.bucket) as bucket:
        now_ms = time.time_ns() // 1_000_000
        snapshots, ranges = bucket.run(lambda store: resolve_range(store, asked, now_ms=now_ms))
        if into is not None:
            bucket.run(lambda store: check_dates(store, asked, into, snapshots, ranges, now_ms=now_ms))
    plan = plan_of(
        asked,
        snapshots,
        ranges,
        target_partitions=into.partition_count if into is not None else None,
        rows_before=_check_empty(spark, asked, checkpoint),
    )
    _rows(spark.read, plan)  # the filter is parsed, and its columns are looked up
    checkpoint.create(PLAN_FILE, encode_plan(plan))
    return plan


def check_target(plan: ReplayPlan, written_id: str, into: TopicFacts, ask_again: Callable[[], TopicFacts]) -> None:
    """Raises Rejected if the target topic was deleted and made again after the replay had written to it.

    `written_id`: as in `check_target_id`. `ask_again`: each answer is that of several brokers, all of which may lag at first.
    """
    from spark.sink.brokers import ANSWERS_MIN

    for _ in range(ANSWERS_MIN - 1):
        if written_id in {"", into.topic_id}:
            return
        into = ask_again()
    check_target_id(plan, written_id, into.topic_id)


async def resolve_range(
    store: ObjectStore, asked: ReplayRequest, *, now_ms: int
) -> tuple[dict[TopicPartition, PartitionSnapshot], dict[TopicPartition, OffsetRange]]:
    """Resolves the offsets as of now. Raises InvalidArgument, OutOfRange, UnknownTopic, Corrupt."""
    names = await find_partitions(store, Subscribed(asked.topics))
    options = _options(asked, names, now_ms=now_ms)
    check_order(asked, options.start, options.end)
    snapshots = await take_snapshot(store, names)
    first_at = await time_lookup.offsets_at_times(store, snapshots, times_asked(options, snapshots))
    try:
        ranges = offset_ranges(options, snapshots, first_at, lambda warning: None)
        starts, ends = start_offsets(options, snapshots, first_at, lambda warning: None), end_offsets(options, snapshots, first_at)
    except OutOfRange as error:
        message = error.message.replace("startingOffsets", "--from").replace("endingOffsets", "--to")
        raise OutOfRange(
            f"{message}. Nothing was written", hint="Give a place that is there: see `tidelog topic describe`."
        ) from None
    if any(starts[one] > ends[one] for one in starts) and all(span.start == span.end for span in ranges.values()):
        check_end_is_left(asked, snapshots, ends)
        raise behind(asked)
    return snapshots, ranges


async def check_dates(
    store: ObjectStore,
    asked: ReplayRequest,
    into: TopicFacts,
    snapshots: Mapping[TopicPartition, PartitionSnapshot],
    ranges: Mapping[TopicPartition, OffsetRange],
    *,
    now_ms: int,
) -> None:
    """Raises InvalidTimestamp if a record of the range is dated further ahead than the target topic allows.

    Not with a filter: whether it leaves such records out, only its rows tell, and those that it does not are refused when they are
    staged. Footers and manifests rule out nearly all that would have to be read. Raises Corrupt, and what the store raises, too.
    """
    latest_ms = now_ms + into.ahead_ms_max
    if asked.where or latest_ms >= INT64_MAX:
        return
    for partition, span in sorted(ranges.items()):
        snapshot = snapshots[partition]
        offset = await time_lookup.first_at(store, snapshot, latest_ms + 1, from_offset=span.start)
        if offset is not None and offset < span.end:
            raise InvalidTimestamp(
                f"offset {offset} of {snapshot} is dated too far ahead: {into.name} takes records up to {into.ahead_ms_max} ms"
                " ahead of its brokers' clocks. Nothing was written",
                hint=f"tidelog topic alter {into.name} --set message.timestamp.after.max.ms={INT64_MAX}, or leave such records out"
                " with --where.",
            )


def _options(asked: ReplayRequest, partitions: Mapping[TopicPartition, str], *, now_ms: int) -> SourceOptions:
    """Converts the request to options of the data source. Raises InvalidArgument."""
    numbers: dict[str, list[int]] = {}
    for partition, topic in partitions.items():
        numbers.setdefault(topic, []).append(partition.partition)
    return SourceOptions(
        bucket=asked.bucket,
        topics=Subscribed(asked.topics),
        start=_position("--from", asked.start, numbers, now_ms),
        end=_position("--to", asked.end, numbers, now_ms),
        unmatched=Unmatched.LATEST,
    )


def _position(flag: str, text: str, numbers: dict[str, list[int]], now_ms: int) -> Position:
    """Parses a position as `tidelog consume --from` does, or as offsets of Spark's sources: {"orders":{"0":23,"1":-2}}."""
    if text.lstrip().startswith("{"):
        parse = source_options.end_offsets if flag == "--to" else source_options.start_offsets
        try:
            return parse(text)
        except ValueError as error:
            raise InvalidArgument(
                f"{flag} {text!r} is malformed: {error}", hint='Give JSON as {"orders":{"0":23,"1":40}}.'
            ) from None
    match parse_start(text, now_ms=now_ms):
        case Earliest() if flag == "--from":
            return source_options.AtOffset(source_options.EARLIEST)
        case Latest():
            return source_options.AtOffset(source_options.LATEST)
        case SinceTimestamp(timestamp_ms):
            return source_options.AtTimestamp(timestamp_ms)
        case AtOffset(offset):
            return source_options.AtOffsets({topic: dict.fromkeys(found, offset) for topic, found in numbers.items()})
    raise InvalidArgument(
        f"{flag} {text} is no place where a replay can {'end' if flag == '--to' else 'begin'}",
        hint="Use earliest, latest, 1h (ago), 2026-01-31T12:00:00Z, @MILLISECONDS, an offset, or JSON of offsets.",
    )


def _rows(reader, plan: ReplayPlan) -> DataFrame:  # type: ignore[no-untyped-def]  # a reader of batches or of streams
    """Returns the rows of the range that pass the filter. Raises InvalidArgument for a filter that Spark refuses."""
    from pyspark.errors import AnalysisException

    frame: DataFrame = reader.format("tidelog").options(**plan.source_options()).load()
    if not plan.asked.where:
        return frame
    try:
        return frame.where(plan.asked.where)
    except AnalysisException as error:
        cause = (error.getMessage() or str(error)).split("\n")[0].split(" SQLSTATE")[0].strip()
        raise InvalidArgument(
            f"--where {plan.asked.where!r} is not a condition that Spark accepts: {cause}. Nothing was written",
            hint="An expression of Spark SQL over the columns key, value, headers, topic, partition, offset, timestamp, as "
            "\"get_json_object(cast(value as string), '$.carrier') = 'AA'\".",
        ) from None


# ── where it goes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_empty(spark: SparkSession, asked: ReplayRequest, checkpoint: HadoopFolder) -> int:
    """Checks the target of a new replay. Returns the number of rows in the target table."""
    match asked.target:
        case ReplayTarget.PARQUET:
            inside = checkpoint.uri == f"{asked.into.rstrip('/')}/{CHECKPOINT}"
            if not HadoopFolder(spark, asked.into).is_empty(but=CHECKPOINT if inside else ""):
                raise _not_empty(asked.into)
        case ReplayTarget.TABLE if spark.catalog.tableExists(asked.into):
            _check_table(spark, asked.into)
            return spark.table(asked.into).count()
        case _:
            return 0
    return 0


def _not_empty(folder: str) -> InvalidArgument:
    return InvalidArgument(
        f"{folder} is not empty. Nothing was written",
        hint="Give a folder of its own to each replay. To go on with one, give the --checkpoint that it had.",
    )


def _check_table(spark: SparkSession, name: str) -> None:
    facts = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    kinds = [fact.data_type.lower() for fact in facts if fact.col_name == "Provider"]
    if FILE_TABLES & set(kinds):
        raise InvalidArgument(
            f"the table {name} is there, and is one of {kinds[0]} files: Spark's sink would hide the rows that are in it, or lose"
            " those that come. Nothing was written",
            hint="Name a new one, or one that takes transactions, as those of Delta and Iceberg. To go on with a replay, give the"
            " --checkpoint that it had.",
        )


def _writer(frame: DataFrame, plan: ReplayPlan, running: Running) -> Callable[[], StreamingQuery]:
    asked = plan.asked
    if asked.target is ReplayTarget.TOPIC:
        columns = ["key", "value", "headers", "timestamp", *(["partition"] if plan.keeps_partitions else [])]
        frame = frame.select(*columns)
    write: DataStreamWriter = frame.writeStream.option("checkpointLocation", running.checkpoint).trigger(availableNow=True)
    match asked.target:
        case ReplayTarget.TOPIC:
            return write.format("tidelog").options(**_sink_options(asked, running)).start
        case ReplayTarget.PARQUET:
            return lambda: write.format("parquet").start(asked.into)
        case ReplayTarget.TABLE:
            return lambda: write.toTable(asked.into)


def _sink_options(asked: ReplayRequest, running: Running) -> dict[str, str]:
    from spark.sink.options import CREDENTIALS

    credentials = {option: running.credentials[name] for option, name in CREDENTIALS.items() if name in running.credentials}
    return {"brokers": running.brokers, "bucket": _staging(asked, running), "topic": asked.into, **credentials}


def _done_before(plan: ReplayPlan, checkpoint: HadoopFolder) -> int:
    """Counts the offsets of the batches that Spark's checkpoint holds as committed."""
    batches = [int(name) for name in checkpoint.names("commits") if name.isdigit()]
    offsets = checkpoint.read(f"offsets/{max(batches)}") if batches else None
    return plan.offsets_done(next_offsets(offsets.decode().splitlines()[-1])) if offsets else 0


def run_query(start: Callable[[], StreamingQuery], plan: ReplayPlan, report: Callable[[ReplayProgress], None]) -> None:
    from pyspark.errors import StreamingQueryException

    for left in reversed(range(STARTS_MAX)):
        try:
            _follow(start(), plan, report)
        except StreamingQueryException as error:
            if left == 0 or SLOW_WORKER not in str(error):
                raise _of_the_query(error) from None
            log.warning("Spark has not waited for a Python worker to start: it is started again, from the checkpoint")
        else:
            return


def _follow(query: StreamingQuery, plan: ReplayPlan, report: Callable[[ReplayProgress], None]) -> None:
    seen, records, is_over = -1, 0, False
    try:
        while not is_over:
            is_over = bool(query.awaitTermination(POLL_S))
            for progress in query.recentProgress:
                end = progress.sources[0].endOffset
                if progress.batchId > seen and end:
                    seen, records = progress.batchId, records + progress.numInputRows
                    report(ReplayProgress(plan.offsets_done(next_offsets(end)), records))
    finally:
        query.stop()


def next_offsets(text: str) -> ByPartition:
    """Parses the offsets that Spark reports for the source, by topic and partition."""
    offsets = parse_offsets(json.loads(text))
    found: dict[str, dict[int, int]] = {}
    for partition, offset in offsets.next_offsets.items():
        found.setdefault(offsets.names[partition.topic_id], {})[int(partition.partition)] = offset
    return found


def _of_the_query(error: Exception) -> TidelogError:
    """Extracts the cause from an error that Spark wraps in Python and Java tracebacks."""
    ours = _OURS.findall(str(error))
    cause = ours[-1] if ours else str(error).split("\n")[0].split(" terminated with exception: ")[-1]
    cause, lost = _PASS_OVER.subn("", cause)
    if (remedy := _NEW_CHECKPOINT.search(cause)) is not None:
        return Rejected(f"the replay was broken off: {cause[: remedy.start()].strip()}", hint=NEW_REPLAY)
    return Unavailable(f"the replay was broken off: {cause.strip()}", hint=LOST if lost else RUN_AGAIN)


# ── what is counted ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _expected(spark: SparkSession, plan: ReplayPlan) -> int:
    from spark.parquet.read import read

    given = plan.source_options()
    try:
        frame = read(spark, **given)
    except OutOfRange as error:
        raise Rejected(
            f"all was written, and could not be counted again: {error.message}", hint="Its source has lost these records since."
        ) from None
    except Rejected:  # this Spark reaches no such bucket
        return _rows(spark.read, plan).count()
    return (frame.where(plan.asked.where) if plan.asked.where else frame).count()


def _written(spark: SparkSession, plan: ReplayPlan, running: Running, checkpoint: HadoopFolder) -> int:
    asked = plan.asked
    match asked.target:
        case ReplayTarget.PARQUET:
            if HadoopFolder(spark, asked.into).is_empty(but=CHECKPOINT):
                return 0
            return spark.read.schema("offset bigint").parquet(asked.into).count()
        case ReplayTarget.TABLE:
            there = spark.table(asked.into).count() if spark.catalog.tableExists(asked.into) else 0
            return there - plan.rows_before
        case ReplayTarget.TOPIC:
            bucket, query_id = _staging(asked, running), _query_id(checkpoint)
            topic_id = asyncio.run(written_topic_id(bucket, query_id, asked.into))
            return asyncio.run(records_sent(bucket, query_id, topic_id))


def _staging(asked: ReplayRequest, running: Running) -> str:
    """Returns the bucket of the brokers that are written to."""
    return running.staging or asked.bucket


def _query_id(checkpoint: HadoopFolder) -> str:
    """Returns Spark's id of the query; empty if it has not begun."""
    metadata = checkpoint.read("metadata")
    return str(json.loads(metadata)["id"]) if metadata else ""


async def records_sent(bucket: str, query_id: str, topic_id: str) -> int:
    """Counts the records that the query has written to this topic. Those of a topic that it replaced are gone."""
    done = await _newest_done(bucket, query_id)
    return sum(count.records for count in done.total if count.topic_id == topic_id) if done is not None else 0


async def written_topic_id(bucket: str, query_id: str, topic: str) -> str:
    """Returns the id of the topic of this name that the query has written to last; empty if no batch is done."""
    done = await _newest_done(bucket, query_id)
    ids = [count.topic_id for count in (*done.total, *done.partitions) if count.topic == topic] if done is not None else []
    return ids[-1] if ids else ""


async def _newest_done(bucket: str, query_id: str) -> Done | None:
    from spark.sink.commit import newest_done
    from spark.sink.writer import write_of_query

    store = await open_store(bucket)
    try:
        return await newest_done(store, write_of_query(query_id))
    finally:
        await store.close()
