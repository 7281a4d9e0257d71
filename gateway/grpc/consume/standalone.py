"""Reads the partitions of a Consume stream without a group: the stream owns all that it named, from its beginning to its end.

Partitions that are added to a topic later are read from their beginning. If a topic is deleted, or deleted and recreated, each of
its
partitions reports that error; a stream that has nothing left to read ends with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from gateway.api import BrokerApi
from gateway.grpc.consume.delivery import DeliveryLoop
from gateway.grpc.consume.messages import ConsumeOptions, NamedStart
from gateway.grpc.consume.partitions import ConsumedPartition, ConsumedPartitions, Start, StartKind, start_of
from gateway.grpc.fetch.service import PARTITIONS_MAX
from gateway.topics.names import check_topic_id, partition_of
from metadata.errors import InvalidArgument, TidelogError, UnknownTopic
from metadata.group_member.start_offsets import StartPolicy
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.offsets import StoredOffsets
from metadata.topics.topic import Topic


class StandaloneConsumer:
    """Owns every named partition of a stream without a group, and follows changes of its topics."""

    def __init__(
        self,
        broker: BrokerApi,
        terms: ConsumeOptions,
        topics: Mapping[str, Topic],
        partitions: ConsumedPartitions,
        pusher: DeliveryLoop,
        *,
        ended: Callable[[TidelogError], None],
    ) -> None:
        """`topics` are all named topics, as they were found. Raises InvalidArgument, UnknownTopic or UnknownPartition if the
        request does not fit them. `ended` is called when nothing is left to read."""
        self._broker = broker
        self._terms = terms
        self._partitions = partitions
        self._pusher = pusher
        self._ended = ended
        partitions.take(self._first(topics))
        if len(partitions) > PARTITIONS_MAX:
            raise InvalidArgument(
                f"{len(partitions)} partitions are named; {PARTITIONS_MAX} is the most of one stream",
                hint="Read them with several streams.",
                field="start.topics",
            )

    def _first(self, topics: Mapping[str, Topic]) -> Iterable[ConsumedPartition]:
        starts = {(each.topic, each.partition): each for each in self._terms.starts}
        for at, each in enumerate(self._terms.starts):
            topic = topics[each.topic]
            try:
                check_topic_id(topic, each.topic_id)
                partition_of(topic, each.partition)
            except TidelogError as error:
                error.details["field"] = f"start.starts[{at}]"
                raise
            yield _begun(topic, each.partition, each, self._terms.reset)
        for name in self._terms.topics:
            if self._terms.reset is StartPolicy.ERROR and topics[name].partition_count > sum(at[0] == name for at in starts):
                raise InvalidArgument(
                    f"it is not said where topic {name} begins",
                    hint="Choose earliest or latest, or name all its partitions in starts.",
                    field="start.auto_offset_reset",
                )
            for number in range(topics[name].partition_count):
                if (name, number) not in starts:
                    yield _begun(topics[name], number, None, self._terms.reset)

    # ── Ownership ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def owns(self, name: TopicPartitionName) -> bool:
        return True

    async def committed(self) -> StoredOffsets:
        raise AssertionError("a stream without a group has no committed offsets")

    async def keep(self, ends: Mapping[ConsumedPartition, int]) -> Collection[ConsumedPartition]:
        return ends

    def waits(self) -> None:
        pass

    def took(self) -> None:
        pass

    def failed(self, error: TidelogError) -> None:
        if all(each.error is not None for each in self._partitions):
            self._ended(error)

    # ── topics that change ──────────────────────────────────────────────────────────────────────────────────────────────

    def topic_changed(self, name: str) -> None:
        try:
            topic = self._broker.topic_cache.get(name)
        except UnknownTopic as error:
            self._gone(name, error)
            return
        except TidelogError:
            return  # it is damaged, or not known at the moment: the earlier description stays in use
        held = [each for each in self._partitions if each.topic == name]
        if any(each.topic_id != topic.id for each in held):
            self._gone(name, UnknownTopic(f"topic {name} was deleted and made again", topic=name))
        elif name in self._terms.topics:
            added = [number for number in range(topic.partition_count) if self._partitions.get((name, number)) is None]
            self._partitions.take(ConsumedPartition(name, topic.id, number, Start(StartKind.EARLIEST)) for number in added)
            self._pusher.changed()

    def _gone(self, name: str, error: UnknownTopic) -> None:
        for each in list(self._partitions):
            if each.topic == name and each.error is None:
                self._pusher.fail(each, error)


def _begun(topic: Topic, number: int, named: NamedStart | None, reset: StartPolicy) -> ConsumedPartition:
    consumed = ConsumedPartition(topic.name, topic.id, number, start_of(reset) if named is None else named.start)
    if named is not None and named.offset is not None:
        consumed.offset = named.offset
    return consumed
