"""Answers POST /v1/topics/{topic}/records, for four kinds of bodies.

    announced length ─▶ admission ─▶ body ─▶ records ─▶ partitions, batches ─▶ append ─▶ outcome ─▶ answer
    413                 429          408     400, 413   404                    409, 412, 422     503, 504

    application/json · application/x-ndjson · application/vnd.apache.arrow.stream      encoded into batches here
    application/vnd.tidelog.record-batch                                               one ready batch, for ?partition=

A long answer is encoded once it has reserved memory (records/response_budget.py), and holds the reservation until the client has
read it. The records are already written, so the answer waits as long as the client stays, and is never refused.

Invariants: nothing of a request is appended before its whole body was read, checked and encoded. A request that waits for a commit,
or for memory, holds none of its records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final, NamedTuple, TypeVar

from gateway.access.authorization import check_topic
from gateway.api import BrokerApi
from gateway.concurrency.offload import BoundedExecutor
from gateway.http import paced_response
from gateway.http.paced_response import PIECE_BYTES
from gateway.http.records import arrow_body
from gateway.http.records.arrow_body import parse_arrow, plan_arrow
from gateway.http.records.json_body import parse_json, parse_ndjson
from gateway.http.records.produce_results import (
    answer_bytes_max,
    ready_batch_as_json,
    results_as_arrow,
    results_as_json,
    results_as_lines,
    shared_error,
)
from gateway.http.request import INT64_MAX, Request
from gateway.records.append import (
    AppendTarget,
    Outcome,
    ProduceRequest,
    add_bucket_trouble,
    check_dates,
    check_ready_batch,
    explaining_limit,
    target_caught_up,
    target_known,
    why_made_again,
)
from gateway.records.idempotency_key import UNSEQUENCED, ProducerFields, producer_of
from gateway.records.keyed_produce import KeyedPlan, plan_once
from gateway.records.partitioning import CheckedBatch, Plan, Routing, check_single_partition, plan_batches, route_records
from gateway.records.response_budget import Reservation, ResponseBudget
from gateway.routing.log_service import LogService
from gateway.topics.names import named, partition_of
from metadata.cluster.id_allocation import IDEMPOTENCY_KEY_IDS
from metadata.errors import (
    InvalidArgument,
    InvalidTimestamp,
    OutcomeUnknown,
    StaleRouting,
    Throttled,
    TidelogError,
    TooLarge,
    UnknownPartition,
    UnknownTopic,
)
from metadata.model import ProducerId, Revision
from segments.byte_budget import Admission
from segments.deadline import Deadline
from segments.log.session_log import Acks, memory_bytes
from segments.records.header import SEQUENCE_MAX

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
ARROW: Final = arrow_body.CONTENT_TYPE
RECORD_BATCH: Final = "application/vnd.tidelog.record-batch"

# A larger body is parsed in a thread, and an answer with more records encoded in one, so that other requests do not wait.
THREAD_BYTES: Final = 256 << 10
THREAD_RECORDS: Final = 1_000

_BODIES: Final = (JSON, NDJSON, ARROW, RECORD_BATCH)
_ANSWERS: Final = {JSON: (JSON, NDJSON), NDJSON: (NDJSON, JSON), ARROW: (JSON, ARROW), RECORD_BATCH: (JSON,)}
_ENCODE: Final = {JSON: results_as_json, NDJSON: results_as_lines, ARROW: results_as_arrow}
_ACKS: Final = {"all": Acks.ALL, "-1": Acks.ALL, "leader": Acks.LEADER, "1": Acks.LEADER, "none": Acks.NONE, "0": Acks.NONE}
_QUERY: Final = frozenset({"acks", "timeout_ms", "partition", "expected_offset", "producer_id", "producer_epoch", "base_sequence"})

# Colons or line breaks of a record with a small value.
_MEMBERS: Final = 4

# Longer than any client holds its reservation, because slow clients are disconnected.
UNBOUNDED_WAIT_S: Final = 86_400.0

_Work = TypeVar("_Work")


class Options(NamedTuple):
    """Holds the options in the query and the headers."""

    acks: Acks
    deadline: Deadline
    partition: int | None
    expected_offset: int | None
    producer: ProducerFields | None
    idempotency_key: bytes | None


class HttpProduce:
    """Answers produce requests over HTTP. The HTTP listener's responses share the memory of `budget`."""

    def __init__(self, broker: BrokerApi, budget: ResponseBudget) -> None:
        self._broker = broker
        self._budget = budget
        self._rotation = count()
        self._threads = BoundedExecutor()

    async def produce(self, request: Request, topic: str) -> None:
        """Answers one request. Raises the TidelogError of a request that failed as a whole."""
        try:
            await self._produce(request, topic)
        except TidelogError as error:
            raise add_bucket_trouble(error, self._broker) from None

    async def _produce(self, request: Request, topic: str) -> None:
        settings = self._broker.settings
        length = request.content_length(bytes_max=settings.request_bytes_max)
        media_type = request.media_type(_BODIES)
        answer_type = request.accepted(_ANSWERS[media_type])
        options = _options(request, timeout_ms_max=settings.produce_timeout_ms)
        produce = ProduceRequest(self._broker.cluster_log, options.acks, options.deadline)
        target = await target_known(self._broker, topic, options.deadline)
        async with produce.log.admit(memory_bytes(length or 0), timeout_s=options.deadline.timeout_s) as admission:
            body = await request.body(
                admission,
                length=length,
                bytes_max=settings.request_bytes_max,
                timeout_s=settings.body_read_timeout_ms / 1000,
            )
            check_topic(topic)  # a right or key may have been revoked while the body arrived
            plan, target = await self._append(produce, target, media_type, body, options, admission)
        size_bytes = len(body)
        del body  # the log's buffer holds the batches, and accounts for them
        found = await self._outcomes(produce, target, options, size_bytes)
        del produce  # its segments are no longer needed
        await self._answer(request, media_type, answer_type, plan, found, options.acks)

    async def _append(
        self, produce: ProduceRequest, target: AppendTarget, media_type: str, body: bytes, options: Options, admission: Admission
    ) -> tuple[Plan, AppendTarget]:
        """Plans the batches and appends them; plans again where the topic has changed meanwhile, and no leader took a batch.

        Returns the plan without the records, and the target of the batches.
        """
        while True:
            with explaining_limit(target):
                try:
                    plan, continues = await self._planned(media_type, body, options, target, produce.log)
                except (UnknownPartition, UnknownTopic):  # another broker may have grown the topic, or made it again
                    caught_up = await target_caught_up(self._broker, target.topic.name, options.deadline)
                    if caught_up.topic == target.topic:
                        raise
                    target = caught_up
                    continue
            produce.pending = produce.append(
                target, plan.batches, admission, expected_offset=options.expected_offset, continues=continues
            )
            if not produce.pending or not all(isinstance(each, StaleRouting) for each in produce.pending):
                return plan.without_records(), target

    async def _outcomes(self, produce: ProduceRequest, target: AppendTarget, options: Options, size_bytes: int) -> list[Outcome]:
        """Returns the outcome of each batch, with errors that a client understands. Raises the error that all batches share."""
        found = await self._of_present_topic(await produce.outcomes(), target, options.deadline)
        await self._catch_up_with(found, options.deadline)
        failed = list({id(outcome): outcome for outcome in found if isinstance(outcome, TidelogError)}.values())
        for error in failed:
            named(error, target.topic)
        _add_retry_hints(failed, options)
        shared = shared_error(found)
        if shared is not None:
            raise shared
        produce.observe(found, self._broker.metrics.traffic.http, size_bytes=size_bytes)
        for error in failed:
            add_bucket_trouble(error, self._broker)
        return found

    async def _answer(
        self, request: Request, media_type: str, answer_type: str, plan: Plan, found: list[Outcome], acks: Acks
    ) -> None:
        """Sends the results. A long answer waits for memory before it is encoded."""
        encode = ready_batch_as_json if media_type == RECORD_BATCH else _ENCODE[answer_type]
        many = len(plan.partitions) > THREAD_RECORDS
        status = 202 if acks is Acks.NONE else 200
        headers = [(b"content-type", answer_type.encode())]
        bytes_max = 0 if media_type == RECORD_BATCH else answer_bytes_max(plan, found, acks)
        with self._budget.reserve() as reservation:
            if bytes_max > PIECE_BYTES:
                await request.run_while_connected(self._reserve(bytes_max, reservation))
            answer = await self._run(lambda: encode(plan, found, acks), takes_long=many)
            if not reservation.bytes_held:
                await request.answer(status, answer, headers)
                return
            reservation.keep(len(answer))
            pause_s = self._broker.settings.answer_timeout_ms / 1000
            await paced_response.send_paced(request, answer, headers, pause_s=pause_s, status=status)

    async def _planned(
        self, media_type: str, body: bytes, options: Options, target: AppendTarget, log: LogService
    ) -> tuple[Plan, bool]:
        """Returns the batches, and whether they continue a request of which a part is committed (SessionLog.append)."""
        if options.idempotency_key is None or media_type == RECORD_BATCH:
            if media_type == RECORD_BATCH:
                plan = await self._ready_batch(body, options, target, log)
            else:
                plan = await self._plan(media_type, body, options, self._routing(target, options.producer), log)
            check_dates(plan.batches, target)
            return plan, False
        try:
            keyed = await self._plan_once(options.idempotency_key, media_type, body, options, target, log)
        except (TooLarge, InvalidTimestamp):
            await log.check_not_sealed()  # else the next leader may have written what is refused here
            raise
        return keyed.plan, keyed.continues

    async def _of_present_topic(self, found: list[Outcome], target: AppendTarget, deadline: Deadline) -> list[Outcome]:
        """Replaces UnknownTopic by a retryable error where the topic was deleted and made again, which the client can't know."""
        if not any(isinstance(each, UnknownTopic) for each in found):
            return found
        why = await why_made_again(self._broker, target.topic.name, target.topic.id, deadline)
        if why is None:
            return found
        return [why if isinstance(each, UnknownTopic) else each for each in found]

    async def _catch_up_with(self, found: Iterable[Outcome], deadline: Deadline) -> None:
        """Waits until this broker knows the topic as well as leaders that rejected its routing, so that a retry succeeds."""
        revisions = [int(each.details.get("topic_revision", 0)) for each in found if isinstance(each, StaleRouting)]
        if revisions:
            await self._broker.topic_cache.wait_for(Revision(max(revisions)), timeout_s=deadline.left_s())

    async def _reserve(self, bytes_count: int, reservation: Reservation) -> None:
        """Reserves memory for a whole answer. During a stop it exceeds the budget: the client must learn what was written."""
        try:
            await reservation.ask(bytes_count, bytes_least=bytes_count, timeout_s=UNBOUNDED_WAIT_S)
        except Throttled:
            reservation.keep(bytes_count)

    def _routing(self, target: AppendTarget, producer: ProducerFields | None) -> Routing:
        topic, rotation = target.topic, next(self._rotation)
        return Routing(
            topic.id, topic.partition_count, rotation % topic.partition_count, target.batch_bytes_max, producer or UNSEQUENCED
        )

    async def _plan_once(
        self, key: bytes, media_type: str, body: bytes, options: Options, target: AppendTarget, log: LogService
    ) -> KeyedPlan:
        """Returns the plan of a request with an Idempotency-Key: see keyed_produce.plan_once. The caller appends it at once."""
        long_body = takes_long(media_type, body)
        producer = await self._run(
            lambda: producer_of(
                key,
                topic_id=target.topic.id,
                media_type=media_type,
                body=body,
                partition=options.partition,
                expected_offset=options.expected_offset,
            ),
            takes_long=long_body,
        )
        keyed = await plan_once(
            log,
            self._broker.topic_cache,
            target.topic.id,
            producer,
            lambda routing: self._plan(media_type, body, options, routing, log),
            batch_bytes_max=target.batch_bytes_max,
            deadline_s=options.deadline.at_s,
            waits=long_body,
        )
        _check_sizes(keyed, target)
        check_dates(keyed.plan.batches, target, written=keyed.written)
        return keyed

    async def _plan(self, media_type: str, body: bytes, options: Options, routing: Routing, log: LogService) -> Plan:
        decompressed_bytes_max = log.settings.decompressed_bytes_max
        headers_max = self._broker.settings.record_headers_max
        return await self._run(
            lambda: plan_body(
                media_type, body, options, routing, decompressed_bytes_max=decompressed_bytes_max, headers_max=headers_max
            ),
            takes_long=takes_long(media_type, body),
        )

    async def _run(self, work: Callable[[], _Work], *, takes_long: bool) -> _Work:
        """Runs long work in a thread, and other work at once."""
        return await self._threads.run(work) if takes_long else work()

    async def _ready_batch(self, body: bytes, options: Options, target: AppendTarget, log: LogService) -> Plan:
        if options.partition is None:
            raise InvalidArgument("a record batch needs its partition", hint="Add ?partition=N.")
        if options.producer is not None or options.idempotency_key is not None:
            raise InvalidArgument(
                "a record batch carries its own producer fields", hint="Leave the Idempotency-Key and producer_id out."
            )
        partition = partition_of(target.topic, options.partition)
        header = await check_ready_batch(
            body,
            batch_bytes_max=target.batch_bytes_max,
            decompressed_bytes_max=log.settings.decompressed_bytes_max,
            threads=self._threads,
        )
        return Plan([], [CheckedBatch(partition, body, header)])


