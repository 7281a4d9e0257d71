"""Marks which metadata store goes with a bucket: the one that was rebuilt from it last.

    metadata/restored-{n}, JSON: {"cluster_id":"…","restored_at_ms":1767225600000}

    restore   creates the next restored-n ─▶ lists all sessions, and seals them
    broker    claims a session ─────────────▶ looks for restored-…: serves only if its metadata know the newest

Each writes before it looks, so at least one sees the other: a session is sealed by the restore, or never served. Otherwise a broker
whose metadata were only unreachable for the operator who restored them would begin another session once its own is sealed, and
acknowledge records that the restored cluster does not know.

Invariant: of two metadata stores that claim the same bucket, only brokers of the one that was restored last acknowledge records.
"""

from __future__ import annotations

import msgspec

from metadata.errors import AlreadyExists, Rejected
from segments.bucket.layout import RESTORATIONS, parse_restoration_key, restoration_key
from segments.object_store.interface import ObjectStore, list_all


class RestoreMarker(msgspec.Struct, frozen=True):
    """Holds the content of a marker, for people."""

    cluster_id: str
    restored_at_ms: int


async def last_restoration(store: ObjectStore) -> int:
    """Returns the number of the last restore; 0 where the metadata were never restored. Raises Unavailable."""
    numbers = [parse_restoration_key(found.key) async for found in list_all(store, RESTORATIONS)]
    return max((number for number in numbers if number is not None), default=0)


async def begin_restoration(store: ObjectStore, cluster_id: str, *, now_ms: int) -> int:
    """Creates the next marker and returns its number. From here on no broker of the old metadata begins a session.

    Raises Unavailable, and OutcomeUnknown: then the marker may exist, which does no harm.
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
    """Raises Rejected where the metadata were restored after restoration `known`, the newest one they hold; Unavailable."""
    number = await last_restoration(store)
    if number > known:
        raise Rejected(
            f"the metadata of {store.url} were rebuilt from it meanwhile ({restoration_key(number)}), so this broker uses outdated "
            "metadata: it takes no more records, and what it acknowledged is on the bucket",
            hint="Start it with the restored metadata (--etcd). If that restore was a mistake and never finished, "
            f"delete {restoration_key(number)}.",
        )
