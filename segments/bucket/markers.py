"""Which metadata store goes with a bucket: the one that was rebuilt from it last.

    metadata/restored-{n}, JSON: {"cluster_id":"…","restored_at_ms":1767225600000}

    restore   creates the next restored-n ─▶ lists all sessions, and seals them
    broker    claims a session ─────────────▶ looks for restored-…: serves only if its metadata tell of the newest

Each writes before it looks, so at least one sees the other: a session is sealed by the restore, or never served. Without it a
broker whose metadata were not lost after all, but only out of reach for whoever restored them, would begin another session once its
own is sealed, and acknowledge records that the restored cluster knows nothing of.

Invariant: of two stores of metadata that claim the same bucket, brokers of the one that was restored last alone acknowledge.
"""

from __future__ import annotations

import msgspec

from metadata.errors import AlreadyExists, Rejected
from segments.bucket.layout import RESTORATIONS, parse_restoration_key, restoration_key
from segments.object_store.interface import ObjectStore, list_all


class RestoreMarker(msgspec.Struct, frozen=True):
    """For people."""

    cluster_id: str
    restored_at_ms: int


async def last_restoration(store: ObjectStore) -> int:
    """Its number; 0 where the metadata were never restored. Raises Unavailable."""
    numbers = [parse_restoration_key(found.key) async for found in list_all(store, RESTORATIONS)]
    return max((number for number in numbers if number is not None), default=0)


async def begin_restoration(store: ObjectStore, cluster_id: str, *, now_ms: int) -> int:
    """The number of a new one. From here on no broker of the metadata of before begins another session.

    Raises Unavailable, and OutcomeUnknown: then one may have begun, which does no harm.
    """
    number = await last_restoration(store) + 1
    record = msgspec.json.encode(RestoreMarker(cluster_id, now_ms))
    while True:
        try:
            await store.create(restoration_key(number), [record])
            return number
        except AlreadyExists:
            number += 1


async def check_not_superseded(store: ObjectStore, known: int) -> None:
    """Rejected where the metadata were restored after restoration `known`, the one that they tell of. Raises Unavailable."""
    number = await last_restoration(store)
    if number > known:
        raise Rejected(
            f"the metadata of {store.url} were rebuilt from it meanwhile ({restoration_key(number)}), and those that this broker "
            "uses are of before: it takes no more records, and what it acknowledged is on the bucket",
            hint="Start it with the metadata that were restored (--etcd). Where that restore was a mistake and never finished, "
            f"delete {restoration_key(number)}.",
        )
