"""Once a batch of a partition is refused, no later batch of the same request goes to that partition, so that order holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from gateway.records.append import AppendOptions, AppendTarget, append
from gateway.records.partitioning import CheckedBatch
from gateway.routing.log_service import LogService
from metadata.errors import ConditionFailed, NoLeader, StaleRouting, Throttled, TidelogError
from metadata.model import Partition, TopicId, TopicPartition
from metadata.topics.topic import Topic
from segments.byte_budget import Admission, ByteBudget
from segments.deadline import Deadline
from segments.log.session_log import Acks
from tests.kit.segments.batches import batch_of, header_of

TOPIC_ID = TopicId("1" * 32)
FIRST, OTHER = TopicPartition(TOPIC_ID, Partition(0)), TopicPartition(TOPIC_ID, Partition(1))
TARGET = AppendTarget(
    Topic(id=TOPIC_ID, name="orders", partition_count=2, settings={}, created_at_ms=0),
    batch_bytes_max=1 << 20,
    log_append_time=False,
    ahead_ms_max=None,
    broker_bytes_max=1 << 20,
)


class Leader:
    """Refuses what it is asked to, once, and takes everything else."""

    def __init__(self, refuses: dict[bytes, TidelogError]) -> None:
        self.refuses = refuses
        self.taken: list[tuple[TopicPartition, bytes]] = []

    def append(self, partition: TopicPartition, batch: bytes, *_: object, **__: object) -> str:
        refusal = self.refuses.pop(batch, None)
        if refusal is not None:
            raise refusal
        self.taken.append((partition, batch))
        return "pending"


def appended(leader: Leader, batches: Sequence[tuple[TopicPartition, bytes]]) -> list[Any]:
    ready = [CheckedBatch(partition, batch, header_of(batch)) for partition, batch in batches]
    admission = Admission(ByteBudget(1 << 20), 0, timeout_s=0)
    return append(cast(LogService, leader), TARGET, ready, admission, AppendOptions(Acks.ALL, Deadline(1.0, 1.0)))


@pytest.mark.parametrize(
    "refusal", [Throttled("no room"), NoLeader("nobody leads"), ConditionFailed("an end"), StaleRouting("it grew")]
)
def test_batches_behind_a_refused_one_of_their_partition_are_refused_with_it_and_others_go_on(refusal: TidelogError) -> None:
    a, b, c, d = (batch_of(name) for name in (b"a", b"b", b"c", b"d"))
    leader = Leader({b: refusal})
    reported = appended(leader, [(FIRST, a), (FIRST, b), (OTHER, c), (FIRST, d)])
    assert leader.taken == [(FIRST, a), (OTHER, c)], "d is not written in front of b, which may be sent again"
    assert reported == ["pending", refusal, "pending", refusal]
