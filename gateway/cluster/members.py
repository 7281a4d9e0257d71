"""The brokers of the cluster, as its doors list them: what each has registered, what it leads, who is the controller. Pure.

All of it is told from the watches, so it is told at once, and while the metadata store is away as well.
"""

from __future__ import annotations

from gateway.cluster.view import BrokerDescription, ClusterView


def describe_brokers(view: ClusterView) -> list[BrokerDescription]:
    """All that are registered, by id, as far as is known here."""
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
