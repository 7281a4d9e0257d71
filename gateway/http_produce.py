"""POST /v1/topics/{topic}/records: four kinds of bodies, one way through.

    announced length ─▶ room in the buffer ─▶ body ─▶ records ─▶ partitions, batches ─▶ append ─▶ outcome ─▶ answer
    413                 429                   408     400, 413   404                    409, 412, 422     503, 504

    application/json · application/x-ndjson · application/vnd.apache.arrow.stream      cut into batches here
    application/vnd.tidelog.record-batch                                               one ready batch, for ?partition=

Invariant: nothing of a request is appended before all of it was read, checked and encoded.
"""

from __future__ import annotations

import asyncio
import time
from itertools import count
from typing import Final, NamedTuple

from gateway import arrow_bodies
from gateway.arrow_bodies import parse_arrow, plan_arrow
from gateway.doors import Broker, partition_of
from gateway.http_request import INT64_MAX, Request
from gateway.idempotency_key import ProducerFields, partition_for_keyless, producer_of
from gateway.json_bodies import parse_json, parse_lines
from gateway.produce import ReadyBatch, Target, append, check_ready_batch, outcomes, target_named
from gateway.produce_results import ready_batch_as_json, results_as_arrow, results_as_json, results_as_lines, shared_error
from gateway.record_routing import Plan, PlannedBatch, plan_records, route, single_partition
from metadata.errors import InvalidArgument
from metadata.model import ProducerId
from metadata.producer_ids import IDEMPOTENCY_KEY_IDS
from segments.log import Acks, Log
from segments.record_batch import SEQUENCE_MAX, parse_header

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
ARROW: Final = arrow_bodies.CONTENT_TYPE
RECORD_BATCH: Final = "application/vnd.tidelog.record-batch"

THREAD_BYTES: Final = 256 << 10
"""A longer body is taken apart in a thread, so that others are served meanwhile."""

_BODIES: Final = (JSON, NDJSON, ARROW, RECORD_BATCH)
_ANSWERS: Final = {JSON: (JSON, NDJSON), NDJSON: (NDJSON, JSON), ARROW: (JSON, ARROW), RECORD_BATCH: (JSON,)}
_ENCODE: Final = {JSON: results_as_json, NDJSON: results_as_lines, ARROW: results_as_arrow}
_ACKS: Final = {"all": Acks.ALL, "-1": Acks.ALL, "leader": Acks.LEADER, "1": Acks.LEADER, "none": Acks.NONE, "0": Acks.NONE}
_QUERY: Final = frozenset({"acks", "timeout_ms", "partition", "expected_offset", "producer_id", "producer_epoch", "base_sequence"})


class Options(NamedTuple):
    """What the query and the headers say of the whole request."""

    acks: Acks
    timeout_s: float
    partition: int | None
    expected_offset: int | None
    producer: ProducerFields | None
    idempotency_key: bytes | None


