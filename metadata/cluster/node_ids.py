"""Allots each broker id an int32 number, since Kafka's protocol names brokers by numbers.

    /{cluster}/kafka_node_ids/{broker_id}     decimal; created once, never changed, never deleted
    /{cluster}/next_kafka_node_id             decimal; the first number that no broker has; absent is 0

One transaction writes both keys. Clients keep their connections, and their knowledge of leaders, by this number, so it stays the
same over restarts. Numbers start at 0 and stay small: Java clients use 2^31 - 1 - number for their connection to a coordinator.

Invariant: no two broker ids have the same number, over restarts, lost answers, brokers that start at once, and a restore from the
bucket (tidelog/bucket/restore_plan.py moves the counter ahead).
"""

from __future__ import annotations

from typing import Final

from metadata.cluster.id_allocation import ATTEMPTS_MAX
from metadata.errors import Corrupt, OutcomeUnknown, Rejected, Unavailable
from metadata.store.interface import Compare, KeyValue, MetadataStore, Put
from metadata.store.keys import KeyLayout, parse_number

# Node ids end here, so that the numbers that Java clients derive from them are no node ids.
NODE_IDS_END: Final = 1 << 30


async def take_node_id(store: MetadataStore, layout: KeyLayout, broker_id: str) -> int:
    """Returns the broker's number, and allots the next free one where it has none. `broker_id` has passed check_broker_id.

    Raises Unavailable; Rejected where all numbers are taken; Corrupt where a key holds no number.
    """
    key, counter = layout.kafka_node_id(broker_id), layout.next_kafka_node_id
    unknown: OutcomeUnknown | None = None
    for _ in range(ATTEMPTS_MAX):
        if (held := await store.get(key)) is not None:
            return parse_node_id(held)
        last = await store.get(counter)
        node_id = parse_number(last, absent=0)
        if node_id >= NODE_IDS_END:
            raise Rejected(f"{counter} is used up: {NODE_IDS_END} brokers have had a number", key=counter)
        guards = [Compare(key, 0), Compare(counter, last.mod_revision if last else 0)]
        try:
            result = await store.transact(guards, [Put(key, b"%d" % node_id), Put(counter, b"%d" % (node_id + 1))])
        except OutcomeUnknown as error:  # the next read shows whether the transaction happened
            unknown = error
            continue
        if result.succeeded:
            return node_id
    raise Unavailable(f"no number could be allotted under {key} in {ATTEMPTS_MAX} attempts", key=key) from unknown


def parse_node_id(held: KeyValue) -> int:
    """Returns the number that a key under `kafka_node_ids` holds. Raises Corrupt."""
    node_id = parse_number(held, absent=0)
    if node_id >= NODE_IDS_END:
        raise Corrupt(f"{held.key} holds {node_id}, which is no node id", key=held.key, revision=held.mod_revision)
    return node_id
