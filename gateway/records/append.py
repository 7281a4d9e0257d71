"""What every door does to produce: find the topic, check, append, wait for the outcome.

    target ─▶ check_ready_batch, or a batch of our own making ─▶ check_dates
           ─▶ append (at once, in order) ─▶ await_outcomes (by acks, up to a deadline)

Invariants: everything that can be wrong with a request is found before its first batch is appended, but for what only leaders know:
whether a batch is a repeat, and what follows from it. Once a batch of a partition was refused, no later batch of the same request
goes to that partition, so that order holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, Protocol

from gateway.access.authorization import check_topic
from gateway.concurrency.offload import BoundedExecutor, LoopYielder
from gateway.routing.log_service import LogService, Pending
from gateway.settings import GatewaySettings
from gateway.telemetry.request_context import current_call, note_topic
from gateway.topics.names import named
from metadata.errors import (
    InvalidRecord,
    InvalidTimestamp,
    NoLeader,
    OutcomeUnknown,
    SessionFenced,
    Throttled,
    TidelogError,
    TooLarge,
    UnknownTopic,
)
from metadata.model import NO_PRODUCER, TopicPartition, check_topic_name
from metadata.topics.cache import TopicCache
from metadata.topics.settings import INT64_MAX
from metadata.topics.topic import Topic
from segments.byte_budget import Admission
from segments.deadline import Deadline
from segments.log.append_result import UnverifiedRejection, resolve_all
from segments.log.session_log import Acks, PendingAppend
from segments.object_store.health_tracking import StoreTrouble
from segments.object_store.interface import Buffer
from segments.partition.partition_log import Appended, TimestampPolicy, dated_too_far_ahead
from segments.partition.producer_state import ONE_SHOT
from segments.records.batch import check_produced, parse_header
from segments.records.compression import Codec
from segments.records.header import BatchHeader

# A compressed batch above this is checked in a thread.
THREAD_BYTES: Final = 8 << 10
# And a shorter one that opens to more: two kilobytes of zstd may open to 60 MiB.
OPENED_AT_ONCE_BYTES: Final = 64 << 10

# Upper bound for a look at the metadata store, for a topic or a partition that this broker does not know.
LOOK_UP_S: Final = 1.0

Outcome = Appended | TidelogError


class AppendLimits(Protocol):
    """The topics and the settings that bound an append, and why the bucket takes no writes while it takes none."""

    @property
    def topic_cache(self) -> TopicCache: ...
    @property
    def settings(self) -> GatewaySettings: ...
    @property
    def bucket_trouble(self) -> StoreTrouble | None: ...


class AppendTarget(NamedTuple):
    """A topic as a producer meets it."""

    topic: Topic
    # The lesser of the topic's max.message.bytes and the broker's message_bytes_max.
    batch_bytes_max: int
    log_append_time: bool
    # How far ahead of a broker's clock records may be dated: message.timestamp.after.max.ms. None: brokers date them.
    ahead_ms_max: int | None
    broker_bytes_max: int

    def timestamp_ms_max(self) -> int | None:
        """The latest date that is taken now; None: any."""
        return None if self.ahead_ms_max is None else time.time_ns() // 1_000_000 + self.ahead_ms_max

    @property
    def larger_batches_hint(self) -> str:
        """Which setting to raise."""
        if self.batch_bytes_max < self.broker_bytes_max:
            example = f"tidelog topic alter {self.topic.name} --set max.message.bytes={self.broker_bytes_max}"
            return f"Send less in one record or batch, or raise the topic's max.message.bytes: {example}"
        return (
            f"Send less in one record or batch, or restart the broker with more than --message-bytes-max {self.broker_bytes_max}, "
            f"then raise max.message.bytes of the topic {self.topic.name}."
        )


class CheckedBatch(NamedTuple):
    """A batch that was checked, on its way to its partition."""

    partition: TopicPartition
    batch: Buffer
    header: BatchHeader


def topic_named(broker: AppendLimits, name: str) -> Topic:
    """From the cache. NotAuthorized, UnknownTopic, InvalidName, Unavailable."""
    check_topic(name)
    try:
        return broker.topic_cache.get(name)
    except UnknownTopic:
        check_topic_name(name)
        raise


def target_named(broker: AppendLimits, name: str) -> AppendTarget:
    topic = topic_named(broker, name)
    note_topic(topic.name)
    settings = broker.topic_cache.settings(topic.id)
    batch_bytes_max = min(settings.max_message_bytes, broker.settings.message_bytes_max)
    log_append_time = settings.message_timestamp_type == "LogAppendTime"
    return AppendTarget(
        topic,
        batch_bytes_max,
        log_append_time,
        None if log_append_time else settings.message_timestamp_after_max_ms,
        broker.settings.message_bytes_max,
    )


async def target_known(broker: AppendLimits, name: str, *, deadline_s: float) -> AppendTarget:
    """As target_named. A topic that this broker does not know is looked up in the metadata store: it may have been created through
    another broker a moment ago."""
    try:
        return target_named(broker, name)
    except UnknownTopic:
        return await target_caught_up(broker, name, deadline_s=deadline_s)


async def target_caught_up(broker: AppendLimits, name: str, *, deadline_s: float) -> AppendTarget:
    """As target_named, once this broker knows what the metadata store held of the topic when this was called.

    Raises Unavailable where that is not known in time: a client must not take it for a missing topic or partition.
    """
    check_topic(name)
    check_topic_name(name)
    left_s = deadline_s - asyncio.get_running_loop().time()
    await broker.topic_cache.catch_up(name, timeout_s=max(0.0, min(LOOK_UP_S, left_s)))
    return target_named(broker, name)


@contextmanager
def limit_named(target: AppendTarget) -> Iterator[None]:
    """A batch that is TooLarge for the target is told with the setting that says so."""
    try:
        yield
    except TooLarge as error:
        if error.details.get("bytes_max") == target.batch_bytes_max:
            error.hint = target.larger_batches_hint
        raise


def told_with_trouble(error: TidelogError, broker: AppendLimits) -> TidelogError:
    """The error with the reason, where records wait because the bucket takes no writes."""
    trouble = broker.bucket_trouble
    if trouble is not None and isinstance(error, OutcomeUnknown | Throttled | NoLeader | SessionFenced):
        error.message = f"{error.message} ({trouble.message})"
        error.hint = f"{trouble.hint} {error.hint}".strip()
    return error


async def check_ready_batch(
    batch: Buffer, *, batch_bytes_max: int, decompressed_bytes_max: int, threads: BoundedExecutor, is_forwarded: bool = False
) -> BatchHeader:
    """InvalidRecord, TooLarge: see record_batch.check_produced. Here at once, or in one of `threads` where it takes long.

    Only what a broker forwards may stand for an Idempotency-Key.
    """

    def check(opened_bytes_max: int = decompressed_bytes_max) -> BatchHeader:
        return check_produced(batch, message_bytes_max=batch_bytes_max, decompressed_bytes_max=opened_bytes_max)

    if len(batch) > batch_bytes_max or parse_header(batch).codec is Codec.NONE:
        header = check()  # refused unread, or one pass of compiled code
    elif len(batch) > THREAD_BYTES:
        header = await threads.run(check)
    else:
        try:
            header = check(min(OPENED_AT_ONCE_BYTES, decompressed_bytes_max))
        except TooLarge:
            header = await threads.run(check)
    if header.producer_id >= ONE_SHOT and not is_forwarded:
        raise InvalidRecord(
            f"producer id {header.producer_id} is of those that stand for an Idempotency-Key",
            hint="Take a producer id from the broker: POST /v1/producers, or InitProducer.",
        )
    return header


def check_dates(batches: Iterable[CheckedBatch], target: AppendTarget, *, written: Container[TopicPartition] = ()) -> None:
    """InvalidTimestamp where a record is dated further ahead than its topic takes: then nothing of `batches` is appended.

    Not of what may be a repeat, which is told where it lies whatever its date: that is decided by the leader (see `append`), or was
    decided where it is in one of the partitions that an Idempotency-Key has `written`.
    """
    newest_ms = target.timestamp_ms_max()
    for partition, _, header in batches:
        if not (newest_ms is None or header.max_timestamp <= newest_ms or _leader_decides(header) or partition in written):
            raise _told_of_topic(dated_too_far_ahead(partition, header.max_timestamp, newest_ms), target)


def _leader_decides(header: BatchHeader) -> bool:
    """Whether only the leader knows if the batch is a repeat."""
    return NO_PRODUCER < header.producer_id < ONE_SHOT


def _told_of_topic(error: TidelogError, target: AppendTarget) -> TidelogError:
    """The error with the topic's name, and the command that changes what it takes."""
    topic = target.topic
    refusal = error.rejection if isinstance(error, UnverifiedRejection) else error
    if isinstance(refusal, InvalidTimestamp):
        refusal.hint = (
            f"{InvalidTimestamp.default_hint} {topic.name} takes what is dated at most {target.ahead_ms_max} ms ahead of the "
            f"broker's clock; whatever the date: tidelog topic alter {topic.name} --set message.timestamp.after.max.ms={INT64_MAX}"
        )
    if refusal is not error:
        named(refusal, topic)
    return named(error, topic)


