"""Changes topics and waits until the change is served, so that a produce right after a creation finds its leaders.

  create, alter, delete ─▶ the registry (metadata/topics/registry.py) ─▶ this broker's watch ─▶ led, or released ─▶ answered

A change remains in force if the wait takes too long.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gateway.access.authorization import note_validate_only
from gateway.cluster.session_manager import SessionManager
from metadata.errors import OutcomeUnknown
from metadata.model import TopicId
from metadata.topics.cache import TopicCache
from metadata.topics.registry import TopicRegistry
from metadata.topics.settings import SettingChange
from metadata.topics.topic import NO_REPLICATION_FACTOR, Topic

log = logging.getLogger(__name__)


class TopicAdmin:
    """Creates, alters and deletes topics, and waits until the change is in force."""

    def __init__(
        self, topics: TopicRegistry, cache: TopicCache, leadership: SessionManager, *, ready_s: float, leader_wait_s: float
    ) -> None:
        """`ready_s` bounds the wait for a change to be served; `leader_wait_s` that for leaders to release a topic, which may take
        a seal."""
        self._topics = topics
        self._cache = cache
        self._leadership = leadership
        self._ready_s = ready_s
        self._leader_wait_s = leader_wait_s

    async def create(
        self,
        name: str,
        partition_count: int,
        settings: Mapping[str, str] | None = None,
        *,
        replication_factor: int = NO_REPLICATION_FACTOR,
        validate_only: bool = False,
    ) -> Topic:
        """Creates a topic, and returns when its partitions are led."""
        note_validate_only(validate_only)
        topic = await self._topics.create(
            name, partition_count, settings, replication_factor=replication_factor, validate_only=validate_only
        )
        return topic if validate_only else await self._served(topic)

    async def alter(
        self,
        name: str,
        *,
        settings: Mapping[str, SettingChange] | None = None,
        replace_settings: bool = False,
        partition_count: int | None = None,
        validate_only: bool = False,
    ) -> Topic:
        """Alters a topic, and returns when the change is in force and new partitions are led."""
        note_validate_only(validate_only)
        topic = await self._topics.alter(
            name,
            settings=settings,
            replace_settings=replace_settings,
            partition_count=partition_count,
            validate_only=validate_only,
        )
        return topic if validate_only else await self._served(topic)

    async def delete(self, name: str, *, topic_id: TopicId | None = None, validate_only: bool = False) -> Topic:
        """Deletes a topic, and returns when no broker acknowledges anything for it any more. `topic_id`: only this life of it.

        It waits for a leader that does not answer until its session is sealed. Raises OutcomeUnknown if that takes too long.
        """
        note_validate_only(validate_only)
        topic = await self._topics.delete(name, topic_id=topic_id, validate_only=validate_only)
        if not validate_only:
            await self._cache.wait_for(topic.revision, timeout_s=self._ready_s)
            if not await self._leadership.let_go(topic, timeout_s=self._leader_wait_s):
                raise OutcomeUnknown(
                    f"topic {name} is deleted; its leaders did not confirm it within {self._leader_wait_s:g} s",
                    hint="They may acknowledge records for it until then. Make a topic of the same name a little later.",
                )
        return topic

    async def _served(self, topic: Topic) -> Topic:
        """Waits until the change is served here. After the time limit, requests for it are refused as retryable."""
        await self._cache.wait_for(topic.revision, timeout_s=self._ready_s)
        if not await self._leadership.led(topic, timeout_s=self._ready_s):
            log.warning(
                "topic not served topic=%s waited_s=%s: some partitions have no leader yet; clients retry",
                topic.name,
                self._ready_s,
            )
        return topic
