"""Supplies topics to compaction from their mirror on the bucket, for jobs without access to the metadata. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from metadata.errors import UnknownTopic
from metadata.model import TopicId, TopicPartition
from metadata.topics.cache import TopicChanged
from metadata.topics.settings import TopicSettings
from metadata.topics.topic import Topic


class MirroredTopics:
    """A compaction.context.KnownTopics of one listing. Its topics have an id and a name, which is all that making files needs."""

    def __init__(self, partitions: Mapping[TopicPartition, str]) -> None:
        self.replace(partitions)

    def replace(self, partitions: Mapping[TopicPartition, str]) -> None:
        """Replaces the known topics by the result of a later listing."""
        names = {where.topic_id: name for where, name in partitions.items()}
        self._by_id = {
            topic_id: Topic(id=topic_id, name=name, partition_count=0, settings={}, created_at_ms=0)
            for topic_id, name in names.items()
        }

    def by_id(self, topic_id: TopicId) -> Topic:
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise UnknownTopic(f"no topic with the id {topic_id} is on the bucket", hint="It was deleted.")
        return topic

    def settings(self, topic_id: TopicId) -> TopicSettings:
        return TopicSettings.parse(self.by_id(topic_id).settings)

    def topics(self) -> tuple[Topic, ...]:
        return tuple(self._by_id.values())

    async def catch_up(self, name: str, *, timeout_s: float) -> None:
        """Returns at once: there is no later listing than the one that `replace` was given."""

    def subscribe(self, changed: TopicChanged) -> Callable[[], None]:
        return lambda: None
