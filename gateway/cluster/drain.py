"""Drains a broker, or undoes that, through any broker of the cluster.

  drain ─▶ `draining` in the broker's registration ─▶ the controller asks it to hand over ─▶ it leads nothing, and keeps running
               ▲
               └── undrain removes it; so does the broker's next start

The broker that receives the request writes into the registration of the other: no connection between the two is needed, so a broker
whose listeners cannot be reached is drained as well. Invariant: no broker drains if no other could take over.
"""

from __future__ import annotations

from gateway.cluster.view import ClusterView, DrainState
from metadata.cluster.broker_registry import check_broker_id, write_draining
from metadata.errors import NotFound, Rejected, did_you_mean
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout

# Longest wait for the watch to show what was written here.
FOLLOW_TIMEOUT_S = 5.0


async def set_draining(
    metadata: MetadataStore, layout: KeyLayout, view: ClusterView, broker_id: str, *, draining: bool, validate_only: bool = False
) -> DrainState:
    """Sets whether the broker drains, and returns how many partitions it leads now. Repeated calls change nothing.

    Raises InvalidArgument, NotFound, Rejected if no other broker could take over, Unavailable, Corrupt.
    """
    brokers = view.brokers.brokers
    held = brokers.get(check_broker_id(broker_id))
    if held is None:
        near = did_you_mean(broker_id, brokers) or f"Registered are: {', '.join(sorted(brokers)[:10]) or 'none'}."
        raise NotFound(f"no broker {broker_id} is registered", hint=near, broker_id=broker_id)
    if draining and not held.draining and all(other.draining for other in brokers.values() if other != held):
        raise Rejected(
            f"no other broker could take over what {broker_id} leads: it is alone, or all others drain",
            hint="Start another broker first, or undrain one: tidelog cluster undrain BROKER",
            broker_id=broker_id,
        )
    if not validate_only:
        revision = await write_draining(metadata, layout, broker_id, draining=draining)
        await view.brokers.wait_for(revision, timeout_s=FOLLOW_TIMEOUT_S)
    return DrainState(broker_id, draining, len(view.partitions.led_by(held.session)))