def append(
    log: LogService,
    target: AppendTarget,
    batches: Sequence[CheckedBatch],
    admission: Admission,
    *,
    acks: Acks,
    deadline_s: float,
    expected_offset: int | None = None,
    continues: bool = False,
) -> list[Pending | TidelogError]:
    """Appends one batch after the other, without waiting in between. An error stands in the place of its batch.

    `continues`: as in SessionLog.append.
    """
    newest_ms = target.timestamp_ms_max()
    pending: list[Pending | TidelogError] = []
    refused: dict[TopicPartition, TidelogError] = {}
    for partition, batch, header in batches:
        refusal = refused.get(partition)
        if refusal is not None:
            pending.append(refusal)
            continue
        try:
            pending.append(
                log.append(
                    partition,
                    batch,
                    header,
                    admission,
                    acks=acks,
                    deadline_s=deadline_s,
                    expected_offset=expected_offset,
                    dates=TimestampPolicy(target.log_append_time, newest_ms if _leader_decides(header) else None),
                    continues=continues,
                )
            )
            expected_offset = None  # of the first batch; those behind it follow at once
        except TidelogError as error:
            refused[partition] = _told_of_topic(error, target)
            pending.append(error)
    return pending


async def await_outcomes(
    log: LogService, pending: Sequence[Pending | TidelogError], *, acks: Acks, deadline: Deadline
) -> list[Outcome]:
    """Returns where each batch lies, or why it does not: after the commit for Acks.ALL, else at once."""
    found: list[Outcome] = []
    turns = LoopYielder()
    await resolve_rejections(pending, deadline)
    for each in pending:
        if isinstance(each, UnverifiedRejection):
            found.append(each.resolved)
        elif isinstance(each, TidelogError):
            found.append(each)
        else:
            try:
                found.append(await log.outcome(each, acks=acks, deadline=deadline))
            except TidelogError as error:
                await resolve_rejections([error], deadline)
                resolved = error.resolved if isinstance(error, UnverifiedRejection) else error
                found.append(resolved.with_traceback(None))  # thousands of outcomes may share one error
        await turns.give()
    return found


async def resolve_rejections(pending: Iterable[Pending | TidelogError], deadline: Deadline) -> None:
    """Resolves all rejections that are unverified, together. One that is not resolved by the deadline tells the producer to send
    the batch again."""
    unverified = [each for each in pending if isinstance(each, UnverifiedRejection)]
    if unverified:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline.at_s):
                await resolve_all(unverified)


def trace_produced(
    topics: Iterable[str],
    pending: Iterable[Pending | TidelogError],
    found: Iterable[Appended | TidelogError],
    *,
    began_s: float,
    size_bytes: int,
) -> None:
    """What this call has produced, where it is traced."""
    call = current_call()
    if call is not None and call.trace is not None and size_bytes:  # clients open streams with an empty message
        here = [each for each in pending if isinstance(each, PendingAppend)]
        accepted = [each for each in found if isinstance(each, Appended)]
        call.trace.produced(sorted(topics), here, accepted, began_s=began_s, size_bytes=size_bytes)