def plan_body(
    media_type: str, body: bytes, options: Options, routing: Routing, *, decompressed_bytes_max: int, headers_max: int
) -> Plan:
    """Plans the batches of a body of records. May run in a thread, because it reads nothing that changes."""
    now_ms = time.time_ns() // 1_000_000
    if media_type == ARROW:
        plan = plan_arrow(
            parse_arrow(body, now_ms=now_ms, decompressed_bytes_max=decompressed_bytes_max),
            routing,
            default_partition=options.partition,
        )
    else:
        parse = parse_json if media_type == JSON else parse_ndjson
        parsed = parse(body, now_ms=now_ms, headers_max=headers_max)
        own_partitions = parsed.own_partitions
        if options.partition is not None:
            asked = own_partitions or [None] * len(parsed.records)
            own_partitions = [options.partition if own is None else own for own in asked]
        plan = plan_batches(route_records(parsed.records, own_partitions, routing), routing, request_bytes=len(body))
    if options.expected_offset is not None:
        check_single_partition({batch.partition for batch in plan.batches}, because="expected_offset")
    return plan


def takes_long(media_type: str, body: bytes) -> bool:
    """Returns whether parsing the body would block the event loop for milliseconds.

    Counts the records, headers and lines of JSON by brackets, colons and breaks: too many where values hold these, never too few.
    Arrow shows how much it holds only once it is open: it may be compressed, and a null takes a bit.
    """
    if len(body) > THREAD_BYTES or media_type == ARROW:
        return True
    return body.count(b"{") > THREAD_RECORDS or max(body.count(b":"), body.count(b"\n")) > _MEMBERS * THREAD_RECORDS


