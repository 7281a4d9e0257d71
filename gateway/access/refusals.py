"""Makes sure that a refusal is not due to a view of keys and ACLs that lags behind the metadata store.

    a name that the call may not use ─▶ settle ─▶ one read of the store for all that wait (metadata/store/view_proof.py)
                                                     ├ proven ─▶ the check decides, by a view that holds all that was written before
                                                     └ not in time ─▶ the check raises Unavailable in place of NotAuthorized

Another broker may have granted a right or created a key a moment ago, and its client must not end for good where this broker has
not heard of that yet. What is permitted never waits. The checks themselves stay synchronous (authorization.py): a handler settles
the names of its request first, then checks them.

Invariants: a refusal waits for at most SETTLE_S. Refusals of one call within REFUSALS_S share a proof, so that a message with many
names does not wait for each. Nothing is remembered under a name that a client has made up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from gateway.access.authorization import AuthorizedCall, PolicyView, present_call
from metadata.access.acl import CLUSTER_NAME
from metadata.errors import TidelogError

# The longest wait of a refusal. Heartbeats of the SDK give a broker 2.5 s.
SETTLE_S: Final = 2.0
# How long a proof that a call has waited for also holds for its other refusals.
REFUSALS_S: Final = 0.1


async def is_current(view: PolicyView, *, anonymous: bool = False) -> bool:
    """Waits until the view holds everything that was written before this call. Returns False if that takes too long."""
    return await view.catch_up(SETTLE_S, anonymous=anonymous)


async def settle(call: AuthorizedCall, kind: str, names: Iterable[str]) -> None:
    """Waits until the view is proven to be current, if the call may not use one of the names. The caller then checks them."""
    try:
        if call.caller is None or call.caller.is_peer or all(call.permits(kind, name) for name in names):
            return
    except TidelogError:  # the check raises it as well
        return
    clock = asyncio.get_running_loop().time
    if clock() >= call.settled_until_s:
        call.is_in_doubt = not await is_current(call.caller.view)
        call.settled_until_s = clock() + REFUSALS_S


async def settle_topics(names: Iterable[str]) -> None:
    """Settles the topics that the present call names."""
    call = present_call()
    if call is not None:
        await settle(call, "topic", set(names))


async def settle_topic(name: str) -> None:
    """Settles the topic that the present call names."""
    call = present_call()
    if call is not None:
        await settle(call, "topic", (name,))


async def settle_group(name: str) -> None:
    """Settles the consumer group that the present call names."""
    call = present_call()
    if call is not None:
        await settle(call, "group", (name,))


async def settle_cluster(call: AuthorizedCall) -> None:
    """Settles the right on the cluster that the call requires, if any."""
    if call.needs.cluster is not None:
        await settle(call, "cluster", (CLUSTER_NAME,))
