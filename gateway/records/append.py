"""Appends the batches of a produce request and awaits their outcomes, for all listeners.

    target ─▶ check_at_once, or check_ready_batch ─▶ check_dates ─▶ append      synchronous, in order
                                                                     └▶ await_outcomes ─▶ outcomes, by acks, up to a deadline

ProduceRequest joins both halves, and adds metrics and traces. A listener only decodes a request and encodes its outcomes. One that
uses callbacks calls only the synchronous half; then `PendingAppend.segment.outcome` reports the commit.

Invariants: a request is checked before its first batch is appended. Only the leader checks whether a batch is a repeat, and then
its dates. Once a batch of a partition is rejected, no later batch of the same request goes to that partition, so that order holds.
A repeat that is in the log already does not count as rejected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, NamedTuple, Protocol

from gateway.access.authorization import check_topic
from gateway.access.refusals import settle_topic
from gateway.concurrency.offload import BoundedExecutor, LoopYielder
from gateway.records.partitioning import CheckedBatch
from gateway.routing.log_service import LogService, Pending
from gateway.settings import GatewaySettings
from gateway.telemetry.request_context import current_call, note_topic
from gateway.telemetry.traffic import ListenerTraffic
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
from metadata.model import NO_PRODUCER, TopicId, TopicPartition, check_topic_name
from metadata.topics.cache import TopicCache
from metadata.topics.settings import INT64_MAX
from metadata.topics.topic import Topic
from segments.byte_budget import Admission
from segments.deadline import Deadline
from segments.log.append_result import UnverifiedRejection, resolve_all, was_written_before
from segments.log.session_log import Acks, PendingAppend
from segments.object_store.health_tracking import StoreTrouble
from segments.object_store.interface import Buffer
from segments.partition.partition_log import Appended, TimestampPolicy, dated_too_far_ahead
from segments.partition.producer_state import ONE_SHOT
from segments.records.batch import check_records, codec_bits, open_produced
from segments.records.compression import Codec
from segments.records.header import BatchHeader

# Records that are decompressed and checked without a thread, in one request: a millisecond of work. A thread costs 0.2 ms of CPU
# more, whatever it does.
OPENED_AT_ONCE_BYTES: Final = 1 << 20
# gzip takes eight times as long as the other codecs.
GZIP_SLOWNESS: Final = 8
# Records that one piece of work in a thread opens, if it has several batches: others wait for the thread.
OPENED_IN_THREAD_BYTES: Final = 8 << 20

# Upper bound for reading an unknown topic, or one without the wanted partition, from the metadata store.
LOOKUP_S: Final = 1.0

Outcome = Appended | TidelogError


class AppendLimits(Protocol):
    """The part of a broker that bounds an append: topics, settings, and the reason why the bucket takes no writes."""

    @property
    def topic_cache(self) -> TopicCache: ...
    @property
    def settings(self) -> GatewaySettings: ...
    @property
    def bucket_trouble(self) -> StoreTrouble | None: ...


class AppendTarget(NamedTuple):
    """A topic with the limits that an append must keep."""

    topic: Topic
    # The lesser of the topic's max.message.bytes and the broker's message_bytes_max.
    batch_bytes_max: int
    log_append_time: bool
    # How far ahead of a broker's clock records may be dated: message.timestamp.after.max.ms. None: any date.
    ahead_ms_max: int | None
    broker_bytes_max: int
    # cleanup.policy includes compact: the newest record of each key is kept.
    is_compacted: bool = False

    def timestamp_ms_max(self) -> int | None:
        """Returns the latest timestamp that the topic takes now; None: any."""
        return None if self.ahead_ms_max is None else time.time_ns() // 1_000_000 + self.ahead_ms_max

    @property
    def larger_batches_hint(self) -> str:
        """Returns a hint that names the setting which a user must raise for larger batches."""
        if self.batch_bytes_max < self.broker_bytes_max:
            example = f"tidelog topic alter {self.topic.name} --set max.message.bytes={self.broker_bytes_max}"
            return f"Send less in one record or batch, or raise the topic's max.message.bytes: {example}"
        return (
            f"Send less in one record or batch, or restart the broker with more than --message-bytes-max {self.broker_bytes_max}, "
            f"then raise max.message.bytes of the topic {self.topic.name}."
        )


class AppendOptions(NamedTuple):
    """The options of a request for its appends.

    `deadline` bounds the wait for a leader, and for the outcomes. `expected_offset` applies to the first batch. `continues` is as
    in SessionLog.append.
    """

    acks: Acks
    deadline: Deadline
    expected_offset: int | None = None
    continues: bool = False


class ProduceRequest:
    """A produce request from its first append to its outcomes. It keeps nothing of the records."""

    def __init__(self, log: LogService, acks: Acks, deadline: Deadline) -> None:
        self.log = log
        self.acks = acks
        self.deadline = deadline
        # One entry for each batch, in order; a refused batch has its error in its place.
        self.pending: list[Pending | TidelogError] = []
        self._topics: set[str] = set()

    def append(
        self,
        target: AppendTarget,
        batches: Sequence[CheckedBatch],
        admission: Admission,
        *,
        expected_offset: int | None = None,
        continues: bool = False,
    ) -> list[Pending | TidelogError]:
        """Appends batches to the partitions of one topic, as the function `append` does.

        The caller adds the result to `pending`.
        """
        self._topics.add(target.topic.name)
        options = AppendOptions(self.acks, self.deadline, expected_offset, continues)
        return append(self.log, target, batches, admission, options)

    async def outcomes(self) -> list[Outcome]:
        """Waits for the outcomes of all pending batches, as `await_outcomes` does."""
        return await await_outcomes(self.log, self.pending, acks=self.acks, deadline=self.deadline)

    def observe(self, outcomes: Sequence[Outcome], traffic: ListenerTraffic, *, size_bytes: int) -> None:
        """Counts the request in the traffic of its listener, and adds it to the trace of its call."""
        seconds = asyncio.get_running_loop().time() - self.deadline.began_s
        traffic.produced(outcomes, request_bytes=size_bytes, seconds=seconds)
        call = current_call()
        if call is not None and call.trace is not None and size_bytes:  # clients open streams with an empty message
            here = [each for each in self.pending if isinstance(each, PendingAppend)]
            accepted = [each for each in outcomes if isinstance(each, Appended)]
            call.trace.produced(sorted(self._topics), here, accepted, began_s=self.deadline.began_s, size_bytes=size_bytes)


def topic_named(broker: AppendLimits, name: str) -> Topic:
    """Returns the topic from the cache. Raises NotAuthorized, UnknownTopic, InvalidName, Unavailable."""
    check_topic(name)
    try:
        return broker.topic_cache.get(name)
    except UnknownTopic:
        check_topic_name(name)
        raise


def target_named(broker: AppendLimits, name: str) -> AppendTarget:
    """Returns the target from the cache. Raises what topic_named raises."""
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
        settings.compacts,
    )


async def target_known(broker: AppendLimits, name: str, deadline: Deadline) -> AppendTarget:
    """Returns the target, as target_named. Reads an unknown topic from the metadata store.

    Another broker may have created it a moment ago.
    """
    await settle_topic(name)
    try:
        return target_named(broker, name)
    except UnknownTopic:
        return await target_caught_up(broker, name, deadline)


async def target_caught_up(broker: AppendLimits, name: str, deadline: Deadline) -> AppendTarget:
    """Returns the target, as target_named, once this broker has caught up with the topic in the metadata store.

    Raises Unavailable if it does not catch up in time, which a client must not mistake for a missing topic or partition.
    """
    await settle_topic(name)
    check_topic(name)
    check_topic_name(name)
    await broker.topic_cache.catch_up(name, timeout_s=min(LOOKUP_S, deadline.left_s()))
    return target_named(broker, name)


async def why_made_again(broker: AppendLimits, name: str, former: TopicId, deadline: Deadline) -> TidelogError | None:
    """Returns the error, a retryable one, of a request by name that was refused since its topic is `former`, which was deleted and
    made again: the client can't know that. Returns None where no other topic has the name.

    It is for writes, and for reads from the start, the end or a time. An offset that a client names belongs to the former topic, so
    such a request must fail.
    """
    try:
        present = await target_caught_up(broker, name, deadline)
    except UnknownTopic:
        return None
    except TidelogError as error:  # whether it was made again is not known
        return error.with_traceback(None)
    if present.topic.id == former:
        return None
    return NoLeader(
        f"topic {name} was deleted and made again; this broker had not heard of that; nothing was written or read",
        hint="Retry with back-off.",
    )


@contextmanager
def explaining_limit(target: AppendTarget) -> Iterator[None]:
    """Adds the setting to raise to the error of a batch that is TooLarge for the target."""
    try:
        yield
    except TooLarge as error:
        if error.details.get("bytes_max") == target.batch_bytes_max:
            error.hint = target.larger_batches_hint
        raise


def add_bucket_trouble(error: TidelogError, broker: AppendLimits) -> TidelogError:
    """Adds the reason why the bucket takes no writes to an error that may follow from it. Returns the error."""
    trouble = broker.bucket_trouble
    if trouble is not None and isinstance(error, OutcomeUnknown | Throttled | NoLeader | SessionFenced):
        error.message = f"{error.message} ({trouble.message})"
        error.hint = f"{trouble.hint} {error.hint}".strip()
    return error


class OpeningBudget:
    """Counts the compressed records that one request opens without a thread, in bytes of what comes out."""

    __slots__ = ("bytes_left",)

    def __init__(self, bytes_max: int = OPENED_AT_ONCE_BYTES) -> None:
        self.bytes_left = bytes_max

    def bytes_max(self, codec: int) -> int:
        """Returns how many bytes a batch with this codec may open to."""
        return self.bytes_left // GZIP_SLOWNESS if codec == Codec.GZIP else self.bytes_left

    def take(self, codec: int, opened_bytes: int) -> None:
        self.bytes_left -= opened_bytes * GZIP_SLOWNESS if codec == Codec.GZIP else opened_bytes


def check_at_once(
    batch: Buffer,
    *,
    batch_bytes_max: int,
    decompressed_bytes_max: int,
    is_forwarded: bool = False,
    keyed: bool = False,
    budget: OpeningBudget | None = None,
) -> BatchHeader | None:
    """Checks a batch of a client, as `check_produced`, without a thread. Returns None, unchecked, if that would take long.

    A compressed batch takes long if it opens to more than `budget`, that of its request, has left. `keyed`: each record must have a
    key. Raises InvalidRecord, TooLarge.
    """
    budget = budget or OpeningBudget()
    codec = Codec.NONE if len(batch) > batch_bytes_max else codec_bits(batch)
    opened_bytes_max = decompressed_bytes_max
    if codec and (at_once_max := budget.bytes_max(codec)) < decompressed_bytes_max:
        if 2 * len(batch) > at_once_max:  # what is compressed seldom opens to less than twice its bytes
            return None
        opened_bytes_max = at_once_max
    try:
        opened = open_produced(batch, message_bytes_max=batch_bytes_max, decompressed_bytes_max=opened_bytes_max)
    except TidelogError as error:
        if codec:  # it was decompressed in vain, up to the bound
            budget.take(codec, opened_bytes_max)
        if isinstance(error, TooLarge) and opened_bytes_max < decompressed_bytes_max:
            return None
        raise
    if codec:
        budget.take(codec, len(opened.section))
    check_records(opened, keyed=keyed)
    return _check_producer(opened.header, is_forwarded=is_forwarded)


async def check_ready_batch(
    batch: Buffer,
    *,
    batch_bytes_max: int,
    decompressed_bytes_max: int,
    threads: BoundedExecutor,
    is_forwarded: bool = False,
) -> BatchHeader:
    """Checks a batch of a client, in one of `threads` if that takes long. Raises InvalidRecord, TooLarge."""
    header = check_at_once(
        batch, batch_bytes_max=batch_bytes_max, decompressed_bytes_max=decompressed_bytes_max, is_forwarded=is_forwarded
    )
    if header is not None:
        return header
    long = LongBatch(batch, batch_bytes_max)
    opening = partial(check_long, [long], decompressed_bytes_max=decompressed_bytes_max, is_forwarded=is_forwarded)
    [found] = await threads.run(opening)
    if isinstance(found, TidelogError):
        raise found
    return found


class LongBatch(NamedTuple):
    """A batch that `check_at_once` left to a thread."""

    batch: Buffer
    batch_bytes_max: int
    # Whether each record must have a key.
    keyed: bool = False


def check_long(
    batches: Iterable[LongBatch], *, decompressed_bytes_max: int, is_forwarded: bool = False
) -> list[BatchHeader | TidelogError]:
    """Checks batches of one request, for a thread. Returns the header of each, or its error.

    It ends behind the batch with which it has opened OPENED_IN_THREAD_BYTES: the caller has the others checked after work of other
    requests.
    """
    found: list[BatchHeader | TidelogError] = []
    opened_bytes = 0
    for batch, batch_bytes_max, keyed in batches:
        try:
            opened = open_produced(batch, message_bytes_max=batch_bytes_max, decompressed_bytes_max=decompressed_bytes_max)
            opened_bytes += len(opened.section)
            check_records(opened, keyed=keyed)
            found.append(_check_producer(opened.header, is_forwarded=is_forwarded))
        except TidelogError as error:
            found.append(error.with_traceback(None))
            if isinstance(error, TooLarge):
                opened_bytes += decompressed_bytes_max
        if opened_bytes >= OPENED_IN_THREAD_BYTES:
            break
    return found


def _check_producer(header: BatchHeader, *, is_forwarded: bool) -> BatchHeader:
    """Returns the header. Raises InvalidRecord if a client uses a producer id that stands for an Idempotency-Key."""
    if header.producer_id >= ONE_SHOT and not is_forwarded:
        raise InvalidRecord(
            f"producer id {header.producer_id} is reserved for Idempotency-Keys",
            hint="Take a producer id from the broker: POST /v1/producers, or InitProducer.",
        )
    return header


def check_dates(batches: Iterable[CheckedBatch], target: AppendTarget, *, written: Container[TopicPartition] = ()) -> None:
    """Raises InvalidTimestamp if a record is dated further ahead than its topic allows; the caller then appends none of them.

    It passes batches that may be repeats, because a repeat is accepted whatever its date. The leader decides that (see `append`),
    unless the batch goes to a partition that an Idempotency-Key has `written`.
    """
    newest_ms = target.timestamp_ms_max()
    for partition, _, header in batches:
        if not (newest_ms is None or header.max_timestamp <= newest_ms or _leader_decides(header) or partition in written):
            raise _describe_for_topic(dated_too_far_ahead(partition, header.max_timestamp, newest_ms), target)


def _leader_decides(header: BatchHeader) -> bool:
    """Returns whether only the leader knows if the batch is a repeat."""
    return NO_PRODUCER < header.producer_id < ONE_SHOT


def _describe_for_topic(error: TidelogError, target: AppendTarget) -> TidelogError:
    """Adds the topic's name to the error, and the command that changes its allowed timestamps. Returns the error."""
    topic = target.topic
    refusal = error.rejection if isinstance(error, UnverifiedRejection) else error
    if isinstance(refusal, InvalidTimestamp):
        refusal.hint = (
            f"{InvalidTimestamp.default_hint} {topic.name} takes records dated at most {target.ahead_ms_max} ms ahead of the "
            f"broker's clock; to allow any date: tidelog topic alter {topic.name} --set message.timestamp.after.max.ms={INT64_MAX}"
        )
    if refusal is not error:
        named(refusal, topic)
    return named(error, topic)


