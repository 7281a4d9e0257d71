"""Plans requests with an Idempotency-Key, so that the cluster writes each of them at most once, whichever broker takes it.

    ask every leader of the topic what the key has written ─▶ nothing:  route over the partitions that the topic has now
                                                           └▶ a part:   route as the first time

The caller brings the log, the topics, the producer that stands for the key (idempotency_key.py), and a callback that cuts the
records into batches. The caller appends the planned batches at once, without waiting in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from gateway.cluster_view import partitions_of
from gateway.idempotency_key import ProducerFields, partition_for_keyless, partitions_routed_over
from gateway.led_here import LedHere
from gateway.record_routing import Plan
from metadata.model import TopicId, TopicPartition
from metadata.topic_cache import TopicCache
from metadata.topic_settings import MESSAGE_BYTES_LIMIT
from segments.producer_state import SequencedBatch


class Routing(NamedTuple):
    """How the records of a request go to partitions."""

    partition_count: int
    keyless_partition: int
    batch_bytes_max: int
    producer: ProducerFields | None


class KeyedPlan(NamedTuple):
    """The batches of a request with an Idempotency-Key, and what an earlier attempt of it has written."""

    plan: Plan
    written: Mapping[TopicPartition, SequencedBatch]


async def plan_once(
    log: LedHere,
    topics: TopicCache,
    topic_id: TopicId,
    producer: ProducerFields,
    plan: Callable[[Routing], Awaitable[Plan]],
    *,
    batch_bytes_max: int,
    waits: bool,
) -> KeyedPlan:
    """Returns the plan of a request, which fits what its key has written when this returns.

    Planning may take its time, and meanwhile another request with the same key may be appended: then this one is planned
    as that one was, to be its repeat. Of two new requests at one broker one is first, since the caller appends at once.

    `batch_bytes_max` bounds the batches of a request of which nothing is written yet. `waits`: whether `plan` lets others run.
    Raises IdempotencyKeyReused, UnknownTopic, and what `plan` and `log.written_elsewhere` raise.
    """
    planned, routed_over = None, 0
    while True:
        topic = topics.by_id(topic_id)  # as it is now
        places = partitions_of(topic)
        elsewhere = await log.written_elsewhere(places, producer.producer_id)
        written = elsewhere | log.written_once(places, producer.producer_id)
        partition_count = partitions_routed_over(producer, written.values(), present=topic.partition_count)
        if planned is not None and partition_count == routed_over:
            return KeyedPlan(planned, written)
        routing = Routing(
            partition_count,
            partition_for_keyless(producer, partition_count),
            MESSAGE_BYTES_LIMIT if written else batch_bytes_max,
            producer._replace(producer_epoch=partition_count),
        )
        planned, routed_over = await plan(routing), partition_count
        if not waits:
            return KeyedPlan(planned, written)