class HttpProduce:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._turns = count()

    async def produce(self, request: Request, topic: str) -> None:
        settings = self._broker.settings
        length = request.content_length(bytes_max=settings.request_bytes_max)
        media_type = request.media_type(_BODIES)
        answer_type = request.accepted(_ANSWERS[media_type])
        options = _options(request, timeout_ms_max=settings.produce_timeout_ms)
        target = target_named(self._broker, topic)
        log = self._broker.log
        deadline_s = asyncio.get_running_loop().time() + options.timeout_s
        async with log.admit(log.memory_bytes(length or 0), timeout_s=options.timeout_s) as admission:
            body = await request.body(
                admission,
                length=length,
                bytes_max=settings.request_bytes_max,
                timeout_s=settings.body_read_timeout_ms / 1000,
            )
            if media_type == RECORD_BATCH:
                plan = await self._ready_batch(body, options, target, log)
            elif len(body) > THREAD_BYTES:
                plan = await asyncio.to_thread(self._plan, media_type, body, options, target, log)
            else:
                plan = self._plan(media_type, body, options, target, log)
            batches = [
                ReadyBatch(partition_of(target.topic, planned.partition), planned.batch, parse_header(planned.batch))
                for planned in plan.batches
            ]
            pending = append(log, target, batches, admission, expected_offset=options.expected_offset)
        found = await outcomes(log, pending, acks=options.acks, deadline_s=deadline_s)
        error = shared_error(found)
        if error is not None:
            raise error
        encode = ready_batch_as_json if media_type == RECORD_BATCH else _ENCODE[answer_type]
        if len(body) > THREAD_BYTES:
            answer = await asyncio.to_thread(encode, plan, found, options.acks)
        else:
            answer = encode(plan, found, options.acks)
        status = 202 if options.acks is Acks.NONE else 200
        await request.answer(status, answer, [(b"content-type", answer_type.encode())])

    def _plan(self, media_type: str, body: bytes, options: Options, target: Target, log: Log) -> Plan:
        """The batches of a body of records. Runs in a thread where the body is long: it touches nothing that changes."""
        topic = target.topic
        producer = options.producer
        if options.idempotency_key is not None:
            producer = producer_of(options.idempotency_key, topic_id=topic.id, media_type=media_type, body=body)
            keyless_partition = partition_for_keyless(producer, topic.partition_count)
        else:
            keyless_partition = next(self._turns) % topic.partition_count
        now_ms = time.time_ns() // 1_000_000
        if media_type == ARROW:
            plan = plan_arrow(
                parse_arrow(body, now_ms=now_ms, decompressed_bytes_max=log.settings.decompressed_bytes_max),
                partition_count=topic.partition_count,
                keyless_partition=keyless_partition,
                default_partition=options.partition,
                batch_bytes_max=target.batch_bytes_max,
                producer=producer,
            )
        else:
            parse = parse_json if media_type == JSON else parse_lines
            parsed = parse(body, now_ms=now_ms, headers_max=self._broker.settings.record_headers_max)
            own_partitions = parsed.own_partitions
            if options.partition is not None:
                asked = own_partitions or [None] * len(parsed.records)
                own_partitions = [options.partition if own is None else own for own in asked]
            plan = plan_records(
                route(
                    parsed.records,
                    own_partitions,
                    partition_count=topic.partition_count,
                    keyless_partition=keyless_partition,
                ),
                batch_bytes_max=target.batch_bytes_max,
                request_bytes=len(body),
                producer=producer,
            )
        if options.expected_offset is not None:
            single_partition(sorted({batch.partition for batch in plan.batches}), because="expected_offset")
        return plan

    async def _ready_batch(self, body: bytes, options: Options, target: Target, log: Log) -> Plan:
        if options.partition is None:
            raise InvalidArgument("a record batch needs its partition", hint="Add ?partition=N.")
        if options.producer is not None or options.idempotency_key is not None:
            raise InvalidArgument(
                "a record batch carries its own producer fields", hint="Leave the Idempotency-Key and producer_id out."
            )
        partition_of(target.topic, options.partition)
        header = await check_ready_batch(
            body, batch_bytes_max=target.batch_bytes_max, decompressed_bytes_max=log.settings.decompressed_bytes_max
        )
        batch = PlannedBatch(options.partition, header.record_count, body)
        return Plan([], [batch])


def _options(request: Request, *, timeout_ms_max: int) -> Options:
    query = request.query(_QUERY)
    idempotency_key = request.headers.get(b"idempotency-key")
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
        timeout_s=(query.integer("timeout_ms", least=1, most=timeout_ms_max) or timeout_ms_max) / 1000,
        partition=query.integer("partition", least=0, most=2**31 - 1),
        expected_offset=query.integer("expected_offset", least=0, most=INT64_MAX),
        producer=producer,
        idempotency_key=idempotency_key,
    )
