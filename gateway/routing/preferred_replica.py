"""Chooses the broker that a client should fetch from if the leader is in another rack (KIP-392). Decides from memory. Pure.

    registered brokers that do not drain and reach the bucket ─▶ by rack ─▶ rendezvous hashing of the partition ─▶ one of them

Any broker can read committed records from the bucket (follower_fetch.py), so none needs to be in sync with the leader. Invariant: a
client is sent only to brokers of its own rack, and to none if the leader is in that rack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from metadata.cluster.broker_registry import BrokerRegistration
from metadata.measurements import counter
from metadata.model import TopicPartition
from metadata.rendezvous import Rendezvous


class KnownBrokers(Protocol):
    """Holds the registered brokers, as BrokerCache of metadata/cluster/broker_registry.py does."""

    @property
    def brokers(self) -> Mapping[str, BrokerRegistration]: ...

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]: ...


@dataclass(slots=True)
class PreferredBrokerCounters:
    """Counts preferred replicas that were returned, since the process began."""

    answers: int = counter(
        "tidelog_preferred_broker_answers", "Partitions of which readers were sent to a broker of their own rack."
    )


class PreferredReplica:
    """Chooses preferred replicas by rack, and follows the registered brokers."""

    def __init__(self, known: KnownBrokers, *, rack: str) -> None:
        """`rack` is that of this broker, which serves clients of the same rack itself."""
        self._known = known
        self._rack = rack
        self._by_rack: dict[str, Rendezvous] = {}
        self.counters = PreferredBrokerCounters()
        self._brokers_changed()
        known.subscribe(self._brokers_changed)

    def broker_for(
        self, partition: TopicPartition, client_rack: str, leader: BrokerRegistration | None
    ) -> BrokerRegistration | None:
        """Returns the broker for a client of this rack; None if it names no rack, or this broker or the leader serves it."""
        if not client_rack or client_rack == self._rack or leader is None or leader.rack == client_rack:
            return None
        here = self._by_rack.get(client_rack)
        broker_id = here.highest(f"{partition.topic_id}/{partition.partition}") if here is not None else None
        found = self._known.brokers.get(broker_id) if broker_id is not None else None
        self.counters.answers += found is not None
        return found

    def _brokers_changed(self) -> None:
        by_rack: defaultdict[str, list[str]] = defaultdict(list)
        for broker_id, broker in self._known.brokers.items():
            if broker.rack and broker.grpc_address and not broker.draining and not broker.unwritable_bytes:
                by_rack[broker.rack].append(broker_id)
        self._by_rack = {rack: Rendezvous(broker_ids) for rack, broker_ids in by_rack.items()}
