"""Worlds of cloned metadata leave out exactly the partitions that the known gap concerns."""

from __future__ import annotations

from metadata.model import LeaderEpoch, Partition, SegmentSeq, SessionId, TopicId, TopicPartition
from metadata.topics.topic import Topic
from tests.simulation.bucket_reader import VisibleRun
from tests.simulation.clone_world import AtTheCopy, outside
from tests.simulation.history_checker import Acknowledged, Event, Placed, RecordId, Sent, SentTogether

TOPIC_ID = TopicId("0" * 32)
MOVED, KEPT = TopicPartition(TOPIC_ID, Partition(0)), TopicPartition(TOPIC_ID, Partition(1))
AT_THE_COPY = AtTheCopy(SessionId(3), {MOVED: LeaderEpoch(0), KEPT: LeaderEpoch(0)})


def run_of(partition: TopicPartition, epoch: int, session: int) -> VisibleRun:
    return VisibleRun(partition, LeaderEpoch(epoch), SessionId(session), SegmentSeq(0))


def test_a_partition_that_a_session_of_the_copy_wrote_to_in_a_later_epoch_is_not_judged() -> None:
    runs = [run_of(MOVED, 1, 3), run_of(MOVED, 1, 2), run_of(KEPT, 0, 2)]
    assert AT_THE_COPY.unjudged(runs) == {MOVED}


def test_a_partition_that_moved_to_a_session_which_the_copy_does_not_know_is_judged() -> None:
    assert AT_THE_COPY.unjudged([run_of(MOVED, 0, 1), run_of(MOVED, 1, 3), run_of(KEPT, 0, 2)]) == set()


def test_events_of_other_partitions_are_judged() -> None:
    record = RecordId("p", 0, 1)
    other = RecordId("p", 1, 1)
    topic = Topic(id=TOPIC_ID, name="orders", partition_count=2, settings={}, created_at_ms=0)
    events: list[Event] = [
        Sent(1, str(MOVED), (record,), idempotent=True),
        Sent(2, str(KEPT), (record,), idempotent=True),
        SentTogether(3, "orders", "", (record, other)),
        Acknowledged(1, 0),
        Acknowledged(2, 0),
        Placed(3, ((0, 0), (1, 1))),
    ]
    assert list(outside({MOVED}, events, topic)) == [events[1], events[2], events[4], Placed(3, (None, (1, 1)))]
