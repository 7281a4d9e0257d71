"""Defines which topics a reader reads: named ones, or all that match a pattern, including later ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from metadata.errors import InvalidArgument, UnknownTopic
from tidelog.admin.topics import Topics
from tidelog.tasks import gather_all
from tidelog.transport.connection import Connection

# A name, several names, or re.compile("orders-.*"), which has to match a topic's whole name.
TopicsLike = str | Iterable[str] | re.Pattern[str]

NAMES_SHOWN_MAX: Final = 5
QUESTIONS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics to read: names, or a pattern of whole names."""

    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics that match {self.pattern.pattern!r}"
        more = len(self.names) - NAMES_SHOWN_MAX
        return ", ".join(self.names[:NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")

    async def partition_counts(
        self, connection: Connection, *, from_store: bool = False, refuses_outdated: bool = False
    ) -> dict[str, int]:
        """Returns the partition counts of the existing topics, at most `topic_age_ms_max` old. Raises Unavailable.

        `from_store`: also of topics and partitions that were added through another broker a moment ago. `refuses_outdated`: as in
        `route`.
        """
        if self.pattern is not None:
            listed = await Topics(connection).list(from_store=from_store, refuses_outdated=refuses_outdated)
            return {topic.name: topic.partition_count for topic in listed if self.pattern.fullmatch(topic.name)}
        return await partition_counts(connection, self.names, from_store=from_store, refuses_outdated=refuses_outdated)

    async def present_topics(self, connection: Connection, *, refuses_outdated: bool = False) -> Sequence[str]:
        """Returns the names, or all topics that match the pattern, also those created through another broker a moment ago.

        `refuses_outdated`: as in `route`.
        """
        if self.pattern is None:
            return self.names
        listed = await Topics(connection).list(from_store=True, refuses_outdated=refuses_outdated)
        return [topic.name for topic in listed if self.pattern.fullmatch(topic.name)]


async def partition_counts(
    connection: Connection,
    topics: Iterable[str],
    *,
    fresh: bool = False,
    from_store: bool = False,
    refuses_outdated: bool = False,
) -> dict[str, int]:
    """Returns the partition counts of the topics that exist. The flags: as in `route`. Raises Unavailable."""

    async def count(topic: str) -> tuple[str, int] | None:
        try:
            route = await connection.route(topic, fresh=fresh, from_store=from_store, refuses_outdated=refuses_outdated)
        except UnknownTopic:
            return None
        return topic, route.partition_count

    return dict(found for found in await gather_all(map(count, topics), at_once=QUESTIONS_AT_ONCE) if found is not None)


def parse_topics(topics: TopicsLike) -> Subscription:
    """Raises InvalidArgument."""
    match topics:
        case str():
            return Subscription((topics,))
        case re.Pattern():
            if not isinstance(topics.pattern, str):
                raise InvalidArgument(f"{topics.pattern!r} is a pattern of bytes", hint='Use text: re.compile("orders-.*").')
            return Subscription(pattern=topics)
    names = tuple(dict.fromkeys(topics)) if isinstance(topics, Iterable) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(
            f"{topics!r} names no topics", hint='Use "orders", ["orders", "payments"] or re.compile("orders-.*").'
        )
    return Subscription(names)
