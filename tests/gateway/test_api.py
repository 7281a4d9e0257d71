"""What the listeners have in common."""

from __future__ import annotations

from gateway.topics.names import named
from metadata.errors import Corrupt
from metadata.model import TopicId
from metadata.topics.topic import Topic


def test_an_error_names_the_topic_and_leaves_the_keys_of_objects_as_they_are() -> None:
    topic = Topic(id=TopicId("a" * 32), name="orders", partition_count=1, settings={}, created_at_ms=0)
    key = f"topics/orders/{topic.id}/partition=0/x.parquet"
    reported = named(Corrupt(f"{topic.id}/0: {key} is damaged"), topic).message
    assert reported == f"orders/0: {key} is damaged"
