"""Keeps the routes of the topics that are read: renews them by age, and at once after a failure.

topic ─▶ route: its id, its partitions, who leads them
an answer says that it is not so, a call fails ──doubt──▶ asked again
a topic that was deleted, or made again ──▶ reported, and not followed until `follow` is called
a topic whose rights are all taken      ──▶ reported, and not asked for again until `follow` is called
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Protocol

from metadata.errors import NotAuthorized, Unavailable, UnknownTopic
from tidelog.consumer.fetch_state import DENIED_S, REFUSALS
from tidelog.settings import ClientSettings
from tidelog.transport.connection import Connection
from tidelog.transport.routes import TopicRoute, with_partitions_of

QUESTIONS_AT_ONCE: Final = 16

log = logging.getLogger("tidelog")


class TopicWatcher(Protocol):
    """Receives changes of the topics that are read. Its methods must not block."""

    def topic_changed(self, route: TopicRoute) -> None:
        """Reports a changed topic: partitions may have been added."""

    def topic_gone(self, topic: str, error: UnknownTopic) -> None:
        """Reports a deleted topic. If it was recreated, `details` of the error hold its new_topic_id."""


class RouteListener(TopicWatcher, Protocol):
    """Receives what a TopicWatcher receives, and which topics may not be read any more."""

    def topic_denied(self, topic: str, error: NotAuthorized) -> None:
        """Reports a topic that the reader may neither read nor look up any more, for longer than a broker may lag."""


class RouteWatcher:
    """Keeps the routes of followed topics up to date."""

    def __init__(self, connection: Connection, settings: ClientSettings, watcher: RouteListener) -> None:
        self._connection = connection
        self._settings = settings
        self._watcher = watcher
        self._routes: dict[str, TopicRoute] = {}
        self._doubted: set[str] = set()
        # The first refusal for want of a right or a key since the last answer, by topic.
        self._denied_since_s: dict[str, float] = {}
        # Topics that were reported as denied. Their routes stay, for what was fetched already.
        self._denied: set[str] = set()
        self._woken = asyncio.Event()
        self._questions = asyncio.Semaphore(QUESTIONS_AT_ONCE)

    def __contains__(self, topic: str) -> bool:
        return topic in self._routes

    def __getitem__(self, topic: str) -> TopicRoute:
        return self._routes[topic]

    def leader(self, partition: tuple[str, int]) -> str:
        """Returns the address to fetch the partition from; empty for one that ended since its topic lacks it."""
        leaders = self._routes[partition[0]].leaders
        return leaders[partition[1]] if partition[1] < len(leaders) else ""

    def follow(self, route: TopicRoute) -> None:
        """Follows a topic. A newer known route stays: partitions are never removed."""
        self._denied.discard(route.name)
        held = self._routes.get(route.name)
        if held is None or held.topic_id != route.topic_id or route.partition_count >= held.partition_count:
            self._routes[route.name] = route
            self._woken.set()

    def forget(self, topic: str) -> None:
        self._routes.pop(topic, None)
        self._doubted.discard(topic)
        self._denied_since_s.pop(topic, None)
        self._denied.discard(topic)

    def doubt(self, topics: Iterable[str]) -> None:
        """Doubts the routes of topics after a failure: they are asked for again."""
        self._doubted.update(topics)
        self._woken.set()

    async def run(self) -> None:
        """Keeps the routes true until it is cancelled."""
        while True:
            self._woken.clear()
            now_s = time.monotonic()
            renewed = self._routes.keys() - self._denied
            due = [topic for topic in renewed if topic in self._doubted or self._old_s(topic) <= now_s]
            if due:
                async with asyncio.TaskGroup() as tasks:
                    for topic in due:
                        tasks.create_task(self._renew(topic), name=f"route of {topic}")
                if self._doubted.intersection(due):
                    await asyncio.sleep(self._settings.retry_pause_ms_max / 1000)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(min(map(self._old_s, renewed)) - now_s if renewed else None):
                    await self._woken.wait()

    async def _renew(self, topic: str) -> None:
        async with self._questions:
            self._doubted.discard(topic)
            try:
                await self.ask(topic)
                self._denied_since_s.pop(topic, None)
            except (Unavailable, *REFUSALS) as error:
                now_s = time.monotonic()
                if isinstance(error, REFUSALS) and now_s - self._denied_since_s.setdefault(topic, now_s) > DENIED_S:
                    if not isinstance(error, NotAuthorized):  # a key that no longer counts ends all topics
                        raise
                    self._deny(topic, error)
                    return
                log.info("route not known topic=%s: %s; retrying", topic, error)
                if topic in self._routes:
                    self._doubted.add(topic)

    def _deny(self, topic: str, error: NotAuthorized) -> None:
        self._denied_since_s.pop(topic, None)
        if topic in self._routes:
            self._denied.add(topic)
            self._watcher.topic_denied(topic, error)

    async def ask(self, topic: str) -> bool:
        """Asks now, and tells the watcher. Whether the topic that is read is still there. Raises Unavailable."""
        if topic not in self._routes:
            return False
        topic_id = self._routes[topic].topic_id
        try:
            route = await self._connection.route(topic, fresh=True)
        except UnknownTopic:
            gone = UnknownTopic(f"topic {topic} was deleted while it was read", hint="There is nothing more to read.", topic=topic)
        else:
            held = self._routes.get(topic)
            if held is None or held.topic_id != topic_id:
                return False
            if route.topic_id == topic_id:
                if route.partition_count >= held.partition_count:
                    self._routes[topic] = route
                    self._watcher.topic_changed(route)
                else:  # a broker lags, or the cluster was restored from a copy in which the topic had fewer: its leaders count
                    self._routes[topic] = with_partitions_of(held, route)
                return True
            gone = made_again(held, route)
        if topic in self._routes and self._routes[topic].topic_id == topic_id:
            self.forget(topic)
            self._watcher.topic_gone(topic, gone)
        return False

    def _old_s(self, topic: str) -> float:
        route = self._routes[topic]
        return route.learnt_s + route.age_s_max(self._settings.topic_age_ms_max / 1000)


def made_again(before: TopicRoute, now: TopicRoute) -> UnknownTopic:
    return UnknownTopic(
        f"topic {now.name} was deleted and made again while it was read: its id was {before.topic_id}, and is {now.topic_id} now",
        hint="Offsets of the old topic mean nothing in the new one: read it again from the earliest offset.",
        topic=now.name,
        topic_id=before.topic_id,
        new_topic_id=now.topic_id,
    )