def append(
    log: LogService,
    target: AppendTarget,
    batches: Sequence[CheckedBatch],
    admission: Admission,
    options: AppendOptions,
) -> list[Pending | TidelogError]:
    """Appends one batch after the other, without waiting in between. A refused batch has its error in its place."""
    expected_offset = options.expected_offset
    newest_ms = target.timestamp_ms_max()
    of_any_date = TimestampPolicy(target.log_append_time, None)
    of_idempotent_producers = TimestampPolicy(target.log_append_time, newest_ms)
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
                    acks=options.acks,
                    deadline_s=options.deadline.at_s,
                    expected_offset=expected_offset,
                    dates=of_idempotent_producers if _leader_decides(header) else of_any_date,
                    continues=options.continues,
                )
            )
            expected_offset = None  # the batches behind the first one follow at once
        except TidelogError as error:
            pending.append(_describe_for_topic(error, target))
            if not was_written_before(error):
                refused[partition] = error
    return pending


async def await_outcomes(
    log: LogService, pending: Sequence[Pending | TidelogError], *, acks: Acks, deadline: Deadline
) -> list[Outcome]:
    """Returns the offsets of each batch, or its error. Acks.ALL waits for the commit; other acks return at once."""
    found: list[Outcome] = []
    yielder = LoopYielder()
    await _resolve_rejections(pending, deadline)
    for each in pending:
        if isinstance(each, UnverifiedRejection):
            found.append(each.resolved)
        elif isinstance(each, TidelogError):
            found.append(each)
        else:
            try:
                found.append(await log.outcome(each, acks=acks, deadline=deadline))
            except TidelogError as error:
                await _resolve_rejections([error], deadline)
                resolved = error.resolved if isinstance(error, UnverifiedRejection) else error
                found.append(resolved.with_traceback(None))  # thousands of outcomes may share one error
        await yielder.step()
    return found


async def _resolve_rejections(pending: Iterable[Pending | TidelogError], deadline: Deadline) -> None:
    """Resolves all unverified rejections together. One that is not resolved by the deadline asks the producer to retry."""
    unverified = [each for each in pending if isinstance(each, UnverifiedRejection)]
    if unverified:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline.at_s):
                await resolve_all(unverified)
