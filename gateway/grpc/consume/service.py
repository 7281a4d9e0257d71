"""Serves Consume over gRPC: one stream reads topics, alone or as a member of a group, for clients that have no SDK.

  read ──▶ commits, credits, pauses, releases                  one reader, in order: messages.py checks
  run ───▶ the member of the group                             member.py; alone: standalone.py
  write ─▶ group events, records within credits, progress      one writer: delivery.py

  ends    the client leaves, or has closed its side and has no credit · it is gone · the broker stops · its connection is old
          (grpc/connection_ages.py) · nothing can be read, or joined
            └▶ the member releases what it owns, and leaves ─▶ queued messages are written ─▶ the status of the stream

Invariants: a client stops only its own stream, and leaves behind no task, no room, and no member but a static one. A commit whose
outcome was sent is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from gateway.access.authorization import check_group
from gateway.access.refusals import settle_group
from gateway.api import BrokerApi
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.grpc.calls import Context, client_host, parse_message
from gateway.grpc.connection_ages import ConnectionAges
from gateway.grpc.consume import messages as wire
from gateway.grpc.consume.delivery import DeliveryLoop
from gateway.grpc.consume.member import RELEASE_AT_STOP_S, GroupMemberConsumer
from gateway.grpc.consume.messages import ConsumeOptions, NamedStart, check_request, terms_of
from gateway.grpc.consume.partitions import ConsumedPartitions
from gateway.grpc.consume.standalone import StandaloneConsumer
from gateway.grpc.fetch.service import GrpcFetch
from gateway.proto import groups_pb2, log_pb2
from gateway.topics.names import LOOKUP_S, NamedTopic, topic_with, topics_named
from metadata.errors import InvalidArgument, NotFound, Stopping, TidelogError, TooLarge, Unavailable
from metadata.groups.model import shown
from metadata.topics.topic import Topic

NOTHING_SAID: Final = "the stream ended before its first message"
# Time in which a client may commit and release partitions when its connection reaches its age; at most half of the grace.
RELEASE_AT_AGE_S_MAX: Final = 10.0


class GrpcConsume:
    """Serves the call Consume: checks its first message, finds its topics, and runs the stream."""

    def __init__(self, broker: BrokerApi, waits: InterruptibleWaits, fetch: GrpcFetch) -> None:
        self._broker = broker
        self._waits = waits
        self._fetch = fetch
        age_s, grace_s = (
            ms / 1000 for ms in (broker.settings.grpc_connection_age_ms, broker.settings.grpc_connection_age_grace_ms)
        )
        self._ages = ConnectionAges(age_s=age_s, grace_s=grace_s)

    async def consume(self, context: Context) -> None:
        async with self._waits.until_stop():
            message = await context.read()
            if not isinstance(message, bytes):  # the end of what the client sends
                raise InvalidArgument(NOTHING_SAID, hint="Say with `start` what is to be read.", field="start")
            first = _request(message)
            check_request(first, first=True, in_group=bool(first.start.group))
            terms = terms_of(first.start, self._broker.settings)
            if terms.group:
                await settle_group(terms.group)
                check_group(terms.group)
            topics = await self._topics(terms)
        stream = _Stream(self._broker, self._waits, self._fetch, context, terms, topics)
        peer = context.peer()
        try:
            await stream.run(first, until_s=self._ages.ends_s(peer, now_s=asyncio.get_running_loop().time()))
        finally:
            if stream.has_aged:
                self._ages.ended(peer)

    async def _topics(self, terms: ConsumeOptions) -> dict[str, Topic]:
        """Returns all named topics. Raises UnknownTopic and the like, with the field."""
        fields = {each.topic: f"start.starts[{at}].topic" for at, each in enumerate(terms.starts)}
        fields |= {name: f"start.topics[{at}]" for at, name in enumerate(terms.topics)}
        found = await topics_named(self._broker, [NamedTopic(name) for name in fields])
        topics: dict[str, Topic] = {}
        for (name, field), topic in zip(fields.items(), found, strict=True):
            if isinstance(topic, TidelogError):
                topic.details["field"] = field
                raise topic
            topics[name] = topic
        # The metadata store was asked, but the stream reads this broker's view: until it has the topics, they would pass for
        # deleted.
        revision = max(topic.revision for topic in topics.values())
        if not await self._broker.topic_cache.wait_for(revision, timeout_s=LOOKUP_S):
            raise Unavailable("this broker's view does not have all named topics yet", hint="Retry with back-off.")
        await self._hear_of(terms.starts)
        # Returned as they are now: the stream learns only of later changes, and a topic may have grown while others were awaited.
        return {name: self._now(name, fields[name]) for name in topics}

    async def _hear_of(self, starts: Sequence[NamedStart]) -> None:
        """Waits until this broker's view has the topic ids and partitions at which a client begins.

        The client may have learned of them at another broker. Returns at the first that does not exist, which the stream refuses
        with its field. Raises Unavailable if the view does not catch up in time.
        """
        last: dict[NamedTopic, int] = {}
        for each in starts:
            named = NamedTopic(each.topic, each.topic_id)
            last[named] = max(each.partition, last.get(named, 0))
        with suppress(NotFound):
            for (topic, topic_id), partition in last.items():
                await topic_with(self._broker, topic, partition, topic_id=topic_id)

    def _now(self, name: str, field: str) -> Topic:
        try:
            return self._broker.topic_cache.get(name)
        except TidelogError as error:
            error.details["field"] = field
            raise


class _Stream:
    def __init__(
        self,
        broker: BrokerApi,
        waits: InterruptibleWaits,
        fetch: GrpcFetch,
        context: Context,
        terms: ConsumeOptions,
        topics: dict[str, Topic],
    ) -> None:
        self._broker = broker
        self._waits = waits
        self._context = context
        self._terms = terms
        self._topics = frozenset(topics)
        self._partitions = ConsumedPartitions()
        self._pusher = DeliveryLoop(broker, fetch, context, terms, self._partitions, used_up=lambda: self._end(None))
        self._member: GroupMemberConsumer | None = None
        if terms.group:
            self._member = GroupMemberConsumer(broker, terms, self._partitions, self._pusher, client_host=client_host(context))
            self._ownership: GroupMemberConsumer | StandaloneConsumer = self._member
        else:
            self._ownership = StandaloneConsumer(broker, terms, topics, self._partitions, self._pusher, ended=self._end)
        self._pusher.ownership = self._ownership
        # The stream ended because its connection is old.
        self.has_aged = False
        self._ending = asyncio.Event()
        # The error that the stream ends with.
        self._why: TidelogError | None = None
        # How long the client may still commit once the stream ends, in seconds.
        self._release_s = 0.0
        self._release_at_age_s = min(RELEASE_AT_AGE_S_MAX, broker.settings.grpc_connection_age_grace_ms / 2000)
        # The client asked to leave.
        self._is_leaving = False

    async def run(self, first: log_pb2.ConsumeRequest, *, until_s: float) -> None:
        """Runs the stream until `until_s` at the latest, by the loop's clock. Raises the error that ends it, if any."""
        unsubscribe = self._broker.topic_cache.subscribe(self._topic_changed)
        try:
            async with asyncio.TaskGroup() as tasks:
                pushing = tasks.create_task(self._pusher.run(), name="records of a Consume stream")
                start_offsets = tasks.create_task(self._pusher.start_offsets.run(), name="beginnings of a Consume stream")
                reading = tasks.create_task(self._read(first), name="client of a Consume stream")
                aging = asyncio.get_running_loop().call_at(until_s, self._end_of_age)
                stopping = tasks.create_task(self._end_at_stop(), name="end of a Consume stream")
                member = None if self._member is None else tasks.create_task(self._member.run(), name="member of a Consume stream")
                try:
                    await self._ending.wait()
                finally:
                    aging.cancel()
                if self._member is not None and member is not None:
                    self._member.stop(release_s=self._release_s)
                    await asyncio.wait((member,))
                self._pusher.finish()
                await asyncio.wait((pushing,))
                for beside in (start_offsets, reading, stopping):
                    beside.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            unsubscribe()
            if self._member is not None:
                await self._member.leave(asked=self._is_leaving)
        if self._why is not None:
            raise self._why

    def _end(self, why: TidelogError | None) -> None:
        if not self._ending.is_set():
            self._why = why
            self._ending.set()
            self._pusher.end()

    async def _end_at_stop(self) -> None:
        try:
            async with self._waits.until_stop():
                await self._ending.wait()
        except Stopping as error:
            self._release_s = 0.0 if self._pusher.is_closed else RELEASE_AT_STOP_S
            self._end(error.with_traceback(None))

    def _end_of_age(self) -> None:
        """Ends the stream before gRPC cuts its connection, so that its client may commit what it has processed."""
        self._release_s = 0.0 if self._pusher.is_closed else self._release_at_age_s
        self.has_aged = True
        self._end(Unavailable("the connection has reached its age", hint="Open the stream again; it continues where it was."))

    def _topic_changed(self, old: Topic | None, new: Topic | None) -> None:
        changed = new if new is not None else old
        if changed is not None and changed.name in self._topics:
            self._ownership.topic_changed(changed.name)

    # ── messages of the client ──────────────────────────────────────────────────────────────────────────────────────────

    async def _read(self, first: log_pb2.ConsumeRequest) -> None:
        await self._heed(first)
        while not self._is_leaving and isinstance(message := await self._context.read(), bytes):
            request = _request(message)
            check_request(request, first=False, in_group=self._member is not None)
            self._ownership.took()
            await self._heed(request)
        self._pusher.is_closed = True
        if self._member is not None:
            self._member.waits_no_longer_than(0)
        self._pusher.changed()

    async def _heed(self, request: log_pb2.ConsumeRequest) -> None:
        if self._member is not None:
            if request.HasField("commit"):
                await self._member.commit(request.commit)
            if request.released:
                self._member.released(request.released)
        self._pause(request.pause, "pause", paused=True)
        self._pause(request.resume, "resume", paused=False)
        if request.credit_bytes:
            self._pusher.credit_bytes += request.credit_bytes
        self._pusher.changed()
        if request.leave:
            self._is_leaving = True
            self._end(None)

    def _pause(self, asked: Iterable[groups_pb2.TopicPartitions], field: str, *, paused: bool) -> None:
        for at, each in enumerate(asked):
            if each.topic not in self._topics:
                raise InvalidArgument(
                    f"topic {shown(each.topic)} is not one of those that the stream reads", field=f"{field}[{at}].topic"
                )
            for number in each.partitions:
                self._partitions.pause((each.topic, number), paused=paused)


def _request(message: bytes) -> log_pb2.ConsumeRequest:
    if len(message) > wire.MESSAGE_BYTES_MAX:
        raise TooLarge(
            f"the message has {len(message)} bytes; {wire.MESSAGE_BYTES_MAX} is the most of a Consume stream's client",
            hint="Send commits in several messages.",
        )
    return parse_message(log_pb2.ConsumeRequest, message)
