"""Plans requests with an Idempotency-Key, so that the cluster writes each of them at most once, whichever broker receives it.

    ask every leader of the topic which batches the key has written ─▶ none:  route over the partitions that the topic has now
                                                                    └▶ some:  route as the first time

No broker trusts its own view of the topic. A leader answers only once it knows at least the revision of the topic that the asking
broker knows. From its answer on it refuses new batches that were routed over fewer partitions than it knows. If it knows more
partitions than the asking broker, that broker catches up and asks again. Example of a topic that grows from 4 to 8 partitions:
before a request is written over 8, every leader refuses batches that were routed over 4, and batches that were written over 4
earlier are found. A new leader knows at least what the previous leader knew (cluster/proven_routing.py).

A committed batch that was routed over 4 before the topic grew fixes the routing of its request: the missing batches are added over
4, and `continues` marks them for the leaders.

The caller brings the log, the topics, the producer that stands for the key (idempotency_key.py), and a callback that cuts the
records into batches. The caller appends the planned batches at once, without waiting in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from gateway.cluster.view import partitions_of
from gateway.records.idempotency_key import ProducerFields, partition_for_keyless, partitions_routed_over
from gateway.records.partitioning import Plan, Routing
from gateway.routing.log_service import LogService
from metadata.errors import Unavailable
from metadata.model import TopicId, TopicPartition
from metadata.topics.cache import TopicCache
from metadata.topics.settings import MESSAGE_BYTES_LIMIT
from segments.partition.producer_state import SequencedBatch


class KeyedPlan(NamedTuple):
    """The batches of a request with an Idempotency-Key, and the batches that an earlier attempt has written.

    `continues` is as in SessionLog.append: a committed batch was routed over another number of partitions than the topic has now.
    """

    plan: Plan
    written: Mapping[TopicPartition, SequencedBatch]
    continues: bool


async def plan_once(
    log: LogService,
    topics: TopicCache,
    topic_id: TopicId,
    producer: ProducerFields,
    plan: Callable[[Routing], Awaitable[Plan]],
    *,
    batch_bytes_max: int,
    deadline_s: float,
    waits: bool,
) -> KeyedPlan:
    """Returns the plan of a request, which fits the batches that its key has written when this returns.

    If another request with the same key is appended while this one is planned, this one is planned again as its repeat. Of two new
    requests at one broker one is first, since the caller appends at once.

    `batch_bytes_max` bounds the batches of a request without written batches. `deadline_s` is a time of the loop's clock. `waits`
    says whether `plan` yields to the event loop. Raises Unavailable at the deadline, IdempotencyKeyReused, UnknownTopic, and what
    `plan` and `log.written_once` raise; nothing of this attempt was then written.
    """
    try:
        async with asyncio.timeout_at(deadline_s):
            planned, routed_over = None, 0
            while True:
                topic = topics.by_id(topic_id)  # as it is now
                partitions = partitions_of(topic)
                known = await log.written_once(partitions, producer.producer_id, topic_revision=topic.revision)
                if known.topic_revision > topic.revision:  # a leader knows a later revision: catch up and ask again
                    await topics.wait_for(known.topic_revision, timeout_s=None)
                    continue
                written = {**known.batches, **log.written_here(partitions, producer.producer_id)}
                partition_count = partitions_routed_over(producer, written.values(), present=topic.partition_count)
                continues = partition_count != topic.partition_count
                if continues and written.keys() != known.batches.keys():
                    continue  # appended here meanwhile over fewer partitions; the next answer includes it
                if planned is not None and partition_count == routed_over:
                    return KeyedPlan(planned, written, continues)
                routing = Routing(
                    topic_id,
                    partition_count,
                    partition_for_keyless(producer, partition_count),
                    MESSAGE_BYTES_LIMIT if written else batch_bytes_max,
                    producer._replace(producer_epoch=partition_count),
                )
                planned, routed_over = await plan(routing), partition_count
                if not waits:
                    return KeyedPlan(planned, written, continues)
    except TimeoutError:
        raise Unavailable(
            "not every leader of the topic confirmed in time what the Idempotency-Key has written; nothing was written now"
        ) from None
