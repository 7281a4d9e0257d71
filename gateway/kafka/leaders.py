"""Names leaders as Kafka's clients see them: brokers by number, each with its address on the listener that the client uses. No I/O.

For a partition without a leader, clients receive the last one. Some clients treat LEADER_NOT_AVAILABLE as final (kafka-go), and all
ask again when the last leader does not answer.

Invariant: all answers on one listener name a broker by the same number and the same address.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.api import BrokerApi
from gateway.kafka.listener_config import ListenerConfig, Route
from metadata.cluster.broker_registry import NO_NODE_ID, BrokerRegistration
from metadata.errors import TidelogError
from metadata.model import TopicPartition


class KafkaNode(NamedTuple):
    """One broker on one listener."""

    node_id: int
    host: str
    port: int
    rack: str


class KafkaLeader(NamedTuple):
    """The leader of a partition, and its epoch."""

    node: KafkaNode
    leader_epoch: int


class KafkaLeaders:
    """Finds the brokers and leaders that answers of one listener name."""

    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker

    def nodes(self, listener: ListenerConfig) -> list[KafkaNode]:
        """Returns the brokers that this listener's clients can reach, by number."""
        found = (self._node(registration, listener) for registration in self._broker.registrations())
        return sorted(node for node in found if node is not None)

    def node(self, broker_id: str, listener: ListenerConfig) -> KafkaNode | None:
        """Returns one broker; None if it has no such listener, or is not registered."""
        registration = self._broker.registration(broker_id)
        return self._node(registration, listener) if registration is not None else None

    def leader(self, partition: TopicPartition, listener: ListenerConfig) -> KafkaLeader | None:
        """Returns the present leader, or the last one; None where the partition never had a leader that is known here."""
        registration = self._broker.last_leader(partition)
        node = self._node(registration, listener) if registration is not None else None
        return KafkaLeader(node, self._broker.leader_epoch(partition)) if node is not None else None

    def readers_in_other_racks(self, partition: TopicPartition, leader: KafkaNode) -> list[int]:
        """Returns the broker that readers of each other rack are sent to (KIP-392)."""
        racks = {broker.rack for broker in self._broker.registrations()} - {"", leader.rack}
        readers = (self._broker.cluster_log.preferred_broker(partition, rack) for rack in sorted(racks))
        return [reader.node_id for reader in readers if reader is not None and reader.node_id not in (NO_NODE_ID, leader.node_id)]

    def is_served_here(self, partition: TopicPartition, listener: ListenerConfig) -> bool:
        """Returns whether this broker answers for the partition: it leads it, or forwards for this listener."""
        if listener.route is Route.FORWARD:
            return True
        leader = self._broker.leader(partition)
        return leader is not None and leader.broker_id == self._broker.broker_id

    def log_start_offset(self, partition: TopicPartition) -> int:
        """Returns the log start offset of a partition that this broker leads; -1 for any other."""
        try:
            return self._broker.log.partitions.at(partition).log.log_start_offset
        except TidelogError:
            return -1

    def _node(self, registration: BrokerRegistration, listener: ListenerConfig) -> KafkaNode | None:
        found = registration.kafka_listener(listener.name)
        if found is None or registration.node_id == NO_NODE_ID:
            return None
        return KafkaNode(registration.node_id, found.host, found.port, registration.rack)
