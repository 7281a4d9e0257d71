"""The brokers of the cluster, as its doors list them: what each has registered, what it leads, and which one is the controller."""

from __future__ import annotations

from gateway.cluster_view import ClusterView
from gateway.doors import BrokerDescription
from metadata.errors import Unavailable
from metadata.etcd_layout import EtcdLayout
from metadata.store import MetadataStore


async def describe_brokers(metadata: MetadataStore, layout: EtcdLayout, view: ClusterView) -> list[BrokerDescription]:
    """All that are registered, by id. Nobody is told to be the controller while the metadata store can't be asked."""
    try:
        held = await metadata.get(layout.controller)
    except Unavailable:
        held = None
    controller = held.value.decode("utf-8", "replace") if held is not None else ""  # its id and session
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
            controller == f"{broker_id} {broker.session}",
        )
        for broker_id, broker in sorted(view.brokers.brokers.items())
    ]
