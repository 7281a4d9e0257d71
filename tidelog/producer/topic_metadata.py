"""Learns the topics that a producer writes to, and decides when to ask the cluster about them.

    first record of a topic                                       the record waits for the answer
    a partition that is not known                                 the same, at most once in `retry_pause_ms`
    a record that is too large                                    the same, at most once in `retry_pause_ms_max`
    a route older than `topic_age_ms_max`                         in the background, when a batch is opened
    an answer that says that the topic is not as it was           in the background
    a stream that broke, before anything is sent again            the stream waits for the answer
    a broker that keeps silent, once a second; more often where   the stream waits for the answer
    it waits for a leader itself

One question at a time for each topic. Invariant: what is held is bounded by the topics in use: those that were deleted, and those
that nothing was sent to for IDLE_S, are forgotten once nothing of theirs is on its way.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterable
from contextlib import suppress

from metadata.errors import InvalidArgument, TidelogError, Unavailable, UnknownTopic
from tidelog.producer.accumulator import RecordAccumulator
from tidelog.producer.partition_queue import PartitionQueue
from tidelog.producer.topic_partitions import TopicPartitions
from tidelog.settings import ClientSettings
from tidelog.tasks import ClientTasks
from tidelog.transport.connection import QUESTION_S, Connection

IDLE_S = 300.0
FORGETS_EVERY_S = 10.0


class _Refresh:
    """Looks for partitions of one topic that are not known, one after the other."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        # When the last one began.
        self.begun_s = -math.inf


class ProducerMetadata:
    """The producer's knowledge of topics: learns routes, and renews them by age and after failures."""

    def __init__(
        self,
        connection: Connection,
        accumulator: RecordAccumulator,
        settings: ClientSettings,
        tasks: ClientTasks,
        *,
        closed: Callable[[PartitionQueue], None],
        learnt: Callable[[], None],
    ) -> None:
        """`closed`: a queue has a batch that may leave. `learnt`: a new route applies, so queues may send elsewhere, or again."""
        self.books: dict[str, TopicPartitions] = {}
        self._connection = connection
        self._accumulator = accumulator
        self._settings = settings
        self._tasks = tasks
        self._closed = closed
        self._learnt = learnt
        self._loop = asyncio.get_running_loop()
        self._refreshes: dict[str, _Refresh] = {}
        # Topics that a background task asks about.
        self._asking: set[str] = set()
        self._forgets_again_s = 0.0
        self._is_stopped = False

    def stop(self) -> None:
        """Starts no task any more: their owner ends."""
        self._is_stopped = True

    async def open(self, topic: str) -> TopicPartitions:
        """Learns a topic that is not known. Raises InvalidArgument, UnknownTopic, Unavailable."""
        if not isinstance(topic, str):
            raise InvalidArgument(f"the topic is {topic!r}, which is not a name")
        self._forget_idle()
        await self._learn(topic, fresh=topic in self.books)
        return self.books[topic]

    async def learn_once_more(self, book: TopicPartitions) -> None:
        """Asks again after a mismatch, unless it asked a moment ago. Raises UnknownTopic, Unavailable."""
        if self.learnt_long_ago(book.name):
            await self._learn(book.name, fresh=True)

    async def refresh_partitions(self, book: TopicPartitions) -> None:
        """Reads the metadata store again, for a caller that named a partition beyond the known ones.

        Lookups begin `retry_pause_ms` after each other at least, and are shared. Raises UnknownTopic, Unavailable.
        """
        came_s = self._loop.time()
        refresh = self._refreshes.setdefault(book.name, _Refresh())
        async with refresh.lock:
            if refresh.begun_s >= came_s:
                return
            await asyncio.sleep(max(0.0, refresh.begun_s + self._settings.retry_pause_ms / 1000 - self._loop.time()))
            refresh.begun_s = self._loop.time()
            await self._learn(book.name, from_store=True)

    async def learn_before_resending(self, topics: Iterable[str], at: str) -> None:
        """Asks the broker at this address, once. Where it does not answer, things stay as they are."""
        for topic in topics:
            try:
                await self._learn(topic, fresh=True, at=at)
            except Unavailable:
                return
            except TidelogError:
                continue  # the batches themselves meet what is wrong, and say so

    async def learn_who_leads(self, topic: str) -> None:
        """Asks any broker, for a short time. Where none answers, things stay as they are."""
        with suppress(TidelogError, TimeoutError):
            async with asyncio.timeout(2 * QUESTION_S):
                await self._learn(topic, fresh=True)

    def learnt_long_ago(self, topic: str) -> bool:
        """Returns whether its route is old, so that a mismatch may be a change of the topic."""
        book = self.books.get(topic)
        return book is not None and self._loop.time() - book.learnt_s > self._settings.retry_pause_ms_max / 1000

    def learn_by_age(self, book: TopicPartitions) -> None:
        if self._loop.time() >= book.learn_again_s:
            self.learn_later((book.name,))

    def learn_later(self, topics: Iterable[str]) -> None:
        """Asks in the background, unless another caller does already."""
        for topic in topics:
            if topic not in self._asking and topic in self.books and not self._is_stopped:
                self._asking.add(topic)
                self._tasks.start(self._learn_in_background(topic), name=f"route of {topic}")

    async def _learn_in_background(self, topic: str) -> None:
        try:
            await self._learn(topic, fresh=True)
        except UnknownTopic:
            return
        except TidelogError:
            if (book := self.books.get(topic)) is not None:  # its age would ask again with each batch
                book.learn_again_s = self._loop.time() + self._settings.retry_pause_ms_max / 1000
        finally:
            self._asking.discard(topic)

    async def _learn(self, topic: str, *, fresh: bool = False, from_store: bool = False, at: str | None = None) -> None:
        try:
            route = await self._connection.route(topic, fresh=fresh, from_store=from_store, refuses_outdated=from_store, at=at)
        except UnknownTopic:
            if (book := self.books.get(topic)) is not None:
                book.is_gone = True
            raise
        book = self.books.get(topic)
        if book is None:
            start = random.randrange(1 << 30)
            book = self.books[topic] = TopicPartitions(topic, self._accumulator, self._settings, start=start, closed=self._closed)
        now_s = self._loop.time()
        book.used_s = book.used_s or now_s
        book.take_route(route, now_s)
        self._learnt()

    def _forget_idle(self) -> None:
        now_s = self._loop.time()
        if now_s < self._forgets_again_s:
            return
        self._forgets_again_s = now_s + FORGETS_EVERY_S
        old_s = now_s - max(IDLE_S, 2 * self._settings.delivery_timeout_ms / 1000)
        for book in list(self.books.values()):
            if (book.is_gone or book.used_s < old_s) and book.is_idle() and book.name not in self._asking:
                del self.books[book.name]
                self._refreshes.pop(book.name, None)
                self._accumulator.drop(book.queues, Unavailable("the topic was forgotten"))
