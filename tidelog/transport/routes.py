"""Defines the route of a topic: its partitions, their leaders and epochs, and the limits of those brokers. Pure.

    topic's name ─▶ TopicRoute: topic id ─▶ PartitionRoute: leader epoch, leader's address ─▶ BrokerLimits

Producers and consumers ask connection.py for routes, and call leaders by address: any broker would forward, but at the price of a
hop. A route is true of one topic id: a topic that was deleted and made again under its name has another id, and nothing that was
agreed on for the old one (sequences, offsets, epochs) holds for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from gateway.proto import admin_pb2
from metadata.errors import FencedLeaderEpoch, TidelogError
from tidelog.settings import MIB
from tidelog.transport.wire_sizes import LONE_BATCH_OVERHEAD_BYTES

NO_LEADER_EPOCH: Final = -1
DETOUR_AGE_S: Final = 10.0
NEXT_LEADER: Final = "the next leader"
TAKEOVER: Final = "its takeover"
# Topics whose newest leader epochs are remembered, those that were met last.
EPOCHS_OF_TOPICS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """The limits of one broker. The defaults apply to a broker that reports none, which refuses more."""

    # Bytes of a whole request. It has to fit the broker's buffer, too.
    request_bytes_max: int = 16 * MIB
    # Bytes of a record batch, unless its topic allows less. If unknown, the bytes of a request.
    message_bytes_max: int = 16 * MIB
    # The records of one batch, decompressed.
    decompressed_bytes_max: int = 64 * MIB

    @property
    def batch_bytes_max(self) -> int:
        """Returns the size of the largest record batch that the broker accepts, in bytes."""
        return max(0, min(self.message_bytes_max, self.request_bytes_max - LONE_BATCH_OVERHEAD_BYTES))


DEFAULT_LIMITS: Final = BrokerLimits()


class RoutePath(NamedTuple):
    """How records get to a partition's leader. What goes one way shares a stream, on which answers come in the order of requests:
    so what may have to wait for a leader goes another way than what is led at the same broker, and holds up nothing of it."""

    # gRPC address of the broker that is called.
    address: str
    # What answers may have to wait for: NEXT_LEADER, TAKEOVER, or the leader at this address, to which the broker forwards. Empty:
    # the broker leads.
    awaits: str = ""


class PartitionRoute(NamedTuple):
    """The route to one partition."""

    # gRPC address of the leader, or of a broker that forwards to it; without a leader, of a broker that learns of the next.
    leader: str
    # NO_LEADER_EPOCH without a leader.
    leader_epoch: int
    # As in RoutePath.
    awaits: str = ""

    @property
    def way(self) -> RoutePath:
        return RoutePath(self.leader, self.awaits)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The partitions of a topic and its limits, as far as a client needs them."""

    name: str
    topic_id: str
    partitions: tuple[PartitionRoute, ...]
    # The largest record batch of the topic, in bytes.
    batch_bytes_max: int
    # The same of its records, decompressed.
    decompressed_bytes_max: int
    # When it was asked for, on the monotonic clock.
    learnt_s: float
    # Those that are not at their defaults.
    settings: Mapping[str, str] = field(default_factory=dict)
    # Whether a leader can't be reached from here, so that a broker between forwards to it.
    has_detours: bool = False
    # gRPC address by partition.
    leaders: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "leaders", tuple(partition.leader for partition in self.partitions))

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    def age_s_max(self, usual_s: float) -> float:
        """Returns the maximum age in seconds. A detour ends soon after the leader can be reached."""
        return min(usual_s, DETOUR_AGE_S) if self.has_detours else usual_s


class _Creation(NamedTuple):
    """One creation of a topic."""

    topic_id: str
    # Its leader epochs begin here; 0 also where that is not known.
    first_leader_epoch: int


