"""Lists the brokers of the cluster for the listeners: their registrations, what they lead, which one is the controller. Pure.

It reads the watches only, so it answers at once, also while the metadata store is away.
"""

from __future__ import annotations

from gateway.cluster.view import BrokerDescription, ClusterView


def describe_brokers(view: ClusterView) -> list[BrokerDescription]:
    """Lists all registered brokers by id, as this broker's view has them."""
    return [
        BrokerDescription(
            broker_id,
            broker.http_address,
            broker.grpc_address,
            broker.session,
            broker.draining,
            broker.rack,
            broker.version,
            len(view.partitions.led_by(broker.session)),
            view.controller.is_it(broker),
            broker.node_id,
            broker.kafka_listeners,
        )
        for broker_id, broker in sorted(view.brokers.brokers.items())
    ]
