"""Reads topics without a group: all their partitions or some, those that are added, and topics that come to match a pattern.

begin ─▶ where each partition begins (and ends, unless it follows) ─▶ fetcher.py
a topic has more partitions, a new topic matches ─▶ read from the start
a topic was deleted, or made again ─▶ it ends with an error; under a pattern it is dropped, and read from its start if recreated
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from metadata.errors import InvalidArgument, TidelogError, Unavailable, UnknownTopic
from metadata.groups.assignors import TopicPartitionName
from tidelog.consumer.fetch_state import REFUSALS, named
from tidelog.consumer.fetcher import Fetcher
from tidelog.consumer.offset_lookup import names_known_partitions, ranges_or_errors, starting_offsets
from tidelog.consumer.refusal_patience import RefusalPatience
from tidelog.consumer.subscription import Subscription
from tidelog.positions import AtOffsets, Start
from tidelog.settings import ClientSettings, ResetPolicy
from tidelog.tasks import gather_all
from tidelog.transport.connection import Connection
from tidelog.transport.descriptions import OffsetRange
from tidelog.transport.routes import TopicRoute

# About where topics begin.
QUESTIONS_AT_ONCE: Final = 16
# Routes that are asked for again where brokers disagree on which topic has the name; then the reader reports it as unknown.
FORMER_ROUTES_MAX: Final = 3

log = logging.getLogger("tidelog")


class _Begin(NamedTuple):
    route: TopicRoute
    # By partition: where it begins, or why it can't.
    starts: Mapping[int, int | TidelogError]
    # Where it ends, or why that is not known; empty for who follows.
    ends: Mapping[int, OffsetRange | TidelogError]

    @property
    def is_unknown(self) -> bool:
        """Returns whether a broker says that there is no such topic, at least not of this id."""
        return any(isinstance(found, UnknownTopic) for found in (*self.starts.values(), *self.ends.values()))


class TopicReader:
    """Reads topics without a group."""

    def __init__(
        self,
        connection: Connection,
        settings: ClientSettings,
        subscription: Subscription,
        *,
        start: Start,
        partitions: list[int] | None,
        follow: bool,
        reset: ResetPolicy,
        refuses_outdated: bool = False,
    ) -> None:
        """`partitions` None: those that `start` names, else all of them, and partitions added while it follows.

        Unless it follows, it ends at the high watermarks found at its start. `refuses_outdated`: it then reads all that the
        metadata store has, or ends with Unavailable. Raises InvalidArgument.
        """
        if (partitions is not None or isinstance(start, AtOffsets)) and len(subscription.names) != 1:
            raise InvalidArgument(
                f"partitions are named, and not one topic but {subscription}", hint="Read each topic by itself, or all partitions."
            )
        self.subscription = subscription
        self.fetching = Fetcher(connection, settings, self, what=str(subscription), follow=follow, reset=reset)
        self._connection = connection
        self._settings = settings
        self._start = start
        self._partitions = partitions
        self._follow = follow
        self._refuses_outdated = refuses_outdated
        self._reads_all = partitions is None and not isinstance(start, AtOffsets)

    async def run(self) -> None:
        """Reads until the end, or until it is cancelled."""
        async with self.fetching.running() as tasks:
            topics = await self.subscription.present_topics(self._connection, refuses_outdated=self._refuses_outdated)
            begins = await gather_all(map(self._begin_of, topics), at_once=QUESTIONS_AT_ONCE)
            self._begin([begin for begin in begins if begin is not None])
            if not self._follow:
                self.fetching.end_when_read()
            refreshing = None
            if self._follow and self.subscription.pattern is not None:
                refreshing = tasks.create_task(self._refresh_topics(), name=f"looking for {self.subscription}")
            await self.fetching.until_read()
            if refreshing is not None:
                refreshing.cancel()

    # ── where it begins ──

    async def _begin_of(self, topic: str) -> _Begin | None:
        """Looks up where a topic begins; None if a matched topic is gone. Raises UnknownTopic for a named one."""
        try:
            # A broker that lags may lack partitions that were just added. Only a reader that follows the topic finds them later.
            from_store = self._reads_all and not self._follow
            ask = partial(self._connection.route, topic, from_store=from_store, refuses_outdated=self._refuses_outdated)
            route = await ask(fresh=True)
            if not names_known_partitions(route, self._start, self._partitions):
                route = await self._connection.route(topic, from_store=True, refuses_outdated=True)
            begin = await self._begin_in(route)
            for _ in range(FORMER_ROUTES_MAX):
                # A broker that lags has named a deleted topic. Nothing of it was read, so the present one is read instead.
                if not begin.is_unknown or (now := await ask()).topic_id == route.topic_id:
                    break
                route = now
                begin = await self._begin_in(route)
            return begin
        except UnknownTopic:
            if self.subscription.pattern is None:
                raise
            return None

    async def _begin_in(self, route: TopicRoute) -> _Begin:
        """Looks up where the topic begins at its leaders. One that lags may not have heard of the reader's right yet."""
        patience = RefusalPatience()
        while True:
            try:
                begin = await self._ask_where_it_begins(route)
            except REFUSALS as error:
                patience.check(error)
                log.info("start not known topic=%s: %s; retrying", route.name, error)
            else:
                if not any(map(patience.may_pass, (*begin.starts.values(), *begin.ends.values()))):
                    return begin
            await asyncio.sleep(self._settings.retry_pause_ms_max / 1000)

    async def _ask_where_it_begins(self, route: TopicRoute) -> _Begin:
        starts = await starting_offsets(self._connection, route, self._start, self._partitions)
        sound = sorted(partition for partition, offset in starts.items() if not isinstance(offset, TidelogError))
        ends = {} if self._follow else await ranges_or_errors(self._connection, route, sound)
        return _Begin(route, starts, ends)

    def _begin(self, begins: list[_Begin]) -> None:
        """Begins all partitions together, so that the first fetch asks for all."""
        failed: dict[TopicPartitionName, TidelogError] = {}
        for route, starts, ends in begins:
            self.fetching.follow(route)
            for number, offset in starts.items():
                partition, end = (route.name, number), ends.get(number)
                until = end if isinstance(end, OffsetRange) else None
                gone = self.fetching.read(partition, offset if isinstance(offset, int) else 0, until=until)
                for wrong in (offset, end, gone):
                    if isinstance(wrong, TidelogError):
                        failed[partition] = named(wrong, partition)
        self.fetching.end(failed)

    # ── what becomes of the topics ──

    async def _refresh_topics(self) -> None:
        patience, pause_ms = RefusalPatience(), self._settings.topic_age_ms_max
        while True:
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = self._settings.topic_age_ms_max
            try:
                for topic in await self.subscription.partition_counts(self._connection):
                    if not self.fetching.follows(topic):
                        with suppress(UnknownTopic):  # a broker that lags has listed it
                            self._read_new(await self._connection.route(topic, fresh=True))
                patience.answered()
            except (Unavailable, *REFUSALS) as error:
                patience.check(error)
                if isinstance(error, REFUSALS):
                    pause_ms = self._settings.retry_pause_ms_max
                log.info("topics not known: %s: %s; retrying", self.subscription, error)

    def _read_new(self, route: TopicRoute) -> None:
        log.info("topic added topic=%s: reading it with %s", route.name, self.subscription)
        self.fetching.follow(route)
        self.topic_changed(route)

    def topic_changed(self, route: TopicRoute) -> None:
        if self._reads_all and self._follow:
            for partition in range(route.partition_count):
                if (route.name, partition) not in self.fetching:
                    self.fetching.read((route.name, partition), 0, was_added=True)

    def position_reset(self, partition: TopicPartitionName, offset: int) -> None:
        """Does nothing: a reader without a group keeps no offsets."""

    def topic_gone(self, topic: str, error: UnknownTopic) -> None:
        if self.subscription.pattern is not None and self._follow:
            log.warning("topic gone: %s; reading goes on without it", error)
            self.fetching.drop(self.fetching.of_topic(topic))