class LeaderEpochs:
    """Keeps the newest known leader epoch of each partition. Readers send it, so that no stale leader answers."""

    def __init__(self) -> None:
        # By topic id.
        self._newest: OrderedDict[str, dict[int, int]] = OrderedDict()
        # The newest known creation of each topic, by name.
        self._ids: OrderedDict[str, _Creation] = OrderedDict()

    def newest(self, topic_id: str, partition: int) -> int:
        """Returns the newest leader epoch; NO_LEADER_EPOCH if none is known."""
        return self._newest.get(topic_id, {}).get(partition, NO_LEADER_EPOCH)

    def note_id(self, topic: admin_pb2.Topic) -> None:
        """Notes the id of a topic, unless `is_outdated`."""
        known = self._ids.get(topic.name)
        # An older broker does not name the epoch.
        before = known.first_leader_epoch if known is not None and known.topic_id == topic.id else 0
        self._ids[topic.name] = _Creation(topic.id, topic.first_leader_epoch or before)
        self._ids.move_to_end(topic.name)
        while len(self._ids) > EPOCHS_OF_TOPICS_MAX:
            self._ids.popitem(last=False)

    def forget_ids(self) -> None:
        """Forgets the ids of all topics: those of another cluster have nothing to do with them."""
        self._ids.clear()

    def is_outdated(self, topic: admin_pb2.Topic) -> bool:
        """Returns whether this is another topic than the known one of its name, and is not known to be newer.

        A topic's leader epochs begin above those of all topics that were deleted before it (metadata/topics/registry.py). An older
        broker does not say where. There, one without a leader is the former topic of a broker that lags, or was made a moment ago
        and can't be used yet.
        """
        known = self._ids.get(topic.name)
        if known is None or known.topic_id == topic.id:
            return False
        if topic.first_leader_epoch and known.first_leader_epoch:
            # A restore from an older bucket brings a former topic back, with leader epochs above all that were used.
            newest = max((state.leader_epoch for state in topic.partitions), default=NO_LEADER_EPOCH)
            return max(topic.first_leader_epoch, newest) < known.first_leader_epoch
        newest = max((topic.first_leader_epoch or NO_LEADER_EPOCH, *(state.leader_epoch for state in topic.partitions)))
        newest_known = max(self._newest.get(known.topic_id, {}).values(), default=NO_LEADER_EPOCH)
        return newest < max(known.first_leader_epoch or NO_LEADER_EPOCH, newest_known)

    def heed(self, topic_id: str, partition: int, error: TidelogError) -> None:
        """Takes the present epoch from a refusal of a stale one."""
        leader_epoch = error.details.get("leader_epoch")
        if isinstance(error, FencedLeaderEpoch) and isinstance(leader_epoch, int):
            self.note(topic_id, partition, leader_epoch)

    def note(self, topic_id: str, partition: int, leader_epoch: int) -> bool:
        """Notes an epoch. Returns whether it is newer than the known one."""
        if leader_epoch <= self.newest(topic_id, partition):
            return False
        self._newest.setdefault(topic_id, {})[partition] = leader_epoch
        self._newest.move_to_end(topic_id)
        while len(self._newest) > EPOCHS_OF_TOPICS_MAX:
            self._newest.popitem(last=False)
        return True


def is_shrunk(before: TopicRoute, now: admin_pb2.Topic) -> bool:
    """Returns whether a broker describes fewer partitions than a route of the same topic has: none is ever removed."""
    return now.id == before.topic_id and now.partition_count < before.partition_count


def with_partitions_of(before: TopicRoute, now: TopicRoute) -> TopicRoute:
    """Returns the route, with the further partitions that an earlier route of the same topic has."""
    return replace(now, partitions=(*now.partitions, *before.partitions[now.partition_count :]))


def route_from(
    topic: admin_pb2.Topic,
    *,
    address_of: Mapping[str, str],
    limits_at: Mapping[str, BrokerLimits],
    anyone: str,
    learnt_s: float,
    epochs: LeaderEpochs | None = None,
    way_to: Callable[[str], str] = lambda leader: leader,
) -> TopicRoute:
    """`address_of`: by broker id. `limits_at`: by address. `anyone`: the address for partitions whose leader is not known.

    `way_to`: the address by which a leader is reached. A stale leader, by the known `epochs`, counts as unknown.
    """
    partitions = [PartitionRoute(anyone, NO_LEADER_EPOCH, NEXT_LEADER)] * topic.partition_count
    has_detours = False
    for state in topic.partitions:
        if state.leader not in address_of or state.partition >= len(partitions):
            continue
        if epochs is not None and state.leader_epoch < epochs.newest(topic.id, state.partition):
            continue
        leader = address_of[state.leader]
        way = way_to(leader)
        has_detours |= way != leader
        partitions[state.partition] = PartitionRoute(way, state.leader_epoch, leader if way != leader else "")
        if epochs is not None:
            epochs.note(topic.id, state.partition, state.leader_epoch)
    if epochs is not None:
        epochs.note_id(topic)
    limits = [limits_at.get(leader, DEFAULT_LIMITS) for leader in {partition.leader for partition in partitions}]
    return TopicRoute(
        name=topic.name,
        topic_id=topic.id,
        partitions=tuple(partitions),
        batch_bytes_max=min(
            [topic.batch_bytes_max or DEFAULT_LIMITS.message_bytes_max, *(limit.batch_bytes_max for limit in limits)]
        ),
        decompressed_bytes_max=min(
            [limit.decompressed_bytes_max for limit in limits], default=DEFAULT_LIMITS.decompressed_bytes_max
        ),
        learnt_s=learnt_s,
        settings=dict(topic.settings),
        has_detours=has_detours,
    )


def limits_from(broker: admin_pb2.Broker) -> BrokerLimits | None:
    """Reads the limits from a broker's description; None if it has none. A limit of 0 is unknown at the moment."""
    if not broker.HasField("limits"):
        return None
    limits = broker.limits
    return BrokerLimits(
        request_bytes_max=min(
            limits.request_bytes_max or DEFAULT_LIMITS.request_bytes_max,
            limits.buffer_bytes_max or DEFAULT_LIMITS.request_bytes_max,
        ),
        message_bytes_max=limits.message_bytes_max or DEFAULT_LIMITS.message_bytes_max,
        decompressed_bytes_max=limits.decompressed_bytes_max or DEFAULT_LIMITS.decompressed_bytes_max,
    )