def _check_sizes(keyed: KeyedPlan, target: AppendTarget) -> None:
    """Raises TooLarge for a batch that is still to be written. A repeat passes, even if the topic accepts less now."""
    bytes_max = target.batch_bytes_max
    for partition, batch, _ in keyed.plan.batches:
        if len(batch) > bytes_max and partition not in keyed.written:
            raise TooLarge(
                f"the records of partition {partition.partition} take {len(batch)} bytes as a batch; the topic accepts {bytes_max}",
                size=len(batch),
                bytes_max=bytes_max,
            )


def _add_retry_hints(failed: Iterable[TidelogError], options: Options) -> None:
    """Replaces the hints of errors that leave the outcome open, except those for idempotent producers."""
    if options.producer is not None:
        return
    for error in failed:
        if isinstance(error, OutcomeUnknown):
            error.hint = (
                "Read back before you retry. With an Idempotency-Key a retry would be safe."
                if options.idempotency_key is None
                else "Retry the same request with the same Idempotency-Key: it is written only once."
            )


def _options(request: Request, *, timeout_ms_max: int) -> Options:
    query = request.query(_QUERY)
    idempotency_key = request.single_header(b"idempotency-key")
    producer_id = query.integer("producer_id", least=0, most=IDEMPOTENCY_KEY_IDS - 1)
    producer_epoch = query.integer("producer_epoch", least=0, most=2**15 - 1)
    base_sequence = query.integer("base_sequence", least=0, most=SEQUENCE_MAX)
    if producer_id is None:
        if producer_epoch is not None or base_sequence is not None:
            raise InvalidArgument("producer_epoch and base_sequence belong to a producer_id")
        producer = None
    elif idempotency_key is not None:
        raise InvalidArgument("an Idempotency-Key and a producer_id exclude each other")
    elif base_sequence is None:
        raise InvalidArgument(
            "producer_id needs base_sequence", hint="Begin at 0 in each partition, and add the records of each batch."
        )
    else:
        producer = ProducerFields(ProducerId(producer_id), producer_epoch or 0, base_sequence)
    acks = query.choice("acks", _ACKS)
    return Options(
        acks=Acks.ALL if acks is None else acks,
        deadline=Deadline.after((query.integer("timeout_ms", least=1, most=timeout_ms_max) or timeout_ms_max) / 1000),
        partition=query.integer("partition", least=0, most=2**31 - 1),
        expected_offset=query.integer("expected_offset", least=0, most=INT64_MAX),
        producer=producer,
        idempotency_key=idempotency_key,
    )
